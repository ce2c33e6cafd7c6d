//! Shows that zones are taken back beside those who write and read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::Instant;

use super::format::ZONES_START;
use super::testing::*;
use super::*;

/// Many times what the disk holds.
const OBJECTS: u64 = 480;
const LENGTH: usize = 9000;

/// An owner that takes its time over what it is told, as one whose locks are wanted.
#[derive(Debug)]
struct Slow;

impl Owner for Slow {
    fn dropped(&self, _number: u32, _version: Version, _reason: DroppedFor) {
        thread::sleep(Duration::from_millis(2));
    }

    fn has_elsewhere(&self, _number: u32, _version: Version) -> bool {
        false
    }

    fn is_pinned(&self, _number: u32, _version: Version) -> bool {
        false
    }

    fn must_stay(&self, _key: &[u8]) -> bool {
        false
    }
}

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

#[test]
fn what_was_used_before_it_came_to_the_disk_outlives_what_was_not() {
    let (tier, _) = running(&[MemoryDisk::new()], &config(1, 8));
    assert_eq!(store_put(&tier, Put { uses: 1, ..put_of(b"used", 1, LENGTH) }), Ok(Stored::Yes));
    assert_eq!(store(&tier, b"unused", 1, LENGTH), Stored::Yes);
    let mut number = 0;
    while tier.holds(b"unused").is_some() {
        number += 1;
        assert_eq!(store(&tier, &key(number), 1, LENGTH), Stored::Yes);
    }
    assert!(tier.holds(b"used").is_some(), "it went with the first zone");
}

#[test]
fn what_is_pinned_stays_whether_it_is_used_or_not_and_more_of_it_than_may_be_written_again() {
    let (tier, _) = running(&[MemoryDisk::new()], &config(1, 8));
    let pinned = |number: u64| Put { owner: PINNED, ..put_of(&key(number), 1, LENGTH) };
    // More than a zone of it, and some beside others.
    (0..25).for_each(|number| assert_eq!(store_put(&tier, pinned(number)), Ok(Stored::Yes)));
    store_until_reclaimed(&tier, LENGTH);
    (25..30).for_each(|number| assert_eq!(store_put(&tier, pinned(number)), Ok(Stored::Yes)));
    let before = tier.status().reclaimed_zones;
    let mut version = 10_000;
    while tier.status().reclaimed_zones < before + 20 {
        store(&tier, format!("unpinned {version}").as_bytes(), version, LENGTH);
        version += 1;
    }
    let lost: Vec<u64> = (0..30).filter(|number| tier.holds(&key(*number)).is_none()).collect();
    assert!(lost.is_empty(), "{lost:?}");
    // None is on the move any more.
    assert!(tier.flush(Duration::from_secs(20)));
    assert!((0..30).all(|number| is_right(&tier, &key(number), 1, LENGTH)));
}

#[test]
fn nothing_is_written_where_a_record_stands_that_the_index_still_names() {
    let disks = [MemoryDisk::new()];
    let tier = tier_on(&disks, &config(1, 5));
    recover(&tier);
    tier.start(Arc::new(Slow)).unwrap();
    let (is_over, found) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for number in 0..OBJECTS {
                    let bytes = tier.read(&key(number), Version(1), ByteCount(LENGTH as u64));
                    found.fetch_add(u64::from(bytes.is_ok()), Ordering::Relaxed);
                    assert!(bytes.is_err() || bytes == Ok(data(&key(number), 1, LENGTH)));
                }
            }
        });
        for number in 0..OBJECTS {
            store(&tier, &key(number), 1, LENGTH);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let status = tier.status();
    assert!(status.reclaimed_zones > 0 && found.load(Ordering::Relaxed) > 0);
    assert_eq!(status.corrupt_records, 0);
}

