//! What of a disk is being emptied. Who has a record there, and a copy in memory that emptying relies on, does not rely on the
//! record from then on.
//!
//! Invariants
//! - It is marked before it is asked whether a record is in memory too, and until that record has left the index. Memory decides
//!   under its own lock both what it answers and what leaves it: an object is in memory, or moves.
//!
//! Limits: one zone of a disk at a time, or all of it.

use std::sync::atomic::{AtomicU64, Ordering};

const NOTHING: u64 = 0;
const EVERYTHING: u64 = u64::MAX;

/// The zone that is being emptied, counted from one.
#[derive(Debug, Default)]
pub(super) struct Vacating(AtomicU64);

/// Something is being emptied for as long as this lives.
#[derive(Debug)]
pub(super) struct Vacated<'a>(&'a Vacating);

impl Vacating {
    /// A zone is being emptied from now on.
    pub(super) fn begin(&self, zone: u32) -> Vacated<'_> {
        self.mark(u64::from(zone) + 1)
    }

    /// All zones are.
    pub(super) fn begin_all(&self) -> Vacated<'_> {
        self.mark(EVERYTHING)
    }

    fn mark(&self, what: u64) -> Vacated<'_> {
        let before = self.0.swap(what, Ordering::AcqRel);
        debug_assert_eq!(before, NOTHING, "a disk is emptied by one thread at a time");
        Vacated(self)
    }

    /// Whether a zone is being emptied.
    pub(super) fn covers(&self, zone: u32) -> bool {
        let what = self.0.load(Ordering::Acquire);
        what == EVERYTHING || what == u64::from(zone) + 1
    }
}

impl Drop for Vacated<'_> {
    fn drop(&mut self) {
        self.0.0.store(NOTHING, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::{Arc, OnceLock};

    use parking_lot::Mutex;
    use tidefs_engine::types::Version;

    use super::super::testing::*;
    use super::super::{DroppedFor, Owner, Put, Shared, SsdTier, Stored};

    const LENGTH: usize = 9000;
    const VERSION: u64 = 5;

    /// An owner that has all its objects in memory, and tells of each whether it could have let it go when it was last asked.
    #[derive(Debug, Default)]
    struct InMemory {
        shared: OnceLock<Arc<Shared>>,
        could_leave: Mutex<BTreeMap<u32, bool>>,
    }

    fn key(number: u32) -> [u8; 4] {
        number.to_le_bytes()
    }

    impl Owner for InMemory {
        fn dropped(&self, _number: u32, _version: Version, _reason: DroppedFor) {}

        fn has_elsewhere(&self, number: u32, version: Version) -> bool {
            let could_leave = |shared: &Arc<Shared>| shared.has_settled(shared.hash(&key(number)), version);
            self.could_leave.lock().insert(number, self.shared.get().is_some_and(could_leave));
            true
        }

        fn is_pinned(&self, _number: u32, _version: Version) -> bool {
            false
        }

        fn must_stay(&self, _key: &[u8]) -> bool {
            false
        }
    }

    /// A tier with an object that was used, on each of its disks and in memory.
    fn filled(disks: usize, zones: u64) -> (SsdTier, Arc<InMemory>) {
        let in_memory: Vec<_> = (0..disks).map(|_| MemoryDisk::new()).collect();
        let tier = tier_on(&in_memory, &config(disks, zones));
        recover(&tier);
        let owner = Arc::new(InMemory::default());
        owner.shared.set(Arc::clone(&tier.shared)).unwrap();
        tier.start(Arc::clone(&owner) as Arc<dyn Owner>).unwrap();
        for number in 0..20 {
            let put = Put { owner: number, uses: 3, ..put_of(&key(number), VERSION, LENGTH) };
            assert_eq!(store_put(&tier, put), Ok(Stored::Yes));
            assert!(tier.has_settled(&key(number), Version(VERSION)));
        }
        (tier, owner)
    }

    #[test]
    fn what_is_in_memory_too_may_not_leave_for_a_disk_that_is_being_emptied() {
        let (tier, owner) = filled(2, 20);
        let drained = tier.drain(Path::new("disk 0"), None, &mut |_| true).unwrap();
        let asked = owner.could_leave.lock();
        assert!(drained.in_memory > 0 && asked.len() as u64 == drained.in_memory, "{drained:?}");
        assert!(asked.values().all(|could_leave| !could_leave), "{asked:?}");
        // What stands on the other disk may.
        let others = (0..20).filter(|number| !asked.contains_key(number));
        others.for_each(|number| assert!(tier.has_settled(&key(number), Version(VERSION)), "{number}"));
    }

    #[test]
    fn what_is_in_memory_too_may_not_leave_for_a_zone_that_is_taken_back() {
        let (tier, owner) = filled(1, 8);
        store_until_reclaimed(&tier, LENGTH);
        let asked = owner.could_leave.lock();
        assert!(!asked.is_empty() && asked.values().all(|could_leave| !could_leave), "{asked:?}");
        let gone = (0..20).find(|number| tier.holds(&key(*number)).is_none());
        assert!(gone.is_some_and(|number| !tier.has_settled(&key(number), Version(VERSION))));
    }
}
