//! Removals: of which version one is, and on which disks it is left for the writer.
//!
//! Invariants
//! - A removal goes wherever a start may find what it hides: where that stands or is on its way, where a
//!   [second record](super::second_places) of it may stand, to disks that are being emptied, and to those with zones that are given up.
//!   It goes to none that was emptied: nothing stands there, and what is written there is never taken back. Nor to one that the
//!   next start gives up: a removal that is lost there gives up those that lean on it.
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
        let is_known = !devices.is_empty();
        if is_known {
            // A copy may stand on a disk that is being emptied.
            devices.extend(self.devices.numbers(Device::is_leaving));
        }
        // A zone that is given up, and that a start may find all the same, is not in the index.
        let is_doubtful = |device: &Device| device.may_find_given_up() && !device.is_failing();
        devices.extend(self.devices.numbers(is_doubtful));
        if is_known {
            self.bury_all(under_way, devices, hash, version);
        } else {
            self.bury_on(under_way, devices, hash, version);
        }
    }

    /// Leaves a removal for `devices`, and for those on which a second record may stand, or where one stood that
    /// [was moved](super::homes): from then on none of them counts, unless the version stands or is on its way. Called under the lock
    /// of what is pending.
    pub(super) fn bury_all(
        &self,
        under_way: &UnderWay,
        mut devices: Vec<u8>,
        hash: RecordHash,
        version: Version,
    ) {
        let second = self.second_places.of(&hash);
        let home = self.homes.disk_of(&hash);
        devices.extend(second.iter().copied().chain(home));
        let is_whole = self.bury_on(under_way, devices, hash, version);
        if is_whole && !second.is_empty() {
            self.second_places.forget(&hash, version);
        }
        if is_whole && home.is_some() {
            self.homes.forget(&hash, version);
        }
    }

    /// Leaves a removal for each of some disks. Returns whether nothing of the version stays.
    fn bury_on(
        &self,
        under_way: &UnderWay,
        mut devices: Vec<u8>,
        hash: RecordHash,
        version: Version,
    ) -> bool {
        devices.sort_unstable();
        devices.dedup();
        let mut is_whole = true;
        let devices = devices.into_iter().filter_map(|number| self.devices.get(number));
        for device in devices.filter(|device| device.may_be_served()) {
            is_whole &= self.bury(under_way, &device, hash, version);
        }
        is_whole
    }

    /// Removes a key on every disk, wherever it may stand.
    pub(super) fn remove_everywhere(&self, hash: RecordHash, version: Version) {
        let pending = self.pending.lock();
        self.devices.all().iter().for_each(|device| _ = self.bury(&pending, device, hash, version));
    }

    /// Leaves a removal for a disk's writer. Of a version that is on its way all is to stay, though its order may be drawn
    /// already; of one that stands again, too. Returns whether nothing of it stays. Called under the lock of what is pending.
    pub(super) fn bury(
        &self,
        under_way: &UnderWay,
        device: &Device,
        hash: RecordHash,
        version: Version,
    ) -> bool {
        let stands = || self.index.get_version(&hash, version).is_some();
        let stays = under_way.takes_along(hash, version) || stands();
        let version = if stays { version_before(version) } else { version };
        let tombstone = Tombstone { order: self.next_order(), hash, version };
        self.intents.add(device.number, hash, version);
        // Without a writer, of a disk that is being taken out or of a tier that ends, it waits in the file.
        device.queue.push_tombstones([tombstone]);
        !stays
    }

    /// Notes removals once more in the file of intents, for another place where they are to stand.
    pub(super) fn intend(&self, disk: u8, removals: &[Tombstone]) {
        for removal in removals {
            // What is stored of its version enters the index under this lock, and says so in the file.
            let _pending = self.pending.lock();
            let removal = self.as_of_now(disk, removal);
            self.intents.add(disk, removal.hash, removal.version);
        }
    }

    /// A removal as it is to be written now on a disk. What stands in the index of its version was stored after it, and has to take
    /// along what was to be removed there.
    pub(super) fn as_of_now(&self, disk: u8, tombstone: &Tombstone) -> Tombstone {
        let stands = self.index.mark_again(&tombstone.hash, tombstone.version);
        if stands {
            self.note_second_place(&tombstone.hash, tombstone.version, disk);
        }
        let version = if stands { version_before(tombstone.version) } else { tombstone.version };
        Tombstone { version, ..*tombstone }
    }
}

/// The version up to which everything is removed when `version` itself is not.
pub(super) fn version_before(version: Version) -> Version {
    Version(version.0.saturating_sub(1))
}
