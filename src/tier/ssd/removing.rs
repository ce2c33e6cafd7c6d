//! Removals: of which version one is, and on which disks it is left for the writer.
//!
//! Invariants
//! - A removal goes wherever a start may find what it hides: where that stands or is on its way, where a second record of it may
//!   stand, to disks that are being emptied, and to those with zones that are given up.
//! - It is left under the lock of what is on its way, which says of which version it is: it does not hide what its owner stores
//!   meanwhile. So does one that is noted once more: the next start does not ask in which order the file of intents came to be.
//!
//! Threads: any; nothing here waits for a disk.

use tidefs_engine::types::Version;

use super::device::Device;
use super::format::{RecordHash, Tombstone};
use super::under_way::UnderWay;
use super::{Located, Shared};

impl Shared {
    /// A start meets a record on a disk, or it is written there anew. There may be one on another, or the same one a second time:
    /// reclaim wrote it again, and its old zone is not void.
    pub(super) fn note_second_place(&self, hash: &RecordHash, version: Version, device: u8) {
        let Some(known) = self.index.get(hash) else { return };
        let before = known.place.zone.device();
        if before != device || known.version == version {
            let mut second = self.second_places.lock();
            second.entry(*hash).or_default().extend([before, device]);
        }
    }

    /// The disks on which a record may stand, where that are several.
    pub(super) fn second_places(&self, hash: &RecordHash) -> Vec<u8> {
        let second = self.second_places.lock();
        let mut places: Vec<u8> = second.get(hash).into_iter().flatten().copied().collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// See [`super::SsdTier::remove`].
    pub(super) fn remove(&self, hash: RecordHash, version: Version) {
        let mut pending = self.pending.lock();
        let mut devices = pending.cancel(hash, version);
        let removed = self.index.remove_if(&hash, |found| found.version <= version);
        devices.extend(removed.map(|removed| removed.place.zone.device()));
        self.bury_wherever(&pending, devices, hash, version);
    }

    /// A version was entered into the index, where `older` stood, if any did: else one may stand where a start finds it
    /// all the same. Called under the lock of what is pending.
    pub(super) fn bury_replaced(
        &self,
        under_way: &UnderWay,
        hash: RecordHash,
        version: Version,
        older: Option<&Located>,
    ) {
        self.intents.note_stored(hash, version);
        let device = older.map(|older| older.place.zone.device());
        self.bury_wherever(under_way, device.into_iter().collect(), hash, version_before(version));
    }

    /// Leaves a removal for the disks that are `known` to have a record, and for those that may. Called under the lock of
    /// what is pending.
    fn bury_wherever(&self, under_way: &UnderWay, mut devices: Vec<u8>, hash: RecordHash, version: Version) {
        if !devices.is_empty() {
            // A copy may stand on a disk that is being emptied, or on which a start found it.
            devices.extend(self.devices.numbers(Device::is_leaving));
            devices.extend(self.second_places.lock().get(&hash).into_iter().flatten());
        }
        // A zone that is given up, and that a start may find all the same, is not in the index.
        let is_doubtful = |device: &Device| device.may_find_given_up() && !device.is_failing();
        devices.extend(self.devices.numbers(is_doubtful));
        devices.sort_unstable();
        devices.dedup();
        for number in devices {
            if let Some(device) = self.devices.get(number) {
                self.bury(under_way, &device, hash, version);
            }
        }
    }

    /// Removes a key on every disk, wherever it may stand.
    pub(super) fn remove_everywhere(&self, hash: RecordHash, version: Version) {
        let pending = self.pending.lock();
        self.devices.all().iter().for_each(|device| self.bury(&pending, device, hash, version));
    }

    /// Leaves a removal for a disk's writer. Of a version that is on its way all is to stay, though its order may be drawn
    /// already; of one that stands again, too. Called under the lock of what is pending.
    pub(super) fn bury(&self, under_way: &UnderWay, device: &Device, hash: RecordHash, version: Version) {
        let stands = || self.index.get_version(&hash, version).is_some();
        let stays = under_way.takes_along(hash, version) || stands();
        let version = if stays { version_before(version) } else { version };
        let tombstone = Tombstone { order: self.next_order(), hash, version };
        self.intents.add(device.number, hash, version);
        // Without a writer, of a disk that is being taken out or of a tier that ends, it waits in the file.
        device.queue.push_tombstones([tombstone]);
    }

    /// Notes removals once more in the file of intents, for another place where they are to stand.
    pub(super) fn intend(&self, disk: u8, removals: &[Tombstone]) {
        for removal in removals {
            // What is stored of its version enters the index under this lock, and says so in the file.
            let _pending = self.pending.lock();
            let removal = self.as_of_now(removal);
            self.intents.add(disk, removal.hash, removal.version);
        }
    }

    /// A removal as it is to be written now. What stands in the index of its version was stored after it, and has to take along
    /// what was to be removed.
    pub(super) fn as_of_now(&self, tombstone: &Tombstone) -> Tombstone {
        let stands = self.index.mark_again(&tombstone.hash, tombstone.version);
        let version = if stands { version_before(tombstone.version) } else { tombstone.version };
        Tombstone { version, ..*tombstone }
    }
}

/// The version up to which everything is removed when `version` itself is not.
pub(super) fn version_before(version: Version) -> Version {
    Version(version.0.saturating_sub(1))
}
