//! Shows that a disk can be added, emptied and removed under the tier, and that a daemon that dies meanwhile brings nothing
//! back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidefs_engine::types::ByteCount;

use super::disk::Disk;
use super::testing::*;
use super::*;

const LIMIT: Duration = Duration::from_secs(20);
const LENGTH: usize = 9000;

fn keys() -> impl Iterator<Item = [u8; 1]> {
    (0..60_u8).map(|number| [number])
}

fn on_disk(disk: &Arc<MemoryDisk>) -> Arc<MemoryDisk> {
    MemoryDisk::holding(disk.content.lock().clone())
}

/// Two disks with an object for each key, the second added while the tier was used.
fn grown() -> (SsdTier, Arc<Told>, [Arc<MemoryDisk>; 2], SsdConfig) {
    grown_with(config(1, 20))
}

fn grown_with(config: SsdConfig) -> (SsdTier, Arc<Told>, [Arc<MemoryDisk>; 2], SsdConfig) {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let (tier, told) = running(&disks[..1], &config);
    keys().take(30).for_each(|key| assert_eq!(store(&tier, &key, 5, LENGTH), Stored::Yes));
    let second = Arc::clone(&disks[1]) as Arc<dyn Disk>;
    tier.add_disk("disk 1".to_owned(), second, config.capacity).unwrap();
    keys().skip(30).for_each(|key| assert_eq!(store(&tier, &key, 5, LENGTH), Stored::Yes));
    (tier, told, disks, config)
}

fn all_are_right(tier: &SsdTier) -> bool {
    keys().all(|key| is_right(tier, &key, 5, LENGTH))
}

#[test]
fn a_disk_that_is_added_takes_records_and_is_found_by_the_next_start() {
    let (tier, _, disks, mut config) = grown();
    let written = |number: usize| tier.status().devices[number].written;
    assert!(written(0) > ByteCount::ZERO && written(1) > ByteCount::ZERO);
    assert!(all_are_right(&tier));
    drop(tier);
    config.capacity = ByteCount(config.capacity.get() * 2);
    let tier = tier_on(&disks, &config);
    assert_eq!(recover(&tier).0.len(), 60);
    assert!(all_are_right(&tier));
}

#[test]
fn a_disk_for_which_there_is_no_number_is_refused_and_nothing_is_written_to_it() {
    let (tier, _, _, config) = grown();
    let add = |disk: &Arc<MemoryDisk>| {
        let disk = Arc::clone(disk) as Arc<dyn Disk>;
        tier.add_disk("disk 2".to_owned(), disk, config.capacity)
    };
    for _ in 2..open::DEVICES_MAX {
        add(&MemoryDisk::new()).unwrap();
        tier.remove_disk(Path::new("disk 2"), false).unwrap();
    }
    let one_more = MemoryDisk::new();
    assert_eq!(add(&one_more), Err(ChangeError::TooMany));
    assert!(one_more.content.lock().is_empty() && all_are_right(&tier));
}

#[test]
fn a_disk_that_is_emptied_and_removed_takes_nothing_along() {
    let (tier, told, disks, config) = grown();
    let place = Path::new("disk 0");
    assert_eq!(tier.remove_disk(place, false), Err(ChangeError::HoldsObjects(30)));
    let mut reports = 0;
    let drained = tier
        .drain(place, None, &mut |_| {
            reports += 1;
            true
        })
        .unwrap();
    assert_eq!((drained.moved, drained.lost, drained.left), (30, 0, 0));
    assert!(reports > 0 && all_are_right(&tier));
    assert_eq!(tier.status().devices[0].trouble, Some(Unusable::Leaving));
    tier.remove_disk(place, false).unwrap();
    assert_eq!((tier.status().devices.len(), told.0.lock().len()), (1, 0));
    assert!(all_are_right(&tier));
    assert_eq!(tier.drain(place, None, &mut |_| true), Err(ChangeError::Unknown));
    let last = Path::new("disk 1");
    assert_eq!(tier.drain(last, None, &mut |_| true), Err(ChangeError::NoOther));
    drop(tier);
    // The removed one is nobody's any more.
    assert!(disks[0].content.lock()[..8192].iter().all(|&byte| byte == 0));
    let tier = tier_on(&disks[1..], &config);
    assert_eq!(recover(&tier).0.len(), 60);
    assert!(all_are_right(&tier));
}

