//! What only the strict provider can show: a peer that answers no more, keys that are wrong, peers that vanish.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use tidefs_engine::error::Error;
use tidefs_engine::memory::Access;
use tidefs_engine::transport::libfabric::FabricConfig;
use tidefs_engine::transport::{Direction, Endpoint, EndpointState, Transport};
use tidefs_engine::types::RegionId;

use crate::budget::with_pages;
use crate::harness::{
    Memory, PATIENCE, Pair, Run, addresses, alone, announce, asked, block_on, bound, connect, connect_as,
    dead, expect_no_violation, fragile, halt, held, in_pieces, mute, open_strict, peer, refusals, reusing,
    silence, strict_config, stuck,
};

pub(crate) const READ: [(Direction, u64, u64, u64); 3] =
    [(Direction::Read, 0, 0, 4096), (Direction::Read, 4096, 0, 4096), (Direction::Read, 8192, 0, 4096)];
/// What [`READ`] comes to when all goes well.
pub(crate) const DONE: [Result<(), Error>; 3] = [Ok(()), Ok(()), Ok(())];

/// Two ends, and memory of one MiB at each.
pub(crate) fn open() -> Option<(Pair, Memory, Memory)> {
    let pair = Pair::open_strict()?;
    let (local, remote) = pair.memory(1 << 20);
    Some((pair, local, remote))
}

/// Begins [`READ`].
pub(crate) fn read(endpoint: &Arc<dyn Endpoint>, local: &Memory, remote: &Memory) -> Run {
    Run::start(endpoint, local, remote, &READ, PATIENCE)
}

/// Closes `ends`, and looks what rules were broken.
pub(crate) fn close<T>(ends: T) {
    drop(ends);
    expect_no_violation();
}

#[test]
fn both_nics_are_rails() {
    let _alone = alone();
    let Some(pair) = Pair::open_strict() else { return };
    let names: Vec<String> = pair.near.rails().into_iter().map(|rail| rail.name).collect();
    assert_eq!(names, ["strict0", "strict1"]);
    assert_eq!(pair.near.capabilities().operation_bytes_max.get(), 64 << 10);
    assert_eq!(pair.near.capabilities().operations_max, 4);
}

#[test]
fn a_nic_that_cannot_be_opened_is_left_out_and_the_other_is_used() {
    let _alone = alone();
    if open_strict().is_none() {
        return;
    }
    dead(true);
    let Some(pair) = Pair::open_strict() else { return };
    dead(false);
    let names: Vec<String> = pair.near.rails().into_iter().map(|rail| rail.name).collect();
    assert_eq!((names, pair.near.left_out()), (vec!["strict0".to_owned()], 1));
    let (local, remote) = pair.memory(1 << 20);
    assert_eq!(read(&pair.endpoint, &local, &remote).wait(), DONE);
    close(pair);
}

/// The machine stands still for longer than a peer may be silent, with operations under way: those that had ended are read
/// afterwards, one poll after the other, and the others get their time.
#[test]
fn who_stood_still_itself_takes_no_peer_for_silent() {
    const SILENCE: Duration = Duration::from_millis(300);
    const READS: [(Direction, u64, u64, u64); 8] = [(Direction::Read, 0, 0, 4096); 8];
    let _alone = alone();
    let Some(pair) = Pair::with(&FabricConfig { silence: SILENCE, ..strict_config() }) else { return };
    let (local, remote) = pair.memory(1 << 20);
    for round in 0..5 {
        silence(true);
        let run = Run::start(&pair.endpoint, &local, &remote, &READS, PATIENCE);
        std::thread::sleep(SILENCE / 6);
        halt(SILENCE * 2);
        silence(false);
        let results = run.wait();
        assert!(results.iter().all(Result::is_ok), "round {round}: {results:?}");
        assert_eq!(pair.endpoint.state(), EndpointState::Ready, "round {round}");
    }
    close(pair);
}

#[test]
fn a_peer_that_answers_no_more_costs_a_deadline_and_a_new_connection() {
    let _alone = alone();
    let Some((pair, local, remote)) = open() else { return };
    remote.fill(6);
    silence(true);
    let began = Instant::now();
    let results = Run::start(&pair.endpoint, &local, &remote, &READ, Duration::from_millis(300)).wait();
    // 300 ms to the deadline, and 500 ms to settle before the endpoint is closed under the operation.
    assert!(began.elapsed() >= Duration::from_millis(800), "{:?}", began.elapsed());
    assert!(results.iter().all(|result| *result == Err(Error::DeadlinePassed)), "{results:?}");
    assert!(matches!(pair.endpoint.state(), EndpointState::Failed(_)), "{:?}", pair.endpoint.state());
    assert_eq!(local.bytes(0, 12_288), vec![0; 12_288]);
    silence(false);
    // Nothing of the old operations arrives later: their memory is safe.
    assert_eq!(local.bytes(0, 12_288), vec![0; 12_288]);
    let again = connect(&pair.near, &pair.far);
    assert_eq!(read(&again, &local, &remote).wait(), DONE);
    assert_eq!(local.bytes(8192, 4096), remote.bytes(0, 4096));
    close(pair);
}

