//! Which zone is taken back next: of the oldest that which holds the least that stands nowhere else.
//!
//! Zones fill up with records that were replaced, and with objects that came back into memory: a zone full of them gives the
//! same room as any other, and nothing is lost with it. Only the oldest zones are looked at, so that what stands in a zone had
//! its time to be asked for.
//!
//! Invariants
//! - The oldest is taken back when no zone is free. One that was not read in time, has too much that is pinned, or removals for which
//!   there is no place, is passed over for a while: a shorter one when there is no other and the writer waits for it.
//! - No zone is the oldest for more than [`PASSES_MAX`] others in a row: removals stay for as long as an older zone is in use.
//! - The footer of a zone is read once while it is looked at, and no more than [`SAMPLE`] of its records are looked up again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::time::{Duration, Instant};

use super::Shared;
use super::contents::records_in;
use super::device::Device;
use super::format::{FooterEntry, Order, RecordHash};
use super::index::{Place, ZoneId};

/// The part of the closed zones that is old: one in so many.
const OLD: usize = 4;
/// Zones that are looked at.
const LOOKED_AT: usize = 16;
/// Zones that are taken back while the oldest is passed over.
const PASSES_MAX: u32 = 32;
/// Records of a zone that stand for all.
const SAMPLE: usize = 256;

/// For how long a zone that was not read in time is passed over.
const LATE_FOR: Duration = Duration::from_secs(10);
/// The same, while the writer waits for a zone and all are passed over.
const LATE_FOR_WRITER: Duration = Duration::from_millis(500);

/// What is remembered from one choice to the next.
#[derive(Debug, Default)]
pub(super) struct Choosing {
    /// By device.
    looked_at: BTreeMap<u8, Looked>,
}

#[derive(Debug, Default)]
struct Looked {
    /// By zone and its present life.
    zones: BTreeMap<(u32, Order), Sample>,
    /// How often the oldest was passed over, and which one that is.
    passes: (Order, u32),
    /// When zones, in their present lives, were not read in time.
    late: BTreeMap<(u32, Order), Instant>,
}

/// Some records of a zone.
#[derive(Debug)]
struct Sample {
    records: Vec<(RecordHash, Place)>,
    /// Each stands for so many.
    step: u64,
}

impl Choosing {
    /// The closed zone of `device` that is to be taken back next. `None` when there is none, or the disk is late.
    pub(super) fn choose(&mut self, shared: &Shared, device: &Device) -> Option<u32> {
        let looked = self.looked_at.entry(device.number).or_default();
        looked.late.retain(|_, late_at| late_at.elapsed() < LATE_FOR);
        let closed = looked.may_be_chosen(device);
        let &(sequence, oldest) = closed.first()?;
        if looked.passes.0 != sequence {
            looked.passes = (sequence, 0);
        }
        let old = &closed[..(closed.len() / OLD).clamp(1, LOOKED_AT)];
        looked.zones.retain(|(zone, sequence), _| old.contains(&(*sequence, *zone)));
        let mut least = None;
        // Another than the oldest has removals that must be kept, for which there would be no place.
        let may_choose = looked.passes.1 < PASSES_MAX && device.spare_zones() > 0;
        for &(sequence, zone) in old.iter().filter(|_| may_choose) {
            if let Entry::Vacant(place) = looked.zones.entry((zone, sequence)) {
                // One that would have to be scanned waits until it is the oldest and was passed over.
                match shared.footer_of(device, zone) {
                    Ok(entries) => _ = place.insert(Sample::of(device.zone_id(zone), &entries)),
                    // Nor would a disk that is late answer to more: others are served meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                        looked.late.insert((zone, sequence), Instant::now());
                        return None;
                    }
                    Err(_) => continue,
                }
            }
            let Some(sample) = looked.zones.get(&(zone, sequence)) else { continue };
            let unique = sample.unique_blocks(shared);
            if least.is_none_or(|(known, _)| unique < known) {
                least = Some((unique, zone));
            }
        }
        let chosen = least.map_or(oldest, |(_, zone)| zone);
        looked.passes.1 += u32::from(chosen != oldest);
        Some(chosen)
    }

    /// A zone was not read in time: others are chosen before it for a while.
    pub(super) fn note_late(&mut self, device: &Device, zone: u32) {
        if let Some(known) = device.zone(zone) {
            let looked = self.looked_at.entry(device.number).or_default();
            looked.late.insert((zone, known.sequence), Instant::now());
        }
    }
}

impl Looked {
    /// The closed zones of `device` that are not passed over, in the order in which they were opened.
    fn may_be_chosen(&self, device: &Device) -> Vec<(Order, u32)> {
        let closed = device.closed_by_age();
        let but_late = |limit: Duration| -> Vec<(Order, u32)> {
            let late = |&(sequence, zone): &(Order, u32)| self.late.get(&(zone, sequence));
            let is_late = |zone| late(zone).is_some_and(|late_at| late_at.elapsed() < limit);
            closed.iter().filter(|zone| !is_late(zone)).copied().collect()
        };
        let chosen = but_late(LATE_FOR);
        if chosen.is_empty() && device.is_short_of_zones() { but_late(LATE_FOR_WRITER) } else { chosen }
    }
}

