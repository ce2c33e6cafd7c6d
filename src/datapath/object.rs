//! What a file is to the cache: where its bytes are, which phase of its life it is in, and who uses it.
//!
//! ```text
//! create ──> Writing ──last writer closes, or rename──> Sealed ──evict, unlink, replace──> Gone
//!               └─temporary name, last writer closes─> Parked ──rename──> Sealed
//! ```
//! A cold sealed object is this struct alone; what only an open file needs hangs in [`OpenState`], and what nobody
//! asks for on the way of a read, as its checksum, stays in its record.

use std::fs::File;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tidefs_engine::types::{ByteCount, SegmentId, Version};

use super::elsewhere::Stream;
use super::expected::Expected;
use super::overtaken::Content;
use crate::cluster::Stamp;
use crate::namespace::{Name, ProcessId, Slot};
use crate::tier::memory::{PackedExtent, PolicyRecord};
use crate::tier::scratch::ScratchFile;

/// How long an announced close is expected: the kernel sends RELEASE at once, and which waits for a thread of the daemon.
pub const CLOSE_WAIT: Duration = Duration::from_millis(200);

/// Where the bytes of a file are.
#[derive(Clone, Debug)]
pub enum Place {
    /// A segment of its own in the memory tier.
    Solo(SegmentId),
    /// Among other small objects of its namespace.
    Packed(PackedExtent),
    /// A slot file on disk: mutable, local, never sealed.
    Scratch(Arc<ScratchFile>),
    /// In the SSD tier alone: brought back before it is opened.
    Ssd,
    /// On other members of the cluster alone: fetched before it is opened.
    Remote,
}

impl Place {
    /// Whether both are the same piece of the memory tier.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Solo(one), Self::Solo(other)) => one == other,
            (Self::Packed(one), Self::Packed(other)) => one == other,
            _ => false,
        }
    }
}

/// Stations in the life of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Has writers, or never had its last one leave: hidden from everyone else.
    Writing,
    /// A temporary name whose writers closed it: visible here, not yet an object, lost at a restart.
    Parked,
    /// Immutable and visible.
    Sealed,
    /// Without a name. Bytes live on for those who have it open or mapped.
    Gone,
}

/// Facts of a file that are one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks(u16);

impl Marks {
    /// No writer is left: the bytes cannot change any more.
    pub const FINAL: Self = Self(1);
    /// Somebody opened the sealed object to read, so mappings may exist until the kernel forgets the inode.
    pub const READ: Self = Self(2);
    /// Somebody opened it to read and write, so a writable mapping may outlive every handle.
    pub const WRITABLE_MAPPING: Self = Self(4);
    /// Taken over from an earlier daemon and not checked against its checksum yet.
    pub const UNVERIFIED: Self = Self(8);
    /// Has attributes of its own beyond the policy (`user.*` of applications).
    pub const DECORATED: Self = Self(16);
    /// Which of its directory's two orders it is in while that changes its domain (`regroup.rs`).
    pub const TURN: Self = Self(32);
    /// Was never final, so the kernel was told no attributes that it may believe for any time and does not know changed.
    pub const FRESH: Self = Self(64);
    /// Has a temporary name and was no object yet: everybody sees it while it is written.
    pub const SHOWN: Self = Self(1024);
    /// On its way to the SSD tier, out of the order of eviction and of the accounts; its bytes are still in memory.
    pub const STORING: Self = Self(128);
    /// The SSD tier has a record of this version under this name, or is about to.
    pub const ON_SSD: Self = Self(256);
    /// What that record says beside the bytes is not true any more.
    pub const STALE_ON_SSD: Self = Self(512);
    /// Taken over from an earlier daemon, whose clients may have its segment mapped.
    pub const ADOPTED: Self = Self(2048);
    /// Clients of the fast path know its segment.
    pub const SHARED: Self = Self(4096);
    /// Excluded from eviction while clients hold references to it.
    pub const HELD: Self = Self(8192);

    /// Brought back from SSD before anybody asked, and not used since.
    pub const PREFETCHED: Self = Self(16384);
    /// A copy of what another member holds, fetched for readers here: it leaves first.
    pub const SOFT: Self = Self(32768);

    /// Whether all bits of `mark` are set.
    #[must_use]
    pub fn has(self, mark: Self) -> bool {
        self.0 & mark.0 == mark.0
    }

