//! What became of keys that are gone, so that `why` can answer. The newest 65,536 are remembered, 32 bytes each.

use std::num::NonZeroUsize;

use lru::LruCache;
use tidefs_engine::types::KeyHash;

use crate::namespace::Ino;
use crate::tier::ssd::{DroppedFor, Refused};

const REMEMBERED_MAX: NonZeroUsize = NonZeroUsize::new(1 << 16).expect("65536 is not zero");

/// How an object came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Evicted so that something could be stored in another directory.
    Evicted {
        /// That directory; the root when it is not known which.
        for_directory: Ino,
    },
    /// Evicted because its own directory's quota was full.
    EvictedForQuota,
    /// It was on disk alone, and its record was given up; `None`: just before it was to be read.
    Dropped(Option<DroppedFor>),
    /// It was to leave memory for a disk, which refused it, or did not store it.
    NotStored(Option<Refused>),
    /// Evicted by the operator.
    EvictedByOperator,
    /// Its time to live passed.
    Expired,
    /// Removed or replaced on another member of the cluster.
    Withdrawn,
    /// No member that was said to hold it gave it.
    Unreachable,
    /// Removed by name; of directories it is noted, too, for what was below them.
    Deleted {
        /// Process that removed it; 0: not known.
        process: u32,
    },
    /// Its writer was killed before it closed.
    WriterKilled {
        /// The writer's process.
        process: u32,
    },
    /// Its bytes did not match its checksum.
    Corrupt,
    /// It has another name now.
    Renamed {
        /// Its inode number.
        ino: u64,
    },
    /// A write was refused because the quota of the directory was full of what cannot be evicted.
    OverQuota {
        /// Slot of the directory that has the quota.
        directory: u32,
        /// The quota in bytes.
        quota: u64,
    },
    /// A write was refused because nothing in the cache could be evicted.
    NoRoom,
    /// A write to a slot file was refused because its disk takes no more.
    ScratchFull,
}

/// Why an object that was on disk alone is gone.
pub(super) const fn dropped_text(reason: Option<DroppedFor>) -> &'static str {
    match reason {
        None => "it was on disk alone, and its disk needed the place, failed, or was removed",
        Some(DroppedFor::Room) => {
            "its room on disk was needed, and it had not been used there or found no other"
        }
        Some(DroppedFor::Error) => "its disk gave an error, or other bytes than it was given",
        Some(DroppedFor::Disk) => "its disk was emptied or taken out",
        Some(DroppedFor::Capacity) => "the capacity of its disk became smaller",
    }
}

/// Why an object that was to leave memory for a disk is gone.
pub(super) const fn not_stored_text(refused: Option<Refused>) -> &'static str {
    match refused {
        Some(Refused::QueueFull) => "memory was full, and the disks had enough to do",
        Some(Refused::OverRate | Refused::OverDay) => {
            "memory was full, and the write budget of the disks was used up"
        }
        Some(Refused::TooLarge | Refused::KeyTooLong) => "memory was full, and it is too large for the disks",
        Some(Refused::NoDevice) => "memory was full, and no disk takes anything",
        Some(Refused::Underway) | None => "memory was full, and its disk did not store it",
    }
}

/// Endings by key.
#[derive(Debug)]
pub(super) struct History {
    endings: LruCache<KeyHash, (i64, Ending)>,
    has_forgotten: bool,
}

impl Default for History {
    fn default() -> Self {
        Self { endings: LruCache::new(REMEMBERED_MAX), has_forgotten: false }
    }
}

impl History {
    /// Notes that the object under `key` ended at wall-clock `now_ns`.
    pub(super) fn note(&mut self, key: KeyHash, now_ns: i64, ending: Ending) {
        self.has_forgotten |= self.endings.len() == REMEMBERED_MAX.get();
        self.endings.put(key, (now_ns, ending));
    }

    /// How the object under `key` ended, and when.
    pub(super) fn get(&self, key: KeyHash) -> Option<(i64, Ending)> {
        self.endings.peek(&key).copied()
    }

    /// The key is stored again.
    pub(super) fn clear(&mut self, key: KeyHash) {
        self.endings.pop(&key);
    }

    /// There was an earlier daemon, which knew of other endings.
    pub(super) fn follows_another(&mut self) {
        self.has_forgotten = true;
    }

    /// Whether some endings are older than what is remembered.
    pub(super) fn has_forgotten(&self) -> bool {
        self.has_forgotten
    }
}
