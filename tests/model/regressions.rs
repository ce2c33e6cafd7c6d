//! Sequences that once went wrong, each by the rule that it broke. The model knows the rule; these only lead there.

use tidefs_engine::types::ByteCount;

use super::logic::Logic;
use super::operation::{NAMES, Op, Pick, Setting, Target};
use super::reference::ROOT;
use super::run::Run;
use super::setup::Setup;
use super::system::{Change, Open, System};

mod overtaken;
mod pages;
mod quota;

const SETUP: Setup = Setup::of(ByteCount::mib(1));

const READ: Open = Open { read: true, write: false, create: false, exclusive: false, truncate: false };
const WRITE: Open = Open { write: true, read: false, ..READ };
const CREATE: Open = Open { create: true, ..WRITE };

fn start() -> Run<Logic> {
    start_with(SETUP)
}

fn start_with(setup: Setup) -> Run<Logic> {
    Run::new(Logic::new(setup), setup.capacity.get(), setup.scratch_min.get())
}

/// `name` in the root.
fn at(name: &str) -> Target {
    let name = NAMES.iter().position(|known| *known == name).expect("a name of the language");
    Target::Named { directory: Pick(0), name }
}

impl<S: System> Run<S> {
    fn stored(&mut self, who: usize, name: &str, length: usize) {
        self.step(&Op::Put { who, target: at(name), length, seed: length as u64 + 7 });
    }

    /// Opens `name` in the root and returns the token of the handle.
    fn opened(&mut self, who: usize, name: &str, options: Open) -> u64 {
        let place = self.open(who, ROOT, name, options).expect("it opens");
        self.compare();
        self.model.handles[place].token
    }

    fn place(&self, token: u64) -> usize {
        self.model.handles.iter().position(|handle| handle.token == token).expect("an open handle")
    }

    fn written(&mut self, token: u64, offset: u64, length: usize) {
        self.write(self.place(token), offset, &super::common::pattern::bytes(offset + 1, length));
        self.compare();
    }

    fn closed(&mut self, token: u64) {
        self.close(self.place(token));
        self.compare();
        self.compare_bytes();
    }

    fn renamed(&mut self, who: usize, from: &str, to: &str) {
        self.step(&Op::Rename { who, from: at(from), to: at(to), keep: false });
    }

    fn unlinked(&mut self, who: usize, name: &str) {
        self.step(&Op::Unlink { who, target: at(name) });
    }

    fn seen(&mut self, who: usize, name: &str) -> bool {
        self.system.stat(who, name).is_ok()
    }

    /// A reader has `name`, of `length` bytes, open, a writer has closed a version over it, and another object, of `later` bytes, is
    /// renamed to the name before its RELEASE. Returns the reader and that writer.
    fn overtaken(&mut self, name: &str, length: usize, later: usize) -> [u64; 2] {
        self.stored(0, name, length);
        let reader = self.opened(2, name, READ);
        let writer = self.opened(0, name, WRITE);
        self.step(&Op::Flush { handle: Pick(1) });
        self.stored(1, "k3.tmp", later);
        self.renamed(1, "k3.tmp", name);
        [reader, writer]
    }

    fn restarted(&mut self) {
        self.step(&Op::Restart);
    }
}

#[test]
fn a_truncate_by_name_of_an_object_in_use_lasts() {
    let mut run = start();
    run.stored(0, "k0", 20_000);
    let reader = run.opened(1, "k0", READ);
    run.step(&Op::Truncate { who: 0, target: at("k0"), length: 100 });
    run.step(&Op::Advance { seconds: 60, expires: true });
    run.closed(reader);
    assert_eq!(run.system.stat(2, "k0").expect("it is there").size, 100);
}

#[test]
fn a_second_writer_of_an_object_joins_the_first() {
    let mut run = start();
    run.stored(0, "k0", 20_000);
    let reader = run.opened(2, "k0", READ);
    let (first, second) = (run.opened(0, "k0", WRITE), run.opened(1, "k0", WRITE));
    run.written(first, 0, 10);
    run.written(second, 10, 10);
    for token in [first, second, reader] {
        run.closed(token);
    }
}

#[test]
fn who_rewrites_an_object_moves_and_unlinks_all_of_it() {
    for forgets_at_once in [false, true] {
        let mut run = start_with(Setup { forgets_at_once, ..SETUP });
        run.stored(0, "k0", 20_000);
        let reader = run.opened(2, "k0", READ);
        let writer = run.opened(0, "k0", WRITE);
        run.renamed(0, "k0", "k1");
        assert!(!run.seen(2, "k0"), "the old version stays under the old name");
        run.closed(writer);
        let writer = run.opened(1, "k1", WRITE);
        run.unlinked(1, "k1");
        assert!(!run.seen(2, "k1"), "the old version survives the unlink of the name");
        run.closed(writer);
        run.closed(reader);
        run.restarted();
    }
}