#[test]
fn what_is_removed_while_its_disk_is_emptied_does_not_come_back_at_any_later_start() {
    let (tier, _, disks, mut config) = grown();
    config.capacity = ByteCount(config.capacity.get() * 2);
    // Ends early, with objects on both disks.
    let mut left = 5;
    let drained = tier.drain(Path::new("disk 0"), Some(ByteCount(100_000)), &mut |_| {
        left -= 1;
        left > 0
    });
    assert!(drained.unwrap().left > 0, "it was faster than its rate");
    keys().step_by(3).for_each(|key| tier.remove(&key, Version(5)));
    assert!(tier.flush(LIMIT));
    let crashed = [on_disk(&disks[0]), on_disk(&disks[1])];
    let check = |found: &[(Vec<u8>, u64, u64)]| {
        let expected: Vec<_> =
            keys().enumerate().filter(|(at, _)| at % 3 != 0).map(|(_, key)| key.to_vec()).collect();
        assert_eq!(found.iter().map(|(key, ..)| key.clone()).collect::<Vec<_>>(), expected);
    };
    let tier = tier_on(&crashed, &config);
    check(&recover(&tier).0);
    // Removed by a life that does not know that one disk was being emptied.
    tier.start(Arc::new(Told::default())).unwrap();
    keys().step_by(3).for_each(|key| assert_eq!(tier.holds(&key), None));
    assert!(tier.flush(LIMIT));
    drop(tier);
    check(&recover(&tier_on(&crashed, &config)).0);
}

/// Objects that are in memory too go with their zones. One that is removed when its zone was emptied in part stays removed.
#[test]
fn what_is_in_memory_too_and_is_removed_after_a_drain_was_ended_does_not_come_back() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let config = config(2, 20);
    let (tier, _) = running(&disks, &config);
    for key in keys() {
        let mut put = put_of(&key, 5, LENGTH);
        put.owner += ELSEWHERE;
        assert_eq!(store_put(&tier, put), Ok(Stored::Yes));
    }
    let ended = tier.drain(Path::new("disk 0"), None, &mut |drained| {
        std::thread::sleep(Duration::from_millis(250));
        drained.in_memory == 0
    });
    assert!(ended.unwrap().left > 0);
    keys().for_each(|key| tier.remove(&key, Version(5)));
    assert!(tier.flush(LIMIT));
    let after = [on_disk(&disks[0]), on_disk(&disks[1])];
    drop(tier);
    assert_eq!(recover(&tier_on(&after, &config)).0, []);
}

/// Zones of a disk that gave an error.
fn quarantined(tier: &SsdTier, disk: usize) -> u64 {
    tier.status().devices[disk].quarantined_zones
}

#[test]
fn a_zone_stays_until_what_was_moved_from_it_is_durable() {
    let (tier, _, disks, config) = grown();
    let place = Path::new("disk 0");
    disks[1].fails_flushes.store(true, Ordering::Relaxed);
    let stuck = tier.drain(place, None, &mut |_| true);
    assert!(matches!(stuck, Err(ChangeError::Stuck(_))), "{stuck:?}");
    assert_eq!(quarantined(&tier, 0), 0);
    // As a power cut leaves it that takes what the other disk had not made durable.
    assert_eq!(recover(&tier_on(&[on_disk(&disks[0])], &config)).0.len(), 30);
    disks[1].fails_flushes.store(false, Ordering::Relaxed);
    disks[1].keeps_log.store(true, Ordering::Relaxed);
    // What was moved before is made durable, too.
    let drained = tier.drain(place, None, &mut |_| true).unwrap();
    assert_eq!((drained.lost, drained.left, quarantined(&tier, 0)), (0, 0, 0));
    assert!(disks[1].log.lock().iter().any(|logged| matches!(logged, Logged::Flush)));
    assert!(all_are_right(&tier));
}

