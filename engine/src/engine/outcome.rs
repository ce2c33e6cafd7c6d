//! What is done when slices and batches end: they are counted, tried again, and tell something about the way they took.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::Inner;
use super::descriptor::{Bytes, Describe};
use super::flight::Flight;
use super::messages::{DESCRIBE, TRANSFER_DONE};
use super::peer::{Peer, Way};
use crate::error::Error;
use crate::link::Link;
use crate::metrics::Metrics;
use crate::queue::Lane;
use crate::queue::transfer::{Conclusion, FollowUp};
use crate::request::{RemotePlace, Request};
use crate::transport::{Direction, EndpointState};
use crate::types::{ByteCount, PeerId};

/// Attempts after which a slice is tried again at once.
const RETRIES_AT_ONCE: u32 = 3;
/// Attempts after which a region that its owner describes, and that a transport does not find there, counts as gone.
const REGION_ATTEMPTS_MAX: u32 = 3;
/// Pause before the next one; then twice as long each time, up to the longest.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often a slice was tried, and how often it came back for what has a limit of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempts {
    pub(super) begun: u32,
    corrupt: u32,
    /// On a region that the transport did not find.
    unknown: u32,
}

impl Attempts {
    pub(super) const FIRST: Self = Self { begun: 1, corrupt: 0, unknown: 0 };

    pub(super) fn again(self) -> Self {
        Self { begun: self.begun + 1, ..self }
    }

    pub(super) fn failed(&mut self, error: &Error) {
        match error {
            Error::Corrupt { .. } => self.corrupt += 1,
            Error::NoSuchRegion { .. } => self.unknown += 1,
            _ => {}
        }
    }
}

/// Tells each peer, and notes what is known of that with the entries that are its.
async fn tell_all(
    links: Vec<(PeerId, Vec<usize>, Option<Arc<Link>>)>,
    bytes: Vec<u8>,
    deadline: Instant,
    conclusion: &mut Conclusion,
) {
    let mut telling = JoinSet::new();
    for (peer, entries, link) in links {
        let bytes = bytes.clone();
        telling.spawn(async move {
            let gone = || Error::PeerGone { peer, cause: "its link is closed".into() };
            let told = match link {
                Some(link) => tell(&link, bytes, deadline).await,
                None => Err(gone()),
            };
            (peer, entries, told)
        });
    }
    while let Some(Ok((peer, entries, told))) = telling.join_next().await {
        if let Err(error) = &told {
            tracing::warn!(%peer, %error, "a peer may not be told that a transfer is done");
        }
        entries.into_iter().for_each(|entry| conclusion.entries[entry] = told.clone());
    }
}

/// Tells a peer that a transfer is done. It answers the question that follows when it has heard what went before.
async fn tell(link: &Link, bytes: Vec<u8>, deadline: Instant) -> Result<(), Error> {
    link.notify(TRANSFER_DONE, bytes)?;
    link.call(DESCRIBE, Describe { regions: Vec::new() }.to_bytes(), deadline).await.map(drop)
}

fn count_results(metrics: &Metrics, results: &[Result<(), Error>]) {
    let failed = results.iter().filter(|result| result.is_err()).count() as u64;
    let late = results.iter().filter(|result| **result == Err(Error::DeadlinePassed)).count() as u64;
    metrics.requests_succeeded_total.add(results.len() as u64 - failed);
    metrics.requests_failed_total.add(failed);
    metrics.deadlines_passed_total.add(late);
}

impl Inner {
    /// What is done when all of a batch has ended: when all of it has succeeded, each of its peers is sent the
    /// notification, and the requests to one that does not answer that it has it have failed; then it is counted.
    pub(super) fn when_done(
        self: &Arc<Self>,
        requests: &[Request],
        deadline: Instant,
        notify: Option<Vec<u8>>,
    ) -> FollowUp {
        let mut entries_of: BTreeMap<PeerId, Vec<usize>> = BTreeMap::new();
        if notify.is_some() {
            for (entry, request) in requests.iter().enumerate() {
                entries_of.entry(request.remote.peer).or_default().push(entry);
            }
        }
        let engine = Arc::downgrade(self);
        Box::new(move |mut conclusion| {
            let Some(engine) = engine.upgrade() else { return };
            let metrics = Arc::clone(&engine.metrics);
            let Some(bytes) = notify.filter(|_| conclusion.entries.iter().all(Result::is_ok)) else {
                return count_results(&metrics, &conclusion.entries);
            };
            let links: Vec<_> = entries_of
                .into_iter()
                .map(|(peer, entries)| (peer, entries, engine.links.link(peer)))
                .collect();
            // What becomes of a notification that nobody waits for is not known.
            conclusion.entries.fill(Err(Error::Closed));
            engine.runtime.spawn(async move {
                tell_all(links, bytes, deadline, &mut conclusion).await;
                count_results(&metrics, &conclusion.entries);
            });
        })
    }

