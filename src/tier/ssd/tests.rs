//! Shows what the tier promises as a whole, on disks in memory and on files.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidefs_engine::types::{ByteCount, Version};

use super::testing::*;
use super::*;

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn what_is_stored_is_loaded_and_found_by_the_next_start() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let config = config(2, 20);
    let (tier, _) = running(&disks, &config);
    for number in 0..60_u8 {
        assert_eq!(store(&tier, &[number], 5, usize::from(number) * 700), Stored::Yes);
    }
    assert_eq!(tier.status().objects, 60);
    assert!((0..60_u8).all(|number| is_right(&tier, &[number], 5, usize::from(number) * 700)));
    assert!(
        tier.status().devices.iter().all(|device| device.written > ByteCount::ZERO),
        "one disk has nothing"
    );
    drop(tier);
    let tier = tier_on(&disks, &config);
    let (found, summary) = recover(&tier);
    let expected: Vec<_> = (0..60_u8).map(|number| (vec![number], 5, u64::from(number) * 700)).collect();
    assert_eq!(found, expected);
    assert_eq!((summary.objects, summary.scanned_zones), (60, 0));
    assert!((0..60_u8).all(|number| is_right(&tier, &[number], 5, usize::from(number) * 700)));
}

#[test]
fn a_kill_loses_what_was_under_way_and_nothing_else() {
    let disk = MemoryDisk::new();
    let config = config(1, 20);
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    (1..=30_u8).for_each(|number| assert_eq!(store(&tier, &[number], 1, 9000), Stored::Yes));
    // The disk as it is now, with its zones still open.
    let content = disk.content.lock().clone();
    let after = MemoryDisk::holding(content);
    let tier = tier_on(&[Arc::clone(&after)], &config);
    let (found, summary) = recover(&tier);
    assert_eq!(found.len(), 30);
    assert!(summary.scanned_zones > 0);
    assert!((1..=30_u8).all(|number| is_right(&tier, &[number], 1, 9000)));
    // The scan was written down: the next start reads footers only.
    let tier = tier_on(&[after], &config);
    let (found, summary) = recover(&tier);
    assert_eq!((found.len(), summary.scanned_zones), (30, 0));
}

#[test]
fn what_was_removed_or_replaced_does_not_come_back() {
    let disk = MemoryDisk::new();
    let config = config(1, 20);
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    for key in [b"kept", b"gone", b"newr"] {
        store(&tier, key, 1, 5000);
    }
    tier.remove(b"gone", Version(1));
    assert_eq!(tier.read(b"gone", Version(1), ByteCount(5000)), Err(Missed::Absent));
    store(&tier, b"newr", 2, 6000);
    assert_eq!(tier.read(b"newr", Version(1), ByteCount(5000)), Err(Missed::Absent));
    // Removing a version that was replaced does nothing.
    tier.remove(b"newr", Version(1));
    assert!(tier.flush(LIMIT));
    let after = MemoryDisk::holding(disk.content.lock().clone());
    let (found, _) = recover(&tier_on(&[after], &config));
    assert_eq!(found, [(b"kept".to_vec(), 1, 5000), (b"newr".to_vec(), 2, 6000)]);
    tier.remove(b"newr", Version(2));
    assert!(tier.flush(LIMIT));
    let after = MemoryDisk::holding(disk.content.lock().clone());
    let (found, _) = recover(&tier_on(&[after], &config));
    assert_eq!(found, [(b"kept".to_vec(), 1, 5000)]);
}

