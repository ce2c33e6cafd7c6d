//! Quotas: what counts in one, whose place it takes, and what leaves for it.

use super::{CREATE, READ, WRITE, at, start};
use crate::logic::Logic;
use crate::operation::{NAMES, Op, Pick, Setting, Target};
use crate::run::Run;
use crate::system::{Open, System};

/// `name` in one of the directories that exist.
fn within(directory: u16, name: &str) -> Target {
    let name = NAMES.iter().position(|known| *known == name).expect("a name of the language");
    Target::Named { directory: Pick(directory), name }
}

impl<S: System> Run<S> {
    fn quota(&mut self, kib: u64) {
        let setting = Setting::Quota(Some(kib));
        self.step(&Op::DirectoryPolicy { who: 0, directory: Pick(0), setting });
    }
}

#[test]
fn a_rename_within_a_full_quota_evicts_nothing() {
    let mut run = start();
    run.quota(100);
    run.stored(0, "k0", 60_000);
    run.renamed(0, "k0", "k1");
    assert!(run.seen(1, "k1"));
}

#[test]
fn a_file_written_in_pieces_does_not_pass_its_quota() {
    let mut run = start();
    run.quota(100);
    let writer = run.opened(0, "k0", CREATE);
    for piece in 0..4 {
        run.written(writer, piece * 40_000, 40_000);
    }
    run.closed(writer);
    assert!(!run.seen(1, "k0"), "what its writer could not write whole is no object");
}

#[test]
fn files_written_at_once_do_not_pass_their_quota() {
    let mut run = start();
    run.quota(100);
    let writers = ["k0", "k1"].map(|name| run.opened(0, name, CREATE));
    for writer in writers {
        run.written(writer, 0, 60_000);
    }
    for writer in writers {
        run.closed(writer);
    }
    assert!(run.seen(1, "k0") && !run.seen(1, "k1"), "what is being written makes no room for others");
}

#[test]
fn what_was_closed_before_a_rename_counts_whole_beside_the_version_that_is_begun_after_it() {
    let mut run = start();
    run.quota(160);
    let [reader, writer] = run.overtaken("k0", 60_000, 60_000);
    run.stored(1, "k1", 60_000);
    assert!(run.seen(1, "k1"), "what is written counts in the place of the object");
    let second = run.opened(1, "k0", WRITE);
    assert!(!run.seen(1, "k1"), "one of the two does");
    for token in [writer, second, reader] {
        run.closed(token);
    }
}

#[test]
fn what_is_written_over_stays_though_what_was_to_replace_it_before_counts_whole_from_then_on() {
    let mut run = start();
    run.quota(160);
    let [reader, writer] = run.overtaken("k0", 80_000, 60_000);
    run.stored(1, "k1", 40_000);
    let other = run.opened(2, "k1", READ);
    let second = run.opened(1, "k0", Open { truncate: true, ..WRITE });
    assert!(run.seen(2, "k0"), "nobody could have it in its place");
    for token in [writer, second, other, reader] {
        run.closed(token);
    }
}

#[test]
fn what_was_closed_before_a_rename_counts_whole_when_the_object_is_renamed_over_what_is_written() {
    let mut run = start();
    run.quota(160);
    let [reader, writer] = run.overtaken("k0", 60_000, 60_000);
    run.stored(1, "k1", 10_000);
    let second = run.opened(2, "k1", READ);
    let other = run.opened(1, "k1", WRITE);
    run.stored(1, "k2", 60_000);
    assert!(run.seen(1, "k2"), "what was closed counts in the place of the object");
    run.renamed(2, "k0", "k1");
    assert!(!run.seen(1, "k2"), "it does not any more");
    for token in [writer, other, second, reader] {
        run.closed(token);
    }
}

#[test]
fn a_closed_temporary_file_counts_in_its_quota_and_goes_first_when_nobody_came_for_it() {
    let mut run = start();
    run.quota(100);
    run.stored(0, "k0", 20_000);
    run.stored(0, "k3.tmp", 60_000);
    let second = run.opened(0, "k1", CREATE);
    run.written(second, 0, 30_000);
    assert!(!run.seen(1, "k0") && run.seen(1, "k3.tmp"), "its rename may be on the way");
    run.closed(second);
    run.step(&Op::Advance { seconds: 61, expires: true });
    run.stored(0, "k2", 60_000);
    assert!(run.seen(1, "k1") && run.seen(1, "k2") && !run.seen(1, "k3.tmp"));
}

#[test]
fn a_directory_that_moves_below_full_quotas_makes_room_in_each() {
    let mut run = start();
    // They are the root, d0, d0/d1 and d1.
    for (directory, name) in [(0, "d0"), (1, "d1"), (0, "d1")] {
        run.step(&Op::Mkdir { who: 0, target: within(directory, name) });
    }
    for (directory, kib) in [(1, 100), (2, 10)] {
        let setting = Setting::Quota(Some(kib));
        run.step(&Op::DirectoryPolicy { who: 0, directory: Pick(directory), setting });
    }
    for (directory, name) in [(3, "k0"), (1, "k1")] {
        run.step(&Op::Put { who: 0, target: within(directory, name), length: 60_000, seed: 1 });
    }
    // What cannot go passes the nearer quota; the farther one has room for it when the other object leaves.
    let moved = *run.model.directories.keys().nth(3).expect("there are four");
    let reader = run.open(0, moved, "k0", READ).expect("it opens");
    let token = run.model.handles[reader].token;
    run.step(&Op::RenameDirectory { who: 0, directory: Pick(2), to: within(2, "d0") });
    assert!(run.seen(1, "d0/d1/d0/k0") && !run.seen(1, "d0/k1"));
    run.closed(token);
}

#[test]
fn a_temporary_file_that_a_smaller_quota_found_there_is_no_object_above_it_in_another_directory() {
    let mut run = start();
    run.step(&Op::Mkdir { who: 0, target: at("d0") });
    run.step(&Op::Put { who: 0, target: within(1, "k3.tmp"), length: 192_972, seed: 1 });
    run.quota(11);
    run.step(&Op::Rename { who: 0, from: within(1, "k3.tmp"), to: at("k0"), keep: false });
    assert!(!run.seen(1, "k0"), "it is larger than the quota");
}

#[test]
fn what_moves_to_disk_leaves_its_quota() {
    let mut run = start();
    run.step(&Op::Mkdir { who: 0, target: at("d0") });
    let setting = Setting::Quota(Some(100));
    run.step(&Op::DirectoryPolicy { who: 0, directory: Pick(1), setting });
    let inside = Target::Named { directory: Pick(1), name: 0 };
    let free = |run: &mut Run<Logic>| run.system.space("d0").free;
    let place = run.open(0, 2, "k0", CREATE).expect("it opens");
    let token = run.model.handles[place].token;
    run.written(token, 0, 60_000);
    assert_eq!(free(&mut run), (100 << 10) - 61_440);
    run.step(&Op::Unlink { who: 0, target: inside });
    assert_eq!(free(&mut run), 100 << 10);
    run.closed(token);
}
