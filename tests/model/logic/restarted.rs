//! What the next daemon does with what an earlier one sealed.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidefs::datapath::KernelCache;
use tidefs::namespace::Ino;
use tidefs_engine::types::ByteCount;

use super::resent::{CREATE, publish};
use super::{Logic, Setup};
use crate::common::pattern::bytes;
use crate::common::sys::get_xattr;
use crate::system::{Open, System};

const WRITE: Open = Open { create: false, ..CREATE };
const READ: Open = Open { read: true, write: false, ..WRITE };

/// Who has mapped it may live, and the kernel tells the next daemon nothing of that.
#[test]
fn what_an_earlier_daemon_sealed_is_not_changed_where_it_is() {
    for is_cut in [false, true] {
        let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
        publish(&mut logic, 0, 1);
        let ino = logic.resolve(1, "k").expect("it is there");
        let mapped = logic.datapath().backing_file(ino).expect("its segment");
        logic.restart();
        if is_cut {
            logic.truncate(2, "k", 100).expect("truncate");
        } else {
            let writer = logic.open(2, "k", WRITE).expect("open");
            logic.write(2, writer, 0, &bytes(2, 1000)).expect("write");
            logic.close(2, writer);
        }
        let mut found = vec![0; 50_000];
        mapped.read_exact_at(&mut found, 0).expect("its bytes");
        assert!(found == bytes(1, 50_000), "cut: {is_cut}");
        let counted = logic.datapath().telemetry();
        assert_eq!((counted.copy_ups.get(), counted.unseals.get()), (1, 0), "cut: {is_cut}");
    }
}

/// One renamed while it is open, one whose close is announced and may not be the last.
#[test]
fn what_has_a_writer_when_the_daemon_ends_does_not_change_after_the_start() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    let renamed = logic.open(0, "k0.tmp", CREATE).expect("create");
    let closing = logic.open(0, "k1", CREATE).expect("create");
    for token in [renamed, closing] {
        logic.write(0, token, 0, &bytes(1, 50_000)).expect("write");
    }
    logic.rename(0, "k0.tmp", "k0", false).expect("rename");
    let segments = ["k0", "k1"].map(|name| {
        let ino = logic.resolve(0, name).expect("its writer sees it");
        logic.datapath().backing_file(ino).expect("its segment")
    });
    logic.flush(0, closing);
    logic.restart();
    for (segment, name) in segments.iter().zip(["k0", "k1"]) {
        segment.write_all_at(&[0xEE; 100], 0).expect("its writer goes on");
        let found = logic.open(1, name, READ).expect("open");
        assert!(logic.read(1, found, 0, 60_000).expect("read") == bytes(1, 50_000), "{name}");
        logic.close(1, found);
    }
    drop(segments);
    logic.assert_all_is_accounted_for();
}

/// As of what `cp -p` makes of an old file.
#[test]
fn the_time_to_live_of_what_was_being_closed_counts_from_its_close_whatever_its_mtime_is() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    logic.policy(0, "", "ttl", Some("30")).expect("a time to live");
    let writer = logic.open(0, "k", CREATE).expect("create");
    logic.write(0, writer, 0, &bytes(1, 50_000)).expect("write");
    logic.utimens(0, "k", 1_000_000_000_000_000_000).expect("utimensat");
    logic.flush(0, writer);
    logic.restart();
    logic.advance(Duration::ZERO, true);
    assert!(logic.stat(1, "k").is_ok());
}

#[test]
fn what_its_writer_closed_after_the_rename_is_not_copied_at_the_start() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    let writer = logic.open(0, "k.tmp", CREATE).expect("create");
    logic.write(0, writer, 0, &bytes(1, 50_000)).expect("write");
    logic.rename(0, "k.tmp", "k", false).expect("rename");
    logic.close(0, writer);
    let segment = |logic: &mut Logic| {
        let ino = logic.resolve(1, "k").expect("it is there");
        let file = logic.datapath().backing_file(ino).expect("its segment");
        file.metadata().expect("stat").ino()
    };
    let before = segment(&mut logic);
    logic.restart();
    assert_eq!(segment(&mut logic), before);
}

