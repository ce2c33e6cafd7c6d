//! A disk below memory, for the logic without a kernel: what the session does for objects that are on it alone.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use tidefs::datapath::{Credentials, Datapath, Error, Located, Presence};
use tidefs::namespace::Ino;
use tidefs::tier::memory::Pin;
use tidefs::tier::ssd::{Budget, DroppedFor, SsdConfig, SsdTier};
use tidefs_engine::types::{ByteCount, DirectoryId, Version};

use super::Logic;
use crate::common::pattern::bytes;
use crate::common::wait::{HANG, until};
use crate::setup::Setup;
use crate::system::{Open, Space, System, WATCHER};

/// Disk space below memory: more than the objects of a test.
const SSD_CAPACITY: ByteCount = ByteCount::mib(96);

impl Logic {
    pub(super) fn open_ssd(&self) -> SsdTier {
        let place = self.base.path().join("ssd");
        std::fs::create_dir_all(&place).expect("a directory for the disk");
        SsdTier::open(&SsdConfig {
            places: vec![place],
            capacity: SSD_CAPACITY,
            zone_bytes: ByteCount::mib(4),
            budget: Budget {
                bytes_per_second: None,
                bytes_per_day: self.bytes_per_day,
                queue: Duration::from_secs(60),
                queue_bytes_max: ByteCount::mib(16),
            },
            io_uring: true,
            intents: Some(self.base.path().join("removals")),
            changes: None,
            epochs: None,
            roots: None,
            days: None,
            limit: Duration::from_secs(30),
        })
        .expect("the disk opens")
    }

    /// From the next start on the disk takes so much in a day.
    pub(crate) fn limit_disk(&mut self, bytes_per_day: ByteCount) {
        self.bytes_per_day = Some(bytes_per_day);
    }

    /// What statfs(2) tells of memory: `space` without the disk, whose used bytes are those of its records. A quota is of
    /// memory alone.
    pub(super) fn without_disk(&self, space: Space) -> Space {
        if space.capacity <= self.setup.capacity.get() {
            return space;
        }
        let disk = self.datapath().ssd().map(|tier| tier.space()).unwrap_or_default();
        let free_on_disk = disk.capacity.get() - disk.used.get();
        Space { capacity: space.capacity - disk.capacity.get(), free: space.free - free_on_disk }
    }

    /// Sends what is coldest to the disk until `bytes` left memory, or all that may.
    pub(crate) fn demote(&mut self, bytes: ByteCount) {
        self.datapath().evict_coldest(bytes, |_| ControlFlow::Continue(()));
    }

    /// The same, to be done by another thread.
    pub(crate) fn demoter(&self) -> impl FnOnce(ByteCount) + Send + 'static {
        let datapath = Arc::clone(self.datapath());
        move |bytes| {
            datapath.evict_coldest(bytes, |_| ControlFlow::Continue(()));
        }
    }

    /// Where the bytes of an object are.
    pub(crate) fn tier_of(&mut self, path: &str) -> String {
        let ino = self.resolve(WATCHER, path).expect("it is there");
        let value = self.datapath().get_attribute(ino, b"user.tidefs.tier").expect("an object has a tier");
        String::from_utf8(value).expect("a word")
    }

    /// Starts again without what was in memory, as after a reboot.
    pub(crate) fn lose_memory(&mut self) {
        self.lose_memory_and_name(true);
    }

    fn lose_memory_and_name(&mut self, names: bool) {
        self.references.clear();
        self.handles.clear();
        self.datapath = None;
        while umount2(&self.memory(), MntFlags::MNT_DETACH).is_ok() {}
        // Versions are told apart by the second of the start.
        self.clock.advance(Duration::from_secs(2));
        self.start_and_name(names);
    }

    /// The version that stands under a name.
    fn version_of(&mut self, path: &str) -> Version {
        let ino = self.resolve(WATCHER, path).expect("it is there");
        let value =
            self.datapath().get_attribute(ino, b"user.tidefs.version").expect("an object has a version");
        Version(String::from_utf8_lossy(&value).parse().expect("a number"))
    }

    /// Brings an object back before it is used, as the session does. A miss is told by what comes next.
    pub(super) fn load(&self, ino: Ino) {
        if self.datapath().must_load(ino) {
            let _ = self.datapath().promote(ino);
        }
    }
}

