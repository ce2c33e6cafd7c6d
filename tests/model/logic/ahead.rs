//! What is copied to the disk ahead, while it stays in memory, so that it can leave at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidefs::datapath::AttributeChange;
use tidefs_engine::types::{ByteCount, DirectoryId};

use super::Logic;
use super::ssd::demoted_in;
use crate::common::pattern::bytes;
use crate::common::wait::{HANG, until};
use crate::setup::Setup;
use crate::system::{Change, System, WATCHER};

/// Objects of 200 kB beside it.
fn write_others(logic: &mut Logic, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let token = logic.open(WATCHER, &format!("other{number}"), super::resent::CREATE).expect("create");
        logic.write(WATCHER, token, 0, &bytes(number, 200_000)).expect("write");
        logic.close(WATCHER, token);
    }
}

/// Brings an object back and sets its times, as a cache does that keeps its own order.
fn touch(logic: &mut Logic, path: &str, mtime_ns: Option<i64>) {
    let ino = logic.resolve(WATCHER, path).expect("it is there");
    logic.load(ino);
    assert_eq!(logic.tier_of(path), "memory");
    let change = AttributeChange { atime_ns: Some(5), mtime_ns, ..AttributeChange::default() };
    logic.datapath().setattr(&super::caller(0), ino, &change).expect("it has times");
}

#[test]
fn what_came_back_from_disk_and_was_touched_is_not_lost_when_room_is_needed_at_once() {
    let mut logic = demoted_in(Setup::of(ByteCount::mib(2)), "k");
    touch(&mut logic, "k", None);
    write_others(&mut logic, 0..12);
    assert_eq!(logic.tier_of("k"), "ssd");
}

#[test]
fn what_is_otherwise_on_disk_than_in_memory_is_copied_there_again_before_it_leaves() {
    let setup = Setup { write_headroom: ByteCount::kib(600), ..Setup::of(ByteCount::mib(2)) };
    let mut logic = demoted_in(setup, "k");
    touch(&mut logic, "k", Some(5));
    // Less than twice the headroom is free, and more than that: copies are made, and nothing leaves.
    write_others(&mut logic, 0..6);
    let (datapath, is_over) = (Arc::clone(logic.datapath()), AtomicBool::new(false));
    let stored = || datapath.ssd().expect("a disk").status().devices[0].stored;
    std::thread::scope(|scope| {
        scope.spawn(|| datapath.demote_in_background(|| is_over.load(Ordering::Relaxed)));
        let is_copied = until(HANG, || stored() == ByteCount(2 * 50_000 + 6 * 200_000));
        is_over.store(true, Ordering::Relaxed);
        assert!(is_copied, "{} are stored", stored());
    });
    write_others(&mut logic, 6..12);
    assert_eq!(logic.tier_of("k"), "ssd");
}

/// Makes objects of `size` bytes, the first one coldest.
fn fill(logic: &mut Logic, prefix: &str, count: usize, size: u64) {
    for number in 0..count {
        let token = logic.open(WATCHER, &format!("{prefix}{number}"), super::resent::CREATE).expect("create");
        logic.resize(WATCHER, token, Change::Set(size)).expect("its length");
        logic.close(WATCHER, token);
    }
}

/// Does `action` while the demoter runs.
fn while_demoting(logic: &mut Logic, action: impl FnOnce(&mut Logic)) {
    let (datapath, is_over) = (Arc::clone(logic.datapath()), Arc::new(AtomicBool::new(false)));
    let ends = Arc::clone(&is_over);
    let demoter = std::thread::spawn(move || datapath.demote_in_background(|| ends.load(Ordering::Relaxed)));
    action(logic);
    is_over.store(true, Ordering::Relaxed);
    demoter.join().expect("it ends");
}

/// It is short of room from the start on, and has as much free as is wanted until half of it is used.
const HALF_FREE: Setup =
    Setup { has_ssd: true, write_headroom: ByteCount::mib(256), ..super::meanwhile::SETUP };

#[test]
fn what_stays_in_memory_is_not_counted_as_refused_by_the_disks() {
    let mut logic = Logic::new(HALF_FREE);
    logic.limit_disk(ByteCount(1));
    logic.restart();
    fill(&mut logic, "k", 20, 50_000);
    while_demoting(&mut logic, |logic| {
        for _ in 0..10 {
            logic.advance(Duration::from_secs(1), false);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let datapath = logic.datapath();
    assert_eq!(datapath.ssd().expect("a disk").status().refused_day, 0);
    assert_eq!(datapath.telemetry().ssd_refusals.get(), 0);
    assert_eq!(datapath.overview().expect("the tier answers").objects, 20);
}

#[test]
fn what_fits_no_zone_keeps_nothing_behind_it_from_being_copied() {
    let mut logic = Logic::new(HALF_FREE);
    fill(&mut logic, "large", 20, 5 << 20);
    fill(&mut logic, "small", 1, 50_000);
    let key: [&[u8]; 3] = [b"o", &DirectoryId::ROOT.0.to_le_bytes(), b"small0"];
    while_demoting(&mut logic, |logic| {
        let ssd = logic.datapath().ssd().expect("a disk");
        assert!(until(HANG, || ssd.holds(&key.concat()).is_some()));
    });
    assert_eq!(logic.tier_of("small0"), "memory");
}
