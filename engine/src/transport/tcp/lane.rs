//! Hot path: one data connection to a peer, with the operations that go over it. What a poller does with it is a [`turn`].
//!
//! Invariants
//! - Local memory is touched under the lock of the outbox or the inbox only, in system calls that do not wait. So an
//!   operation is given up by taking it from both; after that it can be completed at once, unless the kernel may still
//!   read what was sent without a copy (see `sends`): then it is kept until the kernel is done.
//! - An operation is completed by whoever took it out of `pending`, with no lock held.
//!
//! Lock order: outbox or inbox, then state.

mod silence;
mod turn;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::watch;

use self::silence::Silence;
use super::NAME;
use super::frame::Header;
use super::inbox::Inbox;
use super::outbox::{Outbox, Outgoing, Payload};
use super::poller::{Lent, Poller, Watch};
use super::sends::{Grave, Sends, State as SendsState};
use crate::error::Error;
use crate::link::DataStream;
use crate::transport::{BatchId, Direction, Operation};

/// Bytes that whoever posts sends itself: the hand-over to another thread costs as much. More are sent by the lane's
/// poller, beside the other lanes.
const INLINE_BYTES: usize = 256 << 10;

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) operations: AtomicUsize,
    pub(super) bytes: AtomicU64,
}

impl Load {
    pub(super) fn add(&self, bytes: usize) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, bytes: usize) {
        self.operations.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

/// An operation with the request that starts it.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) request: Header,
    pub(super) operation: Operation,
}

/// A data connection that was dialled here.
#[derive(Debug)]
pub(super) struct Lane {
    me: Weak<Self>,
    stream: DataStream,
    /// What is under way on the lane, and on all lanes of the endpoint.
    pub(super) load: Load,
    total: Arc<Load>,
    /// Operations that have not ended. Held for a look-up.
    state: Mutex<State>,
    /// Frames to be sent. Held for a system call that does not wait.
    outbox: Mutex<Outbox>,
    /// The frame that is being received. Held for a system call that does not wait.
    inbox: Mutex<Inbox>,
    /// What was seen of it last. Held for a look.
    silence: Mutex<Silence>,
    /// Set once, when it is made.
    watch: OnceLock<Watch>,
    /// Whether it is over.
    ended: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    pending: HashMap<u64, Operation>,
    /// Requests that the outbox does not have yet.
    entry: VecDeque<Outgoing>,
    over: Option<Error>,
}

