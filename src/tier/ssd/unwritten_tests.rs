//! Shows what a record costs that could not be written: itself alone, be it for the disk, the room or its own memory, and who
//! gave it is told when it is let go of.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use tidefs_engine::types::{ByteCount, Version};

use super::format::ZONES_START;
use super::testing::*;
use super::*;

const LIMIT: Duration = Duration::from_secs(20);
/// Bytes of a record of which three fit into a zone.
const THIRD: usize = 15 * 4096;

/// A segment of zeros, and the file that it maps.
fn segment(length: u64) -> (File, Arc<Mapping>) {
    let file = nix::sys::memfd::memfd_create(c"segment", nix::sys::memfd::MFdFlags::empty()).unwrap();
    let file = File::from(file);
    file.set_len(length).unwrap();
    let mapping = Arc::new(Mapping::new(&file, ByteCount(length)).unwrap());
    (file, mapping)
}

/// Leaves an object in a segment to be stored. Tells how that ends, and how often the segment is referenced then.
fn put_segment(tier: &SsdTier, put: Put) -> std::sync::mpsc::Receiver<(Stored, usize)> {
    let (_, mapping) = segment(put.length.get());
    let segment = Arc::downgrade(&mapping);
    let (sender, receiver) = sync_channel(1);
    let put = Put { source: Source::Segment(mapping), ..put };
    tier.put(put, move |stored| sender.send((stored, segment.strong_count())).unwrap()).unwrap();
    receiver
}

#[test]
fn a_segment_is_let_go_of_before_its_owner_is_told() {
    let disk = MemoryDisk::new();
    let tier = tier_on(std::slice::from_ref(&disk), &config(1, 8));
    recover(&tier);
    let cancelled = put_segment(&tier, put_of(b"cancelled", 1, 5000));
    tier.remove(b"cancelled", Version(1));
    tier.start(Arc::new(Told::default())).unwrap();
    let ended = |put| put_segment(&tier, put).recv_timeout(LIMIT).unwrap();
    assert_eq!(cancelled.recv_timeout(LIMIT).unwrap(), (Stored::Superseded, 0));
    assert_eq!(ended(put_of(b"key", 5, 5000)), (Stored::Yes, 0));
    assert_eq!(ended(put_of(b"key", 4, 5000)), (Stored::Superseded, 0));
    assert_eq!(ended(Put { durable: true, ..put_of(b"durable", 5, 5000) }), (Stored::Yes, 0));
    disk.next_write_error.store(libc::EIO, Ordering::Relaxed);
    assert_eq!(ended(put_of(b"failed", 5, 5000)), (Stored::Failed, 0));
}

#[test]
fn memory_that_cannot_be_read_fails_its_record_alone() {
    let (disk, config) = (MemoryDisk::new(), config(1, 12));
    let (tier, told) = running(std::slice::from_ref(&disk), &config);
    assert_eq!(store(&tier, b"before", 1, 9000), Stored::Yes);
    for version in 1..6 {
        disk.next_write_error.store(libc::EFAULT, Ordering::Relaxed);
        assert_eq!(store(&tier, b"gone", version, 9000), Stored::Failed);
    }
    assert_eq!(store(&tier, b"later", 1, 9000), Stored::Yes);
    assert!(is_right(&tier, b"before", 1, 9000) && is_right(&tier, b"later", 1, 9000));
    assert_eq!(*told.0.lock(), []);
    let device = &tier.status().devices[0];
    assert_eq!((device.write_errors, device.quarantined_zones, device.trouble.clone()), (0, 0, None));
    assert_eq!(found_on(disk.content.lock().clone(), &config), ["before", "later"]);
}

