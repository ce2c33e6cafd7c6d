//! Shows that a power cut at any write boundary leaves a tier that starts, serves only what was stored, and brings
//! nothing back that was removed.
//!
//! How: a workload of stores, removals, replacements and zones taken back runs on a disk that remembers every write and
//! flush. From that log disks are made as a cut leaves them: everything before some flush is there, and of what was
//! written since each block is there or not, drawn from a seed; the last write may be torn between blocks. Each is
//! started, and everything it finds is compared with what the workload knows.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidefs_engine::types::Version;

use super::testing::*;
use super::{SsdConfig, Stored};

const BLOCK: usize = 4096;
const LIMIT: Duration = Duration::from_secs(20);
const STATES: usize = 1200;

/// What the workload did, with how long the log was then.
#[derive(Debug, Default)]
struct Deeds {
    /// Lengths of everything that was ever stored.
    stored: HashMap<(Vec<u8>, u64), usize>,
    /// From this log position on the version was removed, durably.
    removed: Vec<(usize, Vec<u8>, u64)>,
    /// From this position on the version is on disk, durably, until its zone may be taken back.
    durable: Vec<(usize, Vec<u8>, u64)>,
}

struct Recorded {
    log: Vec<Logged>,
    start: Vec<u8>,
    deeds: Deeds,
    config: SsdConfig,
}

fn position(disk: &MemoryDisk) -> usize {
    disk.log.lock().len()
}

/// Runs the workload. `zones`: few make it take zones back all the time.
fn record(zones: u64, steps: u64, seed: u64) -> Recorded {
    let mut random = SmallRng::seed_from_u64(seed);
    let disk = MemoryDisk::new();
    let config = config(1, zones);
    let (tier, _) = running(std::slice::from_ref(&disk), &config);
    let start = disk.content.lock().clone();
    disk.keeps_log.store(true, Ordering::Relaxed);
    let mut deeds = Deeds::default();
    for version in 1..=steps {
        let key = format!("key {}", random.random_range(0..25)).into_bytes();
        if let Some(before) = tier.holds(&key)
            && random.random_bool(0.3)
        {
            tier.remove(&key, before);
            if random.random_bool(0.5) {
                assert!(tier.flush(LIMIT));
                deeds.removed.push((position(&disk), key, before.0));
            }
            continue;
        }
        let length = random.random_range(0..5 * BLOCK);
        deeds.stored.insert((key.clone(), version), length);
        let durable = random.random_bool(0.3);
        let put = super::Put { durable, ..put_of(&key, version, length) };
        if store_put(&tier, put) == Ok(Stored::Yes) && durable {
            deeds.durable.push((position(&disk), key.clone(), version));
        }
        if random.random_bool(0.2) {
            // So that reclaim has something to write again.
            assert!(is_right(&tier, &key, version, length) || tier.holds(&key).is_none());
        }
    }
    drop(tier);
    let log = disk.log.lock().clone();
    Recorded { log, start, deeds, config }
}

/// The disk after a cut at `end` of the log: writes since the last flush are there or not, block by block.
fn cut(recorded: &Recorded, end: usize, random: &mut SmallRng) -> Vec<u8> {
    let log = &recorded.log[..end];
    let flushed = log.iter().rposition(|entry| matches!(entry, Logged::Flush)).map_or(0, |at| at + 1);
    let mut content = recorded.start.clone();
    let chance = [0.0, 0.5, 0.9, 1.0][random.random_range(0..4)];
    for (at, entry) in log.iter().enumerate() {
        let Logged::Write { offset, bytes } = entry else { continue };
        let offset = usize::try_from(*offset).unwrap();
        if content.len() < offset + bytes.len() {
            content.resize(offset + bytes.len(), 0);
        }
        for (block, part) in bytes.chunks(BLOCK).enumerate() {
            if at < flushed || random.random_bool(chance) {
                content[offset + block * BLOCK..][..part.len()].copy_from_slice(part);
            }
        }
    }
    // The file is allocated a zone at a time, which the log does not show.
    let length = usize::try_from(recorded.config.capacity.get()).unwrap();
    content.resize(content.len().max(length), 0);
    content
}

fn check(recorded: &Recorded, end: usize, content: Vec<u8>, what: &str) -> usize {
    let disk = MemoryDisk::holding(content);
    let tier = tier_on(std::slice::from_ref(&disk), &recorded.config);
    let (found, _) = recover(&tier);
    for (key, version, length) in &found {
        let name = String::from_utf8_lossy(key);
        let stored = recorded.deeds.stored.get(&(key.clone(), *version));
        assert_eq!(
            stored,
            Some(&usize::try_from(*length).unwrap()),
            "{what}: {name} {version} was never stored"
        );
        let is_removed =
            |(at, removed, upto): &(usize, Vec<u8>, u64)| *at <= end && removed == key && upto >= version;
        assert!(!recorded.deeds.removed.iter().any(is_removed), "{what}: {name} {version} came back");
        let right = is_right(&tier, key, *version, usize::try_from(*length).unwrap());
        assert!(right, "{what}: {name} {version} is damaged");
    }
    let count = found.len();
    drop(tier);
    // Starting is itself cut off at any time: a second start finds the same.
    assert_eq!(
        recover(&tier_on(&[disk], &recorded.config)).0.len(),
        count,
        "{what}: the second start differs"
    );
    count
}

