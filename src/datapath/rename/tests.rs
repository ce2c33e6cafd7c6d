//! What is renamed over a name that somebody writes, or wrote in vain, and directories that cannot move, in a cache without a mount.

use std::fs;

use super::super::room::Loss;
use super::super::testing::{WRITE, caller, directory, make, unprivileged};
use super::super::{OpenOptions, decorations};
use super::*;

/// Has a file stand under `name` in the root that all have closed before another one took its name, which is gone since.
fn overtaken(datapath: &Datapath, name: &[u8]) {
    let (_, opened) = datapath.create(&caller(), Ino::ROOT, name, 0o644, WRITE).unwrap();
    datapath.flush(&caller(), opened.handle).unwrap();
    datapath.lock().object_mut(opened.ino.slot()).unwrap().open_mut().is_overtaken = true;
}

#[test]
fn what_all_had_closed_before_another_one_took_its_name_keeps_no_directory_and_no_user_from_that_name() {
    let (_place, datapath) = unprivileged();
    datapath.lock().tree.node_mut(Slot::ROOT).attributes.mode = 0o1777;
    let found = |name: &[u8]| datapath.lock().tree.child(Slot::ROOT, name);
    let rename = |who: &Caller, from: &[u8], to: &[u8], keep_target| {
        datapath.rename(who, (Ino::ROOT, from), (Ino::ROOT, to), keep_target).unwrap();
    };
    for keep_target in [false, true] {
        overtaken(&datapath, b"key");
        let moved = directory(&datapath, b"directory");
        rename(&caller(), b"directory", b"key", keep_target);
        assert_eq!(found(b"key"), Some(moved.slot()));
        datapath.remove_directory(Ino::ROOT, b"key").unwrap();

        overtaken(&datapath, b"key");
        let moved = make(&datapath, Ino::ROOT, "object");
        rename(&Caller { uid: 1000, ..caller() }, b"object", b"key", keep_target);
        assert_eq!(found(b"key"), Some(moved.slot()));
        datapath.unlink_name(&caller(), Ino::ROOT, b"key").unwrap();
    }
}

#[test]
fn a_directory_whose_record_cannot_be_written_stays_where_it_is() {
    for is_over_another in [false, true] {
        let (place, datapath) = unprivileged();
        let moved = directory(&datapath, b"moved");
        let target = is_over_another.then(|| directory(&datapath, b"target"));
        let record_of = |directory: Ino| {
            let id = datapath.lock().directory_id(directory.slot()).unwrap();
            place.path().join("memory").join(format!("d{:016x}", id.0))
        };
        let found = || {
            let state = datapath.lock();
            [&b"moved"[..], b"target"].map(|name| state.tree.child(Slot::ROOT, name))
        };
        let rename = || datapath.rename(&caller(), (Ino::ROOT, b"moved"), (Ino::ROOT, b"target"), false);
        let record = record_of(moved);
        if let Some(target) = target {
            decorations::set(&fs::File::open(record_of(target)).unwrap(), "user.kept", b"value").unwrap();
        }
        fs::remove_file(&record).unwrap();
        // That cannot be opened to write.
        fs::create_dir(&record).unwrap();
        assert!(rename().is_err());
        assert_eq!(found(), [Some(moved.slot()), target.map(Ino::slot)]);
        if let Some(target) = target {
            let file = fs::File::open(record_of(target)).expect("a start finds the other one");
            assert_eq!(decorations::get(&file, "user.kept").unwrap().unwrap(), b"value");
        }
        fs::remove_dir(&record).unwrap();
        rename().unwrap();
        assert_eq!(found(), [None, Some(moved.slot())]);
    }
}

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
