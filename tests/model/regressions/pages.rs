//! Pages that nobody wrote: holes that a close fills, and what was reserved beyond the end.

use tidefs_engine::types::ByteCount;

use super::{CREATE, SETUP, at};
use crate::logic::Logic;
use crate::operation::{Op, Pick};
use crate::run::Run;
use crate::setup::Setup;
use crate::system::{Change, System};

/// Every object has a segment of its own: what is in use tells of holes, too.
fn start() -> Run<Logic> {
    super::start_with(Setup { packed_max: ByteCount::ZERO, ..SETUP })
}

/// Makes a file of `length` bytes, does `change` to its pages, sets a time and closes it: that is its time.
#[track_caller]
fn assert_time_stays(length: usize, change: Change) {
    let mut run = start();
    let writer = run.opened(0, "k0", CREATE);
    if length > 0 {
        run.written(writer, 0, length);
    }
    run.step(&Op::Resize { handle: Pick(0), change });
    run.step(&Op::Utimens { who: 0, target: at("k0"), mtime_ns: 1_000_000_000 });
    run.closed(writer);
    assert_eq!(run.system.stat(1, "k0").expect("it is there").mtime_ns, Some(1_000_000_000));
}

#[test]
fn a_time_set_before_the_close_stays_though_the_close_gives_pages_back() {
    assert_time_stays(0, Change::Allocate { offset: 0, length: 50_000, keep_size: true });
}

#[test]
fn a_time_set_before_the_close_stays_though_the_close_fills_a_hole() {
    assert_time_stays(50_000, Change::Punch { offset: 3000, length: 60_000 });
}

#[test]
fn pages_reserved_behind_a_hole_are_given_back() {
    let mut run = start();
    let writer = run.opened(0, "k0", CREATE);
    run.written(writer, 0, 10_000);
    run.written(writer, 5173, 34_392);
    run.step(&Op::Resize { handle: Pick(0), change: Change::Punch { offset: 0, length: 4397 } });
    run.closed(writer);
    run.system.assert_all_is_accounted_for();
}

#[test]
fn pages_reserved_beyond_the_end_of_an_object_are_given_back_at_a_restart() {
    let mut run = start();
    run.opened(0, "k0", CREATE);
    run.renamed(0, "k0", "k1");
    let change = Change::Allocate { offset: 100_000, length: 50_000, keep_size: true };
    run.step(&Op::Resize { handle: Pick(0), change });
    run.restarted();
    run.system.assert_all_is_accounted_for();
}

#[test]
fn a_hole_that_is_made_after_the_rename_is_filled_at_the_close() {
    let mut run = start();
    let writer = run.opened(0, "k0", CREATE);
    run.written(writer, 0, 30_000);
    run.renamed(0, "k0", "k1");
    run.step(&Op::Resize { handle: Pick(0), change: Change::Punch { offset: 0, length: 20_000 } });
    run.closed(writer);
    assert!(run.system.books().expect("they are open").used >= 30_000);
}

#[test]
fn a_hole_that_is_made_after_the_rename_is_filled_at_a_restart() {
    let mut run = start();
    run.opened(0, "k0", CREATE);
    run.step(&Op::Truncate { who: 0, target: at("k0"), length: 27_318 });
    run.renamed(0, "k0", "k1");
    run.step(&Op::Resize { handle: Pick(0), change: Change::Punch { offset: 3054, length: 37_032 } });
    run.restarted();
    assert!(run.seen(1, "k1"));
    run.system.assert_all_is_accounted_for();
}

#[test]
fn an_object_that_its_writer_made_longer_is_there_after_a_restart_of_a_full_cache() {
    let mut run = start();
    let writer = run.opened(0, "k0", CREATE);
    run.written(writer, 0, 60_000);
    run.renamed(0, "k0", "k1");
    // Within its last page.
    run.written(writer, 60_000, 1);
    run.stored(0, "k0", 60_000);
    let used = run.system.books().expect("they are open").used;
    let left = usize::try_from(SETUP.capacity.get() - used).expect("a small cache");
    run.stored(0, "k2", left - 32_768);
    assert!(run.seen(1, "k0") && run.seen(1, "k2"), "there is room for all, and not for a copy of the first");
    run.restarted();
    assert!(run.seen(1, "k1"), "what is colder leaves for it");
    run.system.assert_all_is_accounted_for();
}

#[test]
fn a_file_that_was_cut_to_the_length_that_it_had_has_all_its_pages_when_it_grew() {
    let mut run = start();
    let writer = run.opened(0, "k0", CREATE);
    let ahead = Change::Allocate { offset: 0, length: 500_000, keep_size: true };
    for change in [ahead, Change::Set(0), Change::Set(500_000)] {
        run.step(&Op::Resize { handle: Pick(0), change });
    }
    assert!(run.system.books().expect("they are open").used >= 500_000, "it may be mapped now");
    run.closed(writer);
    run.system.assert_all_is_accounted_for();
}
