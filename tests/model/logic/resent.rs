//! What a writer meets that was sent to look its name up again, when others were faster.

use tidefs::datapath::{Error, OpenOptions};
use tidefs_engine::types::ByteCount;

use super::{Logic, Setup, caller};
use crate::common::pattern::bytes;
use crate::system::{Open, System};

/// As open(2) with `O_WRONLY | O_TRUNC`.
const REWRITE: OpenOptions =
    OpenOptions { read: false, write: true, truncate: true, exclusive: false, cut_to: None };
const READ: Open = Open { read: true, write: false, create: false, exclusive: false, truncate: false };
const CREATE: Open = Open { read: false, write: true, create: true, ..READ };

fn publish(logic: &mut Logic, who: usize, seed: u64) {
    let token = logic.open(who, "k.tmp", CREATE).expect("create");
    logic.write(who, token, 0, &bytes(seed, 50_000)).expect("write");
    logic.close(who, token);
    logic.rename(who, "k.tmp", "k", false).expect("rename");
}

/// The kernel asks for an inode that it looked up a moment ago, under which a reader has an older version open.
#[test]
fn a_reader_keeps_its_bytes_when_a_writer_comes_late_to_a_version_that_was_replaced() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    publish(&mut logic, 0, 1);
    let ino = logic.resolve(2, "k").expect("it is there");
    let reader = logic.open(1, "k", READ).expect("open");
    let sent = logic.datapath().open(&caller(2), ino, REWRITE);
    assert!(matches!(sent, Err(Error::Stale)), "{sent:?}");
    publish(&mut logic, 0, 2);
    let late = logic.datapath().open(&caller(2), ino, REWRITE);
    assert!(matches!(late, Err(Error::NoObject)), "{late:?}");
    assert_eq!(logic.read(1, reader, 0, 60_000).expect("read"), bytes(1, 50_000));
    logic.close(1, reader);
    let found = logic.open(2, "k", READ).expect("open");
    assert_eq!(logic.read(2, found, 0, 60_000).expect("read"), bytes(2, 50_000));
    logic.close(2, found);
}
