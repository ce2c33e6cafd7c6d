//! Shows that what was moved to another disk, and stands where it stood, too, does not go with that other disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

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

/// What a start finds on copies of disks.
fn found_after(disks: &[Arc<MemoryDisk>], config: &SsdConfig) -> Vec<Vec<u8>> {
    let after: Vec<_> = disks.iter().map(|disk| MemoryDisk::holding(disk.content.lock().clone())).collect();
    recover(&tier_on(&after, config)).0.into_iter().map(|(key, ..)| key).collect()
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
    assert_eq!(found_after(&disks[..1], &config), expected);
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
