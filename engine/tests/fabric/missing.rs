//! What is missing at an end: the endpoint of a NIC, which cannot be opened again, or memory that a NIC does not have.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_engine::error::Error;
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::transport::libfabric::Fabric;
use tidefs_engine::transport::{Endpoint, EndpointState, Transport};
use tidefs_engine::types::{ByteCount, RegionId};

use crate::budget::with_pages;
use crate::harness::{
    Memory, PATIENCE, Pair, Run, alone, block_on, bound, connect, connect_as, failing, failures, peer, shut,
    silence, strict_config,
};
use crate::strict::{DONE, READ, close, open, read};

/// Costs the near end the endpoints of both NICs, of which the second cannot be opened again.
fn lose_second_nic(pair: &Pair, local: &Memory, remote: &Memory) {
    shut(true);
    let mut endpoint = Arc::clone(&pair.endpoint);
    let limit = Instant::now() + PATIENCE;
    // A NIC that was given nothing before the deadline, on a busy machine, has nothing to give up.
    while endpoint.load()[1].credits > 0 {
        assert!(Instant::now() < limit, "the second NIC keeps its endpoint");
        silence(true);
        let late = Run::start(&endpoint, local, remote, &READ, Duration::from_millis(300)).wait();
        silence(false);
        assert!(late.iter().all(Result::is_err), "{late:?}");
        endpoint = connect(&pair.near, &pair.far);
    }
}

/// The near end connected to the far one, and the other way round.
fn both_ways(pair: &Pair) -> [Arc<dyn Endpoint>; 2] {
    [connect(&pair.near, &pair.far), connect_as(&pair.far, peer(2), &pair.near, peer(1))]
}

/// `memory` of `fabric` with the keys that peers are told now.
fn renewed(fabric: &Fabric, memory: &Memory) -> Memory {
    let key = fabric.renewed_key(memory.id, &memory.key);
    Memory { key: key.map_or_else(|| Arc::clone(&memory.key), Arc::from), ..memory.clone() }
}

pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < limit, "never seen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One of two NICs has no endpoint for a while. The other carries all that is asked for here and there, of memory that was there
/// before and of memory that comes meanwhile; afterwards both do. Also where memory is bound to the endpoints.
#[test]
fn a_nic_whose_endpoint_cannot_be_opened_again_is_left_out_until_it_can_be() {
    let _alone = alone();
    for is_bound in [false, true] {
        bound(is_bound);
        let Some((pair, local, remote)) = open() else { return };
        remote.fill(6);
        lose_second_nic(&pair, &local, &remote);
        let late = Memory::new(&pair.near, 3, 1 << 20, Access::ReadWrite);
        let [there, back] = both_ways(&pair);
        assert_eq!(there.load()[1].credits, 0, "the plan is to pass it over");
        // What one asks for that rail all the same goes by the other.
        failures();
        failing(true);
        for memory in [&local, &late] {
            assert_eq!(read(&there, memory, &remote).wait(), DONE);
            assert_eq!(memory.bytes(8192, 4096), remote.bytes(0, 4096));
        }
        failing(false);
        assert_eq!(failures(), 0, "the second NIC was given something");
        for memory in [&local, &late] {
            assert_eq!(read(&back, &remote, &renewed(&pair.near, memory)).wait(), DONE);
        }
        shut(false);
        until("the endpoint is open", || renewed(&pair.near, &late).key != late.key);
        let [there, back] = both_ways(&pair);
        for memory in [&local, &late] {
            assert_eq!(read(&there, memory, &remote).wait(), DONE);
            assert_eq!(read(&back, &remote, &renewed(&pair.near, memory)).wait(), DONE);
        }
        failing(true);
        let ends = [read(&there, &late, &remote), read(&back, &remote, &renewed(&pair.near, &late))];
        let ends = ends.map(Run::wait);
        failing(false);
        assert!(ends.iter().all(|ends| ends[1].is_err()), "the second NIC carries again: {ends:?}");
        close(pair);
        bound(false);
    }
}

/// Where NICs translate so many pages only, memory that comes while one has no endpoint takes those of the others.
#[test]
fn memory_is_shared_out_among_the_nics_that_are_open() {
    let _alone = alone();
    let Some(pair) = Pair::with(&with_pages(strict_config())) else { return };
    let (local, remote) = pair.memory(1 << 20);
    lose_second_nic(&pair, &local, &remote);
    let late = Memory::new(&pair.near, 3, 1 << 20, Access::ReadWrite);
    // The version, the number of parts, and the rail of the first.
    assert_eq!((late.key[0], late.key[20], late.key[21]), (3, 1, 0));
    let [there, back] = both_ways(&pair);
    for memory in [&local, &late] {
        assert_eq!(read(&there, memory, &remote).wait(), DONE);
        assert_eq!(read(&back, &remote, memory).wait(), DONE);
    }
    // Of its 600 pages, the NIC that is open has given 256 to each of the two.
    let region = Region::anonymous(ByteCount(100 * 4096), PageKind::Base, Access::ReadWrite);
    let region = Arc::new(region.unwrap());
    let register = || pair.near.register(RegionId(4), &region);
    let refused = register();
    assert!(matches!(refused, Err(Error::OverBudget { need: 100, left: 88, .. })), "{refused:?}");
    shut(false);
    until("there is room at the other", || register().is_ok());
    close(pair);
}

/// That memory of this end is not registered is not said of the peer's, which would be asked for in vain.
#[test]
fn memory_that_is_missing_at_this_end_is_not_taken_for_that_of_the_peer() {
    let _alone = alone();
    let Some((pair, local, remote)) = open() else { return };
    block_on(pair.near.unregister_unused(local.id));
    for result in read(&pair.endpoint, &local, &remote).wait() {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::TransportFailed { .. }), "{error:?}");
        assert!(error.to_string().contains("region 1 of this process"), "{error}");
    }
    assert_eq!(pair.endpoint.state(), EndpointState::Ready);
    let other = Memory::new(&pair.near, 3, 1 << 20, Access::ReadWrite);
    assert_eq!(read(&pair.endpoint, &other, &remote).wait(), DONE);
    close(pair);
}
