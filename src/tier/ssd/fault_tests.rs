//! Shows what an error costs, and that its owner is told of it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tidefs_engine::types::{ByteCount, Version};

use super::testing::*;
use super::*;

const LIMIT: Duration = Duration::from_secs(20);

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
