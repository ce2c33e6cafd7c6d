//! Copies of what other members hold that an earlier daemon left to one that is no member yet.

use tidefs::tier::memory::SOFT_COPY;
use tidefs_engine::types::ByteCount;

use super::resent::publish;
use super::{Logic, Setup};
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
