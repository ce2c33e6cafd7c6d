//! Shows that what was moved to another disk, and stands where it stood, too, does not go with that other disk, and does not come
//! back when nobody knows it any more.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use super::disk::Disk;
use super::testing::*;
use super::*;

const LIMIT: Duration = Duration::from_secs(20);
const LENGTH: usize = 9000;

fn first() -> &'static Path {
    Path::new("disk 0")
}

fn second() -> &'static Path {
    Path::new("disk 1")
}

/// Two zones are not enough for them.
fn keys() -> impl Iterator<Item = [u8; 1]> {
    (0..40_u8).map(|number| [number])
}

fn are_right(tier: &SsdTier) -> bool {
    keys().all(|key| is_right(tier, &key, 5, LENGTH))
}

/// Has a record read, and left to another disk's writer, as by who empties its own.
fn begin_to_move(tier: &SsdTier, key: &[u8], to: u8) -> Receiver<Stored> {
    let shared = &tier.shared;
    let place = shared.index.get(&shared.hash(key)).unwrap().place;
    let memory = Memory::Buffer(Arc::new(Buffer::zeroed(LENGTH)));
    let facts = shared.load_from(place, ByteCount(LENGTH as u64), &memory, ReadFor::Again).unwrap();
    let (from, to) = (shared.devices.of(place).unwrap(), shared.devices.get(to).unwrap());
    shared.rewrite(&from, &to, place, &facts).unwrap()
}

/// All objects on the first of two disks.
fn on_first(config: &SsdConfig) -> (SsdTier, Arc<Told>, [Arc<MemoryDisk>; 2]) {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let (tier, told) = running(&disks[..1], config);
    keys().for_each(|key| assert_eq!(store(&tier, &key, 5, LENGTH), Stored::Yes));
    let other = Arc::clone(&disks[1]) as Arc<dyn Disk>;
    tier.add_disk("disk 1".to_owned(), other, config.capacity).unwrap();
    (tier, told, disks)
}

/// Has the first object of the first disk move, and no more. Returns its key.
fn move_one(tier: &SsdTier) -> [u8; 1] {
    let slowly = Some(ByteCount(1));
    let drained = tier.drain(first(), slowly, &mut |drained| drained.moved_bytes == 0).unwrap();
    assert_eq!(drained.moved, 1);
    keys().find(|key| tier.disk_of(key) == Some(1)).unwrap()
}

/// Has a record go for room, and its key be removed when nobody knows it any more. Returns whether all that is durable.
fn drop_and_remove(tier: &SsdTier, key: &[u8; 1]) -> bool {
    tier.shared.drop_record(&tier.shared.hash(key), DroppedFor::Room, |_| true);
    assert_eq!(tier.holds(key), None);
    tier.remove(key, Version(9));
    tier.flush(LIMIT)
}

#[test]
fn what_was_moved_and_dropped_after_its_drain_was_ended_does_not_come_back() {
    let (one, both) = (config(1, 20), config(2, 20));
    let ways: [fn(&SsdTier, &[u8; 1]); 3] = [
        |_, _| (),
        // With other attributes.
        |tier, key| assert_eq!(store(tier, key, 5, LENGTH), Stored::Yes),
        // As when its zone is taken back there.
        |tier, key| assert_eq!(begin_to_move(tier, key, 1).recv_timeout(LIMIT), Ok(Stored::Yes)),
    ];
    for way in ways {
        let (tier, _, disks) = on_first(&one);
        let moved = move_one(&tier);
        way(&tier, &moved);
        assert!(drop_and_remove(&tier, &moved));
        let expected: Vec<_> = keys().filter(|key| *key != moved).map(|key| key.to_vec()).collect();
        assert_eq!(found_on_all(&disks, &both), expected);
    }
}

#[test]
fn what_was_stored_again_elsewhere_and_dropped_there_does_not_come_back_from_where_it_stood() {
    let (one, both, key) = (config(1, 20), config(2, 20), [0_u8]);
    for is_failing in [false, true] {
        let (tier, _, disks) = on_first(&one);
        if is_failing {
            take_no_writes(&tier, &disks, 0);
        } else {
            tier.drain(first(), None, &mut |_| false).unwrap();
        }
        assert_eq!(store(&tier, &key, 5, LENGTH), Stored::Yes);
        assert_eq!(tier.disk_of(&key), Some(1));
        assert_eq!(drop_and_remove(&tier, &key), !is_failing);
        assert!(!found_on_all(&disks, &both).contains(&key.to_vec()), "failing: {is_failing}");
    }
}

