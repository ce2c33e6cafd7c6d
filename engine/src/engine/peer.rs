//! Another process: its link, one way to it for each transport, and what is known of its regions.
//!
//! The ways stand in the order of the engine's transports, the best first. A way that fails is out for a time that grows
//! ([`CoolDown`]); the next one carries what it would have carried. So is a rail that ends connections ([`Rails`]), while the
//! others of its transport go on.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::descriptor::RegionDescriptor;
use crate::error::Error;
use crate::link::Link;
use crate::plan::cool_down::CoolDown;
use crate::queue::Lane;
use crate::queue::rails::Rails;
use crate::request::RemotePlace;
use crate::transport::{Direction, EndpointState, Transport};
use crate::types::{ByteCount, PeerId, RegionId};

/// Descriptions that are kept of one peer's regions.
const REGIONS_KEPT: usize = 16_384;
/// How long a way that is being connected is waited for before the next best is connected beside it: longer than one takes that
/// works, and shorter than anybody waits gladly.
const HEAD_START: Duration = Duration::from_millis(500);

/// A peer's region as this process knows it.
#[derive(Debug)]
pub(super) struct RemoteRegion {
    length: ByteCount,
    is_writable: bool,
    keys: HashMap<String, Arc<[u8]>>,
}

impl RemoteRegion {
    /// What its owner described, as these transports understand it.
    pub(super) fn new(descriptor: RegionDescriptor, transports: &[Arc<dyn Transport>]) -> Self {
        let RegionDescriptor { length, is_writable, keys, .. } = descriptor;
        let reader = |name: &String| {
            transports.iter().find(|transport| transport.more_key_names().contains(&name.as_str()))
        };
        let key = |(name, key): (String, Vec<u8>)| {
            (reader(&name).map_or(name, |transport| transport.name().to_owned()), key.into())
        };
        Self { length, is_writable, keys: keys.into_iter().map(key).collect() }
    }

    /// Whether its owner registered it with `transport`.
    pub(super) fn is_on(&self, transport: &str) -> bool {
        self.keys.contains_key(transport)
    }

    /// What `transport` needs to name it.
    pub(super) fn key(&self, transport: &str) -> Arc<[u8]> {
        self.keys.get(transport).cloned().unwrap_or_default()
    }

    pub(super) fn check(&self, direction: Direction, place: RemotePlace, length: usize) -> Result<(), Error> {
        let length = ByteCount(length as u64);
        let is_inside = place.offset.checked_add(length.get()).is_some_and(|end| end <= self.length.get());
        match direction {
            _ if !is_inside => Err(Error::OutOfRange {
                region: place.region,
                offset: place.offset,
                length,
                region_length: self.length,
            }),
            Direction::Write if !self.is_writable => Err(Error::ReadOnly { region: place.region }),
            Direction::Read | Direction::Write => Ok(()),
        }
    }
}

/// Tells one connect of a way from those that were begun before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attempt(u64);

#[derive(Debug)]
enum Connection {
    None,
    /// Somebody connects; the peer's `changed` tells when that has ended. Begun when there was a link to do it over.
    Connecting {
        attempt: Attempt,
        began: Option<Duration>,
    },
    Ready(Arc<Lane>),
    /// This transport cannot reach that peer.
    Impossible(Error),
}

#[derive(Debug)]
struct WayState {
    connection: Connection,
    cool_down: CoolDown,
    /// The last that was begun.
    attempt: Attempt,
    /// What is said in place of connecting where the peer does not have this transport. It stays when the link is lost: the
    /// peer is the same.
    not_offered: Option<Error>,
}

impl WayState {
    /// What it is while nothing is connected.
    fn at_rest(&self) -> Connection {
        self.not_offered.clone().map_or(Connection::None, Connection::Impossible)
    }

    /// Whether `lane` is the present connection. What ends late on an earlier one says nothing of it.
    fn is_on(&self, lane: &Lane) -> bool {
        matches!(&self.connection, Connection::Ready(present) if std::ptr::eq(Arc::as_ptr(present), lane))
    }
}

/// One transport's way to a peer.
#[derive(Debug)]
pub(super) struct Way {
    state: Mutex<WayState>,
    /// Rails that were in trouble, whatever connection it was.
    pub(super) rails: Arc<Rails>,
    /// Whether the cool-down has anything to forget, so that success costs no lock.
    is_troubled: AtomicBool,
}

/// What to do about a way.
#[derive(Debug)]
pub(super) enum Step {
    Use(Arc<Lane>),
    /// The caller sees to it that it is connected, and that the way is told how that went.
    Connect(Attempt),
    /// Somebody connects it, or somebody is to do so later. After this long, where that is known, the next best is to be
    /// connected beside it.
    Wait(Option<Duration>),
    /// Out for this long.
    Out(Duration),
    Impossible(Error),
    /// The connection has failed and was taken out; its endpoint is to be closed.
    Failed(Arc<Lane>),
}

