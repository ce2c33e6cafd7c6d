//! Records that the tier gives up by itself: for room, with a disk, or for what is wrong with them.
//!
//! Invariants
//! - What is given up leaves the index first; its owner hears of it after that, and without a lock of the tier.
//! - What was written once more, and can be read [where it stood](super::homes), too, is not given up with its new place.

use hashbrown::HashSet;

use super::Shared;
use super::format::RecordHash;
use super::index::{Located, Place, ZoneId};
use super::naming::NOBODY;
use super::reasons::DroppedFor;

/// For so many zones all of the index is looked at once, and what stands in them is in memory beside it meanwhile.
const ZONES_AT_ONCE: usize = 64;

impl Shared {
    /// Takes a record out of the index and tells its owner; what stands on disk goes with its zone.
    pub(super) fn drop_record(
        &self,
        hash: &RecordHash,
        reason: DroppedFor,
        is_meant: impl FnOnce(&Located) -> bool,
    ) {
        let dropped = self.index.remove_if(hash, is_meant);
        self.end_dropped(dropped.map(|dropped| (*hash, dropped)), reason);
    }

    /// Records are not in the index any more. Where a start found a second one, an older one of its version was stored before, or it was
    /// moved from a zone that is not void, that may stand yet, and nobody would know of it.
    fn end_dropped(&self, dropped: impl IntoIterator<Item = (RecordHash, Located)>, reason: DroppedFor) {
        let dropped: Vec<_> = dropped.into_iter().collect();
        {
            let pending = self.pending.lock();
            for (hash, record) in &dropped {
                let again = record.is_again.then(|| record.place.zone.device());
                self.bury_all(&pending, again.into_iter().collect(), *hash, record.version);
            }
        }
        self.tell_owner(dropped.into_iter().map(|(_, record)| record), reason);
    }

    /// Takes a record out for good: a start does not find it either.
    pub(super) fn forget_record(&self, hash: &RecordHash, place: Place, reason: DroppedFor) {
        let dropped = {
            let pending = self.pending.lock();
            let dropped = self.index.remove_if(hash, |found| found.place == place);
            if let Some(dropped) = dropped {
                self.bury_all(&pending, vec![place.zone.device()], *hash, dropped.version);
            }
            dropped
        };
        self.tell_owner(dropped, reason);
    }

    /// Takes everything out that stands in a zone.
    pub(super) fn drop_zone(&self, zone: ZoneId, reason: DroppedFor) {
        self.return_from(|place| place == zone);
        self.note_homes_in(|home| home == zone);
        self.end_dropped(self.index.remove_zone(zone), reason);
    }

    /// The same of as many zones as there are.
    pub(super) fn drop_zones(&self, zones: &[ZoneId], reason: DroppedFor) {
        for some in zones.chunks(ZONES_AT_ONCE) {
            let some: HashSet<ZoneId> = some.iter().copied().collect();
            self.return_from(|place| some.contains(&place));
            self.note_homes_in(|home| some.contains(&home));
            self.end_dropped(self.index.remove_zones(&some), reason);
        }
    }

    /// Takes everything out that stands on a disk, but for what was moved there and stands where it stood, too.
    pub(super) fn drop_device(&self, number: u8) {
        self.homes.forget_in(|home| home.device() == number);
        self.return_from(|place| place.device() == number);
        self.end_dropped(self.index.remove_device(number), DroppedFor::Disk);
    }

    /// Tells the owner what is gone. It may have stored some of it again by now: it asks ([`SsdTier::has`](super::SsdTier::has)).
    fn tell_owner(&self, dropped: impl IntoIterator<Item = Located>, reason: DroppedFor) {
        for dropped in dropped {
            self.counters.dropped.add(reason, 1);
            if let Some(owner) = self.owner.get().filter(|_| dropped.owner != NOBODY) {
                owner.dropped(dropped.owner, dropped.version, reason);
            }
        }
    }
}
