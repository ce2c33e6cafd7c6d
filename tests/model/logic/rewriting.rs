//! Programs that rewrite a name in place, as open(2) with `O_WRONLY | O_CREAT | O_TRUNC`, write and close, while others do so too.

use std::thread;
use std::time::Duration;

use tidefs::datapath::{Caller, Datapath, Error, Lookup, OpenOptions, Opened, Patience};
use tidefs::namespace::Ino;
use tidefs_engine::types::ByteCount;

use super::{Logic, Setup, caller};
use crate::common::pattern::bytes;

/// As open(2) with `O_WRONLY | O_TRUNC`.
pub(super) const REWRITE: OpenOptions = OpenOptions {
    read: false,
    write: true,
    truncate: true,
    exclusive: false,
    cut_to: None,
    by_descriptor: false,
};

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