#[test]
fn used_bytes_are_those_of_what_can_be_loaded_and_go_with_its_removal() {
    let disk = MemoryDisk::new();
    let config = config(1, 20);
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    let empty = tier.space();
    assert_eq!((empty.capacity, empty.used), (tier.status().devices[0].capacity, ByteCount::ZERO));
    let used = |tier: &SsdTier| tier.space().used;
    // The header takes a block.
    store(&tier, b"stays", 1, 5000);
    assert_eq!(used(&tier), ByteCount(3 * 4096));
    store(&tier, b"goes", 1, 4096);
    store(&tier, b"goes", 2, 3 * 4096);
    assert_eq!(used(&tier), ByteCount((3 + 4) * 4096), "a replaced record counts no more");
    tier.remove(b"goes", Version(2));
    assert_eq!(tier.space(), SsdSpace { used: ByteCount(3 * 4096), ..empty }, "at once");
    assert!(tier.flush(LIMIT));
    let after = tier_on(&[MemoryDisk::holding(disk.content.lock().clone())], &config);
    recover(&after);
    assert_eq!(used(&after), ByteCount(3 * 4096), "after a restart");
}

#[test]
fn a_removal_that_is_not_on_disk_yet_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let disk = MemoryDisk::new();
    let mut config = config(1, 20);
    config.intents = Some(directory.path().join("intents"));
    drop({
        let (tier, _) = running(std::slice::from_ref(&disk), &config);
        store(&tier, b"key", 1, 5000);
        tier
    });
    // A daemon whose writer never comes to write anything, as one that is killed at once.
    let tier = tier_on(std::slice::from_ref(&disk), &config);
    assert_eq!(recover(&tier).0.len(), 1);
    tier.remove(b"key", Version(1));
    drop(tier);
    let tier = tier_on(std::slice::from_ref(&disk), &config);
    let (found, summary) = recover(&tier);
    assert_eq!((found.len(), summary.objects, tier.holds(b"key")), (0, 0, None));
    tier.start(Arc::new(Told::default())).unwrap();
    assert!(tier.flush(LIMIT));
    drop(tier);
    // It is on disk now, and not only in the file.
    assert_eq!(std::fs::metadata(config.intents.take().unwrap()).unwrap().len(), 0);
    assert_eq!(recover(&tier_on(&[disk], &config)).0, []);
}

