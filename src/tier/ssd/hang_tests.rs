//! Shows that a disk that does not answer costs what was asked of it, once, and for no longer than the limit of a request.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use tidefs_engine::types::ByteCount;

use super::format::ZONES_START;
use super::identity::Unusable;
use super::testing::*;
use super::*;

/// How long anything may take that is not to wait for each request by itself.
const LIMIT: Duration = Duration::from_secs(20);
/// Records that are under way when the disk begins to hang. Their limits together are longer than [`LIMIT`].
const RECORDS: u8 = 200;

/// Disks with a limit that is soon over, and zones that hold all records.
fn hasty(disks: u64) -> SsdConfig {
    let zone_bytes = ByteCount::mib(4);
    SsdConfig {
        zone_bytes,
        capacity: ByteCount(disks * (ZONES_START + 8 * zone_bytes.get())),
        limit: Duration::from_millis(250),
        ..config(1, 8)
    }
}

/// A tier whose disk hangs, with all records under way, and how they end.
fn hanging(disk: &Arc<MemoryDisk>) -> (SsdTier, Receiver<Stored>) {
    let (tier, _) = running(std::slice::from_ref(disk), &hasty(1));
    // The writer tells the end of the first record, and goes on when the others are in line.
    let (tell, told) = sync_channel(1);
    let (go_on, gone_on) = sync_channel::<()>(1);
    tier.put(put_of(b"first", 1, 5000), move |stored| {
        tell.send(stored).unwrap();
        gone_on.recv().unwrap();
    })
    .unwrap();
    assert_eq!(told.recv_timeout(LIMIT), Ok(Stored::Yes));
    disk.hangs.store(true, Ordering::Relaxed);
    let (sender, receiver) = sync_channel(RECORDS.into());
    for number in 0..RECORDS {
        tier.put(put_of(&[number], 1, 4000), queue::report_to(sender.clone())).unwrap();
    }
    go_on.send(()).unwrap();
    (tier, receiver)
}

#[test]
fn a_disk_that_hangs_with_many_records_under_way_is_removed_and_stopped_in_time() {
    let end: [fn(&SsdTier); 2] = [|tier| tier.remove_disk(Path::new("disk 0"), true).unwrap(), SsdTier::stop];
    for end in end {
        let (tier, ended) = hanging(&MemoryDisk::new());
        let started = Instant::now();
        end(&tier);
        assert!(started.elapsed() < LIMIT, "{:?}: each record was waited for", started.elapsed());
        assert!((0..RECORDS).all(|_| ended.try_recv() == Ok(Stored::Failed)));
    }
}

#[test]
fn a_pause_that_costs_many_records_counts_as_one_error() {
    let disk = MemoryDisk::new();
    let (tier, ended) = hanging(&disk);
    assert_eq!(ended.recv_timeout(LIMIT), Ok(Stored::Failed));
    disk.hangs.store(false, Ordering::Relaxed);
    assert!((1..RECORDS).all(|_| ended.recv_timeout(LIMIT) == Ok(Stored::Failed)));
    assert_eq!(store(&tier, b"later", 1, 5000), Stored::Yes);
    let device = tier.status().devices.remove(0);
    assert_eq!((device.write_errors, device.trouble), (1, Some(Unusable::Slow)));
}
