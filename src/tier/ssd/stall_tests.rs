//! Shows that a disk which does not answer for a while, or fails for another reason than damage, loses nothing of what
//! stands on it, and brings nothing back that was removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidefs_engine::types::{ByteCount, Version};

use super::format::ZONES_START;
use super::testing::*;
use super::*;

const LIMIT: Duration = Duration::from_secs(20);
/// How long a disk has for an answer where none comes.
const SHORT: Duration = Duration::from_millis(20);
/// The same where every answer is an error: a start asks for six times as long.
const LONGER: Duration = Duration::from_millis(300);
/// Bytes of a record of which three fit into a zone.
const THIRD: usize = 15 * 4096;

/// Has a start scan the second zone, as after a kill.
fn void_trailer(disk: &MemoryDisk) {
    let trailer = usize::try_from(ZONES_START + 2 * ZONE.get()).unwrap() - 4096;
    disk.content.lock()[trailer..trailer + 4096].fill(0);
}

/// A disk with `old`, `b` and `c` in its first zone, `d`, the removal of `old`, `e` and `f` in the second, and `g` in the
/// third, all closed.
fn written(config: &SsdConfig) -> Arc<MemoryDisk> {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), config);
    for key in ["old", "b", "c", "d"] {
        assert_eq!(store(&tier, key.as_bytes(), 1, THIRD), Stored::Yes);
    }
    tier.remove(b"old", Version(1));
    assert!(tier.flush(LIMIT));
    for key in ["e", "f", "g"] {
        assert_eq!(store(&tier, key.as_bytes(), 1, THIRD), Stored::Yes);
    }
    drop(tier);
    disk
}

const ALL: [&str; 6] = ["b", "c", "d", "e", "f", "g"];

/// Has reads of a byte of the second zone fail for another reason than damage.
fn fail_in_second_zone(disk: &MemoryDisk, byte: u64) {
    disk.bad_error.store(libc::EAGAIN, Ordering::Relaxed);
    disk.bad_byte.store(ZONES_START + ZONE.get() + byte, Ordering::Relaxed);
}

fn runs_after(tier: &SsdTier) {
    tier.start(Arc::new(Told::default())).unwrap();
    assert!(tier.flush(LIMIT));
}

#[test]
fn a_disk_that_stalls_while_the_index_is_built_and_goes_on_is_read_as_a_whole() {
    let config = config(1, 12);
    let disk = written(&config);
    let config = SsdConfig { limit: Duration::from_secs(1), ..config };
    let tier = tier_on(std::slice::from_ref(&disk), &config);
    disk.hangs.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Longer than a footer is waited for, and what is scanned then.
            std::thread::sleep(Duration::from_millis(1200));
            disk.hangs.store(false, Ordering::Relaxed);
        });
        let Indexed { summary, .. } = tier.index(&|_| false);
        assert_eq!((summary.lost_zones, tier.records()), (0, ALL.len()));
    });
}

#[test]
fn a_disk_that_does_not_answer_while_the_index_is_built_is_found_whole_by_the_next_start() {
    let config = config(1, 12);
    let disk = written(&config);
    let late = SsdConfig { limit: SHORT, ..config.clone() };
    let tier = tier_on(std::slice::from_ref(&disk), &late);
    disk.hangs.store(true, Ordering::Relaxed);
    let Indexed { summary, .. } = tier.index(&|_| false);
    assert_eq!((summary.lost_zones, tier.records()), (3, 0));
    disk.hangs.store(false, Ordering::Relaxed);
    runs_after(&tier);
    assert_eq!(tier.status().devices[0].quarantined_zones, 3);
    // What is stored and removed meanwhile counts over what nobody read.
    assert_eq!(store(&tier, b"e", 2, 5000), Stored::Yes);
    tier.remove(b"e", Version(2));
    assert_eq!(store(&tier, b"f", 3, 5000), Stored::Yes);
    tier.remove(b"g", Version(4));
    assert!(tier.flush(LIMIT));
    drop(tier);
    let tier = tier_on(&[disk], &config);
    let (found, summary) = recover(&tier);
    let expected = [(b"b", 1, THIRD), (b"c", 1, THIRD), (b"d", 1, THIRD), (b"f", 3, 5000)];
    assert_eq!(found, expected.map(|(key, version, length)| (key.to_vec(), version, length as u64)));
    assert_eq!(summary.lost_zones, 0);
}

