//! Keys of which a second record may stand, and on which disks: a start met two, or its version was stored again on another disk, as
//! that on which it stood was being emptied, took no writes or read nothing. What is removed of such a key is removed on all of them.
//!
//! What is moved from one disk to another stands twice, too, until its zone is void: so long [homes](super::homes) know it.
//!
//! Invariants
//! - A key is forgotten when a removal is left for each of these disks that hides all that was noted. What is stored later is in the
//!   index, or on its way.
//! - A removal that hides less when it is written, since its version was stored again, has its disk noted anew.
//! - A disk is known on which a record stood that homes do not know any more, and one to which what was moved came too late.
//!
//! Limits: as many keys as the index has, and those that a start met twice; of each every disk once.
//! Threads: any; nothing here waits for a disk.

use hashbrown::HashMap;
use parking_lot::Mutex;
use tidefs_engine::types::Version;

use super::Shared;
use super::format::RecordHash;
use super::homes::Home;
use super::index::ZoneId;

/// Where records of one key may stand.
#[derive(Debug, Default)]
struct Places {
    disks: Vec<u8>,
    /// None of them is later.
    version: Version,
}

/// The same of all such keys.
#[derive(Debug, Default)]
pub(super) struct SecondPlaces {
    /// Guards them. Taken under the lock of what is pending; nothing waits under it.
    known: Mutex<HashMap<RecordHash, Places>>,
}

impl SecondPlaces {
    fn note(&self, hash: RecordHash, version: Version, disks: [u8; 2]) {
        let mut known = self.known.lock();
        let places = known.entry(hash).or_default();
        places.version = places.version.max(version);
        for disk in disks {
            if !places.disks.contains(&disk) {
                places.disks.push(disk);
            }
        }
    }

    /// The disks on which a record of a key may stand, where that are several.
    pub(super) fn of(&self, hash: &RecordHash) -> Vec<u8> {
        self.known.lock().get(hash).map(|places| places.disks.clone()).unwrap_or_default()
    }

    /// The versions of a key up to `version` are removed wherever they may stand.
    pub(super) fn forget(&self, hash: &RecordHash, version: Version) {
        let mut known = self.known.lock();
        if known.get(hash).is_some_and(|places| places.version <= version) {
            known.remove(hash);
        }
    }
}

impl Shared {
    /// A start meets a record on a disk, or it is written there anew. There may be one on another, or the same one a second time:
    /// reclaim wrote it again, and its old zone is not void.
    pub(super) fn note_second_place(&self, hash: &RecordHash, version: Version, device: u8) {
        let Some(known) = self.index.get(hash) else { return };
        let before = known.place.zone.device();
        if before != device || known.version == version {
            self.second_places.note(*hash, version.max(known.version), [before, device]);
        }
    }

    /// A record of a version is on its way to a disk, or stands there: that is known when the index has it on another one.
    pub(super) fn note_on_another(&self, hash: &RecordHash, version: Version, device: u8) {
        let known = self.index.get_version(hash, version);
        if known.is_some_and(|known| known.place.zone.device() != device) {
            self.note_second_place(hash, version, device);
        }
    }

    /// A record is on `device` now, or comes there. Homes do not know any more where it stood: that is known when it is another disk.
    pub(super) fn note_former_home(&self, hash: &RecordHash, home: Option<Home>, device: u8) {
        let before = home.map(|home| (home.version, home.place.zone.device()));
        if let Some((version, disk)) = before.filter(|(_, disk)| *disk != device) {
            self.second_places.note(*hash, version, [disk, device]);
        }
    }

