//! The engine: registers memory, connects peers, moves bytes, carries messages.
//!
//! The life of a submission: [`Engine::submit`] finds the local ranges; where the way to the peer is open and its region
//! known, slices are cut and posted on the caller's thread, else a task opens the way first; each slice ends through its
//! ticket in `flight`, which tries it again elsewhere or counts it; the handle resolves with the last.
//!
//! Invariants
//! - Each request ends once, soon after its deadline at the latest, and only when nothing can touch its memory.
//! - Operations to one incarnation of a peer are never sent to another.
//! - A fallback to another transport is a warning when it begins, and a count; never silent.
//!
//! Limits: `operations_max` slices under way in all; a request that finds so many ends with [`Error::Busy`]. The one
//! that reaches the limit is taken whole, so that none is too long for ever.
//!
//! Threads: callers' threads, the runtime's, and those of the transports; no lock is held while a transport is called, but
//! one while it forgets a peer late, which links to that peer wait for.

// Transports and regions: what is there to move bytes by, and what they may touch.
mod choice;
mod layers;
mod refusals;
mod regions;

// Peers: found, told of each other, and reached by one way or another.
mod descriptor;
mod directory;
mod messages;
mod peer;
mod ways;

// A submission from its beginning to its end.
mod deadlines;
mod flight;
mod outcome;
mod posting;
mod submission;

// The state of all that, as data.
mod status;

// The parsers, for fuzzing.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;

use crate::error::Error;
use crate::link::{Channel, LinkConfig, Links};
use crate::memory::Region;
use crate::metrics::Metrics;
use crate::queue::TransferHandle;
use crate::request::Batch;
use crate::topology::Topology;
use crate::transport::Transport;
use crate::types::{MemberId, PeerId, RegionId};

use deadlines::Deadlines;
use messages::Events;
use peer::{Peer, RemoteRegion};
use regions::{Holders, Regions};

pub use crate::link::Answer;
pub use choice::{ParseTransportError, TransportChoice, TransportName, TransportOptions, open_transports};
pub use descriptor::{PeerDescriptor, RegionDescriptor};
pub use directory::Directory;
pub use layers::LayerOptions;
pub use messages::{FIRST_FREE_CHANNEL, Messages, NoMessages, TRANSFER_DONE};
pub use status::{EngineStatus, PeerStatus, WayStatus};

/// How an engine behaves.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Who this process is.
    pub me: PeerId,
    /// Where it listens and how connections are proved.
    pub link: LinkConfig,
    /// Slices under way or waiting, in all. Default: 65,536.
    pub operations_max: usize,
    /// Times that the bytes of a slice may arrive changed, the last of which ends it. What fails otherwise is tried until
    /// its deadline, and does not count. Default: 4.
    pub corrupt_attempts_max: u32,
    /// Longest time for one attempt to connect to a peer. Default: 5 s.
    pub connect_timeout: Duration,
}

impl EngineConfig {
    /// The defaults for `me`.
    #[must_use]
    pub fn new(me: PeerId) -> Self {
        Self {
            me,
            link: LinkConfig::default(),
            operations_max: 65_536,
            corrupt_attempts_max: 4,
            connect_timeout: Duration::from_secs(5),
        }
    }
}

/// What a transport may need when it is opened.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Runs the engine's tasks.
    pub runtime: Handle,
    /// The engine's connections.
    pub links: Arc<Links>,
    /// The engine's counters.
    pub metrics: Arc<Metrics>,
}

