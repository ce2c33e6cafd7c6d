//! Shows what an error of a disk costs: the records of its zone at most, never a removal, and nothing that was said to be
//! stored later.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use tidefs_engine::types::{ByteCount, Version};

use super::format::ZONES_START;
use super::testing::*;
use super::*;

const LIMIT: Duration = Duration::from_secs(20);
const BLOCK: u64 = 4096;
/// Bytes of a record of which three fit into a zone.
const THIRD: usize = 15 * 4096;

/// A tier with `old`, `b` and `c` in its first zone, and `d` and the removal of `old` in the second, which is open.
fn with_a_removal_in_the_open_zone(disk: &Arc<MemoryDisk>, config: &SsdConfig) -> SsdTier {
    let (tier, _) = running(std::slice::from_ref(disk), config);
    for key in ["old", "b", "c", "d"] {
        assert_eq!(store(&tier, key.as_bytes(), 1, THIRD), Stored::Yes);
    }
    tier.remove(b"old", Version(1));
    assert!(tier.flush(LIMIT));
    tier
}

/// Reads a record whose data gives an error at the first byte behind `block` of the second zone.
fn fail_to_read(tier: &SsdTier, disk: &MemoryDisk, key: &[u8], block: u64) {
    disk.bad_byte.store(ZONES_START + ZONE.get() + block * BLOCK, Ordering::Relaxed);
    assert_eq!(tier.read(key, Version(1), ByteCount(THIRD as u64)), Err(Missed::Failed));
}

#[test]
fn a_removal_outlives_a_read_error_in_its_zone() {
    // Also when the footer is damaged, and the zone's other blocks must say what was removed.
    for is_footer_damaged in [false, true] {
        let (disk, config) = (MemoryDisk::new(), config(1, 12));
        let tier = with_a_removal_in_the_open_zone(&disk, &config);
        for key in ["e", "f", "g"] {
            assert_eq!(store(&tier, key.as_bytes(), 1, THIRD), Stored::Yes);
        }
        if is_footer_damaged {
            // Behind the header, three records and the removal.
            let footer = usize::try_from(ZONES_START + ZONE.get() + (1 + 3 * 16 + 1) * BLOCK).unwrap();
            assert_eq!(&disk.content.lock()[footer..footer + 5], b"TDSDF");
            disk.content.lock()[footer] = 0;
        }
        fail_to_read(&tier, &disk, b"d", 2);
        assert!(tier.flush(LIMIT));
        let content = disk.content.lock().clone();
        assert_eq!(found_on(content, &config), ["b", "c", "g"], "footer damaged: {is_footer_damaged}");
        assert_eq!(tier.status().devices[0].quarantined_zones, 1);
    }
}

#[test]
fn a_removal_outlives_a_zone_that_a_start_cannot_read() {
    let (disk, config) = (MemoryDisk::new(), config(1, 12));
    // As a daemon that was killed leaves it: the zone has no footer, and a scan of it fails at a record's data.
    let _killed = with_a_removal_in_the_open_zone(&disk, &config);
    let after = MemoryDisk::holding(disk.content.lock().clone());
    after.bad_byte.store(ZONES_START + ZONE.get() + 2 * BLOCK, Ordering::Relaxed);
    let tier = tier_on(&[Arc::clone(&after)], &config);
    let (found, summary) = recover(&tier);
    assert_eq!((found.len(), summary.lost_zones, tier.holds(b"old")), (2, 1, None));
    // Its writer does the rest: the next start finds the same.
    tier.start(Arc::new(Told::default())).unwrap();
    assert!(tier.flush(LIMIT));
    let content = after.content.lock().clone();
    assert_eq!(found_on(content, &config), ["b", "c"]);
}

#[test]
fn a_record_of_a_directory_outlives_a_zone_that_a_start_cannot_read() {
    let (disk, config) = (MemoryDisk::new(), config(1, 12));
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    assert_eq!(store(&tier, b"a", 1, THIRD), Stored::Yes);
    assert_eq!(store(&tier, DIRECTORY, 2, 0), Stored::Yes);
    // As a daemon that was killed leaves it: the scan fails at the data of the first record.
    let after = MemoryDisk::holding(disk.content.lock().clone());
    after.bad_byte.store(ZONES_START + 2 * BLOCK, Ordering::Relaxed);
    let tier = tier_on(std::slice::from_ref(&after), &config);
    let Indexed { summary, early, .. } = tier.index(&|key| key == DIRECTORY);
    assert_eq!((summary.lost_zones, early.len(), tier.holds(b"a")), (1, 1, None));
    assert!(tier.own(&early[0], 7));
    tier.start(Arc::new(Told::default())).unwrap();
    assert!(tier.flush(LIMIT));
    assert_eq!(found_on(after.content.lock().clone(), &config), ["directory"]);
}

