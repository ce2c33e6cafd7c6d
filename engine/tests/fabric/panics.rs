//! A NIC's thread panics, as in who is told of an end: that costs the NIC and the connections over it, and holds up nobody.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_engine::error::Error;
use tidefs_engine::memory::{Access, MemorySlice};
use tidefs_engine::transport::{
    BatchId, Direction, EndpointState, Operation, RemoteSlice, Ticket, TicketSink,
};
use tidefs_engine::types::{ByteCount, RailId};

use crate::harness::{Memory, PATIENCE, Pair, Run, alone, block_on, connect, silence, stuck};
use crate::missing::until;
use crate::strict::{DONE, READ, close, open, read};

#[derive(Debug)]
struct Panics;

impl TicketSink for Panics {
    fn completed(&self, _: u32, _: Result<(), Error>) {
        panic!("as the test asks")
    }
}

/// Has the thread of NIC `rail` panic, at the end of a read that is to end by `deadline`.
fn panic_on(pair: &Pair, rail: RailId, local: &Memory, remote: &Memory, deadline: Instant) {
    let operation = Operation {
        direction: Direction::Read,
        local: MemorySlice::new(&local.region, local.id, 0, ByteCount(4096)).unwrap(),
        remote: RemoteSlice { region: remote.id, key: Arc::clone(&remote.key), offset: 0 },
        rail,
        deadline,
        ticket: Ticket::new(Arc::new(Panics), BatchId::next(), 0),
    };
    pair.endpoint.post(&mut VecDeque::from([operation]));
    until("the connection has failed", || pair.endpoint.state() != EndpointState::Ready);
}

#[test]
fn a_nic_whose_thread_panicked_is_left_out_and_keeps_nothing_waiting() {
    let _alone = alone();
    let Some((pair, local, remote)) = open() else { return };
    remote.fill(6);
    panic_on(&pair, RailId(1), &local, &remote, Instant::now() + PATIENCE);
    assert_eq!(pair.endpoint.load()[1].credits, 0, "the plan is to pass it over");
    // By another way than to their deadlines.
    let began = Instant::now();
    for result in read(&pair.endpoint, &local, &remote).wait() {
        assert!(matches!(result, Err(Error::TransportFailed { .. })), "{result:?}");
    }
    block_on(pair.endpoint.close());
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    let again = connect(&pair.near, &pair.far);
    let late = Memory::new(&pair.near, 3, 1 << 20, Access::ReadWrite);
    for memory in [&local, &late] {
        assert_eq!(read(&again, memory, &remote).wait(), DONE);
        assert_eq!(memory.bytes(8192, 4096), remote.bytes(0, 4096));
    }
    close(pair);
}

/// Where the provider does not close the endpoint, the NIC may still write what it had begun: that has not ended then, and
/// nothing else waits for it.
#[test]
fn what_is_under_way_on_a_nic_whose_thread_panicked_ends_when_its_endpoint_is_closed() {
    let _alone = alone();
    let Some((pair, local, remote)) = open() else { return };
    remote.fill(6);
    silence(true);
    stuck(true);
    let run = Run::start(&pair.endpoint, &local, &remote, &READ[..1], PATIENCE);
    // The provider may refuse it a few times before it takes it.
    std::thread::sleep(Duration::from_millis(100));
    // It is too late to be started, and ends on the thread that would.
    panic_on(&pair, RailId(0), &local, &remote, Instant::now());
    let waiter = std::thread::spawn(move || run.wait());
    // Longer than what was given up may take to settle.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!waiter.is_finished(), "the NIC may still write");
    let late = Memory::new(&pair.near, 3, 1 << 20, Access::ReadWrite);
    let again = connect(&pair.near, &pair.far);
    stuck(false);
    let results = waiter.join().unwrap();
    assert!(matches!(results[..], [Err(Error::TransportFailed { .. })]), "{results:?}");
    silence(false);
    assert_eq!(read(&again, &late, &remote).wait(), DONE);
    close(pair);
}
