//! The suite on each layer, around a simulated network; and what each layer adds.

mod handed_over;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::Wrap;
use super::checksum::{Exchanges, checksummed};
use super::fault::{FaultOptions, Faults, faulty};
use super::hold::Holder;
use super::record::{Record, recorded};
use super::throttle::throttled;
use crate::error::Error;
use crate::memory::{Access, MemorySlice, PageKind, Region};
use crate::transport::conformance::{Batch, Pair, Scene, conformance, peer};
use crate::transport::sim::{Conditions, SimNetwork};
use crate::transport::{
    BatchId, BoxFuture, Direction, Endpoint, EndpointState, Exchange, Operation, RailLoad, RemoteSlice,
    Transport,
};
use crate::types::{ByteCount, PeerId, RegionId};

/// Both ends of a quiet network with a layer around each.
fn around(conditions: Conditions, layer: impl Fn(Arc<dyn Transport>) -> Arc<dyn Transport>) -> Pair {
    let network = SimNetwork::in_real_time(13, conditions).unwrap();
    let pair = Pair::new(layer(network.transport(peer(1))), layer(network.transport(peer(2))));
    let stall = Box::new(move |is_stalled| {
        if is_stalled { network.partition(peer(1), peer(2)) } else { network.heal(peer(1), peer(2)) }
    });
    Pair { stall: Some(stall), ..pair }
}

/// Asks the checksum layer at the other end, once there is one.
#[derive(Debug)]
struct Direct {
    from: PeerId,
    to: parking_lot::Mutex<Option<Arc<dyn Transport>>>,
}

impl Exchange for Direct {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        let to = self.to.lock().clone();
        let answer = to.map_or(Err(Error::Closed), |to| to.answer(self.from, &request));
        Box::pin(std::future::ready(answer))
    }
}

#[derive(Debug)]
struct One(Arc<Direct>);

impl Exchanges for One {
    fn to(&self, _peer: PeerId) -> Arc<dyn Exchange> {
        Arc::clone(&self.0) as Arc<dyn Exchange>
    }
}

/// Checksum layers around what `below` makes of two peers of a network.
fn compared(conditions: Conditions, below: impl Fn(Arc<dyn Transport>) -> Arc<dyn Transport>) -> Pair {
    let ways = [1, 2].map(|from| Arc::new(Direct { from: peer(from), to: parking_lot::Mutex::default() }));
    let mut exchanges = ways.clone().into_iter();
    // The layers are made in the order of the peers.
    let exchanges = parking_lot::Mutex::new(&mut exchanges);
    let pair = around(conditions, |inner| {
        let way = exchanges.lock().next().unwrap();
        checksummed(below(inner), Arc::new(One(way)), &Handle::current())
    });
    *ways[0].to.lock() = Some(Arc::clone(&pair.b.transport));
    *ways[1].to.lock() = Some(Arc::clone(&pair.a.transport));
    pair
}

conformance!(throttled_to_4_gb, || {
    super::around(super::Conditions::default(), |inner| {
        super::throttled(inner, 4 << 30, &super::Handle::current())
    })
});
conformance!(recorded_in_a_ring, || {
    let record = super::Record::new(100);
    super::around(super::Conditions::default(), |inner| super::recorded(inner, &record))
});
conformance!(delayed_by_faults, || {
    let options = super::FaultOptions {
        seed: 3,
        delay_max: std::time::Duration::from_millis(1),
        ..super::FaultOptions::default()
    };
    super::around(super::Conditions::default(), |inner| {
        super::faulty(inner, &super::Faults::new(options), &super::Handle::current())
    })
});
conformance!(compared_by_checksum, || super::compared(super::Conditions::default(), |inner| inner));

/// Ends of `count` reads of 1000 bytes each by a pair with `options`, whose operations may take `patience`.
fn ends(options: FaultOptions, count: u64, patience: Duration) -> (Vec<Result<(), Error>>, usize) {
    let scene = Scene::new(|| {
        around(Conditions::default(), |inner| faulty(inner, &Faults::new(options), &Handle::current()))
    });
    let endpoint = scene.connect();
    let near = scene.pair.a.share(count * 1000, Access::ReadWrite, 1);
    let far = scene.pair.b.share(count * 1000, Access::Read, 2);
    let mut batch = Batch::until(Instant::now() + patience);
    for number in 0..count {
        batch.read(near.local(number * 1000, 1000), far.remote(number * 1000));
    }
    batch.post(&endpoint);
    let results = batch.results();
    let wrong = near.bytes().iter().zip(far.bytes()).filter(|(near, far)| **near != *far).count();
    (results, wrong)
}

