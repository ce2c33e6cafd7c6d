//! The initiator's side: the peer's regions, mapped as they are [asked for](asking), and operations on them.
//!
//! Invariants
//! - Memory of the peer is touched only between `enter` and `leave` of its word.
//! - An operation on a region that is not mapped yet waits for the owner's answer; there is one question for each region.
//! - When the connection ends, so does everything that waits; a copy that runs ends by itself, in memory that stays mapped.

mod asking;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use super::OPERATIONS_MAX;
use super::copier::Copiers;
use super::ffi::Words;
use super::socket::Socket;
use crate::error::Error;
use crate::memory::{MemorySlice, Region};
use crate::transport::{
    BatchId, BoxFuture, Direction, Endpoint, EndpointState, Operation, Progress, RailLoad, until,
};
use crate::types::{ByteCount, PeerId, RailId, RegionId};

/// Longest copy that the caller of `post` does by itself.
const INLINE_MAX: usize = 2 << 20;

/// A region of the peer, mapped here.
#[derive(Debug)]
struct Mapped {
    region: Arc<Region>,
    is_writable: bool,
    word: usize,
}

enum Entry {
    Mapped(Arc<Mapped>),
    /// The owner was asked; these wait for its answer.
    Asked(Vec<Operation>),
}

struct State {
    regions: HashMap<RegionId, Entry>,
    end: Option<EndpointState>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("regions", &self.regions.len()).field("end", &self.end).finish()
    }
}

/// The connection to one owner of memory on this host.
#[derive(Debug)]
pub(super) struct ShmEndpoint {
    me: Weak<Self>,
    peer: PeerId,
    /// Beside the task, each copy keeps it open.
    socket: Socket,
    words: Words,
    copiers: Arc<Copiers>,
    /// Guards the mappings and what waits for one; never held while bytes are copied.
    state: Mutex<State>,
    questions: mpsc::UnboundedSender<RegionId>,
    /// Operations taken and not complete.
    taken: AtomicUsize,
    taken_bytes: AtomicUsize,
    is_failed: AtomicBool,
    idle: Notify,
    stop: Notify,
}

/// One copy, ready to run.
#[derive(Debug)]
pub(super) struct Copy {
    operation: Operation,
    theirs: Arc<Mapped>,
    endpoint: Arc<ShmEndpoint>,
}

impl Copy {
    /// Copies, and ends the operation.
    pub(super) fn run(self) {
        let Self { operation, theirs, endpoint } = self;
        let result = endpoint.copy(&operation, &theirs);
        endpoint.end(operation, result);
    }
}

