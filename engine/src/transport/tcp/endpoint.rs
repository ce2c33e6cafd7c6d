//! All data connections to one peer: chooses one for each operation, ends operations by their deadlines, and dials
//! again where a connection failed.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, mpsc};

use super::frame::{Header, Kind};
use super::lane::{Lane, Load, Posted};
use super::poller::{Loan, Pollers};
use super::sends::{Policy, State as SendsState};
use super::tasks::Tasks;
use super::{NAME, RAIL, TcpConfig};
use crate::error::Error;
use crate::link::{Links, Stream, Token};
use crate::transport::{
    BatchId, BoxFuture, Direction, Endpoint, EndpointState, Operation, Progress, RailLoad,
};
use crate::types::{ByteCount, PeerId};

/// Shortest and longest pause before a failed connection is dialled again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Time for the other connections when one is up: what begins on few would stay there.
const MOMENT: Duration = Duration::from_secs(1);
/// Attempts without any connection after which the endpoint has failed.
const ATTEMPTS_MAX: u32 = 4;

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
    /// It is over.
    stop: Notify,
}

impl TcpEndpoint {
    /// Dials. One connection is enough to begin: the others get [`MOMENT`] from then on, and follow later if that is too
    /// short.
    pub(super) async fn dial(
        peer: PeerId,
        links: Arc<Links>,
        pollers: Arc<Pollers>,
        config: TcpConfig,
        policy: Policy,
        granted: Granted,
    ) -> Result<Arc<Self>, Error> {
        let endpoint = Arc::new(Self {
            peer,
            links,
            pollers,
            config,
            policy,
            lanes: RwLock::new(vec![None; granted.lanes]),
            granted,
            over: Mutex::new(None),
            load: Arc::default(),
            next_operation: AtomicU64::new(1),
            armed: Mutex::new(None),
            signals: Arc::default(),
            tasks: Tasks::default(),
        });
        let runtime = endpoint.links.runtime();
        endpoint.tasks.spawn(runtime, reap(Arc::downgrade(&endpoint), Arc::clone(&endpoint.signals)));
        // One message for each place.
        let (tell, mut told) = mpsc::unbounded_channel();
        for place in 0..endpoint.granted.lanes {
            let (weak, signals) = (Arc::downgrade(&endpoint), Arc::clone(&endpoint.signals));
            endpoint.tasks.spawn(runtime, keep(weak, signals, place, tell.clone()));
        }
        drop(tell);
        let mut refused = Error::transport(NAME, "the peer grants no connection");
        while let Some(dialled) = told.recv().await {
            match dialled {
                Ok(()) => {
                    let all = async { while told.recv().await.is_some() {} };
                    // Whoever has not told goes on.
                    let _ = tokio::time::timeout(MOMENT, all).await;
                    return Ok(endpoint);
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn over(&self) -> Option<Error> {
        match &*self.over.lock() {
            Some(EndpointState::Failed(error)) => Some(error.clone()),
            Some(_) => Some(Error::Closed),
            None => None,
        }
    }

    /// Ends all operations with what `state` says, and takes no more.
    pub(super) fn end(&self, state: EndpointState) {
        let error = match &state {
            EndpointState::Failed(error) => error.clone(),
            EndpointState::Ready | EndpointState::Closed => Error::Closed,
        };
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

    /// Puts a new connection in its place.
    fn put(&self, place: usize, stream: Stream) -> Result<Option<Arc<Lane>>, Error> {
        let lane = start_lane(stream, &self.links, &self.load, &self.pollers, &self.policy)?;
        let mut lanes = self.lanes.write();
        let Some(slot) = lanes.get_mut(place) else { return Ok(None) };
        *slot = Some(Arc::clone(&lane));
        Ok(Some(lane))
    }

    /// Empties a place, and says how to fill it again.
    fn redial(&self, place: usize) -> impl Future<Output = Result<Stream, Error>> + Send + 'static {
        if let Some(slot) = self.lanes.write().get_mut(place) {
            *slot = None;
        }
        let (links, peer, granted) = (Arc::clone(&self.links), self.peer, self.granted.clone());
        let timeout = self.config.connect_timeout;
        async move {
            let deadline = Instant::now() + timeout;
            links.dial_stream(peer, &granted.addresses, granted.token, deadline).await
        }
    }

    /// Gives up when no connection is left and none can be made.
    fn dial_failed(&self, error: &Error, attempts: u32) {
        tracing::debug!(peer = %self.peer, %error, attempts, "a data connection is not made again");
        let is_final = matches!(error, Error::PeerGone { .. } | Error::Refused { .. });
        let is_alone = self.lanes.read().iter().all(Option::is_none);
        if is_alone && (is_final || attempts >= ATTEMPTS_MAX) {
            let error = match error {
                Error::PeerGone { .. } => error.clone(),
                error => Error::transport(NAME, error.to_string()),
            };
            self.end(EndpointState::Failed(error));
        }
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

/// Makes a lane of a stream of the runtime's.
fn start_lane(
    stream: Stream,
    links: &Links,
    total: &Arc<Load>,
    pollers: &Pollers,
    policy: &Policy,
) -> Result<Arc<Lane>, Error> {
    let _context = links.runtime().enter();
    let lane = stream.detach().and_then(|stream| {
        let sends = policy.start(&stream);
        Lane::start(stream, sends, total, pollers.next())
    });
    lane.map_err(|error| Error::transport(NAME, error.to_string()))
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

/// Dials the connection at `place`, tells how that went, watches it, and dials again when it failed.
async fn keep(
    endpoint: Weak<TcpEndpoint>,
    signals: Arc<Signals>,
    place: usize,
    tell: mpsc::UnboundedSender<Result<(), Error>>,
) {
    let mut tell = Some(tell);
    let mut attempts = 0;
    loop {
        let stop = signals.stop.notified();
        let dial = match endpoint.upgrade() {
            Some(endpoint) if endpoint.over().is_none() => endpoint.redial(place),
            _ => return,
        };
        let pause = (PAUSE.0 * 2_u32.saturating_pow(attempts)).min(PAUSE.1);
        let pause = if tell.is_some() { Duration::ZERO } else { pause };
        let dialled = async {
            tokio::time::sleep(pause).await;
            dial.await
        };
        let dialled = tokio::select! {
            dialled = dialled => dialled,
            () = stop => return,
        };
        let Some(found) = endpoint.upgrade() else { return };
        let lane = dialled.and_then(|stream| found.put(place, stream));
        match (tell.take(), &lane) {
            // Nobody may wait any more: another was the first.
            (Some(tell), lane) => drop(tell.send(lane.as_ref().map(drop).map_err(Error::clone))),
            (None, Err(error)) => {
                attempts += 1;
                found.dial_failed(error, attempts);
            }
            (None, Ok(_)) => {}
        }
        drop(found);
        if let Ok(Some(lane)) = lane {
            attempts = 0;
            lane.until_over().await;
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
