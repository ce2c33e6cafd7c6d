//! Files that come to live on disk, in a cache without a mount.

use std::iter;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::super::testing::{caller, directory, make, unprivileged};
use super::super::{AttributeChange, BeginRequest, Credentials, Located, Opened, SealRequest};
use super::*;
use crate::tier::scratch::testing::{slow_to_close, without_a_place};

#[test]
fn who_sets_times_without_end_keeps_no_file_from_becoming_a_slot_file() {
    let (_place, datapath) = unprivileged();
    let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let (_, opened) = datapath.create(&caller(), Ino::ROOT, b"slots", 0o644, options).unwrap();
    datapath.write(opened.handle, 0, &vec![1; 8 << 20]).unwrap();
    let (times_set, is_over) = (AtomicI64::new(0), AtomicBool::new(false));
    let set_time = || {
        let mtime_ns = Some(times_set.fetch_add(1, Ordering::Relaxed));
        let change = AttributeChange { mtime_ns, ..AttributeChange::default() };
        datapath.setattr(&caller(), opened.ino, &change).unwrap();
    };
    thread::scope(|scope| {
        let setter = scope.spawn(|| {
            let began = Instant::now();
            while !is_over.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(20) {
                set_time();
            }
        });
        while times_set.load(Ordering::Relaxed) == 0 && !setter.is_finished() {
            thread::yield_now();
        }
        let moved = datapath.become_scratch(opened.ino, Wait::Patiently);
        let goes_on = !setter.is_finished();
        is_over.store(true, Ordering::Relaxed);
        assert!(moved.is_ok() && goes_on, "{moved:?}, while times are set: {goes_on}");
    });
    assert!(datapath.lock().slot_file(opened.ino).is_some());
    set_time();
    let stat = datapath.getattr(opened.ino).unwrap();
    assert_eq!(stat.attributes.mtime_ns + 1, times_set.load(Ordering::Relaxed), "it has the last of them");
    assert_eq!(stat.size, ByteCount::mib(8));
    datapath.release(opened.handle);
}

#[test]
fn who_creates_a_file_takes_no_lock_to_learn_that_there_is_no_disk_to_wait_for() {
    let (_place, datapath) = unprivileged();
    let is_long = |directory| datapath.is_long_to_create(directory, b"key", OpenOptions::default());
    let held = datapath.lock();
    let answer = thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        scope.spawn(move || tell.send(is_long(Ino::ROOT)));
        let answer = told.recv_timeout(Duration::from_secs(10));
        drop(held);
        answer
    });
    assert_eq!(answer, Ok(false));
}

#[test]
fn the_nearest_directory_that_says_so_makes_slot_files_until_it_does_not() {
    let (_place, datapath) = unprivileged();
    let is_long = |directory| datapath.is_long_to_create(directory, b"key", OpenOptions::default());
    let make = |parent, name: &[u8]| datapath.make_directory(&caller(), parent, name, 0o755).unwrap().ino;
    let top = make(Ino::ROOT, b"ns");
    let below = make(top, b"below");
    let set = |directory, value: &[u8]| {
        datapath.set_attribute(directory, b"user.tidefs.scratch", value, None).unwrap();
    };
    set(top, b"true");
    assert_eq!([Ino::ROOT, top, below].map(is_long), [false, true, true]);
    set(below, b"false");
    assert_eq!([top, below].map(is_long), [true, false]);
    datapath.remove_attribute(top, b"user.tidefs.scratch").unwrap();
    assert!(!is_long(top) && datapath.slot_directories.load(Ordering::Relaxed) == 0);
    set(below, b"true");
    datapath.remove_directory(top, b"below").unwrap();
    datapath.forget(below, 1);
    assert_eq!(datapath.slot_directories.load(Ordering::Relaxed), 0, "it goes with its directory");
}

#[test]
fn a_copy_to_disk_whose_time_is_over_waits_for_no_room() {
    let (_place, datapath) = unprivileged();
    let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let (_, opened) = datapath.create(&caller(), Ino::ROOT, b"slots", 0o644, options).unwrap();
    datapath.write(opened.handle, 0, &[1; 4096]).unwrap();
    let rest = datapath.scratch.capacity().saturating_sub(datapath.scratch.used());
    let (other, peer) = slow_to_close(&datapath.scratch, rest);
    drop(other);
    let began = Instant::now();
    let moved = datapath.become_scratch(opened.ino, Wait::Until(began));
    assert!(matches!(moved, Err(Error::ScratchFull(_))), "{moved:?}");
    assert!(began.elapsed() < Duration::from_secs(20));
    drop(peer);
    datapath.release(opened.handle);
}

#[test]
fn truncate_by_name_to_the_size_of_a_slot_file_is_long_though_nobody_has_the_file_open() {
    let (_place, datapath) = unprivileged();
    let ino = make(&datapath, Ino::ROOT, "key");
    let is_long = |length| datapath.is_long_to_truncate(ino, length);
    assert!(is_long(datapath.settings.scratch_min) && !is_long(ByteCount::mib(32)));
}

