//! A RELEASE that comes long after the close(2) which it ends: the kernel sends it when it likes.

use tidefs::datapath::{Lookup, OpenOptions, Patience};
use tidefs::namespace::Ino;
use tidefs_engine::types::ByteCount;

use super::resent::CREATE;
use super::{Logic, caller};
use crate::common::pattern::bytes;
use crate::setup::Setup;
use crate::system::{Open, System, Token, WATCHER};

const LENGTH: usize = 50_000;
/// What is added behind that.
const MORE: &[u8] = b"more";
const WRITE: Open = Open { read: false, write: true, create: false, exclusive: false, truncate: false };
/// Two processes that write the same key.
const WRITER: usize = 0;
const PUBLISHER: usize = 1;

/// Publishes a version of `k` by a rename.
fn publish(logic: &mut Logic, seed: u64) {
    publish_as(logic, "k", seed);
}

/// The same of another name.
fn publish_as(logic: &mut Logic, name: &str, seed: u64) {
    let token = logic.open(PUBLISHER, "k.tmp", CREATE).expect("create");
    logic.write(PUBLISHER, token, 0, &bytes(seed, LENGTH)).expect("there is room");
    logic.close(PUBLISHER, token);
    logic.rename(PUBLISHER, "k.tmp", name, false).expect("the rename");
}

/// A cache with a version of `k`, over which another one was written and closed but for its RELEASE.
fn closed_before_its_release() -> (Logic, Token) {
    closed_before_its_release_as("k")
}

/// The same of another name.
fn closed_before_its_release_as(name: &str) -> (Logic, Token) {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(2)));
    publish_as(&mut logic, name, 1);
    let rewrite = Open { write: true, create: true, truncate: true, ..Open::default() };
    let token = logic.open(WRITER, name, rewrite).expect("open");
    logic.write(WRITER, token, 0, &bytes(2, LENGTH)).expect("there is room");
    logic.flush(WRITER, token);
    (logic, token)
}

/// The same, and a third version is renamed over both before that comes.
fn overtaken() -> (Logic, Token) {
    let (mut logic, token) = closed_before_its_release();
    publish(&mut logic, 3);
    (logic, token)
}

/// The RELEASE comes.
pub(super) fn release(logic: &mut Logic, token: Token) {
    let (handle, _) = logic.handles.remove(&token).expect("it is open");
    logic.datapath().release(handle);
}

#[track_caller]
fn assert_stands(logic: &mut Logic, seed: u64) {
    assert_stands_with(logic, seed, b"");
}

/// The same, with what was added.
#[track_caller]
fn assert_stands_with(logic: &mut Logic, seed: u64, more: &[u8]) {
    let found = logic.open(WATCHER, "k", Open { read: true, ..Open::default() }).expect("it is there");
    let expected = [&bytes(seed, LENGTH)[..], more].concat();
    assert!(logic.read(WATCHER, found, 0, 2 * LENGTH).expect("read") == expected, "not {seed}");
    logic.close(WATCHER, found);
    logic.assert_all_is_accounted_for();
}

/// Who has come to write `k` adds to what it is given.
fn add(logic: &mut Logic, token: Token) {
    logic.write(PUBLISHER, token, LENGTH as u64, MORE).expect("there is room");
    logic.close(PUBLISHER, token);
}

/// Who renames looks the name up before, and waits for a close that was announced: a while only.
#[test]
fn what_was_closed_before_another_version_was_published_does_not_take_its_place_when_its_release_is_late() {
    let (mut logic, token) = closed_before_its_release();
    publish(&mut logic, 3);
    release(&mut logic, token);
    assert_stands(&mut logic, 3);
}

/// A rename whose names nobody looks up before, which would end the wait for a close.
#[test]
fn what_was_closed_before_another_version_was_published_is_waited_for_and_seen_by_nobody() {
    let (mut logic, token) = closed_before_its_release();
    let published = logic.open(PUBLISHER, "k.tmp", CREATE).expect("create");
    logic.write(PUBLISHER, published, 0, &bytes(3, LENGTH)).expect("there is room");
    logic.close(PUBLISHER, published);
    let (from, to) = ((Ino::ROOT, &b"k.tmp"[..]), (Ino::ROOT, &b"k"[..]));
    logic.datapath().rename(&caller(PUBLISHER), from, to, false).expect("the rename");
    let found = logic.datapath().lookup(&caller(WATCHER), Ino::ROOT, b"k", Patience::Writers);
    let Ok(Lookup::Found { stat, .. }) = found else { panic!("{found:?}") };
    logic.datapath().forget(stat.ino, 1);
    let seen = logic.open(WRITER, "k", Open { read: true, ..Open::default() }).expect("it is there");
    assert!(logic.read(WRITER, seen, 0, 2 * LENGTH).expect("read") == bytes(3, LENGTH), "what it wrote");
    logic.close(WRITER, seen);
    release(&mut logic, token);
    assert_stands(&mut logic, 3);
}

/// A lock file, which is shown while it is written, and before its RELEASE another one is renamed to its name.
fn overtaken_lock_file() -> (Logic, Token) {
    let (mut logic, token) = closed_before_its_release_as("k.lock");
    publish_as(&mut logic, "k.lock", 3);
    (logic, token)
}

#[test]
fn what_is_renamed_to_the_name_of_a_lock_file_that_was_closed_is_met_by_everybody() {
    let (mut logic, token) = overtaken_lock_file();
    let seen = logic.open(WATCHER, "k.lock", Open { read: true, ..Open::default() }).expect("it is there");
    assert!(logic.read(WATCHER, seen, 0, 2 * LENGTH).expect("read") == bytes(3, LENGTH), "what was closed");
    logic.close(WATCHER, seen);
    let writer = logic.open(PUBLISHER, "k.lock", WRITE).expect("open");
    add(&mut logic, writer);
    release(&mut logic, token);
    logic.rename(WRITER, "k.lock", "k", false).expect("it is there");
    assert_stands_with(&mut logic, 3, MORE);
}

