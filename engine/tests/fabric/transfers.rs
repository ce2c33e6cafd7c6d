//! What an operation does, and how it ends when it cannot.

use std::time::{Duration, Instant};

use tidefs_engine::error::Error;
use tidefs_engine::memory::Access;
use tidefs_engine::transport::{Direction, EndpointState, Transport};

use crate::harness::{Memory, PATIENCE, Pair, Piece, Run, block_on, config, connect, open, pattern};

const MIB: u64 = 1 << 20;

/// The same facts on a real provider and on the strict one, which adds that no rule was broken; and on both with
/// several registrations for each region, where the strict one takes no longer ones.
macro_rules! on_each_provider {
    ($($fact:ident),* $(,)?) => {
        mod real {
            $(#[test] fn $fact() {
                if let Some(pair) = super::Pair::open() {
                    super::$fact(&pair);
                }
            })*
        }
        mod strict {
            $(#[test] fn $fact() {
                let _alone = crate::harness::alone();
                if let Some(pair) = super::Pair::open_strict() {
                    super::$fact(&pair);
                    drop(pair);
                    crate::harness::expect_no_violation();
                }
            })*
        }
        mod real_in_pieces {
            $(#[test] fn $fact() {
                if let Some(pair) = super::Pair::with(&crate::harness::in_pieces(super::config())) {
                    super::$fact(&pair);
                }
            })*
        }
        mod strict_in_pieces {
            $(#[test] fn $fact() {
                use crate::harness::{PIECE, alone, expect_no_violation, in_pieces, memory_max, strict_config};
                let _alone = alone();
                if let Some(pair) = super::Pair::with(&in_pieces(strict_config())) {
                    memory_max(usize::try_from(PIECE).unwrap());
                    super::$fact(&pair);
                    memory_max(0);
                    drop(pair);
                    expect_no_violation();
                }
            })*
        }
    };
}

on_each_provider!(
    reads_and_writes_move_exactly_their_bytes,
    many_operations_end_each_with_its_own_bytes,
    both_ends_may_move_bytes_at_once,
    what_the_peer_does_not_allow_is_refused_here,
    a_withdrawn_region_is_out_of_reach_and_another_takes_its_place,
    memory_that_nobody_uses_is_let_go_and_nobody_notices,
    a_closed_endpoint_ends_what_it_has_and_takes_no_more,
    a_cancelled_batch_ends_and_others_go_on,
    an_idle_transport_uses_no_processor,
);

pub(crate) fn is_verbs() -> bool {
    config().provider.is_some_and(|provider| provider.starts_with("verbs"))
}

/// `length`, or the longest operation.
fn up_to(pair: &Pair, length: u64) -> u64 {
    length.min(pair.near.capabilities().operation_bytes_max.get())
}

/// `count` pieces side by side, each of `length` bytes.
fn side_by_side(direction: Direction, count: u64, length: u64) -> Vec<Piece> {
    (0..count).map(|index| (direction, index * length, index * length, length)).collect()
}

fn reads_and_writes_move_exactly_their_bytes(pair: &Pair) {
    let (local, remote) = pair.memory(16 * MIB);
    let longest = up_to(pair, 4 * MIB);
    remote.fill(7);
    for length in [1, 63, 4096, up_to(pair, 65_537), longest] {
        let results =
            Run::start(&pair.endpoint, &local, &remote, &[(Direction::Read, 5, 11, length)], PATIENCE).wait();
        assert_eq!(results, [Ok(())], "{length}");
        assert_eq!(local.bytes(5, length), remote.bytes(11, length), "{length}");
    }
    local.fill(8);
    for length in [1, 63, 4096, up_to(pair, 65_537), longest] {
        let before = remote.bytes(0, 16 * MIB);
        let results =
            Run::start(&pair.endpoint, &local, &remote, &[(Direction::Write, 3, 9, length)], PATIENCE).wait();
        assert_eq!(results, [Ok(())], "{length}");
        // A write that has ended is in the target's memory.
        assert_eq!(remote.bytes(9, length), local.bytes(3, length), "{length}");
        assert_eq!(remote.bytes(0, 9), before[..9]);
        let behind = 9 + length;
        assert!(remote.bytes(behind, 16 * MIB - behind) == before[usize::try_from(behind).unwrap()..]);
    }
}

fn many_operations_end_each_with_its_own_bytes(pair: &Pair) {
    let (local, remote) = pair.memory(16 * MIB);
    local.fill(1);
    let writes = side_by_side(Direction::Write, 512, 32 << 10);
    let results = Run::start(&pair.endpoint, &local, &remote, &writes, PATIENCE).wait();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert!(remote.bytes(0, 16 * MIB) == pattern(1, 16 * MIB));
    remote.fill(2);
    let reads = side_by_side(Direction::Read, 512, 32 << 10);
    let results = Run::start(&pair.endpoint, &local, &remote, &reads, PATIENCE).wait();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert!(local.bytes(0, 16 * MIB) == pattern(2, 16 * MIB));
    assert!(pair.endpoint.load().iter().all(|load| load.operations == 0 && load.bytes == 0));
}