    /// Sets or clears the bits of `mark`.
    pub fn set(&mut self, mark: Self, on: bool) {
        if on {
            self.0 |= mark.0;
        } else {
            self.0 &= !mark.0;
        }
    }
}

/// Why a write was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The quota of a directory is full.
    OverQuota {
        /// The directory.
        directory: Slot,
        /// Its quota.
        quota: ByteCount,
    },
    /// Nothing in the cache can be evicted.
    NoRoom,
    /// The disk of slot files takes no more.
    ScratchFull,
}

/// A process that has, or had, a hidden file open for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterProcess {
    /// The process.
    pub id: ProcessId,
    /// Its handles that may write and of which no descriptor was closed yet.
    pub writing: u32,
}

/// What is kept only while a file is open, written, or has a policy of its own.
#[derive(Debug, Default)]
pub struct OpenState {
    /// The backing file, while anyone has the file open.
    pub file: Option<Arc<File>>,
    /// Where its bytes come from while it was opened before all of them were here.
    pub stream: Option<Arc<Stream>>,
    /// Open handles that read only.
    pub readers: u32,
    /// Open handles that may write.
    pub writers: u32,
    /// Those of them of which a descriptor was closed.
    pub flushed: u32,
    /// Handles among both that the kernel serves by passthrough: while there are any, all must be.
    pub passthrough: u32,
    /// Handles that the daemon serves and that may read: they may have mapped the file through the page cache, and
    /// while one lives the kernel refuses passthrough.
    pub direct_mappable: u32,
    /// Processes that have written the file since it is hidden, the first one first.
    pub writer_processes: Vec<WriterProcess>,
    /// A writer began to close: its RELEASE is on the way, and who looks the file up waits for it.
    pub closing: bool,
    /// Monotonic milliseconds at which the last close was announced.
    pub announced_at_ms: u64,
    /// All who write this hidden version had announced their close when another one was published under its name: that one stands,
    /// however late the RELEASE of this one comes, and is what others come to write, until this one is written and closed once more.
    pub is_overtaken: bool,
    /// What it was like when that happened last.
    pub overtaken_as: Option<Content>,
    /// What a version that is written over an object was like when all had closed it last.
    pub closed_as: Option<Content>,
    /// How often the daemon was to write to it or changed its length.
    pub writes: u64,
    /// A writer was killed while it had the file open.
    pub writer_killed: Option<ProcessId>,
    /// Whether that was a child of who opened it, whose own last close decides nevertheless.
    pub was_child_killed: bool,
    /// A write was refused: what is there is not what the writer meant, and is dropped when it closes.
    pub refused: Option<Refusal>,
    /// Bytes from the start of the backing file whose pages are allocated.
    pub reserved: ByteCount,
    /// How often it was cut, or a hole was made, which took pages away.
    pub cuts: u64,
    /// As many of them as were allocated on a guess of its size ([`guessed`](super::guessed)).
    pub guessed: ByteCount,
    /// As far as pages were reserved when a hole was made before them, which ended what `reserved` knows.
    pub reserved_behind_hole: ByteCount,
    /// Length that the quotas above count at least: as it was last seen, or is about to be.
    pub claimed: ByteCount,
    /// Length that ftruncate(2), fallocate(2) or the version before gave it, with all its pages.
    pub sized: ByteCount,
    /// How often there had been no page left when the first of its passthrough handles was opened.
    pub ends_of_room: u64,
    /// A hidden new version that is being written over this sealed object.
    pub next_version: Option<Slot>,
    /// Where this hidden version will stand once it is sealed, when an older version stands there now.
    pub supersedes: Option<(Slot, Name)>,
    /// Monotonic milliseconds at which nobody is waited for any more: a version that nobody came to write is dropped, and one that
    /// others have closed is sealed.
    pub abandoned_at_ms: u64,
    /// Whether nobody opens it any more who has not: its bytes are wrong, or an operator took them away.
    pub is_barred: bool,
    /// Threads that were sent to look the name up again and open this version: it waits for them, for a while.
    pub expected: Vec<Expected>,
    /// Whether anybody has had it open for writing.
    pub was_opened: bool,
    /// Policy set on this file itself.
    pub policy: PolicyRecord,
    /// The version and length under which the cluster heard of the file at its close, before it is sealed.
    pub promised: Option<(Stamp, ByteCount)>,
    /// Length and time of the last write when that version was replaced or removed elsewhere: a file that stays like that is
    /// that version, and what is written since is a later one.
    pub withdrawn: Option<(ByteCount, i64)>,
}