#[test]
fn a_cancelled_operation_that_does_not_end_is_ended_by_force() {
    let _alone = alone();
    let Some((pair, local, remote)) = open() else { return };
    silence(true);
    let run = read(&pair.endpoint, &local, &remote);
    pair.endpoint.cancel(run.batch);
    assert!(run.wait().iter().all(|result| *result == Err(Error::Cancelled)));
    silence(false);
    close(pair);
}

#[test]
fn a_peer_that_is_closed_fails_its_operations_and_nobody_elses() {
    let _alone = alone();
    let Some(pair) = Pair::open_strict() else { return };
    let Some(other) = open_strict() else { return };
    let survivor = connect_as(&pair.near, peer(1), &other, peer(3));
    let (local, remote) = pair.memory(1 << 20);
    let elsewhere = Memory::new(&other, 2, 1 << 20, Access::ReadWrite);
    block_on(pair.far.close());
    let dead = read(&pair.endpoint, &local, &remote);
    let alive = read(&survivor, &local, &elsewhere);
    assert!(dead.wait().iter().all(|result| matches!(result, Err(Error::TransportFailed { .. }))));
    assert_eq!(alive.wait(), DONE);
    assert!(matches!(pair.endpoint.state(), EndpointState::Failed(_)));
    assert_eq!(survivor.state(), EndpointState::Ready);
    pair.near.forget(peer(2));
    close((pair, other));
}

/// The far end gives up reads that do not end, and with them its endpoints, again and again. What it was reached at before is
/// of no use to anybody, and costs a provider as much as a connection that works.
#[test]
fn what_a_peer_was_reached_at_before_is_forgotten() {
    let _alone = alone();
    let Some((pair, local, remote)) = open() else { return };
    let mut there = Arc::clone(&pair.endpoint);
    for _ in 0..4 {
        let back = connect_as(&pair.far, peer(2), &pair.near, peer(1));
        silence(true);
        let results = Run::start(&back, &remote, &local, &READ, Duration::from_millis(100)).wait();
        silence(false);
        assert!(results.iter().all(Result::is_err), "{results:?}");
        let again = connect_as(&pair.far, peer(2), &pair.near, peer(1));
        assert_eq!(read(&again, &remote, &local).wait(), DONE);
        assert!(matches!(there.state(), EndpointState::Failed(_)), "it leads to what is closed");
        there = connect(&pair.near, &pair.far);
        assert_eq!(read(&there, &local, &remote).wait(), DONE);
    }
    // Each end has two NICs, each of which knows one of the other end.
    let limit = Instant::now() + PATIENCE;
    while addresses() > 4 {
        assert!(Instant::now() < limit, "{} addresses are known", addresses());
        std::thread::sleep(Duration::from_millis(5));
    }
    close(pair);
}

#[test]
fn a_withdrawn_region_is_told_from_a_broken_connection() {
    let _alone = alone();
    let Some((pair, local, remote)) = open() else { return };
    block_on(pair.far.unregister(remote.id));
    let results = read(&pair.endpoint, &local, &remote).wait();
    assert!(
        results.iter().all(|result| *result == Err(Error::NoSuchRegion { region: remote.id })),
        "{results:?}"
    );
    assert_eq!(pair.endpoint.state(), EndpointState::Ready);
    // Memory that is registered again has another key: the old one stays dead.
    let renewed = Memory::new(&pair.far, 2, 1 << 20, Access::ReadWrite);
    assert_ne!(renewed.key, remote.key);
    assert_eq!(read(&pair.endpoint, &local, &renewed).wait(), DONE);
    close(pair);
}