#[test]
fn a_removal_outlives_a_write_error_in_its_zone() {
    let (disk, config) = (MemoryDisk::new(), config(1, 12));
    let tier = with_a_removal_in_the_open_zone(&disk, &config);
    let mut content = disk.content.lock().clone();
    disk.keeps_log.store(true, Ordering::Relaxed);
    disk.next_write_error.store(libc::EIO, Ordering::Relaxed);
    assert_eq!(store(&tier, b"failed", 1, THIRD), Stored::Failed);
    assert_eq!(store(&tier, b"later", 1, THIRD), Stored::Yes);
    assert!(tier.flush(LIMIT));
    assert_eq!(found_on(disk.content.lock().clone(), &config), ["b", "c", "later"]);
    // After none of the writes is it found, should the daemon be killed there. Blocks are allocated without a write.
    content.resize(disk.content.lock().len(), 0);
    for logged in disk.log.lock().iter() {
        let Logged::Write { offset, bytes } = logged else { continue };
        let at = usize::try_from(*offset).unwrap();
        content[at..at + bytes.len()].copy_from_slice(bytes);
        let found = found_on(content.clone(), &config);
        assert!(found.iter().all(|key| key != "old"), "after a write at {offset}: {found:?}");
    }
}

#[test]
fn a_removal_that_cannot_be_written_costs_nothing_else_in_its_zone() {
    let (disk, config) = (MemoryDisk::new(), config(1, 12));
    let (tier, told) = running(std::slice::from_ref(&disk), &config);
    assert!(["a", "b"].iter().all(|key| store(&tier, key.as_bytes(), 1, THIRD) == Stored::Yes));
    disk.next_write_error.store(libc::EIO, Ordering::Relaxed);
    tier.remove(b"a", Version(1));
    assert!(tier.flush(LIMIT));
    assert_eq!((tier.status().devices[0].write_errors, told.0.lock().len()), (1, 0));
    assert!(is_right(&tier, b"b", 1, THIRD));
    assert_eq!(store(&tier, b"c", 1, THIRD), Stored::Yes);
    drop(tier);
    assert_eq!(found_on(disk.content.lock().clone(), &config), ["b", "c"]);
}

#[test]
fn a_key_that_is_removed_after_its_zone_was_given_up_stays_removed() {
    let (disk, config) = (MemoryDisk::new(), config(1, 12));
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    for key in ["a", "b", "c", "d", "e", "f", "g"] {
        assert_eq!(store(&tier, key.as_bytes(), 1, THIRD), Stored::Yes);
    }
    // The header of its zone cannot be made void.
    disk.next_write_error.store(libc::EIO, Ordering::Relaxed);
    fail_to_read(&tier, &disk, b"d", 2);
    assert!(tier.flush(LIMIT));
    let content = disk.content.lock().clone();
    assert_eq!(found_on(content, &config), ["a", "b", "c", "d", "e", "f", "g"]);
    tier.remove(b"e", Version(1));
    assert!(tier.flush(LIMIT));
    let content = disk.content.lock().clone();
    assert_eq!(found_on(content, &config), ["a", "b", "c", "d", "f", "g"]);
}

#[test]
fn what_is_stored_after_a_read_error_in_the_open_zone_can_be_loaded() {
    // Also when nothing is stored after it.
    for (stored, expected) in [(vec!["y", "z"], vec!["b", "c", "y", "z"]), (vec![], vec!["b", "c"])] {
        let (disk, config) = (MemoryDisk::new(), config(1, 12));
        let tier = with_a_removal_in_the_open_zone(&disk, &config);
        fail_to_read(&tier, &disk, b"d", 2);
        for key in &stored {
            assert_eq!(store(&tier, key.as_bytes(), 1, THIRD), Stored::Yes);
            assert!(is_right(&tier, key.as_bytes(), 1, THIRD), "{key} was stored and cannot be loaded");
        }
        assert!(tier.flush(LIMIT));
        assert_eq!(found_on(disk.content.lock().clone(), &config), expected);
        assert_eq!(tier.status().devices[0].quarantined_zones, 1);
        drop(tier);
        assert_eq!(found_on(disk.content.lock().clone(), &config), expected);
    }
}