#[test]
fn what_has_no_room_after_a_restart_with_less_is_on_disk_as_it_was_in_memory() {
    let mut logic = Logic::new(Setup { has_ssd: true, ..Setup::of(ByteCount::mib(4)) });
    let names: Vec<String> = (0..40).map(|number| format!("k{number}")).collect();
    for (seed, name) in (0..).zip(&names) {
        let token = logic.open(0, name, CREATE).expect("create");
        logic.write(0, token, 0, &bytes(seed, 50_000)).expect("write");
        logic.close(0, token);
    }
    logic.demote(ByteCount::kib(500));
    // They come back for that, and what their records on disk say is not true any more.
    let changed = &names[..5];
    changed.iter().for_each(|name| logic.chmod(0, name, 0o600).expect("chmod"));
    logic.setup.capacity = ByteCount::mib(1);
    logic.restart();
    assert!(!logic.datapath().tier().report().shrink_pending);
    for name in &names {
        let mode = if changed.contains(name) { 0o600 } else { 0o644 };
        assert_eq!(logic.stat(1, name).expect("it is there").mode & 0o777, mode, "{name}");
    }
    // What is in memory first: what comes back from disk pushes it out.
    let mut seeded: Vec<(u64, &String)> = (0..).zip(&names).collect();
    seeded.sort_by_key(|&(_, name)| logic.tier_of(name) == "ssd");
    for (seed, name) in seeded {
        let found = logic.open(1, name, READ).expect("open");
        assert!(logic.read(1, found, 0, 60_000).expect("read") == bytes(seed, 50_000), "{name}");
        logic.close(1, found);
    }
}

/// Which share pages: those of one are free when the last of them has left.
#[test]
fn a_cache_full_of_small_objects_is_within_a_smaller_capacity_after_a_restart() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(4)));
    for number in 0.. {
        let token = logic.open(0, &format!("k{number}"), CREATE).expect("create");
        logic.write(0, token, 0, &bytes(number, 300)).expect("write");
        logic.close(0, token);
        if logic.datapath().telemetry().evictions.get() > 0 {
            break;
        }
    }
    logic.setup.capacity = ByteCount::mib(2);
    logic.restart();
    let usage = logic.datapath().tier().usage().expect("the tier answers");
    assert!(usage.used <= usage.capacity, "{usage:?}");
    assert!(!logic.datapath().tier().report().shrink_pending);
    assert!(!logic.list(1, "").expect("the top").is_empty(), "what there is room for stays");
}

/// Looks, when the kernel is told of an object that left, for what a restart would find at that moment.
#[derive(Debug)]
struct Onlooker {
    memory: PathBuf,
    attribute: String,
    told: AtomicUsize,
    found: AtomicUsize,
}

impl KernelCache for Onlooker {
    fn forget_attributes(&self, _: Ino) {}
    fn forget_attributes_now(&self, _: Ino) {
        let files = std::fs::read_dir(&self.memory).expect("the tier's directory");
        let has_record =
            |path: PathBuf| get_xattr(&path, &self.attribute).is_ok_and(|record| !record.is_empty());
        let found = files.filter(|file| has_record(file.as_ref().expect("an entry").path())).count();
        self.told.fetch_add(1, Ordering::Relaxed);
        self.found.fetch_add(found, Ordering::Relaxed);
    }
    fn drop_idle(&self, _: &[Ino]) {}
    fn has_backing(&self, _: Ino) -> bool {
        false
    }
    fn release_backing(&self, _: Ino) {}
    fn forget_names(&self) -> bool {
        false
    }
}

/// Its name may be written and removed again before its bytes are freed, with a kill behind that.
#[test]
fn what_leaves_its_name_is_out_of_reach_of_a_restart_at_once() {
    let unlink: fn(&mut Logic) = |logic| logic.unlink(0, "k").expect("unlink");
    let expire: fn(&mut Logic) = |logic| {
        logic.policy(0, "k", "ttl", Some("5")).expect("a time to live");
        logic.advance(Duration::from_secs(6), true);
    };
    for (way, leave) in [("unlinked", unlink), ("expired", expire)] {
        let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
        publish(&mut logic, 0, 1);
        logic.resolve(1, "k").expect("the kernel knows it");
        let kernel = Arc::new(Onlooker {
            memory: logic.memory(),
            attribute: logic.datapath().tier().report().record_attribute,
            told: AtomicUsize::new(0),
            found: AtomicUsize::new(0),
        });
        logic.datapath().attach_kernel(Arc::<Onlooker>::clone(&kernel), false);
        leave(&mut logic);
        assert!(logic.stat(1, "k").is_err(), "{way}");
        assert_ne!(kernel.told.load(Ordering::Relaxed), 0, "{way}");
        assert_eq!(kernel.found.load(Ordering::Relaxed), 0, "{way}");
    }
}
