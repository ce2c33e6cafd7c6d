//! Who has its turn on the threads that load, without these.

use tidefs_engine::types::MemberId;

use super::*;
use crate::cluster::Purpose;

fn lines(threads: usize) -> Loader {
    let loader = Loader::default();
    loader.lines.lock().threads = threads;
    loader
}

fn turn(number: u64, why: Why) -> Option<Turn> {
    Some(Turn { ino: Ino(number), why, way: None })
}

#[test]
fn who_is_waited_for_comes_before_what_is_loaded_ahead_and_never_twice() {
    let loader = lines(4);
    assert!((1..=2).all(|number| loader.leave_ahead(Ino(number), ByteCount(1), false)));
    assert!(!loader.leave_ahead(Ino(1), ByteCount(1), false), "it is in line already");
    loader.leave(Ino(3), Box::new(|_| ()));
    loader.leave(Ino(2), Box::new(|_| ()));
    let mut lines = loader.lines.lock();
    assert_eq!(lines.take(), turn(3, Why::Wanted));
    assert_eq!(lines.take(), turn(2, Why::Wanted), "somebody waits for it now");
    assert_eq!(lines.take(), turn(1, Why::Ahead));
    assert_eq!(lines.take(), None);
}

#[test]
fn what_another_member_wants_to_be_here_is_loaded_for_that_alone_unless_a_program_wants_it_too() {
    let loader = lines(4);
    let leave = |number, need| loader.leave_for(Ino(number), need, Box::new(|_| ()));
    assert!(loader.leave_ahead(Ino(3), ByteCount(1), true), "a program named it");
    for (number, needs) in [
        (1, [Need::Copy, Need::Copy]),
        (2, [Need::Copy, Need::Start]),
        (3, [Need::Copy, Need::Copy]),
        (4, [Need::Whole, Need::Copy]),
    ] {
        needs.into_iter().for_each(|need| leave(number, need));
    }
    let mut lines = loader.lines.lock();
    for purpose in [Purpose::Keeping, Purpose::Reading, Purpose::Ahead, Purpose::Reading] {
        let next = lines.next().unwrap();
        assert_eq!(lines.known(&next).1.get(), purpose);
    }
}

#[test]
fn what_is_loaded_ahead_is_less_urgent_than_what_somebody_waits_for() {
    let loader = lines(4);
    assert!((1..=2).all(|number| loader.leave_ahead(Ino(number), ByteCount(1), true)));
    loader.leave(Ino(2), Box::new(|_| ()));
    let mut lines = loader.lines.lock();
    for purpose in [Purpose::Reading, Purpose::Ahead] {
        let next = lines.next().unwrap();
        assert_eq!(lines.known(&next).1.get(), purpose);
    }
}

#[test]
fn what_is_being_loaded_becomes_as_urgent_as_whoever_comes_to_wait_for_it() {
    let loader = lines(4);
    loader.leave_for(Ino(1), Need::Copy, Box::new(|_| ()));
    assert!(loader.leave_ahead(Ino(2), ByteCount(1), true));
    for (before, has_started) in [(Purpose::Keeping, false), (Purpose::Ahead, true)] {
        let (ino, purpose) = {
            let mut lines = loader.lines.lock();
            let next = lines.next().unwrap();
            let purpose = lines.known(&next).1;
            let Next::Load(turn) = next else { panic!("there are no jobs") };
            (turn.ino, purpose)
        };
        assert_eq!(purpose.get(), before);
        if has_started {
            loader.started(ino);
        }
        loader.leave_for(ino, Need::Start, Box::new(|_| ()));
        assert_eq!(purpose.get(), Purpose::Reading, "of what is read by now");
    }
}

#[test]
fn half_of_the_threads_stay_for_loads_while_jobs_take_long() {
    let loader = lines(4);
    assert!((0..4).all(|_| loader.take_job(JobKind::Other, Box::new(|_| ())).is_none()));
    loader.leave(Ino(1), Box::new(|_| ()));
    let mut lines = loader.lines.lock();
    let is_job = |next: Option<Next>| matches!(next, Some(Next::Job(..)));
    assert!(is_job(lines.next()) && is_job(lines.next()));
    assert!(
        matches!(lines.next(), Some(Next::Load(Turn { ino: Ino(1), why: Why::Wanted, .. }))),
        "who waits for a load is forgotten"
    );
    assert!(lines.next().is_none(), "the other jobs have their turn when one of these has ended");
    lines.jobs.end(JobKind::Other);
    assert!(is_job(lines.next()));
    drop(lines);
    // With memory alone there is one thread.
    let loader = self::lines(1);
    assert!(loader.take_job(JobKind::Other, Box::new(|_| ())).is_none());
    assert!(is_job(loader.lines.lock().next()));
}

#[test]
fn a_job_that_finds_too_many_waiting_is_to_answer_at_once_and_the_others_take_their_time() {
    let (_place, datapath) = super::super::testing::unprivileged();
    let told = std::sync::Arc::new(Mutex::new(Vec::new()));
    for _ in 0..=WAITING_MAX {
        let told = std::sync::Arc::clone(&told);
        datapath.leave_job(Box::new(move |pace| told.lock().push(pace)));
    }
    assert_eq!(*told.lock(), [Pace::AtOnce]);
    assert_eq!(datapath.telemetry.overloads.get(), 1);
    datapath.loader.close();
    datapath.run_loads();
    let told = told.lock();
    assert_eq!(told.len(), WAITING_MAX + 1);
    assert!(told[1..].iter().all(|pace| *pace == Pace::AtLeisure));
}

