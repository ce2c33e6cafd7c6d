//! Hot path: one data connection to a peer, with the operations that go over it.
//!
//! Invariants
//! - Local memory is touched under the lock of the outbox or the inbox only, in system calls that do not wait. So an
//!   operation is given up by taking it from both; after that it can be completed at once.
//! - An operation is completed by whoever took it out of `pending`, with no lock held.
//!
//! Lock order: outbox or inbox, then state.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::sync::Notify;

use super::frame::{Header, Kind};
use super::inbox::{Handler, Inbox, Incoming, Place};
use super::outbox::{Outbox, Outgoing, Payload};
use super::{NAME, TURN};
use crate::error::Error;
use crate::link::Stream;
use crate::transport::{Direction, Operation};

/// Bytes that whoever posts sends itself; more are sent by the lane's task, beside the other lanes.
const INLINE_BYTES: usize = 16 << 10;

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
    stream: Stream,
    /// What is under way on the lane, and on all lanes of the endpoint.
    pub(super) load: Load,
    total: Arc<Load>,
    /// Operations that have not ended. Held for a look-up.
    state: Mutex<State>,
    /// Frames to be sent. Held for a system call that does not wait.
    outbox: Mutex<Outbox>,
    /// The frame that is being received. Held for a system call that does not wait.
    inbox: Mutex<Inbox>,
    /// Wakes the task: something is to be sent, or the lane is over.
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    pending: HashMap<u64, Operation>,
    /// Requests that the outbox does not have yet.
    entry: VecDeque<Outgoing>,
    over: Option<Error>,
}