/// A file as the cache knows it.
#[derive(Debug)]
pub struct Object {
    /// Length of a sealed or parked file. While it is written, the backing file knows.
    pub size: ByteCount,
    /// Order of its seal.
    pub version: Version,
    /// When it was sealed, in nanoseconds since 1970: its time to live counts from here.
    pub sealed_at_ns: i64,
    /// Where its bytes are.
    pub place: Place,
    /// Station in its life.
    pub phase: Phase,
    /// One-bit facts.
    pub marks: Marks,
    /// Times it was opened to read since it was sealed here or taken over; stops at the largest number.
    pub uses: u16,
    /// References that clients of the fast path hold.
    pub references: u16,
    /// Present while the file is open, written, or has a policy of its own.
    pub open: Option<Box<OpenState>>,
}

impl OpenState {
    /// The account of `process`, opened now if it has none.
    pub fn writer(&mut self, process: ProcessId) -> &mut WriterProcess {
        let known = self.writer_processes.iter().position(|writer| writer.id == process);
        let index = known.unwrap_or_else(|| {
            self.writer_processes.push(WriterProcess { id: process, writing: 0 });
            self.writer_processes.len() - 1
        });
        &mut self.writer_processes[index]
    }

    /// Whether somebody wrote it, and all who did have announced their close, as far as is known. Others may be about to come.
    #[must_use]
    pub fn is_closed_by_all(&self) -> bool {
        self.was_opened && self.flushed == self.writers
    }

    /// Whether somebody wrote it, and nobody has it open to write any more: it waits for one who is expected.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.was_opened && self.writers == 0
    }

    /// Whether a RELEASE is on the way that makes an object of it: not of what was overtaken, of which nothing comes, nor before
    /// others have come who are expected. Those may wait for who asks: the kernel holds the directory for one look-up at a time.
    #[must_use]
    pub fn is_about_to_close(&self) -> bool {
        self.closing && !self.is_overtaken && self.expected.is_empty()
    }

    /// A handle of `process` does not write any more: one of its descriptors was closed.
    pub fn ends_writing(&mut self, process: ProcessId) {
        if let Some(writer) = self.writer_processes.iter_mut().find(|writer| writer.id == process) {
            writer.writing = writer.writing.saturating_sub(1);
        }
    }
}

impl Object {
    /// A file that is being written.
    #[must_use]
    pub fn writing(place: Place) -> Self {
        Self {
            size: ByteCount::ZERO,
            version: Version::default(),
            sealed_at_ns: 0,
            place,
            phase: Phase::Writing,
            marks: Marks::FRESH,
            uses: 0,
            references: 0,
            open: Some(Box::default()),
        }
    }

    /// The open state, made on demand.
    pub fn open_mut(&mut self) -> &mut OpenState {
        self.open.get_or_insert_default()
    }

    /// Handles that may write.
    #[must_use]
    pub fn writers(&self) -> u32 {
        self.open.as_ref().map_or(0, |open| open.writers)
    }

    /// Handles that only read.
    #[must_use]
    pub fn readers(&self) -> u32 {
        self.open.as_ref().map_or(0, |open| open.readers)
    }

