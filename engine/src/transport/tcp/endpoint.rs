//! All data connections to one peer: chooses one for each operation, and ends operations by their deadlines. Connections are
//! made, and made again, by [`dialling`], and left by [`silence`] when they are dead.

mod dialling;
mod silence;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use super::frame::{Header, Kind};
use super::lane::{Lane, Load, Posted};
use super::poller::{Loan, Pollers};
use super::sends::{Policy, State as SendsState};
use super::tasks::Tasks;
use super::{NAME, RAIL, TcpConfig};
use crate::error::Error;
use crate::link::{Links, Token};
use crate::transport::{
    BatchId, BoxFuture, Direction, Endpoint, EndpointState, Operation, Progress, RailLoad,
};
use crate::types::{ByteCount, PeerId};

/// Bytes under way on the connections of a transfer beyond which the pollers, several of which work in parallel, are the
/// better ones.
const GUEST_BYTES_MAX: u64 = 256 << 10;

/// What a peer granted.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub(super) token: Token,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) lanes: usize,
    /// Longest operation that both ends take.
    pub(super) operation_bytes_max: u64,
}

/// The way to one peer.
#[derive(Debug)]
pub(super) struct TcpEndpoint {
    peer: PeerId,
    links: Arc<Links>,
    pollers: Arc<Pollers>,
    config: TcpConfig,
    policy: Policy,
    granted: Granted,
    /// Places of the connections; one that failed is empty until it is dialled again. Read for each post.
    lanes: RwLock<Vec<Option<Arc<Lane>>>>,
    /// Why nothing is taken any more. Held for a look-up.
    over: Mutex<Option<EndpointState>>,
    load: Arc<Load>,
    next_operation: AtomicU64,
    /// When the reaper looks again by itself; it is told of earlier deadlines only. Held for a look-up.
    armed: Mutex<Option<Instant>>,
    signals: Arc<Signals>,
    tasks: Tasks,
}

/// What the endpoint's tasks wait for without holding the endpoint: it ends when its owners drop it.
#[derive(Debug, Default)]
struct Signals {
    /// There is an earlier deadline, or it is over.
    rearm: Notify,
    /// Something was posted.
    busy: Notify,
    /// It is over.
    stop: Notify,
}

impl TcpEndpoint {
    fn over(&self) -> Option<Error> {
        self.over.lock().as_ref().and_then(EndpointState::error)
    }

    /// Ends all operations with what `state` says, and takes no more.
    pub(super) fn end(&self, state: EndpointState) {
        let error = state.error().unwrap_or(Error::Closed);
        {
            let mut over = self.over.lock();
            if over.is_some() {
                return;
            }
            *over = Some(state);
        }
        let lanes = std::mem::take(&mut *self.lanes.write());
        for lane in lanes.into_iter().flatten() {
            lane.fail(&error);
        }
        self.signals.stop.notify_waiters();
        self.signals.rearm.notify_one();
    }

    /// The request that starts `operation`, or why it cannot start.
    fn request(&self, operation: &Operation) -> Result<Header, Error> {
        let length = operation.local.length() as u64;
        if length > self.granted.operation_bytes_max {
            let limit = ByteCount(self.granted.operation_bytes_max);
            return Err(Error::TooLarge { what: "an operation", length: ByteCount(length), limit });
        }
        if operation.deadline <= Instant::now() {
            return Err(Error::DeadlinePassed);
        }
        let region = operation.remote.region;
        let Ok(key) = <[u8; 8]>::try_from(&*operation.remote.key) else {
            return Err(Error::NoSuchRegion { region });
        };
        let is_checked = self.config.payload_checksum;
        let (kind, checksum) = match operation.direction {
            Direction::Read if !operation.local.region().is_writable() => {
                return Err(Error::ReadOnly { region: operation.local.id() });
            }
            Direction::Read => (Kind::Read, 0),
            Direction::Write if is_checked => (Kind::Write, operation.local.checksum()),
            Direction::Write => (Kind::Write, 0),
        };
        Ok(Header {
            kind,
            reason: None,
            is_checked,
            operation: self.next_operation.fetch_add(1, Ordering::Relaxed),
            region,
            registration: u64::from_le_bytes(key),
            offset: operation.remote.offset,
            length,
            checksum,
        })
    }

    fn has_room(&self, length: usize) -> bool {
        let (operations, bytes) =
            (self.load.operations.load(Ordering::Relaxed), self.load.bytes.load(Ordering::Relaxed));
        operations < self.config.operations_max
            // Alone, an operation of any length is taken.
            && (bytes == 0 || bytes + length as u64 <= self.config.in_flight_bytes_max.get())
    }

    /// Makes the reaper look at `deadline`.
    fn arm(&self, deadline: Instant) {
        let mut armed = self.armed.lock();
        if armed.is_none_or(|armed| deadline < armed) {
            *armed = Some(deadline);
            drop(armed);
            self.signals.rearm.notify_one();
        }
    }