#[test]
fn who_renames_the_name_of_a_lock_file_that_was_closed_moves_what_took_it() {
    let (mut logic, token) = overtaken_lock_file();
    logic.rename(WRITER, "k.lock", "k", false).expect("it is there");
    release(&mut logic, token);
    assert_stands(&mut logic, 3);
}

/// What was closed before the object took its name goes along with that otherwise, and may be written there once more.
#[test]
fn who_writes_what_is_replaced_by_a_rename_keeps_it_though_something_was_closed_under_the_other_name() {
    for is_written in [false, true] {
        let (mut logic, token) = overtaken();
        publish_as(&mut logic, "k1", 5);
        let reader = logic.open(WATCHER, "k1", Open { read: true, ..Open::default() }).expect("it is there");
        let writer = is_written.then(|| logic.open(PUBLISHER, "k1", WRITE).expect("open"));
        logic.rename(WATCHER, "k", "k1", false).expect("the rename");
        logic.write(WRITER, token, 0, &bytes(4, LENGTH)).expect("there is room");
        logic.close(WRITER, token);
        writer.into_iter().for_each(|writer| add(&mut logic, writer));
        logic.close(WATCHER, reader);
        logic.rename(WATCHER, "k1", "k", false).expect("it is there");
        let (seed, more) = if is_written { (5, MORE) } else { (4, &b""[..]) };
        assert_stands_with(&mut logic, seed, more);
    }
}

/// Of a file with several descriptors the first close is announced like the last.
#[test]
fn what_is_written_and_closed_after_another_version_was_published_takes_its_place() {
    let (mut logic, token) = overtaken();
    logic.write(WRITER, token, 0, &bytes(4, LENGTH)).expect("there is room");
    logic.close(WRITER, token);
    assert_stands(&mut logic, 4);
}

/// A duplicate, or what a child inherited.
#[test]
fn who_closes_what_was_closed_before_a_rename_once_more_and_wrote_nothing_changes_nothing() {
    for closer in [WRITER, PUBLISHER] {
        let (mut logic, token) = overtaken();
        logic.close(closer, token);
        assert_stands(&mut logic, 3);
    }
}

#[test]
fn what_was_renamed_is_there_after_a_kill_though_what_was_closed_before_it_was_closed_once_more() {
    let (mut logic, token) = overtaken();
    logic.flush(PUBLISHER, token);
    logic.restart();
    assert_stands(&mut logic, 3);
}

/// A shell closes the descriptor that it opened once it has another one of it, which a program writes.
#[test]
fn what_is_written_after_a_close_and_before_a_rename_is_closed_after_that() {
    let (mut logic, token) = closed_before_its_release();
    logic.write(WRITER, token, 0, &bytes(4, LENGTH)).expect("there is room");
    publish(&mut logic, 3);
    logic.close(WRITER, token);
    assert_stands(&mut logic, 4);
}

/// As who copies a file does once it has closed the copy.
#[test]
fn who_sets_the_time_of_what_it_has_closed_writes_nothing() {
    let (mut logic, token) = closed_before_its_release();
    logic.utimens(WRITER, "k", 1_000_000_000).expect("it sees what it wrote");
    publish(&mut logic, 3);
    release(&mut logic, token);
    assert_stands(&mut logic, 3);
}

#[test]
fn who_comes_to_what_took_the_name_of_a_version_that_was_closed_goes_on_with_that() {
    for is_released_first in [false, true] {
        let (mut logic, token) = overtaken();
        let writer = logic.open(PUBLISHER, "k", WRITE).expect("open");
        if is_released_first {
            release(&mut logic, token);
            add(&mut logic, writer);
        } else {
            add(&mut logic, writer);
            release(&mut logic, token);
        }
        assert_stands_with(&mut logic, 3, MORE);
    }
}

/// The kernel believes that there is nothing.
#[test]
fn who_comes_to_create_what_took_the_name_of_a_version_that_was_closed_goes_on_with_that() {
    let (mut logic, token) = overtaken();
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    let writer = logic.create_or_open(PUBLISHER, Ino::ROOT, "k", options).expect("it is opened");
    add(&mut logic, writer);
    release(&mut logic, token);
    assert_stands_with(&mut logic, 3, MORE);
}

/// It had closed one of several descriptors.
#[test]
fn who_goes_on_with_a_version_that_was_closed_before_a_rename_is_not_disturbed_by_who_writes_over_that() {
    let (mut logic, token) = overtaken();
    let writer = logic.open(PUBLISHER, "k", WRITE).expect("open");
    logic.write(WRITER, token, 0, &bytes(4, LENGTH)).expect("there is room");
    logic.close(WRITER, token);
    add(&mut logic, writer);
    assert_stands_with(&mut logic, 3, MORE);
}

#[test]
fn who_comes_to_a_version_that_was_written_and_closed_once_more_after_a_rename_writes_the_same() {
    for (is_written, stands) in [(false, 3), (true, 4)] {
        let (mut logic, token) = overtaken();
        if is_written {
            logic.write(WRITER, token, 0, &bytes(4, LENGTH)).expect("there is room");
        }
        logic.flush(WRITER, token);
        let writer = logic.open(PUBLISHER, "k", WRITE).expect("open");
        add(&mut logic, writer);
        release(&mut logic, token);
        assert_stands_with(&mut logic, stands, MORE);
    }
}
