//! Hot path: one submission under way: its requests, the slices they were cut into, and what becomes of each.
//!
//! Invariants
//! - Each slice is with at most one transport at a time; it is tried elsewhere only after its ticket came back.
//! - After the flight was given up, no slice is started; those that are with a transport come back cancelled.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Inner;
use super::outcome::Attempts;
use super::peer::{Opened, RemoteRegion};
use super::regions::Holders;
use crate::error::Error;
use crate::memory::MemorySlice;
use crate::plan::slice::{self, Limits, Slice};
use crate::queue::transfer::Cancel;
use crate::queue::{Lane, Priority, Transfer};
use crate::request::RemotePlace;
use crate::transport::{BatchId, Direction, Operation, Progress, RemoteSlice, Ticket, TicketSink, until};
use crate::types::{ByteCount, RailId};

/// Why a flight was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    DeadlinePassed = 1,
    Cancelled = 2,
}

impl Ending {
    fn error(self) -> Error {
        match self {
            Self::DeadlinePassed => Error::DeadlinePassed,
            Self::Cancelled => Error::Cancelled,
        }
    }
}

/// A request whose local range was found and checked.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) direction: Direction,
    pub(super) local: MemorySlice,
    /// The transports that hold the local region.
    pub(super) holders: Holders,
    pub(super) remote: RemotePlace,
    /// Index of the request in the batch.
    pub(super) entry: usize,
}

impl Resolved {
    /// The local memory of a slice of it.
    fn part(&self, slice: Slice) -> MemorySlice {
        let as_usize = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        self.local.part(as_usize(slice.from), as_usize(slice.length))
    }
}

/// Where a slice is under way.
#[derive(Debug)]
struct Route {
    lane: Arc<Lane>,
    rail: RailId,
    began: Instant,
}

#[derive(Debug)]
struct Piece {
    /// Index in `requests`.
    request: usize,
    slice: Slice,
    attempts: Attempts,
    route: Option<Route>,
}

/// A submission under way.
pub(super) struct Flight {
    me: Weak<Self>,
    engine: Weak<Inner>,
    transfer: Arc<Transfer>,
    deadline: Instant,
    priority: Priority,
    requests: Vec<Resolved>,
    /// A ticket's index is an index in here.
    pieces: Mutex<Vec<Piece>>,
    /// An [`Ending`], or 0.
    ending: AtomicU8,
    given_up: Notify,
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight")
            .field("id", &self.id())
            .field("requests", &self.requests.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Flight {
    /// Operations hold the flight, so none is under way; a task that was to make some went with its runtime.
    fn drop(&mut self) {
        self.transfer.end_open(&self.as_seen(Error::Closed));
    }
}

impl Flight {
    pub(super) fn new(
        engine: &Arc<Inner>,
        transfer: Arc<Transfer>,
        deadline: Instant,
        priority: Priority,
        requests: Vec<Resolved>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            engine: Arc::downgrade(engine),
            transfer,
            deadline,
            priority,
            requests,
            pieces: Mutex::default(),
            ending: AtomicU8::new(0),
            given_up: Notify::new(),
        })
    }

