//! This end of a connection to the owner of memory: which of its regions are mapped, and what is in flight.
//!
//! Invariants
//! - The socket is closed only when no copy of this connection runs: its end is the end of all references that it holds
//!   in the owner's counts, and the owner relies on that.
//! - Locks are taken in the order line, copy pool.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::NAME;
use super::attached::Attached;
use super::copy::{Copy, CopyPool};
use super::message::Frame;
use super::socket::Socket;
use crate::error::Error;
use crate::memory::{Access, MemorySlice, Region, SharedWords};
use crate::transport::{BatchId, Direction, EndpointState, Operation};
use crate::types::{ByteCount, PeerId, RegionId};

/// Operations of one connection at once.
pub(super) const OPERATIONS_MAX: usize = 256;

/// What is known of a region of the peer.
#[derive(Debug)]
enum Known {
    /// It was asked for; these wait for the answer.
    Asked(Vec<Operation>),
    Mapped(Arc<Attached>),
}

#[derive(Debug)]
struct Inner {
    state: EndpointState,
    regions: HashMap<RegionId, Known>,
    operations: usize,
    bytes: u64,
    /// Not later than the first deadline of what waits.
    next_deadline: Option<Instant>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Line {
    peer: PeerId,
    /// State and counts. Held for table look-ups, never during a copy or a completion.
    inner: Mutex<Inner>,
    words: Arc<SharedWords>,
    outbox: UnboundedSender<Frame>,
    pool: Arc<CopyPool>,
    inline_bytes: usize,
    /// Wakes the task of the connection.
    wake: Notify,
    /// The last operation in flight has ended.
    idle: Notify,
}

impl Line {
    pub(super) fn new(
        peer: PeerId,
        words: SharedWords,
        outbox: UnboundedSender<Frame>,
        pool: Arc<CopyPool>,
        inline_bytes: usize,
    ) -> Arc<Self> {
        let state = EndpointState::Ready;
        let inner = Inner { state, regions: HashMap::new(), operations: 0, bytes: 0, next_deadline: None };
        let (words, inner) = (Arc::new(words), Mutex::new(inner));
        let (wake, idle) = (Notify::new(), Notify::new());
        Arc::new(Self { peer, inner, words, outbox, pool, inline_bytes, wake, idle })
    }

    pub(super) fn peer(&self) -> PeerId {
        self.peer
    }

    pub(super) fn state(&self) -> EndpointState {
        self.inner.lock().state.clone()
    }

    /// Operations and bytes in flight.
    pub(super) fn load(&self) -> (usize, u64) {
        let inner = self.inner.lock();
        (inner.operations, inner.bytes)
    }

    // --- Operations ---

    /// See [`crate::transport::Endpoint::post`].
    pub(super) fn post(self: &Arc<Self>, operations: &mut VecDeque<Operation>) {
        let now = Instant::now();
        let mut refused = Vec::new();
        let mut ready = Vec::new();
        let mut inner = self.inner.lock();
        let deadline_before = inner.next_deadline;
        while inner.state != EndpointState::Ready || inner.operations < OPERATIONS_MAX {
            let Some(operation) = operations.pop_front() else { break };
            let error = match &inner.state {
                EndpointState::Ready if operation.deadline > now => None,
                EndpointState::Ready => Some(Error::DeadlinePassed),
                EndpointState::Failed(error) => Some(error.clone()),
                EndpointState::Closed => Some(Error::Closed),
            };
            if let Some(error) = error {
                refused.push((operation, error));
                continue;
            }
            inner.admit(&operation);
            match inner.regions.get_mut(&operation.remote.region) {
                Some(Known::Mapped(attached)) => ready.push((Arc::clone(attached), operation)),
                Some(Known::Asked(waiting)) => waiting.push(operation),
                None => {
                    let region = operation.remote.region;
                    inner.regions.insert(region, Known::Asked(vec![operation]));
                    // The task that listens ends after the state has changed, which was checked above.
                    let _ = self.outbox.send(Frame::Map { region: region.0 });
                }
            }
        }
        if inner.next_deadline != deadline_before {
            self.wake.notify_one();
        }
        drop(inner);
        for (operation, error) in refused {
            operation.complete(Err(error));
        }
        self.start(ready);
    }