/// More than the objects of these tests, by which the disk calls them.
const NUMBERS: std::ops::Range<u32> = 0..1000;

/// A mount with an object that is on disk alone.
fn demoted(path: &str) -> Logic {
    demoted_in(super::meanwhile::SETUP, path)
}

pub(super) fn demoted_in(setup: Setup, path: &str) -> Logic {
    let mut logic = Logic::new(Setup { has_ssd: true, ..setup });
    if let Some((directory, _)) = path.split_once('/') {
        logic.mkdir(WATCHER, directory).expect("mkdir");
    }
    let token = logic.open(WATCHER, path, super::resent::CREATE).expect("create");
    logic.write(WATCHER, token, 0, &bytes(1, 50_000)).expect("write");
    logic.close(WATCHER, token);
    logic.demote(ByteCount::mib(1));
    assert_eq!(logic.tier_of(path), "ssd");
    logic
}

/// The disk tells one by one of what went with it, and by the end of that some may stand on another.
#[test]
fn what_the_disk_gave_up_and_has_stored_again_since_is_not_taken_from_it() {
    let mut logic = demoted("k");
    let version = logic.version_of("k");
    let owner = logic.datapath().ssd_owner();
    NUMBERS.for_each(|number| owner.dropped(number, version, DroppedFor::Disk));
    let found = logic.open(WATCHER, "k", Open { read: true, ..Open::default() }).expect("it stays");
    assert!(logic.read(WATCHER, found, 0, 60_000).expect("read") == bytes(1, 50_000));
    logic.close(WATCHER, found);
}

#[test]
fn what_leaves_memory_is_counted_once_whether_a_disk_takes_it_or_not() {
    let mut logic = demoted("k");
    let evicted = |logic: &Logic| {
        let telemetry = logic.datapath().telemetry();
        (telemetry.evictions.get(), telemetry.evicted_bytes.get())
    };
    assert_eq!(evicted(&logic), (1, 50_000));
    let version = logic.version_of("k");
    let key: [&[u8]; 3] = [b"o", &DirectoryId::ROOT.0.to_le_bytes(), b"k"];
    logic.datapath().ssd().expect("a disk").remove(&key.concat(), version);
    let owner = logic.datapath().ssd_owner();
    NUMBERS.for_each(|number| owner.dropped(number, version, DroppedFor::Room));
    assert!(logic.stat(WATCHER, "k").is_err(), "it was on disk alone");
    assert_eq!(evicted(&logic), (1, 50_000));

    logic.limit_disk(ByteCount(1));
    logic.restart();
    let token = logic.open(WATCHER, "other", super::resent::CREATE).expect("create");
    logic.write(WATCHER, token, 0, &bytes(1, 50_000)).expect("write");
    logic.close(WATCHER, token);
    logic.demote(ByteCount::mib(1));
    assert!(logic.stat(WATCHER, "other").is_err(), "no disk took it");
    assert_eq!(evicted(&logic), (1, 50_000));
}

#[test]
fn what_is_pinned_hard_by_its_directory_is_pinned_on_disk_too() {
    let mut logic = demoted("d/k");
    let version = logic.version_of("d/k");
    let is_pinned = |logic: &Logic| {
        let owner = logic.datapath().ssd_owner();
        NUMBERS.into_iter().any(|number| owner.is_pinned(number, version))
    };
    assert!(!is_pinned(&logic));
    logic.policy(WATCHER, "d", "pin", Some("hard")).expect("it is pinned");
    assert!(is_pinned(&logic));
}

