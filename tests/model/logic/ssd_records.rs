//! What a disk keeps beside the bytes of objects: directories, policies, and the records that a start goes by.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use tidefs::datapath::AttributeChange;
use tidefs::namespace::Ino;
use tidefs::tier::memory::{DirectoryRecord, ObjectRecord, PolicyRecord};
use tidefs::tier::ssd::{DroppedFor, Owner, Put, Source};
use tidefs_engine::types::{ByteCount, DirectoryId, Version};

use super::Logic;
use crate::common::pattern::bytes;
use crate::setup::Setup;
use crate::system::{System, WATCHER};

/// Whose records nobody knows.
#[derive(Debug)]
struct Nobody;

impl Owner for Nobody {
    fn dropped(&self, _number: u32, _version: Version, _reason: DroppedFor) {}

    fn has_elsewhere(&self, _number: u32, _version: Version) -> bool {
        false
    }

    fn is_pinned(&self, _number: u32, _version: Version) -> bool {
        false
    }

    fn must_stay(&self, _key: &[u8]) -> bool {
        false
    }
}

#[test]
fn a_directory_that_is_changed_after_it_was_removed_leaves_nothing_behind() {
    let mut logic = Logic::new(Setup { has_ssd: true, ..super::meanwhile::SETUP });
    let files = |logic: &Logic| std::fs::read_dir(logic.memory()).expect("the tier's directory").count();
    let before = files(&logic);
    logic.mkdir(WATCHER, "d").expect("mkdir");
    assert_eq!(files(&logic), before + 1);
    let ino = logic.resolve(WATCHER, "d").expect("it is there");
    logic.rmdir(WATCHER, "d").expect("rmdir");
    let change = AttributeChange { mode: Some(0o700), ..AttributeChange::default() };
    // Somebody has it open.
    logic.datapath().setattr(&super::caller(0), ino, &change).expect("it has a mode");
    assert_eq!(files(&logic), before);
}

/// As after a daemon that was killed while the disk took no writes.
#[test]
fn what_a_directory_became_in_memory_alone_is_on_disk_from_the_next_start_on() {
    let mut logic = Logic::new(Setup { has_ssd: true, ..super::meanwhile::SETUP });
    logic.mkdir(WATCHER, "d").expect("mkdir");
    let is_flushed = |logic: &Logic| logic.datapath().ssd().expect("a disk").flush(Duration::from_secs(30));
    assert!(is_flushed(&logic));
    let [disk, before] = ["ssd/tidefs.ssd", "before"].map(|name| logic.base.path().join(name));
    std::fs::copy(&disk, &before).expect("copy");
    logic.chmod(WATCHER, "d", 0o700).expect("chmod");
    logic.references.clear();
    logic.datapath = None;
    std::fs::copy(&before, &disk).expect("copy");
    logic.clock.advance(Duration::from_secs(2));
    logic.start();
    assert!(is_flushed(&logic));
    logic.lose_memory();
    assert_eq!(logic.stat(WATCHER, "d").expect("it is there").mode & 0o777, 0o700);
}

#[test]
fn a_policy_of_the_mount_itself_is_found_on_disk_by_a_host_that_lost_its_memory() {
    let mut logic = Logic::new(Setup { has_ssd: true, ..super::meanwhile::SETUP });
    let name = b"user.tidefs.priority";
    let policy = |logic: &Logic| logic.datapath().get_attribute(Ino::ROOT, name).ok();
    let is_flushed = |logic: &Logic| logic.datapath().ssd().expect("a disk").flush(Duration::from_secs(30));
    let unset = policy(&logic);
    logic.datapath().set_attribute(Ino::ROOT, name, b"5", None).expect("a policy");
    let set = policy(&logic);
    assert_ne!(set, unset);
    for _ in 0..2 {
        assert!(is_flushed(&logic));
        logic.lose_memory();
        assert_eq!(policy(&logic), set);
    }
    logic.datapath().remove_attribute(Ino::ROOT, name).expect("it is set");
    assert!(is_flushed(&logic));
    logic.lose_memory();
    assert_eq!(policy(&logic), unset);
}

/// Its record is on disk alone from the loss on, and a start after it finds objects in memory before it reads the disk.
#[test]
fn a_policy_of_the_mount_itself_that_a_disk_alone_has_holds_for_what_memory_kept_over_a_restart() {
    for (name, value) in [("user.tidefs.ttl", "1h"), ("user.tidefs.pin", "hard")] {
        let mut logic = Logic::new(Setup { has_ssd: true, ..super::meanwhile::SETUP });
        logic.datapath().set_attribute(Ino::ROOT, name.as_bytes(), value.as_bytes(), None).expect("a policy");
        assert!(logic.datapath().ssd().expect("a disk").flush(Duration::from_secs(30)));
        logic.lose_memory();
        let token = logic.open(WATCHER, "k", super::resent::CREATE).expect("create");
        logic.write(WATCHER, token, 0, &bytes(1, 50_000)).expect("write");
        logic.close(WATCHER, token);
        logic.restart();
        if value == "hard" {
            let evicted = logic.datapath().evict_coldest(ByteCount::mib(1), |_| ControlFlow::Continue(()));
            assert_eq!(evicted.objects, 0, "it is pinned");
        } else {
            logic.advance(Duration::from_secs(3601), true);
            assert_eq!(logic.stat(WATCHER, "k").err(), Some(Errno::ENOENT), "its time is over");
        }
    }
}