#[test]
fn half_of_the_threads_stay_for_those_who_wait() {
    let loader = lines(4);
    assert!((1..=5).all(|number| loader.leave_ahead(Ino(number), ByteCount(1), number == 2)));
    let mut lines = loader.lines.lock();
    assert_eq!((lines.take(), lines.take(), lines.take()), (turn(1, Why::Ahead), turn(2, Why::Named), None));
}

#[test]
fn what_clients_name_takes_no_place_of_those_who_wait() {
    let loader = lines(4);
    let named = |number: &u64| loader.leave_ahead(Ino(*number), ByteCount(1), true);
    assert_eq!((1..10_000).filter(named).count(), AHEAD_MAX);
    let told = std::sync::Arc::new(Mutex::new(None));
    let rest = std::sync::Arc::clone(&told);
    loader.leave(Ino(20_000), Box::new(move |is_back| *rest.lock() = Some(is_back)));
    assert_eq!(*told.lock(), None, "it waits");
    assert_eq!(loader.lines.lock().take(), turn(20_000, Why::Wanted));
}

/// One way keeps `most` of the threads. Objects from 1 on wait, all that are numbered up to `most + 1` for what comes on it.
fn keeps_at_most(way: Way, has_disk: bool, most: u64) {
    let loader = lines(4);
    loader.lines.lock().ways.has_disk = has_disk;
    (1..=most + 3).for_each(|number| loader.leave(Ino(number), Box::new(|_| ())));
    let mut lines = loader.lines.lock();
    let mut turns = Vec::new();
    for number in 1..=most + 1 {
        let mut next = lines.take().unwrap();
        assert_eq!(Some(next), turn(number, Why::Wanted));
        assert_eq!(lines.goes_by(way, &mut next), number <= most, "{number}");
        turns.push(next);
    }
    // Those behind it come from elsewhere.
    assert_eq!(lines.take(), turn(most + 2, Why::Wanted));
    lines.end(turns[0]);
    let waited = Turn { ino: Ino(most + 1), why: Why::Wanted, way: Some(way) };
    assert_eq!(lines.take(), Some(waited), "one of its loads has ended");
    assert_eq!(lines.take(), turn(most + 3, Why::Wanted));
    assert_eq!(lines.take(), None);
}

#[test]
fn threads_stay_for_the_disk_and_for_other_members_while_one_hangs() {
    keeps_at_most(Way::Member(MemberId(2)), true, 1);
    keeps_at_most(Way::Member(MemberId(2)), false, 3);
}

#[test]
fn a_quarter_of_the_threads_stays_for_other_disks_while_one_hangs() {
    keeps_at_most(Way::Disk(1), true, 3);
}

#[test]
fn what_is_loaded_ahead_from_a_disk_that_hangs_takes_none_of_its_threads_from_the_others() {
    let loader = lines(4);
    assert!((1..=3).all(|number| loader.leave_ahead(Ino(number), ByteCount(1), true)));
    let mut lines = loader.lines.lock();
    assert!((0..3).all(|_| lines.ways.begin(Way::Disk(0), 4)));
    let mut next = lines.take().unwrap();
    assert!(!lines.goes_by(Way::Disk(0), &mut next));
    assert_eq!((lines.take(), lines.take(), lines.take()), (turn(2, Why::Named), turn(3, Why::Named), None));
    lines.running_ahead = 0;
    assert_eq!(lines.take(), None);
    lines.ways.end(Way::Disk(0));
    assert_eq!(lines.take(), Some(Turn { ino: Ino(1), why: Why::Named, way: Some(Way::Disk(0)) }));
}

#[test]
fn what_comes_from_a_member_ahead_of_its_use_leaves_its_place_to_what_comes_next() {
    let loader = lines(2);
    assert!((1..=2).all(|number| loader.leave_ahead(Ino(number), ByteCount(1), false)));
    let mut first = loader.lines.lock().take().unwrap();
    assert!(!loader.lines.lock().has_room_ahead());
    assert!(loader.goes_by(Way::Member(MemberId(2)), &mut first));
    let mut lines = loader.lines.lock();
    assert!(lines.has_room_ahead(), "who sleeps is to be woken");
    assert_eq!(lines.take(), turn(2, Why::Ahead));
}

#[test]
fn what_waited_for_its_way_gets_the_place_that_one_from_a_member_leaves_too() {
    let loader = lines(4);
    assert!((1..=3).all(|number| loader.leave_ahead(Ino(number), ByteCount(1), true)));
    let mut first = {
        let mut lines = loader.lines.lock();
        assert!((0..3).all(|_| lines.ways.begin(Way::Disk(0), 4)));
        let mut waits = lines.take().unwrap();
        assert!(!lines.goes_by(Way::Disk(0), &mut waits));
        let first = lines.take().unwrap();
        assert_eq!(lines.take(), turn(3, Why::Named));
        // There is no place when its way has a thread for it.
        lines.ways.end(Way::Disk(0));
        assert!(!lines.has_room_ahead());
        first
    };
    assert!(loader.goes_by(Way::Member(MemberId(2)), &mut first));
    let mut lines = loader.lines.lock();
    assert!(lines.has_room_ahead(), "who sleeps is to be woken");
    assert_eq!(lines.take(), Some(Turn { ino: Ino(1), why: Why::Named, way: Some(Way::Disk(0)) }));
}
