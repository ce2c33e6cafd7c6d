//! Shows that a disk that does not answer costs what was asked of it, once, and for no longer than the limit of a request.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use tidefs_engine::types::{ByteCount, Version};

use super::format::ZONES_START;
use super::identity::Unusable;
use super::late::Asked;
use super::memory::{Buffer, Memory};
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

/// As on a server that is away: `stat` does not return.
#[test]
fn a_status_is_told_though_the_filesystem_of_a_disk_does_not_answer() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 8));
    assert_eq!(store(&tier, b"key", 1, 5000), Stored::Yes);
    disk.holds_allocations.store(true, Ordering::Relaxed);
    let (tell, told) = sync_channel(1);
    std::thread::scope(|scope| {
        scope.spawn(|| tell.send(tier.status()).unwrap());
        let status = told.recv_timeout(LIMIT);
        disk.holds_allocations.store(false, Ordering::Relaxed);
        let length = disk.content.lock().len();
        assert_eq!(status.unwrap().devices[0].allocated, ByteCount(length as u64));
    });
}

/// What a thread has in hand, and gives up, only that thread can end.
#[test]
fn who_looks_through_a_disk_or_never_comes_back_for_its_loads_has_none_of_them_in_hand() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 8));
    assert_eq!(store(&tier, b"key", 5, 9000), Stored::Yes);
    let in_hand = || disk.here.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let loads_once = scope.spawn(|| is_right(&tier, b"key", 5, 9000));
        assert!(loads_once.join().unwrap() && in_hand() == 0, "it may never come back for what is late");
    });
    assert!(!SsdTier::settle_late_loads());
    tier.check(b"key", Version(5), ByteCount(9000)).unwrap();
    assert_eq!(in_hand(), 0);
    assert!(is_right(&tier, b"key", 5, 9000) && in_hand() > 0);
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

#[test]
fn loads_from_a_disk_that_hangs_are_misses_at_once_and_ask_it_for_no_more_until_it_answers() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let (tier, _) = running(&disks, &hasty(2));
    let keys: Vec<[u8; 1]> = (0..40_u8).map(|number| [number]).collect();
    assert!(keys.iter().all(|key| store(&tier, key, 1, 5000) == Stored::Yes));
    let is_on_second = |key: &&[u8; 1]| tier.shared.disks_of(tier.shared.hash(&key[..])) == [1];
    let (second, first): (Vec<&[u8; 1]>, Vec<&[u8; 1]>) = keys.iter().partition(is_on_second);
    disks[1].hangs.store(true, Ordering::Relaxed);
    let misses = |key: &[u8]| tier.read(key, Version(1), ByteCount(5000)) == Err(Missed::Failed);
    assert!(misses(second[0]));
    let held = || disks[1].held.lock().len();
    let (before, started) = (held(), Instant::now());
    for _ in 0..20 {
        assert!(second.iter().all(|key| misses(&key[..])));
        assert!(first.iter().all(|key| is_right(&tier, &key[..], 1, 5000)));
    }
    assert!(started.elapsed() < LIMIT, "{:?}: each load was waited for", started.elapsed());
    assert!(held() <= before + 8, "{} requests, {before} of them of the first load", held());
    let trouble = || tier.status().devices.into_iter().map(|device| device.trouble);
    assert!(trouble().eq([None, Some(Unusable::Slow)]));
    disks[1].let_go();
    assert!(keys.iter().all(|key| is_right(&tier, key, 1, 5000)));
}

#[test]
fn who_waits_for_an_object_does_not_wait_for_a_disk_that_is_late_and_a_comparison_does() {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config(1, 8));
    assert_eq!(store(&tier, b"key", 1, 5000), Stored::Yes);
    disk.hangs.store(true, Ordering::Relaxed);
    let late = Memory::Buffer(Arc::new(Buffer::zeroed(4096)));
    assert!(tier.shared.devices.all()[0].overdue.leave(&late, 4096));
    std::thread::scope(|scope| {
        let compared = scope.spawn(|| tier.check(b"key", Version(1), ByteCount(5000)));
        assert_eq!(tier.read(b"key", Version(1), ByteCount(5000)), Err(Missed::Failed));
        disk.hangs.store(false, Ordering::Relaxed);
        drop(late);
        assert_eq!(compared.join().unwrap(), Ok(()));
    });
}