/// A NIC may give memory the key that other memory had before. By the key of what was withdrawn, nobody reaches it.
#[test]
fn a_key_that_peers_may_still_know_is_not_that_of_other_memory() {
    let _alone = alone();
    reusing(true);
    let Some((pair, local, remote)) = open() else { return };
    block_on(pair.far.unregister(remote.id));
    // At the same address, so that nothing but the key tells them apart.
    let key = pair.far.register(RegionId(3), &remote.region).unwrap().into();
    let other = Memory { id: RegionId(3), key, ..remote.clone() };
    other.fill(6);
    let gone = Err(Error::NoSuchRegion { region: remote.id });
    let results = read(&pair.endpoint, &local, &remote).wait();
    assert_eq!(results, [gone.clone(), gone.clone(), gone]);
    assert_eq!(local.bytes(0, 12_288), vec![0; 12_288]);
    assert_eq!(read(&pair.endpoint, &local, &other).wait(), DONE);
    reusing(false);
    close(pair);
}

#[test]
fn a_way_that_a_refused_key_broke_is_built_again() {
    let _alone = alone();
    let Some(pair) = Pair::open_strict() else { return };
    fragile(true);
    let (local, remote) = pair.memory(1 << 20);
    block_on(pair.far.unregister(remote.id));
    let refused = read(&pair.endpoint, &local, &remote).wait();
    assert!(refused.contains(&Err(Error::NoSuchRegion { region: remote.id })), "{refused:?}");
    let renewed = Memory::new(&pair.far, 2, 1 << 20, Access::ReadWrite);
    // Each NIC has a way of its own: what is posted to a broken one is lost, and may be tried again.
    let read = || {
        let endpoint = connect(&pair.near, &pair.far);
        read(&endpoint, &local, &renewed).wait()
    };
    let results: Vec<_> = (0..=pair.near.rails().len()).map(|_| read()).collect();
    assert_eq!(results.last(), Some(&DONE.to_vec()), "{results:?}");
    fragile(false);
    close(pair);
}

#[test]
fn closing_the_transport_ends_what_is_under_way() {
    let _alone = alone();
    let Some((pair, local, remote)) = open() else { return };
    silence(true);
    let run = read(&pair.endpoint, &local, &remote);
    block_on(Arc::clone(&pair.near).close());
    assert!(run.wait().iter().all(|result| *result == Err(Error::Closed)));
    silence(false);
    close(pair);
}

/// Where memory is registered with the endpoint, a NIC whose endpoint is opened again registers all of it anew: its own
/// operations go on, and peers that ask are told the new keys.
#[test]
fn memory_that_is_bound_to_an_endpoint_outlives_it() {
    bound_memory_outlives_its_endpoint(&strict_config(), 1 << 20);
}

#[test]
fn memory_of_several_registrations_that_is_bound_to_an_endpoint_outlives_it() {
    bound_memory_outlives_its_endpoint(&in_pieces(strict_config()), 3 << 20);
}

#[test]
fn memory_that_is_shared_out_and_bound_to_an_endpoint_outlives_it() {
    bound_memory_outlives_its_endpoint(&with_pages(strict_config()), 3 << 20);
}

#[test]
fn keys_of_memory_that_is_bound_to_an_endpoint_do_not_come_again_with_the_next() {
    let alone = alone();
    reusing(true);
    bound_memory_outlives_its_endpoint_alone(&alone, &strict_config(), 1 << 20);
    reusing(false);
}

fn bound_memory_outlives_its_endpoint(config: &FabricConfig, length: u64) {
    bound_memory_outlives_its_endpoint_alone(&alone(), config, length);
}

/// The same, for who is alone.
fn bound_memory_outlives_its_endpoint_alone(_: &MutexGuard<'_, ()>, config: &FabricConfig, length: u64) {
    bound(true);
    let Some(pair) = Pair::with(config) else { return };
    let (local, remote) = pair.memory(length);
    let gone = Memory::new(&pair.near, 3, 1 << 20, Access::ReadWrite);
    remote.fill(6);
    let first = pair.near.renewed_key(local.id, &local.key).unwrap();
    assert_eq!(first[..], local.key[..]);
    block_on(pair.near.unregister(gone.id));
    silence(true);
    let results = Run::start(&pair.endpoint, &local, &remote, &READ, Duration::from_millis(300)).wait();
    assert!(results.iter().all(|result| *result == Err(Error::DeadlinePassed)), "{results:?}");
    silence(false);
    let again = connect(&pair.near, &pair.far);
    assert_eq!(read(&again, &local, &remote).wait(), DONE);
    assert_eq!(local.bytes(8192, 4096), remote.bytes(0, 4096));
    let renewed = pair.near.renewed_key(local.id, &local.key).unwrap();
    assert_ne!(renewed[..], local.key[..]);
    assert_eq!(pair.near.renewed_key(gone.id, &gone.key), None);
    let back = connect(&pair.far, &pair.near);
    let stale = read(&back, &remote, &local).wait();
    assert!(stale.contains(&Err(Error::NoSuchRegion { region: local.id })), "{stale:?}");
    let local = Memory { key: renewed.into(), ..local };
    assert_eq!(read(&back, &remote, &local).wait(), DONE);
    drop(pair);
    bound(false);
    expect_no_violation();
}

