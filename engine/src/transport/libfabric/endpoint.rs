//! The connection to one peer: an address in each NIC's vector, and the count of what is under way.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::job::Job;
use super::layout::{Layout, Layouts};
use super::progress::{Command, Progress};
use super::registered::chunk_bytes;
use super::split::split;
use super::wire::Key;
use crate::error::Error;
use crate::memory::{Access, MemorySlice};
use crate::transport::{BatchId, BoxFuture, Direction, Endpoint, EndpointState, Operation, RailLoad};
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
            operations: AtomicUsize::new(0),
            ended: Notify::new(),
            loads: (0..rails).map(|_| Load::default()).collect(),
        }
    }

    pub(super) fn state(&self) -> EndpointState {
        self.state.lock().clone()
    }

    /// Whether operations may start, or why not.
    pub(super) fn check(&self) -> Result<(), Error> {
        match &*self.state.lock() {
            EndpointState::Ready => Ok(()),
            EndpointState::Failed(error) => Err(error.clone()),
            EndpointState::Closed => Err(Error::Closed),
        }
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

    fn started(&self, rail: usize, bytes: u64) {
        self.operations.fetch_add(1, Ordering::AcqRel);
        self.loads[rail].operations.fetch_add(1, Ordering::Relaxed);
        self.loads[rail].bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// An operation has ended; called before its ticket says so, because that may post the next.
    pub(super) fn ended(&self, rail: usize, bytes: u64) {
        self.loads[rail].operations.fetch_sub(1, Ordering::Relaxed);
        self.loads[rail].bytes.fetch_sub(bytes, Ordering::Relaxed);
        if self.operations.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.ended.notify_waiters();
        }
    }

    /// Resolves when no operation is under way.
    async fn idle(&self) {
        loop {
            let ended = self.ended.notified();
            if self.operations.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}

/// The connection of this transport to one peer.
pub(super) struct FabricEndpoint {
    connection: Arc<Connection>,
    /// The NICs, and for each rail of the peer its place in the vector of that NIC, where it was introduced.
    rails: Vec<(Arc<Progress>, Vec<Option<u64>>)>,
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
        rails: Vec<(Arc<Progress>, Vec<Option<u64>>)>,
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
    /// else those that were wished for. `None` where those were not introduced to each other.
    fn rails_for(&self, here: &Layout, operation: &Operation, key: &Key) -> Option<(usize, usize, u64)> {
        let rail_of =
            |layout: &Layout, offset| layout.part_at(offset).map(|(_, part)| usize::from(part.rail.0));
        let near = rail_of(here, operation.local.offset());
        let far = rail_of(&key.layout, operation.remote.offset);
        let rail = near.unwrap_or_else(|| usize::from(operation.rail.0) % self.rails.len());
        let other = far.unwrap_or(rail % self.peer_rails);
        let slot = (*self.rails.get(rail)?.1.get(other)?)?;
        Some((rail, other, slot))
    }

    fn start(&self, here: &Layout, operation: Operation, key: &Key, jobs: &mut [Vec<Job>]) {
        let Some((rail, other, peer)) = self.rails_for(here, &operation, key) else {
            let error = Error::protocol("memory at a rail that the peer has not introduced");
            return operation.complete(Err(error));
        };
        match key.place(other, operation.remote.offset) {
            Ok((address, key)) => {
                self.connection.started(rail, operation.local.length() as u64);
                let connection = Arc::clone(&self.connection);
                jobs[rail].push(Job { connection, peer, rail, address, key, operation });
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
        let load = |((rail, load), (progress, _)): ((usize, &Load), &(Arc<Progress>, Vec<_>))| RailLoad {
            rail: RailId(u16::try_from(rail).unwrap_or(u16::MAX)),
            operations: load.operations.load(Ordering::Relaxed),
            bytes: load.bytes.load(Ordering::Relaxed),
            credits: progress.credits(),
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