impl ShmEndpoint {
    /// An endpoint on `socket`, on which the owner has said welcome. Its task runs on `runtime`.
    pub(super) fn start(
        runtime: &Handle,
        peer: PeerId,
        socket: Socket,
        words: Words,
        copiers: Arc<Copiers>,
    ) -> Arc<Self> {
        // Bounded by the operations that are taken: one question for each at most.
        let (questions, asked) = mpsc::unbounded_channel();
        let endpoint = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            peer,
            socket,
            words,
            copiers,
            state: Mutex::new(State { regions: HashMap::new(), end: None }),
            questions,
            taken: AtomicUsize::new(0),
            taken_bytes: AtomicUsize::new(0),
            is_failed: AtomicBool::new(false),
            idle: Notify::new(),
            stop: Notify::new(),
        });
        runtime.spawn(Arc::clone(&endpoint).talk(asked));
        endpoint
    }

    /// Whose memory it reaches.
    pub(super) fn peer(&self) -> PeerId {
        self.peer
    }

    /// The link to the peer is gone, so what waits ends with that, and the connection with it.
    pub(super) fn lose(&self) {
        let cause = "the link to it ended".into();
        self.fail(EndpointState::Failed(Error::PeerGone { peer: self.peer, cause }));
        self.stop.notify_one();
    }

    /// Takes nothing more; what waits ends, and the connection behind the copies that run.
    pub(super) fn end_here(&self) {
        self.fail(EndpointState::Closed);
        self.stop.notify_one();
    }

    /// Resolves when no operation is taken.
    async fn until_idle(&self) {
        until(&self.idle, || self.taken.load(Ordering::Acquire) == 0).await;
    }

    /// Ends everything that waits, once.
    fn fail(&self, end: EndpointState) {
        let (entries, error) = {
            let mut state = self.state.lock();
            if state.end.is_some() {
                return;
            }
            self.is_failed.store(true, Ordering::Release);
            let error = end.error().unwrap_or(Error::Closed);
            state.end = Some(end);
            (std::mem::take(&mut state.regions), error)
        };
        for entry in entries.into_values() {
            if let Entry::Asked(waiting) = entry {
                waiting.into_iter().for_each(|operation| self.end(operation, Err(error.clone())));
            }
        }
    }

    /// What a failed endpoint says to every operation.
    fn error(&self) -> Option<Error> {
        self.state.lock().end.as_ref().and_then(EndpointState::error)
    }

    fn copy(&self, operation: &Operation, theirs: &Mapped) -> Result<(), Error> {
        if self.is_failed.load(Ordering::Acquire) {
            return Err(self.error().unwrap_or(Error::Closed));
        }
        if Instant::now() >= operation.deadline {
            return Err(Error::DeadlinePassed);
        }
        let id = operation.remote.region;
        let length = ByteCount(operation.local.length() as u64);
        let remote = MemorySlice::new(&theirs.region, id, operation.remote.offset, length)?;
        if operation.direction == Direction::Write && !theirs.is_writable {
            return Err(Error::ReadOnly { region: id });
        }
        if !self.words.enter(theirs.word) {
            return Err(Error::NoSuchRegion { region: id });
        }
        match operation.direction {
            Direction::Read => operation.local.copy_from(&remote),
            Direction::Write => remote.copy_from(&operation.local),
        }
        self.words.leave(theirs.word);
        // Who died under a copy may have left half of an older write; its bytes count for nothing.
        if self.is_failed.load(Ordering::Acquire) {
            Err(self.error().unwrap_or(Error::Closed))
        } else {
            Ok(())
        }
    }

    fn end(&self, operation: Operation, result: Result<(), Error>) {
        let length = operation.local.length();
        // Before the completion, which may post the next one.
        self.taken_bytes.fetch_sub(length, Ordering::AcqRel);
        let was_last = self.taken.fetch_sub(1, Ordering::AcqRel) == 1;
        operation.complete(result);
        if was_last {
            self.idle.notify_waiters();
        }
    }

    /// Finds the mapping for `operation`, or lets it wait for one.
    fn prepare(self: &Arc<Self>, operation: Operation) -> Option<Copy> {
        let id = operation.remote.region;
        let mut state = self.state.lock();
        if state.end.is_some() {
            drop(state);
            let error = self.error().unwrap_or(Error::Closed);
            self.end(operation, Err(error));
            return None;
        }
        match state.regions.get_mut(&id) {
            Some(Entry::Mapped(mapped)) => {
                let theirs = Arc::clone(mapped);
                drop(state);
                Some(Copy { operation, theirs, endpoint: Arc::clone(self) })
            }
            Some(Entry::Asked(waiting)) => {
                waiting.push(operation);
                None
            }
            None => {
                state.regions.insert(id, Entry::Asked(vec![operation]));
                drop(state);
                // The receiver lives as long as the task, whose end fails the endpoint and what waits in it.
                let _ = self.questions.send(id);
                None
            }
        }
    }

    /// Takes operations while there is room. Returns those whose memory is mapped.
    fn take(self: &Arc<Self>, operations: &mut VecDeque<Operation>) -> Vec<Copy> {
        let mut copies = Vec::new();
        while self.taken.load(Ordering::Acquire) < OPERATIONS_MAX
            && let Some(operation) = operations.pop_front()
        {
            self.taken.fetch_add(1, Ordering::AcqRel);
            self.taken_bytes.fetch_add(operation.local.length(), Ordering::AcqRel);
            copies.extend(self.prepare(operation));
        }
        copies
    }
}

impl Endpoint for ShmEndpoint {
    fn post(&self, operations: &mut VecDeque<Operation>) {
        let Some(me) = self.me.upgrade() else { return };
        let mut copies = me.take(operations);
        let inline = copies.iter().position(|copy| copy.operation.local.length() <= INLINE_MAX);
        let inline = inline.map(|place| copies.remove(place));
        if !copies.is_empty() {
            self.copiers.push(copies);
        }
        if let Some(copy) = inline {
            copy.run();
        }
    }

    fn hand_over(&self, operations: &mut VecDeque<Operation>) {
        let Some(me) = self.me.upgrade() else { return };
        self.copiers.push(me.take(operations));
    }

    fn cancel(&self, batch: BatchId) {
        let mut cancelled = Vec::new();
        for entry in self.state.lock().regions.values_mut() {
            if let Entry::Asked(waiting) = entry {
                let is_of_batch = |operation: &Operation| operation.ticket.batch() == batch;
                let (taken, kept) = std::mem::take(waiting).into_iter().partition(is_of_batch);
                *waiting = kept;
                let taken: Vec<Operation> = taken;
                cancelled.extend(taken);
            }
        }
        // Copies that wait for a thread end by themselves, within the time of those before them.
        cancelled.into_iter().for_each(|operation| self.end(operation, Err(Error::Cancelled)));
    }

    fn progress(&self, _: BatchId) -> Option<Arc<dyn Progress>> {
        (self.taken.load(Ordering::Acquire) > 0).then(|| self.copiers.progress())
    }

    fn state(&self) -> EndpointState {
        if !self.is_failed.load(Ordering::Acquire) {
            return EndpointState::Ready;
        }
        self.state.lock().end.clone().unwrap_or(EndpointState::Ready)
    }

    fn load(&self) -> Vec<RailLoad> {
        let bytes = self.taken_bytes.load(Ordering::Relaxed) as u64;
        let operations = self.taken.load(Ordering::Relaxed);
        let credits = OPERATIONS_MAX.saturating_sub(operations);
        vec![RailLoad { rail: RailId(0), operations, bytes, credits }]
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.end_here();
            self.until_idle().await;
        })
    }
}

#[cfg(test)]
mod tests;
