//! Shows that emptying a disk loses nothing that can still be read on it, whatever the disks do meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidefs_engine::types::Version;

use super::format::{FooterEntry, ZONES_START};
use super::testing::*;
use super::*;

const LENGTH: usize = 9000;
const BLOCK: u64 = 4096;

fn place() -> &'static Path {
    Path::new("disk 0")
}

fn keys() -> impl Iterator<Item = [u8; 1]> {
    (0..40_u8).map(|number| [number])
}

/// A tier with an object for each key, on all disks.
fn filled(disks: &[Arc<MemoryDisk>], config: &SsdConfig) -> SsdTier {
    let (tier, _) = running(disks, config);
    keys().for_each(|key| assert_eq!(store(&tier, &key, 5, LENGTH), Stored::Yes));
    assert!((0..disks.len()).all(|disk| held(&tier, disk) > 0));
    tier
}

/// Objects on a disk.
fn held(tier: &SsdTier, disk: usize) -> u64 {
    tier.shared.index.count_device(u8::try_from(disk).unwrap())
}

fn are_right(tier: &SsdTier, mut keys: impl Iterator<Item = [u8; 1]>) -> bool {
    keys.all(|key| is_right(tier, &key, 5, LENGTH))
}

/// Has reads of the first record of a disk fail for another reason than damage.
fn be_late_with_the_first(disk: &MemoryDisk) {
    disk.bad_error.store(libc::EAGAIN, Ordering::Relaxed);
    disk.bad_byte.store(ZONES_START + 2 * BLOCK, Ordering::Relaxed);
}

#[test]
fn what_a_disk_is_only_late_with_stays_on_it_and_can_be_moved_later() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let tier = filled(&disks, &SsdConfig { limit: Duration::from_millis(300), ..config(2, 20) });
    be_late_with_the_first(&disks[0]);
    let stuck = tier.drain(place(), None, &mut |_| true);
    assert!(matches!(stuck, Err(ChangeError::Stuck(_))), "{stuck:?}");
    assert!(held(&tier, 0) > 0 && tier.status().devices[0].quarantined_zones == 0);
    disks[0].bad_byte.store(u64::MAX, Ordering::Relaxed);
    let drained = tier.drain(place(), None, &mut |_| true).unwrap();
    assert_eq!((drained.lost, drained.left), (0, 0));
    assert!(are_right(&tier, keys()));
}

#[test]
fn a_drain_goes_on_when_a_disk_that_was_late_answers_again() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let tier = filled(&disks, &config(2, 20));
    let held = held(&tier, 0);
    be_late_with_the_first(&disks[0]);
    let mut reports = 0;
    let drained = tier.drain(place(), None, &mut |_| {
        reports += 1;
        // The first one comes before anything is read.
        if reports > 1 {
            disks[0].bad_byte.store(u64::MAX, Ordering::Relaxed);
        }
        true
    });
    let drained = drained.unwrap();
    assert_eq!((drained.moved, drained.lost, drained.left), (held, 0, 0));
    assert!(are_right(&tier, keys()));
}

/// The keys of the objects on the first disk, in the order in which they were stored.
fn keys_on_first(tier: &SsdTier) -> Vec<[u8; 1]> {
    keys().filter(|key| tier.shared.disks_of(tier.shared.hash(key)) == [0]).collect()
}

#[test]
fn what_another_disk_fails_to_take_once_is_moved_nevertheless() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let tier = filled(&disks, &config(2, 20));
    let on_first = keys_on_first(&tier);
    disks[1].next_write_error.store(libc::EIO, Ordering::Relaxed);
    let drained = tier.drain(place(), None, &mut |_| true).unwrap();
    assert_eq!((drained.moved, drained.lost, drained.left), (on_first.len() as u64, 0, 0));
    assert!(are_right(&tier, on_first.into_iter()));
}