    /// Copies what is short now, while nothing waits before it, and leaves the rest to the threads.
    fn start(self: &Arc<Self>, ready: Vec<(Arc<Attached>, Operation)>) {
        let mut left = if ready.is_empty() || !self.pool.is_idle() { 0 } else { self.inline_bytes };
        let mut long = Vec::new();
        for (attached, operation) in ready {
            match self.prepare(attached, operation) {
                Ok(copy) if copy.length() <= left && long.is_empty() => {
                    left -= copy.length();
                    copy.run_part(0, copy.length());
                }
                Ok(copy) => long.push(copy),
                Err(refused) => {
                    let (operation, error) = *refused;
                    self.finish(operation, Err(error));
                }
            }
        }
        if long.is_empty() {
            return;
        }
        // Under the lock: who ends the line afterwards finds these copies in the pool.
        let inner = self.inner.lock();
        let error = match &inner.state {
            EndpointState::Ready => None,
            EndpointState::Failed(error) => Some(error.clone()),
            EndpointState::Closed => Some(Error::Closed),
        };
        self.pool.add(long.into_iter());
        drop(inner);
        if let Some(error) = error {
            self.pool.give_up(|copy| self.is_of(copy), &error);
        }
    }

    fn is_of(&self, copy: &Copy) -> bool {
        std::ptr::eq(Arc::as_ptr(&copy.line), self)
    }

    /// Finds the peer's end of `operation`.
    fn prepare(
        self: &Arc<Self>,
        attached: Arc<Attached>,
        operation: Operation,
    ) -> Result<Copy, Box<(Operation, Error)>> {
        let (region, length) = (operation.remote.region, operation.local.length() as u64);
        let memory = attached.region();
        if operation.direction == Direction::Write && memory.access() != Access::ReadWrite {
            return Err(Box::new((operation, Error::ReadOnly { region })));
        }
        match MemorySlice::new(memory, region, operation.remote.offset, ByteCount(length)) {
            Ok(remote) => Ok(Copy::new(Arc::clone(self), attached, remote, operation)),
            Err(error) => Err(Box::new((operation, error))),
        }
    }

    /// Ends an operation that was admitted.
    pub(super) fn finish(&self, operation: Operation, result: Result<(), Error>) {
        let mut inner = self.inner.lock();
        inner.operations -= 1;
        inner.bytes -= operation.local.length() as u64;
        let is_last = inner.operations == 0 && inner.state != EndpointState::Ready;
        drop(inner);
        operation.complete(result);
        if is_last {
            self.wake.notify_one();
            self.idle.notify_waiters();
        }
    }

    fn finish_all(&self, operations: Vec<Operation>, error: &Error) {
        for operation in operations {
            self.finish(operation, Err(error.clone()));
        }
    }

    /// See [`crate::transport::Endpoint::cancel`].
    pub(super) fn cancel(&self, batch: BatchId) {
        let waiting = self.inner.lock().take_waiting(|operation| operation.ticket.batch() == batch);
        self.finish_all(waiting, &Error::Cancelled);
        self.pool.give_up(|copy| self.is_of(copy) && copy.batch() == batch, &Error::Cancelled);
    }

    /// Ends what has waited until its deadline.
    fn expire(&self, now: Instant) {
        let waiting = self.inner.lock().take_waiting(|operation| operation.deadline <= now);
        self.finish_all(waiting, &Error::DeadlinePassed);
        self.pool.give_up(|copy| self.is_of(copy) && copy.deadline() <= now, &Error::DeadlinePassed);
        let mut inner = self.inner.lock();
        let asked = inner.waiting().map(|operation| operation.deadline).min();
        let queued = self.pool.next_deadline(self);
        inner.next_deadline = [asked, queued].into_iter().flatten().min();
    }

    /// Takes no more, and ends all that no thread copies at this moment.
    pub(super) fn end(&self, state: EndpointState) {
        let error = match &state {
            EndpointState::Failed(error) => error.clone(),
            EndpointState::Ready | EndpointState::Closed => Error::Closed,
        };
        let mut inner = self.inner.lock();
        if inner.state != EndpointState::Ready {
            return;
        }
        inner.state = state;
        let waiting = inner.take_waiting(|_| true);
        drop(inner);
        self.finish_all(waiting, &error);
        self.pool.give_up(|copy| self.is_of(copy), &error);
        self.wake.notify_one();
    }

    /// Resolves when nothing is in flight. The line has been ended, so nothing new comes.
    pub(super) async fn drained(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.inner.lock().operations == 0 {
                return;
            }
            idle.await;
        }
    }

    // --- The owner's messages ---

