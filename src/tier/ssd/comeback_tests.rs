//! Shows that what was removed does not come back where a disk lost what says so.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidefs_engine::types::Version;

use super::format::ZONES_START;
use super::testing::*;
use super::*;

const LIMIT: Duration = Duration::from_secs(20);
const BLOCK: u64 = 4096;
/// Bytes of a record of which three fit into a zone.
const THIRD: usize = 15 * 4096;
/// Where the header of the second zone stands, and its trailer.
const HEADER: u64 = ZONES_START + ZONE.get();
const TRAILER: u64 = HEADER + ZONE.get() - BLOCK;

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// A disk with `old`, `b` and `c` in its first zone, and `d` and the removal of `old` in the second, both closed.
fn with_a_removal(config: &SsdConfig) -> Vec<u8> {
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), config);
    for key in ["old", "b", "c", "d"] {
        assert_eq!(store(&tier, key.as_bytes(), 1, THIRD), Stored::Yes);
    }
    tier.remove(b"old", Version(1));
    drop(tier);
    let content = disk.content.lock().clone();
    assert_eq!(found_on(content.clone(), config), ["b", "c", "d"]);
    content
}

/// A disk as a daemon leaves it that starts with it, writes what is left to do, and ends.
fn after_a_life(disk: &Arc<MemoryDisk>, config: &SsdConfig) -> Vec<u8> {
    let (tier, _) = running(std::slice::from_ref(disk), config);
    assert!(tier.flush(LIMIT));
    drop(tier);
    disk.content.lock().clone()
}

#[test]
fn a_flipped_bit_in_the_header_of_a_zone_costs_nothing() {
    let config = config(1, 12);
    let content = with_a_removal(&config);
    // In what every header has, in the disk's identity, and in the sequence.
    for byte in [1, 4, 20, 30, 44] {
        let mut flipped = content.clone();
        flipped[at(HEADER + byte)] ^= 4;
        assert_eq!(found_on(flipped, &config), ["b", "c", "d"], "byte {byte}");
    }
}

#[test]
fn a_removal_outlives_the_header_of_its_zone() {
    let config = config(1, 12);
    let mut content = with_a_removal(&config);
    content[at(HEADER)..at(HEADER + BLOCK)].fill(0x5a);
    let without_trailer = [&content[..at(TRAILER)], &[0; 4096], &content[at(TRAILER + BLOCK)..]].concat();
    for content in [content, without_trailer] {
        // Whether the trailer is of the life that the header named, nobody can tell: `d` is lost.
        assert_eq!(found_on(content.clone(), &config), ["b", "c"]);
        // The writer does the rest: there is nothing to be read any more where the zone stood.
        let mut after = after_a_life(&MemoryDisk::holding(content), &config);
        assert_eq!(after[at(HEADER)..at(HEADER + BLOCK)], [0; 4096]);
        after[at(HEADER)..at(HEADER + ZONE.get())].fill(0);
        assert_eq!(found_on(after, &config), ["b", "c"]);
    }
}

#[test]
fn a_removal_outlives_an_end_of_its_zone_that_cannot_be_read() {
    let config = config(1, 12);
    let content = with_a_removal(&config);
    for (bad, expected) in [(HEADER, vec!["b", "c"]), (TRAILER, vec!["b", "c", "d"])] {
        let disk = MemoryDisk::holding(content.clone());
        disk.bad_byte.store(bad, Ordering::Relaxed);
        assert_eq!(keys_of(&tier_on(std::slice::from_ref(&disk), &config)), expected, "bad at {bad}");
        assert_eq!(found_on(after_a_life(&disk, &config), &config), expected, "after a life, bad at {bad}");
    }
}

/// The index knows nothing of a zone that cannot be read, and the next start may read it all the same.
#[test]
fn a_key_in_a_zone_that_cannot_be_read_stays_removed() {
    let directory = tempfile::tempdir().unwrap();
    let config = SsdConfig { intents: Some(directory.path().join("intents")), ..config(1, 12) };
    let disk = MemoryDisk::holding(with_a_removal(&config));
    disk.bad_byte.store(HEADER, Ordering::Relaxed);
    // Without threads nothing is written, as by a daemon that is killed at once.
    let tier = tier_on(std::slice::from_ref(&disk), &config);
    assert_eq!(keys_of(&tier), ["b", "c"]);
    tier.remove(b"d", Version(1));
    disk.bad_byte.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(keys_of(&tier_on(&[disk], &config)), ["b", "c"]);
}