/// No zone of a disk that takes no writes can be made void.
#[test]
fn what_was_moved_out_of_a_zone_that_is_given_up_and_dropped_does_not_come_back_from_there() {
    let (one, both) = (config(1, 20), config(2, 20));
    let (tier, _, disks) = on_first(&one);
    let device = Arc::clone(&tier.shared.devices.all()[0]);
    take_no_writes(&tier, &disks, 0);
    let (_, zone) = device.closed_by_age()[0];
    let moved = move_one(&tier);
    assert_eq!(tier.shared.homes.disk_of(&tier.shared.hash(&moved)), Some(0));
    tier.shared.quarantine(&device, zone);
    assert_eq!((tier.disk_of(&moved), tier.shared.homes.disk_of(&tier.shared.hash(&moved))), (Some(1), None));
    // The disk that takes no writes has its removals on the other one.
    assert!(!drop_and_remove(&tier, &moved));
    assert!(SsdTier::flush_disks(&tier.shared.devices.all()[1..], LIMIT));
    assert!(!device.is_outdated.load(Ordering::Relaxed));
    let found = found_on_all(&disks, &both);
    assert!(!found.contains(&moved.to_vec()) && found.len() > 1, "{found:?}");
}

/// It comes to its new disk when that version, or a later one, was stored on a third. Each disk is looked at alone: removals on
/// the others go with their zones.
#[test]
fn what_was_replaced_while_it_was_moved_does_not_come_back_when_that_is_dropped() {
    let (config, key) = (config(3, 20), [0_u8]);
    for version in [5, 6] {
        let disks = [(); 3].map(|()| MemoryDisk::new());
        let (tier, _) = running(&disks, &config);
        assert_eq!(store(&tier, &key, 5, LENGTH), Stored::Yes);
        tier.drain(first(), None, &mut |_| false).unwrap();
        // Opens a zone on the second disk.
        assert_eq!(store(&tier, b"before", 1, LENGTH), Stored::Yes);
        assert_eq!((tier.disk_of(&key), tier.disk_of(b"before")), (Some(0), Some(1)));
        disks[1].hangs_writes.store(true, Ordering::Relaxed);
        let moved = begin_to_move(&tier, &key, 1);
        let end = Instant::now() + LIMIT;
        while disks[1].held.lock().is_empty() {
            assert!(Instant::now() < end, "it is not being written");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(store(&tier, &key, version, LENGTH), Stored::Yes);
        assert_eq!(tier.disk_of(&key), Some(2));
        disks[1].let_go();
        assert_eq!(moved.recv_timeout(LIMIT), Ok(Stored::Superseded));
        assert!(drop_and_remove(&tier, &key));
        for disk in &disks[..2] {
            let found = found_on_all(std::slice::from_ref(disk), &config);
            assert!(!found.contains(&key.to_vec()), "version {version}");
        }
    }
}

/// That is what is asked for when what was moved to a disk is not durable there.
#[test]
fn what_was_moved_to_a_disk_that_is_taken_out_by_force_stands_where_it_stood() {
    let config = config(1, 20);
    let (tier, told, disks) = on_first(&config);
    disks[1].fails_flushes.store(true, Ordering::Relaxed);
    let stuck = tier.drain(first(), None, &mut |_| true);
    assert!(matches!(stuck, Err(ChangeError::Stuck(_))), "{stuck:?}");
    assert!(keys().any(|key| tier.disk_of(&key) == Some(1)));
    tier.remove_disk(second(), true).unwrap();
    assert_eq!(*told.0.lock(), []);
    assert!(are_right(&tier));
    let expected: Vec<_> = keys().map(|key| key.to_vec()).collect();
    assert_eq!(found_on_all(&disks[..1], &config), expected);
}

/// As when who empties its disk waits for it no more.
#[test]
fn what_is_on_its_way_to_a_disk_that_is_taken_out_stands_where_it_stood() {
    let (tier, told, disks) = on_first(&config(1, 20));
    tier.drain(first(), None, &mut |_| false).unwrap();
    disks[1].hangs_writes.store(true, Ordering::Relaxed);
    let moved = begin_to_move(&tier, &[0], 1);
    let device = tier.shared.devices.get(1).unwrap();
    std::thread::scope(|scope| {
        let taken_out = scope.spawn(|| tier.remove_disk(second(), false));
        while !device.queue.is_closed() && !taken_out.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        disks[1].let_go();
        taken_out.join().unwrap().unwrap();
    });
    assert_eq!(moved.recv_timeout(LIMIT), Ok(Stored::Yes));
    assert_eq!(*told.0.lock(), []);
    assert!(are_right(&tier));
}