#[test]
fn a_disk_that_fails_holds_up_no_move_from_one_disk_to_another() {
    let disks = [MemoryDisk::new(), MemoryDisk::new(), MemoryDisk::new()];
    let (tier, _) = running(&disks, &config(3, 20));
    keys().for_each(|key| assert_eq!(store(&tier, &key, 5, LENGTH), Stored::Yes));
    disks[1].fails_flushes.store(true, Ordering::Relaxed);
    while !tier.shared.devices.all()[1].is_failing() {
        assert!(!tier.flush(LIMIT));
    }
    let drained = tier.drain(Path::new("disk 0"), None, &mut |_| true).unwrap();
    assert_eq!((drained.lost, drained.left, quarantined(&tier, 0)), (0, 0, 0));
    assert!(drained.moved > 0 && all_are_right(&tier));
}

#[test]
fn a_disk_that_was_being_emptied_goes_on_leaving_at_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let changes = Some(directory.path().join("changes"));
    let (tier, _, disks, mut config) = grown_with(SsdConfig { changes, ..config(1, 20) });
    config.capacity = ByteCount(config.capacity.get() * 2);
    let place = Path::new("disk 0");
    let mut left = 5;
    let drained = tier.drain(place, Some(ByteCount(100_000)), &mut |_| {
        left -= 1;
        left > 0
    });
    assert!(drained.unwrap().left > 0, "it was faster than its rate");
    drop(tier);
    // In the order in which a start has them: named when the tier runs already.
    let tier = tier_on(&disks, &config);
    let mut unnamed = tier.index(&|_| false).unnamed;
    tier.start(Arc::new(Told::default())).unwrap();
    assert_eq!(tier.status().devices[0].trouble, Some(Unusable::Leaving));
    assert_eq!(tier.remove_disk(place, false), Err(ChangeError::Starting));
    while let Some(standing) = tier.next_unnamed(&mut unnamed) {
        standing.iter().for_each(|one| assert!(tier.own(one, 1)));
    }
    let end = std::time::Instant::now() + LIMIT;
    while tier.shared.index.count_device(0) > 0 {
        assert!(std::time::Instant::now() < end, "it is not emptied");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(all_are_right(&tier));
    // Empty, it goes on leaving, and its removal ends that.
    drop(tier);
    let tier = tier_on(&disks, &config);
    recover(&tier);
    tier.start(Arc::new(Told::default())).unwrap();
    assert_eq!(tier.status().devices[0].trouble, Some(Unusable::Leaving));
    while let Err(error) = tier.remove_disk(place, false) {
        assert!(matches!(error, ChangeError::Stuck(_)), "{error}");
        assert!(std::time::Instant::now() < end, "{error}");
    }
    assert!(changes_file::Changes::load(config.changes.as_deref()).leaving.is_empty());
    assert!(all_are_right(&tier));
}

#[test]
fn a_disk_that_is_removed_by_force_loses_its_objects_and_nothing_else() {
    let (tier, told, ..) = grown();
    tier.remove_disk(Path::new("disk 0"), true).unwrap();
    assert_eq!(told.0.lock().len(), 30);
    assert_eq!(keys().filter(|key| is_right(&tier, key, 5, LENGTH)).count(), 30);
    assert_eq!(store(&tier, b"new", 1, LENGTH), Stored::Yes);
}