#[test]
fn a_zone_that_is_late_at_a_start_keeps_its_records_and_its_removals() {
    let config = SsdConfig { limit: LONGER, ..config(1, 12) };
    // In the header, which says in which life the zone is, and in the data of `d`, which a scan reads.
    for byte in [0, 2 * 4096] {
        let disk = written(&config);
        void_trailer(&disk);
        fail_in_second_zone(&disk, byte);
        let tier = tier_on(std::slice::from_ref(&disk), &config);
        assert_eq!(keys_of(&tier), ["b", "c", "g"], "byte {byte}");
        assert_eq!(tier.holds(b"old"), None, "byte {byte}");
        disk.bad_byte.store(u64::MAX, Ordering::Relaxed);
        runs_after(&tier);
        drop(tier);
        assert_eq!(found_on(disk.content.lock().clone(), &config), ALL, "byte {byte}");
    }
}

#[test]
fn what_is_older_than_removals_that_were_not_read_in_time_is_served_by_the_next_start() {
    let config = SsdConfig { limit: LONGER, ..config(1, 12) };
    let disk = written(&config);
    void_trailer(&disk);
    // The block of the removal, behind the header and one record.
    let block = (1..64_u64)
        .find(|block| {
            let at = usize::try_from(ZONES_START + ZONE.get() + block * 4096).unwrap();
            &disk.content.lock()[at..at + 5] == b"TDSDT"
        })
        .unwrap();
    fail_in_second_zone(&disk, block * 4096);
    let tier = tier_on(std::slice::from_ref(&disk), &config);
    assert_eq!(keys_of(&tier), ["g"]);
    disk.bad_byte.store(u64::MAX, Ordering::Relaxed);
    runs_after(&tier);
    drop(tier);
    assert_eq!(found_on(disk.content.lock().clone(), &config), ALL);
}

#[test]
fn a_zone_that_is_late_when_it_is_to_be_taken_back_stays_and_another_one_goes() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 12));
    // In the first zone.
    for key in ["a", "b", "c"] {
        assert_eq!(store(&tier, key.as_bytes(), 1, THIRD), Stored::Yes);
    }
    // Its footer, and what a scan reads first.
    disk.bad_error.store(libc::EAGAIN, Ordering::Relaxed);
    disk.bad_byte.store(ZONES_START + 4096, Ordering::Relaxed);
    let footer = usize::try_from(ZONES_START).unwrap() + (1 + 3 * 16) * 4096;
    assert_eq!(store(&tier, b"next", 1, THIRD), Stored::Yes);
    assert_eq!(&disk.content.lock()[footer..footer + 5], b"TDSDF");
    disk.content.lock()[footer] = 0;
    store_until_reclaimed(&tier, THIRD);
    assert_eq!(tier.status().devices[0].quarantined_zones, 0);
    assert!(["a", "b", "c"].iter().all(|key| tier.holds(key.as_bytes()).is_some()));
}

#[test]
fn a_record_that_is_late_when_its_zone_is_to_be_taken_back_is_not_dropped_with_it() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 12));
    assert_eq!(store_put(&tier, Put { uses: 1, ..put_of(b"used", 1, THIRD) }), Ok(Stored::Yes));
    disk.bad_error.store(libc::EAGAIN, Ordering::Relaxed);
    disk.bad_byte.store(ZONES_START + 2 * 4096, Ordering::Relaxed);
    store_until_reclaimed(&tier, THIRD);
    assert_eq!(tier.status().devices[0].quarantined_zones, 0);
    disk.bad_byte.store(u64::MAX, Ordering::Relaxed);
    assert!(is_right(&tier, b"used", 1, THIRD));
}

#[test]
fn a_disk_that_reads_nothing_for_a_while_loses_no_zone_to_who_loads_nor_to_names() {
    let config = config(1, 12);
    let disk = written(&config);
    let tier = tier_on(std::slice::from_ref(&disk), &config);
    let mut unnamed = tier.index(&|_| false).unnamed;
    tier.start(Arc::new(Told::default())).unwrap();
    disk.fails_reads.store(true, Ordering::Relaxed);
    let is_told = || {
        assert_eq!(tier.read(b"b", Version(1), ByteCount(THIRD as u64)), Err(Missed::Failed));
        matches!(tier.status().devices[0].trouble, Some(Unusable::Failing(_)))
    };
    assert!((0..100).any(|_| is_told()));
    std::thread::sleep(super::load::ASIDE * 2);
    let trouble = tier.status().devices.remove(0).trouble;
    assert!(matches!(trouble, Some(Unusable::Failing(_))), "nobody loads, and it is said to be {trouble:?}");
    assert_eq!(tier.next_unnamed(&mut unnamed), Some(Vec::new()));
    disk.fails_reads.store(false, Ordering::Relaxed);
    let mut told = 0;
    while let Some(standing) = tier.next_unnamed(&mut unnamed) {
        told += standing.iter().filter(|one| tier.own(one, 7)).count();
    }
    assert_eq!((told, tier.status().devices[0].quarantined_zones), (ALL.len(), 0));
    let end = Instant::now() + LIMIT;
    while !is_right(&tier, b"b", 1, THIRD) {
        assert!(Instant::now() < end, "it is asked for nothing any more");
        std::thread::sleep(SHORT);
    }
}