/// What was in flight on an endpoint that the provider does not close may still be written to, so it has not ended;
/// the NIC works through another endpoint meanwhile.
#[test]
fn operations_do_not_end_before_their_endpoint_is_closed() {
    let _alone = alone();
    let Some((pair, local, remote)) = open() else { return };
    remote.fill(6);
    silence(true);
    stuck(true);
    let run = Run::start(&pair.endpoint, &local, &remote, &READ, Duration::from_millis(100));
    let waiter = std::thread::spawn(move || run.wait());
    std::thread::sleep(Duration::from_millis(1500));
    assert!(matches!(pair.endpoint.state(), EndpointState::Failed(_)), "it was given up");
    assert!(!waiter.is_finished(), "the NIC may still write");
    let again = connect(&pair.near, &pair.far);
    stuck(false);
    let results = waiter.join().unwrap();
    assert!(results.iter().all(|result| *result == Err(Error::DeadlinePassed)), "{results:?}");
    silence(false);
    assert_eq!(read(&again, &local, &remote).wait(), DONE);
    close(pair);
}

/// A NIC may still write to memory whose registration the library does not close, so it is not given back before. Who closes
/// the transport does not wait for that.
#[test]
fn memory_is_not_given_back_before_its_registration_is_closed() {
    let _alone = alone();
    let Some(pair) = Pair::open_strict() else { return };
    let local = Memory::new(&pair.near, 1, 1 << 20, Access::ReadWrite);
    let memory = |id| Memory::new(&pair.far, id, 1 << 20, Access::ReadWrite);
    let (kept, first, second) = (memory(2), memory(3), memory(4));
    held(true);
    let unregister = |id| {
        let far = Arc::clone(&pair.far);
        std::thread::spawn(move || block_on(far.unregister(id)))
    };
    let waiter = unregister(first.id);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!waiter.is_finished(), "the NIC may still write");
    assert_eq!(read(&pair.endpoint, &local, &kept).wait(), DONE);
    held(false);
    waiter.join().unwrap();
    held(true);
    let waiter = unregister(second.id);
    std::thread::sleep(Duration::from_millis(50));
    block_on(pair.far.close());
    waiter.join().unwrap();
    held(false);
    close(pair);
}

/// A provider that gives a descriptor and then says that it cannot be waited for is asked once for each queue, and
/// polled.
#[test]
fn a_queue_that_cannot_be_waited_for_is_polled() {
    let _alone = alone();
    mute(true);
    asked();
    let Some((pair, local, remote)) = open() else { return };
    let read = || read(&pair.endpoint, &local, &remote).wait();
    assert_eq!(read(), DONE);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(read(), DONE);
    assert!(asked() <= 4, "two NICs at each end");
    mute(false);
    close(pair);
}

/// A NIC that says it holds eight operations and holds four is soon given four, however many peers want more: few
/// attempts fail.
#[test]
fn a_nic_is_given_as_many_operations_as_it_takes() {
    const COUNT: u64 = 200;
    let _alone = alone();
    announce(8);
    let Some(near) = open_strict() else { return };
    assert_eq!(near.capabilities().operations_max, 8);
    let far: Vec<_> = (0..6).filter_map(|_| open_strict()).collect();
    let local = Memory::new(&near, 1, 1 << 20, Access::ReadWrite);
    let reads: Vec<_> = (0..COUNT).map(|index| (Direction::Read, index * 256, 0, 256)).collect();
    refusals();
    let run = |(number, far): (u64, &Arc<_>)| {
        let remote = Memory::new(far, 2, 1 << 20, Access::ReadWrite);
        Run::start(&connect_as(&near, peer(1), far, peer(number)), &local, &remote, &reads, PATIENCE)
    };
    let runs: Vec<Run> = (2..).zip(&far).map(run).collect();
    let waiters = runs.into_iter().map(|run| std::thread::spawn(move || run.wait()));
    for waiter in waiters.collect::<Vec<_>>() {
        assert!(waiter.join().unwrap().iter().all(Result::is_ok));
    }
    let refused = refusals() as u64;
    let all = COUNT * far.len() as u64;
    assert!(refused < all, "{refused} refusals for {all} operations");
    announce(0);
    close((near, far));
}