    pub(super) fn id(&self) -> BatchId {
        self.transfer.id()
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn requests(&self) -> &[Resolved] {
        &self.requests
    }

    fn ending(&self) -> Option<Ending> {
        match self.ending.load(Ordering::Acquire) {
            1 => Some(Ending::DeadlinePassed),
            2 => Some(Ending::Cancelled),
            _ => None,
        }
    }

    /// Resolves when the flight is given up.
    pub(super) async fn given_up(&self) {
        until(&self.given_up, || self.ending().is_some()).await;
    }

    /// Starts no more slices, and ends those that are under way as soon as their memory is safe.
    pub(super) fn give_up(&self, ending: Ending) {
        let is_first =
            self.ending.compare_exchange(0, ending as u8, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !is_first {
            return;
        }
        self.given_up.notify_waiters();
        let mut lanes: Vec<Arc<Lane>> = Vec::new();
        for route in self.pieces.lock().iter().filter_map(|piece| piece.route.as_ref()) {
            if !lanes.iter().any(|lane| Arc::ptr_eq(lane, &route.lane)) {
                lanes.push(Arc::clone(&route.lane));
            }
        }
        for lane in lanes {
            for operation in lane.cancel(self.id()) {
                operation.complete(Err(Error::Cancelled));
            }
        }
    }

    /// The error that the caller sees: one that comes from giving up names the reason. An operation that was made and
    /// not posted when its flight was given up ends as [`Error::Closed`], with its ticket.
    fn as_seen(&self, error: Error) -> Error {
        match error {
            Error::Cancelled | Error::Closed => self.ending().map_or(error, Ending::error),
            other => other,
        }
    }

    /// The request at `index` has no slice with a transport and gets none.
    pub(super) fn refuse(&self, index: usize, error: Error) {
        let error = self.ending().map_or(error, Ending::error);
        self.end_slice(self.requests[index].entry, Err(error));
    }

    fn end_slice(&self, entry: usize, result: Result<(), Error>) {
        let is_last = self.transfer.slices_ended(entry, 1, result);
        if is_last && let Some(engine) = self.engine.upgrade() {
            engine.deadlines.remove(self);
        }
    }

    /// Cuts the request at `index` for the lane of `way` and makes its operations. The request, which has one open slice, has
    /// as many as there are operations afterwards; the caller pushes them. No operations when it was refused.
    pub(super) fn launch(
        self: &Arc<Self>,
        engine: &Inner,
        index: usize,
        way: &Opened,
        region: &RemoteRegion,
    ) -> Vec<Operation> {
        let lane = &way.lane;
        let request = &self.requests[index];
        if let Err(error) = region.check(request.direction, request.remote, request.local.length()) {
            self.refuse(index, error);
            return Vec::new();
        }
        let whole = Slice { from: 0, length: request.local.length() as u64 };
        let slices = cut_for(lane, request, whole);
        if !engine.admit_operations(slices.len()) {
            self.refuse(index, Error::Busy { what: "the engine's queue of operations" });
            return Vec::new();
        }
        engine.count_fallen_back(way, slices.len());
        self.transfer.slices_added(request.entry, u32::try_from(slices.len() - 1).unwrap_or(u32::MAX));
        let mut pieces = self.pieces.lock();
        let operation = |slice: Slice| {
            pieces.push(Piece { request: index, slice, attempts: Attempts::FIRST, route: None });
            let piece = pieces.len() - 1;
            self.operation(&mut pieces, piece, lane, region)
        };
        slices.into_iter().map(operation).collect()
    }

    /// The operation that moves a piece over `lane`, on whose way it is from now on.
    fn operation(
        self: &Arc<Self>,
        pieces: &mut [Piece],
        piece: usize,
        lane: &Arc<Lane>,
        region: &RemoteRegion,
    ) -> Operation {
        let found = &mut pieces[piece];
        let request = &self.requests[found.request];
        let local = request.part(found.slice);
        let rail = lane.take_rail(&local);
        found.route = Some(Route { lane: Arc::clone(lane), rail, began: Instant::now() });
        Operation {
            direction: request.direction,
            local,
            remote: RemoteSlice {
                region: request.remote.region,
                key: region.key(lane.transport()),
                offset: request.remote.offset + found.slice.from,
            },
            rail,
            deadline: self.deadline,
            ticket: Ticket::new(
                Arc::clone(self) as Arc<dyn TicketSink>,
                self.id(),
                u32::try_from(piece).unwrap_or(u32::MAX),
            ),
        }
    }

    /// Makes the operation of a slice that came back with an error again, for the lane of `way`: several, where that takes
    /// none of its length. The caller pushes them.
    pub(super) fn relaunch(
        self: &Arc<Self>,
        engine: &Inner,
        piece: usize,
        way: &Opened,
        region: &RemoteRegion,
    ) -> Vec<Operation> {
        let lane = &way.lane;
        let mut pieces = self.pieces.lock();
        let Piece { request, slice, attempts, .. } = pieces[piece];
        let attempts = attempts.again();
        let mut parts = cut_for(lane, &self.requests[request], slice).into_iter();
        // Of a slice there is one part at least, which is counted already.
        pieces[piece].slice = parts.next().unwrap_or(slice);
        pieces[piece].attempts = attempts;
        let first = pieces.len();
        pieces.extend(parts.map(|slice| Piece { request, slice, attempts, route: None }));
        let more = pieces.len() - first;
        engine.count_fallen_back(way, 1 + more);
        if more > 0 {
            engine.count_operations(more);
            self.transfer.slices_added(self.requests[request].entry, u32::try_from(more).unwrap_or(u32::MAX));
        }
        let all = std::iter::once(piece).chain(first..first + more);
        all.map(|piece| self.operation(&mut pieces, piece, lane, region)).collect()
    }

    /// Hands operations to their lane, unless the flight was given up meanwhile.
    pub(super) fn push(&self, lane: &Lane, operations: Vec<Operation>) {
        if self.ending().is_some() {
            operations.into_iter().for_each(|operation| operation.complete(Err(Error::Cancelled)));
            return;
        }
        lane.push(self.priority, operations);
        if self.ending().is_some() {
            // Given up between the two looks: the operations may have come after the cancelling.
            lane.cancel(self.id())
                .into_iter()
                .for_each(|operation| operation.complete(Err(Error::Cancelled)));
        }
    }

    /// What a thread that blocks for the flight may do meanwhile.
    pub(super) fn progress(&self) -> Option<Arc<dyn Progress>> {
        let lane = {
            let pieces = self.pieces.lock();
            Arc::clone(&pieces.iter().find_map(|piece| piece.route.as_ref())?.lane)
        };
        lane.endpoint().progress(self.id())
    }

    /// The slice `piece`, which is not with a transport, is given up with `error`.
    pub(super) fn abandon(&self, piece: usize, error: Error) {
        let request = self.pieces.lock()[piece].request;
        self.refuse(request, error);
    }

    /// Index of the request that `piece` is a slice of.
    pub(super) fn request_of(&self, piece: usize) -> usize {
        self.pieces.lock()[piece].request
    }
}

/// Cuts a part of `request` into what `lane` takes.
fn cut_for(lane: &Lane, request: &Resolved, part: Slice) -> Vec<Slice> {
    let limits = Limits {
        slice_bytes: lane.wanted_slice_bytes(),
        operation_bytes_max: lane.capabilities().operation_bytes_max.get(),
        local_chunk_bytes: None,
        remote_chunk_bytes: None,
    };
    let (local, remote) = (request.local.offset() + part.from, request.remote.offset + part.from);
    let within = slice::cut(part.length, local, remote, limits);
    within.map(|slice| Slice { from: part.from + slice.from, ..slice }).collect()
}

impl TicketSink for Flight {
    fn completed(&self, index: u32, result: Result<(), Error>) {
        let piece = usize::try_from(index).unwrap_or(usize::MAX);
        let (request, slice, attempts, route) = {
            let mut pieces = self.pieces.lock();
            let found = &mut pieces[piece];
            if let Err(error) = &result {
                found.attempts.failed(error);
            }
            (found.request, found.slice, found.attempts, found.route.take())
        };
        let request = &self.requests[request];
        let engine = self.engine.upgrade();
        if let Some(route) = &route {
            route.lane.ended(route.rail, slice.length, route.began, result.is_ok());
        }
        if let (Some(engine), Some(route)) = (&engine, &route) {
            let length = ByteCount(slice.length);
            engine.note_end(request.remote, &route.lane, request.direction, length, result.as_ref().err());
        }
        match (result, &engine, self.me.upgrade()) {
            (Err(error), Some(engine), Some(me))
                if self.ending().is_none() && engine.may_retry(&error, attempts, self.deadline) =>
            {
                tracing::debug!(peer = %request.remote.peer, attempts = attempts.begun, %error,
                    "a slice is tried again");
                engine.retry(me, piece, attempts, error);
            }
            (result, ..) => self.end_slice(request.entry, result.map_err(|error| self.as_seen(error))),
        }
        if let Some(engine) = &engine {
            engine.release_operation();
        }
        if let Some(route) = route {
            route.lane.pump();
        }
    }
}

/// What a handle gives up its flight with.
#[derive(Debug)]
pub(super) struct Canceller {
    engine: Weak<Inner>,
    flight: Weak<Flight>,
}

impl Canceller {
    pub(super) fn new(engine: &Arc<Inner>, flight: &Arc<Flight>) -> Self {
        Self { engine: Arc::downgrade(engine), flight: Arc::downgrade(flight) }
    }
}

impl Cancel for Canceller {
    fn cancel(&self, _: &Transfer) {
        if let Some(flight) = self.flight.upgrade() {
            if let Some(engine) = self.engine.upgrade() {
                engine.deadlines.remove(&flight);
            }
            flight.give_up(Ending::Cancelled);
        }
    }

    fn progress(&self, _: &Transfer) -> Option<Arc<dyn Progress>> {
        self.flight.upgrade()?.progress()
    }
}
