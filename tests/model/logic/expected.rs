//! A version that all have closed and that waits for one more writer: for how long, and for whom.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use tidefs::datapath::{Caller, Error, OpenOptions};
use tidefs::namespace::{Ino, ThreadId};
use tidefs_engine::types::ByteCount;

use super::late_close::release;
use super::resent::{CREATE, publish};
use super::{Logic, Setup, caller};
use crate::common::pattern::bytes;
use crate::system::{Open, System, Token};

const READ: Open = Open { read: true, write: false, create: false, exclusive: false, truncate: false };
const REWRITE: Open = Open { read: false, write: true, truncate: true, ..READ };

/// An object that somebody reads, over which `sent` began a new version: its open was told to look the name up again, and it did.
/// What was read keeps its bytes for the token that comes along.
fn begun_by(sent: &Caller) -> (Logic, Token) {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    publish(&mut logic, 0, 1);
    let reader = logic.open(2, "k", READ).expect("it is there");
    begin(&mut logic, sent, true);
    (logic, reader)
}

/// A thread comes to write the object, is sent to look its name up again, and finds what it is to write.
fn begin(logic: &mut Logic, sent: &Caller, truncate: bool) -> Ino {
    let (ino, ..) = logic.look_up_as(sent, Ino::ROOT, "k").expect("it is there");
    let options = OpenOptions { write: true, truncate, ..OpenOptions::default() };
    let told = logic.datapath().open(sent, ino, options);
    assert!(matches!(told, Err(Error::Stale)), "{told:?}");
    let (begun, ..) = logic.look_up_as(sent, Ino::ROOT, "k").expect("it is given a version to write");
    assert_ne!(begun, ino, "which is not what the others know");
    begun
}

/// Another process joins the version that was begun, and closes it.
fn rewritten(logic: &mut Logic) {
    let writer = joined(logic);
    logic.close(0, writer);
}

/// The same before it closes it.
fn joined(logic: &mut Logic) -> Token {
    let writer = logic.open(0, "k", REWRITE).expect("it joins");
    logic.write(0, writer, 0, &bytes(2, 60_000)).expect("write");
    writer
}

/// A third version takes the name, after the last close of the one that was begun and before its RELEASE.
fn overtaken(logic: &mut Logic) {
    let writer = joined(logic);
    logic.flush(0, writer);
    publish(logic, 0, 3);
    release(logic, writer);
}

/// A process comes, adds to what it finds and closes it.
fn add(logic: &mut Logic, who: usize) {
    let writer = logic.open(who, "k", Open { truncate: false, ..REWRITE }).expect("open");
    logic.write(who, writer, 50_000, b"end").expect("write");
    logic.close(who, writer);
}

fn length_seen(logic: &mut Logic) -> u64 {
    logic.stat(2, "k").expect("it is there").size
}

/// A process that waits to be ended.
fn waiting() -> (Child, Caller) {
    let child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().expect("sleep");
    let thread = ThreadId(child.id());
    (child, Caller { thread, ..caller(0) })
}

#[test]
fn who_was_told_that_its_open_failed_and_ended_is_waited_for_by_nobody() {
    let (mut child, sent) = waiting();
    let (mut logic, _reader) = begun_by(&sent);
    child.kill().and_then(|()| child.wait()).expect("it ends");
    rewritten(&mut logic);
    assert_eq!(length_seen(&mut logic), 60_000);
}

#[test]
fn who_ends_after_the_others_have_closed_is_waited_for_no_longer() {
    let (mut child, sent) = waiting();
    let (mut logic, _reader) = begun_by(&sent);
    rewritten(&mut logic);
    assert_eq!(length_seen(&mut logic), 50_000, "it may come at any moment");
    child.kill().and_then(|()| child.wait()).expect("it ends");
    assert_eq!(length_seen(&mut logic), 60_000);
}

/// Its end cannot be seen, as of one that lives on and opens other files.
#[test]
fn who_does_not_come_to_what_the_others_have_closed_is_waited_for_no_longer_than_a_moment() {
    let (mut logic, _reader) = begun_by(&caller(1));
    rewritten(&mut logic);
    assert_eq!(length_seen(&mut logic), 50_000, "it may come at any moment");
    logic.advance(Duration::from_millis(501), false);
    assert_eq!(length_seen(&mut logic), 60_000);
}