impl Lane {
    pub(super) fn new(stream: Stream, total: &Arc<Load>) -> Arc<Self> {
        Arc::new(Self {
            stream,
            load: Load::default(),
            total: Arc::clone(total),
            state: Mutex::default(),
            outbox: Mutex::default(),
            inbox: Mutex::default(),
            wake: Notify::new(),
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.state.lock().over.is_some()
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
            // An error is met again by the task, which ends the lane.
            if is_short && outbox.send_some(&self.stream).is_ok() && outbox.is_empty() {
                return Vec::new();
            }
        }
        self.wake.notify_one();
        Vec::new()
    }

    /// Ends the operations that `is_given_up` says with `error`.
    pub(super) fn give_up(&self, is_given_up: impl Fn(&Operation) -> bool, error: &Error) {
        let mut ended: HashMap<u64, Operation> = {
            let mut state = self.state.lock();
            let ended: HashMap<_, _> =
                state.pending.extract_if(|_, operation| is_given_up(operation)).collect();
            state.entry.retain(|frame| !ended.contains_key(&frame.operation()));
            ended
        };
        if ended.is_empty() {
            return;
        }
        self.outbox.lock().give_up(|frame| ended.contains_key(&frame.operation()));
        self.inbox.lock().give_up(|incoming| ended.contains_key(&incoming.header.operation));
        for (_, operation) in ended.drain() {
            self.finish(operation, Err(error.clone()));
        }
    }

    /// Ends the lane and all its operations.
    pub(super) fn fail(&self, error: &Error) {
        let State { pending, entry, .. } = {
            let mut state = self.state.lock();
            if state.over.is_some() {
                return;
            }
            let over = Some(error.clone());
            std::mem::replace(&mut *state, State { over, ..State::default() })
        };
        drop(entry);
        self.outbox.lock().clear();
        *self.inbox.lock() = Inbox::default();
        self.stream.shut_down();
        for operation in pending.into_values() {
            self.finish(operation, Err(error.clone()));
        }
        self.wake.notify_one();
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

    /// Drives the lane until it is over.
    pub(super) async fn drive(&self) {
        if let Err(error) = self.exchange().await {
            tracing::debug!(%error, "a data connection ended");
            // What the peer did wrong, another connection or transport may do right.
            let error = match error {
                Error::Protocol { cause } => Error::transport(NAME, cause),
                error => error,
            };
            self.fail(&error);
        }
    }

    async fn exchange(&self) -> Result<(), Error> {
        // Encryption may hold bytes that the socket does not show any more.
        let mut holds_more = false;
        while !self.is_over() {
            let is_sent = self.send().map_err(|error| Error::transport(NAME, error.to_string()))?;
            if holds_more {
                tokio::task::yield_now().await;
            } else {
                let interest =
                    if is_sent { Interest::READABLE } else { Interest::READABLE | Interest::WRITABLE };
                let ready = tokio::select! {
                    () = self.wake.notified() => continue,
                    ready = self.stream.ready(interest) => ready,
                };
                if !ready.map_err(|error| Error::transport(NAME, error.to_string()))?.is_readable() {
                    continue;
                }
            }
            for _ in 0..TURN {
                holds_more = self.receive()?;
                if !holds_more {
                    break;
                }
            }
            holds_more &= self.stream.as_plain().is_none();
        }
        Ok(())
    }

    /// Sends for one turn; returns whether nothing is left.
    fn send(&self) -> std::io::Result<bool> {
        for _ in 0..TURN {
            let mut outbox = self.outbox.lock();
            outbox.append(&mut self.state.lock().entry);
            if outbox.is_empty() {
                return Ok(true);
            }
            if !outbox.send_some(&self.stream)? {
                return Ok(outbox.is_empty());
            }
        }
        Ok(false)
    }

    /// Receives once; returns whether more may be there.
    fn receive(&self) -> Result<bool, Error> {
        let mut ended = Vec::new();
        let received = {
            let mut inbox = self.inbox.lock();
            inbox.receive(&self.stream, &mut Answers { state: &self.state, ended: &mut ended })
        };
        for (id, operation, result) in ended {
            if operation.direction == Direction::Write {
                // A peer that answers before it has everything does not make us send memory that is not ours any more.
                let is_this = |frame: &Outgoing| frame.operation() == id;
                self.outbox.lock().give_up(is_this);
                self.state.lock().entry.retain(|frame| !is_this(frame));
            }
            self.finish(operation, result);
        }
        received
    }
}

type Ended = (u64, Operation, Result<(), Error>);

/// What is done with answers.
struct Answers<'a> {
    state: &'a Mutex<State>,
    ended: &'a mut Vec<Ended>,
}

impl Handler for Answers<'_> {
    fn begun(&mut self, header: Header) -> Result<Place, Error> {
        let state = self.state.lock();
        let wanted = match header.kind {
            Kind::Data => Direction::Read,
            Kind::Applied => Direction::Write,
            Kind::Refused => return Ok(Place::Nowhere),
            Kind::Read | Kind::Write => return Err(Error::protocol("a request where answers are expected")),
        };
        // One that was given up is answered too.
        let Some(operation) = state.pending.get(&header.operation) else { return Ok(Place::Nowhere) };
        if operation.direction != wanted || operation.local.length() as u64 != header.length {
            return Err(Error::protocol("an answer that does not fit its operation"));
        }
        match wanted {
            Direction::Read => Ok(Place::Memory(operation.local.clone(), None)),
            Direction::Write => Ok(Place::Nowhere),
        }
    }

    fn arrived(&mut self, incoming: Incoming) -> Result<(), Error> {
        let header = incoming.header;
        let Some(operation) = self.state.lock().pending.remove(&header.operation) else { return Ok(()) };
        // Before the end of the operation, whose memory may be unregistered then.
        drop(incoming);
        let result = match (header.kind, header.reason) {
            (_, Some(reason)) => Err(header.error(reason, operation.remote.offset)),
            (Kind::Data, None) if header.is_checked => match operation.local.checksum() {
                found if found == header.checksum => Ok(()),
                found => Err(Error::Corrupt { found, wanted: header.checksum }),
            },
            _ => Ok(()),
        };
        self.ended.push((header.operation, operation, result));
        Ok(())
    }
}