#[test]
fn an_object_that_is_moved_while_it_is_rewritten_takes_its_writer_along() {
    let mut run = start();
    run.stored(0, "k0", 20_000);
    let reader = run.opened(2, "k0", READ);
    let writer = run.opened(0, "k0", WRITE);
    run.renamed(1, "k0", "k1");
    run.written(writer, 0, 10);
    run.closed(writer);
    assert!(!run.seen(2, "k0"));
    // And can be rewritten again.
    let writer = run.opened(0, "k1", WRITE);
    run.closed(writer);
    run.closed(reader);
}

#[test]
fn a_new_version_under_a_temporary_name_stays_under_it() {
    let mut run = start();
    run.stored(0, "k0", 20_000);
    let reader = run.opened(2, "k0", READ);
    let writer = run.opened(0, "k0", WRITE);
    run.renamed(0, "k0", "k3.tmp");
    run.closed(writer);
    assert!(run.seen(2, "k3.tmp") && !run.seen(2, "k0"));
    run.closed(reader);
}

#[test]
fn what_is_being_rewritten_is_seen_while_a_duplicate_is_closed() {
    let mut run = start();
    run.stored(0, "k0", 20_000);
    let reader = run.opened(2, "k0", READ);
    let writer = run.opened(0, "k0", WRITE);
    run.step(&Op::Flush { handle: Pick(1) });
    run.closed(writer);
    run.closed(reader);
}

#[test]
fn an_object_that_is_written_when_its_time_is_over_is_seen_until_it_is_closed() {
    let mut run = start();
    run.stored(0, "k0", 20_000);
    let ttl = Setting::Ttl(Some(5));
    run.step(&Op::FilePolicy { who: 0, target: at("k0"), setting: ttl });
    let reader = run.opened(1, "k0", READ);
    let writer = run.opened(0, "k0", WRITE);
    run.closed(reader);
    run.step(&Op::Advance { seconds: 6, expires: false });
    run.step(&Op::Advance { seconds: 6, expires: true });
    // The old version's time is over, and the new one is not lost with it.
    run.closed(writer);
    assert!(run.seen(1, "k0"));
    run.step(&Op::Advance { seconds: 6, expires: false });
    assert!(!run.seen(1, "k0"));
}

#[test]
fn an_object_that_moves_into_a_directory_takes_its_time_to_live() {
    let mut run = start();
    run.step(&Op::Mkdir { who: 0, target: at("d0") });
    let setting = Setting::Ttl(Some(5));
    run.step(&Op::DirectoryPolicy { who: 0, directory: Pick(1), setting });
    run.stored(0, "k0", 20_000);
    let inside = Target::Named { directory: Pick(1), name: 1 };
    run.step(&Op::Rename { who: 0, from: at("k0"), to: inside, keep: false });
    run.step(&Op::Advance { seconds: 6, expires: true });
    assert!(!run.seen(1, "d0/k1"));
}

#[test]
fn a_time_to_live_counts_from_the_seal_whatever_changes_meanwhile() {
    let seconds = |seconds| Op::Advance { seconds, expires: false };
    let ttl = |ttl| Op::DirectoryPolicy { who: 0, directory: Pick(0), setting: Setting::Ttl(Some(ttl)) };
    for length in [1000, 20_000] {
        let mut run = start();
        run.step(&ttl(30));
        run.stored(0, "k0", length);
        run.step(&seconds(4));
        run.step(&Op::Chmod { who: 0, target: at("k0"), mode: 0o600 });
        run.step(&Op::Utimens { who: 0, target: at("k0"), mtime_ns: 1_000_000_000 });
        run.renamed(0, "k0", "k1");
        run.step(&seconds(2));
        run.restarted();
        run.step(&ttl(10));
        run.step(&seconds(3));
        assert!(run.seen(1, "k1"), "9 s after its seal");
        run.step(&seconds(2));
        assert!(!run.seen(1, "k1"), "11 s after its seal, 7 after the last change of its attributes");
    }
}