impl Lane {
    /// A lane that `poller` looks after.
    ///
    /// # Errors
    /// When the poller takes no more.
    pub(super) fn start(
        stream: DataStream,
        sends: Sends,
        total: &Arc<Load>,
        poller: &Arc<Poller>,
    ) -> io::Result<Arc<Self>> {
        let lane = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            stream,
            load: Load::default(),
            total: Arc::clone(total),
            state: Mutex::default(),
            outbox: Mutex::new(Outbox::new(sends)),
            inbox: Mutex::default(),
            silence: Mutex::default(),
            watch: OnceLock::new(),
            ended: watch::Sender::new(false),
        });
        let watch = poller.watch(&lane)?;
        // Set nowhere else.
        let _ = lane.watch.set(watch);
        Ok(lane)
    }

    /// Resolves when the lane is over.
    pub(super) async fn until_over(&self) {
        // The sender is a field of `self`, so it is not dropped.
        let _ = self.ended.subscribe().wait_for(|is_over| *is_over).await;
    }

    /// Whether it has operations of `batch`.
    pub(super) fn holds(&self, batch: BatchId) -> bool {
        self.state.lock().pending.values().any(|operation| operation.ticket.batch() == batch)
    }

    /// Who works on it.
    pub(super) fn poller(&self) -> Option<&Arc<Poller>> {
        self.watch.get().map(Watch::poller)
    }

    /// Starts operations, which are counted in both loads already. Hands them back when the lane is over.
    pub(super) fn post(&self, posted: Vec<Posted>) -> Vec<Posted> {
        let mut bytes = 0;
        {
            let mut state = self.state.lock();
            if state.over.is_some() {
                return posted;
            }
            for Posted { request, operation } in posted {
                let payload = match operation.direction {
                    Direction::Read => Payload::None,
                    Direction::Write => Payload::Memory(operation.local.clone(), None),
                };
                let frame = Outgoing::new(&request, payload);
                bytes += frame.length();
                state.entry.push_back(frame);
                state.pending.insert(request.operation, operation);
            }
        }
        if let Some(mut outbox) = self.outbox.try_lock() {
            let is_short = outbox.is_empty() && bytes <= INLINE_BYTES;
            outbox.append(&mut self.state.lock().entry);
            // An error is met again by the poller, which ends the lane.
            while is_short && !outbox.is_idle() && outbox.send_some(&self.stream).is_ok() {}
            let (is_idle, is_blocked) = (outbox.is_idle(), outbox.is_blocked());
            drop(outbox);
            if is_blocked {
                self.want_room();
            }
            if is_idle {
                return Vec::new();
            }
        }
        self.wake();
        Vec::new()
    }

    fn want_room(&self) {
        if let Some(watch) = self.watch.get() {
            watch.want_room(self);
        }
    }

    fn wake(&self) {
        if let Some(watch) = self.watch.get() {
            watch.wake();
        }
    }

    /// Ends the operations that `is_given_up` says with `error`.
    pub(super) fn give_up(&self, is_given_up: impl Fn(&Operation) -> bool, error: &Error) {
        let mut ended: HashMap<u64, Operation> =
            self.state.lock().pending.extract_if(|_, operation| is_given_up(operation)).collect();
        if ended.is_empty() {
            return;
        }
        self.unsend(|frame| ended.contains_key(&frame.operation()));
        self.inbox.lock().give_up(|incoming| ended.contains_key(&incoming.header.operation));
        for (id, operation) in ended.drain() {
            self.finish_when_free(id, operation, Err(error.clone()));
        }
    }

    /// Sends nothing more of the frames that `is_meant` says. First where they come from: whoever sends moves them from there
    /// to the outbox, and one that is moved after the outbox was looked through would go out.
    fn unsend(&self, is_meant: impl Fn(&Outgoing) -> bool) {
        self.state.lock().entry.retain(|frame| !is_meant(frame));
        self.outbox.lock().give_up(is_meant);
    }

    /// Whether payload goes without a copy.
    pub(super) fn zero_copy(&self) -> SendsState {
        self.outbox.lock().sends().state()
    }

    /// Ends the lane and all its operations.
    pub(super) fn fail(&self, error: &Error) {
        self.fail_if(error, |_| true);
    }

    /// The same if `is_meant` says so of its operations; returns whether it did.
    fn fail_if(&self, error: &Error, is_meant: impl FnOnce(&HashMap<u64, Operation>) -> bool) -> bool {
        let State { pending, entry, .. } = {
            let mut state = self.state.lock();
            if state.over.is_some() || !is_meant(&state.pending) {
                return false;
            }
            let over = Some(error.clone());
            std::mem::replace(&mut *state, State { over, ..State::default() })
        };
        drop(entry);
        self.outbox.lock().clear();
        *self.inbox.lock() = Inbox::default();
        self.stream.shut_down();
        self.bury();
        for (id, operation) in pending {
            self.finish_when_free(id, operation, Err(error.clone()));
        }
        self.ended.send_replace(true);
        true
    }

    /// Leaves to the poller what the kernel may still read.
    fn bury(&self) {
        let (Some(socket), Some(watch)) = (self.stream.as_plain(), self.watch.get()) else { return };
        if self.outbox.lock().sends().end(socket)
            && let Some(me) = self.me.upgrade()
        {
            watch.poller().bury(me);
        }
    }

    /// The earliest deadline of an operation.
    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        self.state.lock().pending.values().map(|operation| operation.deadline).min()
    }

    fn finish(&self, operation: Operation, result: Result<(), Error>) {
        let length = operation.local.length();
        self.load.subtract(length);
        self.total.subtract(length);
        operation.complete(result);
    }

    /// Ends an operation that nothing but the kernel may touch any more, now or when the kernel is done.
    fn finish_when_free(&self, id: u64, operation: Operation, result: Result<(), Error>) {
        let (free, due) = {
            let mut outbox = self.outbox.lock();
            let sends = outbox.sends();
            (sends.park(id, operation, result), sends.arm(Instant::now()))
        };
        if let (Some(due), Some(watch)) = (due, self.watch.get()) {
            watch.wake_at(due);
        }
        if let Some((operation, result)) = free {
            self.finish(operation, result);
        }
    }

    /// Ends the operations that the kernel is done with.
    fn read_notices(&self) -> Result<(), Error> {
        let Some(socket) = self.stream.as_plain() else { return Ok(()) };
        let freed = self.outbox.lock().sends().read_notices(socket);
        let freed = freed.map_err(|error| Error::transport(NAME, error.to_string()))?;
        freed.into_iter().for_each(|(operation, result)| self.finish(operation, result));
        Ok(())
    }
}

impl Grave for Lane {
    fn visit(&self) -> bool {
        if let Err(error) = self.read_notices() {
            // Looked at again: the kernel may not be done.
            tracing::error!(%error, "the notices of a data connection cannot be read");
        }
        !self.outbox.lock().sends().is_open()
    }
}

impl Lent for Lane {
    fn watch(&self) -> Option<&Watch> {
        self.watch.get()
    }

    fn is_over(&self) -> bool {
        self.state.lock().over.is_some()
    }
}
