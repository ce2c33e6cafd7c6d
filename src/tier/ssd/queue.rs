//! What waits for a disk's writer.
//!
//! Limits: admission bounds the bytes ([`super::admission`]), of which a record counts [`cost_of`] its data; removals are 32 bytes each and never refused. Removals go
//! first: what is deleted is to be deleted on disk soon; before them those for which a zone waits that is being taken back.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidefs_engine::types::{ByteCount, Checksum, Version};

use super::format::{BLOCK_BYTES, RecordFacts, RecordHash, TOMBSTONES_MAX, Tombstone, record_blocks};
use super::index::Place;
use super::memory::Memory;

/// How a record's way to disk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It can be loaded. With `durable` asked for, also after a power cut.
    Yes,
    /// The key was removed meanwhile.
    Superseded,
    /// The disk failed, or had no zone to put it.
    Failed,
}

/// Called once, from the writer's thread; it must not wait.
pub(super) type Done = Box<dyn FnOnce(Stored) + Send>;

/// Tells a channel that has room for one answer.
pub(super) fn report_to(sender: SyncSender<Stored>) -> Done {
    Box::new(move |stored| {
        // Who asked may have stopped waiting.
        let _ = sender.try_send(stored);
    })
}

/// Where a record to be written comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// From the owner, who finds the object again by this number.
    Owner(u32),
    /// From an older zone.
    Zone(Place),
}

/// Bytes that a record with `length` bytes of data counts on its way: what it holds of memory, and takes of the disk. Those are
/// whole blocks, and one for its header, in which its key and what its owner keeps beside it have room.
#[must_use]
pub fn cost_of(length: ByteCount) -> ByteCount {
    ByteCount(record_blocks(length).saturating_mul(BLOCK_BYTES))
}

/// One record to be written.
pub(super) struct Append {
    pub(super) hash: RecordHash,
    pub(super) key: Vec<u8>,
    pub(super) meta: Vec<u8>,
    pub(super) version: Version,
    pub(super) length: ByteCount,
    /// Taken by the writer when it is not known.
    pub(super) checksum: Option<Checksum>,
    pub(super) memory: Memory,
    pub(super) durable: bool,
    pub(super) origin: Origin,
    /// Uses that it comes with.
    pub(super) uses: u32,
    pub(super) done: Done,
}

impl Append {
    /// Bytes that it counts on its way.
    pub(super) fn cost(&self) -> ByteCount {
        cost_of(self.length)
    }
}

impl fmt::Debug for Append {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Append")
            .field("hash", &self.hash)
            .field("version", &self.version)
            .field("length", &self.length)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// Something for the writer to do.
pub(super) enum Job {
    /// Write a record.
    Append(Append),
    /// Write the removals of a zone that gave an error once more, and make it void.
    GiveUp(u32),
    /// Make durable what came before.
    Flush(Done),
    /// End the open zone.
    Close(Done),
}

/// What of a zone that is being taken back is to be written once more before it is void.
pub(super) struct Retain {
    pub(super) tombstones: Vec<Tombstone>,
    /// Records without data, with the places where they stand.
    pub(super) records: Vec<(Place, RecordFacts)>,
    pub(super) done: Done,
}

/// What the writer does next.
pub(super) enum Next {
    Job(Job),
    Retain(Retain),
    /// Removals to write.
    Tombstones(Vec<Tombstone>),
    /// Nothing waits.
    Idle,
    /// Nothing waits and nothing will come.
    Closed,
}

#[derive(Default)]
struct Line {
    jobs: VecDeque<Job>,
    bytes: u64,
    retained: VecDeque<Retain>,
    tombstones: VecDeque<Tombstone>,
    is_closed: bool,
}

/// The line before a writer.
#[derive(Default)]
pub(super) struct Queue {
    /// Guards what waits.
    line: Mutex<Line>,
    arrived: Condvar,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Queue {
    /// Bytes of records that wait or are being written, as they count.
    pub(super) fn bytes(&self) -> u64 {
        self.line.lock().bytes
    }

    /// Leaves a job. Returns false, and drops it, when the writer has ended.
    pub(super) fn push(&self, job: Job) -> bool {
        let mut line = self.line.lock();
        if line.is_closed {
            return false;
        }
        if let Job::Append(append) = &job {
            line.bytes += append.cost().get();
        }
        line.jobs.push_back(job);
        drop(line);
        self.arrived.notify_one();
        true
    }

    /// Leaves a record once more that was taken, as the last. Gives it back when nothing more is taken.
    pub(super) fn push_again(&self, append: Append) -> Option<Append> {
        let mut line = self.line.lock();
        if line.is_closed {
            return Some(append);
        }
        line.jobs.push_back(Job::Append(append));
        None
    }

    /// Leaves removals that are to be kept. Returns false, and drops them, when the writer has ended.
    pub(super) fn push_retain(&self, retain: Retain) -> bool {
        let mut line = self.line.lock();
        if line.is_closed {
            return false;
        }
        line.retained.push_back(retain);
        drop(line);
        self.arrived.notify_one();
        true
    }

    /// Whether removals wait that are to be kept.
    pub(super) fn has_retained(&self) -> bool {
        !self.line.lock().retained.is_empty()
    }

    /// Removals that are to be kept, before everything else that waits.
    pub(super) fn take_retained(&self) -> Option<Retain> {
        self.line.lock().retained.pop_front()
    }

    /// Leaves removals. Returns false, and drops them, when the writer has ended.
    pub(super) fn push_tombstones(&self, tombstones: impl IntoIterator<Item = Tombstone>) -> bool {
        let mut line = self.line.lock();
        if line.is_closed {
            return false;
        }
        line.tombstones.extend(tombstones);
        drop(line);
        self.arrived.notify_one();
        true
    }

    /// A record that counted as `cost` is not on its way any more.
    pub(super) fn settle(&self, cost: ByteCount) {
        let mut line = self.line.lock();
        line.bytes = line.bytes.saturating_sub(cost.get());
    }

    /// What to do next; waits at most `limit` for something.
    pub(super) fn next(&self, limit: Duration) -> Next {
        let mut line = self.line.lock();
        let is_idle = |line: &mut Line| {
            let has_work = !line.jobs.is_empty() || !line.tombstones.is_empty() || !line.retained.is_empty();
            !has_work && !line.is_closed
        };
        if is_idle(&mut line) && !limit.is_zero() {
            self.arrived.wait_while_for(&mut line, is_idle, limit);
        }
        if let Some(retain) = line.retained.pop_front() {
            return Next::Retain(retain);
        }
        if !line.tombstones.is_empty() {
            let count = line.tombstones.len().min(TOMBSTONES_MAX);
            return Next::Tombstones(line.tombstones.drain(..count).collect());
        }
        match line.jobs.pop_front() {
            Some(job) => Next::Job(job),
            None if line.is_closed => Next::Closed,
            None => Next::Idle,
        }
    }

    /// Whether nothing more is taken: the disk is being taken out, or the tier ends.
    pub(super) fn is_closed(&self) -> bool {
        self.line.lock().is_closed
    }

    /// Nothing more is taken.
    pub(super) fn close(&self) {
        self.line.lock().is_closed = true;
        self.arrived.notify_all();
    }
}