#[test]
fn what_the_disk_fails_to_write_again_stays_where_it_is() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 12));
    assert_eq!(store_put(&tier, Put { uses: 1, ..put_of(b"used", 1, LENGTH) }), Ok(Stored::Yes));
    *disk.refused.lock() = data(b"used", 1, LENGTH);
    let (end, mut number) = (Instant::now() + Duration::from_secs(20), 0);
    while tier.status().reclaimed_zones < 3 {
        store(&tier, &key(number), 1, LENGTH);
        number += 1;
        // So that reclaim is ahead of the writer, and waits for what it writes again.
        while tier.shared.devices.all()[0].spare_zones() < 2 {
            assert!(Instant::now() < end, "nothing is taken back");
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(tier.status().devices[0].write_errors > 0, "it was not written again");
    assert!(is_right(&tier, b"used", 1, LENGTH));
}

#[test]
fn a_zone_stays_in_use_when_what_was_written_again_could_not_be_flushed() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 12));
    assert_eq!(store_put(&tier, Put { uses: 1, ..put_of(b"used", 1, LENGTH) }), Ok(Stored::Yes));
    let zone_of = |key: &[u8]| tier.shared.index.get(&tier.shared.hash(key)).unwrap().place.zone.zone();
    for number in 0.. {
        assert_eq!(store(&tier, &key(number), 1, LENGTH), Stored::Yes);
        if zone_of(&key(number)) > 0 {
            break;
        }
    }
    let device = Arc::clone(&tier.shared.devices.all()[0]);
    let entries = tier.shared.entries_in(&device, 0).unwrap();
    disk.fails_flushes.store(true, Ordering::Relaxed);
    assert!(!tier.shared.take_back(&device, 0, &entries));
    disk.fails_flushes.store(false, Ordering::Relaxed);
    let status = || tier.status().devices.remove(0);
    assert_eq!((status().write_errors, status().quarantined_zones), (1, 0));
    assert!(is_right(&tier, b"used", 1, LENGTH) && tier.holds(&key(0)).is_some());
    disk.keeps_log.store(true, Ordering::Relaxed);
    assert!(tier.shared.take_back(&device, 0, &entries));
    // What was written again before is durable before the zone is void.
    assert!(matches!(disk.log.lock().first(), Some(Logged::Flush)));
    assert!(is_right(&tier, b"used", 1, LENGTH) && tier.holds(&key(0)).is_none());
    assert_eq!(status().quarantined_zones, 0);
}

#[test]
fn a_zone_that_is_read_for_long_is_passed_over_and_stays() {
    let (tier, _) = running(&[MemoryDisk::new()], &config(1, 12));
    assert_eq!(store(&tier, b"first", 1, LENGTH), Stored::Yes);
    let device = Arc::clone(&tier.shared.devices.all()[0]);
    let _lease = device.lease(0).unwrap();
    store_until_reclaimed(&tier, LENGTH);
    assert_eq!((tier.holds(b"first"), tier.status().devices[0].quarantined_zones), (Some(Version(1)), 0));
}

#[test]
fn what_is_given_up_is_counted_by_reason() {
    let (disk, config) = (MemoryDisk::new(), config(1, 8));
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    let dropped = |reason: &str| {
        let by_reason = tier.status().dropped_for;
        by_reason.into_iter().find(|(name, _)| *name == reason).unwrap().1
    };
    store_until_reclaimed(&tier, LENGTH);
    assert!(dropped("room") >= 9 && dropped("error") == 0);
    assert_eq!(store(&tier, b"last", 1, LENGTH), Stored::Yes);
    let place = tier.shared.index.get(&tier.shared.hash(b"last")).unwrap().place;
    let device = &tier.shared.devices.all()[0];
    disk.bad_byte.store(device.offset(place.zone.zone(), place.block + 1), Ordering::Relaxed);
    assert_eq!(tier.read(b"last", Version(1), ByteCount(LENGTH as u64)), Err(Missed::Failed));
    assert!((1..=20).contains(&dropped("error")), "those of its zone");
    tier.remove_disk(std::path::Path::new("disk 0"), true).unwrap();
    assert!(dropped("disk") > 0 && tier.records() == 0);
}

/// The writer has no time for it before its zone is void, and a start would find what it was before.
#[test]
fn what_was_stored_again_does_not_come_back_as_it_was_with_a_kill_while_reclaim_moves_it() {
    let directory = tempfile::tempdir().unwrap();
    let config = SsdConfig { intents: Some(directory.path().join("intents")), ..config(1, 12) };
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    let device = Arc::clone(&tier.shared.devices.all()[0]);
    let zone_of = |key: &[u8]| tier.shared.index.get(&tier.shared.hash(key)).unwrap().place.zone.zone();
    assert_eq!(store(&tier, b"key", 1, LENGTH), Stored::Yes);
    let mut number = 0;
    let mut fill = || {
        number += 1;
        assert_eq!(store(&tier, &key(number), 1, LENGTH), Stored::Yes);
        zone_of(&key(number))
    };
    while fill() == 0 {}
    assert_eq!(store_put(&tier, Put { uses: 1, ..put_of(b"key", 1, LENGTH) }), Ok(Stored::Yes));
    assert_eq!(zone_of(b"key"), 1);
    while fill() == 1 {}
    // From the next zone on the writer waits for its blocks.
    disk.holds_allocations.store(true, Ordering::Relaxed);
    (0..20).for_each(|number| tier.put(put_of(&key(1000 + number), 1, LENGTH), |_| ()).unwrap());
    thread::scope(|scope| {
        // As when it waits for the zone that is taken back.
        scope.spawn(|| device.wait_for_free_zone(99, Duration::from_secs(3)));
        let entries = tier.shared.entries_in(&device, 1).unwrap();
        let emptied = tier.shared.empty_zone(&device, 1, &entries);
        assert!(!emptied.is_held_up && device.end_reading(1, Duration::from_secs(20)));
        tier.shared.free_zone(&device, 1, &emptied.stood, DroppedFor::Room).unwrap();
    });
    let killed = MemoryDisk::holding(disk.content.lock().clone());
    let found = tier_on(&[killed], &config);
    recover(&found);
    assert_eq!(found.holds(b"key"), None);
    disk.holds_allocations.store(false, Ordering::Relaxed);
}