#[test]
fn a_segment_that_became_shorter_fails_its_record_alone() {
    const MIB: u64 = 1 << 20;
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let config = |place: usize| SsdConfig {
        places: vec![directories[place].path().to_owned()],
        zone_bytes: ByteCount(8 * MIB),
        capacity: ByteCount(ZONES_START + 8 * 8 * MIB),
        ..config(1, 8)
    };
    let tier = SsdTier::open(&config(0)).unwrap();
    recover(&tier);
    tier.start(Arc::new(Told::default())).unwrap();
    assert_eq!(store(&tier, b"before", 1, 9000), Stored::Yes);
    // The first of its two requests can be written, and behind that the zone has zeros, as the segment had.
    let (file, mapping) = segment(5 * MIB);
    let checksum = checksum_of(mapping.slice(0, 5 << 20).unwrap());
    file.set_len(4 * MIB).unwrap();
    let put = Put {
        length: ByteCount(5 * MIB),
        checksum: Some(checksum),
        source: Source::Segment(mapping),
        ..put_of(b"gone", 1, 0)
    };
    assert_eq!(store_put(&tier, put), Ok(Stored::Failed));
    assert_eq!(store(&tier, b"later", 1, 9000), Stored::Yes);
    assert!(is_right(&tier, b"before", 1, 9000) && is_right(&tier, b"later", 1, 9000));
    let device = &tier.status().devices[0];
    assert_eq!((device.write_errors, device.quarantined_zones, device.trouble.clone()), (0, 0, None));
    // As a daemon that is killed now leaves it: the zone has no footer.
    let file = |place: usize| directories[place].path().join(super::identity::FILE_NAME);
    std::fs::copy(file(0), file(1)).unwrap();
    let found = recover(&SsdTier::open(&config(1)).unwrap()).0;
    assert_eq!(found, [(b"before".to_vec(), 1, 9000), (b"later".to_vec(), 1, 9000)]);
}

#[test]
fn a_version_that_cannot_be_written_leaves_the_one_before_in_place() {
    let (disk, config) = (MemoryDisk::new(), config(1, 12));
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    assert_eq!(store(&tier, DIRECTORY, 1, 0), Stored::Yes);
    disk.next_write_error.store(libc::EFAULT, Ordering::Relaxed);
    assert_eq!(store(&tier, DIRECTORY, 2, 0), Stored::Failed);
    assert!(tier.flush(LIMIT));
    assert_eq!(tier.holds(DIRECTORY), Some(Version(1)));
    assert_eq!(found_on(disk.content.lock().clone(), &config), ["directory"]);
}

#[test]
fn an_allocation_that_fails_costs_one_record_and_counts_as_one_error() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 12));
    disk.allocate_error.store(libc::EIO, Ordering::Relaxed);
    assert_eq!(store(&tier, b"failed", 1, THIRD), Stored::Failed);
    disk.allocate_error.store(0, Ordering::Relaxed);
    assert_eq!(store(&tier, b"later", 1, THIRD), Stored::Yes);
    let device = tier.status().devices.remove(0);
    assert_eq!((device.write_errors, device.trouble), (1, None));
}

#[test]
fn an_allocation_that_takes_long_holds_up_nobody_who_asks_for_the_room_or_loads() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 12));
    assert_eq!(store(&tier, b"first", 1, THIRD), Stored::Yes);
    disk.holds_allocations.store(true, Ordering::Relaxed);
    let (sender, receiver) = sync_channel(3);
    for version in 2..5 {
        let sender = sender.clone();
        let put = put_of(&[u8::try_from(version).unwrap()], version, THIRD);
        tier.put(put, move |stored| sender.send(stored).unwrap()).unwrap();
    }
    // Two of them fit the zone that is open.
    assert!((0..2).all(|_| receiver.recv_timeout(LIMIT) == Ok(Stored::Yes)));
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| (tier.space().capacity, is_right(&tier, b"first", 1, THIRD)));
        let end = Instant::now() + LIMIT;
        while !asks.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let has_answer = asks.is_finished();
        disk.holds_allocations.store(false, Ordering::Relaxed);
        assert_eq!(asks.join().unwrap(), (ByteCount(12 * ZONE.get()), true));
        assert!(has_answer, "it waited for the allocation");
    });
    assert_eq!(receiver.recv_timeout(LIMIT), Ok(Stored::Yes));
}
