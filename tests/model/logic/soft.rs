//! Copies of what other members hold that an earlier daemon left to one that is no member yet.

use std::time::Duration;

use tidefs::tier::memory::SOFT_COPY;
use tidefs_engine::types::ByteCount;

use super::resent::{CREATE, publish};
use super::{Logic, Setup};
use crate::common::pattern::bytes;
use crate::system::{Open, System, WATCHER};

/// A host that was started with a copy of `k`, and waits for its cluster.
fn host() -> Logic {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    publish(&mut logic, 0, 1);
    let tier = logic.datapath().tier();
    let facts = logic.datapath().facts(b"k").expect("it is there");
    let file = tier.open_segment(facts.segment.expect("one of its own")).expect("a segment");
    let mut record = tier.read_record(&file).expect("a record").expect("it is sealed");
    record.mode |= SOFT_COPY;
    tier.seal(&file, &record).expect("its record");
    drop(file);
    logic.restart();
    logic.datapath().expect_cluster();
    assert_eq!(soft(&logic), (1, 50_000));
    logic
}

/// Copies that leave first, and their bytes.
fn soft(logic: &Logic) -> (u64, u64) {
    logic.datapath().overview().expect("the tier answers").soft
}

#[test]
fn a_copy_that_leaves_a_host_which_is_no_member_yet_counts_as_one_no_more() {
    let mut logic = host();
    logic.demote(ByteCount::mib(1));
    assert_eq!(soft(&logic), (0, 0));
    let mut logic = host();
    logic.unlink(WATCHER, "k").expect("unlink");
    assert_eq!(soft(&logic), (0, 0));
}

#[test]
fn a_copy_that_is_written_counts_as_one_no_more() {
    let mut logic = host();
    let before = logic.datapath().telemetry().copy_ups.get();
    let writer = logic.open(0, "k", Open { write: true, ..Open::default() }).expect("open");
    assert_eq!(logic.datapath().telemetry().copy_ups.get(), before + 1);
    logic.close(0, writer);
    assert_eq!(soft(&logic), (0, 0));
    assert!(logic.stat(WATCHER, "k").is_ok());
}

/// Makes a file, and closes it.
fn write(logic: &mut Logic, path: &str, length: usize) {
    let token = logic.open(0, path, CREATE).expect("create");
    logic.write(0, token, 0, &bytes(2, length)).expect("write");
    logic.close(0, token);
}

#[test]
fn a_temporary_file_that_nobody_renames_keeps_no_copy_from_leaving_before_objects_of_other_directories() {
    let mut logic = host();
    logic.mkdir(WATCHER, "d").expect("mkdir");
    logic.policy(WATCHER, "d", "quota", Some("1MiB")).expect("an order of its own");
    // It holds more than its share.
    write(&mut logic, "d/x", 300_000);
    write(&mut logic, "late.tmp", 8192);
    logic.advance(Duration::from_secs(61), true);
    // The copy is used after it, and is behind it in the order.
    let reader = logic.open(0, "k", Open { read: true, ..Open::default() }).expect("open");
    logic.close(0, reader);
    logic.demote(ByteCount(1));
    assert!(logic.stat(WATCHER, "late.tmp").is_err(), "something else left");
    logic.demote(ByteCount(1));
    assert_eq!(soft(&logic), (0, 0));
    assert!(logic.stat(WATCHER, "d/x").is_ok(), "nobody else has it");
}
