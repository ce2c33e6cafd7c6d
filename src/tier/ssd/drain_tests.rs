//! Shows that emptying a disk loses nothing that can still be read on it, whatever the disks do meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidefs_engine::types::Version;

use super::format::ZONES_START;
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