/// As a power cut leaves it right after a version was written: the removal of the one before is not there.
#[test]
fn a_replaced_version_does_not_come_back_when_the_later_one_is_dropped() {
    let (disk, config) = (MemoryDisk::new(), config(1, 12));
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    for key in ["key", "b", "c"] {
        assert_eq!(store(&tier, key.as_bytes(), 1, THIRD), Stored::Yes);
    }
    let (sender, receiver) = sync_channel(1);
    let cut = Arc::clone(&disk);
    let put = put_of(b"key", 2, THIRD);
    tier.put(put, move |_| sender.send(cut.content.lock().clone()).unwrap()).unwrap();
    let disk = MemoryDisk::holding(receiver.recv_timeout(LIMIT).unwrap());
    drop(tier);
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    assert_eq!(tier.holds(b"key"), Some(Version(2)));
    assert!(tier.flush(LIMIT));
    let mut content = disk.content.lock().clone();
    let second_zone = usize::try_from(ZONES_START + ZONE.get()).unwrap();
    content[second_zone..][..64].fill(0);
    assert_eq!(found_on(content, &config), ["b", "c"]);
}

/// Two disks, of which the second hangs from the moment on at which the index is complete.
fn with_a_disk_that_hangs() -> (SsdTier, Unnamed) {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let config = SsdConfig { limit: Duration::from_millis(20), ..config(2, 40) };
    let (tier, _) = running(&disks, &config);
    assert!((0..200_u8).all(|number| store(&tier, &[number], 1, 15_000) == Stored::Yes));
    drop(tier);
    let tier = tier_on(&disks, &config);
    let unnamed = tier.index(&|_| false).unnamed;
    disks[1].hangs.store(true, Ordering::Relaxed);
    tier.start(Arc::new(Told::default())).unwrap();
    (tier, unnamed)
}

#[test]
fn a_disk_that_hangs_while_names_come_holds_up_the_others_for_a_while_only() {
    let (tier, mut unnamed) = with_a_disk_that_hangs();
    let (mut told, mut asked) = (0, 0);
    while let Some(standing) = tier.next_unnamed(&mut unnamed) {
        asked += 1;
        assert!(asked < 100, "it is asked without end");
        told += standing.iter().filter(|one| tier.own(one, 7)).count();
    }
    let on_first = tier.shared.index.count_device(0);
    assert!(on_first > 0 && told as u64 == on_first, "{told} of {on_first}");
    // Zones are taken back from here on.
    assert!(tier.shared.is_named.load(Ordering::Relaxed));
}

#[test]
fn a_disk_that_hangs_while_names_come_can_be_removed() {
    let (tier, mut unnamed) = with_a_disk_that_hangs();
    assert_eq!(tier.remove_disk(Path::new("disk 1"), false), Err(ChangeError::Starting));
    tier.remove_disk(Path::new("disk 1"), true).unwrap();
    let mut told = 0;
    while let Some(standing) = tier.next_unnamed(&mut unnamed) {
        told += standing.iter().filter(|one| tier.own(one, 7)).count();
    }
    assert!(told > 0 && told == tier.records());
}

#[test]
fn a_disk_that_takes_no_writes_fails_nothing_that_stands_on_another() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let config = config(2, 12);
    let (tier, _) = running(&disks, &config);
    let keys: Vec<[u8; 1]> = (0..8_u8).map(|number| [number]).collect();
    assert!(keys.iter().all(|key| store(&tier, key, 1, 5000) == Stored::Yes));
    let on = |number: u8, key: &[u8]| tier.shared.disks_of(tier.shared.hash(key)) == [number];
    disks[1].fails_writes.store(true, Ordering::Relaxed);
    disks[1].fails_flushes.store(true, Ordering::Relaxed);
    let first = || keys.iter().filter(|key| on(0, &key[..])).map(|key| &key[..]);
    let second = keys.iter().find(|key| on(1, &key[..])).unwrap();
    assert!(first().count() > 0 && tier.flush_keys(first(), LIMIT));
    for _ in 0..3 {
        assert!(!tier.flush_keys([&second[..]].into_iter(), LIMIT));
    }
    // It is known to fail now: what stands on it is written elsewhere, and is removed from both.
    assert!(!tier.can_keep(second));
    assert_eq!(store(&tier, second, 2, 5000), Stored::Yes);
    assert!(on(0, second) && tier.flush_keys([&second[..]].into_iter(), LIMIT));
    tier.remove(second, Version(2));
    assert!(tier.flush_keys(first(), LIMIT));
    assert!(keys.iter().filter(|key| *key != second).all(|key| is_right(&tier, key, 1, 5000)));
}

