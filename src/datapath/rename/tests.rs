//! What is renamed over a name that somebody writes, in a cache without a mount.

use super::super::OpenOptions;
use super::super::room::Loss;
use super::super::testing::{WRITE, caller, make, unprivileged};
use super::*;

#[test]
fn what_is_renamed_over_a_name_that_somebody_writes_does_not_leave_meanwhile() {
    for is_closed_before in [true, false] {
        let (_place, datapath) = unprivileged();
        let old = make(&datapath, Ino::ROOT, "key");
        datapath.begin_version(&caller(), old, OpenOptions { truncate: true, ..WRITE }).unwrap();
        let (_, other) = datapath.create(&caller(), Ino::ROOT, b"other", 0o644, WRITE).unwrap();
        datapath.write(other.handle, 0, &vec![1; 1 << 20]).unwrap();
        let rename = || datapath.rename(&caller(), (Ino::ROOT, b"other"), (Ino::ROOT, b"key"), false);
        if !is_closed_before {
            rename().unwrap();
        }
        datapath.flush(&caller(), other.handle).unwrap();
        datapath.release(other.handle);
        if is_closed_before {
            rename().unwrap();
        }
        assert_eq!(datapath.evict(ByteCount::mib(1), Slot::ROOT, Loss::Accepted), 0);
        assert_eq!(datapath.lock().tree.child(Slot::ROOT, b"key"), Some(other.ino.slot()));
    }
}