#[test]
fn what_comes_back_at_once_does_not_pass_a_quota_that_has_room_for_each() {
    let mut logic = demoted("d/k0");
    let names = ["d/k0", "d/k1", "d/k2", "d/k3"];
    for name in &names[1..] {
        let token = logic.open(WATCHER, name, super::resent::CREATE).expect("create");
        logic.write(WATCHER, token, 0, &bytes(1, 50_000)).expect("write");
        logic.close(WATCHER, token);
    }
    // One of them, and not quite another, which takes whole pages.
    let quota = 102 << 10;
    for _ in 0..20 {
        logic.policy(WATCHER, "d", "quota", Some("1GiB")).expect("a quota");
        logic.demote(ByteCount::mib(1));
        assert!(names.iter().all(|name| logic.tier_of(name) == "ssd"));
        logic.policy(WATCHER, "d", "quota", Some("102KiB")).expect("a quota");
        let inos = names.map(|name| logic.resolve(WATCHER, name).expect("it is there"));
        let logic_of_all = &logic;
        std::thread::scope(|scope| {
            inos.into_iter().for_each(|ino| _ = scope.spawn(move || logic_of_all.load(ino)));
        });
        let Space { capacity, free } = logic.space("d");
        assert_eq!(capacity, quota);
        assert_eq!(capacity - free, 53_248, "one has come back");
    }
}

/// Two objects that a disk alone has.
fn two_demoted() -> (Logic, [Ino; 2]) {
    let mut logic = demoted("d/k0");
    let token = logic.open(WATCHER, "d/k1", super::resent::CREATE).expect("create");
    logic.write(WATCHER, token, 0, &bytes(1, 50_000)).expect("write");
    logic.close(WATCHER, token);
    logic.demote(ByteCount::mib(1));
    let inos = ["d/k0", "d/k1"].map(|name| logic.resolve(WATCHER, name).expect("it is there"));
    (logic, inos)
}

#[test]
fn what_was_loaded_ahead_and_nobody_comes_for_gives_its_budget_back_though_memory_is_free() {
    let (mut logic, [first, second]) = two_demoted();
    let datapath = Arc::clone(logic.datapath());
    let loading = Arc::clone(&datapath);
    let loads = std::thread::spawn(move || loading.run_loads());
    assert_eq!(datapath.prefetch(&[first]), 1);
    assert!(until(HANG, || !datapath.must_load(first)));
    assert_eq!(datapath.prefetch(&[second]), 0, "there is a budget for one");
    // It counts from a moment after it has come.
    let is_left = || {
        logic.advance(Duration::from_secs(61), false);
        datapath.prefetch(&[second]) == 1
    };
    assert!(until(HANG, is_left));
    assert!(until(HANG, || !datapath.must_load(second)));
    datapath.loader().close();
    loads.join().expect("it ends");
}

#[test]
fn what_another_load_brought_first_is_not_counted_as_loaded_ahead_and_gives_its_budget_back() {
    let (logic, [first, second]) = two_demoted();
    let datapath = Arc::clone(logic.datapath());
    assert_eq!(datapath.prefetch(&[first]), 1);
    logic.load(first);
    let loading = Arc::clone(&datapath);
    let loads = std::thread::spawn(move || loading.run_loads());
    assert!(until(HANG, || datapath.prefetch(&[second]) == 1), "there is a budget for one");
    assert!(until(HANG, || !datapath.must_load(second)));
    datapath.loader().close();
    loads.join().expect("it ends");
    let telemetry = datapath.telemetry();
    let counted =
        [&telemetry.ssd_prefetches, &telemetry.ssd_prefetches_useful, &telemetry.ssd_prefetches_wasted];
    assert_eq!(counted.map(|counter| counter.get()), [1, 0, 0], "the second alone");
}

#[test]
fn a_client_is_not_told_that_what_is_on_disk_and_has_no_name_yet_is_absent() {
    let mut logic = demoted("k");
    logic.lose_memory_and_name(false);
    let datapath = logic.datapath();
    let session = datapath.begin_session(Credentials::of_request(0, 0, super::caller(0).thread), true);
    let mut told = Vec::new();
    let names = [&b"k"[..], b"other"];
    let tell = |located| told.push(located);
    datapath.locate(&session, &super::caller(0), Ino::ROOT, names.into_iter(), true, tell);
    assert_eq!(told, [Located::AskByFile, Located::Absent]);
    datapath.end_session(&session);
}

