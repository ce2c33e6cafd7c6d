//! Zones that are left from a larger capacity: they are read at the start as any other, then given up and cut off.
//!
//! What is removed or replaced in such a zone may be the only word against an older record in a zone that stays. So its
//! removals are written again, and a removal of each record for which another one could stand in, before it is void.
//!
//! Invariants
//! - A zone beyond the capacity is void on its disk before its blocks are given back. Of a device, whose blocks stay,
//!   nothing comes back with a larger capacity.
//! - Records that the owner wanted at once are moved into zones that stay: they say where others belong.
//!
//! Threads: the one that builds the index; the rest is done by the disk's writer, as for any zone that is
//! [given up](super::given_up).

use std::sync::Arc;

use hashbrown::HashSet;
use tidefs_engine::types::ByteCount;

use super::Shared;
use super::device::Device;
use super::format::RecordHash;
use super::index::{Place, ZoneId};
use super::memory::{Buffer, Memory};
use super::naming::Standing;
use super::queue::{Append, Job, Origin};
use super::reasons::DroppedFor;

impl Shared {
    /// Whether a place lies beyond the capacity of its disk. What is on the move stands nowhere, so not there either.
    pub(super) fn is_surplus(&self, place: Place) -> bool {
        let is_on_the_move = place.zone == ZoneId::on_the_move(place.zone.device());
        let is_beyond = |device: Arc<Device>| device.is_surplus(place.zone.zone());
        !is_on_the_move && self.devices.of(place).is_some_and(is_beyond)
    }

    /// Gives up all zones beyond the capacities of their disks. `crossed`: keys of which a record stands there and another
    /// one stands too. Of `early`, what stands there is moved.
    pub(super) fn give_up_surplus(&self, crossed: &HashSet<RecordHash>, early: &mut [Standing]) {
        let of_device = |device: &Arc<Device>| (Arc::clone(device), device.surplus());
        let mut surplus: Vec<_> = self.devices.all().iter().map(of_device).collect();
        // From here on removals of keys that the index does not know are noted too.
        for (device, zones) in &mut surplus {
            // What is given up already is made void, or could not be read and is left to the next start.
            zones.retain(|zone| device.give_up(*zone));
        }
        self.move_out(early, |place| self.is_surplus(place));
        for hash in crossed {
            if let Some(found) = self.index.remove_if(hash, |found| self.is_surplus(found.place)) {
                self.remove_everywhere(*hash, found.version);
            }
        }
        for (device, zones) in surplus {
            if !zones.is_empty() {
                tracing::info!(
                    device = device.name,
                    zones = zones.len(),
                    "the capacity is smaller than before: what lies beyond it is given up"
                );
            }
            let numbers: Vec<ZoneId> = zones.iter().map(|zone| device.zone_id(*zone)).collect();
            self.drop_zones(&numbers, DroppedFor::Capacity);
            zones.into_iter().for_each(|zone| _ = device.queue.push(Job::GiveUp(zone)));
        }
    }

    /// Leaves records that have no data, and stand where `is_left` says, to be written again on their disk. Called before
    /// their zone is given up.
    pub(super) fn move_out(&self, early: &mut [Standing], is_left: impl Fn(Place) -> bool) {
        for standing in early.iter_mut().filter(|early| is_left(early.place) && self.stands(early)) {
            self.move_one_out(standing);
        }
    }

    fn move_one_out(&self, standing: &mut Standing) {
        let Some(device) = self.devices.of(standing.place) else { return };
        let record = &standing.record;
        let nowhere = self.nowhere(device.number);
        if record.length > ByteCount::ZERO
            || !self.index.relocate(&standing.hash, record.version, standing.place, nowhere)
        {
            return;
        }
        standing.place = nowhere;
        device.queue.push(Job::Append(Append {
            hash: standing.hash,
            key: record.key.clone(),
            meta: record.meta.clone(),
            version: record.version,
            length: record.length,
            checksum: None,
            memory: Memory::Buffer(Arc::new(Buffer::zeroed(0))),
            durable: false,
            origin: Origin::Zone(nowhere),
            uses: 0,
            done: Box::new(|_| ()),
        }));
    }
}

#[cfg(test)]
mod tests {
    //! Shows what a start with a smaller capacity leaves, and what a larger one finds after it.

    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    use tidefs_engine::types::{ByteCount, Version};

    use super::super::testing::*;
    use super::super::{Indexed, SsdTier, Stored};

    const LIMIT: Duration = Duration::from_secs(20);
    /// Three of them fill a zone.
    const LENGTH: usize = 15 * 4096;

    fn fill(tier: &SsdTier, versions: std::ops::Range<u64>) {
        for version in versions {
            let key = format!("other {version}");
            assert_eq!(store(tier, key.as_bytes(), version, LENGTH), Stored::Yes);
        }
    }