#[test]
fn a_device_that_held_something_else_before_has_free_zones() {
    let config = config(1, 12);
    let disk = MemoryDisk::new();
    disk.is_device.store(true, Ordering::Relaxed);
    let mut content = vec![0x5a; at(config.capacity.get())];
    content[..at(ZONES_START)].fill(0);
    *disk.content.lock() = content;
    drop(running(std::slice::from_ref(&disk), &config));
    let (tier, _) = running(&[disk], &config);
    assert_eq!(tier.status().devices[0].quarantined_zones, 0);
    assert_eq!(store(&tier, b"key", 1, THIRD), Stored::Yes);
}

/// A tier on `disks`, each with its own file of removals as after a restart of the machine: an empty one.
fn keys_after_a_reboot(disks: &[Arc<MemoryDisk>], config: &SsdConfig) -> Vec<String> {
    keys_of(&tier_on(disks, &SsdConfig { intents: None, ..config.clone() }))
}

fn with_epochs(disks: usize) -> (tempfile::TempDir, SsdConfig) {
    let directory = tempfile::tempdir().unwrap();
    let epochs = Some(directory.path().join("epochs.json"));
    (directory, SsdConfig { epochs, ..config(disks, 12) })
}

#[test]
fn a_disk_that_was_away_in_a_life_without_any_disk_is_emptied() {
    let (_directory, config) = with_epochs(1);
    let lives: [fn(&SsdConfig); 2] = [
        |config| {
            let tier = tier_on(&[], config);
            recover(&tier);
            tier.start(Arc::new(Told::default())).unwrap();
            // Nobody knows where it stands.
            tier.remove(b"key", Version(1));
        },
        SsdTier::pass_by,
    ];
    for life in lives {
        let disk = MemoryDisk::new();
        let (tier, _) = running(std::slice::from_ref(&disk), &config);
        assert_eq!(store(&tier, b"key", 1, THIRD), Stored::Yes);
        drop(tier);
        assert_eq!(keys_of(&tier_on(std::slice::from_ref(&disk), &config)), ["key"]);
        life(&config);
        assert_eq!(keys_of(&tier_on(std::slice::from_ref(&disk), &config)), [""; 0]);
    }
}

#[test]
fn a_disk_that_is_added_while_others_are_away_belongs_to_their_pool_and_they_are_emptied() {
    let (_directory, config) = with_epochs(1);
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let (tier, _) = running(&disks[..1], &config);
    assert_eq!(store(&tier, b"key", 1, THIRD), Stored::Yes);
    drop(tier);
    let tier = tier_on(&[], &config);
    recover(&tier);
    tier.start(Arc::new(Told::default())).unwrap();
    tier.add_disk("disk 1".to_owned(), Arc::clone(&disks[1]) as Arc<dyn disk::Disk>, config.capacity)
        .unwrap();
    assert_eq!(store(&tier, b"new", 2, THIRD), Stored::Yes);
    drop(tier);
    let config = SsdConfig { capacity: ByteCount(2 * config.capacity.get()), ..config };
    assert_eq!(keys_of(&tier_on(&disks, &config)), ["new"]);
}

/// As when two disks were used one without the other, and the file that says so is lost.
#[test]
fn a_disk_that_is_added_and_was_ahead_of_the_pool_holds_nothing_and_takes_nothing_from_the_others() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let (one, both) = (config(1, 12), config(2, 12));
    let keys: Vec<String> = (0..8).map(|number| format!("key {number}")).collect();
    let (tier, _) = running(&disks, &both);
    assert!(keys.iter().all(|key| store(&tier, key.as_bytes(), 1, 5000) == Stored::Yes));
    drop(tier);
    for _ in 0..4 {
        drop(running(&disks[1..], &one));
    }
    let (tier, _) = running(&disks[..1], &one);
    let kept: Vec<String> = keys.into_iter().filter(|key| tier.holds(key.as_bytes()).is_some()).collect();
    assert!((1..8).contains(&kept.len()), "{kept:?}");
    let second = Arc::clone(&disks[1]) as Arc<dyn disk::Disk>;
    tier.add_disk("disk 1".to_owned(), second, one.capacity).unwrap();
    drop(tier);
    assert_eq!(keys_of(&tier_on(&disks, &both)), kept);
}