impl Sample {
    fn of(zone: ZoneId, entries: &[FooterEntry]) -> Self {
        let records: Vec<_> = records_in(zone, entries).map(|(place, facts)| (facts.hash, place)).collect();
        let step = records.len().div_ceil(SAMPLE).max(1);
        Self { records: records.into_iter().step_by(step).collect(), step: step as u64 }
    }

    /// About how many blocks of its zone have bytes that stand nowhere else.
    fn unique_blocks(&self, shared: &Shared) -> u64 {
        let unique = self.records.iter().filter_map(|(hash, place)| {
            let located = shared.index.get_at(hash, *place)?;
            (!shared.has_elsewhere(&located)).then_some(u64::from(located.blocks))
        });
        unique.sum::<u64>() * self.step
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::sync_channel;
    use std::time::{Duration, Instant};

    use super::super::testing::{
        ELSEWHERE, MemoryDisk, config, put_of, recover, running, store, store_put, tier_on,
    };
    use super::super::{DroppedFor, Owner, SsdTier, Stored};
    use tidefs_engine::types::Version;

    /// Three of them fill a zone.
    const LENGTH: usize = 15 * 4096;
    const ZONES: u64 = 32;

    /// Stores an object that is in memory too.
    fn store_copy(tier: &SsdTier, version: u64) {
        let mut put = put_of(format!("copy {version}").as_bytes(), version, LENGTH);
        put.owner += ELSEWHERE;
        assert_eq!(store_put(tier, put).unwrap(), Stored::Yes);
    }

    fn is_held(tier: &SsdTier, name: &str) -> bool {
        tier.holds(name.as_bytes()).is_some()
    }

    #[test]
    fn a_zone_of_what_is_in_memory_too_goes_before_older_ones() {
        let (tier, told) = running(&[MemoryDisk::new()], &config(1, ZONES));
        for version in 1..=6 {
            store(&tier, format!("alone {version}").as_bytes(), version, LENGTH);
        }
        (7..=9).for_each(|version| store_copy(&tier, version));
        let mut version = 10;
        while told.0.lock().len() < 3 {
            store(&tier, format!("alone {version}").as_bytes(), version, LENGTH);
            version += 1;
            assert!(version < 10 * ZONES, "nothing is taken back");
        }
        let mut first: Vec<Version> = told.0.lock()[..3].iter().map(|(_, version)| *version).collect();
        first.sort_unstable();
        assert_eq!(first, [Version(7), Version(8), Version(9)]);
    }

    #[test]
    fn no_zone_is_passed_over_for_ever() {
        let (tier, _) = running(&[MemoryDisk::new()], &config(1, ZONES));
        for version in 1..=3 {
            store(&tier, format!("alone {version}").as_bytes(), version, LENGTH);
        }
        let end = Instant::now() + Duration::from_secs(20);
        let mut version = 4;
        while (1..=3).any(|version| is_held(&tier, &format!("alone {version}"))) {
            store_copy(&tier, version);
            version += 1;
            assert!(Instant::now() < end, "it stays after {version} others");
        }
        let zones_before = (version - 4) / 3;
        assert!(zones_before > ZONES, "it was not passed over: {zones_before}");
    }

    /// Says slowly whether an object is in memory too, so that the writer has always taken all zones before reclaim.
    #[derive(Debug)]
    struct Slow;

    impl Owner for Slow {
        fn dropped(&self, _: u32, _: Version, _: DroppedFor) {}

        fn has_elsewhere(&self, number: u32, _: Version) -> bool {
            std::thread::sleep(Duration::from_micros(200));
            number >= ELSEWHERE
        }

        fn is_pinned(&self, _number: u32, _version: Version) -> bool {
            false
        }

        fn must_stay(&self, _: &[u8]) -> bool {
            false
        }
    }

    #[test]
    fn removals_that_must_be_kept_hold_up_no_one_who_waits_for_a_zone() {
        const REMOVED: u64 = 1 << 20;
        let tier = tier_on(&[MemoryDisk::new()], &config(1, ZONES));
        recover(&tier);
        tier.start(Arc::new(Slow)).unwrap();
        let (sender, receiver) = sync_channel(1024);
        // A removal in each zone, and most to lose in the oldest.
        for version in 1..=3 * ZONES {
            let removed = format!("removed {version}");
            assert_eq!(store(&tier, removed.as_bytes(), REMOVED + version, 100), Stored::Yes);
            tier.remove(removed.as_bytes(), Version(REMOVED + version));
            if version <= 6 {
                store(&tier, format!("alone {version}").as_bytes(), version, LENGTH);
            } else {
                store_copy(&tier, version);
            }
        }
        // More at once than zones are free.
        for version in 1000..1100 {
            let sender = sender.clone();
            let put = put_of(format!("burst {version}").as_bytes(), version, LENGTH);
            tier.put(put, move |stored| sender.send(stored).unwrap()).unwrap();
        }
        for version in 1000..1100 {
            let stored = receiver.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(stored, Stored::Yes, "version {version}");
        }
        let status = tier.status();
        assert_eq!((status.zone_waits, status.lost_removals), (0, 0));
        assert_eq!(status.devices[0].write_errors, 0);
    }
}
