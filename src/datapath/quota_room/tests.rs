//! Who is refused for a quota, and how long it waits before, in a cache without a mount.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::super::Session;
use super::super::regroup::{Changes, Walk};
use super::super::testing::{begin, caller, directory, unprivileged};
use super::*;
use crate::namespace::Ino;

/// A directory whose quota of 8 MiB is full of what is being written, so that nothing of it can leave.
fn full() -> (tempfile::TempDir, Datapath, Ino, Session) {
    let (place, datapath) = unprivileged();
    let ns = directory(&datapath, b"ns");
    datapath.set_attribute(ns, b"user.tidefs.quota", b"8MiB", None).unwrap();
    let session = begin(&datapath, ns, &["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"]);
    (place, datapath, ns, session)
}

/// A walk through a directory that has begun, and goes on when it is passed to [`Datapath::regroup`].
fn begin_walk(datapath: &Datapath, top: Ino) -> Walk {
    let mut state = datapath.lock();
    let top = state.tree.by_ino(top).unwrap();
    state.begin_walk(top, Changes { order: true, expiries: false })
}

fn has_room(datapath: &Datapath, directory: Ino) -> bool {
    let slot = datapath.lock().tree.by_ino(directory).unwrap();
    match datapath.make_room_in_quota(ByteCount::mib(1), slot) {
        Ok(()) => true,
        Err(Error::OverQuota { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_change_of_policy_elsewhere_keeps_no_writer_waiting_whose_quota_is_full() {
    let (_place, mut datapath, ns, session) = full();
    datapath.settings.deadline = Duration::from_secs(30);
    let elsewhere = directory(&datapath, b"elsewhere");
    let walk = begin_walk(&datapath, elsewhere);
    let began = Instant::now();
    assert!(!has_room(&datapath, ns));
    assert!(began.elapsed() < datapath.settings.deadline);
    datapath.regroup(walk);
    datapath.end_session(&session);
}

#[test]
fn a_change_of_policy_that_takes_long_keeps_a_writer_waiting_until_its_deadline_at_most() {
    let (_place, mut datapath, ns, session) = full();
    datapath.settings.deadline = Duration::from_millis(50);
    let walk = begin_walk(&datapath, ns);
    // As while it goes on.
    let one_at_a_time = datapath.regrouping.lock();
    let began = Instant::now();
    assert!(!has_room(&datapath, ns));
    assert!(began.elapsed() >= datapath.settings.deadline, "it may have brought something");
    drop(one_at_a_time);
    datapath.regroup(walk);
    datapath.end_session(&session);
}

#[test]
fn who_waits_for_a_change_of_policy_goes_on_when_it_is_through() {
    let (_place, mut datapath, ns, session) = full();
    datapath.settings.deadline = Duration::from_secs(60);
    let walk = begin_walk(&datapath, ns);
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let datapath = &datapath;
        scope.spawn(move || tell.send(has_room(datapath, ns)));
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "it waits");
        datapath.end_session(&session);
        datapath.regroup(walk);
        assert_eq!(told.recv_timeout(Duration::from_secs(30)), Ok(true));
    });
}

#[test]
fn what_leads_through_a_quota_or_through_something_below_it_is_waited_for_and_nothing_else() {
    let (_place, datapath) = unprivileged();
    let make = |parent, name: &[u8]| datapath.make_directory(&caller(), parent, name, 0o755).unwrap().ino;
    let above = make(Ino::ROOT, b"above");
    let limited = make(above, b"limited");
    let (below, beside, apart) = (make(limited, b"below"), make(above, b"beside"), make(Ino::ROOT, b"apart"));
    let slot = datapath.lock().tree.by_ino(limited).unwrap();
    for (top, is_waited_for) in
        [(Ino::ROOT, true), (above, true), (limited, true), (below, true), (beside, false), (apart, false)]
    {
        let walk = begin_walk(&datapath, top);
        assert_eq!(datapath.lock().is_walked(slot), is_waited_for, "{top:?}");
        datapath.regroup(walk);
        assert!(!datapath.lock().is_walked(slot), "it is through");
    }
    datapath.check_domains();
}

#[test]
fn who_is_refused_for_a_quota_is_counted_and_what_is_trimmed_for_nobody_is_not() {
    let (_place, datapath, ns, session) = full();
    let refused = || datapath.telemetry().over_quota.get();
    datapath.set_attribute(ns, b"user.tidefs.quota", b"4MiB", None).unwrap();
    let slot = datapath.lock().tree.by_ino(ns).unwrap();
    datapath.trim_to_quota(slot);
    assert!(datapath.look_for_room_in_quota(ByteCount::mib(1), slot).is_err());
    assert_eq!(refused(), 0, "what cannot go stays, and nobody asked for its room");
    assert!(!has_room(&datapath, ns));
    assert_eq!(refused(), 1);
    datapath.end_session(&session);
}