#[test]
fn a_version_that_is_stored_again_survives_a_kill_while_another_removal_waits() {
    let directory = tempfile::tempdir().unwrap();
    let config = SsdConfig { intents: Some(directory.path().join("intents")), ..config(1, 12) };
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    assert_eq!(store(&tier, b"key", 7, 5000), Stored::Yes);
    // One for a disk that takes nothing.
    tier.shared.intents.add(9, tier.shared.hash(b"another"), Version(1));
    tier.remove(b"key", Version(7));
    assert!(tier.flush(LIMIT));
    assert_eq!(store(&tier, b"key", 7, 5000), Stored::Yes);
    let killed = || found_on(disk.content.lock().clone(), &config);
    assert_eq!(killed(), ["key"]);
    tier.remove(b"key", Version(7));
    assert_eq!(killed(), [""; 0]);
}

#[test]
fn a_version_that_is_stored_again_survives_a_kill_while_the_zone_of_its_removal_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("intents");
    let config = SsdConfig { intents: Some(path.clone()), ..config(1, 12) };
    let disk = MemoryDisk::new();
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    let device = Arc::clone(&tier.shared.devices.all()[0]);
    let close = || {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        assert!(device.queue.push(Job::Close(queue::report_to(sender))));
        assert_eq!(receiver.recv_timeout(LIMIT), Ok(Stored::Yes));
    };
    // Each in a zone of its own: what is removed, the removal, and what was stored after it.
    assert_eq!(store(&tier, b"key", 7, 5000), Stored::Yes);
    close();
    assert_eq!(store(&tier, b"beside", 1, 5000), Stored::Yes);
    tier.remove(b"key", Version(7));
    assert!(tier.flush(LIMIT));
    close();
    assert_eq!(store(&tier, b"key", 7, 5000), Stored::Yes);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    // The removal cannot be written elsewhere.
    disk.fails_writes.store(true, Ordering::Relaxed);
    let beside = tier.shared.index.get(&tier.shared.hash(b"beside")).unwrap().place;
    disk.bad_byte.store(device.offset(beside.zone.zone(), beside.block + 1), Ordering::Relaxed);
    assert_eq!(tier.read(b"beside", Version(1), ByteCount(5000)), Err(Missed::Failed));
    let end = std::time::Instant::now() + LIMIT;
    while std::fs::metadata(&path).unwrap().len() == 0 {
        assert!(std::time::Instant::now() < end, "the removal is not noted");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(found_on(disk.content.lock().clone(), &config), ["beside", "key"]);
}

/// Its removals stand in the file of the state directory alone, which a restart of the machine takes away.
#[test]
fn a_disk_that_could_not_note_removals_is_emptied_by_the_next_start() {
    // Another disk goes ahead of it, or the file does.
    for count in [2, 1] {
        let (directory, config) = with_epochs(count);
        let config = SsdConfig { intents: Some(directory.path().join("intents")), ..config };
        let config = if count == 1 { config } else { SsdConfig { epochs: None, ..config } };
        let disks: Vec<_> = (0..count).map(|_| MemoryDisk::new()).collect();
        let (tier, _) = running(&disks, &config);
        let keys: Vec<String> = (0..8).map(|number| format!("key {number}")).collect();
        assert!(keys.iter().all(|key| store(&tier, key.as_bytes(), 1, 5000) == Stored::Yes));
        let last = u8::try_from(count - 1).unwrap();
        let is_on_last = |key: &String| tier.shared.disks_of(tier.shared.hash(key.as_bytes())) == [last];
        let (lost, kept): (Vec<_>, Vec<_>) = keys.iter().cloned().partition(is_on_last);
        assert!(!lost.is_empty());
        let failing = &disks[count - 1];
        failing.fails_writes.store(true, Ordering::Relaxed);
        failing.fails_flushes.store(true, Ordering::Relaxed);
        tier.remove(lost[0].as_bytes(), Version(1));
        // It is told to fail after three attempts.
        while tier.status().devices[count - 1].trouble.is_none() {
            assert!(!tier.flush(LIMIT));
        }
        tier.flush(LIMIT);
        drop(tier);
        failing.fails_writes.store(false, Ordering::Relaxed);
        failing.fails_flushes.store(false, Ordering::Relaxed);
        assert_eq!(keys_after_a_reboot(&disks, &config), kept, "{count} disks");
    }
}

