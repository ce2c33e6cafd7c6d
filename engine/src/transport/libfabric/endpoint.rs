//! The connection to one peer: an address in each NIC's vector, and the count of what is under way.
//!
//! One that was made without a NIC, because that was not open here or at the peer, goes by the others, and ends after a while:
//! the next may have it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::job::Job;
use super::layout::{Layout, Layouts};
use super::progress::{Command, Progress};
use super::registered::chunk_bytes;
use super::split::split;
use super::wire::Key;
use super::{NAME, NOT_OPEN};
use crate::error::Error;
use crate::memory::{Access, MemorySlice};
use crate::transport::{BatchId, BoxFuture, Direction, Endpoint, EndpointState, Operation, RailLoad, until};
use crate::types::{ByteCount, PeerId, RailId};

/// No rail has this number.
const NO_RAIL: usize = usize::MAX;

/// What the threads of the NICs and the owner of an endpoint share.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peer: PeerId,
    state: Mutex<EndpointState>,
    /// Of those that this was made over, the one that ended it; [`NO_RAIL`] where none alone did. Set before the state.
    failed_rail: AtomicUsize,
    /// A rail that it was made without, and until when it is used so.
    lacking: OnceLock<(usize, Instant)>,
    /// Operations taken and not ended, over all rails. At most `operations_max`, and the parts of the last.
    operations: AtomicUsize,
    /// Wakes those who wait for `operations` to be 0.
    ended: Notify,
    loads: Vec<Load>,
}

#[derive(Debug, Default)]
struct Load {
    operations: AtomicUsize,
    bytes: AtomicU64,
}

impl Connection {
    pub(super) fn new(peer: PeerId, rails: usize) -> Self {
        Self {
            peer,
            state: Mutex::new(EndpointState::Ready),
            failed_rail: AtomicUsize::new(NO_RAIL),
            lacking: OnceLock::new(),
            operations: AtomicUsize::new(0),
            ended: Notify::new(),
            loads: (0..rails).map(|_| Load::default()).collect(),
        }
    }

    /// It was made without `rail`, and ends at `until`.
    pub(super) fn lacks(&self, rail: usize, until: Instant) {
        // Said once, by who makes it.
        let _ = self.lacking.set((rail, until));
    }

    pub(super) fn state(&self) -> EndpointState {
        if let Some(&(rail, until)) = self.lacking.get()
            && until <= Instant::now()
        {
            self.fail_on(rail, &Error::transport(NAME, "it was made without a NIC that may be open by now"));
        }
        self.state.lock().clone()
    }

    /// Whether operations may start, or why not.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.state.lock().error().map_or(Ok(()), Err)
    }

    /// It takes nothing more. The first cause stays.
    pub(super) fn fail(&self, error: &Error) {
        self.end(EndpointState::Failed(error.clone()));
    }

    /// The same, because of one rail.
    pub(super) fn fail_on(&self, rail: usize, error: &Error) {
        let mut state = self.state.lock();
        if *state == EndpointState::Ready {
            self.failed_rail.store(rail, Ordering::Relaxed);
            *state = EndpointState::Failed(error.clone());
        }
    }

    fn end(&self, end: EndpointState) {
        let mut state = self.state.lock();
        if *state == EndpointState::Ready {
            *state = end;
        }
    }

    /// An operation of `bytes` begins, and lasts as long as what is returned.
    fn started(self: &Arc<Self>, rail: usize, bytes: u64) -> Counted {
        self.operations.fetch_add(1, Ordering::AcqRel);
        self.loads[rail].operations.fetch_add(1, Ordering::Relaxed);
        self.loads[rail].bytes.fetch_add(bytes, Ordering::Relaxed);
        Counted { connection: Arc::clone(self), rail, bytes }
    }

    fn ended(&self, rail: usize, bytes: u64) {
        self.loads[rail].operations.fetch_sub(1, Ordering::Relaxed);
        self.loads[rail].bytes.fetch_sub(bytes, Ordering::Relaxed);
        if self.operations.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.ended.notify_waiters();
        }
    }

    /// Resolves when no operation is under way.
    async fn idle(&self) {
        until(&self.ended, || self.operations.load(Ordering::Acquire) == 0).await;
    }
}