    /// Whether any handle is open, or a client of the fast path holds a reference.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.references > 0 || self.writers() + self.readers() > 0
    }

    /// Gives it another place, in which nobody but the daemon has it yet. Returns the old one.
    pub fn move_to(&mut self, place: Place) -> Place {
        self.marks.set(Marks::SHARED, false);
        self.marks.set(Marks::ADOPTED, false);
        std::mem::replace(&mut self.place, place)
    }

    /// The hidden version that is written over this object.
    #[must_use]
    pub fn next_version(&self) -> Option<Slot> {
        self.open.as_ref()?.next_version
    }

    /// Whether all had closed it when another one was published under its name.
    #[must_use]
    pub fn is_overtaken(&self) -> bool {
        self.open.as_deref().is_some_and(|open| open.is_overtaken)
    }

    /// The backing file while the file is open.
    #[must_use]
    pub fn file(&self) -> Option<&Arc<File>> {
        self.open.as_ref()?.file.as_ref()
    }

    /// Whether `process` has the file open for writing, or is about to.
    #[must_use]
    pub fn is_written_by(&self, process: ProcessId) -> bool {
        // Of what was overtaken all have announced their close; who was about to open it comes to what stands there.
        let Some(open) = self.open.as_deref().filter(|open| !open.is_overtaken) else { return false };
        // One that is not known may be any other: it is shown nothing but what it was just sent to.
        let writes =
            |writer: &WriterProcess| process.is_known() && writer.id == process && writer.writing > 0;
        open.writer_processes.iter().any(writes)
            || open.expected.iter().any(|expected| expected.is_of(process))
    }

    /// Whether `process` has written the hidden file and nobody writes it now, nor is about to.
    #[must_use]
    pub fn was_closed_by(&self, process: ProcessId) -> bool {
        self.open.as_ref().is_some_and(|open| {
            let is_whole = open.flushed == open.writers && open.expected.is_empty();
            let wrote = |writer: &WriterProcess| process.is_known() && writer.id == process;
            is_whole && open.writer_processes.iter().any(wrote)
        })
    }

    /// Whether `process` sees the file while it is hidden: who writes it does, and who alone has written it. Where there were
    /// others, one of them may come again and cut it under who reads it; and what was overtaken is what stood there before.
    #[must_use]
    pub fn is_seen_by(&self, process: ProcessId) -> bool {
        let is_its_own = |open: &OpenState| open.writer_processes.len() == 1 && !open.is_overtaken;
        let is_alone = self.open.as_deref().is_some_and(is_its_own);
        self.is_written_by(process) || (is_alone && self.was_closed_by(process))
    }

    /// Whether all who wrote the hidden file have closed it, the last of them within `announced_ms`: it is an object when
    /// RELEASE comes. A child that inherited a descriptor, so that none comes, cannot be told from that.
    #[must_use]
    pub fn is_about_to_show(&self, announced_ms: RangeInclusive<u64>) -> bool {
        let is_closed = |open: &OpenState| {
            open.is_about_to_close()
                && open.writers > 0
                && open.is_closed_by_all()
                && announced_ms.contains(&open.announced_at_ms)
        };
        self.phase == Phase::Writing && self.open.as_deref().is_some_and(is_closed)
    }

    /// Whether its bytes are in a slot file, which is in no order of eviction.
    #[must_use]
    pub fn is_slot_file(&self) -> bool {
        matches!(self.place, Place::Scratch(_))
    }

    /// Policy set on the file itself.
    #[must_use]
    pub fn policy(&self) -> PolicyRecord {
        self.open.as_ref().map(|open| open.policy.clone()).unwrap_or_default()
    }

    /// Whether its bytes can still be found without an open handle.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        !matches!(self.place, Place::Solo(super::remove::NO_SEGMENT) | Place::Ssd | Place::Remote)
    }

    /// Whether nobody reads it any more, nor can: it has no name, no bytes, and is open nowhere.
    pub(super) fn has_left(&self) -> bool {
        self.phase == Phase::Gone && !self.is_open() && !self.is_readable()
    }

    /// Whether who changes its length by name joins its writers. Those of an object with its name may go on through descriptors
    /// that they kept, or have closed them a moment ago: when others read it, it is a version that stays as it is.
    pub(super) fn is_cut_where_it_is(&self) -> bool {
        let Some(open) = self.open.as_ref().filter(|open| open.writers > 0) else { return false };
        let is_read = || open.readers > 0 || self.references > 0 || self.marks.has(Marks::READ);
        match self.phase {
            Phase::Writing | Phase::Parked => true,
            Phase::Sealed => !is_read(),
            // One that was an object and was replaced is read on.
            Phase::Gone => self.version == Version::default(),
        }
    }

    /// Drops the open state when nothing in it is needed.
    pub fn settle(&mut self) {
        let Some(open) = &mut self.open else { return };
        if open.readers + open.writers > 0 || self.phase == Phase::Writing {
            return;
        }
        if self.phase == Phase::Parked {
            return; // see `State::keep_open`
        }
        open.file = None;
        open.stream = None;
        if open.next_version.is_none() && open.policy == PolicyRecord::default() {
            self.open = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::Node;

    #[test]
    fn a_cold_object_is_small() {
        assert!(size_of::<Object>() <= 56, "{}", size_of::<Object>());
        assert!(size_of::<Node<Object>>() <= 112, "{}", size_of::<Node<Object>>());
    }
}