/// What the other disk had taken goes with the zone in which it stands there.
#[test]
fn a_record_that_one_disk_does_not_take_goes_to_another_and_takes_none_along() {
    let disks = [MemoryDisk::new(), MemoryDisk::new(), MemoryDisk::new()];
    let tier = filled(&disks, &config(3, 20));
    let on_first = keys_on_first(&tier);
    *disks[1].refused.lock() = data(&on_first[on_first.len() - 1], 5, LENGTH);
    *disks[2].refused.lock() = data(&on_first[on_first.len() / 2], 5, LENGTH);
    let drained = tier.drain(place(), None, &mut |_| true).unwrap();
    assert_eq!((drained.moved, drained.lost, drained.left), (on_first.len() as u64, 0, 0));
    assert!(are_right(&tier, on_first.into_iter()));
}

#[test]
fn what_no_other_disk_takes_stays_where_it_is_unless_it_is_removed() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let config = config(2, 20);
    let tier = filled(&disks, &config);
    let mut on_first = keys_on_first(&tier);
    disks[1].fails_writes.store(true, Ordering::Relaxed);
    assert_eq!(tier.drain(place(), None, &mut |_| true), Err(ChangeError::NoOther));
    assert_eq!(
        (held(&tier, 0), tier.drain(place(), None, &mut |_| true)),
        (on_first.len() as u64, Err(ChangeError::NoOther))
    );
    assert!(are_right(&tier, on_first.iter().copied()));
    tier.remove(&on_first.remove(0), Version(5));
    assert!(tier.flush(Duration::from_secs(20)));
    let after = MemoryDisk::holding(disks[0].content.lock().clone());
    let found: Vec<_> = recover(&tier_on(&[after], &config)).0.into_iter().map(|(key, ..)| key).collect();
    assert_eq!(found, on_first.iter().map(|key| key.to_vec()).collect::<Vec<_>>());
}

/// Two disks with an object for each key, and removals in all zones. The first takes no writes from now on.
fn with_a_disk_that_takes_no_writes(config: &SsdConfig) -> (SsdTier, [Arc<MemoryDisk>; 2]) {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let (tier, _) = running(&disks, config);
    for key in keys() {
        let removed = [key[0], key[0]];
        assert_eq!(store(&tier, &key, 5, LENGTH), Stored::Yes);
        assert_eq!(store(&tier, &removed, 5, LENGTH), Stored::Yes);
        tier.remove(&removed, Version(5));
        assert!(tier.flush(Duration::from_secs(20)));
    }
    assert!(tier.shared.devices.all()[0].closed_by_age().len() > 1);
    disks[0].fails_writes.store(true, Ordering::Relaxed);
    disks[0].fails_flushes.store(true, Ordering::Relaxed);
    (tier, disks)
}

#[test]
fn a_disk_that_takes_no_writes_is_emptied_and_the_next_start_gives_it_up() {
    let config = config(2, 40);
    let (tier, disks) = with_a_disk_that_takes_no_writes(&config);
    let on_first = keys_on_first(&tier);
    let drained = tier.drain(place(), None, &mut |_| true).unwrap();
    assert_eq!((drained.moved, drained.lost, drained.left), (on_first.len() as u64, 0, 0));
    assert!(held(&tier, 0) == 0 && are_right(&tier, keys()));
    tier.remove(&on_first[0], Version(5));
    assert!(tier.flush_keys([&on_first[1][..]].into_iter(), Duration::from_secs(20)));
    let expected: Vec<_> = keys().filter(|key| *key != on_first[0]).map(|key| key.to_vec()).collect();
    assert_eq!(found_on_all(&disks, &config), expected);
    // The other one has all of it.
    assert_eq!(found_on_all(&disks[1..], &config), expected);
    tier.remove_disk(place(), false).unwrap();
}

#[test]
fn a_daemon_that_dies_while_it_empties_a_disk_that_takes_no_writes_loses_nothing_and_brings_nothing_back() {
    let config = config(2, 40);
    let (tier, disks) = with_a_disk_that_takes_no_writes(&config);
    // It is known to fail; no removal waits for it.
    while !tier.shared.devices.all()[0].is_failing() {
        assert!(!tier.flush(Duration::from_secs(20)));
    }
    let slowly = Some(ByteCount(100_000));
    let drained = tier.drain(place(), slowly, &mut |drained| drained.moved_bytes < 50_000).unwrap();
    assert!(drained.moved > 0 && drained.left > 0, "{drained:?}");
    let expected: Vec<_> = keys().map(|key| key.to_vec()).collect();
    assert_eq!(found_on_all(&disks, &config), expected);
    // It goes on later.
    let drained = tier.drain(place(), None, &mut |_| true).unwrap();
    assert_eq!((drained.lost, drained.left), (0, 0));
    assert_eq!(found_on_all(&disks, &config), expected);
}