    /// Follows the connection until it is ended and nothing is in flight; then closes the socket.
    pub(super) async fn follow(self: Arc<Self>, socket: Socket, mut outbox: UnboundedReceiver<Frame>) {
        let mut is_open = true;
        while !self.is_over() {
            let deadline = self.inner.lock().next_deadline;
            tokio::select! {
                Some(frame) = outbox.recv() => {
                    if let Err(error) = socket.send(frame, None).await {
                        self.fail(&error.to_string());
                    }
                }
                received = socket.receive(), if is_open => match received {
                    Ok(Some((frame, descriptor))) => self.heed(frame, descriptor),
                    Ok(None) => {
                        is_open = false;
                        self.fail("it closed the connection");
                    }
                    Err(error) => {
                        is_open = false;
                        self.fail(&error.to_string());
                    }
                },
                () = sleep_until(deadline) => self.expire(Instant::now()),
                () = self.wake.notified() => {}
            }
        }
        // The mappings go first, while the owner still counts them.
        let regions = mem::take(&mut self.inner.lock().regions);
        drop(regions);
        drop(socket);
    }

    fn is_over(&self) -> bool {
        let inner = self.inner.lock();
        inner.state != EndpointState::Ready && inner.operations == 0
    }

    fn fail(&self, cause: &str) {
        self.end(EndpointState::Failed(Error::PeerGone { peer: self.peer, cause: cause.into() }));
    }

    fn heed(self: &Arc<Self>, frame: Frame, descriptor: Option<OwnedFd>) {
        match frame {
            Frame::Mapped { region, length, slot, is_writable } => {
                let access = if is_writable { Access::ReadWrite } else { Access::Read };
                let id = RegionId(region);
                match self.attach(id, slot, ByteCount(length), access, descriptor) {
                    Ok(attached) => {
                        let known = Known::Mapped(Arc::clone(&attached));
                        let asked = self.inner.lock().regions.insert(id, known);
                        if let Some(Known::Asked(waiting)) = asked {
                            self.start(waiting.into_iter().map(|one| (Arc::clone(&attached), one)).collect());
                        }
                    }
                    Err(error) => self.forget_region(id, &error),
                }
            }
            Frame::Unknown { region } | Frame::Withdrawn { region } => {
                let region = RegionId(region);
                self.forget_region(region, &Error::NoSuchRegion { region });
            }
            Frame::Full { region } => {
                self.forget_region(RegionId(region), &Error::Busy { what: "the table of mapped regions" });
            }
            Frame::Hello(_)
            | Frame::Welcome
            | Frame::Map { .. }
            | Frame::Drained { .. }
            | Frame::Freed { .. } => self.fail("it sent what only this end sends"),
        }
    }

    fn attach(
        &self,
        id: RegionId,
        slot: u32,
        length: ByteCount,
        access: Access,
        descriptor: Option<OwnedFd>,
    ) -> Result<Arc<Attached>, Error> {
        let descriptor = descriptor.ok_or_else(|| Error::protocol("a region without its memory"))?;
        let region = Region::of_descriptor(descriptor, length, access)
            .map_err(|error| Error::transport(NAME, format!("mapping region {id}: {error}")))?;
        let attached = Attached::new(id, slot, &self.words, &self.outbox, region);
        Ok(Arc::new(attached.ok_or_else(|| Error::protocol("a count that does not exist"))?))
    }

    /// Forgets what is known of `region`; what waits for it ends with `error`.
    fn forget_region(&self, region: RegionId, error: &Error) {
        let known = self.inner.lock().regions.remove(&region);
        if let Some(Known::Asked(waiting)) = known {
            self.finish_all(waiting, error);
        }
    }
}

impl Inner {
    fn admit(&mut self, operation: &Operation) {
        self.operations += 1;
        self.bytes += operation.local.length() as u64;
        let is_first = self.next_deadline.is_none_or(|next| operation.deadline < next);
        if is_first {
            self.next_deadline = Some(operation.deadline);
        }
    }

    fn waiting(&self) -> impl Iterator<Item = &Operation> {
        self.regions.values().flat_map(|known| match known {
            Known::Asked(waiting) => waiting.as_slice(),
            Known::Mapped(_) => &[],
        })
    }

    /// Takes the operations that wait for their region and that `which` chooses.
    fn take_waiting(&mut self, which: impl Fn(&Operation) -> bool) -> Vec<Operation> {
        let mut taken = Vec::new();
        for known in self.regions.values_mut() {
            if let Known::Asked(waiting) = known {
                taken.extend(waiting.extract_if(.., |operation| which(operation)));
            }
        }
        taken
    }
}

/// Resolves at `deadline`, or never.
async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
