//! What is kept of a file only while it is open, written, or has a policy of its own: who has it open, who is about to, and
//! what its writers did.
//!
//! Invariant: of the handles that may write, no more are counted as closed than there are. Who moves the bytes of each is decided
//! in `handle.rs`.

use std::fs::File;
use std::sync::Arc;

use tidefs_engine::types::ByteCount;

use super::elsewhere::Stream;
use super::expected::ExpectedWriter;
use super::overtaken::Content;
use crate::cluster::Stamp;
use crate::namespace::{Name, ProcessId, Slot};
use crate::tier::memory::PolicyRecord;

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
    pub expected: Vec<ExpectedWriter>,
    /// Whether anybody has had it open for writing.
    pub was_opened: bool,
    /// Policy set on this file itself.
    pub policy: PolicyRecord,
    /// The version and length under which the cluster heard of the file at its close, before it is sealed.
    pub promised: Option<(Stamp, ByteCount)>,
    /// The view in which the cluster heard of that.
    pub promised_in: u64,
    /// Length and time of the last write when that version was replaced or removed elsewhere: a file that stays like that is
    /// that version, and what is written since is a later one.
    pub withdrawn: Option<(ByteCount, i64)>,
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
