//! Shows which disks a start uses: those that were there all along and that are its own, alone. What was behind is emptied, and
//! what somebody else wrote is not touched.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidefs_engine::types::ByteCount;

use super::format::BLOCK_BYTES;
use super::testing::*;
use super::*;

#[test]
fn a_disk_that_was_missing_for_a_while_is_emptied() {
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let config = config(2, 8);
    let (tier, _) = running(&disks, &config);
    assert!((0..20_u8).all(|number| store(&tier, &[number], 1, 5000) == Stored::Yes));
    drop(tier);
    // A start with one disk only, in which keys may be removed.
    drop(running(&disks[..1], &config));
    let tier = tier_on(&disks, &config);
    let (found, _) = recover(&tier);
    assert!(!found.is_empty() && found.len() < 20, "{}", found.len());
    drop(tier);
    assert_eq!(recover(&tier_on(&disks, &config)).0, found);
}

/// A start that is killed makes the next one give up the disks that are behind: none is ahead while others are still read.
#[test]
fn no_disk_begins_an_epoch_before_all_were_read() {
    let disks = [MemoryDisk::new(), MemoryDisk::new(), MemoryDisk::new()];
    let config = config(3, 8);
    let (tier, _) = running(&disks, &config);
    assert!((0..60_u8).all(|number| store(&tier, &[number], 1, 5000) == Stored::Yes));
    drop(tier);
    disks.iter().for_each(|disk| disk.first_write.store(u64::MAX, Ordering::Relaxed));
    let _tier = tier_on(&disks, &config);
    let last_read = disks.iter().map(|disk| disk.last_read.load(Ordering::Relaxed)).max();
    let first_write = disks.iter().map(|disk| disk.first_write.load(Ordering::Relaxed)).min();
    assert!(last_read < first_write, "{last_read:?} and {first_write:?}");
}

/// Its superblock is the new one, and it is not used in that life.
#[test]
fn a_disk_whose_first_flush_fails_is_not_trusted_by_the_start_after_that() {
    let disks = [MemoryDisk::new(), MemoryDisk::new(), MemoryDisk::new()];
    let config = config(3, 8);
    let (tier, _) = running(&disks, &config);
    assert!((0..60_u8).all(|number| store(&tier, &[number], 1, 5000) == Stored::Yes));
    drop(tier);
    disks[1].fails_flushes.store(true, Ordering::Relaxed);
    let tier = tier_on(&disks, &config);
    let (used, _) = recover(&tier);
    assert!(!used.is_empty() && used.len() < 60, "{}", used.len());
    assert!(used.iter().all(|(key, ..)| is_right(&tier, key, 1, 5000)));
    assert!(matches!(tier.status().devices[2].trouble, Some(Unusable::Failing(_))));
    // What stands on the third may be removed in this life.
    drop(tier);
    disks[1].fails_flushes.store(false, Ordering::Relaxed);
    assert_eq!(recover(&tier_on(&disks, &config)).0, used);
}

#[test]
fn a_disk_whose_superblock_fails_once_while_another_is_given_up_goes_ahead_later_and_keeps_what_it_holds() {
    let directory = tempfile::tempdir().unwrap();
    let config = SsdConfig { epochs: Some(directory.path().join("epochs.json")), ..config(2, 8) };
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let (tier, _) = running(&disks, &config);
    assert!((0..20_u8).all(|number| store(&tier, &[number], 1, 5000) == Stored::Yes));
    drop(tier);
    // No thread of its own goes ahead yet.
    let tier = tier_on(&disks, &config);
    recover(&tier);
    let on_second = |number: &u8| tier.shared.disks_of(tier.shared.hash(&[*number])) == [1];
    let expected: Vec<_> = (0..20_u8).filter(on_second).map(|number| (vec![number], 1, 5000)).collect();
    let [first, second] = [0, 1].map(|number| tier.shared.devices.get(number).unwrap());
    disks[1].next_write_error.store(libc::EIO, Ordering::Relaxed);
    assert!(tier.shared.outdate(&first), "the file of epochs says so");
    assert!(second.is_behind.load(Ordering::Relaxed));
    assert_eq!((tier.outdated_disks(), tier.status().devices[1].write_errors), (vec![0], 1));
    tier.start(Arc::new(Told::default())).unwrap();
    assert!(SsdTier::flush_disks(std::slice::from_ref(&second), Duration::from_secs(20)));
    assert!(!second.is_behind.load(Ordering::Relaxed), "what is durable is not on it");
    drop(tier);
    assert!(!expected.is_empty());
    assert_eq!(recover(&tier_on(&disks, &config)).0, expected);
}

