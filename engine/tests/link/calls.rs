//! What calls and notifications do on a link that works, and at the bounds of its queues.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tidefs_engine::error::Error;
use tidefs_engine::link::{Channel, LinkConfig};
use tidefs_engine::types::ByteCount;

use crate::common::{ECHO, ECHO_LATER, Event, NEVER, Node, REFUSE, config, peer, soon, until};

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_both_ways_over_one_link() {
    let (a, b) = (Node::start(1), Node::start(2));
    let there = a.connect(&b).await.unwrap();
    assert_eq!(there.call(ECHO, b"there".to_vec(), soon()).await, Ok(b"there".to_vec()));
    b.seen.wait_for(&Event::Connected(a.me)).await;
    // The accepted link serves the other end too: it dials no second one.
    let back = b.connect(&a).await.unwrap();
    assert!(!back.is_dialled());
    assert_eq!(back.call(ECHO_LATER, b"back".to_vec(), soon()).await, Ok(b"back".to_vec()));
    back.notify(ECHO, b"by the way".to_vec()).unwrap();
    a.seen.wait_for(&Event::Notified(b"by the way".to_vec())).await;
    assert!(Arc::ptr_eq(&there, &a.links.link(b.me).unwrap()));
    assert_eq!(there.boot(), back.boot());
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_every_length_arrive_whole() {
    let (a, b) = (Node::start(1), Node::start(2));
    let link = a.connect(&b).await.unwrap();
    for length in [0, 1, 23, 24, 16 << 10, (16 << 10) + 1, 300_000, 4 << 20] {
        let body: Vec<u8> = (0..=250).cycle().take(length).collect();
        let answer = link.call(ECHO, body.clone(), soon()).await.unwrap();
        assert!(answer == body, "a body of {length} bytes came back different");
    }
    let longer = vec![0; (4 << 20) + 1];
    let refused = link.call(ECHO, longer, soon()).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    assert!(link.is_up());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_at_once_get_their_own_answers() {
    let (a, b) = (Node::start(1), Node::start(2));
    let link = a.connect(&b).await.unwrap();
    let calls: Vec<_> = (0..500_u32)
        .map(|index| {
            let link = Arc::clone(&link);
            let channel = if index % 2 == 0 { ECHO } else { ECHO_LATER };
            let body = vec![index.to_le_bytes(); (index as usize * 37) % 5000].concat();
            tokio::spawn(async move { (link.call(channel, body.clone(), soon()).await, body) })
        })
        .collect();
    for call in calls {
        match call.await.unwrap() {
            (Ok(answer), body) => assert_eq!(answer, body),
            // More answers were being made at once than the peer allows.
            (Err(error), _) => assert_eq!(error, Error::Busy { what: "the peer" }),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_brings_the_words_of_the_handler() {
    let (a, b) = (Node::start(1), Node::start(2));
    let link = a.connect(&b).await.unwrap();
    let refused = link.call(REFUSE, Vec::new(), soon()).await;
    assert_eq!(refused, Err(Error::Refused { cause: "channel 3 is refused".into() }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_ends_by_its_deadline_and_frees_its_place() {
    let (a, b) = (Node::with(peer(1, 1), LinkConfig { calls_max: 2, ..config() }), Node::start(2));
    let link = a.connect(&b).await.unwrap();
    for _ in 0..3 {
        let deadline = Instant::now() + Duration::from_millis(5);
        let ended = link.call(NEVER, Vec::new(), deadline).await;
        assert_eq!(ended, Err(Error::DeadlinePassed));
    }
    assert_eq!(link.call(ECHO, b"still there".to_vec(), soon()).await, Ok(b"still there".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_call_frees_its_place_and_more_than_the_bound_are_refused() {
    let (a, b) = (Node::with(peer(1, 1), LinkConfig { calls_max: 2, ..config() }), Node::start(2));
    let link = a.connect(&b).await.unwrap();
    let mut waiting = [0, 1].map(|_| link.call(NEVER, Vec::new(), soon()));
    for call in &mut waiting {
        // The first poll takes the place.
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    let full = link.call(ECHO, Vec::new(), soon()).await;
    assert_eq!(full, Err(Error::Busy { what: "the queue of calls to the peer" }));
    drop(waiting);
    assert_eq!(link.call(ECHO, vec![1], soon()).await, Ok(vec![1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_makes_too_many_answers_at_once_says_so() {
    let (a, b) = (Node::start(1), Node::with(peer(2, 1), LinkConfig { answers_max: 1, ..config() }));
    let link = a.connect(&b).await.unwrap();
    let first = {
        let link = Arc::clone(&link);
        tokio::spawn(async move { link.call(NEVER, Vec::new(), soon()).await })
    };
    loop {
        let second = link.call(ECHO_LATER, Vec::new(), soon()).await;
        match second {
            Err(Error::Busy { what }) => break assert_eq!(what, "the peer"),
            _ => tokio::task::yield_now().await,
        }
    }
    first.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_a_link_ends_its_calls_at_both_ends_and_it_can_be_made_anew() {
    let (a, b) = (Node::start(1), Node::start(2));
    let link = a.connect(&b).await.unwrap();
    b.seen.wait_for(&Event::Connected(a.me)).await;
    let back = b.links.link(a.me).unwrap();
    let asked = tokio::spawn(async move { back.call(NEVER, Vec::new(), soon()).await });
    let asking = {
        let link = Arc::clone(&link);
        tokio::spawn(async move { link.call(NEVER, Vec::new(), soon()).await })
    };
    tokio::task::yield_now().await;
    link.close();
    assert_eq!(asking.await.unwrap(), Err(Error::Closed));
    let gone = asked.await.unwrap();
    assert!(matches!(gone, Err(Error::PeerGone { peer, .. }) if peer == a.me), "{gone:?}");
    assert_eq!(link.call(ECHO, Vec::new(), soon()).await, Err(Error::Closed));
    assert_eq!(link.notify(ECHO, Vec::new()), Err(Error::Closed));
    let anew = a.connect(&b).await.unwrap();
    assert_eq!(anew.call(ECHO, vec![7], soon()).await, Ok(vec![7]));
    let (up, down) = (Event::Connected(b.me), Event::Disconnected(b.me));
    assert_eq!(a.seen.events(), [up.clone(), down, up]);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_dialling_at_once_make_one_link() {
    for _ in 0..20 {
        let (a, b) = (Node::start(1), Node::start(2));
        let (there, back) = tokio::join!(a.connect(&b), b.connect(&a));
        let (there, back) = (there.unwrap(), back.unwrap());
        assert_ne!(there.is_dialled(), back.is_dialled(), "one connection, dialled by one end");
        assert_eq!(there.call(ECHO, vec![1], soon()).await, Ok(vec![1]));
        assert_eq!(back.call(ECHO, vec![2], soon()).await, Ok(vec![2]));
        assert_eq!((a.seen.events().len(), b.seen.events().len()), (1, 1));
        tokio::join!(a.links.close(), b.links.close());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_connects_at_once_shares_one_attempt() {
    let (a, b) = (Node::start(1), Node::start(2));
    let connects: Vec<_> = (0..16)
        .map(|_| {
            let (links, to, addresses) = (Arc::clone(&a.links), b.me, b.links.addresses());
            tokio::spawn(async move { links.connect(to, &addresses, soon()).await.unwrap() })
        })
        .collect();
    let first = a.connect(&b).await.unwrap();
    for connect in connects {
        assert!(Arc::ptr_eq(&first, &connect.await.unwrap()));
    }
    assert_eq!(a.seen.events(), [Event::Connected(b.me)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_links_leave_nothing_behind() {
    let (a, b) = (Node::start(1), Node::start(2));
    let link = a.connect(&b).await.unwrap();
    b.seen.wait_for(&Event::Connected(a.me)).await;
    b.links.close().await;
    b.links.close().await;
    assert_eq!(b.seen.events(), [Event::Connected(a.me), Event::Disconnected(a.me)]);
    until(|| !link.is_up()).await;
    assert_eq!(b.links.connect(a.me, &a.links.addresses(), soon()).await.unwrap_err(), Error::Closed);
    let refused = a.connect(&b).await.unwrap_err();
    assert!(matches!(refused, Error::Unreachable { .. }), "{refused}");
}

#[tokio::test]
async fn who_closes_after_one_who_gave_up_waits_for_all_that_is_left() {
    let (a, b) = (Node::start(1), Node::start(2));
    let _link = a.connect(&b).await.unwrap();
    b.seen.wait_for(&Event::Connected(a.me)).await;
    let mut given_up = b.links.close();
    assert!(given_up.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(given_up);
    tokio::join!(b.links.close(), b.links.close());
    assert_eq!(b.seen.events(), [Event::Connected(a.me), Event::Disconnected(a.me)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_read_fills_a_bounded_queue() {
    let small = LinkConfig { queue_bytes_max: ByteCount::kib(64), ..config() };
    let (a, b) = (Node::with(peer(1, 1), small), Node::start(2));
    let link = a.connect(&b).await.unwrap();
    // Far faster than it is read: at some point the socket and then the queue are full.
    let mut sent = 0_u64;
    let full = loop {
        match link.notify(Channel(9), vec![0; 32 << 10]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 1 << 20, "nothing was ever refused");
    };
    assert_eq!(full, Error::Busy { what: "the queue of messages to the peer" });
    // What was taken arrives, all of it.
    until(|| b.seen.events().len() as u64 == sent + 1).await;
    assert_eq!(link.call(ECHO, vec![1], soon()).await, Ok(vec![1]));
}
