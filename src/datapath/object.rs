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

use tidefs_engine::types::{ByteCount, SegmentId, Version};

use super::open_state::{OpenState, WriterProcess};
use crate::namespace::{ProcessId, Slot};
use crate::tier::memory::{ObjectRecord, PackedExtent, PolicyRecord};
use crate::tier::scratch::ScratchFile;

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
    /// Nowhere any more. Whoever has it open reads and writes its backing file, whose pages go with the last of them.
    Freed,
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
    /// Taken over from an earlier daemon and not checked against its checksum yet. Counted: see `State::mark_unverified`.
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

    /// Its record was written: it is what that says from now on.
    pub(super) fn become_sealed(&mut self, record: &ObjectRecord) {
        self.phase = Phase::Sealed;
        self.size = record.size;
        self.version = record.version;
        self.sealed_at_ns = record.sealed_at_ns;
        self.marks.set(Marks::SHOWN, false);
        self.marks.set(Marks::ON_SSD, false);
        let open = self.open_mut();
        open.withdrawn = None;
        open.forget_overtaking();
        open.expected.clear();
        // A close that was announced before the rename is on its way still.
        open.closing &= open.writers > 0;
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
        !matches!(self.place, Place::Ssd | Place::Remote | Place::Freed)
    }

    /// Whether it has lost its name, and the kernel serves those who have it open from bytes that the daemon has no way to.
    pub(super) fn is_the_kernels_alone(&self) -> bool {
        let is_freed = self.phase == Phase::Gone && matches!(self.place, Place::Freed);
        is_freed && self.is_open() && self.file().is_none()
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