fn both_ends_may_move_bytes_at_once(pair: &Pair) {
    let back = connect(&pair.far, &pair.near);
    let near = Memory::new(&pair.near, 1, 4 * MIB, Access::ReadWrite);
    let far = Memory::new(&pair.far, 1, 4 * MIB, Access::ReadWrite);
    near.fill(3);
    far.fill(4);
    let half = 2 * MIB;
    let there: Vec<Piece> =
        (0..32).map(|index| (Direction::Write, index << 16, half + (index << 16), 1 << 16)).collect();
    let here = there.clone();
    let there = Run::start(&pair.endpoint, &near, &far, &there, PATIENCE);
    let here = Run::start(&back, &far, &near, &here, PATIENCE);
    assert!(there.wait().iter().chain(&here.wait()).all(Result::is_ok));
    assert_eq!(far.bytes(half, half), pattern(3, 4 * MIB)[..usize::try_from(half).unwrap()]);
    assert_eq!(near.bytes(half, half), pattern(4, 4 * MIB)[..usize::try_from(half).unwrap()]);
}

fn what_the_peer_does_not_allow_is_refused_here(pair: &Pair) {
    let local = Memory::new(&pair.near, 1, 4096, Access::ReadWrite);
    let remote = Memory::new(&pair.far, 2, 4096, Access::Read);
    let one = |piece| Run::start(&pair.endpoint, &local, &remote, &[piece], PATIENCE).wait().remove(0);
    assert_eq!(one((Direction::Write, 0, 0, 8)), Err(Error::ReadOnly { region: remote.id }));
    assert!(matches!(one((Direction::Read, 0, 4090, 8)), Err(Error::OutOfRange { .. })));
    assert!(matches!(one((Direction::Read, 0, u64::MAX, 8)), Err(Error::OutOfRange { .. })));
    assert_eq!(one((Direction::Read, 0, 0, 8)), Ok(()));
    let mut broken = remote.clone();
    broken.key = vec![9, 9, 9].into();
    let results = Run::start(&pair.endpoint, &local, &broken, &[(Direction::Read, 0, 0, 8)], PATIENCE).wait();
    assert!(matches!(results[0], Err(Error::Protocol { .. })), "{results:?}");
    // Neither of these says anything about the connection.
    assert_eq!(pair.endpoint.state(), EndpointState::Ready);
}

