//! Versions that all had closed when another one was renamed to their name.

use super::{READ, SETUP, WRITE, start, start_with};
use crate::operation::{Op, Pick};
use crate::setup::Setup;
use crate::system::System;

#[test]
fn what_was_closed_before_a_rename_takes_its_place_only_when_it_is_written_and_closed_after_that() {
    for is_written in [false, true] {
        let mut run = start();
        let [reader, writer] = run.overtaken("k0", 20_000, 30_000);
        if is_written {
            run.written(writer, 0, 10);
        }
        run.step(&Op::Flush { handle: Pick(1) });
        run.closed(writer);
        let length = if is_written { 20_000 } else { 30_000 };
        assert_eq!(run.system.stat(2, "k0").expect("it is there").size, length);
        run.closed(reader);
        run.restarted();
    }
}

#[test]
fn what_was_closed_before_a_rename_goes_along_with_the_object_unless_somebody_writes_what_that_replaces() {
    for (is_written, is_rewritten) in [(false, true), (true, true), (true, false)] {
        let mut run = start();
        let mut open = Vec::from(run.overtaken("k0", 20_000, 30_000));
        if is_written {
            run.written(open[1], 0, 10);
        }
        run.stored(1, "k1", 10_000);
        open.push(run.opened(2, "k1", READ));
        if is_rewritten {
            open.push(run.opened(1, "k1", WRITE));
        }
        run.renamed(2, "k0", "k1");
        if let Some(&writer) = open.get(3) {
            run.written(writer, 10_000, 10);
        }
        let length = if is_written { 20_000 } else { 10_010 };
        open.into_iter().for_each(|token| run.closed(token));
        assert_eq!(run.system.stat(2, "k1").expect("it is there").size, length);
        run.restarted();
    }
}

#[test]
fn what_was_closed_before_a_rename_gives_way_to_the_version_that_is_begun_after_it() {
    for forgets_at_once in [false, true] {
        let mut run = start_with(Setup { forgets_at_once, ..SETUP });
        let [reader, writer] = run.overtaken("k0", 20_000, 30_000);
        let second = run.opened(1, "k0", WRITE);
        run.written(second, 30_000, 10);
        run.written(writer, 0, 10);
        run.closed(writer);
        run.closed(second);
        assert_eq!(run.system.stat(2, "k0").expect("it is there").size, 30_010);
        run.closed(reader);
        run.restarted();
    }
}
