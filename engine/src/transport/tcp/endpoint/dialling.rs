//! How the data connections to a peer are made, and made again where one failed.
//!
//! Invariants
//! - Each connection has a place, and each place a task that fills it for as long as the endpoint stands.
//! - The endpoint has failed when no connection is left and none can be made.
//!
//! Limits: the first dial makes one attempt for each place. Later a place tries again after pauses that grow from the one to the
//! other bound of [`PAUSE`]; when it has failed [`ATTEMPTS_MAX`] times in a row, or is refused, and there is no connection at all,
//! the endpoint has failed.
//!
//! Threads: those of the runtime of the links.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc;

use super::super::lane::{Lane, Load};
use super::super::poller::Pollers;
use super::super::sends::Policy;
use super::super::tasks::Tasks;
use super::super::{NAME, TcpConfig};
use super::silence::watch;
use super::{Granted, Signals, TcpEndpoint, reap};
use crate::error::Error;
use crate::link::{Links, Stream};
use crate::transport::EndpointState;
use crate::types::PeerId;

/// Shortest and longest pause before a failed connection is dialled again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Time for the other connections when one is up: what begins on few would stay there.
const MOMENT: Duration = Duration::from_secs(1);
/// Attempts without any connection after which the endpoint has failed.
const ATTEMPTS_MAX: u32 = 4;

impl TcpEndpoint {
    /// Dials. One connection is enough to begin: the others get [`MOMENT`] from then on, and follow later if that is too
    /// short.
    pub(in super::super) async fn dial(
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
        endpoint.tasks.spawn(runtime, watch(Arc::downgrade(&endpoint), Arc::clone(&endpoint.signals)));
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