#[test]
fn what_is_removed_while_its_disk_is_taken_out_by_force_does_not_come_back_with_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let [intents, left] = ["intents", "left"].map(|name| directory.path().join(name));
    let (tier, _, disks, config) = grown_with(SsdConfig { intents: Some(intents.clone()), ..config(1, 20) });
    let device = Arc::clone(&tier.shared.devices.all()[0]);
    // Its writer waits with the footer of the last zone.
    disks[0].hangs_writes.store(true, Ordering::Relaxed);
    let killed = std::thread::scope(|scope| {
        let taken_out = scope.spawn(|| tier.remove_disk(Path::new("disk 0"), true));
        while device.queue.push_tombstones([]) {
            std::thread::sleep(Duration::from_millis(1));
        }
        tier.remove(&[0], Version(5));
        std::fs::copy(&intents, &left).unwrap();
        let killed = disks.each_ref().map(on_disk);
        disks[0].let_go();
        taken_out.join().unwrap().unwrap();
        killed
    });
    assert_eq!(std::fs::metadata(&intents).unwrap().len(), 0, "nothing waits for a disk that is gone");
    let capacity = ByteCount(config.capacity.get() * 2);
    let after = tier_on(&killed, &SsdConfig { intents: Some(left), capacity, ..config });
    recover(&after);
    assert_eq!((after.holds(&[0]), after.holds(&[1])), (None, Some(Version(5))));
}

#[test]
fn a_disk_to_which_an_object_is_on_its_way_is_not_taken_for_empty() {
    let (disks, config) = ([MemoryDisk::new(), MemoryDisk::new()], config(1, 20));
    let (tier, _) = running(&disks[..1], &config);
    assert_eq!(store(&tier, b"first", 1, LENGTH), Stored::Yes);
    tier.add_disk("disk 1".to_owned(), Arc::clone(&disks[1]) as Arc<dyn Disk>, config.capacity).unwrap();
    disks[1].hangs_writes.store(true, Ordering::Relaxed);
    // To the disk that wrote least.
    tier.put(put_of(b"key", 1, LENGTH), |_| ()).unwrap();
    assert_eq!(tier.shared.disks_of(tier.shared.hash(b"key")), [1]);
    let refused = tier.remove_disk(Path::new("disk 1"), false);
    disks[1].let_go();
    assert_eq!(refused, Err(ChangeError::HoldsObjects(1)));
    assert!(tier.flush(LIMIT) && is_right(&tier, b"key", 1, LENGTH));
    assert_eq!(store(&tier, b"key", 2, LENGTH), Stored::Yes);
    assert_eq!(tier.disk_of(b"key"), Some(1), "it is used as before");
}

/// As when the disk was unmounted under the tier, and another one mounted there.
#[test]
fn a_file_that_stands_where_that_of_a_disk_stood_is_not_removed_with_the_disk() {
    for is_replaced in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let config = SsdConfig { places: vec![place.path().to_owned()], ..config(1, 8) };
        let tier = SsdTier::open(&config).unwrap();
        recover(&tier);
        tier.start(Arc::new(Told::default())).unwrap();
        let file = place.path().join(super::identity::FILE_NAME);
        if is_replaced {
            std::fs::rename(&file, place.path().join("ours")).unwrap();
            std::fs::write(&file, b"another's").unwrap();
        }
        tier.remove_disk(place.path(), true).unwrap();
        let found = std::fs::read(&file).ok();
        assert_eq!(found.as_deref(), is_replaced.then_some(&b"another's"[..]));
    }
}

#[test]
fn nothing_is_called_durable_on_a_disk_that_is_being_taken_out() {
    let (tier, _, disks, _) = grown();
    let (device, key) = (Arc::clone(&tier.shared.devices.all()[0]), [0]);
    assert!(tier.flush_keys([&key[..]].into_iter(), LIMIT) && tier.can_keep(&key));
    // Its writer waits with the footer of the last zone.
    disks[0].hangs_writes.store(true, Ordering::Relaxed);
    let said = std::thread::scope(|scope| {
        let taken_out = scope.spawn(|| tier.remove_disk(Path::new("disk 0"), true));
        while device.queue.push_tombstones([]) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let said = (tier.flush_keys([&key[..]].into_iter(), LIMIT), tier.can_keep(&key));
        disks[0].let_go();
        taken_out.join().unwrap().unwrap();
        said
    });
    assert_eq!(said, (false, false));
}