#[test]
fn what_reclaim_writes_again_is_durable_before_its_zone_is_void() {
    let (disk, config) = (MemoryDisk::new(), config(1, 8));
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    assert_eq!(store(&tier, b"used", 1, THIRD), Stored::Yes);
    disk.keeps_log.store(true, Ordering::Relaxed);
    for version in 2..100_u64 {
        let end = Instant::now() + LIMIT;
        while !is_right(&tier, b"used", 1, THIRD) {
            assert!(tier.holds(b"used").is_some() && Instant::now() < end, "lost before version {version}");
        }
        assert_eq!(store(&tier, &version.to_le_bytes(), version, THIRD), Stored::Yes);
        // So that reclaim is ahead of the writer, and waits for what it writes again.
        while tier.shared.devices.all()[0].spare_zones() < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(tier.status().devices[0].reinserted > ByteCount::ZERO);
    let used = data(b"used", 1, THIRD);
    let (mut volatile, mut voided) = (false, 0);
    for logged in disk.log.lock().iter() {
        match logged {
            Logged::Flush => volatile = false,
            Logged::Write { offset, bytes } if (offset - ZONES_START).is_multiple_of(ZONE.get()) => {
                let is_void = bytes.iter().all(|&byte| byte == 0);
                assert!(!(is_void && volatile), "zone {} is void", (offset - ZONES_START) / ZONE.get());
                voided += u32::from(is_void);
            }
            Logged::Write { bytes, .. } => volatile |= bytes.ends_with(&used),
        }
    }
    assert!(voided > 10, "{voided} zones were taken back");
}

#[test]
fn a_removal_whose_flush_fails_once_is_flushed_again_and_the_file_of_removals_is_emptied() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("intents");
    let (disk, config) = (MemoryDisk::new(), SsdConfig { intents: Some(path.clone()), ..config(1, 12) });
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    assert_eq!(store(&tier, b"a", 1, THIRD), Stored::Yes);
    disk.fails_flushes.store(true, Ordering::Relaxed);
    tier.remove(b"a", Version(1));
    let end = Instant::now() + LIMIT;
    while tier.status().devices[0].write_errors == 0 {
        assert!(Instant::now() < end, "nothing failed");
    }
    disk.fails_flushes.store(false, Ordering::Relaxed);
    while std::fs::metadata(&path).unwrap().len() > 0 {
        assert!(Instant::now() < end, "it waits for ever");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(tier.status().lost_removals, 0);
    assert!(found_on(disk.content.lock().clone(), &SsdConfig { intents: None, ..config }).is_empty());
}

#[test]
fn an_error_that_is_not_of_the_medium_is_a_miss_for_now_and_costs_no_zone() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 12));
    for key in ["a", "b"] {
        assert_eq!(store(&tier, key.as_bytes(), 1, THIRD), Stored::Yes);
    }
    disk.bad_byte.store(ZONES_START + 2 * BLOCK, Ordering::Relaxed);
    for errno in [libc::EFAULT, libc::ENOMEM, libc::EPIPE, libc::EINTR, libc::EAGAIN] {
        disk.bad_error.store(errno, Ordering::Relaxed);
        assert_eq!(tier.read(b"a", Version(1), ByteCount(THIRD as u64)), Err(Missed::Failed), "{errno}");
    }
    disk.bad_byte.store(u64::MAX, Ordering::Relaxed);
    assert!(is_right(&tier, b"a", 1, THIRD) && is_right(&tier, b"b", 1, THIRD));
    assert_eq!(tier.status().devices[0].quarantined_zones, 0);
}

/// What a life wrote whose zone has no header, since the power went, is not found under the header of a later life.
#[test]
fn what_an_earlier_life_wrote_and_lost_is_not_taken_for_what_a_later_one_wrote() {
    let (disk, config) = (MemoryDisk::new(), config(1, 12));
    drop(running(std::slice::from_ref(&disk), &config));
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    for key in ["lost 1", "lost 2"] {
        assert_eq!(store(&tier, key.as_bytes(), 1, 9000), Stored::Yes);
    }
    let mut cut = disk.content.lock().clone();
    // The header of the zone is not on the disk.
    let zone = usize::try_from(ZONES_START).unwrap();
    cut[zone..zone + 4096].fill(0);
    let disk = MemoryDisk::holding(cut);
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    assert_eq!(store(&tier, b"later", 1, 9000), Stored::Yes);
    assert_eq!(found_on(disk.content.lock().clone(), &config), ["later"]);
}