impl Way {
    fn new() -> Self {
        let state = WayState {
            connection: Connection::None,
            cool_down: CoolDown::default(),
            attempt: Attempt::default(),
            not_offered: None,
        };
        Self { state: Mutex::new(state), rails: Arc::default(), is_troubled: AtomicBool::new(false) }
    }

    /// The lane, when it is ready and nothing speaks against it.
    pub(super) fn ready(&self) -> Option<Arc<Lane>> {
        if self.is_troubled.load(Ordering::Relaxed) {
            return None;
        }
        match &self.state.lock().connection {
            Connection::Ready(lane) if lane.endpoint().state() == EndpointState::Ready => {
                Some(Arc::clone(lane))
            }
            _ => None,
        }
    }

    pub(super) fn is_impossible(&self) -> bool {
        matches!(self.state.lock().connection, Connection::Impossible(_))
    }

    /// What to do about it at `now`. Unless it `may_connect`, nothing is begun.
    pub(super) fn step(&self, now: Duration, may_connect: bool) -> Step {
        let mut state = self.state.lock();
        let WayState { connection, cool_down, attempt, .. } = &mut *state;
        match connection {
            Connection::Impossible(error) => Step::Impossible(error.clone()),
            Connection::Connecting { began, .. } => {
                Step::Wait(began.map(|began| (began + HEAD_START).saturating_sub(now)))
            }
            Connection::Ready(lane) if lane.endpoint().state() != EndpointState::Ready => {
                let lane = Arc::clone(lane);
                *connection = Connection::None;
                cool_down.failed(now);
                self.is_troubled.store(true, Ordering::Relaxed);
                if let Some(rail) = lane.endpoint().failed_rail() {
                    self.rails.failed(rail);
                }
                Step::Failed(lane)
            }
            Connection::None if !may_connect => Step::Wait(None),
            _ if !cool_down.admits(now) => Step::Out(cool_down.remaining(now)),
            Connection::Ready(lane) => Step::Use(Arc::clone(lane)),
            Connection::None => {
                attempt.0 += 1;
                *connection = Connection::Connecting { attempt: *attempt, began: None };
                Step::Connect(*attempt)
            }
        }
    }

    /// There is a link over which the connect that [`Step::Connect`] asked for begins at `now`.
    pub(super) fn begun(&self, attempt: Attempt, now: Duration) {
        let mut state = self.state.lock();
        if let Connection::Connecting { attempt: current, began } = &mut state.connection
            && *current == attempt
        {
            *began = Some(now);
        }
    }

    /// How a connect that [`Step::Connect`] asked for has ended; [`Error::Cancelled`] when it was not tried. Returns a lane
    /// that comes too late, to be closed: the link was lost meanwhile, and another connect may be under way, or over.
    #[must_use]
    pub(super) fn connected(
        &self,
        attempt: Attempt,
        result: Result<Arc<Lane>, Error>,
        now: Duration,
    ) -> Option<Arc<Lane>> {
        let mut state = self.state.lock();
        if !matches!(state.connection, Connection::Connecting { attempt: current, .. } if current == attempt)
        {
            return result.ok();
        }
        state.connection = match result {
            Ok(lane) => {
                state.cool_down.renewed(now);
                Connection::Ready(lane)
            }
            Err(error @ Error::Unavailable { .. }) => Connection::Impossible(error),
            Err(Error::Cancelled) => {
                state.cool_down.renewed(now);
                state.at_rest()
            }
            Err(_) => {
                state.cool_down.failed(now);
                self.is_troubled.store(true, Ordering::Relaxed);
                state.at_rest()
            }
        };
        None
    }

    /// An operation on `lane` has succeeded. Returns whether the way was in trouble before.
    pub(super) fn succeeded(&self, lane: &Lane) -> bool {
        if !self.is_troubled.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state.lock();
        if !state.is_on(lane) {
            return false;
        }
        state.cool_down.succeeded();
        self.is_troubled.swap(false, Ordering::Relaxed)
    }

    /// Who was let through by [`Step::Use`] of `lane` found out nothing about the way. Returns whether another may try it.
    pub(super) fn not_tried(&self, lane: &Lane, now: Duration) -> bool {
        if !self.is_troubled.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state.lock();
        let is_on = state.is_on(lane);
        if is_on {
            state.cool_down.renewed(now);
        }
        is_on
    }

    /// An operation on `lane` has failed. Returns whether the way is out because of that, and was not before.
    pub(super) fn failed(&self, lane: &Lane, now: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.is_on(lane) {
            return false;
        }
        let before = state.cool_down.failures();
        state.cool_down.failed(now);
        self.is_troubled.store(true, Ordering::Relaxed);
        state.cool_down.failures() > before
    }