#[test]
fn a_disk_that_is_removed_and_takes_no_writes_is_emptied_when_it_comes_back() {
    for count in [2, 1] {
        let (_directory, config) = with_epochs(count);
        let disks: Vec<_> = (0..count).map(|_| MemoryDisk::new()).collect();
        let (tier, _) = running(&disks, &config);
        for number in 0..8 {
            assert_eq!(store(&tier, format!("key {number}").as_bytes(), 1, 5000), Stored::Yes);
        }
        disks[0].fails_writes.store(true, Ordering::Relaxed);
        tier.remove_disk(std::path::Path::new("disk 0"), true).unwrap();
        let kept = tier.records();
        assert_eq!(kept == 0, count == 1);
        drop(tier);
        disks[0].fails_writes.store(false, Ordering::Relaxed);
        assert_eq!(keys_after_a_reboot(&disks, &config).len(), kept, "{count} disks");
    }
}

/// A disk as a crash leaves it after `key` was written again, and before the zone from which it comes is void.
fn with_a_key_in_two_zones(config: &SsdConfig) -> Arc<MemoryDisk> {
    let disk = MemoryDisk::new();
    disk.keeps_log.store(true, Ordering::Relaxed);
    let (tier, _) = running(std::slice::from_ref(&disk), config);
    assert_eq!(store(&tier, b"key", 1, THIRD), Stored::Yes);
    let mut version = 2;
    while tier.status().reclaimed_zones < 2 {
        // So that it is written again.
        let _ = tier.read(b"key", Version(1), ByteCount(THIRD as u64));
        assert_eq!(store(&tier, format!("other {version}").as_bytes(), version, THIRD), Stored::Yes);
        version += 1;
        // A writer that has no zone left waits for nothing that is to be written again.
        while tier.shared.devices.all()[0].spare_zones() < reclaim::SPARE_ZONES {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let mut content = vec![0; at(config.capacity.get())];
    for logged in disk.log.lock().iter() {
        let Logged::Write { offset, bytes } = logged else { continue };
        if *offset == ZONES_START && bytes.iter().all(|&byte| byte == 0) {
            break;
        }
        content[at(*offset)..][..bytes.len()].copy_from_slice(bytes);
    }
    MemoryDisk::holding(content)
}

#[test]
fn a_key_that_a_crash_left_in_two_zones_stays_removed_when_one_is_given_up() {
    let disk = with_a_key_in_two_zones(&config(1, 8));
    // With room, so that no zone is taken back.
    let config = config(1, 20);
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    let found = tier.shared.index.get(&tier.shared.hash(b"key")).unwrap();
    let (zone, block) = (found.place.zone.zone(), found.place.block);
    assert!(zone > 0, "it was not written again");
    let data = tier.shared.devices.all()[0].offset(zone, block + 1);
    disk.bad_byte.store(data, Ordering::Relaxed);
    assert_eq!(tier.read(b"key", Version(1), ByteCount(THIRD as u64)), Err(Missed::Failed));
    disk.bad_byte.store(u64::MAX, Ordering::Relaxed);
    // Until the zone is void, removals of what nobody knows are noted.
    while tier.shared.devices.all()[0].may_find_given_up() {
        assert!(tier.flush(LIMIT));
    }
    tier.remove(b"key", Version(1));
    assert!(tier.flush(LIMIT));
    let content = disk.content.lock().clone();
    assert!(!found_on(content, &config).contains(&"key".to_owned()));
}