#[test]
fn a_power_cut_at_any_write_serves_only_what_was_stored_and_brings_nothing_back() {
    let mut states = 0;
    let mut survivors = 0;
    for (seed, zones) in [(1, 60), (2, 5), (3, 4), (4, 6)] {
        let recorded = record(zones, 400, seed);
        let mut random = SmallRng::seed_from_u64(seed);
        let step = (recorded.log.len() / (STATES / 4)).max(1);
        for end in (0..=recorded.log.len()).step_by(step) {
            let content = cut(&recorded, end, &mut random);
            survivors += check(&recorded, end, content, &format!("seed {seed}, cut at {end}"));
            states += 1;
        }
    }
    assert!(states >= STATES, "{states} states only");
    assert!(survivors > states * 5, "hardly anything survived: {survivors} objects in {states} states");
}

#[test]
fn what_was_stored_durably_survives_every_later_cut() {
    // So many zones that none is taken back.
    let recorded = record(60, 300, 7);
    assert!(recorded.deeds.durable.len() > 30);
    let whole = cut(&recorded, recorded.log.len(), &mut SmallRng::seed_from_u64(0));
    let at_the_end = tier_on(&[MemoryDisk::holding(whole)], &recorded.config);
    recover(&at_the_end);
    // Removals that were not flushed are not noted: what is gone at the end, without a later version, was removed.
    let was_removed = |key: &[u8], version: u64| at_the_end.holds(key).is_none_or(|found| found.0 < version);
    let mut random = SmallRng::seed_from_u64(7);
    for end in (0..=recorded.log.len()).step_by(5) {
        let disk = MemoryDisk::holding(cut(&recorded, end, &mut random));
        let tier = tier_on(&[disk], &recorded.config);
        recover(&tier);
        for (at, key, version) in recorded.deeds.durable.iter().filter(|(at, ..)| *at <= end) {
            // A later version or a removal may have come since; else it is there.
            let replaced = recorded.deeds.stored.keys().any(|(other, later)| other == key && later > version);
            let removed = tier.holds(key).is_none() && was_removed(key, *version);
            let holds = tier.holds(key).is_some_and(|found| found >= Version(*version));
            assert!(holds || removed || replaced, "durable since {at}, lost at {end}: {key:?} {version}");
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_a_miss_of_what_it_hits_and_never_a_wrong_byte() {
    let recorded = record(20, 120, 5);
    let mut random = SmallRng::seed_from_u64(5);
    let whole = cut(&recorded, recorded.log.len(), &mut SmallRng::seed_from_u64(0));
    let written: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] != 0).collect();
    let is_of_zone = |at: &usize| &whole[*at..*at + 5] == b"TDSDZ";
    let zones: Vec<usize> = (0..whole.len()).step_by(BLOCK).filter(is_of_zone).collect();
    assert!(zones.len() > 2 && !recorded.deeds.removed.is_empty());
    for round in 0..500 {
        let mut content = whole.clone();
        // Of four one hits the header of a zone, and one that, a footer or a superblock: the first bytes of a block.
        let at = match round % 4 {
            0 => zones[random.random_range(0..zones.len())] + random.random_range(0..48),
            1 => written[random.random_range(0..written.len())] / BLOCK * BLOCK + random.random_range(0..48),
            _ => written[random.random_range(0..written.len())],
        };
        content[at] ^= 1 << random.random_range(0..8);
        let tier = tier_on(&[MemoryDisk::holding(content)], &recorded.config);
        let (found, _) = recover(&tier);
        for (key, version, length) in found {
            let stored = recorded.deeds.stored.get(&(key.clone(), version));
            assert_eq!(stored, Some(&usize::try_from(length).unwrap()), "byte {at}: {key:?} {version}");
            let read = tier.read(&key, Version(version), super::ByteCount(length));
            let expected = data(&key, version, usize::try_from(length).unwrap());
            assert!(read.is_err() || read == Ok(expected), "byte {at}: wrong bytes of {key:?}");
            let is_removed = |(_, removed, upto): &(usize, Vec<u8>, u64)| *removed == key && *upto >= version;
            assert!(!recorded.deeds.removed.iter().any(is_removed), "byte {at}: {key:?} {version} came back");
        }
    }
}

#[test]
fn any_bytes_on_a_disk_are_a_state_and_never_a_panic() {
    let recorded = record(6, 60, 9);
    let whole = cut(&recorded, recorded.log.len(), &mut SmallRng::seed_from_u64(0));
    let mut random = SmallRng::seed_from_u64(9);
    for _ in 0..100 {
        let mut content = whole.clone();
        for _ in 0..random.random_range(1..40) {
            let from = random.random_range(0..content.len() / BLOCK) * BLOCK;
            let to = random.random_range(0..content.len() / BLOCK) * BLOCK;
            // Blocks of one place at another, and noise.
            if random.random_bool(0.5) {
                content.copy_within(from..from + BLOCK, to);
            } else {
                random.fill(&mut content[to..to + BLOCK]);
            }
        }
        let tier = tier_on(&[MemoryDisk::holding(content)], &recorded.config);
        for (key, version, length) in recover(&tier).0 {
            if let Ok(read) = tier.read(&key, Version(version), super::ByteCount(length)) {
                assert!(read == data(&key, version, read.len()));
            }
        }
        assert!(Arc::strong_count(&tier.shared) >= 1);
    }
}