#[test]
fn zones_are_taken_back_and_what_was_used_stays() {
    let disk = MemoryDisk::new();
    let config = config(1, 8);
    let (tier, told) = running(std::slice::from_ref(&disk), &config);
    let length = 15 * 4096;
    store(&tier, b"used", 1, length);
    for version in 2..200_u64 {
        // While it is moved it may not be had for a moment; it is lost only when it is absent.
        let end = std::time::Instant::now() + LIMIT;
        while !is_right(&tier, b"used", 1, length) {
            let is_there = tier.holds(b"used").is_some() && std::time::Instant::now() < end;
            assert!(is_there, "lost before version {version}");
        }
        assert_eq!(store(&tier, format!("key {version}").as_bytes(), version, length), Stored::Yes);
    }
    let status = tier.status();
    assert!(status.reclaimed_zones > 20, "{}", status.reclaimed_zones);
    assert!(status.devices[0].reinserted > ByteCount::ZERO);
    // Reclaim goes on beside this, and tells a moment after it dropped.
    let end = std::time::Instant::now() + LIMIT;
    while tier.status().objects + told.0.lock().len() as u64 != 199 {
        assert!(std::time::Instant::now() < end, "{} and {}", tier.status().objects, told.0.lock().len());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(disk.content.lock().len() as u64 <= config.capacity.get());
    drop(tier);
    let tier = tier_on(&[disk], &config);
    let (found, _) = recover(&tier);
    assert!(found.iter().any(|(key, ..)| key == b"used"));
    for (key, version, length) in found {
        assert!(is_right(&tier, &key, version, usize::try_from(length).unwrap()), "{version}");
    }
}

#[test]
fn what_must_stay_stays_when_its_zone_is_taken_back_though_nobody_uses_it() {
    let disk = MemoryDisk::new();
    let config = config(1, 8);
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    store(&tier, DIRECTORY, 1, 0);
    for version in 2..200_u64 {
        assert_eq!(store(&tier, &version.to_le_bytes(), version, 15 * 4096), Stored::Yes);
        assert_eq!(tier.holds(DIRECTORY), Some(Version(1)), "lost at version {version}");
        if version % 20 == 0 {
            // Nor is there a moment at which a power cut loses it.
            let after = tier_on(&[MemoryDisk::holding(disk.content.lock().clone())], &config);
            recover(&after);
            assert!(after.holds(DIRECTORY).is_some(), "a cut at version {version}");
        }
    }
    assert!(tier.status().reclaimed_zones > 20);
}

#[test]
fn removed_keys_stay_removed_while_zones_are_taken_back() {
    let disk = MemoryDisk::new();
    let config = config(1, 8);
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    for version in 1..300_u64 {
        let key = format!("key {}", version % 30);
        store(&tier, key.as_bytes(), version, 3 * 4096);
        if version % 3 == 0 {
            tier.remove(key.as_bytes(), Version(version));
        }
        if version % 40 == 0 {
            assert!(tier.flush(LIMIT));
            let after = MemoryDisk::holding(disk.content.lock().clone());
            for (key, found, _) in recover(&tier_on(&[after], &config)).0 {
                assert_ne!(found % 3, 0, "{} came back", String::from_utf8_lossy(&key));
                assert_eq!(tier.holds(&key), Some(Version(found)));
            }
        }
    }
}

#[test]
fn a_damaged_record_is_a_miss_and_is_forgotten() {
    let disk = MemoryDisk::new();
    let config = config(1, 8);
    let (tier, told) = running(std::slice::from_ref(&disk), &config);
    store(&tier, b"key", 7, 9000);
    let needle = data(b"key", 7, 9000);
    {
        let mut content = disk.content.lock();
        let at = content.windows(64).position(|window| window == &needle[..64]).unwrap();
        content[at + 5000] ^= 4;
    }
    assert_eq!(tier.read(b"key", Version(7), ByteCount(9000)), Err(Missed::Corrupt));
    assert_eq!(tier.read(b"key", Version(7), ByteCount(9000)), Err(Missed::Absent));
    assert_eq!(*told.0.lock(), [(7, Version(7))]);
    assert_eq!(tier.status().corrupt_records, 1);
    assert!(tier.flush(LIMIT));
    let after = MemoryDisk::holding(disk.content.lock().clone());
    assert_eq!(recover(&tier_on(&[after], &config)).0, []);
}

/// Its bytes are in memory too, so it goes to the disk again with the version that was removed.
#[test]
fn a_version_that_is_stored_again_after_its_removal_is_found_by_every_later_start() {
    let disk = MemoryDisk::new();
    let config = config(1, 8);
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    let length = 15 * 4096;
    store(&tier, b"first", 1, length);
    store(&tier, b"key", 7, length);
    tier.remove(b"key", Version(7));
    assert!(tier.flush(LIMIT));
    store(&tier, b"key", 7, length);
    let is_found = |disk: &Arc<MemoryDisk>| {
        let after = tier_on(&[MemoryDisk::holding(disk.content.lock().clone())], &config);
        recover(&after);
        after.holds(b"key").is_some()
    };
    assert!(is_found(&disk));
    // Also when the removal is written again, behind the record.
    for version in 10..100_u64 {
        let end = std::time::Instant::now() + LIMIT;
        while !(is_right(&tier, b"key", 7, length) && is_right(&tier, b"first", 1, length)) {
            assert!(tier.holds(b"key").is_some() && std::time::Instant::now() < end, "at version {version}");
        }
        assert_eq!(store(&tier, &version.to_le_bytes(), version, length), Stored::Yes);
        assert!(version % 10 > 0 || is_found(&disk), "at version {version}");
    }
    tier.remove(b"key", Version(7));
    assert!(tier.flush(LIMIT));
    assert!(!is_found(&disk));
}

#[test]
fn a_read_error_gives_up_its_zone_and_only_that() {
    let disk = MemoryDisk::new();
    let config = config(1, 12);
    let (tier, told) = running(std::slice::from_ref(&disk), &config);
    assert!((1..=9_u8).all(|number| store(&tier, &[number], number.into(), 15 * 4096) == Stored::Yes));
    let first_zone = super::format::ZONES_START;
    disk.bad_byte.store(first_zone + 2 * 4096, Ordering::Relaxed);
    assert_eq!(tier.read(&[1], Version(1), ByteCount(15 * 4096)), Err(Missed::Failed));
    disk.bad_byte.store(u64::MAX, Ordering::Relaxed);
    let lost = told.0.lock().len();
    assert!((1..9).contains(&lost), "{lost}");
    assert!(is_right(&tier, &[9], 9, 15 * 4096));
    assert_eq!(tier.status().devices[0].quarantined_zones, 1);
    assert_eq!(tier.status().objects, 9 - lost as u64);
    assert!(tier.flush(LIMIT));
    let after = MemoryDisk::holding(disk.content.lock().clone());
    assert_eq!(recover(&tier_on(&[after], &config)).0.len(), 9 - lost);
}

#[test]
fn a_disk_that_fails_every_write_gets_no_more_and_costs_only_hits() {
    let disk = MemoryDisk::new();
    let config = config(1, 8);
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    store(&tier, b"before", 1, 5000);
    disk.fails_writes.store(true, Ordering::Relaxed);
    let failed = (2..20).find_map(|version| {
        let outcome = store_put(&tier, put_of(b"after", version, 5000));
        assert_ne!(outcome, Ok(Stored::Yes));
        outcome.err()
    });
    assert_eq!(failed, Some(Refused::NoDevice));
    assert!(tier.space().capacity < ByteCount(config.capacity.get() / 2), "nothing is free any more");
    assert!(tier.status().devices[0].trouble.is_some());
}

#[test]
fn a_restart_goes_on_with_the_day_of_the_budget() {
    let directory = tempfile::tempdir().unwrap();
    let disk = MemoryDisk::new();
    let mut config = SsdConfig { days: Some(directory.path().join("days")), ..config(1, 20) };
    config.budget.bytes_per_day = Some(ByteCount::gib(1));
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    assert_eq!(store(&tier, b"key", 1, 40_000), Stored::Yes);
    let day = |tier: &SsdTier| tier.status().devices[0].day.unwrap().written;
    let before = day(&tier);
    assert!(before > ByteCount(40_000));
    drop(tier);
    assert!(day(&running(&[disk], &config).0) >= before);
}

#[test]
fn a_disk_that_is_taken_out_goes_on_with_its_day_when_it_is_added_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = SsdConfig { days: Some(directory.path().join("days")), ..config(1, 20) };
    config.budget.bytes_per_day = Some(ByteCount::gib(1));
    let (tier, _) = running(&[MemoryDisk::new()], &config);
    assert_eq!(store(&tier, b"key", 1, 40_000), Stored::Yes);
    let day = |tier: &SsdTier| tier.status().devices[0].day.unwrap().written;
    let before = day(&tier);
    let place = std::path::Path::new("disk 0");
    tier.remove_disk(place, true).unwrap();
    tier.add_disk("disk 0".to_owned(), MemoryDisk::new(), config.capacity).unwrap();
    assert!(day(&tier) >= before);
    // So it does when that is after a restart.
    tier.remove_disk(place, true).unwrap();
    drop(tier);
    assert!(day(&running(&[MemoryDisk::new()], &config).0) >= before);
}