    /// The peer's descriptor says whether it has this transport at all.
    pub(super) fn offered(&self, transport: &'static str, is_offered: bool, peer: PeerId) {
        let mut state = self.state.lock();
        state.not_offered = (!is_offered).then(|| Error::Unavailable {
            transport,
            looked_for: format!("the same transport at peer {peer}").into(),
            cause: "it does not offer it".into(),
        });
        if matches!(state.connection, Connection::None | Connection::Impossible(_)) {
            state.connection = state.at_rest();
        }
    }

    /// Forgets the connection and the past, but for what the peer does not have. Returns the lane, to be closed.
    pub(super) fn reset(&self) -> Option<Arc<Lane>> {
        let mut state = self.state.lock();
        state.cool_down.succeeded();
        self.is_troubled.store(false, Ordering::Relaxed);
        self.rails.forget();
        let at_rest = state.at_rest();
        match std::mem::replace(&mut state.connection, at_rest) {
            Connection::Ready(lane) => Some(lane),
            // Who connects comes too late with what it says.
            Connection::None | Connection::Connecting { .. } | Connection::Impossible(_) => None,
        }
    }

    /// The lane, for `status`.
    pub(super) fn lane(&self) -> Option<Arc<Lane>> {
        match &self.state.lock().connection {
            Connection::Ready(lane) => Some(Arc::clone(lane)),
            _ => None,
        }
    }

    /// In words, for `status`.
    pub(super) fn describe(&self, now: Duration) -> String {
        let state = self.state.lock();
        match &state.connection {
            Connection::None if self.is_troubled.load(Ordering::Relaxed) => {
                format!("failed, tried again in {} ms", state.cool_down.remaining(now).as_millis())
            }
            Connection::None => "not connected".to_owned(),
            Connection::Connecting { .. } => "connecting".to_owned(),
            Connection::Ready(lane) => match lane.endpoint().state() {
                EndpointState::Ready => "ready".to_owned(),
                EndpointState::Failed(error) => format!("failed: {error}"),
                EndpointState::Closed => "closed".to_owned(),
            },
            Connection::Impossible(error) => format!("not possible: {error}"),
        }
    }
}

/// A way that is open.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) lane: Arc<Lane>,
    /// Whether there is a better one: in trouble, being connected, or without the memory at one of the two ends.
    pub(super) is_second_best: bool,
}

/// Another process.
pub(super) struct Peer {
    pub(super) id: PeerId,
    pub(super) addresses: Mutex<Vec<SocketAddr>>,
    pub(super) ways: Vec<Way>,
    /// A way's state has changed.
    pub(super) changed: Notify,
    /// Held while a transport forgets it for want of a link; one that begins meanwhile waits before it grants anything.
    pub(super) forgetting: Mutex<()>,
    /// What its regions are, as far as asked.
    regions: Mutex<LruCache<RegionId, Arc<RemoteRegion>>>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("id", &self.id).field("ways", &self.ways).finish_non_exhaustive()
    }
}

impl Peer {
    pub(super) fn new(id: PeerId, transports: usize) -> Self {
        Self {
            id,
            addresses: Mutex::default(),
            ways: (0..transports).map(|_| Way::new()).collect(),
            changed: Notify::new(),
            forgetting: Mutex::default(),
            // Grows with use: an idle peer costs no table.
            regions: Mutex::new(LruCache::unbounded()),
        }
    }

    /// It is at the other end of `link`: where it listens is known by that, if nobody has said it before.
    pub(super) fn listens_at(&self, link: &Link) {
        let mut addresses = self.addresses.lock();
        if addresses.is_empty() {
            *addresses = link.listens_at();
        }
    }

    /// The description of `region`, if it is known.
    pub(super) fn region(&self, region: RegionId) -> Option<Arc<RemoteRegion>> {
        self.regions.lock().get(&region).cloned()
    }

    pub(super) fn remember(&self, id: RegionId, region: RemoteRegion) -> Arc<RemoteRegion> {
        let region = Arc::new(region);
        let mut regions = self.regions.lock();
        if regions.len() >= REGIONS_KEPT {
            regions.pop_lru();
        }
        regions.put(id, Arc::clone(&region));
        region
    }

    pub(super) fn forget_region(&self, id: RegionId) {
        self.regions.lock().pop(&id);
    }

    pub(super) fn forget_regions(&self) {
        self.regions.lock().clear();
    }

    /// How many are described, for `status`.
    pub(super) fn regions_known(&self) -> usize {
        self.regions.lock().len()
    }

    /// The best way that is open without waiting, of the transports that `is_usable` names by their place.
    pub(super) fn ready_way(&self, is_usable: impl Fn(usize) -> bool) -> Option<Opened> {
        let mut is_second_best = false;
        for (index, way) in self.ways.iter().enumerate() {
            if way.is_impossible() {
                continue;
            }
            if is_usable(index) {
                // A better way that is not ready is worth the detour through `Inner::open_way`.
                return way.ready().map(|lane| Opened { lane, is_second_best });
            }
            is_second_best = true;
        }
        None
    }
}

#[cfg(test)]
mod tests;