    /// Ends what is past its deadline, and says when to look again.
    fn expire(&self) -> Option<Instant> {
        let now = Instant::now();
        let armed = *self.armed.lock();
        if armed.is_none_or(|armed| armed > now) {
            return armed;
        }
        let lanes: Vec<_> = self.lanes.read().iter().flatten().cloned().collect();
        for lane in &lanes {
            lane.give_up(|operation| operation.deadline <= now, &Error::DeadlinePassed);
        }
        // Locked over the search: an operation that is posted meanwhile arms after it, also on a lane that has just
        // come.
        let mut armed = self.armed.lock();
        let lanes: Vec<_> = self.lanes.read().iter().flatten().cloned().collect();
        *armed = lanes.iter().filter_map(|lane| lane.earliest_deadline()).min();
        *armed
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        self.end(EndpointState::Closed);
    }
}

/// Ends operations by their deadlines.
async fn reap(endpoint: Weak<TcpEndpoint>, signals: Arc<Signals>) {
    loop {
        let next = match endpoint.upgrade() {
            Some(endpoint) if endpoint.over().is_none() => endpoint.expire(),
            _ => return,
        };
        let rearm = signals.rearm.notified();
        match next {
            Some(next) => drop(tokio::time::timeout_at(next.into(), rearm).await),
            None => rearm.await,
        }
    }
}

impl Endpoint for TcpEndpoint {
    fn post(&self, operations: &mut VecDeque<Operation>) {
        if let Some(error) = self.over() {
            return operations.drain(..).for_each(|operation| operation.complete(Err(error.clone())));
        }
        let lanes: Vec<_> = self.lanes.read().iter().flatten().cloned().collect();
        let mut staged: Vec<Vec<Posted>> = lanes.iter().map(|_| Vec::new()).collect();
        let mut ended = Vec::new();
        let mut earliest: Option<Instant> = None;
        while operations.front().is_some_and(|operation| self.has_room(operation.local.length())) {
            let Some(operation) = operations.pop_front() else { break };
            let least = (0..lanes.len()).min_by_key(|&index| lanes[index].load.bytes.load(Ordering::Relaxed));
            match (least, self.request(&operation)) {
                (Some(index), Ok(request)) => {
                    self.load.add(operation.local.length());
                    lanes[index].load.add(operation.local.length());
                    earliest = Some(earliest.map_or(operation.deadline, |at| at.min(operation.deadline)));
                    staged[index].push(Posted { request, operation });
                }
                (_, Err(error)) => ended.push((operation, error)),
                (None, Ok(_)) => ended.push((operation, self.no_lane())),
            }
        }
        for (lane, posted) in lanes.iter().zip(staged).filter(|(_, posted)| !posted.is_empty()) {
            for Posted { operation, .. } in lane.post(posted) {
                self.load.subtract(operation.local.length());
                ended.push((operation, self.no_lane()));
            }
        }
        if let Some(earliest) = earliest {
            self.arm(earliest);
            self.signals.busy.notify_one();
        }
        for (operation, error) in ended {
            operation.complete(Err(error));
        }
    }

    fn cancel(&self, batch: BatchId) {
        let lanes: Vec<_> = self.lanes.read().iter().flatten().cloned().collect();
        for lane in lanes {
            lane.give_up(|operation| operation.ticket.batch() == batch, &Error::Cancelled);
        }
    }

    fn state(&self) -> EndpointState {
        self.over.lock().clone().unwrap_or(EndpointState::Ready)
    }

    fn operation_bytes_max(&self) -> ByteCount {
        ByteCount(self.granted.operation_bytes_max)
    }

    fn load(&self) -> Vec<RailLoad> {
        let operations = self.load.operations.load(Ordering::Relaxed);
        let bytes = self.load.bytes.load(Ordering::Relaxed);
        let credits = self.config.operations_max.saturating_sub(operations);
        vec![RailLoad { rail: RAIL, operations, bytes, credits }]
    }

    fn progress(&self, batch: BatchId) -> Option<Arc<dyn Progress>> {
        let mut connections: Vec<_> =
            self.lanes.read().iter().flatten().filter(|lane| lane.holds(batch)).cloned().collect();
        let bytes: u64 = connections.iter().map(|lane| lane.load.bytes.load(Ordering::Relaxed)).sum();
        if bytes > GUEST_BYTES_MAX {
            return None;
        }
        let poller = Arc::clone(connections.first()?.poller()?);
        connections.retain(|lane| lane.poller().is_some_and(|other| Arc::ptr_eq(other, &poller)));
        Some(Arc::new(Loan { poller, connections }))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.end(EndpointState::Closed);
        Box::pin(async {
            self.tasks.wait().await;
            self.pollers.until_graves_are_gone().await;
        })
    }
}

impl TcpEndpoint {
    /// How each connection sends.
    pub(super) fn zero_copy(&self) -> Vec<SendsState> {
        self.lanes.read().iter().flatten().map(|lane| lane.zero_copy()).collect()
    }

    /// Why an operation finds no connection.
    fn no_lane(&self) -> Error {
        self.over().unwrap_or_else(|| Error::transport(NAME, "no data connection to the peer is up"))
    }
}