#[test]
fn a_full_filesystem_or_quota_and_a_file_that_may_not_be_longer_make_the_tier_smaller() {
    for errno in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
        let disk = MemoryDisk::new();
        disk.room.store(super::format::ZONES_START + 5 * ZONE.get(), Ordering::Relaxed);
        disk.room_error.store(errno, Ordering::Relaxed);
        let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 20));
        for version in 1..100_u64 {
            assert_eq!(store(&tier, &version.to_le_bytes(), version, 15 * 4096), Stored::Yes, "{errno}");
        }
        let device = tier.status().devices.remove(0);
        assert!(device.allocated <= ByteCount(super::format::ZONES_START + 5 * ZONE.get()));
        assert_eq!((device.trouble, device.write_errors), (Some(Unusable::Full), 0), "{errno}");
        assert_eq!(tier.space().capacity, ByteCount(5 * ZONE.get()), "what is not to be had is not free");
        assert!(is_right(&tier, &99_u64.to_le_bytes(), 99, 15 * 4096));
    }
}

#[test]
fn an_object_larger_than_a_zone_and_a_long_key_are_refused() {
    let (tier, _) = running(&[MemoryDisk::new()], &config(1, 8));
    let refusal = |put: Put| tier.put(put, |_| ()).unwrap_err();
    assert_eq!(refusal(put_of(b"key", 1, 64 * 4096)), Refused::TooLarge);
    assert_eq!(refusal(put_of(&[1; KEY_BYTES_MAX + 1], 1, 5)), Refused::KeyTooLong);
    assert_eq!(store(&tier, &[1; KEY_BYTES_MAX], 1, 5), Stored::Yes);
    let longest = usize::try_from(tier.longest().get()).unwrap();
    assert_eq!(refusal(put_of(b"key", 1, longest + 1)), Refused::TooLarge);
    let largest = Put { meta: vec![7; META_BYTES_MAX], ..put_of(&[2; KEY_BYTES_MAX], 1, longest) };
    assert_eq!(store_put(&tier, largest), Ok(Stored::Yes));
    assert_eq!(tier.status().refused_large, 3);
    assert_eq!(refusal(Put { is_copy: true, ..put_of(b"key", 1, longest + 1) }), Refused::TooLarge);
    assert_eq!(tier.status().refused_large, 3, "it stays where it is");
}

