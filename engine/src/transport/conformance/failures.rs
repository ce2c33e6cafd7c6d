//! Facts about operations that are given up, peers that go, and ends that are closed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::batch::{Batch, LONG, Shared};
use super::memory::expect_usable;
use super::scene::Scene;
use crate::error::Error;
use crate::memory::Access;
use crate::transport::{Endpoint, EndpointState};

/// Two regions, each of which one operation moves.
fn regions(scene: &Scene) -> (Shared, Shared) {
    let length = scene.up_to(1 << 20);
    (scene.pair.a.share(length, Access::ReadWrite, 1), scene.pair.b.share(length, Access::ReadWrite, 2))
}

/// 24 reads of all of `far`.
fn reads(near: &Shared, far: &Shared) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..24 {
        batch.read(near.local(0, near.length()), far.remote(0));
    }
    batch
}

/// Refills `near`, whose operations have all ended, and lets others pass: nothing may arrive in it any more.
fn expect_left_alone(scene: &Scene, near: &Shared, far: &Shared) {
    near.fill(5);
    let other = scene.pair.a.share(near.length(), Access::ReadWrite, 6);
    let endpoint = scene.connect();
    for _ in 0..4 {
        let mut fence = reads(&other, far);
        fence.post(&endpoint);
        fence.expect_done();
    }
    near.expect(5, "after its operations had ended");
}

