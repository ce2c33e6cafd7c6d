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

#[test]
fn a_record_on_disk_whose_name_version_or_size_is_anothers_gets_no_name() {
    let mut logic = Logic::new(Setup { has_ssd: true, ..super::meanwhile::SETUP });
    logic.datapath = None;
    let tier = logic.open_ssd();
    let mut unnamed = tier.index(&|_| false).unnamed;
    while tier.next_unnamed(&mut unnamed).is_some() {}
    tier.start(Arc::new(Nobody)).expect("threads");
    let put = |key: &[&[u8]], meta, data: &[u8]| {
        let (length, source) = (ByteCount(data.len() as u64), Source::Bytes(data.to_vec()));
        let (key, version) = (key.concat(), Version(5));
        let put = Put {
            key,
            meta,
            version,
            length,
            checksum: None,
            source,
            durable: true,
            owner: 1,
            uses: 0,
            is_copy: false,
        };
        tier.put(put, |_| ()).expect("it is taken");
    };
    // Each is kept as the object `a` of version 5 with three bytes, or the like.
    let beside = [
        ("a", record("another", 5, 3)),
        ("b", record("b", 6, 3)),
        ("c", record("c", 5, 4)),
        ("right", record("right", 5, 3)),
    ];
    for (name, record) in beside {
        let key: [&[u8]; 3] = [b"o", &DirectoryId::ROOT.0.to_le_bytes(), name.as_bytes()];
        put(&key, record.encode().expect("a record"), b"abc");
    }
    let directory = DirectoryRecord {
        id: DirectoryId(77),
        parent: DirectoryId::ROOT,
        name: b"directory".to_vec(),
        mode: 0o40_755,
        uid: 0,
        gid: 0,
        mtime_ns: 1,
        ctime_ns: 1,
        policy: PolicyRecord::default(),
    };
    put(&[b"d", &78_u64.to_le_bytes()], directory.encode().expect("a record"), b"");
    assert!(tier.flush(Duration::from_secs(30)));
    drop(tier);
    logic.start();
    assert_eq!(logic.list(WATCHER, "").expect("the top"), ["right"]);
    let right = logic.resolve(WATCHER, "right").expect("it is there");
    logic.load(right);
    assert_eq!(logic.tier_of("right"), "packed");
}