#[test]
fn what_is_removed_while_a_disk_that_takes_no_writes_is_emptied_costs_nothing_else_of_it() {
    let config = config(2, 40);
    let (tier, disks) = with_a_disk_that_takes_no_writes(&config);
    while !tier.shared.devices.all()[0].is_failing() {
        assert!(!tier.flush(Duration::from_secs(20)));
    }
    let slowly = Some(ByteCount(100_000));
    let drained = tier.drain(place(), slowly, &mut |drained| drained.moved_bytes < 50_000).unwrap();
    assert!(drained.moved > 0 && drained.left > 1, "{drained:?}");
    let removed = *keys_on_first(&tier).last().unwrap();
    tier.remove(&removed, Version(5));
    // The writer of the disk hands it on, and the other one notes it.
    let others = &tier.shared.devices.all()[1..];
    SsdTier::flush_disks(&tier.shared.devices.all()[..1], Duration::from_secs(20));
    assert!(SsdTier::flush_disks(others, Duration::from_secs(20)));
    let expected: Vec<_> = keys().filter(|key| *key != removed).map(|key| key.to_vec()).collect();
    assert_eq!(found_on_all(&disks, &config), expected);
    // Without that other disk nobody would know of it.
    tier.remove_disk(Path::new("disk 1"), true).unwrap();
    assert!(tier.shared.devices.all()[0].is_outdated.load(Ordering::Relaxed));
}

/// How many removals of the oldest zone of a disk that has some are kept when it is taken back. Older zones are taken back.
fn removals_kept(tier: &SsdTier, disk: usize) -> usize {
    let device = Arc::clone(&tier.shared.devices.all()[disk]);
    loop {
        let (_, zone) = device.closed_by_age()[0];
        let entries = tier.shared.entries_in(&device, zone).unwrap();
        if entries.iter().any(|entry| matches!(entry, FooterEntry::Tombstones(_))) {
            return tier.shared.needed_tombstones(&device, zone, &entries).len();
        }
        assert!(tier.shared.take_back(&device, zone, &entries));
    }
}

#[test]
fn a_disk_that_is_empty_takes_no_removals_and_has_no_other_one_keep_them() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let config = config(2, 20);
    let tier = filled(&disks, &config);
    let on_first = keys_on_first(&tier);
    assert_eq!(tier.drain(place(), None, &mut |_| true).unwrap().left, 0);
    let used = || tier.status().devices[0].used_zones;
    assert_eq!(used(), 0);
    on_first.iter().for_each(|key| tier.remove(key, Version(5)));
    for number in 0..60_u8 {
        let key = [number, 1];
        assert_eq!(store(&tier, &key, 6, LENGTH), Stored::Yes);
        tier.remove(&key, Version(6));
        assert!(tier.flush(Duration::from_secs(20)));
    }
    assert_eq!(used(), 0);
    let expected: Vec<_> = keys().filter(|key| !on_first.contains(key)).map(|key| key.to_vec()).collect();
    assert_eq!(found_on_all(&disks, &config), expected);
    assert_eq!(removals_kept(&tier, 1), 0);
}

#[test]
fn a_disk_that_is_given_up_has_no_other_one_keep_removals() {
    let (tier, _disks) = with_a_disk_that_takes_no_writes(&config(2, 40));
    assert_eq!(tier.drain(place(), None, &mut |_| true).unwrap().left, 0);
    assert!(tier.shared.devices.all()[0].is_outdated.load(Ordering::Relaxed));
    assert_eq!(removals_kept(&tier, 1), 0);
}