/// Their limits together are longer than [`LIMIT`].
#[test]
fn names_that_are_not_known_cost_a_disk_that_hangs_one_request_and_are_found_when_it_answers() {
    let (disk, config) = (MemoryDisk::new(), hasty(1));
    let keys: Vec<[u8; 1]> = (0..200_u8).map(|number| [number]).collect();
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    assert!(keys.iter().all(|key| store(&tier, key, 1, 5000) == Stored::Yes));
    drop(tier);
    let tier = tier_on(std::slice::from_ref(&disk), &config);
    let _unnamed = tier.index(&|_| false).unnamed;
    disk.hangs.store(true, Ordering::Relaxed);
    let started = Instant::now();
    assert!(keys.iter().all(|key| tier.describe(key) == Err(Missed::Failed)));
    assert!(started.elapsed() < LIMIT, "{:?}: each name was waited for", started.elapsed());
    disk.let_go();
    assert!(keys.iter().all(|key| tier.describe(key).is_ok()));
}

/// Each of its zones would be asked for several times, and waited for each time.
#[test]
fn a_disk_that_begins_to_hang_while_the_index_is_built_is_asked_for_one_zone_and_found_whole_later() {
    let (disk, config) = (MemoryDisk::new(), config(1, 40));
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    // Three fill a zone.
    assert!((0..60_u8).all(|number| store(&tier, &[number], 1, 15 * 4096) == Stored::Yes));
    drop(tier);
    let late = SsdConfig { limit: Duration::from_millis(20), ..config.clone() };
    let tier = tier_on(std::slice::from_ref(&disk), &late);
    disk.hangs.store(true, Ordering::Relaxed);
    let Indexed { summary, .. } = tier.index(&|_| false);
    let asked = disk.held.lock().len();
    assert_eq!((summary.lost_zones, tier.records()), (20, 0));
    assert!(asked < 20, "{asked} requests");
    disk.let_go();
    drop(tier);
    let (found, summary) = recover(&tier_on(&[disk], &config));
    assert_eq!((found.len(), summary.lost_zones), (60, 0));
}

/// Each would be asked for its first zone for as long as a disk may be.
#[test]
fn disks_that_hang_together_while_the_index_is_built_are_waited_for_together_and_found_whole_later() {
    let disks = [(); 4].map(|()| MemoryDisk::new());
    let (tier, _) = running(&disks[..3], &config(3, 40));
    // Three fill a zone.
    assert!((0..60_u8).all(|number| store(&tier, &[number], 1, 15 * 4096) == Stored::Yes));
    drop(tier);
    // The last one is new, and has none.
    let config = config(4, 40);
    let late = SsdConfig { limit: Duration::from_millis(20), ..config.clone() };
    let tier = tier_on(&disks, &late);
    disks.iter().for_each(|disk| disk.hangs.store(true, Ordering::Relaxed));
    let Indexed { summary, .. } = tier.index(&|_| false);
    assert!(summary.lost_zones >= 20 && tier.records() == 0, "{summary:?}");
    let mut asked: Vec<usize> = disks.iter().map(|disk| disk.held.lock().len()).collect();
    assert_eq!(asked.pop(), Some(0), "it is waited for though nothing is to be read there");
    asked.sort_unstable();
    assert_eq!(asked[..2], [1, 1], "it is seen by one block of each that it hangs as the first one does");
    disks.iter().for_each(|disk| disk.let_go());
    drop(tier);
    let (found, summary) = recover(&tier_on(&disks, &config));
    assert_eq!((found.len(), summary.lost_zones), (60, 0));
}