/// Waits until the endpoint is not ready; fails when it stays so.
fn wait_until_failed(endpoint: &Arc<dyn Endpoint>) {
    let end = Instant::now() + LONG;
    while endpoint.state() == EndpointState::Ready {
        assert!(Instant::now() < end, "the endpoint is still ready");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn cancelled_operations_end_once_and_leave_memory_alone(scene: &Scene) {
    let endpoint = scene.connect();
    let (near, far) = regions(scene);
    let mut batch = reads(&near, &far);
    endpoint.post(&mut batch.queue);
    endpoint.cancel(batch.id);
    batch.queue.clear();
    for result in batch.results() {
        assert!(matches!(result, Ok(()) | Err(Error::Cancelled | Error::Closed)), "{result:?}");
    }
    expect_left_alone(scene, &near, &far);
    let mut held = reads(&near, &far);
    scene.stalled(|| {
        near.fill(5);
        endpoint.post(&mut held.queue);
        endpoint.cancel(held.id);
        // What was not posted ends with its ticket.
        held.queue.clear();
        let results = held.results();
        assert!(results.contains(&Err(Error::Cancelled)));
        assert!(results.iter().all(|result| matches!(result, Err(Error::Cancelled | Error::Closed))));
    });
    expect_left_alone(scene, &near, &far);
}

pub(crate) fn a_batch_that_is_cancelled_takes_no_other_with_it(scene: &Scene) {
    let endpoint = scene.connect();
    let (near, far) = regions(scene);
    let other = scene.pair.a.share(near.length(), Access::ReadWrite, 6);
    let (mut given_up, mut wanted) = (reads(&near, &far), reads(&other, &far));
    endpoint.post(&mut given_up.queue);
    endpoint.post(&mut wanted.queue);
    endpoint.cancel(given_up.id);
    given_up.queue.clear();
    given_up.results();
    let endpoint = if endpoint.state() == EndpointState::Ready { endpoint } else { scene.connect() };
    wanted.post(&endpoint);
    wanted.expect_done();
    other.expect(2, "the batch that goes on");
}

pub(crate) fn an_operation_past_its_deadline_ends_without_a_trace(scene: &Scene) {
    let endpoint = scene.connect();
    let (near, far) = regions(scene);
    let mut batch = Batch::until(Instant::now());
    batch.read(near.local(0, near.length()), far.remote(0));
    batch.write(near.local(0, near.length()), far.remote(0));
    batch.post(&endpoint);
    assert_eq!(batch.results(), [Err(Error::DeadlinePassed), Err(Error::DeadlinePassed)]);
    near.expect(1, "target of a late read");
    far.expect(2, "target of a late write");
    expect_usable(&endpoint, &near, &far);
}

pub(crate) fn a_held_operation_ends_by_its_deadline(scene: &Scene) {
    let endpoint = scene.connect();
    let (near, far) = regions(scene);
    let held = scene.stalled(|| {
        let mut batch = Batch::until(Instant::now() + Duration::from_millis(50));
        for _ in 0..4 {
            batch.read(near.local(0, near.length()), far.remote(0));
        }
        batch.post(&endpoint);
        assert!(batch.results().iter().all(|result| *result == Err(Error::DeadlinePassed)));
        near.expect(1, "target of reads that did not arrive");
    });
    if held.is_some() {
        expect_left_alone(scene, &near, &far);
    }
}

pub(crate) fn a_closed_peer_ends_operations_with_an_error(scene: &Scene) {
    let endpoint = scene.connect();
    let (near, far) = regions(scene);
    let mut batch = reads(&near, &far);
    batch.post(&endpoint);
    scene.runtime.block_on(scene.pair.b.transport.close());
    // Some may have been done before.
    batch.results();
    near.fill(5);
    far.fill(6);
    let mut late = Batch::until(Instant::now() + Duration::from_secs(5));
    late.read(near.local(0, near.length()), far.remote(0));
    late.write(near.local(0, near.length()), far.remote(0));
    late.post(&endpoint);
    assert!(late.results().iter().all(Result::is_err));
    near.expect(5, "after the peer was closed");
    far.expect(6, "after its transport was closed");
}

pub(crate) fn a_forgotten_peer_fails_its_endpoint_and_may_connect_again(scene: &Scene) {
    let endpoint = scene.connect();
    let (near, far) = regions(scene);
    let mut batch = reads(&near, &far);
    endpoint.post(&mut batch.queue);
    scene.pair.a.transport.forget(scene.pair.b.peer);
    scene.pair.b.transport.forget(scene.pair.a.peer);
    wait_until_failed(&endpoint);
    assert!(matches!(endpoint.state(), EndpointState::Failed(_)), "{:?}", endpoint.state());
    // A failed endpoint takes all, and ends them.
    endpoint.post(&mut batch.queue);
    assert!(batch.queue.is_empty(), "a failed endpoint takes each");
    for result in batch.results() {
        assert!(
            matches!(result, Ok(()) | Err(Error::PeerGone { .. } | Error::TransportFailed { .. })),
            "{result:?}"
        );
    }
    expect_left_alone(scene, &near, &far);
    let again = scene.connect();
    expect_usable(&again, &near, &far);
    assert!(matches!(endpoint.state(), EndpointState::Failed(_)), "the old endpoint stays as it is");
}

pub(crate) fn what_a_peer_was_granted_ends_when_it_is_forgotten(scene: &Scene) {
    if !scene.pair.forget_takes_back {
        return;
    }
    let endpoint = scene.connect();
    let (near, far) = regions(scene);
    expect_usable(&endpoint, &near, &far);
    scene.pair.b.transport.forget(scene.pair.a.peer);
    // The other end notices in its own time; until then its operations may still be under way.
    wait_until_failed(&endpoint);
    near.fill(5);
    far.fill(6);
    let mut late = reads(&near, &far);
    late.post(&endpoint);
    assert!(late.results().iter().all(Result::is_err));
    near.expect(5, "after it was forgotten");
    let again = scene.connect();
    expect_usable(&again, &near, &far);
}

pub(crate) fn a_closed_endpoint_ends_all_and_takes_no_more(scene: &Scene) {
    let endpoint = scene.connect();
    let (near, far) = regions(scene);
    let mut batch = reads(&near, &far);
    endpoint.post(&mut batch.queue);
    scene.runtime.block_on(endpoint.close());
    near.fill(5);
    scene.runtime.block_on(endpoint.close());
    assert_eq!(endpoint.state(), EndpointState::Closed);
    endpoint.post(&mut batch.queue);
    assert!(batch.queue.is_empty(), "a closed endpoint takes each");
    batch.results();
    let mut late = reads(&near, &far);
    late.post(&endpoint);
    assert!(late.results().iter().all(|result| *result == Err(Error::Closed)));
    near.expect(5, "after its endpoint was closed");
    expect_usable(&scene.connect(), &near, &far);
}

pub(crate) fn a_closed_transport_ends_all_and_takes_no_more(scene: &Scene) {
    let endpoint = scene.connect();
    let (near, far) = regions(scene);
    let mut batch = reads(&near, &far);
    endpoint.post(&mut batch.queue);
    let transport = &scene.pair.a.transport;
    scene.runtime.block_on(transport.close());
    near.fill(5);
    scene.runtime.block_on(transport.close());
    endpoint.post(&mut batch.queue);
    batch.results();
    near.expect(5, "after its transport was closed");
    assert_ne!(endpoint.state(), EndpointState::Ready);
    let connected = scene.runtime.block_on(transport.connect(scene.pair.b.peer, &scene.to_b));
    assert_eq!(connected.map(|_| ()).unwrap_err(), Error::Closed);
    let mut late = Batch::new();
    late.read(near.local(0, 1), far.remote(0));
    late.post(&endpoint);
    late.expect_error();
}

pub(crate) fn a_failed_exchange_leaves_the_way_free(scene: &Scene) {
    scene.to_b.is_cut.store(true, Ordering::SeqCst);
    let connecting = scene.pair.a.transport.connect(scene.pair.b.peer, &scene.to_b);
    let refused = scene.runtime.block_on(connecting);
    assert_eq!(refused.map(|_| ()).unwrap_err(), Error::DeadlinePassed);
    scene.to_b.is_cut.store(false, Ordering::SeqCst);
    let (near, far) = regions(scene);
    expect_usable(&scene.connect(), &near, &far);
}

pub(crate) fn nonsense_is_answered_with_an_error(scene: &Scene) {
    let transport = &scene.pair.b.transport;
    for request in [vec![], vec![0xff], vec![0xff; 64], vec![0xa5; 100_000]] {
        assert!(transport.answer(scene.pair.a.peer, &request).is_err(), "{} bytes", request.len());
    }
    let (near, far) = regions(scene);
    expect_usable(&scene.connect(), &near, &far);
}
