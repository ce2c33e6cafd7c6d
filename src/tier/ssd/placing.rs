//! Where a record goes that is to be stored: to which disk, and whether the budgets and the queues let it.
//!
//! Invariants
//! - All records of a key stand on one disk at a time, so that a removal there hides every one of them. Who has one on a disk that
//!   is leaving, takes no writes or reads nothing writes elsewhere, and its removals go to both.
//! - What is refused is on its way nowhere, and leaves the index as it was.
//! - Room in a queue is asked of the disk to which the record would go. What leaves memory on the strength of the answer is not
//!   refused for a queue that others filled since then.
//!
//! Limits: so a queue is passed by what those have in hand that asked at the same moment: an object for each, but for the demoter,
//! which asks for several objects before it leaves the first.
//! Threads: any; nothing here waits for a disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidefs_engine::types::{ByteCount, Checksum};

use super::Shared;
use super::admission::Refused;
use super::device::Device;
use super::format::{KEY_BYTES_MAX, META_BYTES_MAX, RecordFacts, RecordHash};
use super::open_zone::{fits_a_zone, longest_in_a_zone};
use super::queue::{Append, Job, cost_of};
use super::under_way::UnderWay;

/// Whether a disk reads nothing, whether it waits for a zone, how much it has to do, and how much it did: the least is asked first.
fn load_of(device: &Device) -> (bool, bool, u64, u64) {
    let (reads_nothing, is_short) = (device.overdue.reads_nothing(), device.is_short_of_zones());
    (reads_nothing, is_short, device.queue.bytes(), device.work.written.total())
}

impl Shared {
    /// Leaves a record for a disk's writer, if the budgets allow it. `is_copy`: as in [`super::Put`].
    pub(super) fn enqueue(&self, append: Append, is_copy: bool) -> Result<(), Refused> {
        let outcome = self.try_enqueue(append, is_copy);
        if let Err(refused) = outcome
            && !is_copy
        {
            self.count_refused(refused);
        }
        outcome
    }