/// What is asked for a second time at once is on its way there still.
#[test]
fn a_disk_that_is_being_taken_out_ends_no_wait_for_another_one() {
    let (tier, _, disks, _) = grown();
    let devices = tier.shared.devices.all();
    devices[0].queue.close();
    let is_on_second = |key: &[u8; 1]| tier.shared.disks_of(tier.shared.hash(&key[..])) == [1];
    let key = keys().find(is_on_second).unwrap();
    disks[1].hangs.store(true, Ordering::Relaxed);
    tier.remove(&key, Version(5));
    let (limit, started) = (Duration::from_millis(50), std::time::Instant::now());
    assert!(!SsdTier::flush_disks(&devices, limit));
    assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
    disks[1].let_go();
}

#[test]
fn a_tier_without_disks_takes_nothing_until_it_gets_one_and_a_start_knows_that_one() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let place = directory.path().join("disk");
    let changes = directory.path().join("changes");
    let config = SsdConfig { changes: Some(changes.clone()), ..config(1, 20) };
    assert!(!config.has_places());
    let tier = SsdTier::without_disks(&config).unwrap();
    tier.start(Arc::new(Told::default())).unwrap();
    assert!(!tier.has_room_for(b"key", ByteCount(1), ByteCount::ZERO) && !tier.is_writing());
    assert_eq!(tier.add(&place, None), Err(ChangeError::Unusable(Unusable::Missing)));
    std::fs::create_dir(&place).unwrap();
    let few = Some(ByteCount(4096));
    assert_eq!(tier.add(&place, few), Err(ChangeError::Unusable(Unusable::Full)));
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0, "a refused place is as it was");
    assert!(!changes.exists() && tier.status().devices.is_empty());
    tier.add(&place, None).unwrap();
    assert_eq!(tier.add(&place, None), Err(ChangeError::InUse));
    keys().for_each(|key| assert_eq!(store(&tier, &key, 5, LENGTH), Stored::Yes));
    assert!(all_are_right(&tier) && config.has_places());
    // All that the configuration allows is there for the first.
    assert!(tier.status().devices[0].capacity > ByteCount(config.capacity.get() / 2));
    drop(tier);
    let tier = SsdTier::open(&config).unwrap();
    assert_eq!(recover(&tier).0.len(), 60);
    assert!(all_are_right(&tier));
    tier.remove_disk(&place, true).unwrap();
    assert!(!config.has_places() && !changes.exists());
}

/// A capacity takes memory by its zones before anything is written.
#[test]
fn a_disk_that_was_added_is_used_as_far_as_it_goes_whatever_is_kept_of_its_capacity() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let changes = directory.path().join("changes");
    let places = ["small", "forged"].map(|name| directory.path().join(name));
    let mut kept = changes_file::Changes::default();
    for (place, capacity) in places.iter().zip([ByteCount::mib(64), ByteCount(u64::MAX)]) {
        std::fs::create_dir(place).unwrap();
        kept.add(place, capacity);
    }
    kept.store(Some(&changes));
    let size = open::size_of(directory.path(), ByteCount::ZERO).unwrap();
    let found = open::open_places(&SsdConfig { changes: Some(changes), ..config(1, 20) }).unwrap();
    let capacities: Vec<_> = found.candidates.iter().map(|candidate| candidate.capacity).collect();
    assert_eq!(capacities, [Some(ByteCount::mib(64)), Some(size)]);
}

#[test]
fn a_disk_of_another_pool_is_not_added_and_keeps_what_it_holds() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let place = directory.path().to_owned();
    let config = config(1, 20);
    let owned = SsdConfig { places: vec![place.clone()], ..config.clone() };
    drop(SsdTier::open(&owned).unwrap());
    let file = place.join("tidefs.ssd");
    let before = std::fs::read(&file).unwrap();
    let tier = SsdTier::without_disks(&config).unwrap();
    let refusal = tier.add(&place, None).unwrap_err();
    assert!(matches!(&refusal, ChangeError::Unusable(Unusable::Foreign(_))), "{refusal}");
    assert!(refusal.to_string().contains("another pool"), "{refusal}");
    assert!(std::fs::read(&file).unwrap() == before, "it was written");
}
