//! The suite on the simulated network, and what only a simulation can show.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Conditions, SimNetwork};
use crate::error::Error;
use crate::memory::Access;
use crate::time::{Clock, SimClock};
use crate::transport::conformance::{Pair, Side, conformance, peer};
use crate::transport::{BatchId, BoxFuture, Endpoint, Exchange, Operation, Ticket, TicketSink, Transport};
use crate::types::{PeerId, RailId};

/// Two peers of a network in real time, which is partitioned to hold operations back.
fn pair_on(conditions: Conditions) -> Pair {
    let network = SimNetwork::in_real_time(11, conditions).unwrap();
    let pair = Pair::new(network.transport(peer(1)), network.transport(peer(2)));
    let stall = Box::new(move |is_stalled| {
        if is_stalled { network.partition(peer(1), peer(2)) } else { network.heal(peer(1), peer(2)) }
    });
    Pair { stall: Some(stall), ..pair }
}

conformance!(quiet, || super::pair_on(super::Conditions::default()));
conformance!(stormy, || {
    super::pair_on(super::Conditions {
        jitter: std::time::Duration::from_millis(2),
        loss: 0.2,
        ..super::Conditions::default()
    })
});

/// When an operation ended, which, and how.
type End = (Duration, u32, Result<(), Error>);

/// What ended, in the order in which it did.
#[derive(Debug)]
struct Story {
    clock: Arc<SimClock>,
    ends: Mutex<Vec<End>>,
}

impl TicketSink for Story {
    fn completed(&self, index: u32, result: Result<(), Error>) {
        self.ends.lock().push((self.clock.monotonic(), index, result));
    }
}

/// Asks the other end at once.
#[derive(Debug)]
struct Direct(PeerId, Arc<dyn Transport>);

impl Exchange for Direct {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        Box::pin(std::future::ready(self.1.answer(self.0, &request)))
    }
}

/// 40 reads of 100 bytes between two simulated peers, with a deadline of one second; `meanwhile` is called before each
/// step. Returns what ended when, and the bytes that arrived.
fn story(
    seed: u64,
    conditions: Conditions,
    mut meanwhile: impl FnMut(&SimNetwork, Duration),
) -> (Vec<End>, Vec<u8>) {
    let clock = Arc::new(SimClock::default());
    let network = SimNetwork::simulated(seed, conditions, Arc::clone(&clock));
    let a = Side { peer: peer(1), transport: network.transport(peer(1)) };
    let b = Side { peer: peer(2), transport: network.transport(peer(2)) };
    let (near, far) = (a.share(4000, Access::ReadWrite, 1), b.share(4000, Access::Read, 2));
    let endpoint = connect(&a, &b);
    let story = Arc::new(Story { clock: Arc::clone(&clock), ends: Mutex::default() });
    let batch = BatchId::next();
    let mut operations: VecDeque<Operation> = (0..40)
        .map(|index| Operation {
            direction: crate::transport::Direction::Read,
            local: near.local(100 * u64::from(index), 100),
            remote: far.remote(100 * u64::from(index)),
            rail: RailId(0),
            deadline: network.instant(Duration::from_secs(1)),
            ticket: Ticket::new(Arc::clone(&story) as Arc<dyn TicketSink>, batch, index),
        })
        .collect();
    endpoint.post(&mut operations);
    assert!(operations.is_empty());
    loop {
        meanwhile(&network, clock.monotonic());
        if !network.step() {
            break;
        }
    }
    (story.ends.lock().clone(), near.bytes())
}

fn connect(from: &Side, to: &Side) -> Arc<dyn Endpoint> {
    let exchange = Direct(from.peer, Arc::clone(&to.transport));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(from.transport.connect(to.peer, &exchange)).unwrap()
}

fn rough() -> Conditions {
    Conditions { jitter: Duration::from_millis(3), loss: 0.3, ..Conditions::default() }
}

#[test]
fn a_seed_decides_what_ends_when() {
    let run = |seed| story(seed, rough(), |_, _| ());
    let (first, bytes) = run(5);
    assert_eq!(first.len(), 40);
    assert!(first.iter().all(|(_, _, result)| result.is_ok()));
    assert_eq!(run(5), (first.clone(), bytes));
    assert_ne!(run(6).0, first);
    let order: Vec<u32> = first.iter().map(|(_, index, _)| *index).collect();
    assert!(!order.is_sorted(), "jitter reorders: {order:?}");
}

#[test]
fn a_partition_that_heals_in_time_costs_time_only() {
    let heal_at = Duration::from_millis(900);
    let (ends, bytes) = story(5, Conditions::default(), |network, now| {
        if now < heal_at { network.partition(peer(1), peer(2)) } else { network.heal(peer(1), peer(2)) }
    });
    assert!(ends.iter().all(|(at, _, result)| *at >= heal_at && result.is_ok()), "{ends:?}");
    assert_eq!(bytes, crate::transport::conformance::pattern(2, 4000));
}

#[test]
fn a_partition_that_stays_ends_everything_at_the_deadline() {
    let (ends, bytes) = story(5, Conditions::default(), |network, _| network.partition(peer(1), peer(2)));
    assert_eq!(ends.len(), 40);
    let late = (Duration::from_secs(1), Err(Error::DeadlinePassed));
    assert!(ends.into_iter().all(|(at, _, result)| (at, result) == late));
    assert_eq!(bytes, crate::transport::conformance::pattern(1, 4000));
}

#[test]
fn a_death_is_noticed_and_ends_what_is_in_flight() {
    let mut is_alive = true;
    let (ends, _) = story(5, rough(), |network, now| {
        if is_alive && now >= Duration::from_millis(2) {
            is_alive = false;
            network.kill(peer(2));
        }
    });
    let done = ends.iter().filter(|(_, _, result)| result.is_ok()).count();
    let gone = ends.iter().filter(|(_, _, result)| matches!(result, Err(Error::PeerGone { .. }))).count();
    assert!(done > 0 && gone > 0 && done + gone == 40, "{done} done, {gone} gone");
    assert!(ends.iter().all(|(at, _, _)| *at < Duration::from_millis(20)), "not by the deadline");
}

#[test]
fn corruption_changes_one_byte_of_an_operation_and_says_nothing() {
    let (ends, bytes) = story(5, Conditions { corruption: 1.0, ..Conditions::default() }, |_, _| ());
    assert!(ends.iter().all(|(_, _, result)| result.is_ok()));
    let sent = crate::transport::conformance::pattern(2, 4000);
    for (found, sent) in bytes.chunks(100).zip(sent.chunks(100)) {
        assert_eq!(found.iter().zip(sent).filter(|(found, sent)| found != sent).count(), 1);
    }
}
