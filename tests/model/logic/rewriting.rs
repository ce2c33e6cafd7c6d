//! Programs that rewrite a name in place, as open(2) with `O_WRONLY | O_CREAT | O_TRUNC`, write and close, while others do so too.

use std::thread;
use std::time::Duration;

use tidefs::datapath::{AttributeChange, Caller, Datapath, Error, Lookup, OpenOptions, Opened, Patience};
use tidefs::namespace::Ino;
use tidefs_engine::types::ByteCount;

use super::resent::{CREATE, publish};
use super::{Logic, Setup, caller};
use crate::common::pattern::bytes;
use crate::system::{Open, System as _};

const REWRITE: OpenOptions =
    OpenOptions { read: false, write: true, truncate: true, exclusive: false, cut_to: None };

/// What stands under the name for the caller, when who is just closing it has.
fn look_up(datapath: &Datapath, who: &Caller) -> Option<Ino> {
    loop {
        match datapath.lookup(who, Ino::ROOT, b"k", Patience::Writers).expect("the directory is there") {
            Lookup::Found { stat, .. } => return Some(stat.ino),
            Lookup::Wait => _ = datapath.wait_for_release(Duration::from_millis(5)),
            _ => return None,
        }
    }
}

fn try_to_open(datapath: &Datapath, who: &Caller) -> Result<Opened, Error> {
    match look_up(datapath, who) {
        Some(ino) => datapath.open(who, ino, REWRITE),
        None => datapath.create(who, Ino::ROOT, b"k", 0o644, REWRITE).map(|(_, opened)| opened),
    }
}

/// Writes so many bytes and closes the file.
fn fill(datapath: &Datapath, who: &Caller, opened: &Opened, length: usize) {
    datapath.write(opened.handle, 0, &bytes(1, length)).expect("there is room");
    datapath.flush(who, opened.handle).expect("there is room");
    datapath.release(opened.handle);
}

/// The kernel looks the name up again once for each open(2).
#[test]
fn processes_that_rewrite_one_name_at_once_are_never_told_that_it_is_stale() {
    let logic = Logic::new(Setup::of(ByteCount::mib(8)));
    let datapath = logic.datapath();
    thread::scope(|scope| {
        for who in (0..4).map(caller) {
            scope.spawn(move || {
                for _ in 0..500 {
                    let opened = match try_to_open(datapath, &who) {
                        Err(Error::Stale) => try_to_open(datapath, &who),
                        outcome => outcome,
                    };
                    fill(datapath, &who, &opened.expect("its second open"), 5000);
                }
            });
        }
    });
    assert!(look_up(datapath, &caller(4)).is_some());
}

/// A cache in which `who` was sent to look the name up again, as `rewrites` came to an object that somebody has read, and was
/// given a version to write.
fn sent(who: &Caller, rewrites: impl Fn(&Datapath, Ino) -> Result<(), Error>) -> (Logic, Ino) {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    publish(&mut logic, 0, 1);
    let reader = logic.open(3, "k", Open { write: false, read: true, create: false, ..CREATE });
    logic.close(3, reader.expect("it is there"));
    let (ino, ..) = logic.look_up_as(who, Ino::ROOT, "k").expect("it is there");
    let told = rewrites(logic.datapath(), ino);
    assert!(matches!(told, Err(Error::Stale)), "{told:?}");
    let (begun, ..) = logic.look_up_as(who, Ino::ROOT, "k").expect("a version of its own");
    assert_ne!(begun, ino);
    (logic, begun)
}

fn sent_to_rewrite(who: &Caller) -> (Logic, Ino) {
    sent(who, |datapath, ino| datapath.open(who, ino, REWRITE).map(drop))
}

/// The kernel asks for attributes first, and looks the name up no more.
fn open_once_more(logic: &Logic, who: &Caller, ino: Ino) -> Opened {
    logic.datapath().getattr_by_name(who, ino).expect("its open is on its way");
    let opened = logic.datapath().open(who, ino, REWRITE).expect("it is written anew");
    assert_eq!(opened.ino, ino);
    opened
}

fn size_seen(logic: &mut Logic) -> u64 {
    logic.check_tables();
    logic.stat(2, "k").expect("it is there").size
}

#[test]
fn who_rewrites_what_is_removed_before_its_open_makes_it_anew() {
    let who = caller(1);
    let (mut logic, begun) = sent_to_rewrite(&who);
    logic.unlink(2, "k").expect("unlink");
    let opened = open_once_more(&logic, &who, begun);
    assert!(logic.stat(2, "k").is_err(), "nothing stands there until it is closed");
    fill(logic.datapath(), &who, &opened, 5000);
    assert_eq!(size_seen(&mut logic), 5000);
}

#[test]
fn who_rewrites_what_is_removed_and_published_again_before_its_open_replaces_that() {
    let who = caller(1);
    let (mut logic, begun) = sent_to_rewrite(&who);
    logic.unlink(2, "k").expect("unlink");
    publish(&mut logic, 0, 2);
    let opened = open_once_more(&logic, &who, begun);
    assert_eq!(size_seen(&mut logic), 50_000);
    fill(logic.datapath(), &who, &opened, 5000);
    assert_eq!(size_seen(&mut logic), 5000);
}

#[test]
fn who_rewrites_what_is_removed_and_being_written_by_others_before_its_open_was_earlier_than_those() {
    let who = caller(1);
    let (mut logic, begun) = sent_to_rewrite(&who);
    logic.unlink(2, "k").expect("unlink");
    let other = logic.open(0, "k", CREATE).expect("create");
    let opened = open_once_more(&logic, &who, begun);
    logic.write(0, other, 0, &bytes(2, 60_000)).expect("write");
    logic.check_tables();
    fill(logic.datapath(), &who, &opened, 5000);
    logic.close(0, other);
    assert_eq!(size_seen(&mut logic), 60_000);
}

#[test]
fn who_cuts_by_name_what_is_removed_meanwhile_is_told_of_a_miss() {
    let who = caller(1);
    let change = AttributeChange { size: Some(ByteCount(10)), ..AttributeChange::default() };
    let cut = |datapath: &Datapath, ino| datapath.setattr(&who, ino, &change).map(drop);
    let (mut logic, begun) = sent(&who, cut);
    logic.unlink(2, "k").expect("unlink");
    let told = cut(logic.datapath(), begun);
    assert!(matches!(told, Err(Error::NoObject)), "{told:?}");
}