#[test]
fn an_object_that_grew_after_its_rename_is_back_as_it_was_renamed() {
    for length in [1000, 20_000] {
        let mut run = start();
        let writer = run.opened(0, "k3.tmp", CREATE);
        run.written(writer, 0, length);
        run.renamed(0, "k3.tmp", "k0");
        run.written(writer, length as u64, 30_000);
        run.restarted();
        assert_eq!(run.system.stat(1, "k0").expect("it was sealed").size, length as u64);
    }
}

#[test]
fn an_object_that_is_rewritten_has_a_new_time_and_keeps_its_policy() {
    for forgets_at_once in [false, true] {
        let mut run = start_with(Setup { forgets_at_once, ..SETUP });
        run.stored(0, "k0", 20_000);
        run.step(&Op::Utimens { who: 0, target: at("k0"), mtime_ns: 1_000_000_000 });
        let setting = Setting::Pin(Some("hard"));
        run.step(&Op::FilePolicy { who: 0, target: at("k0"), setting });
        let idle = run.opened(0, "k0", WRITE);
        run.closed(idle);
        assert_eq!(run.system.stat(1, "k0").expect("there").mtime_ns, Some(1_000_000_000));
        let writer = run.opened(0, "k0", WRITE);
        run.written(writer, 0, 10);
        run.closed(writer);
        assert_ne!(run.system.stat(1, "k0").expect("there").mtime_ns, Some(1_000_000_000));
        // Pinned still: it is not evicted for others.
        for _ in 0..8 {
            run.stored(1, "k1", 300_000);
            run.stored(1, "k2", 300_000);
            run.stored(1, "k3.tmp", 300_000);
        }
        assert!(run.seen(2, "k0"));
    }
}

#[test]
fn an_object_whose_writer_goes_on_after_the_rename_can_be_changed_and_copied() {
    let mut run = start();
    let writer = run.opened(0, "k3.tmp", CREATE);
    run.renamed(0, "k3.tmp", "k0");
    run.written(writer, 0, 20_000);
    run.step(&Op::Chmod { who: 0, target: at("k0"), mode: 0o600 });
    let other = run.opened(1, "k0", WRITE);
    run.closed(other);
    run.closed(writer);
    run.restarted();
}

#[test]
fn a_temporary_file_that_is_read_is_not_evicted() {
    let mut run = start();
    run.stored(0, "k3.tmp", 20_000);
    let reader = run.opened(0, "k3.tmp", READ);
    run.step(&Op::Advance { seconds: 3600, expires: true });
    for name in ["k0", "k1", "k2"].into_iter().cycle().take(9) {
        run.stored(1, name, 300_000);
    }
    run.renamed(0, "k3.tmp", "k0");
    run.closed(reader);
}

#[test]
fn a_small_object_that_was_removed_while_open_does_not_come_back_by_a_restart() {
    let mut run = start();
    run.stored(0, "k0", 100);
    run.stored(0, "k1", 100);
    run.opened(1, "k0", READ);
    run.unlinked(0, "k0");
    run.compare_bytes();
    run.restarted();
    assert!(!run.seen(0, "k0") && run.seen(0, "k1"));
}

#[test]
fn the_place_of_a_small_object_is_freed_once() {
    let mut run = start_with(Setup { forgets_at_once: true, ..SETUP });
    for name in ["k0", "k1", "k2"] {
        run.stored(0, name, 1600);
    }
    run.renamed(0, "k0", "k2");
    run.renamed(0, "k1", "k2");
    for name in ["k0", "k1"] {
        run.stored(0, name, 1600);
    }
    run.compare_bytes();
    run.restarted();
}

#[test]
fn a_small_object_is_renamed_in_a_full_cache_or_not_at_all() {
    let mut run = start();
    run.step(&Op::Mkdir { who: 0, target: at("d0") });
    let inside = Target::Named { directory: Pick(1), name: 0 };
    run.step(&Op::Put { who: 0, target: inside, length: 10, seed: 1 });
    let hoarder = run.opened(0, "k1", CREATE);
    for piece in 0..60 {
        run.step(&Op::Write { handle: Pick(0), offset: piece * 16_384, length: 16_384, seed: piece });
    }
    // Another namespace needs a page of its own, which it cannot have while all of this is open.
    run.step(&Op::Rename { who: 0, from: inside, to: at("k0"), keep: false });
    run.closed(hoarder);
    run.step(&Op::Rename { who: 0, from: inside, to: at("k0"), keep: false });
}

#[test]
fn a_file_created_for_reading_appears_when_it_is_closed() {
    let mut run = start();
    let token = run.opened(0, "k0", Open { create: true, ..READ });
    assert!(!run.seen(1, "k0"));
    run.closed(token);
    run.step(&Op::Advance { seconds: 60, expires: true });
    assert!(run.seen(1, "k0"));
}