    /// Tries a slice again after `attempts`, by the best way that is open then.
    pub(super) fn retry(
        self: &Arc<Self>,
        flight: Arc<Flight>,
        piece: usize,
        attempts: Attempts,
        error: Error,
    ) {
        self.metrics.slices_retried_total.add(1);
        // Counted again when it is posted again; the caller lets go of the count of the attempt that ended.
        self.count_operations(1);
        let engine = Arc::clone(self);
        self.runtime.spawn(async move {
            let mut asked = attempts;
            let reason = loop {
                tokio::select! {
                    () = tokio::time::sleep(pause_before(asked.begun)) => {}
                    () = flight.given_up() => {}
                }
                match engine.repost(&flight, piece).await {
                    Ok(()) => return,
                    // Where hundreds failed together, all of them ask for their region: there is room for more in a moment.
                    Err(reason @ Error::Busy { .. })
                        if engine.may_retry(&reason, asked, flight.deadline()) =>
                    {
                        asked = asked.again();
                    }
                    Err(reason) => break reason,
                }
            };
            engine.release_operation();
            // The first error says more than that there was no time left for a second attempt.
            let shown = if reason == Error::DeadlinePassed { error } else { reason };
            flight.abandon(piece, shown);
        });
    }

    pub(super) fn may_retry(&self, error: &Error, attempts: Attempts, deadline: Instant) -> bool {
        let has_chance = match error {
            // Memory or a wire that changes bytes does so again.
            Error::Corrupt { .. } => attempts.corrupt < self.config.corrupt_attempts_max,
            // Its owner may have given it another key since it was described: it is asked.
            Error::NoSuchRegion { .. } => attempts.unknown < REGION_ATTEMPTS_MAX,
            _ => error.is_retryable(),
        };
        has_chance && Instant::now() < deadline && !self.is_closed.load(Ordering::Acquire)
    }

    /// Counts `count` more slices, if there is room for one.
    pub(super) fn admit_operations(&self, count: usize) -> bool {
        let before = self.operations.fetch_add(count, Ordering::Relaxed);
        let fits = before < self.config.operations_max;
        if !fits {
            self.operations.fetch_sub(count, Ordering::Relaxed);
        }
        fits
    }

    /// Counts `count` more slices of what was admitted before.
    pub(super) fn count_operations(&self, count: usize) {
        self.operations.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn release_operation(&self) {
        self.operations.fetch_sub(1, Ordering::Relaxed);
    }

    /// A slice came back from `lane`.
    pub(super) fn note_end(
        &self,
        place: RemotePlace,
        lane: &Arc<Lane>,
        direction: Direction,
        length: ByteCount,
        error: Option<&Error>,
    ) {
        let Some(error) = error else {
            let counter = match direction {
                Direction::Read => &self.metrics.read_bytes_total,
                Direction::Write => &self.metrics.written_bytes_total,
            };
            counter.add(length.get());
            self.with_way(place.peer, lane, |peer, way| {
                if way.succeeded(lane) {
                    // Who waits until the way may be tried again needs to wait no longer.
                    peer.changed.notify_waiters();
                }
            });
            return;
        };
        match error {
            Error::NoSuchRegion { region } => {
                self.peer(place.peer).forget_region(*region);
                self.not_tried(place.peer, lane);
            }
            Error::Cancelled
            | Error::ReadOnly { .. }
            | Error::OutOfRange { .. }
            | Error::Corrupt { .. }
            | Error::TooLarge { .. } => self.not_tried(place.peer, lane),
            Error::TransportFailed { .. } => {
                // A fabric may say no more of a key that is not known any more: its owner is asked before the next attempt.
                self.peer(place.peer).forget_region(place.region);
                let is_out = self.with_way(place.peer, lane, |_, way| way.failed(lane, self.now()));
                let (peer, transport) = (place.peer, lane.transport());
                // Hundreds come back from a connection that has ended, which is told once, by who takes it out.
                if is_out == Some(true) && lane.endpoint().state() == EndpointState::Ready {
                    tracing::warn!(%peer, transport, %error, "a slice came back; another transport is used for a while");
                } else {
                    tracing::debug!(%peer, transport, %error, "a slice came back");
                }
            }
            _ => {}
        }
    }

    /// Nothing was found out about the way of `lane`, which may have been meant to be tried.
    pub(super) fn not_tried(&self, peer: PeerId, lane: &Lane) {
        self.with_way(peer, lane, |peer, way| {
            if way.not_tried(lane, self.now()) {
                peer.changed.notify_waiters();
            }
        });
    }

    fn with_way<T>(&self, peer: PeerId, lane: &Lane, act: impl FnOnce(&Peer, &Way) -> T) -> Option<T> {
        let index = self.names.iter().position(|&name| name == lane.transport())?;
        let peers = self.peers.read();
        let peer = peers.get(&peer)?;
        Some(act(peer, &peer.ways[index]))
    }
}

/// Pause before a slice is tried again. The first tries follow at once, since another way may be open; then, what
/// keeps no way out of use (a way that is [`Error::Busy`]) must not be asked without end.
pub(super) fn pause_before(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(RETRIES_AT_ONCE);
    let pause = RETRY_PAUSE.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX) - 1);
    pause.min(RETRY_PAUSE_MAX)
}
