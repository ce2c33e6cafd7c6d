//! Where records stood that are written once more, until their zone is void: an error of the new place costs none of them.
//!
//! Invariants
//! - A record stands where it stood only while its zone is in the same life, and nobody frees it.
//! - What was removed or replaced meanwhile does not: the index has it no more.
//! - Nor does what its owner stored again under the same version: from then on what stood there is not known here.
//! - While it is known, a removal of what is dropped or removed is left for its disk, too. What is known here no more and stands on
//!   another disk is a [second place](super::second_places).
//!
//! Limits: the records of one zone that is taken back, and of one that is emptied to other disks, or of all of a disk that
//! takes no writes.
//! Threads: any, see [`Homes`].

use hashbrown::HashMap;
use parking_lot::Mutex;
use tidefs_engine::types::Version;

use super::Shared;
use super::format::{Order, RecordHash};
use super::index::{Place, ZoneId};
use super::reasons::DroppedFor;

/// Where a record stood.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    pub(super) version: Version,
    pub(super) place: Place,
    /// The life of its zone.
    pub(super) sequence: Order,
    /// Uses that were counted there.
    pub(super) uses: u32,
}

/// What is being written once more, and what was while its zone is not void.
#[derive(Debug, Default)]
pub(super) struct Homes {
    /// Guards where records stood. Taken under the lock of what is pending; nothing waits under it.
    known: Mutex<HashMap<RecordHash, Home>>,
}

impl Homes {
    /// A record is about to stand elsewhere. Returns where it stood before that, which is not known any more.
    pub(super) fn note(&self, hash: RecordHash, home: Home) -> Option<Home> {
        self.known.lock().insert(hash, home)
    }

    /// What stood there does not count any more. Returns where that was.
    pub(super) fn take(&self, hash: &RecordHash) -> Option<Home> {
        self.known.lock().remove(hash)
    }

    /// The same for all that stood in some zones.
    pub(super) fn forget_in(&self, is_meant: impl Fn(ZoneId) -> bool) {
        self.known.lock().retain(|_, home| !is_meant(home.place.zone));
    }

    /// The same. Returns what that was.
    pub(super) fn take_in(&self, is_meant: impl Fn(ZoneId) -> bool) -> Vec<(RecordHash, Home)> {
        self.known.lock().extract_if(|_, home| is_meant(home.place.zone)).collect()
    }

    /// The versions of a key up to `version` are removed where they stood.
    pub(super) fn forget(&self, hash: &RecordHash, version: Version) {
        let mut known = self.known.lock();
        if known.get(hash).is_some_and(|home| home.version <= version) {
            known.remove(hash);
        }
    }

    /// The disk on which a record stood.
    pub(super) fn disk_of(&self, hash: &RecordHash) -> Option<u8> {
        self.get(hash).map(|home| home.place.zone.device())
    }

    fn get(&self, hash: &RecordHash) -> Option<Home> {
        self.known.lock().get(hash).copied()
    }

    fn all(&self) -> Vec<(RecordHash, Version)> {
        self.known.lock().iter().map(|(hash, home)| (*hash, home.version)).collect()
    }
}

impl Shared {
    /// A record could not be written once more: it stands where it stood, or else is forgotten.
    pub(super) fn put_back(&self, hash: &RecordHash, version: Version, nowhere: Place) {
        if !self.return_home(hash, version, nowhere) {
            self.forget_record(hash, nowhere, DroppedFor::Error);
        }
    }

    /// Zones are given up: what was written once more there, and stands where it stood too, does not go with them.
    pub(super) fn return_from(&self, is_meant: impl Fn(ZoneId) -> bool) {
        for (hash, version) in self.homes.all() {
            let found = self.index.get(&hash).filter(|found| is_meant(found.place.zone));
            if let Some(found) = found {
                self.return_home(&hash, version, found.place);
            }
        }
    }

    /// A record stands where it stood from now on. Returns whether it does: its zone may be gone.
    pub(super) fn return_home(&self, hash: &RecordHash, version: Version, from: Place) -> bool {
        let Some(home) = self.homes.get(hash).filter(|home| home.version == version) else { return false };
        let Some(device) = self.devices.of(home.place) else { return false };
        let zone = home.place.zone.zone();
        // Who frees the zone waits for its readers, and takes out then what stands there.
        let Some(_lease) = device.lease(zone) else { return false };
        let is_same = device.zone(zone).is_some_and(|zone| zone.sequence == home.sequence);
        if !is_same || !self.index.relocate(hash, version, from, home.place) {
            return false;
        }
        (0..home.uses).for_each(|_| self.index.touch(hash));
        if device.zone(zone).is_some_and(|zone| zone.is_given_up()) {
            // What stood there may have been taken out before.
            self.drop_record(hash, DroppedFor::Error, |found| found.place == home.place);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use tidefs_engine::types::ByteCount;

    use super::super::ReadFor;
    use super::super::memory::{Buffer, Memory};
    use super::super::queue::{Job, Next};
    use super::super::testing::*;
    use super::super::writer::Writer;
    use super::*;

    const LENGTH: usize = 5000;

    /// Gives the next record to a writer without a thread.
    fn take(writer: &mut Writer) {
        let Next::Job(Job::Append(append)) = writer.device.queue.next(Duration::ZERO) else { panic!() };
        writer.append(append);
    }

    #[test]
    fn what_finds_no_zone_to_be_written_once_more_goes_for_room_unless_the_disk_gives_an_error() {
        for (errno, expected) in [(libc::ENOSPC, DroppedFor::Room), (libc::EIO, DroppedFor::Error)] {
            let disk = MemoryDisk::new();
            let tier = tier_on(std::slice::from_ref(&disk), &config(1, 12));
            recover(&tier);
            let shared = &tier.shared;
            let device = Arc::clone(&shared.devices.all()[0]);
            let mut writer = Writer::new(Arc::clone(shared), Arc::clone(&device));
            tier.put(put_of(b"key", 7, LENGTH), |_| ()).unwrap();
            take(&mut writer);
            writer.close_zone();
            let hash = shared.hash(b"key");
            let place = shared.index.get(&hash).unwrap().place;
            let memory = Memory::Buffer(Arc::new(Buffer::zeroed(LENGTH)));
            let facts = shared.load_from(place, ByteCount(LENGTH as u64), &memory, ReadFor::Again).unwrap();
            let _ended = shared.rewrite(&device, &device, place, &facts).unwrap();
            // Its zone is void by now, and none is taken back for it.
            assert!(shared.homes.take(&hash).is_some());
            shared.is_reclaim_over.store(true, Ordering::Relaxed);
            disk.allocate_error.store(errno, Ordering::Relaxed);
            take(&mut writer);
            assert_eq!(tier.holds(b"key"), None);
            let dropped = &shared.counters.dropped;
            assert_eq!((dropped.of(expected), dropped.total()), (1, 1), "{expected:?}");
        }
    }
}
