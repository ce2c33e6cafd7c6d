//! One way, told what becomes of it step by step.

use super::*;
use crate::queue::lane::tests::idle as lane;
use crate::types::{Incarnation, MemberId};

const PEER: PeerId = PeerId { member: MemberId(1), incarnation: Incarnation(1) };

fn begin(way: &Way, now: Duration) -> Attempt {
    match way.step(now, true) {
        Step::Connect(attempt) => attempt,
        other => panic!("{other:?}"),
    }
}

/// The link is lost while somebody connects, and back; the second connect is through before the first has ended.
#[test]
fn a_connect_from_before_the_link_was_lost_changes_nothing_when_it_ends() {
    let now = Duration::from_secs(1);
    let failed = || Err(Error::DeadlinePassed);
    for of_the_first in [failed(), Ok(lane()), Err(Error::Cancelled)] {
        let way = Way::new();
        let first = begin(&way, now);
        assert!(way.reset().is_none());
        let second = begin(&way, now);
        let good = lane();
        assert!(way.connected(second, Ok(Arc::clone(&good)), now).is_none());
        let late = of_the_first.as_ref().ok().cloned();
        let handed_back = way.connected(first, of_the_first, now);
        assert_eq!(handed_back.map(|lane| Arc::as_ptr(&lane)), late.map(|lane| Arc::as_ptr(&lane)));
        assert!(way.ready().is_some_and(|ready| Arc::ptr_eq(&ready, &good)), "{}", way.describe(now));
    }
    // Nor does it end a wait for the second.
    let way = Way::new();
    let first = begin(&way, now);
    way.reset();
    let second = begin(&way, now);
    assert!(way.connected(first, failed(), now).is_none());
    assert_eq!(way.describe(now), "connecting");
    assert!(way.connected(second, Ok(lane()), now).is_none() && way.ready().is_some());
}

/// A fabric says nothing of a connection that is gone: what was under way on it ends when another stands already.
#[test]
fn what_ends_late_on_an_earlier_connection_says_nothing_of_the_present_one() {
    let now = Duration::from_secs(1);
    let way = Way::new();
    let connect = |lane: &Arc<Lane>| {
        let attempt = begin(&way, now);
        assert!(way.connected(attempt, Ok(Arc::clone(lane)), now).is_none());
    };
    let is_ready = || way.ready().is_some();
    let (earlier, present) = (lane(), lane());
    connect(&earlier);
    assert!(way.reset().is_some());
    assert!(!way.failed(&earlier, now));
    connect(&present);
    assert!(is_ready());
    assert!(!way.failed(&earlier, now) && is_ready(), "it is as good as before");
    assert!(way.failed(&present, now) && !is_ready());
    assert!(!way.failed(&present, now), "it is out already");
    assert!(!way.succeeded(&earlier) && !is_ready());
    // Nor is the present one tried sooner.
    assert!(!way.not_tried(&earlier, now) && matches!(way.step(now, true), Step::Out(_)));
    assert!(way.not_tried(&present, now) && matches!(way.step(now, true), Step::Use(_)));
    assert!(way.succeeded(&present) && is_ready());
}

#[test]
fn what_the_peer_does_not_have_is_not_asked_for_after_its_link_was_lost() {
    let now = Duration::from_secs(1);
    let way = Way::new();
    way.offered("test", false, PEER);
    way.reset();
    assert!(
        matches!(way.step(now, true), Step::Impossible(Error::Unavailable { .. })) && way.is_impossible()
    );
    way.offered("test", true, PEER);
    let attempt = begin(&way, now);
    // What only a connect found out may be otherwise now.
    let refused = Error::Unavailable { transport: "test", looked_for: "it".into(), cause: "a cause".into() };
    assert!(way.connected(attempt, Err(refused), now).is_none() && way.is_impossible());
    way.reset();
    begin(&way, now);
}

#[test]
fn a_way_that_nobody_is_to_connect_now_is_left_as_it_is() {
    let way = Way::new();
    assert!(matches!(way.step(Duration::ZERO, false), Step::Wait(None)));
    assert_eq!(way.describe(Duration::ZERO), "not connected");
}

#[test]
fn the_next_best_way_is_connected_beside_one_that_takes_long_and_the_better_is_used_once_it_is_there() {
    let now = Duration::from_secs(1);
    let peer = Peer::new(PEER, 2);
    let [better, next] = peer.ways.as_slice() else { unreachable!("there are two") };
    let attempt = begin(better, now);
    let head_start = |now| match better.step(now, true) {
        Step::Wait(head_start) => head_start,
        other => panic!("{other:?}"),
    };
    assert_eq!(head_start(now), None, "there is no link yet");
    better.begun(attempt, now);
    assert_eq!(head_start(now), Some(HEAD_START));
    let now = now + HEAD_START;
    assert_eq!(head_start(now), Some(Duration::ZERO));
    let second = begin(next, now);
    assert!(next.connected(second, Ok(lane()), now).is_none());
    assert!(
        peer.ready_way(|_| true).is_none(),
        "who has the choice looks whether the better one is to be had"
    );
    let best = lane();
    assert!(better.connected(attempt, Ok(Arc::clone(&best)), now).is_none());
    let ready = peer.ready_way(|_| true).expect("both are");
    assert!(Arc::ptr_eq(&ready.lane, &best) && !ready.is_second_best);
    let ready = peer.ready_way(|place| place == 1).expect("both are");
    assert!(!Arc::ptr_eq(&ready.lane, &best) && ready.is_second_best, "the better one has not the memory");
}