    /// Zones are given up, and homes do not know any more what stood there. Until they are void a start may find it all the same:
    /// that is known of what is on another disk now, or on its way.
    pub(super) fn note_homes_in(&self, is_meant: impl Fn(ZoneId) -> bool) {
        let _pending = self.pending.lock();
        for (hash, home) in self.homes.take_in(is_meant) {
            let Some(known) = self.index.get_version(&hash, home.version) else { continue };
            let (before, now) = (home.place.zone.device(), known.place.zone.device());
            if now != before || known.place.zone == ZoneId::on_the_move(before) {
                self.second_places.note(hash, home.version, [before, now]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use tidefs_engine::types::ByteCount;

    use super::super::format::Tombstone;
    use super::super::index::{Located, Place};
    use super::super::testing::*;
    use super::super::{Missed, SsdTier, Stored};
    use super::*;

    const LENGTH: usize = 5000;

    fn keys_known(tier: &SsdTier) -> usize {
        tier.shared.second_places.known.lock().len()
    }

    #[test]
    fn a_key_that_was_stored_again_elsewhere_is_forgotten_when_it_is_removed_or_dropped() {
        let disks = [MemoryDisk::new(), MemoryDisk::new()];
        let (tier, _) = running(&disks, &config(2, 12));
        let keys: Vec<[u8; 1]> = (0..20).map(|number| [number]).collect();
        keys.iter().for_each(|key| assert_eq!(store(&tier, key, 1, LENGTH), Stored::Yes));
        let unread = tier.disk_of(&keys[0]).unwrap();
        let unread_keys: Vec<_> = keys.iter().filter(|key| tier.disk_of(&key[..]) == Some(unread)).collect();
        disks[usize::from(unread)].fails_reads.store(true, Ordering::Relaxed);
        let read = tier.read(&keys[0], Version(1), ByteCount(LENGTH as u64));
        assert_eq!(read, Err(Missed::Failed));
        unread_keys.iter().for_each(|key| assert_eq!(store(&tier, &key[..], 1, LENGTH), Stored::Yes));
        assert!(unread_keys.len() > 2 && keys_known(&tier) == unread_keys.len());
        tier.remove(unread_keys[0], Version(1));
        assert_eq!(keys_known(&tier), unread_keys.len() - 1);
        tier.shared.drop_device(1 - unread);
        assert_eq!(keys_known(&tier), 0);
    }

    #[test]
    fn a_key_is_known_once_on_each_disk_and_as_long_as_what_is_on_its_way_has_to_take_all_along() {
        let tier = tier_on(&[MemoryDisk::new(), MemoryDisk::new()], &config(2, 12));
        let (shared, hash) = (&tier.shared, tier.shared.hash(b"key"));
        (0..3).for_each(|_| shared.second_places.note(hash, Version(1), [0, 1]));
        assert_eq!(shared.second_places.of(&hash), [0, 1]);
        // Without threads it stays on its way.
        tier.put(put_of(b"key", 1, LENGTH), |_| ()).unwrap();
        shared.bury_all(&shared.pending.lock(), Vec::new(), hash, Version(1));
        assert_eq!(shared.second_places.of(&hash), [0, 1]);
        tier.remove(b"key", Version(1));
        assert_eq!(keys_known(&tier), 0);
    }

    #[test]
    fn a_removal_that_is_written_when_its_version_stands_again_has_its_disk_known_anew() {
        let tier = tier_on(&[MemoryDisk::new(), MemoryDisk::new()], &config(2, 12));
        let (shared, hash) = (&tier.shared, tier.shared.hash(b"key"));
        let place = Place { zone: ZoneId::new(1, 0), block: 1 };
        let located = Located { version: Version(5), place, blocks: 2, owner: 0, heat: 0, is_again: false };
        shared.index.put(hash, &located);
        let removal = Tombstone { order: 1, hash, version: Version(5) };
        assert_eq!(shared.as_of_now(0, &removal).version, Version(4));
        assert_eq!(shared.second_places.of(&hash), [1, 0]);
        // What is removed of older versions leaves it there.
        shared.bury_all(&shared.pending.lock(), Vec::new(), hash, Version(4));
        assert_eq!(shared.second_places.of(&hash), [1, 0]);
        tier.remove(b"key", Version(5));
        assert_eq!(keys_known(&tier), 0);
    }
}