#[test]
fn who_makes_a_slot_file_where_none_was_expected_is_left_to_who_may_wait_for_its_place() {
    let (_place, datapath) = unprivileged();
    let ns = directory(&datapath, b"ns");
    datapath.set_attribute(ns, b"user.tidefs.scratch", b"true", None).unwrap();
    let peer = without_a_place(&datapath.scratch);
    let make = |wait| datapath.make_file_within(&caller(), ns, b"key", 0o600, wait);
    let began = Instant::now();
    let refused = make(Wait::NotHere).unwrap_err();
    assert!(datapath.is_worth_waiting(&refused), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(20));
    drop(peer);
    make(Wait::Patiently).unwrap();
}

/// A slot file that has a page.
fn slots(datapath: &Datapath) -> Opened {
    let directory = datapath.make_directory(&caller(), Ino::ROOT, b"ns", 0o755).unwrap().ino;
    datapath.set_attribute(directory, b"user.tidefs.scratch", b"true", None).unwrap();
    let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let (_, slots) = datapath.create(&caller(), directory, b"slots", 0o600, options).unwrap();
    datapath.write(slots.handle, 0, &[7; 4096]).unwrap();
    slots
}

#[test]
fn a_write_whose_room_is_gone_when_it_comes_to_it_is_left_to_who_may_wait_and_counts_as_no_refusal() {
    let (_place, datapath) = unprivileged();
    let slots = slots(&datapath);
    let rest = datapath.scratch.capacity().saturating_sub(datapath.scratch.used());
    let (other, peer) = slow_to_close(&datapath.scratch, rest);
    let write = |offset| datapath.write_now(slots.handle, offset, &[8; 4096]);
    let is_refused = || {
        let state = datapath.lock();
        let object = state.object(state.tree.by_ino(slots.ino).unwrap()).unwrap();
        object.open.as_ref().is_some_and(|open| open.refused.is_some())
    };
    let began = Instant::now();
    drop(other);
    assert!(matches!((write(0), write(8 << 20)), (Ok(true), Ok(false))));
    assert!(!is_refused() && began.elapsed() < Duration::from_secs(20));
    drop(peer);
    while datapath.scratch.files() > 1 {
        thread::yield_now();
    }
    let rest = datapath.scratch.capacity().saturating_sub(datapath.scratch.used());
    let _kept = slow_to_close(&datapath.scratch, rest);
    assert!(matches!(write(8 << 20), Err(Error::ScratchFull(_))) && is_refused(), "nothing is given back");
}

#[test]
fn a_write_that_waits_for_the_room_of_a_closed_slot_file_is_long_and_one_in_place_is_not() {
    let (_place, datapath) = unprivileged();
    let slots = slots(&datapath);
    let is_long = |offset| datapath.is_long_to_write(slots.ino, offset, ByteCount(4096));
    let far = 8 << 20;
    assert!(!is_long(far), "there is room");
    let rest = datapath.scratch.capacity().saturating_sub(datapath.scratch.used());
    let (other, _peer) = slow_to_close(&datapath.scratch, rest);
    assert!(!is_long(far), "it is refused at once");
    drop(other);
    assert_eq!([0, far].map(is_long), [false, true]);
}

/// The kernel was not asked for that, and keeps the inode with the name: here for ever.
#[test]
fn a_closed_slot_file_that_a_client_replaces_gives_its_room_back_though_the_kernel_knows_it_still() {
    let (_place, datapath) = unprivileged();
    let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let (_, slots) = datapath.create(&caller(), Ino::ROOT, b"key", 0o644, options).unwrap();
    datapath.write(slots.handle, 0, &[7; 4096]).unwrap();
    datapath.become_scratch(slots.ino, Wait::Patiently).unwrap();
    datapath.flush(&caller(), slots.handle).unwrap();
    datapath.release(slots.handle);
    let session = datapath.begin_session(Credentials::of_request(0, 0, caller().thread), true);
    let size = ByteCount::mib(1);
    let request = BeginRequest { name: b"key", size, mode: 0o644 };
    let reference = datapath.begin(&session, Ino::ROOT, iter::once(request), |begun| {
        assert!(matches!(begun, Located::Here { .. }), "{begun:?}");
    });
    let seal = iter::once(SealRequest { reference, length: size });
    let left = datapath.seal_begun(&session, &caller(), seal, |sealed| assert!(sealed.is_ok(), "{sealed:?}"));
    datapath.free_remains(left);
    datapath.sweep();
    assert_eq!(datapath.scratch.files(), 1, "who has looked it up may be about to open it");
    datapath.sweep();
    let began = Instant::now();
    while datapath.scratch.files() > 0 && began.elapsed() < Duration::from_secs(20) {
        thread::yield_now();
    }
    assert_eq!((datapath.scratch.files(), datapath.scratch.used()), (0, ByteCount::ZERO));
    let late = datapath.open(&caller(), slots.ino, OpenOptions { write: false, ..options });
    assert!(matches!(late, Err(Error::Stale)), "{late:?}");
}