#[test]
fn a_disk_that_reads_again_right_after_an_error_loses_no_zone() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 12));
    assert_eq!(store(&tier, b"a", 1, THIRD), Stored::Yes);
    disk.failing_reads.store(1, Ordering::Relaxed);
    assert_eq!(tier.read(b"a", Version(1), ByteCount(THIRD as u64)), Err(Missed::Failed));
    assert_eq!(tier.status().devices[0].quarantined_zones, 0);
    assert!(is_right(&tier, b"a", 1, THIRD));
}

#[test]
fn a_load_of_a_disk_that_takes_long_to_fail_asks_it_no_more_when_its_time_is_over() {
    let config = SsdConfig { limit: LONGER, ..config(1, 12) };
    let disk = written(&config);
    // Nobody else reads.
    let tier = tier_on(std::slice::from_ref(&disk), &config);
    recover(&tier);
    disk.failing_takes.store(200, Ordering::Relaxed);
    disk.failing_reads.store(u64::MAX, Ordering::Relaxed);
    let before = disk.reads.load(Ordering::Relaxed);
    assert_eq!(tier.read(b"b", Version(1), ByteCount(THIRD as u64)), Err(Missed::Failed));
    let reads = disk.reads.load(Ordering::Relaxed) - before;
    assert!(reads <= 2, "{reads}: the record, and at most one superblock");
    assert!(matches!(tier.status().devices[0].trouble, Some(Unusable::Failing(_))));
    assert_eq!(tier.status().devices[0].quarantined_zones, 0);
}

#[test]
fn what_stands_on_a_disk_that_reads_nothing_is_found_when_it_reads_again() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 12));
    assert_eq!(store(&tier, b"a", 1, THIRD), Stored::Yes);
    disk.fails_reads.store(true, Ordering::Relaxed);
    assert_eq!(tier.read(b"a", Version(1), ByteCount(THIRD as u64)), Err(Missed::Failed));
    // What leaves memory meanwhile does not take it along for ever.
    assert!(tier.has_settled(b"a", Version(1)));
    // Nor is what is stored once more refused, which would.
    assert_eq!(store_put(&tier, put_of(b"a", 1, THIRD)), Ok(Stored::Yes));
    assert_eq!(store(&tier, b"new", 2, THIRD), Stored::Yes);
    disk.fails_reads.store(false, Ordering::Relaxed);
    // It is left alone for a moment.
    let end = Instant::now() + LIMIT;
    while !is_right(&tier, b"a", 1, THIRD) {
        assert!(Instant::now() < end, "it is not found any more");
        std::thread::sleep(SHORT);
    }
}

#[test]
fn what_stands_on_a_disk_that_reads_nothing_is_stored_on_another_and_removed_from_both() {
    let (disks, config) = ([MemoryDisk::new(), MemoryDisk::new()], config(2, 12));
    let (tier, _) = running(&disks, &config);
    assert_eq!(store(&tier, b"a", 1, THIRD), Stored::Yes);
    let unread = tier.disk_of(b"a").unwrap();
    let disk = &disks[usize::from(unread)];
    disk.fails_reads.store(true, Ordering::Relaxed);
    assert_eq!(tier.read(b"a", Version(1), ByteCount(THIRD as u64)), Err(Missed::Failed));
    for key in [&b"a"[..], b"new", b"newer"] {
        assert_eq!(store(&tier, key, 1, THIRD), Stored::Yes);
        assert!(tier.disk_of(key).is_some_and(|disk| disk != unread) && is_right(&tier, key, 1, THIRD));
        assert!(tier.has_settled(key, Version(1)));
    }
    disk.fails_reads.store(false, Ordering::Relaxed);
    disk.keeps_log.store(true, Ordering::Relaxed);
    tier.remove(b"a", Version(1));
    assert!(tier.flush(LIMIT));
    let is_write = |logged: &Logged| matches!(logged, Logged::Write { .. });
    assert!(disk.log.lock().iter().any(is_write), "its removal stands where its first record does");
    drop(tier);
    assert_eq!(keys_of(&tier_on(&disks, &config)), ["new", "newer"]);
}