/// Moves bytes between registered regions of this process and others. Cheap to clone; all clones are one engine.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    config: EngineConfig,
    runtime: Handle,
    links: Arc<Links>,
    transports: Vec<Arc<dyn Transport>>,
    names: Vec<&'static str>,
    /// The transports that local memory must be registered with.
    local_registrars: Holders,
    regions: Regions,
    /// Read from sysfs when the first way is opened.
    host: OnceLock<Arc<Topology>>,
    /// Read for each submission, written when a peer is seen for the first time.
    peers: RwLock<HashMap<PeerId, Arc<Peer>>>,
    /// Descriptors that were fetched, until their connection ends. Held for a look-up.
    members: Mutex<HashMap<MemberId, PeerDescriptor>>,
    deadlines: Arc<Deadlines>,
    /// Slices under way or waiting.
    operations: AtomicUsize,
    metrics: Arc<Metrics>,
    began: Instant,
    is_closed: AtomicBool,
    /// Whether nothing is left of it. Held by the one who closes it.
    closing: tokio::sync::Mutex<bool>,
    /// Ended with the engine.
    watcher: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("me", &self.config.me)
            .field("transports", &self.names)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts listening. `open` makes the transports, the best first; `messages` answers what peers ask.
    ///
    /// # Errors
    /// [`Error::CannotListen`]; what `open` says.
    pub fn start(
        runtime: Handle,
        config: EngineConfig,
        messages: Arc<dyn Messages>,
        open: impl FnOnce(&Parts) -> Result<Vec<Arc<dyn Transport>>, Error>,
    ) -> Result<Self, Error> {
        let inner_of_events = Arc::new(OnceLock::new());
        let events = Arc::new(Events::new(Arc::clone(&inner_of_events), messages));
        let links = Links::start(runtime.clone(), config.link.clone(), config.me, events)?;
        let metrics = Arc::new(Metrics::default());
        let parts =
            Parts { runtime: runtime.clone(), links: Arc::clone(&links), metrics: Arc::clone(&metrics) };
        let transports = open(&parts)?;
        let deadlines = Arc::new(Deadlines::default());
        let watcher = runtime.spawn(Arc::clone(&deadlines).watch());
        let mut local_registrars = Holders::default();
        for (place, transport) in transports.iter().enumerate() {
            if transport.capabilities().needs_local_registration {
                local_registrars.add(place);
            }
        }
        let inner = Arc::new(Inner {
            local_registrars,
            names: transports.iter().map(|transport| transport.name()).collect(),
            regions: Regions::new(transports.len()),
            host: OnceLock::new(),
            peers: RwLock::default(),
            members: Mutex::default(),
            operations: AtomicUsize::new(0),
            metrics,
            began: Instant::now(),
            is_closed: AtomicBool::new(false),
            closing: tokio::sync::Mutex::new(false),
            watcher: Mutex::new(Some(watcher)),
            config,
            runtime,
            links,
            transports,
            deadlines,
        });
        // Set once, here.
        let _ = inner_of_events.set(Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// How to reach this engine.
    #[must_use]
    pub fn descriptor(&self) -> PeerDescriptor {
        PeerDescriptor {
            id: self.inner.config.me,
            addresses: self.inner.links.addresses(),
            transports: self.inner.names.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    /// Where peers reach it, see [`Links::addresses`].
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.inner.links.addresses()
    }

    /// Makes `region` usable in requests, here and by connected peers. May block while a NIC registers it, whose thread may have
    /// an endpoint to open first; other transports do it at once.
    ///
    /// # Errors
    /// When no transport can register it: what the last of them says.
    pub fn register(&self, region: &Arc<Region>) -> Result<RegionId, Error> {
        self.inner.regions.register(&self.inner.transports, region)
    }

    /// Withdraws a region. Resolves when no peer touches its memory any more; requests of this process that are under
    /// way keep it mapped by themselves. Unknown ids are ignored.
    pub async fn unregister(&self, region: RegionId) {
        self.inner.regions.unregister(&self.inner.transports, region, true).await;
    }

    /// As [`Self::unregister`], of a region that no peer uses: none was told of it, or each has said that it is done with
    /// it. Where a transport can make sure of that only by breaking connections, it breaks none.
    pub async fn unregister_unused(&self, region: RegionId) {
        self.inner.regions.unregister(&self.inner.transports, region, false).await;
    }

    /// Describes a registered region to peers, which may [`Self::import`] it and save a round trip.
    #[must_use]
    pub fn describe(&self, region: RegionId) -> Option<RegionDescriptor> {
        self.inner.regions.describe(&self.inner.transports, region)
    }

    /// Takes note of a region of `peer`, as its engine described it, until it is [disowned](Self::disown).
    pub fn import(&self, peer: PeerId, region: RegionDescriptor) {
        let id = region.id;
        self.inner.peer(peer).remember(id, RemoteRegion::new(region, &self.inner.transports));
    }

    /// Forgets a region of `peer` that nobody here uses any more, as one that was lent and is given back.
    pub fn disown(&self, peer: PeerId, region: RegionId) {
        let known = self.inner.peers.read().get(&peer).cloned();
        if let Some(peer) = known {
            peer.forget_region(region);
        }
    }

    /// Opens the best way to a peer, so that the first request does not wait for it. Does nothing that is done already.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Unproven`], [`Error::VersionMismatch`]; [`Error::PeerGone`] when another
    /// incarnation answers; [`Error::Unavailable`] when the two have no transport in common.
    /// # Cancellation
    /// Dropping the future leaves the connection as far as it came.
    pub async fn connect(&self, peer: &PeerDescriptor, deadline: Instant) -> Result<(), Error> {
        let known = self.inner.peer(peer.id);
        known.addresses.lock().clone_from(&peer.addresses);
        for (name, way) in self.inner.names.iter().zip(&known.ways) {
            way.offered(name, peer.transports.iter().any(|offered| offered == name), peer.id);
        }
        self.inner.link(&known, deadline).await?;
        let opened = self.inner.open_way(&known, |_| true, deadline).await?;
        self.inner.not_tried(peer.id, &opened.lane);
        Ok(())
    }

    /// Whether there is a connection to `peer`. One that has ended is none before [`Messages::disconnected`] tells of it.
    #[must_use]
    pub fn is_connected(&self, peer: PeerId) -> bool {
        self.inner.links.link(peer).is_some()
    }

    /// Starts to move what the batch asks for. Never blocks; what cannot be done is told by the handle.
    #[must_use]
    pub fn submit(&self, batch: Batch) -> TransferHandle {
        self.inner.submit(batch)
    }

    /// Asks `peer`, and returns its answer.
    ///
    /// # Errors
    /// [`Error::Refused`] with the peer's words; [`Error::PeerGone`], [`Error::DeadlinePassed`], [`Error::Busy`],
    /// [`Error::TooLarge`].
    /// # Cancellation
    /// Dropping the future abandons the answer; the peer may still have acted.
    pub async fn call(
        &self,
        peer: PeerId,
        channel: Channel,
        body: Vec<u8>,
        deadline: Instant,
    ) -> Result<Vec<u8>, Error> {
        let peer = self.inner.peer(peer);
        self.inner.link(&peer, deadline).await?.call(channel, body, deadline).await
    }

    /// Tells a connected peer something, without an answer.
    ///
    /// # Errors
    /// [`Error::PeerGone`] when it is not connected; [`Error::Busy`], [`Error::TooLarge`].
    pub fn notify(&self, peer: PeerId, channel: Channel, body: Vec<u8>) -> Result<(), Error> {
        let gone = || Error::PeerGone { peer, cause: "not connected".into() };
        self.inner.links.link(peer).ok_or_else(gone)?.notify(channel, body)
    }

    /// Keeps nothing of `peer`, and of earlier incarnations of it, unless it is connected or something is under way to it.
    /// One that connects later, or is [connected to](Self::connect), is known again.
    pub fn forget(&self, peer: PeerId) {
        self.inner.forget(peer);
    }

    /// Counters since the start.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Ends everything. Resolves when no operation can touch memory any more: as late as that, where a peer of this host was
    /// stopped in the middle of a copy. Idempotent.
    ///
    /// # Cancellation
    /// Dropping the future leaves what is not closed yet as far as it came.
    pub async fn close(&self) {
        self.inner.close().await;
    }
}

impl Inner {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn peer(&self, id: PeerId) -> Arc<Peer> {
        if let Some(peer) = self.peers.read().get(&id) {
            return Arc::clone(peer);
        }
        let mut peers = self.peers.write();
        Arc::clone(peers.entry(id).or_insert_with(|| {
            let peer = Peer::new(id, self.transports.len());
            self.links.link(id).iter().for_each(|link| peer.listens_at(link));
            Arc::new(peer)
        }))
    }

    async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        // Who comes while another closes waits for that, and goes on where one has stopped waiting.
        let mut is_over = self.closing.lock().await;
        if *is_over {
            return;
        }
        self.links.close().await;
        // At once: one of them may wait long for a peer, as shared memory does for one that was stopped in a copy.
        let mut closing: Vec<_> = self.transports.iter().map(|transport| transport.close()).collect();
        poll_fn(|context| {
            closing.retain_mut(|transport| transport.as_mut().poll(context).is_pending());
            if closing.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if let Some(watcher) = self.watcher.lock().take() {
            watcher.abort();
        }
        *is_over = true;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.get_mut().take() {
            watcher.abort();
        }
    }
}
