//! Regions of several registrations, on NICs that take no longer ones.

use std::time::Duration;

use tidefs_engine::error::Error;
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::transport::libfabric::FabricConfig;
use tidefs_engine::transport::{Direction, EndpointState, Transport};
use tidefs_engine::types::{ByteCount, RegionId};

use crate::harness::{
    Memory, PATIENCE, PIECE, Pair, Piece, Run, alone, block_on, config, expect_no_violation, in_pieces,
    memory_max, open_with, strict_config,
};

const ODD: u64 = 60_001;

/// All bytes, by operations of which some cross a boundary here, some there, and some both.
pub(crate) fn all_bytes_arrive(pair: &Pair) {
    let local = Memory::new(&pair.near, 1, 4 * PIECE + 4096, Access::ReadWrite);
    let remote = Memory::new(&pair.far, 2, 3 * PIECE + 5000, Access::ReadWrite);
    let length = remote.region.length().get() - ODD;
    let pieces = |direction| {
        let piece = |index: u64| (direction, index * ODD, index * ODD + 7, ODD.min(length - index * ODD));
        (0..length.div_ceil(ODD)).map(piece).collect::<Vec<Piece>>()
    };
    remote.fill(7);
    let reads = Run::start(&pair.endpoint, &local, &remote, &pieces(Direction::Read), PATIENCE).wait();
    assert!(reads.iter().all(Result::is_ok), "{reads:?}");
    assert!(local.bytes(0, length) == remote.bytes(7, length));
    assert!(local.bytes(length, PIECE).iter().all(|&byte| byte == 0));
    local.fill(8);
    let behind = remote.bytes(7 + length, ODD - 7);
    let writes = Run::start(&pair.endpoint, &local, &remote, &pieces(Direction::Write), PATIENCE).wait();
    assert!(writes.iter().all(Result::is_ok), "{writes:?}");
    assert!(remote.bytes(7, length) == local.bytes(0, length));
    assert!(remote.bytes(7 + length, ODD - 7) == behind);
    assert!(pair.endpoint.load().iter().all(|load| load.operations == 0 && load.bytes == 0));
    assert_eq!(pair.endpoint.state(), EndpointState::Ready);
}

/// Each end in pieces or not, since nothing obliges both to have the same NICs.
fn all_bytes_arrive_between(plain: &FabricConfig, is_strict: bool) {
    let pieces = in_pieces(plain.clone());
    for (near, far) in [(&pieces, &pieces), (&pieces, plain), (plain, &pieces)] {
        let (Some(near), Some(far)) = (open_with(near), open_with(far)) else { return };
        let pair = Pair::of(near, far);
        all_bytes_arrive(&pair);
        drop(pair);
    }
    if is_strict {
        expect_no_violation();
    }
}

#[test]
fn operations_across_registrations_move_all_bytes() {
    all_bytes_arrive_between(&config(), false);
}

#[test]
fn operations_across_registrations_break_no_rule() {
    let _alone = alone();
    all_bytes_arrive_between(&strict_config(), true);
}

/// What the option is for: without it, the region has no place at the NIC.
#[test]
fn a_region_that_is_too_long_for_one_registration_takes_several() {
    let _alone = alone();
    let (Some(whole), Some(pair)) = (open_with(&strict_config()), Pair::with(&in_pieces(strict_config())))
    else {
        return;
    };
    memory_max(usize::try_from(PIECE).unwrap());
    let region = |length| {
        Region::anonymous(ByteCount(length), PageKind::Base, Access::ReadWrite)
            .map(std::sync::Arc::new)
            .unwrap()
    };
    let refused = whole.register(RegionId(9), &region(4 * PIECE));
    assert!(matches!(refused, Err(Error::TransportFailed { .. })), "{refused:?}");
    all_bytes_arrive(&pair);
    // Those that need only one are described as ever.
    let short = pair.near.register(RegionId(8), &region(PIECE)).unwrap();
    assert_eq!((short[0], pair.near.key_name(&short)), (1, "libfabric"));
    let long = pair.near.register(RegionId(9), &region(16 * PIECE)).unwrap();
    assert_eq!((long[0], pair.near.key_name(&long)), (2, "libfabric/2"));
    let refused = pair.near.register(RegionId(10), &region(16 * PIECE + 1)).unwrap_err().to_string();
    assert!(refused.contains("more than 16 registrations"), "{refused}");
    memory_max(0);
    drop((whole, pair));
    expect_no_violation();
}

#[test]
fn a_region_of_several_registrations_is_withdrawn_whole() {
    let _alone = alone();
    let Some(pair) = Pair::with(&in_pieces(strict_config())) else { return };
    let (local, remote) = pair.memory(4 * PIECE);
    let reads: Vec<Piece> =
        (0..8).map(|index| (Direction::Read, index * PIECE / 2, index * PIECE / 2, 4096)).collect();
    let read = |within| Run::start(&pair.endpoint, &local, &remote, &reads, within).wait();
    assert!(read(PATIENCE).iter().all(Result::is_ok));
    block_on(pair.far.unregister(remote.id));
    let gone = Err(Error::NoSuchRegion { region: remote.id });
    assert_eq!(read(Duration::from_secs(10)), vec![gone; 8]);
    drop(pair);
    expect_no_violation();
}