#[test]
fn a_removal_after_a_disk_is_given_up_costs_nothing_of_another_that_is_being_emptied() {
    let disks = [MemoryDisk::new(), MemoryDisk::new(), MemoryDisk::new()];
    let config = config(3, 20);
    let tier = filled(&disks, &config);
    let devices = tier.shared.devices.all();
    take_no_writes(&tier, &disks, 0);
    assert_eq!(tier.drain(place(), None, &mut |_| true).unwrap().left, 0);
    take_no_writes(&tier, &disks, 1);
    assert!(tier.drain(Path::new("disk 1"), None, &mut |_| false).unwrap().left > 0);
    let removed = keys().find(|key| tier.disk_of(key) == Some(2)).unwrap();
    tier.remove(&removed, Version(5));
    // The writers of the first two have done what was left for them, and the third notes what they handed on.
    SsdTier::flush_disks(&devices[..2], Duration::from_secs(20));
    assert!(SsdTier::flush_disks(&devices[2..], Duration::from_secs(20)));
    let is_given_up = |disk: usize| devices[disk].is_outdated.load(Ordering::Relaxed);
    assert_eq!([0, 1, 2].map(is_given_up), [true, false, false]);
    let expected: Vec<_> = keys().filter(|key| *key != removed).map(|key| key.to_vec()).collect();
    assert_eq!(found_on_all(&disks, &config), expected);
}

#[test]
fn zones_of_which_all_was_removed_become_void_with_their_disk_and_a_kill_meanwhile_brings_nothing_back() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let config = config(2, 20);
    let tier = filled(&disks, &config);
    let on_first = keys_on_first(&tier);
    on_first.iter().for_each(|key| tier.remove(key, Version(5)));
    assert!(tier.flush(Duration::from_secs(20)));
    let mut content = disks[0].content.lock().clone();
    disks[0].keeps_log.store(true, Ordering::Relaxed);
    let drained = tier.drain(place(), None, &mut |_| true).unwrap();
    assert_eq!((drained, tier.status().devices[0].used_zones), (Drained::default(), 0));
    let expected: Vec<_> = keys().filter(|key| !on_first.contains(key)).map(|key| key.to_vec()).collect();
    let log = disks[0].log.lock().clone();
    assert!(!log.is_empty());
    for logged in log {
        let Logged::Write { offset, bytes } = logged else { continue };
        let at = usize::try_from(offset).unwrap();
        content[at..at + bytes.len()].copy_from_slice(&bytes);
        let killed = [MemoryDisk::holding(content.clone()), Arc::clone(&disks[1])];
        assert_eq!(found_on_all(&killed, &config), expected);
    }
}

/// Drains the first disk, which holds nothing when that has ended, while flushes of the second one fail.
fn empty_without_flushes(tier: &SsdTier, disks: &[Arc<MemoryDisk>; 2]) {
    disks[1].fails_flushes.store(true, Ordering::Relaxed);
    let stuck = tier.drain(place(), None, &mut |_| true);
    assert!(matches!(stuck, Err(ChangeError::Stuck(_))), "{stuck:?}");
    assert_eq!(held(tier, 0), 0);
}

#[test]
fn a_disk_is_neither_called_empty_nor_taken_out_before_what_was_moved_from_it_is_durable() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let config = config(2, 20);
    let (tier, _) = running(&disks, &config);
    // No more than a zone of each disk.
    keys().take(16).for_each(|key| assert_eq!(store(&tier, &key, 5, LENGTH), Stored::Yes));
    let on_first = keys_on_first(&tier);
    assert!(!on_first.is_empty());
    empty_without_flushes(&tier, &disks);
    let again = tier.drain(place(), None, &mut |_| true);
    assert!(matches!(again, Err(ChangeError::Stuck(_))), "{again:?}");
    let refused = tier.remove_disk(place(), false);
    assert!(matches!(refused, Err(ChangeError::Stuck(_))), "{refused:?}");
    // As a power cut leaves it that takes what the other disk had not made durable.
    let expected: Vec<_> = on_first.iter().map(|key| key.to_vec()).collect();
    assert_eq!(found_on_all(&disks[..1], &config), expected);
    disks[1].fails_flushes.store(false, Ordering::Relaxed);
    disks[1].keeps_log.store(true, Ordering::Relaxed);
    tier.remove_disk(place(), false).unwrap();
    assert!(disks[1].log.lock().iter().any(|logged| matches!(logged, Logged::Flush)));
    assert!(are_right(&tier, on_first.into_iter()));
}