#[test]
fn holes_made_before_the_close_are_there_after_a_restart() {
    let mut run = start();
    let writer = run.opened(0, "k0", CREATE);
    run.written(writer, 0, 50_000);
    let change = Change::Punch { offset: 5000, length: 30_000 };
    run.step(&Op::Resize { handle: Pick(0), change });
    run.closed(writer);
    run.restarted();
}

#[test]
fn what_is_read_leaves_its_name_when_the_clock_jumps_by_a_year_and_is_read_to_its_end() {
    let mut run = start();
    run.stored(0, "k0", 40_000);
    run.step(&Op::FilePolicy { who: 0, target: at("k0"), setting: Setting::Ttl(Some(12)) });
    let reader = run.opened(1, "k0", READ);
    run.step(&Op::Advance { seconds: 365 * 24 * 3600, expires: true });
    assert!(!run.seen(1, "k0"), "its time is over");
    run.compare_bytes();
    run.closed(reader);
}

#[test]
fn what_is_written_after_the_close_of_a_duplicate_is_no_object_after_a_restart() {
    let mut run = start();
    let writer = run.opened(0, "k0", CREATE);
    run.written(writer, 0, 20_000);
    run.step(&Op::Flush { handle: Pick(0) });
    // The file's clock moves in ticks on kernels before 6.13.
    let ticks = || nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME_COARSE).expect("a clock");
    let before = ticks();
    assert!(super::common::wait::until(super::common::wait::HANG, || ticks() > before), "the clock stands");
    run.written(writer, 0, 10);
    run.system.restart();
    assert!(!run.seen(1, "k0"));
}

#[test]
fn a_renamed_file_leaves_nothing_under_the_name_at_which_its_close_was_announced() {
    let mut run = start();
    let writer = run.opened(0, "k0", CREATE);
    run.written(writer, 0, 20_000);
    run.step(&Op::Flush { handle: Pick(0) });
    run.renamed(0, "k0", "k3.tmp");
    run.restarted();
    assert!(!run.seen(1, "k0"));
}

#[test]
fn a_version_that_was_cut_by_name_appears_when_its_writer_closes_it() {
    let mut run = start();
    run.stored(0, "k0", 20_000);
    let reader = run.opened(0, "k0", READ);
    let writer = run.opened(1, "k0", WRITE);
    run.step(&Op::Truncate { who: 2, target: at("k0"), length: 100 });
    run.closed(writer);
    let again = run.opened(2, "k0", WRITE);
    run.closed(again);
    run.closed(reader);
}

#[test]
fn a_new_version_that_becomes_a_slot_file_takes_the_place_of_the_object() {
    let mut run = start_with(Setup { scratch_min: ByteCount::kib(100), ..SETUP });
    run.stored(0, "k0", 20_000);
    let reader = run.opened(1, "k0", READ);
    run.stored(0, "k0", 200_000);
    assert_eq!(run.system.stat(2, "k0").expect("it is there").size, 200_000);
    run.closed(reader);
    run.stored(2, "k0", 10_000);
}

#[test]
fn an_empty_object_that_was_closed_after_its_rename_is_whole_when_it_is_written_again() {
    let mut run = start();
    let writer = run.opened(1, "k3.tmp", Open { read: true, ..CREATE });
    run.step(&Op::FilePolicy { who: 1, target: at("k3.tmp"), setting: Setting::Ttl(Some(60)) });
    run.renamed(0, "k3.tmp", "k1");
    run.close(run.place(writer));
    let writer = run.opened(0, "k1", Open { read: true, ..WRITE });
    run.closed(writer);
    assert!(run.seen(2, "k1"));
}

/// A thread is sent to look a name up again once for each of its system calls, not once in all.
#[test]
fn a_writer_finds_its_version_whenever_another_object_gets_the_name() {
    let capacity = super::mounted::CAPACITY.get();
    let mut run = Run::new(super::mounted::Mounted::new(super::common::Mode::Direct), capacity, capacity);
    run.stored(2, "k0", 0);
    run.stored(1, "k1", 19_254);
    run.stored(2, "k2", 158_206);
    run.opened(0, "k3.tmp", CREATE);
    run.step(&Op::Close { handle: Pick(0) });
    run.opened(2, "k1", Open { read: true, ..WRITE });
    for (who, from, to) in [(2, "k3.tmp", "k1"), (1, "k0", "k2"), (2, "k2", "k1")] {
        run.step(&Op::Rename { who, from: at(from), to: at(to), keep: false });
    }
}