#[test]
fn a_disk_that_reads_nothing_while_the_index_is_built_is_found_whole_by_the_next_start() {
    let config = config(1, 12);
    let disk = written(&config);
    let tier = tier_on(std::slice::from_ref(&disk), &config);
    disk.fails_reads.store(true, Ordering::Relaxed);
    let before = disk.reads.load(Ordering::Relaxed);
    let Indexed { summary, .. } = tier.index(&|_| false);
    assert_eq!((summary.lost_zones, tier.records()), (3, 0));
    let reads = disk.reads.load(Ordering::Relaxed) - before;
    assert!(reads <= 3 * 4, "{reads}: of each zone the footer and a scan, and two superblocks");
    disk.fails_reads.store(false, Ordering::Relaxed);
    runs_after(&tier);
    drop(tier);
    assert_eq!(found_on(disk.content.lock().clone(), &config), ALL);
}

#[test]
fn a_record_for_which_a_disk_has_no_room_after_all_fails_alone() {
    let config = config(1, 12);
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        let disk = MemoryDisk::new();
        let (tier, told) = running(std::slice::from_ref(&disk), &config);
        assert_eq!(store(&tier, b"before", 1, 9000), Stored::Yes);
        disk.next_write_error.store(errno, Ordering::Relaxed);
        assert_eq!(store(&tier, b"failed", 1, 9000), Stored::Failed);
        assert_eq!(store(&tier, b"later", 1, 9000), Stored::Yes);
        assert!(is_right(&tier, b"before", 1, 9000) && is_right(&tier, b"later", 1, 9000), "{errno}");
        assert_eq!(*told.0.lock(), [], "{errno}");
        let device = tier.status().devices.remove(0);
        assert_eq!((device.write_errors, device.quarantined_zones, device.trouble), (1, 0, None), "{errno}");
        assert_eq!(found_on(disk.content.lock().clone(), &config), ["before", "later"], "{errno}");
    }
}

#[test]
fn records_that_find_no_room_together_do_not_cost_the_disk() {
    let config = config(1, 12);
    let disk = MemoryDisk::new();
    let tier = tier_on(std::slice::from_ref(&disk), &config);
    recover(&tier);
    disk.is_full.store(true, Ordering::Relaxed);
    let (sender, receiver) = std::sync::mpsc::sync_channel(5);
    for version in 1..6_u64 {
        let sender = sender.clone();
        let put = put_of(&version.to_le_bytes(), version, 9000);
        tier.put(put, move |stored| sender.send(stored).unwrap()).unwrap();
    }
    // They are all left to its writer, which begins them before it waits for the first.
    tier.start(Arc::new(Told::default())).unwrap();
    assert!((0..5).all(|_| receiver.recv_timeout(LIMIT) == Ok(Stored::Failed)));
    disk.is_full.store(false, Ordering::Relaxed);
    assert_eq!(store(&tier, b"later", 9, 9000), Stored::Yes);
    let device = tier.status().devices.remove(0);
    assert_eq!((device.write_errors, device.quarantined_zones, device.trouble), (1, 0, None));
    assert_eq!(found_on(disk.content.lock().clone(), &config), ["later"]);
}

#[test]
fn names_that_an_error_of_the_way_to_the_disk_holds_up_come_later() {
    let config = config(1, 12);
    let disk = written(&config);
    let tier = tier_on(std::slice::from_ref(&disk), &config);
    let mut unnamed = tier.index(&|_| false).unnamed;
    let footer = (1 + 3 * 16) * 4096;
    disk.bad_error.store(libc::EAGAIN, Ordering::Relaxed);
    disk.bad_byte.store(ZONES_START + footer, Ordering::Relaxed);
    assert_eq!(tier.next_unnamed(&mut unnamed), Some(Vec::new()));
    disk.bad_byte.store(u64::MAX, Ordering::Relaxed);
    let mut told = 0;
    while let Some(standing) = tier.next_unnamed(&mut unnamed) {
        told += standing.iter().filter(|one| tier.own(one, 7)).count();
    }
    assert_eq!((told, tier.status().devices[0].quarantined_zones), (ALL.len(), 0));
    assert!(is_right(&tier, b"b", 1, THIRD));
}
