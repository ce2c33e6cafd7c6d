//! Versions that all had closed when another one was renamed to their name.

use super::{READ, WRITE, start};
use crate::operation::{Op, Pick};
use crate::system::System;

#[test]
fn what_was_closed_before_a_rename_takes_its_place_only_when_it_is_written_and_closed_after_that() {
    for is_written in [false, true] {
        let mut run = start();
        run.stored(0, "k0", 20_000);
        let reader = run.opened(2, "k0", READ);
        let writer = run.opened(0, "k0", WRITE);
        run.step(&Op::Flush { handle: Pick(1) });
        run.stored(1, "k3.tmp", 30_000);
        run.renamed(1, "k3.tmp", "k0");
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
        run.stored(0, "k0", 20_000);
        let mut open = vec![run.opened(2, "k0", READ), run.opened(0, "k0", WRITE)];
        run.step(&Op::Flush { handle: Pick(1) });
        run.stored(1, "k3.tmp", 30_000);
        run.renamed(1, "k3.tmp", "k0");
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