#[test]
fn every_third_operation_fails_and_may_be_retried() {
    let options = FaultOptions { fail_every: 3, ..FaultOptions::default() };
    let (results, _) = ends(options, 9, Duration::from_secs(60));
    let failed: Vec<bool> = results.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, false, true].repeat(3));
    assert!(results.into_iter().filter_map(Result::err).all(|error| error.is_retryable()));
}

#[test]
fn a_lost_operation_ends_at_its_deadline_and_a_seed_says_which() {
    let options = FaultOptions { seed: 9, loss: 0.5, ..FaultOptions::default() };
    // Long enough that those that are not lost are done in time, on a machine that is busy too.
    let (results, _) = ends(options, 16, Duration::from_secs(3));
    let lost = results.iter().filter(|result| **result == Err(Error::DeadlinePassed)).count();
    assert_eq!(lost, results.iter().filter(|result| result.is_err()).count());
    assert!((1..16).contains(&lost), "{lost} of 16");
    assert_eq!(ends(options, 16, Duration::from_secs(3)).0, results);
}

#[test]
fn corruption_is_silent_without_checksums() {
    let options = FaultOptions { seed: 4, corruption: 1.0, ..FaultOptions::default() };
    let (results, wrong) = ends(options, 8, Duration::from_secs(60));
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(wrong, 8, "one byte of each");
}

#[test]
fn a_peer_that_is_cut_off_gets_nothing_until_it_heals() {
    let faults = Faults::new(FaultOptions::default());
    let scene =
        Scene::new(|| around(Conditions::default(), |inner| faulty(inner, &faults, &Handle::current())));
    let endpoint = scene.connect();
    let near = scene.pair.a.share(1000, Access::ReadWrite, 1);
    let far = scene.pair.b.share(1000, Access::Read, 2);
    faults.partition(peer(2));
    let mut late = Batch::until(Instant::now() + Duration::from_millis(50));
    late.read(near.local(0, 1000), far.remote(0));
    late.post(&endpoint);
    assert_eq!(late.expect_error(), Error::DeadlinePassed);
    let mut patient = Batch::new();
    patient.read(near.local(0, 1000), far.remote(0));
    patient.post(&endpoint);
    assert_eq!(patient.ended(), 0);
    near.expect(1, "while the peer is cut off");
    faults.heal(peer(2));
    patient.expect_done();
    near.expect(2, "after it healed");
}

/// Two connections of a network that carries this many bytes in a second, and `count` reads of a thousand bytes each.
fn slowly(bytes_per_second: u64, count: u64, patience: Duration) -> (Scene, Vec<Arc<dyn Endpoint>>, Batch) {
    let scene = Scene::new(|| {
        around(Conditions::default(), |inner| throttled(inner, bytes_per_second, &Handle::current()))
    });
    let endpoints = vec![scene.connect(), scene.connect()];
    let batch = reads(&scene, count, patience);
    (scene, endpoints, batch)
}

fn reads(scene: &Scene, count: u64, patience: Duration) -> Batch {
    let near = scene.pair.a.share(1000, Access::ReadWrite, 1);
    let far = scene.pair.b.share(1000, Access::Read, 2);
    let mut batch = Batch::until(Instant::now() + patience);
    (0..count).for_each(|_| batch.read(near.local(0, 1000), far.remote(0)));
    batch
}

/// Forty reads of two seconds each, of which one starts before they are given up.
#[test]
fn what_is_given_up_while_it_waits_takes_none_of_the_rate() {
    let (scene, endpoints, mut late) = slowly(500, 40, Duration::from_millis(100));
    late.post(&endpoints[0]);
    let results = late.results();
    assert!(results.iter().filter(|result| **result == Err(Error::DeadlinePassed)).count() >= 39);
    let mut patient = reads(&scene, 1, Duration::from_secs(40));
    patient.post(&endpoints[0]);
    patient.expect_done();
}

/// Two hundred reads of 50 ms each on one connection, and one on another.
#[test]
fn who_asks_for_little_does_not_wait_for_all_that_another_has_asked_for() {
    let (scene, endpoints, mut much) = slowly(20_000, 200, Duration::from_secs(60));
    much.post(&endpoints[0]);
    let mut little = reads(&scene, 1, Duration::from_secs(60));
    little.post(&endpoints[1]);
    little.expect_done();
    assert!(much.ended() < 100, "{} of 200 went before it", much.ended());
    endpoints[0].cancel(much.id);
    much.results();
}