    /// A disk on which `removed` and the first `replaced` stand in low zones, and what says that they are gone in high
    /// ones, with the record of a directory.
    fn written(is_device: bool) -> Arc<MemoryDisk> {
        let disk = MemoryDisk::new();
        let config = config(1, 20);
        if is_device {
            disk.content.lock().resize(usize::try_from(config.capacity.get()).unwrap(), 0);
            disk.is_device.store(true, Ordering::Relaxed);
        }
        let (tier, _) = running(std::slice::from_ref(&disk), &config);
        assert_eq!(store(&tier, b"removed", 5, LENGTH), Stored::Yes);
        assert_eq!(store(&tier, b"replaced", 5, LENGTH), Stored::Yes);
        fill(&tier, 100..148);
        tier.remove(b"removed", Version(5));
        assert_eq!(store(&tier, b"replaced", 10, LENGTH), Stored::Yes);
        assert_eq!(store(&tier, DIRECTORY, 20, 0), Stored::Yes);
        disk
    }

    fn comes_back(tier: &SsdTier) -> bool {
        tier.holds(b"removed").is_some() || tier.holds(b"replaced").is_some()
    }

    #[test]
    fn a_smaller_capacity_brings_nothing_back_and_neither_does_a_larger_one_after_it() {
        for is_device in [false, true] {
            let disk = written(is_device);
            let (small, large) = (config(1, 12), config(1, 20));
            let tier = tier_on(std::slice::from_ref(&disk), &small);
            recover(&tier);
            assert!(!comes_back(&tier), "device: {is_device}");
            assert!(tier.records() > 20, "what is within the capacity stays");
            tier.start(Arc::new(Told::default())).unwrap();
            // Of a zone that is given up already, and not void yet.
            tier.remove(b"other 146", Version(146));
            let end = Instant::now() + LIMIT;
            while !tier.shared.devices.all()[0].surplus().is_empty() {
                assert!(Instant::now() < end, "it is not void");
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(tier.flush(LIMIT));
            let status = tier.status().devices.remove(0);
            assert_eq!((status.capacity, status.quarantined_zones), (ByteCount(12 * ZONE.get()), 0));
            drop(tier);
            assert!(is_device || disk.content.lock().len() as u64 <= small.capacity.get());
            let tier = tier_on(&[disk], &large);
            recover(&tier);
            assert!(!comes_back(&tier) && tier.holds(b"other 146").is_none(), "device: {is_device}");
        }
    }

    #[test]
    fn a_daemon_that_is_killed_before_a_surplus_zone_is_void_brings_nothing_back() {
        let directory = tempfile::tempdir().unwrap();
        let intents = Some(directory.path().join("intents"));
        let disk = written(true);
        // Without threads nothing is written, as by one that is killed at once.
        let tier =
            tier_on(std::slice::from_ref(&disk), &super::super::SsdConfig { intents, ..config(1, 12) });
        recover(&tier);
        tier.remove(b"other 146", Version(146));
        let intents = Some(directory.path().join("intents"));
        let tier = tier_on(&[disk], &super::super::SsdConfig { intents, ..config(1, 20) });
        recover(&tier);
        assert!(!comes_back(&tier));
        assert!(tier.holds(b"other 146").is_none() && tier.holds(b"other 145").is_some());
    }

    #[test]
    fn a_record_of_a_directory_outlives_a_smaller_capacity() {
        let disk = written(false);
        let small = config(1, 12);
        for _ in 0..2 {
            let tier = tier_on(std::slice::from_ref(&disk), &small);
            let Indexed { early, mut unnamed, .. } = tier.index(&|key| key == DIRECTORY);
            assert!(early.len() == 1 && tier.own(&early[0], 7), "{early:?}");
            tier.start(Arc::new(Told::default())).unwrap();
            while tier.next_unnamed(&mut unnamed).is_some() {}
            let end = Instant::now() + LIMIT;
            while !tier.shared.devices.all()[0].surplus().is_empty() {
                assert!(Instant::now() < end, "it is not void");
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(tier.holds(DIRECTORY), Some(Version(20)));
        }
    }

    /// As when its policy was set after it was made.
    #[test]
    fn the_later_of_two_records_of_a_directory_outlives_a_smaller_capacity() {
        let disk = written(false);
        let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 20));
        assert_eq!(store(&tier, DIRECTORY, 21, 0), Stored::Yes);
        drop(tier);
        let tier = tier_on(std::slice::from_ref(&disk), &config(1, 12));
        let Indexed { early, mut unnamed, .. } = tier.index(&|key| key == DIRECTORY);
        assert!(early.len() == 1 && tier.own(&early[0], 7), "{early:?}");
        tier.start(Arc::new(Told::default())).unwrap();
        while tier.next_unnamed(&mut unnamed).is_some() {}
        let end = Instant::now() + LIMIT;
        let place = || tier.shared.index.get(&tier.shared.hash(DIRECTORY)).map(|found| found.place);
        while place().is_none_or(|place| place.zone.zone() >= 12) {
            assert!(place().is_some() && Instant::now() < end, "it is given up");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(tier.flush(LIMIT));
        drop(tier);
        let tier = tier_on(&[disk], &config(1, 12));
        recover(&tier);
        assert_eq!(tier.holds(DIRECTORY), Some(Version(21)));
    }
}