#[test]
fn what_is_on_disk_alone_is_not_brought_back_to_be_cut_to_nothing() {
    let mut logic = demoted("k");
    let cut = Open { write: true, truncate: true, ..Open::default() };
    let token = logic.open(WATCHER, "k", cut).expect("open");
    logic.write(WATCHER, token, 0, &bytes(2, 40_000)).expect("write");
    logic.close(WATCHER, token);
    let found = logic.open(WATCHER, "k", Open { read: true, ..Open::default() }).expect("open");
    assert!(logic.read(WATCHER, found, 0, 60_000).expect("read") == bytes(2, 40_000));
    logic.close(WATCHER, found);
    logic.drop_caches();
    logic.demote(ByteCount::mib(1));
    assert_eq!(logic.tier_of("k"), "ssd");
    logic.truncate(WATCHER, "k", 0).expect("truncate");
    assert_eq!(logic.stat(WATCHER, "k").expect("it is there").size, 0);
    assert_eq!(logic.datapath().telemetry().ssd_promotions.get(), 0);
}

#[test]
fn what_was_refused_an_attribute_or_lost_its_last_goes_to_the_disk_again() {
    let mut logic = demoted("k");
    let name = b"user.crc";
    let refuse = |datapath: &Datapath, ino| {
        let refused = datapath.set_attribute(ino, name, b"1", Some(Presence::Present));
        assert!(matches!(refused, Err(Error::NoAttribute)), "{refused:?}");
    };
    let set_and_remove = |datapath: &Datapath, ino| {
        datapath.set_attribute(ino, name, b"1", None).expect("it is set");
        datapath.set_attribute(ino, b"user.other", b"2", None).expect("another is set");
        datapath.remove_attribute(ino, name).expect("it is removed");
        datapath.remove_attribute(ino, b"user.other").expect("the other is removed");
    };
    for is_set in [false, true] {
        let ino = logic.resolve(WATCHER, "k").expect("it is there");
        logic.load(ino);
        if is_set {
            set_and_remove(logic.datapath(), ino)
        } else {
            refuse(logic.datapath(), ino)
        }
        logic.demote(ByteCount::mib(1));
        assert_eq!(logic.tier_of("k"), "ssd");
    }
    let found = logic.open(WATCHER, "k", Open { read: true, ..Open::default() }).expect("open");
    assert!(logic.read(WATCHER, found, 0, 60_000).expect("read") == bytes(1, 50_000));
    logic.close(WATCHER, found);
}

#[test]
fn what_is_on_disk_alone_has_no_attribute_of_a_program() {
    let mut logic = demoted("k");
    let ino = logic.resolve(WATCHER, "k").expect("it is there");
    let missing = logic.datapath().get_attribute(ino, b"user.crc");
    assert!(matches!(missing, Err(Error::NoAttribute)), "{missing:?}");
}

/// It would be forgotten with the daemon: its record on disk says nothing of that.
#[test]
fn an_attribute_of_what_could_not_be_brought_back_is_refused() {
    for name in [&b"user.tidefs.ttl"[..], b"user.own"] {
        let mut logic = demoted("k");
        let ino = logic.resolve(WATCHER, "k").expect("it is there");
        let refused = logic.datapath().set_attribute(ino, name, b"1h", None);
        assert!(matches!(refused, Err(Error::NoObject)), "{refused:?}");
        let missing = logic.datapath().get_attribute(ino, name);
        assert!(matches!(missing, Err(Error::NoAttribute)), "{missing:?}");
        logic.load(ino);
        logic.datapath().set_attribute(ino, name, b"1h", None).expect("it is set");
    }
    let pinned = demoted("k").datapath().pin(b"k", Some("hard")).expect("it counts on disk, too");
    assert_eq!(pinned, Some(Pin::Hard));
}

/// Of a segment of its own, and packed.
#[test]
fn what_a_program_attached_something_to_since_it_came_back_stands_on_no_disk() {
    for packed_max in [ByteCount::kib(4), ByteCount::kib(64)] {
        let mut logic = demoted_in(Setup { packed_max, ..super::meanwhile::SETUP }, "k");
        let ino = logic.resolve(WATCHER, "k").expect("it is there");
        logic.load(ino);
        logic.datapath().set_attribute(ino, b"user.own", b"x", None).expect("it is set");
        logic.lose_memory();
        assert_eq!(logic.stat(WATCHER, "k").err(), Some(Errno::ENOENT), "packed below {packed_max}");
    }
}