fn record(name: &str, version: u64, size: u64) -> ObjectRecord {
    ObjectRecord {
        parent: DirectoryId::ROOT,
        name: name.into(),
        version: Version(version),
        size: ByteCount(size),
        checksum: None,
        mode: 0o100_644,
        uid: 0,
        gid: 0,
        mtime_ns: 1,
        atime_ns: 1,
        ctime_ns: 1,
        sealed_at_ns: 1,
        predecessor: None,
        policy: PolicyRecord::default(),
    }
}

fn key_of(directory: DirectoryId, name: &str) -> Vec<u8> {
    [b"o", &directory.0.to_le_bytes()[..], name.as_bytes()].concat()
}

fn directory_key_of(directory: DirectoryId) -> Vec<u8> {
    [b"d", &directory.0.to_le_bytes()[..]].concat()
}

fn directory_record(id: DirectoryId, name: &str) -> DirectoryRecord {
    DirectoryRecord {
        id,
        parent: DirectoryId::ROOT,
        name: name.into(),
        mode: 0o40_755,
        uid: 0,
        gid: 0,
        mtime_ns: 1,
        ctime_ns: 1,
        policy: PolicyRecord::default(),
    }
}

/// Writes records of version 5 to the disk of a daemon that does not run, by their keys.
fn write_to_disk(logic: &Logic, records: Vec<(Vec<u8>, Vec<u8>, &[u8])>) {
    let tier = logic.open_ssd();
    let mut unnamed = tier.index(&|_| false).unnamed;
    while tier.next_unnamed(&mut unnamed).is_some() {}
    tier.start(Arc::new(Nobody)).expect("threads");
    for (key, meta, data) in records {
        let put = Put {
            key,
            meta,
            version: Version(5),
            length: ByteCount(data.len() as u64),
            checksum: None,
            source: Source::Bytes(data.to_vec()),
            durable: true,
            owner: 1,
            uses: 0,
            is_copy: false,
        };
        tier.put(put, |_| ()).expect("it is taken");
    }
    assert!(tier.flush(Duration::from_secs(30)));
}

#[test]
fn a_record_on_disk_whose_name_version_or_size_is_anothers_gets_no_name() {
    let mut logic = Logic::new(Setup { has_ssd: true, ..super::meanwhile::SETUP });
    logic.datapath = None;
    // Each is kept as the object `a` of version 5 with three bytes, or the like.
    let beside = [
        ("a", record("another", 5, 3)),
        ("b", record("b", 6, 3)),
        ("c", record("c", 5, 4)),
        ("right", record("right", 5, 3)),
    ];
    let with_data = |(name, record): (&str, ObjectRecord)| {
        (key_of(DirectoryId::ROOT, name), record.encode().expect("a record"), &b"abc"[..])
    };
    let mut records: Vec<_> = beside.into_iter().map(with_data).collect();
    let directory = directory_record(DirectoryId(77), "directory").encode().expect("a record");
    records.push((directory_key_of(DirectoryId(78)), directory, &b""[..]));
    write_to_disk(&logic, records);
    logic.start();
    assert_eq!(logic.list(WATCHER, "").expect("the top"), ["right"]);
    let right = logic.resolve(WATCHER, "right").expect("it is there");
    logic.load(right);
    assert_eq!(logic.tier_of("right"), "packed");
}

/// A record as a later daemon may write it: of a format that this one does not know.
fn of_later_format(mut encoded: Vec<u8>) -> Vec<u8> {
    encoded[3] = 200;
    let framed = encoded.len() - 4;
    let checksum = crc32fast::hash(&encoded[..framed]).to_le_bytes();
    encoded[framed..].copy_from_slice(&checksum);
    encoded
}

/// Which of some keys the disk of a daemon that does not run holds.
fn are_on_disk<const COUNT: usize>(logic: &Logic, keys: &[Vec<u8>; COUNT]) -> [bool; COUNT] {
    let tier = logic.open_ssd();
    tier.index(&|_| false);
    keys.each_ref().map(|key| tier.holds(key).is_some())
}

#[test]
fn what_a_later_daemon_wrote_is_left_to_it_with_what_is_below_it_unless_its_name_is_taken() {
    let mut logic = Logic::new(Setup { has_ssd: true, ..super::meanwhile::SETUP });
    let id = DirectoryId(77);
    let keys = [
        key_of(DirectoryId::ROOT, "later"),
        key_of(DirectoryId::ROOT, "taken"),
        directory_key_of(id),
        key_of(id, "below"),
        key_of(DirectoryId::ROOT, "damaged"),
    ];
    let [later, taken, directory, below, damaged] = keys.clone();
    let encoded = |name: &str| record(name, 5, 3).encode().expect("a record");
    let below_it = ObjectRecord { parent: id, ..record("below", 5, 3) };
    let later_directory = directory_record(id, "directory").encode().expect("a record");
    let data = &b"abc"[..];
    let records = vec![
        (later, of_later_format(encoded("later")), data),
        (taken, of_later_format(encoded("taken")), data),
        (directory, of_later_format(later_directory), &data[..0]),
        (below, below_it.encode().expect("a record"), data),
        (damaged, vec![7; 60], data),
    ];
    logic.datapath = None;
    write_to_disk(&logic, records);
    assert_eq!(are_on_disk(&logic, &keys), [true; 5]);
    logic.start();
    assert!(logic.list(WATCHER, "").expect("the top").is_empty());
    assert_eq!(logic.stat(WATCHER, "later").err(), Some(Errno::ENOENT));
    let token = logic.open(WATCHER, "taken", super::resent::CREATE).expect("create");
    logic.write(WATCHER, token, 0, &bytes(1, 50_000)).expect("write");
    logic.close(WATCHER, token);
    logic.references.clear();
    logic.datapath = None;
    // The one that was taken would come back as it was before, should memory be lost.
    assert_eq!(are_on_disk(&logic, &keys), [true, false, true, true, false]);
}
