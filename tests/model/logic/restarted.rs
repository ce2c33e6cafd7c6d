//! What the next daemon does with what an earlier one sealed.

use std::os::unix::fs::FileExt;

use tidefs_engine::types::ByteCount;

use super::resent::{CREATE, publish};
use super::{Logic, Setup};
use crate::common::pattern::bytes;
use crate::system::{Open, System};

const WRITE: Open = Open { create: false, ..CREATE };

/// Who has mapped it may live, and the kernel tells the next daemon nothing of that.
#[test]
fn what_an_earlier_daemon_sealed_is_not_changed_where_it_is() {
    for is_cut in [false, true] {
        let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
        publish(&mut logic, 0, 1);
        let ino = logic.resolve(1, "k").expect("it is there");
        let mapped = logic.datapath().backing_file(ino).expect("its segment");
        logic.restart();
        if is_cut {
            logic.truncate(2, "k", 100).expect("truncate");
        } else {
            let writer = logic.open(2, "k", WRITE).expect("open");
            logic.write(2, writer, 0, &bytes(2, 1000)).expect("write");
            logic.close(2, writer);
        }
        let mut found = vec![0; 50_000];
        mapped.read_exact_at(&mut found, 0).expect("its bytes");
        assert!(found == bytes(1, 50_000), "cut: {is_cut}");
        let counted = logic.datapath().telemetry();
        assert_eq!((counted.copy_ups.get(), counted.unseals.get()), (1, 0), "cut: {is_cut}");
    }
}