#[test]
fn a_disk_that_is_sound_is_read_as_a_whole_beside_one_that_hangs_while_the_index_is_built() {
    let (disks, config) = ([(); 3].map(|()| MemoryDisk::new()), config(3, 40));
    let (tier, _) = running(&disks, &config);
    let keys: Vec<Vec<u8>> = (0..60_u8).map(|number| vec![number]).collect();
    assert!(keys.iter().all(|key| store(&tier, key, 1, 15 * 4096) == Stored::Yes));
    let is_on_first = |key: &Vec<u8>| tier.shared.disks_of(tier.shared.hash(key)).contains(&0);
    let (first, others): (Vec<Vec<u8>>, Vec<Vec<u8>>) = keys.into_iter().partition(is_on_first);
    assert!(!first.is_empty() && !others.is_empty(), "{} and {}", first.len(), others.len());
    drop(tier);
    let tier = tier_on(&disks, &SsdConfig { limit: Duration::from_millis(20), ..config });
    disks[0].hangs.store(true, Ordering::Relaxed);
    let found: Vec<Vec<u8>> = recover(&tier).0.into_iter().map(|(key, ..)| key).collect();
    assert_eq!(found, others);
}

/// As behind a controller that is reset meanwhile.
#[test]
fn disks_that_answer_while_they_are_waited_for_together_are_asked_for_their_zones_again() {
    let disks = [(); 3].map(|()| MemoryDisk::new());
    let tier = tier_on(&disks, &config(3, 8));
    let mut asked: HashMap<u8, Asked> = (0..3).map(|number| (number, Asked::new(LIMIT))).collect();
    // All that the last one holds was read.
    for (number, zones_left) in [(0, 1), (1, 7)] {
        asked.get_mut(&number).unwrap().zones_left = zones_left;
    }
    let reads_before = disks[2].reads.load(Ordering::Relaxed);
    disks.iter().for_each(|disk| disk.hangs.store(true, Ordering::Relaxed));
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| tier.shared.look_at_others(&mut asked, 3 * LIMIT));
        let are_asked = || disks[..2].iter().all(|disk| !disk.held.lock().is_empty());
        while !are_asked() && !looking.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        disks.iter().for_each(|disk| disk.let_go());
    });
    assert!(asked.values().all(Asked::answers), "{asked:?}");
    assert_eq!(disks[2].reads.load(Ordering::Relaxed), reads_before, "nothing is to be read there");
}

/// At the default deadline.
#[test]
fn disks_that_hang_together_are_waited_for_until_a_controller_is_reset_and_for_no_minute_in_silence() {
    let config = SsdConfig { limit: Duration::from_secs(5), ..config(1, 8) };
    let tier = tier_on(&[MemoryDisk::new()], &config);
    let shared = &tier.shared;
    // When its time is over the first one is asked once more for its zone, and for its superblock.
    let first = shared.patience() + 2 * config.limit;
    assert!(first + shared.patience_together() >= Duration::from_secs(80));
    assert!(shared.patience_together() < Duration::from_secs(60));
}

/// A start on disks that hang, until all of them are asked.
fn start_that_asks_all(disks: &[Arc<MemoryDisk>], config: &SsdConfig) -> SsdTier {
    std::thread::scope(|scope| {
        let start = scope.spawn(|| tier_on(disks, config));
        let given_up_at = Instant::now() + LIMIT;
        let are_asked = || disks.iter().all(|disk| !disk.held.lock().is_empty());
        while !are_asked() && Instant::now() < given_up_at {
            std::thread::sleep(Duration::from_millis(1));
        }
        let are_asked = are_asked();
        disks.iter().for_each(|disk| disk.let_go());
        let tier = start.join().unwrap();
        assert!(are_asked, "one is asked when another has not answered in time");
        tier
    })
}

#[test]
fn a_start_asks_all_disks_at_once_what_is_in_their_zones() {
    let (disks, config) = ([MemoryDisk::new(), MemoryDisk::new()], config(2, 8));
    let (tier, _) = running(&disks, &config);
    assert!((0..20_u8).all(|number| store(&tier, &[number], 1, 5000) == Stored::Yes));
    drop(tier);
    disks.iter().for_each(|disk| disk.hangs_in_zones.store(true, Ordering::Relaxed));
    assert_eq!(recover(&start_that_asks_all(&disks, &config)).0.len(), 20);
}

#[test]
fn a_start_asks_all_disks_at_once_what_they_are() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    disks.iter().for_each(|disk| disk.hangs.store(true, Ordering::Relaxed));
    let devices = start_that_asks_all(&disks, &config(2, 8)).status().devices;
    assert!(devices.len() == 2 && devices.iter().all(|device| device.trouble.is_none()), "{devices:?}");
}