#[test]
fn a_disk_that_takes_no_writes_is_not_given_up_before_what_was_moved_from_it_is_durable() {
    let config = config(2, 40);
    let (tier, disks) = with_a_disk_that_takes_no_writes(&config);
    let first = Arc::clone(&tier.shared.devices.all()[0]);
    // It is known to fail, and emptied as a whole.
    while !first.is_failing() {
        assert!(!tier.flush(Duration::from_secs(20)));
    }
    empty_without_flushes(&tier, &disks);
    let again = tier.drain(place(), None, &mut |_| true);
    assert!(matches!(again, Err(ChangeError::Stuck(_))), "{again:?}");
    assert!(!first.is_outdated.load(Ordering::Relaxed));
    disks[1].fails_flushes.store(false, Ordering::Relaxed);
    let drained = tier.drain(place(), None, &mut |_| true).unwrap();
    assert!(drained.left == 0 && first.is_outdated.load(Ordering::Relaxed));
    assert!(are_right(&tier, keys()));
}

#[test]
fn what_was_moved_on_from_a_disk_that_is_taken_out_by_force_is_durable_before_its_first_disk_is_empty() {
    let disks = [MemoryDisk::new(), MemoryDisk::new(), MemoryDisk::new()];
    let (config, key) = (config(1, 20), [0_u8]);
    let (tier, _) = running(&disks[..1], &config);
    assert_eq!(store(&tier, &key, 5, LENGTH), Stored::Yes);
    for number in 1..3_u8 {
        let disk = Arc::clone(&disks[usize::from(number)]) as Arc<dyn super::disk::Disk>;
        tier.add_disk(format!("disk {number}"), disk, config.capacity).unwrap();
        // It is ended before anything is flushed.
        let from = format!("disk {}", number - 1);
        let moved = tier.drain(Path::new(&from), Some(ByteCount(1)), &mut |drained| drained.moved_bytes == 0);
        assert_eq!((moved.unwrap().moved, tier.disk_of(&key)), (1, Some(number)));
    }
    disks[2].fails_flushes.store(true, Ordering::Relaxed);
    tier.remove_disk(Path::new("disk 1"), true).unwrap();
    let stuck = tier.drain(place(), None, &mut |_| true);
    assert!(matches!(stuck, Err(ChangeError::Stuck(_))), "{stuck:?}");
    let refused = tier.remove_disk(place(), false);
    assert!(matches!(refused, Err(ChangeError::Stuck(_))), "{refused:?}");
    disks[2].fails_flushes.store(false, Ordering::Relaxed);
    tier.remove_disk(place(), false).unwrap();
    assert!(is_right(&tier, &key, 5, LENGTH));
}

/// What is in memory too does not move.
#[test]
fn what_is_left_on_a_disk_that_takes_no_writes_does_not_come_back_when_it_is_removed() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let config = config(2, 20);
    let (tier, told) = running(&disks, &config);
    for key in keys() {
        let mut put = put_of(&key, 5, LENGTH);
        put.owner += ELSEWHERE;
        assert_eq!(store_put(&tier, put), Ok(Stored::Yes));
    }
    let on_first = keys_on_first(&tier);
    disks[0].fails_writes.store(true, Ordering::Relaxed);
    disks[0].fails_flushes.store(true, Ordering::Relaxed);
    let drained = tier.drain(place(), None, &mut |_| true).unwrap();
    assert_eq!((drained.moved, drained.in_memory, drained.left), (0, on_first.len() as u64, 0));
    assert_eq!(told.0.lock().len(), on_first.len());
    on_first.iter().for_each(|key| tier.remove(key, Version(5)));
    let expected: Vec<_> = keys().filter(|key| !on_first.contains(key)).map(|key| key.to_vec()).collect();
    assert_eq!(found_on_all(&disks, &config), expected);
}