fn a_withdrawn_region_is_out_of_reach_and_another_takes_its_place(pair: &Pair) {
    let (local, remote) = pair.memory(MIB);
    let length = up_to(pair, MIB / 2);
    let read = [(Direction::Read, 0, 0, length)];
    assert_eq!(Run::start(&pair.endpoint, &local, &remote, &read, PATIENCE).wait(), [Ok(())]);
    block_on(pair.far.unregister(remote.id));
    let results = Run::start(&pair.endpoint, &local, &remote, &read, Duration::from_secs(3)).wait();
    assert!(results[0].is_err(), "the region is still there");
    // Whatever that did to the connection, a new one works, once the provider has taken the old one down.
    let fresh = Memory::new(&pair.far, 3, MIB, Access::ReadWrite);
    fresh.fill(5);
    let local = Memory::new(&pair.near, 4, MIB, Access::ReadWrite);
    let began = Instant::now();
    loop {
        let endpoint = connect(&pair.near, &pair.far);
        let results = Run::start(&endpoint, &local, &fresh, &read, PATIENCE).wait();
        match &results[0] {
            Ok(()) => break,
            refused if is_verbs() => return known_limit_of_verbs(refused),
            refused => assert!(began.elapsed() < PATIENCE, "{refused:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(local.bytes(0, length), fresh.bytes(0, length));
}

/// Each object that one member lends to another is memory that comes and goes.
fn memory_that_nobody_uses_is_let_go_and_nobody_notices(pair: &Pair) {
    let (local, remote) = pair.memory(MIB);
    let other = Memory::new(&pair.far, 3, MIB, Access::ReadWrite);
    let length = up_to(pair, MIB / 2);
    let reads = side_by_side(Direction::Read, 2, length);
    assert_eq!(Run::start(&pair.endpoint, &local, &other, &reads, PATIENCE).wait(), [Ok(()), Ok(())]);
    let reading = Run::start(&pair.endpoint, &local, &remote, &reads, PATIENCE);
    block_on(pair.far.unregister_unused(other.id));
    assert_eq!(reading.wait(), [Ok(()), Ok(())]);
    assert_eq!(Run::start(&pair.endpoint, &local, &remote, &reads, PATIENCE).wait(), [Ok(()), Ok(())]);
    assert_eq!(pair.endpoint.state(), EndpointState::Ready);
}

/// A known limit: on verbs a refused key breaks the queue pair between two ends, and libfabric does not make it anew for
/// a peer that it knows. The operations fail, and say so; other transports carry them. Whole again is a transport that
/// is opened anew.
fn known_limit_of_verbs(result: &Result<(), Error>) {
    let Err(Error::TransportFailed { cause, .. }) = result else { panic!("{result:?}") };
    assert!(cause.contains("Flushed"), "{cause}");
    println!("known limit: {cause}");
    let Some(pair) = Pair::open() else { panic!("it was there") };
    let (local, remote) = pair.memory(MIB);
    let read = [(Direction::Read, 0, 0, 4096)];
    assert_eq!(Run::start(&pair.endpoint, &local, &remote, &read, PATIENCE).wait(), [Ok(())]);
}

fn a_closed_endpoint_ends_what_it_has_and_takes_no_more(pair: &Pair) {
    let (local, remote) = pair.memory(16 * MIB);
    let run = Run::start(
        &pair.endpoint,
        &local,
        &remote,
        &side_by_side(Direction::Read, 64, up_to(pair, 256 << 10)),
        PATIENCE,
    );
    block_on(pair.endpoint.close());
    let results = run.wait();
    assert!(results.iter().all(|result| matches!(result, Ok(()) | Err(Error::Closed))), "{results:?}");
    let late = Run::start(&pair.endpoint, &local, &remote, &[(Direction::Read, 0, 0, 8)], PATIENCE).wait();
    assert_eq!(late, [Err(Error::Closed)]);
    // The transport is whole: another connection to the same peer works.
    let again = connect(&pair.near, &pair.far);
    let read = [(Direction::Read, 0, 0, 8)];
    assert_eq!(Run::start(&again, &local, &remote, &read, PATIENCE).wait(), [Ok(())]);
}

fn a_cancelled_batch_ends_and_others_go_on(pair: &Pair) {
    let (local, remote) = pair.memory(16 * MIB);
    let pieces = side_by_side(Direction::Read, 32, up_to(pair, 256 << 10));
    let given_up = Run::start(&pair.endpoint, &local, &remote, &pieces, PATIENCE);
    let kept = Run::start(&pair.endpoint, &local, &remote, &pieces, PATIENCE);
    pair.endpoint.cancel(given_up.batch);
    let results = given_up.wait();
    assert!(results.iter().all(|result| matches!(result, Ok(()) | Err(Error::Cancelled))), "{results:?}");
    assert!(kept.wait().iter().all(Result::is_ok));
}

fn an_idle_transport_uses_no_processor(pair: &Pair) {
    if std::env::var_os("NEXTEST").is_none() {
        println!(
            "skipped: other tests run in this process, and its use of the processor is what is measured"
        );
        return;
    }
    let (local, remote) = pair.memory(4096);
    let read = [(Direction::Read, 0, 0, 8)];
    assert_eq!(Run::start(&pair.endpoint, &local, &remote, &read, PATIENCE).wait(), [Ok(())]);
    let used = || {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        // utime and stime, in ticks of 10 ms.
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    // Whoever spins does so in every second; a machine that is busy otherwise disturbs some.
    let in_a_second = || {
        let before = used();
        std::thread::sleep(Duration::from_secs(1));
        used() - before
    };
    let ticks: Vec<u64> = (0..5).map(|_| in_a_second()).collect();
    assert!(ticks.iter().any(|ticks| *ticks <= 5), "ticks of 10 ms in each of five seconds: {ticks:?}");
}

/// A peer may know the address and the keys of a process that has ended, and another one has that address now.
#[test]
fn a_process_gives_other_keys_than_the_one_before_it() {
    if is_verbs() {
        println!("skipped: the NIC has keys of its own");
        return;
    }
    let key = || Some(Memory::new(&*open()?, 1, 4096, Access::ReadWrite).key);
    let (Some(before), Some(after)) = (key(), key()) else { return };
    // Nothing else of it differs, since offsets stand for addresses.
    assert_eq!(before[4..20], after[4..20]);
    assert_ne!(before[20..], after[20..]);
}

#[test]
fn a_missing_provider_is_named() {
    if libfabric_sys::Library::open().is_err() {
        println!("skipped: no libfabric");
        return;
    }
    let config = tidefs_engine::transport::libfabric::FabricConfig {
        provider: Some("nowhere".to_owned()),
        ..Default::default()
    };
    let error = tidefs_engine::transport::libfabric::Fabric::open(&config).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("nowhere"), "{error}");
}