/// Nobody has it open any more: it is written where it is, which hides it from all others.
#[test]
fn an_object_is_hidden_from_others_no_longer_than_a_moment_for_a_writer_who_does_not_come() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    publish(&mut logic, 0, 1);
    begin(&mut logic, &caller(1), false);
    assert_eq!(logic.stat(2, "k").err(), Some(Errno::ENOENT));
    logic.advance(Duration::from_millis(501), false);
    assert_eq!(length_seen(&mut logic), 50_000);
}

/// What was kept of it for its rename, while it was a closed temporary file, is over with that.
#[test]
fn an_object_that_was_given_a_policy_before_its_rename_is_hidden_for_no_longer_than_others() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    let writer = logic.open(0, "k.tmp", CREATE).expect("create");
    logic.write(0, writer, 0, &bytes(1, 50_000)).expect("write");
    logic.close(0, writer);
    logic.policy(0, "k.tmp", "priority", Some("5")).expect("it is there");
    logic.rename(0, "k.tmp", "k", false).expect("rename");
    begin(&mut logic, &caller(1), false);
    assert_eq!(logic.stat(2, "k").err(), Some(Errno::ENOENT));
    logic.advance(Duration::from_millis(501), false);
    assert_eq!(length_seen(&mut logic), 50_000);
}

#[test]
fn what_waits_for_a_writer_does_not_replace_what_took_its_name_after_the_others_had_closed_it() {
    let (mut logic, _reader) = begun_by(&caller(1));
    rewritten(&mut logic);
    publish(&mut logic, 0, 3);
    logic.advance(Duration::from_millis(501), true);
    assert_eq!(length_seen(&mut logic), 50_000, "that of what came later");
}

#[test]
fn who_comes_to_what_took_the_name_of_a_version_that_waits_goes_on_with_that() {
    let (mut logic, _reader) = begun_by(&caller(1));
    rewritten(&mut logic);
    publish(&mut logic, 0, 3);
    add(&mut logic, 0);
    assert_eq!(length_seen(&mut logic), 50_003);
}

#[test]
fn who_comes_to_what_took_the_name_of_a_version_just_before_that_waits_goes_on_with_that() {
    let (mut logic, _reader) = begun_by(&caller(1));
    overtaken(&mut logic);
    add(&mut logic, 0);
    assert_eq!(length_seen(&mut logic), 50_003);
}

/// It opens another file before, which it was not sent for.
#[test]
fn who_was_waited_for_by_what_was_closed_before_a_rename_comes_to_what_was_renamed() {
    let (mut logic, _reader) = begun_by(&caller(1));
    overtaken(&mut logic);
    let another = logic.open(1, "another", CREATE).expect("create");
    logic.close(1, another);
    assert_eq!(logic.stat(1, "k").expect("it is there").size, 50_000);
    add(&mut logic, 1);
    assert_eq!(length_seen(&mut logic), 50_003);
}

/// The kernel asks for the inode that it looked up before the rename.
#[test]
fn who_opens_what_was_closed_before_a_rename_and_writes_nothing_changes_nothing() {
    for (is_written, length) in [(false, 50_000), (true, 60_003)] {
        let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
        publish(&mut logic, 0, 1);
        let _reader = logic.open(2, "k", READ).expect("it is there");
        let begun = begin(&mut logic, &caller(1), false);
        overtaken(&mut logic);
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let opened = logic.datapath().open(&caller(1), begun, options).expect("it was sent to it");
        if is_written {
            logic.datapath().write(opened.handle, 60_000, b"end").expect("there is room");
        }
        logic.datapath().flush(&caller(1), opened.handle).expect("there is room");
        logic.datapath().release(opened.handle);
        assert_eq!(length_seen(&mut logic), length);
    }
}

#[test]
fn who_reads_what_the_others_have_closed_hides_it_from_nobody() {
    let (mut logic, _reader) = begun_by(&caller(1));
    let writer = logic.open(0, "k", REWRITE).expect("it joins");
    logic.write(0, writer, 0, &bytes(2, 60_000)).expect("write");
    let _also_reads = logic.open(0, "k", READ).expect("it sees what it writes");
    logic.close(0, writer);
    logic.advance(Duration::from_millis(501), false);
    assert_eq!(length_seen(&mut logic), 60_000);
}

#[test]
fn who_comes_to_what_the_others_have_closed_writes_the_same_version() {
    let (mut logic, _reader) = begun_by(&caller(1));
    rewritten(&mut logic);
    let late = logic.open(1, "k", Open { truncate: false, ..REWRITE }).expect("it comes");
    logic.write(1, late, 60_000, b"end").expect("write");
    logic.close(1, late);
    assert_eq!(length_seen(&mut logic), 60_003);
}
