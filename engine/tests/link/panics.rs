//! What handles messages panics.

use std::time::{Duration, Instant};

use tidefs_engine::error::Error;
use tidefs_engine::link::LinkConfig;

use crate::common::{ECHO, ECHO_LATER, Event, NEVER, Node, PANIC, PANIC_LATER, config, peer, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_ends_its_link_and_the_next_one_works() {
    let (a, b) = (Node::start(1), Node::start(2));
    let link = a.connect(&b).await.unwrap();
    b.seen.wait_for(&Event::Connected(a.me)).await;
    let back = b.links.link(a.me).unwrap();
    let (answer, other, under_way) = tokio::join!(
        link.call(PANIC, Vec::new(), soon()),
        link.call(NEVER, Vec::new(), soon()),
        back.call(NEVER, Vec::new(), soon())
    );
    for answer in [answer, other, under_way] {
        assert!(matches!(answer, Err(Error::PeerGone { .. })), "{answer:?}");
    }
    a.seen.wait_for(&Event::Disconnected(b.me)).await;
    b.seen.wait_for(&Event::Disconnected(a.me)).await;
    let anew = a.connect(&b).await.unwrap();
    assert_eq!(anew.call(ECHO, vec![1], soon()).await, Ok(vec![1]));
    let anew = b.connect(&a).await.unwrap();
    assert_eq!(anew.call(ECHO, vec![2], soon()).await, Ok(vec![2]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_answers_and_panics_refuses_its_call_and_leaves_its_place() {
    let narrow = LinkConfig { answers_max: 1, ..config() };
    let (a, b) = (Node::start(1), Node::with(peer(2, 1), narrow));
    let link = a.connect(&b).await.unwrap();
    let refused = link.call(PANIC_LATER, Vec::new(), soon()).await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    let limit = Instant::now() + Duration::from_secs(20);
    while link.call(ECHO_LATER, vec![1], soon()).await != Ok(vec![1]) {
        // The place is left a moment after the answer.
        assert!(Instant::now() < limit, "its place is not free");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(link.is_up());
}