/// An operation that counts as under way at its connection, until this is dropped.
pub(super) struct Counted {
    pub(super) connection: Arc<Connection>,
    /// Which rail of the connection it goes by.
    pub(super) rail: usize,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.connection.ended(self.rail, self.bytes);
    }
}

/// The NICs, and for each rail of the peer its place in the vector of that NIC, where it was introduced.
pub(super) type Slots = Vec<(Arc<Progress>, Vec<Option<u64>>)>;

/// The connection of this transport to one peer.
pub(super) struct FabricEndpoint {
    connection: Arc<Connection>,
    rails: Slots,
    /// Rails of the peer: our rail `i` talks to the peer's rail `i % peer_rails`, where it has the choice.
    peer_rails: usize,
    operations_max: usize,
    memories: Memories,
}

/// Where this host's regions are registered.
#[derive(Debug)]
pub(super) struct Memories {
    /// Longest registration.
    pub(super) registration_bytes_max: Option<ByteCount>,
    /// Regions of which each rail has a part, where there may be some.
    pub(super) divided: Option<Arc<Layouts>>,
}

impl Memories {
    /// The layout of the region of `memory`, where each rail has a part of it.
    fn divided(&self, memory: &MemorySlice) -> Option<Arc<Layout>> {
        self.divided.as_ref()?.read().get(&memory.id()).cloned()
    }

    /// The same where every rail has all of it.
    fn everywhere(&self, memory: &MemorySlice) -> Layout {
        // A region that takes too many registrations has none, which its NIC says.
        Layout::Everywhere(chunk_bytes(memory.region(), self.registration_bytes_max).ok().flatten())
    }
}

impl fmt::Debug for FabricEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FabricEndpoint").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl FabricEndpoint {
    pub(super) fn new(
        connection: Arc<Connection>,
        rails: Slots,
        peer_rails: usize,
        operations_max: usize,
        memories: Memories,
    ) -> Self {
        Self { connection, rails, peer_rails, operations_max, memories }
    }
}

/// Checks an operation against what the peer said about its region, which is returned.
fn check(operation: &Operation) -> Result<Key, Error> {
    let remote = &operation.remote;
    let key = Key::decode(&remote.key)?;
    let length = operation.local.length() as u64;
    if operation.direction == Direction::Write && key.access == Access::Read {
        return Err(Error::ReadOnly { region: remote.region });
    }
    if remote.offset.checked_add(length).is_none_or(|end| end > key.length) {
        return Err(Error::OutOfRange {
            region: remote.region,
            offset: remote.offset,
            length: ByteCount(length),
            region_length: ByteCount(key.length),
        });
    }
    Ok(key)
}

impl FabricEndpoint {
    /// Makes the jobs of an operation: one, but for an operation that a registration at either end does not hold whole.
    fn prepare(&self, operation: Operation, key: &Key, jobs: &mut [Vec<Job>]) {
        let divided = self.memories.divided(&operation.local);
        let everywhere = self.memories.everywhere(&operation.local);
        let here = divided.as_deref().unwrap_or(&everywhere);
        if here.is_one() && key.layout.is_one() {
            return self.start(here, operation, key, jobs);
        }
        for part in split(operation, here, &key.layout) {
            self.start(here, part, key, jobs);
        }
    }

    /// The rail that an operation goes by, the peer's rail, and that one's place in the vector: the rails that have the bytes,
    /// else those that were wished for, else those that have the least to do of all that can carry it. `None` where none can.
    fn rails_for(&self, here: &Layout, operation: &Operation, key: &Key) -> Option<(usize, usize, u64)> {
        let rail_of =
            |layout: &Layout, offset| layout.part_at(offset).map(|(_, part)| usize::from(part.rail.0));
        let near = rail_of(here, operation.local.offset());
        let far = rail_of(&key.layout, operation.remote.offset);
        let way = |rail: usize, other: usize| {
            let slot = (*self.rails.get(rail)?.1.get(other)?)?;
            key.is_at(other).then_some((rail, other, slot))
        };
        let rail = near.unwrap_or_else(|| usize::from(operation.rail.0) % self.rails.len());
        way(rail, far.unwrap_or(rail % self.peer_rails)).or_else(|| {
            // A NIC is missing at one of the ends.
            let rails = near.map_or(0..self.rails.len(), |rail| rail..rail + 1);
            let others = far.map_or(0..self.peer_rails, |other| other..other + 1);
            let pairs = rails.flat_map(|rail| others.clone().map(move |other| (rail, other)));
            let load = |rail: usize| self.connection.loads[rail].operations.load(Ordering::Relaxed);
            pairs.filter_map(|(rail, other)| way(rail, other)).min_by_key(|&(rail, ..)| load(rail))
        })
    }