#[test]
fn checksums_find_a_changed_byte_in_reads_and_writes() {
    let corrupt = Conditions { corruption: 1.0, ..Conditions::default() };
    let scene = Scene::new(|| compared(corrupt, |inner| inner));
    let endpoint = scene.connect();
    let near = scene.pair.a.share(1000, Access::ReadWrite, 1);
    let far = scene.pair.b.share(1000, Access::ReadWrite, 2);
    for direction in [Direction::Read, Direction::Write] {
        let mut batch = Batch::new();
        batch.add(direction, near.local(0, 1000), far.remote(0));
        batch.post(&endpoint);
        let error = batch.expect_error();
        assert!(matches!(error, Error::Corrupt { .. }) && error.is_retryable(), "{error:?}");
    }
}

/// A connection without room, that is told when it fails.
#[derive(Debug, Default)]
struct Brittle {
    is_failed: AtomicBool,
}

impl Endpoint for Brittle {
    fn post(&self, _: &mut VecDeque<Operation>) {}

    fn cancel(&self, _: BatchId) {}

    fn state(&self) -> EndpointState {
        if self.is_failed.load(Ordering::SeqCst) {
            EndpointState::Failed(Error::transport("test", "it was told to"))
        } else {
            EndpointState::Ready
        }
    }

    fn load(&self) -> Vec<RailLoad> {
        Vec::new()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// The layer's task does not run between the failure and the close, so nothing has noticed the one before the other.
#[tokio::test]
async fn what_is_held_when_its_connection_fails_ends_as_that_says() {
    let below = Arc::new(Brittle::default());
    let holder = Holder::new(Faults::new(FaultOptions::default()), 8, &Handle::current());
    let endpoint = holder.wrap(peer(2), Arc::clone(&below) as Arc<dyn Endpoint>);
    let region = Region::anonymous(ByteCount(4096), PageKind::Base, Access::ReadWrite).unwrap();
    let local = MemorySlice::new(&Arc::new(region), RegionId(1), 0, ByteCount(1000)).unwrap();
    let mut batch = Batch::new();
    batch.read(local, RemoteSlice { region: RegionId(2), key: Arc::from([]), offset: 0 });
    batch.post(&endpoint);
    below.is_failed.store(true, Ordering::SeqCst);
    endpoint.close().await;
    let error = batch.expect_error();
    assert!(matches!(error, Error::TransportFailed { .. }) && error.is_retryable(), "{error}");
    assert!(matches!(endpoint.state(), EndpointState::Failed(_)), "{:?}", endpoint.state());
}

/// Nobody answers.
#[derive(Debug)]
struct Mute;

impl Exchange for Mute {
    fn ask(&self, _: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        Box::pin(std::future::pending())
    }
}

impl Exchanges for Mute {
    fn to(&self, _: PeerId) -> Arc<dyn Exchange> {
        Arc::new(Self)
    }
}

#[test]
fn what_is_compared_when_its_connection_fails_ends_as_that_says() {
    let scene = Scene::new(|| {
        around(Conditions::default(), |inner| checksummed(inner, Arc::new(Mute), &Handle::current()))
    });
    let endpoint = scene.connect();
    let near = scene.pair.a.share(1000, Access::ReadWrite, 1);
    let far = scene.pair.b.share(1000, Access::Read, 2);
    let mut batch = Batch::new();
    batch.read(near.local(0, 1000), far.remote(0));
    batch.post(&endpoint);
    let end = Instant::now() + Duration::from_secs(60);
    while near.bytes() != far.bytes() {
        assert!(Instant::now() < end, "the bytes have not arrived");
        std::thread::sleep(Duration::from_millis(1));
    }
    scene.pair.a.transport.forget(peer(2));
    scene.runtime.block_on(endpoint.close());
    let error = batch.expect_error();
    assert!(matches!(error, Error::PeerGone { .. }), "{error}");
}

#[test]
fn a_record_keeps_the_last_operations_and_how_they_ended() {
    let record = Record::new(3);
    let scene = Scene::new(|| around(Conditions::default(), |inner| recorded(inner, &record)));
    let endpoint = scene.connect();
    let near = scene.pair.a.share(1000, Access::ReadWrite, 1);
    let far = scene.pair.b.share(500, Access::Read, 2);
    let mut ids = Vec::new();
    for offset in [100, 200, 300, 450] {
        let mut batch = Batch::new();
        batch.read(near.local(0, 100), far.remote(offset));
        batch.post(&endpoint);
        batch.results();
        ids.push(batch.id);
    }
    let entries = record.entries();
    assert_eq!(entries.iter().map(|entry| entry.batch).collect::<Vec<_>>(), ids[1..]);
    assert_eq!(entries.iter().map(|entry| entry.offset).collect::<Vec<_>>(), [200, 300, 450]);
    assert_eq!(entries.iter().map(|entry| entry.result.is_ok()).collect::<Vec<_>>(), [true, true, false]);
    assert!(
        entries.iter().all(|entry| entry.peer == peer(2) && entry.length == 100 && entry.region == far.id)
    );
}
