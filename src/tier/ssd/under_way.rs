//! Records that owners gave and that are not in the index yet.
//!
//! Limits: as many as wait for the disks' writers, which admission bounds by their bytes.
//! Threads: any, under the lock of [`super::Shared`].

use std::cell::Cell;
use std::collections::BTreeMap;

use tidefs_engine::types::Version;

use super::format::RecordHash;

/// One of them.
#[derive(Debug, Default)]
pub(super) struct Pending {
    device: u8,
    /// Whether it was removed.
    pub(super) is_cancelled: bool,
    /// Whether an older record of its version stands that was to be removed: what that says would hide this one.
    pub(super) is_again: Cell<bool>,
}

/// What is on its way, by key and version.
#[derive(Debug, Default)]
pub(super) struct UnderWay(BTreeMap<(RecordHash, Version), Pending>);

impl UnderWay {
    fn of_key(&self, hash: RecordHash) -> impl DoubleEndedIterator<Item = &Pending> {
        self.0.range((hash, Version(0))..=(hash, Version(u64::MAX))).map(|(_, pending)| pending)
    }

    /// Whether a version of a key is, removed or not.
    pub(super) fn has(&self, hash: RecordHash, version: Version) -> bool {
        self.0.contains_key(&(hash, version))
    }

    /// The same, of one that was not removed meanwhile.
    pub(super) fn is_stored_now(&self, hash: RecordHash, version: Version) -> bool {
        self.0.get(&(hash, version)).is_some_and(|pending| !pending.is_cancelled)
    }

    /// The same. An older record of it stays that was to be removed: from now on this one has to take it along.
    pub(super) fn takes_along(&self, hash: RecordHash, version: Version) -> bool {
        let takes = self.is_stored_now(hash, version);
        if let Some(pending) = self.0.get(&(hash, version)).filter(|_| takes) {
            pending.is_again.set(true);
        }
        takes
    }

    /// The same, of one that goes to another disk than `device`.
    pub(super) fn is_stored_elsewhere(&self, hash: RecordHash, version: Version, device: u8) -> bool {
        let is_elsewhere = self.0.get(&(hash, version)).is_some_and(|pending| pending.device != device);
        is_elsewhere && self.is_stored_now(hash, version)
    }

    /// The disks to which records of a key go, the latest version last.
    pub(super) fn disks_of(&self, hash: RecordHash) -> impl DoubleEndedIterator<Item = u8> {
        self.of_key(hash).map(|pending| pending.device)
    }

    /// How many records are on their way to a disk.
    pub(super) fn count_for(&self, device: u8) -> u64 {
        self.0.values().filter(|pending| pending.device == device).count() as u64
    }

    /// A record is left for a disk.
    pub(super) fn begin(&mut self, hash: RecordHash, version: Version, device: u8) {
        self.0.insert((hash, version), Pending { device, ..Pending::default() });
    }

    /// The versions up to `version` are removed. Returns the disks to which they go.
    pub(super) fn cancel(&mut self, hash: RecordHash, version: Version) -> Vec<u8> {
        let cancelled = self.0.range_mut((hash, Version(0))..=(hash, version)).map(|(_, pending)| {
            pending.is_cancelled = true;
            pending.device
        });
        cancelled.collect()
    }

    /// A record is not on its way any more. Returns what became of it meanwhile.
    pub(super) fn end(&mut self, hash: RecordHash, version: Version) -> Pending {
        self.0.remove(&(hash, version)).unwrap_or_default()
    }
}