    fn start(&self, here: &Layout, operation: Operation, key: &Key, jobs: &mut [Vec<Job>]) {
        let Some((rail, other, peer)) = self.rails_for(here, &operation, key) else {
            return operation.complete(Err(Error::transport(NAME, NOT_OPEN)));
        };
        match key.place(other, operation.remote.offset) {
            Ok((address, key)) => {
                let counted = self.connection.started(rail, operation.local.length() as u64);
                jobs[rail].push(Job { peer, address, key, counted, operation });
            }
            Err(error) => operation.complete(Err(error)),
        }
    }
}

impl Endpoint for FabricEndpoint {
    fn post(&self, operations: &mut VecDeque<Operation>) {
        let mut jobs: Vec<Vec<Job>> = self.rails.iter().map(|_| Vec::new()).collect();
        loop {
            // Where the connection has failed, each is taken to be ended: what is under way still takes no room from it.
            let checked = self.connection.check();
            let is_full = self.connection.operations.load(Ordering::Acquire) >= self.operations_max;
            if checked.is_ok() && is_full {
                break;
            }
            let Some(operation) = operations.pop_front() else { break };
            match checked.and_then(|()| check(&operation)) {
                Ok(key) => self.prepare(operation, &key, &mut jobs),
                Err(error) => operation.complete(Err(error)),
            }
        }
        for ((progress, _), jobs) in self.rails.iter().zip(jobs) {
            if !jobs.is_empty() {
                progress.send(Command::Post(jobs));
            }
        }
    }

    fn cancel(&self, batch: BatchId) {
        for (progress, _) in &self.rails {
            progress.send(Command::Cancel(Arc::clone(&self.connection), batch));
        }
    }

    fn state(&self) -> EndpointState {
        self.connection.state()
    }

    fn failed_rail(&self) -> Option<RailId> {
        let rail = self.connection.failed_rail.load(Ordering::Relaxed);
        u16::try_from(rail).ok().map(RailId)
    }

    fn load(&self) -> Vec<RailLoad> {
        let load = |((rail, load), (progress, slots)): ((usize, &Load), &(Arc<Progress>, Vec<_>))| RailLoad {
            rail: RailId(u16::try_from(rail).unwrap_or(u16::MAX)),
            operations: load.operations.load(Ordering::Relaxed),
            bytes: load.bytes.load(Ordering::Relaxed),
            // One that knows no rail of the peer is not to be chosen while another has room.
            credits: if slots.iter().any(Option::is_some) { progress.credits() } else { 0 },
        };
        self.connection.loads.iter().enumerate().zip(&self.rails).map(load).collect()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.connection.end(EndpointState::Closed);
        // What is still under way on a connection that had failed ends with that, and may be tried again.
        let error = self.connection.check().err().unwrap_or(Error::Closed);
        for (progress, _) in &self.rails {
            progress.send(Command::End(Arc::clone(&self.connection), error.clone()));
        }
        Box::pin(async {
            // A thread that has ended completes what is sent to it; the tick only guards against a lost wake.
            while tokio::time::timeout(Duration::from_secs(1), self.connection.idle()).await.is_err() {}
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Incarnation, MemberId};

    fn connection() -> Connection {
        Connection::new(PeerId { member: MemberId(1), incarnation: Incarnation(1) }, 2)
    }

    #[test]
    fn a_connection_without_a_nic_ends_in_time_because_of_that_one() {
        let (early, late, whole) = (connection(), connection(), connection());
        early.lacks(1, Instant::now() + Duration::from_secs(3600));
        late.lacks(1, Instant::now());
        assert_eq!((early.state(), whole.state()), (EndpointState::Ready, EndpointState::Ready));
        assert!(matches!(late.state(), EndpointState::Failed(Error::TransportFailed { .. })));
        assert!(late.check().is_err());
        let rails = [&early, &late, &whole].map(|connection| connection.failed_rail.load(Ordering::Relaxed));
        assert_eq!(rails, [NO_RAIL, 1, NO_RAIL]);
    }
}
