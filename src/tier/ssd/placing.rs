//! Where a record goes that is to be stored: to which disk, and whether the budgets and the queues let it.
//!
//! Invariants
//! - All records of a key stand on one disk at a time, so that a removal there hides every one of them. Who has one on a disk that
//!   is leaving, takes no writes or reads nothing writes elsewhere, and its removals go to both.
//! - What is refused is on its way nowhere, and leaves the index as it was.
//!
//! Threads: any; nothing here waits for a disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidefs_engine::types::{ByteCount, Checksum};

use super::admission::Refused;
use super::device::Device;
use super::format::{KEY_BYTES_MAX, META_BYTES_MAX, RecordFacts};
use super::open_zone::fits_a_zone;
use super::queue::{Append, Job, cost_of};
use super::{Located, Shared};

/// Whether a disk reads nothing, whether it waits for a zone, how much it has to do, and how much it did: the least is asked first.
pub(super) fn load_of(device: &Device) -> (bool, bool, u64, u64) {
    let (reads_nothing, is_short) = (device.overdue.reads_nothing(), device.is_short_of_zones());
    (reads_nothing, is_short, device.queue.bytes(), device.work.written.total())
}

impl Shared {
    /// Leaves a record for a disk's writer, if the budgets allow it. `is_copy`: as in [`super::Put`].
    pub(super) fn enqueue(&self, append: Append, is_copy: bool) -> Result<(), Refused> {
        let outcome = self.try_enqueue(append);
        let counter = match outcome {
            // What is on its way is not refused.
            Ok(()) | Err(Refused::Underway) => return outcome,
            Err(_) if is_copy => return outcome,
            Err(Refused::QueueFull) => &self.counters.refused_queue,
            Err(Refused::OverRate) => &self.counters.refused_rate,
            Err(Refused::OverDay) => &self.counters.refused_day,
            Err(Refused::TooLarge | Refused::KeyTooLong) => &self.counters.refused_large,
            Err(Refused::NoDevice) => &self.counters.refused_disk,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        outcome
    }

    fn try_enqueue(&self, append: Append) -> Result<(), Refused> {
        if append.key.len() > KEY_BYTES_MAX || append.meta.len() > META_BYTES_MAX {
            return Err(Refused::KeyTooLong);
        }
        let (hash, version) = (append.hash, append.version);
        let mut pending = self.pending.lock();
        if pending.has(hash, version) {
            return Err(Refused::Underway);
        }
        // All records of a key stand on one disk at a time, so that a removal there hides every one of them.
        let bound = pending.disks_of(hash).next_back().map(usize::from);
        let known = self.index.get(&hash);
        let bound = bound.or_else(|| known.map(|known| known.place.zone.device()));
        // What stands on a disk that is leaving, takes no writes, or reads nothing, is written elsewhere; its removals go to both.
        let may_stay = |device: &Arc<Device>| {
            !device.is_leaving() && !device.is_failing() && !device.overdue.reads_nothing()
        };
        let device = bound.and_then(|device| self.devices.get(device)).filter(may_stay);
        let probe = RecordFacts {
            order: 0,
            hash,
            version,
            length: append.length,
            checksum: Checksum(0),
            key: append.key.clone(),
            meta: append.meta.clone(),
        };
        let fits =
            |device: &Arc<Device>| fits_a_zone(device.zone_blocks, probe.blocks(), probe.footer_bytes());
        // A small disk has smaller zones.
        let device = device.or_else(|| self.takers().filter(fits).min_by_key(|device| load_of(device)));
        let device = device.or_else(|| self.least_busy()).ok_or(Refused::NoDevice)?;
        if !fits(&device) {
            return Err(Refused::TooLarge);
        }
        // Without the record of a directory nothing below it is found.
        if !append.durable && !self.must_stay(&probe) {
            let now = self.uptime();
            let queued = device.queue.bytes();
            let written = device.work.written.total();
            let mut admission = device.admission.lock();
            admission.admit(append.cost(), queued, written, now)?;
        }
        // Of one version that stays where it is not read the removal goes there, too.
        let is_unread = |known: &Located| {
            let disk = self.devices.get(known.place.zone.device());
            disk.is_some_and(|disk| disk.number != device.number && disk.overdue.reads_nothing())
        };
        if known.is_some_and(|known| known.version == version && is_unread(&known)) {
            self.note_second_place(&hash, version, device.number);
        }
        pending.begin(hash, version, device.number);
        if !device.queue.push(Job::Append(append)) {
            pending.end(hash, version);
            return Err(Refused::NoDevice);
        }
        Ok(())
    }

    /// The disk that has least to do, of those that take records.
    pub(super) fn least_busy(&self) -> Option<Arc<Device>> {
        self.takers().min_by_key(|device| load_of(device))
    }

    /// The disks that take records.
    pub(super) fn takers(&self) -> impl Iterator<Item = Arc<Device>> {
        let takes =
            |device: &Arc<Device>| !device.is_failing() && !device.is_leaving() && device.has_usable_zone();
        self.devices.all().into_iter().filter(takes)
    }

    pub(super) fn has_room_in_queue(&self, length: ByteCount) -> bool {
        self.least_busy()
            .is_some_and(|device| device.admission.lock().has_room(cost_of(length), device.queue.bytes()))
    }

    pub(super) fn is_writing(&self) -> bool {
        self.least_busy().is_some_and(|device| device.queue.bytes() > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use tidefs_engine::types::ByteCount;

    use super::super::format::ZONES_START;
    use super::super::testing::{DIRECTORY, MemoryDisk, config, put_of, running, store};
    use super::super::{Refused, Stored, Unusable};

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn a_disk_that_is_full_before_it_has_a_zone_takes_nothing_from_another() {
        let disks = [MemoryDisk::new(), MemoryDisk::new()];
        disks[0].room.store(ZONES_START, Ordering::Relaxed);
        let (tier, _) = running(&disks, &config(2, 8));
        // It is known when one has looked for a zone.
        assert_eq!(store(&tier, b"first", 1, 0), Stored::Failed);
        assert_eq!(tier.status().devices[0].trouble, Some(Unusable::Full));
        assert_eq!(store(&tier, DIRECTORY, 1, 0), Stored::Yes);
        tier.remove_disk(std::path::Path::new("disk 1"), true).unwrap();
        assert_eq!(tier.put(put_of(b"later", 1, 0), |_| ()).unwrap_err(), Refused::NoDevice);
    }

    #[test]
    fn a_small_object_and_an_empty_one_count_as_the_blocks_that_they_take() {
        let disk = MemoryDisk::new();
        let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 8));
        disk.hangs_writes.store(true, Ordering::Relaxed);
        (0..10_u8).for_each(|number| tier.put(put_of(&[number], 1, 256), |_| ()).unwrap());
        tier.put(put_of(b"empty", 1, 0), |_| ()).unwrap();
        let queued = || tier.status().devices[0].queued;
        assert_eq!(queued(), ByteCount(21 * 4096));
        disk.let_go();
        assert!(tier.flush(LIMIT));
        assert_eq!((queued(), tier.records()), (ByteCount::ZERO, 11));
    }

    #[test]
    fn an_empty_object_meets_the_budgets_and_the_record_of_a_directory_does_not() {
        let mut config = config(1, 8);
        config.budget.bytes_per_day = Some(ByteCount(1));
        let (tier, _) = running(&[MemoryDisk::new()], &config);
        assert_eq!(tier.put(put_of(b"empty", 1, 0), |_| ()), Err(Refused::OverDay));
        assert_eq!(store(&tier, DIRECTORY, 1, 0), Stored::Yes);
    }
}
