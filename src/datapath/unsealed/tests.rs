//! What is begun for the place of an object, in a cache without a mount.

use super::super::room::Loss;
use super::super::testing::{WRITE, begin, caller, directory, make, unprivileged};
use super::super::{OpenOptions, Patience, Session};
use super::*;
use crate::namespace::Ino;

/// A directory with a quota of 8 MiB and as many objects, and of some of them another one begun.
fn full(names: [&'static str; 8], begun: &[&'static str]) -> (tempfile::TempDir, Datapath, Ino, Session) {
    let (place, datapath) = unprivileged();
    let ns = directory(&datapath, b"ns");
    datapath.set_attribute(ns, b"user.tidefs.quota", b"8MiB", None).unwrap();
    names.iter().for_each(|name| _ = make(&datapath, ns, name));
    let session = begin(&datapath, ns, begun);
    assert_eq!(used(&datapath, ns), ByteCount::mib(8), "what is begun takes their places");
    (place, datapath, ns, session)
}

/// What the directory counts.
fn used(datapath: &Datapath, directory: Ino) -> ByteCount {
    let state = datapath.lock();
    let folder = state.folder(state.tree.by_ino(directory).unwrap()).unwrap();
    folder.bytes.saturating_add(folder.unsealed)
}

fn stands(datapath: &Datapath, directory: Ino, name: &str) -> bool {
    let state = datapath.lock();
    state.tree.child(state.tree.by_ino(directory).unwrap(), name.as_bytes()).is_some()
}

#[test]
fn what_is_being_replaced_does_not_leave_for_a_quota_that_has_no_more_room_without_it() {
    let replaced = ["k0", "k1", "k2", "k3", "k4", "k5"];
    let (_place, datapath, ns, session) = full(["k0", "k1", "k2", "k3", "k4", "k5", "o0", "o1"], &replaced);
    make(&datapath, ns, "new");
    let stays = |name: &str| stands(&datapath, ns, name);
    assert!(replaced.into_iter().all(stays), "each is the object of its name until the other one is sealed");
    assert_eq!(["o0", "o1", "new"].map(stays), [false, true, true]);
    // Under pressure of memory they leave like any other.
    assert_eq!(datapath.evict(ByteCount::mib(1), Slot::ROOT, Loss::Accepted), 1);
    assert!(!stays("k0"), "it is the coldest");
    datapath.end_session(&session);
    datapath.check_charges();
}

#[test]
fn what_is_begun_passes_no_quota_when_another_one_takes_the_place_that_it_was_to_take() {
    let names = ["k", "o0", "o1", "o2", "o3", "o4", "o5", "o6"];
    let renamed_over = |datapath: &Datapath, ns: Ino| {
        let other = directory(datapath, b"other");
        make(datapath, other, "k");
        datapath.rename(&caller(), (other, b"k"), (ns, b"k"), false).unwrap();
    };
    let renamed = |datapath: &Datapath, ns: Ino| {
        datapath.rename(&caller(), (ns, b"k"), (ns, b"moved"), false).unwrap();
    };
    let written = |datapath: &Datapath, ns: Ino| {
        let ino = {
            let state = datapath.lock();
            state.tree.ino(state.tree.child(state.tree.by_ino(ns).unwrap(), b"k").unwrap())
        };
        datapath.begin_version(&caller(), ino, OpenOptions { truncate: true, ..WRITE }).unwrap();
    };
    type Way<'a> = &'a dyn Fn(&Datapath, Ino);
    let ways: [Way<'_>; 3] = [&renamed_over, &renamed, &written];
    for (index, way) in ways.into_iter().enumerate() {
        let (_place, datapath, ns, session) = full(names, &["k"]);
        way(&datapath, ns);
        assert_eq!(used(&datapath, ns), ByteCount::mib(8), "way {index}");
        datapath.end_session(&session);
        datapath.check_charges();
    }
}

#[test]
fn what_is_begun_passes_no_quota_when_the_object_is_written_where_it_is() {
    for is_known_to_the_kernel in [true, false] {
        let names = ["k", "o0", "o1", "o2", "o3", "o4", "o5", "o6"];
        let (_place, datapath, ns, session) = full(names, &["k"]);
        let ino = {
            let state = datapath.lock();
            state.tree.ino(state.tree.child(state.tree.by_ino(ns).unwrap(), b"k").unwrap())
        };
        if !is_known_to_the_kernel {
            datapath.forget(ino, 1);
        }
        let opened = datapath.open(&caller(), ino, WRITE);
        assert_eq!(opened.is_err(), is_known_to_the_kernel, "{opened:?}");
        if is_known_to_the_kernel {
            datapath.lookup(&caller(), ns, b"k", Patience::None).unwrap();
        }
        assert_eq!(used(&datapath, ns), ByteCount::mib(8));
        datapath.end_session(&session);
        datapath.check_charges();
    }
}