#[test]
fn nothing_is_durable_on_a_disk_that_is_behind_and_takes_no_writes() {
    let directory = tempfile::tempdir().unwrap();
    let config = SsdConfig { epochs: Some(directory.path().join("epochs.json")), ..config(2, 8) };
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    let (tier, _) = running(&disks, &config);
    let [first, second] = [0, 1].map(|number| tier.shared.devices.get(number).unwrap());
    disks[1].fails_writes.store(true, Ordering::Relaxed);
    assert!(tier.shared.outdate(&first));
    // It is tried with each flush, which would go well.
    let is_flushed = || SsdTier::flush_disks(std::slice::from_ref(&second), Duration::from_secs(20));
    assert!((0..3).all(|_| !is_flushed()));
    assert!(second.is_failing());
    assert_eq!(tier.outdated_disks(), [0, 1]);
    disks[1].fails_writes.store(false, Ordering::Relaxed);
    assert!(!is_flushed(), "it gets no writes until the next start");
}

#[test]
fn a_disk_whose_superblock_cannot_be_written_gets_nothing_more_whatever_else_is_written_there() {
    let directory = tempfile::tempdir().unwrap();
    let config = SsdConfig { epochs: Some(directory.path().join("epochs.json")), ..config(2, 8) };
    let disks = [MemoryDisk::new(), MemoryDisk::new()];
    // No thread of its own goes ahead.
    let tier = tier_on(&disks, &config);
    recover(&tier);
    let [first, second] = [0, 1].map(|number| tier.shared.devices.get(number).unwrap());
    let fail_once = || disks[1].next_write_error.store(libc::EIO, Ordering::Relaxed);
    fail_once();
    assert!(tier.shared.outdate(&first));
    for _ in 0..3 {
        assert!(!second.is_failing(), "it may have been once");
        second.count_written(WrittenFor::Objects, BLOCK_BYTES);
        fail_once();
        assert!(!tier.shared.catch_up(&second));
    }
    assert!(second.is_failing() && tier.shared.takers().all(|device| device.number != 1));
    assert_eq!(tier.outdated_disks(), [0, 1]);
    assert!(
        !tier.shared.catch_up(&second) && tier.status().devices[1].write_errors == 4,
        "it is asked no more"
    );
}

#[test]
fn what_somebody_else_wrote_is_not_touched() {
    let config = config(2, 8);
    let foreign = MemoryDisk::holding(vec![7; 1 << 20]);
    let other = MemoryDisk::new();
    drop(running(std::slice::from_ref(&other), &config));
    let ours = MemoryDisk::new();
    drop(running(std::slice::from_ref(&ours), &config));
    let before = (foreign.content.lock().clone(), other.content.lock().clone());
    let (tier, _) = running(&[ours, Arc::clone(&foreign), Arc::clone(&other)], &config);
    let troubles: Vec<_> = tier.status().devices.into_iter().map(|device| device.trouble).collect();
    assert!(
        matches!(troubles[..], [None, Some(Unusable::Foreign(_)), Some(Unusable::Foreign(_))]),
        "{troubles:?}"
    );
    assert_eq!((foreign.content.lock().clone(), other.content.lock().clone()), before);
}

#[test]
fn a_disk_is_new_only_where_its_first_mebibyte_is_empty() {
    let config = config(1, 8);
    // Shorter than a superblock; and what begins with zeros, as some file systems do.
    let late = [vec![0; 65_536], vec![7; 4096]].concat();
    for content in [b"mine".to_vec(), late] {
        let foreign = MemoryDisk::holding(content.clone());
        let (tier, _) = running(std::slice::from_ref(&foreign), &config);
        let trouble = tier.status().devices[0].trouble.clone();
        assert!(matches!(trouble, Some(Unusable::Foreign(_))), "{trouble:?}");
        drop(tier);
        assert!(*foreign.content.lock() == content, "it was written");
    }
    let (tier, _) = running(&[MemoryDisk::holding(vec![0; 1 << 20])], &config);
    assert_eq!(tier.status().devices[0].trouble, None);
}

#[test]
fn files_in_directories_survive_a_restart_and_are_used_by_one_daemon_alone() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut config = config(2, 8);
    config.places = directories.iter().map(|directory| directory.path().to_owned()).collect();
    config.places.push(directories[0].path().join("missing"));
    config.capacity = ByteCount(config.capacity.get() / 2 * 3);
    for (life, io_uring) in [(0_u8, true), (1, false), (2, true)] {
        config.io_uring = io_uring;
        let tier = SsdTier::open(&config).unwrap();
        let (found, _) = recover(&tier);
        assert_eq!(found.len(), usize::from(life) * 10);
        assert!(found.iter().all(|(key, version, _)| is_right(&tier, key, *version, 9000)));
        tier.start(Arc::new(Told::default())).unwrap();
        (0..10_u8).for_each(|number| assert_eq!(store(&tier, &[life, number], 3, 9000), Stored::Yes));
        let status = tier.status();
        assert_eq!(status.io_fallback.is_none(), io_uring);
        assert_eq!(status.devices[2].trouble, Some(Unusable::Missing));
        let second = SsdTier::open(&config).unwrap();
        assert!(matches!(second.status().devices[0].trouble, Some(Unusable::Foreign(_))));
        let real: u64 = status.devices.iter().map(|device| device.allocated.get()).sum();
        assert!(real > 0 && real <= config.capacity.get(), "{real}");
    }
}