    fn count_refused(&self, refused: Refused) {
        let counter = match refused {
            Refused::QueueFull => &self.counters.refused_queue,
            Refused::OverRate => &self.counters.refused_rate,
            Refused::OverDay => &self.counters.refused_day,
            Refused::TooLarge | Refused::KeyTooLong => &self.counters.refused_large,
            Refused::NoDevice => &self.counters.refused_disk,
            // What is on its way is not refused.
            Refused::Underway => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn try_enqueue(&self, append: Append, is_copy: bool) -> Result<(), Refused> {
        if append.key.len() > KEY_BYTES_MAX || append.meta.len() > META_BYTES_MAX {
            return Err(Refused::KeyTooLong);
        }
        let (hash, version) = (append.hash, append.version);
        let mut pending = self.pending.lock();
        if pending.has(hash, version) {
            return Err(Refused::Underway);
        }
        let device = self.disk_for(&pending, &hash, append.length).ok_or(Refused::NoDevice)?;
        let probe = RecordFacts {
            order: 0,
            hash,
            version,
            length: append.length,
            checksum: Checksum(0),
            key: append.key.clone(),
            meta: append.meta.clone(),
        };
        if !fits_a_zone(device.zone_blocks, probe.blocks(), probe.footer_bytes()) {
            return Err(Refused::TooLarge);
        }
        // Without the record of a directory nothing below it is found.
        if !append.durable && !self.must_stay(&probe) {
            let (cost, now) = (append.cost(), self.uptime());
            let queued = device.queue.bytes();
            let written = device.work.written.total();
            let mut admission = device.admission.lock();
            if is_copy {
                admission.admit(cost, queued, written, now)?;
            } else {
                admission.admit_promised(cost, queued, written, now)?;
            }
        }
        // Of a version that stays on the disk where it stands the removal goes there, too.
        self.note_on_another(&hash, version, device.number);
        pending.begin(hash, version, device.number);
        if !device.queue.push(Job::Append(append)) {
            pending.end(hash, version);
            return Err(Refused::NoDevice);
        }
        Ok(())
    }

    /// The disk to which a record of a key with `length` bytes of data goes, if any takes records.
    fn disk_for(&self, under_way: &UnderWay, hash: &RecordHash, length: ByteCount) -> Option<Arc<Device>> {
        // All records of a key stand on one disk at a time, so that a removal there hides every one of them.
        let bound = under_way.disks_of(*hash).next_back();
        let bound = bound.or_else(|| self.index.get(hash).map(|known| known.place.zone.device()));
        // What stands on a disk that is leaving, takes no writes, or reads nothing, is written elsewhere; its removals go to both.
        let may_stay = |device: &Arc<Device>| {
            !device.is_leaving() && !device.is_failing() && !device.overdue.reads_nothing()
        };
        let device = bound.and_then(|device| self.devices.get(device)).filter(may_stay);
        // A small disk has smaller zones.
        let is_small = |device: &Device| length > longest_in_a_zone(device.zone_blocks);
        device.or_else(|| self.best_taker(is_small))
    }

    /// Of the disks that take records those for which `flaws` are least, and of these the one that has least to do.
    pub(super) fn best_taker<K: Ord>(&self, flaws: impl Fn(&Device) -> K) -> Option<Arc<Device>> {
        self.takers().min_by_key(|device| (flaws(device), load_of(device)))
    }

    /// Whether any disk takes records.
    pub(super) fn has_taker(&self) -> bool {
        self.takers().next().is_some()
    }

    /// The disks that take records.
    pub(super) fn takers(&self) -> impl Iterator<Item = Arc<Device>> {
        let takes =
            |device: &Arc<Device>| !device.is_failing() && !device.is_leaving() && device.has_usable_zone();
        self.devices.all().into_iter().filter(takes)
    }

    /// See [`super::SsdTier::has_room_for`].
    pub(super) fn has_room_for(&self, hash: &RecordHash, length: ByteCount, ahead: ByteCount) -> bool {
        let device = self.disk_for(&self.pending.lock(), hash, length);
        device.is_some_and(|device| {
            let queued = device.queue.bytes().saturating_add(ahead.get());
            device.admission.lock().has_room(cost_of(length), queued)
        })
    }

    pub(super) fn has_idle_disk(&self) -> bool {
        self.takers().any(|device| device.queue.bytes() == 0)
    }

    /// See [`super::SsdTier::count_lost`].
    pub(super) fn count_lost(&self) {
        self.count_refused(if self.has_taker() { Refused::QueueFull } else { Refused::NoDevice });
    }

    pub(super) fn is_writing(&self) -> bool {
        self.takers().any(|device| device.queue.bytes() > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use tidefs_engine::types::ByteCount;

    use super::super::format::ZONES_START;
    use super::super::testing::{DIRECTORY, MemoryDisk, config, is_right, put_of, running, store};
    use super::super::{Put, Refused, Stored, Unusable};

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
    fn no_disk_is_idle_when_each_has_something_to_write() {
        let disks = [MemoryDisk::new(), MemoryDisk::new()];
        let (tier, _) = running(&disks, &config(2, 8));
        assert!(tier.has_idle_disk());
        disks.iter().for_each(|disk| disk.hangs_writes.store(true, Ordering::Relaxed));
        tier.put(put_of(b"one", 1, 5000), |_| ()).unwrap();
        assert!(tier.has_idle_disk());
        // To the one that has least to do.
        tier.put(put_of(b"other", 1, 5000), |_| ()).unwrap();
        assert!(!tier.has_idle_disk());
        disks.iter().for_each(|disk| disk.let_go());
        assert!(tier.flush(LIMIT) && tier.has_idle_disk());
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

    #[test]
    fn room_is_asked_of_the_disk_to_which_a_record_goes_and_the_answer_holds_for_what_leaves() {
        // Two records of ten blocks and their headers for each disk.
        const LENGTH: usize = 10 * 4096;
        let (length, queue) = (ByteCount(LENGTH as u64), ByteCount(100_000));
        let mut config = config(2, 8);
        config.budget.queue_bytes_max = ByteCount(2 * queue.get());
        let disks = [MemoryDisk::new(), MemoryDisk::new()];
        let (tier, _) = running(&disks, &config);
        assert_eq!(store(&tier, b"key", 1, LENGTH), Stored::Yes);
        let bound = tier.shared.disks_of(tier.shared.hash(b"key"));
        let disk = &disks[usize::from(bound[0])];
        disk.hangs_writes.store(true, Ordering::Relaxed);
        for version in 2..5 {
            tier.put(Put { durable: true, ..put_of(b"key", version, LENGTH) }, |_| ()).unwrap();
        }
        assert!(!tier.has_room_for(b"key", length, ByteCount::ZERO), "the other disk has nothing to do");
        assert!(tier.has_room_for(b"other", length, ByteCount::ZERO), "it does not go to that disk");
        assert!(!tier.has_room_for(b"other", length, queue), "others go there before it");
        assert!(tier.has_room_for(b"other", ByteCount::mib(1), ByteCount::ZERO), "one may be on its way");
        assert!(tier.is_writing() && tier.has_idle_disk());
        let copy = Put { is_copy: true, ..put_of(b"key", 5, LENGTH) };
        assert_eq!(tier.put(copy, |_| ()), Err(Refused::QueueFull));
        assert_eq!(tier.put(put_of(b"key", 6, LENGTH), |_| ()), Ok(()), "it asked before the others came");
        assert_eq!(tier.status().refused_queue, 0, "nothing was lost");
        disk.let_go();
        assert!(tier.flush(LIMIT) && is_right(&tier, b"key", 6, LENGTH));
    }
}
