//! An endpoint whose owner is played by the test.

use std::os::fd::AsFd;
use std::time::Duration;

use super::super::socket::Listener;
use super::super::wire::{PACKET, Packet};
use super::*;
use crate::memory::{Access, PageKind};
use crate::transport::{RemoteSlice, Ticket, TicketSink};
use crate::types::{Incarnation, MemberId};

#[derive(Debug)]
struct Unheard;

impl TicketSink for Unheard {
    fn completed(&self, _: u32, _: Result<(), Error>) {}
}

/// An endpoint, and its owner's end of the connection.
async fn connected(name: &str) -> (Arc<ShmEndpoint>, Socket) {
    let name = format!("tidefs-test-endpoint-{name}-{}", std::process::id());
    let listener = Listener::bind(name.as_bytes()).unwrap();
    let socket = Socket::connect(name.as_bytes()).unwrap();
    let owner = listener.accept().await.unwrap();
    let (words, copiers) = (Words::new(8).unwrap(), Arc::new(Copiers::start(1).unwrap()));
    let peer = PeerId { member: MemberId(2), incarnation: Incarnation(1) };
    (ShmEndpoint::start(&Handle::current(), peer, socket, words, copiers), owner)
}

fn region() -> Arc<Region> {
    let region = Region::anonymous(ByteCount(4096), PageKind::Base, Access::ReadWrite).unwrap();
    Arc::new(region)
}

/// A read of the owner's region `remote` into `local`.
fn read(local: &Arc<Region>, remote: u64) -> Operation {
    Operation {
        direction: Direction::Read,
        local: MemorySlice::new(local, RegionId(1), 0, ByteCount(4096)).unwrap(),
        remote: RemoteSlice { region: RegionId(remote), key: Arc::default(), offset: 0 },
        rail: RailId(0),
        deadline: Instant::now() + Duration::from_secs(60),
        ticket: Ticket::new(Arc::new(Unheard), BatchId::next(), 0),
    }
}

/// More packets in each direction than a socket holds, and the owner reads none before it has sent all of its own: so
/// it is while many regions are asked for and others are withdrawn.
#[tokio::test]
async fn an_owner_that_waits_for_room_is_heard_while_questions_wait_for_room() {
    let (endpoint, owner) = connected("both-full").await;
    let local = region();
    let mut operations = (1..=OPERATIONS_MAX as u64).map(|remote| read(&local, remote)).collect();
    endpoint.post(&mut operations);
    let talk = async {
        for id in 1..=4096 {
            owner.send(&Packet::Revoked { id: RegionId((1 << 32) + id) }.encode(), None).await.unwrap();
        }
        let mut packet = [0; PACKET];
        for id in 1..=OPERATIONS_MAX as u64 {
            owner.receive(&mut packet).await.unwrap();
            assert_eq!(Packet::decode(&packet), Some(Packet::Map { id: RegionId(id) }));
        }
    };
    tokio::time::timeout(Duration::from_secs(20), talk).await.expect("neither waits for ever");
    endpoint.lose();
}

/// A copy that waits for its thread when the link is lost: the owner, which gives the memory back when the
/// connection ends, must not see that end before the copy's.
#[tokio::test]
async fn the_connection_ends_behind_the_last_copy() {
    let (endpoint, owner) = connected("last-copy").await;
    let region = region();
    let operation = read(&region, 1);
    let mut packet = [0; PACKET];
    endpoint.post(&mut VecDeque::from([operation]));
    owner.receive(&mut packet).await.unwrap();
    let operation = match endpoint.state.lock().regions.remove(&RegionId(1)) {
        Some(Entry::Asked(mut waiting)) => waiting.pop().unwrap(),
        _ => unreachable!("it waits for the owner's answer"),
    };
    let theirs = Arc::new(Mapped { region, is_writable: true, word: 0 });
    let copy = Copy { operation, theirs, endpoint: Arc::clone(&endpoint) };
    endpoint.lose();
    let ended = tokio::time::timeout(Duration::from_millis(200), owner.receive(&mut packet)).await;
    assert!(ended.is_err(), "a copy is under way: {ended:?}");
    copy.run();
    let ended = tokio::time::timeout(Duration::from_secs(5), owner.receive(&mut packet)).await;
    assert_eq!(ended.unwrap().unwrap().0, 0);
}

async fn until(is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("it comes");
}

/// Its owner may have cut it off, and lives: another transport may carry what was under way.
#[tokio::test]
async fn that_a_connection_ends_does_not_say_that_its_peer_is_gone() {
    let (endpoint, owner) = connected("cut-off").await;
    endpoint.post(&mut VecDeque::from([read(&region(), 1)]));
    drop(owner);
    until(|| endpoint.state() != EndpointState::Ready).await;
    let state = endpoint.state();
    assert!(matches!(state, EndpointState::Failed(Error::TransportFailed { .. })), "{state:?}");
}

#[tokio::test]
async fn a_region_that_cannot_be_mapped_costs_no_other_its_connection() {
    let (endpoint, owner) = connected("unmappable").await;
    let (local, theirs) = (region(), region());
    let mut packet = [0; PACKET];
    endpoint.post(&mut VecDeque::from([read(&local, 1)]));
    owner.receive(&mut packet).await.unwrap();
    // Longer than its file.
    let mapped = Packet::Mapped { id: RegionId(1), length: ByteCount(1 << 20), is_writable: true, word: 0 };
    owner.send(&mapped.encode(), Some(theirs.file().unwrap().as_fd())).await.unwrap();
    until(|| endpoint.taken.load(Ordering::Acquire) == 0).await;
    endpoint.post(&mut VecDeque::from([read(&local, 2)]));
    owner.receive(&mut packet).await.unwrap();
    assert_eq!(Packet::decode(&packet), Some(Packet::Map { id: RegionId(2) }));
    assert_eq!(endpoint.state(), EndpointState::Ready);
    endpoint.lose();
}

/// The owner, or this process, has no descriptors left.
#[tokio::test]
async fn a_region_that_does_not_come_now_costs_no_other_its_connection_and_is_asked_for_again() {
    let (endpoint, owner) = connected("refused").await;
    let (local, id) = (region(), RegionId(1));
    let without = Packet::Mapped { id, length: ByteCount(4096), is_writable: true, word: 0 };
    let mut packet = [0; PACKET];
    for answer in [Packet::Refused { id }, without, Packet::Refused { id }] {
        endpoint.post(&mut VecDeque::from([read(&local, 1)]));
        owner.receive(&mut packet).await.unwrap();
        assert_eq!(Packet::decode(&packet), Some(Packet::Map { id }));
        owner.send(&answer.encode(), None).await.unwrap();
        until(|| endpoint.taken.load(Ordering::Acquire) == 0).await;
        assert_eq!(endpoint.state(), EndpointState::Ready, "{answer:?}");
    }
    endpoint.lose();
}