/// What stands on a disk that is being emptied is older than all removals of the other one, which are kept.
#[test]
fn zones_are_taken_back_though_all_were_used_while_names_came_and_their_removals_are_kept() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let config = config(2, 8);
    let (tier, _) = running(&disks, &config);
    assert_eq!(store(&tier, b"old", 1, LENGTH), Stored::Yes);
    assert_eq!(tier.shared.disks_of(tier.shared.hash(b"old")), [0]);
    drop(tier);
    let tier = tier_on(&disks, &config);
    tier.shared.devices.all()[0].is_leaving.store(true, Ordering::Relaxed);
    let mut unnamed = tier.index(&|_| false).unnamed;
    tier.start(Arc::new(Told::default())).unwrap();
    let is_stored = |number: &u64| {
        let is_stored = store(&tier, &key(*number), 1, LENGTH) == Stored::Yes;
        tier.remove(&key(*number), Version(1));
        is_stored
    };
    let stored = (0..200).take_while(is_stored).count();
    assert!((60..200).contains(&stored), "{stored} find room");
    while tier.next_unnamed(&mut unnamed).is_some() {}
    let end = Instant::now() + Duration::from_secs(20);
    while store(&tier, b"later", 1, LENGTH) != Stored::Yes {
        assert!(Instant::now() < end, "no zone is taken back");
    }
}

#[test]
fn a_record_of_a_directory_whose_zone_is_lost_waits_for_another_while_names_come() {
    let (disk, few, more) = (MemoryDisk::new(), config(1, 8), config(1, 9));
    let tier = tier_on(std::slice::from_ref(&disk), &few);
    // No zone is taken back before all have their names.
    let _unnamed = tier.index(&|_| false);
    tier.start(Arc::new(Told::default())).unwrap();
    assert_eq!(store(&tier, &key(0), 1, LENGTH), Stored::Yes);
    assert_eq!(store(&tier, DIRECTORY, 1, 0), Stored::Yes);
    assert!((1..200).any(|number| store(&tier, &key(number), 1, LENGTH) == Stored::Failed));
    drop(tier);
    // The first zone has no footer, and a scan fails at the data of its first record.
    let trailer = usize::try_from(ZONES_START + ZONE.get()).unwrap() - 4096;
    disk.content.lock()[trailer..trailer + 4096].fill(0);
    disk.bad_byte.store(ZONES_START + 2 * 4096, Ordering::Relaxed);
    let tier = tier_on(std::slice::from_ref(&disk), &more);
    let Indexed { summary, early, .. } = tier.index(&|key| key == DIRECTORY);
    assert_eq!((summary.lost_zones, early.len()), (1, 1));
    assert!(tier.own(&early[0], 7) && tier.shared.devices.all()[0].spare_zones() == 1);
    tier.start(Arc::new(Told::default())).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let zone = || tier.shared.index.get(&tier.shared.hash(DIRECTORY)).map(|found| found.place.zone.zone());
    while zone() != Some(8) {
        assert!(zone().is_some() && Instant::now() < end, "it is given up");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_disk_that_reads_nothing_for_a_while_loses_no_zone_that_is_to_be_taken_back() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 12));
    disk.fails_reads.store(true, Ordering::Relaxed);
    let stored = (0..400).take_while(|number| store(&tier, &key(*number), 1, LENGTH) == Stored::Yes).count();
    assert!((1..400).contains(&stored), "{stored} find room");
    assert_eq!(tier.status().devices[0].quarantined_zones, 0);
    disk.fails_reads.store(false, Ordering::Relaxed);
    let end = Instant::now() + Duration::from_secs(20);
    while store(&tier, b"later", 1, LENGTH) != Stored::Yes {
        assert!(Instant::now() < end, "no zone is taken back");
    }
    assert!(is_right(&tier, &key(stored as u64 - 1), 1, LENGTH));
}