#[test]
fn without_a_capacity_a_part_of_the_free_space_is_taken_and_a_restart_keeps_it() {
    let directory = tempfile::tempdir().unwrap();
    let held = ByteCount::mib(64);
    let first = open::default_share(directory.path(), ByteCount::ZERO);
    let later = open::default_share(directory.path(), held);
    // What the tier holds is not free any more, and counts all the same; other programs may write meanwhile.
    assert!(first > ByteCount::ZERO);
    assert!(later.saturating_add(ByteCount::mib(512)) > first.saturating_add(ByteCount::mib(48)));
}

#[test]
fn a_segment_goes_to_disk_and_back_into_another() {
    let (tier, _) = running(&[MemoryDisk::new()], &config(1, 8));
    let segment = |length: u64| {
        let file = nix::sys::memfd::memfd_create(c"segment", nix::sys::memfd::MFdFlags::empty()).unwrap();
        let file = std::fs::File::from(file);
        file.set_len(length).unwrap();
        Arc::new(Mapping::new(&file, ByteCount(length)).unwrap())
    };
    let source = segment(10_000);
    source.write_at(0, &data(b"key", 1, 10_000));
    let put = Put { source: Source::Segment(source), ..put_of(b"key", 1, 10_000) };
    assert_eq!(store_put(&tier, put), Ok(Stored::Yes));
    let target = segment(10_000);
    let checksum = tier.load(b"key", Version(1), ByteCount(10_000), &target, ReadFor::Use).unwrap();
    assert_eq!(target.slice(0, 10_000).unwrap(), data(b"key", 1, 10_000));
    assert_eq!(checksum, checksum_of(&data(b"key", 1, 10_000)));
    assert_eq!(tier.load(b"key", Version(2), ByteCount(10_000), &target, ReadFor::Use), Err(Missed::Absent));
}

#[test]
fn a_durable_record_is_stored_only_after_a_flush() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 8));
    disk.keeps_log.store(true, Ordering::Relaxed);
    let put = Put { durable: true, ..put_of(b"key", 1, 5000) };
    assert_eq!(store_put(&tier, put), Ok(Stored::Yes));
    assert!(matches!(disk.log.lock().last(), Some(Logged::Flush)));
}
