//! Opens the way to a peer, a transport over a link, and ends what hung on a link that is gone. What waited for the way is
//! [posted](super::posting) then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Inner;
use super::descriptor::{Bytes, Exchanged};
use super::messages::EXCHANGE;
use super::peer::{Attempt, Opened, Peer, Step, Way};
use crate::error::Error;
use crate::link::Link;
use crate::queue::Lane;
use crate::topology::Topology;
use crate::transport::{BoxFuture, Exchange};
use crate::types::PeerId;

impl Inner {
    /// The link to `peer`, made when there is none. Without an answer, it is the caller's deadline that has passed only when
    /// that comes before the end of the attempt.
    pub(super) async fn link(&self, peer: &Peer, deadline: Instant) -> Result<Arc<Link>, Error> {
        if let Some(link) = self.links.link(peer.id) {
            return Ok(link);
        }
        let addresses = peer.addresses.lock().clone();
        if addresses.is_empty() {
            return Err(Error::PeerGone {
                peer: peer.id,
                cause: "no address of it is known; connect first".into(),
            });
        }
        // An attempt ends itself, and says more than that somebody has waited for as long as it may take.
        let own = self.config.connect_timeout;
        let is_shorter = own < self.config.link.connect_timeout;
        let until = if is_shorter { deadline.min(Instant::now() + own) } else { deadline };
        match self.links.connect(peer.id, &addresses, until).await {
            Err(Error::DeadlinePassed) if until < deadline => {
                let tried: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                let cause = format!("no answer within {} ms", own.as_millis()).into();
                Err(Error::Unreachable { address: tried.join(", ").into(), cause })
            }
            connected => connected,
        }
    }

    /// The best way to `peer` among the transports that `usable` names by their place, opened when it is not.
    pub(super) async fn open_way(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        usable: impl Fn(usize) -> bool,
        deadline: Instant,
    ) -> Result<Opened, Error> {
        loop {
            let changed = peer.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.look_for_way(peer, &usable, deadline).await? {
                Found::Way(opened) => return Ok(opened),
                // Where nothing can be begun any more, as without a runtime, there is no end to that.
                Found::Again if Instant::now() >= deadline => return Err(Error::DeadlinePassed),
                Found::Again => {}
                Found::Wait(longest) => {
                    let until = longest.map_or(deadline, |longest| deadline.min(Instant::now() + longest));
                    let _ = tokio::time::timeout_at(until.into(), changed).await;
                    if Instant::now() >= deadline {
                        return Err(Error::DeadlinePassed);
                    }
                }
            }
        }
    }

    /// A better way that is being connected holds nobody up who can go by another. Where no other stands, the next best is
    /// connected beside one that takes long; what comes of the better one is used all the same.
    async fn look_for_way(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        usable: &impl Fn(usize) -> bool,
        deadline: Instant,
    ) -> Result<Found, Error> {
        let (mut is_connecting, mut may_connect) = (false, true);
        // When something changes by itself: the cool-down of a way, or the head start of a better one, is over.
        let mut soonest: Option<Duration> = None;
        let sooner =
            |known: Option<Duration>, time: Duration| Some(known.map_or(time, |known| known.min(time)));
        let mut refusal = None;
        for (index, way) in peer.ways.iter().enumerate() {
            let name = self.names[index];
            if !usable(index) {
                continue;
            }
            match way.step(self.now(), may_connect) {
                Step::Use(lane) => {
                    let is_second_best = peer.ways[..index].iter().any(|better| !better.is_impossible());
                    return Ok(Found::Way(Opened { lane, is_second_best }));
                }
                Step::Connect(attempt) => {
                    if is_connecting {
                        tracing::warn!(peer = %peer.id, transport = name,
                            "a better transport is not connected yet; this one is connected beside it");
                    }
                    self.begin_connect(peer, index, attempt, deadline).await?;
                    return Ok(Found::Again);
                }
                Step::Wait(head_start) => {
                    is_connecting = true;
                    let left = head_start.filter(|_| may_connect);
                    may_connect = left.is_some_and(|left| left.is_zero());
                    if let Some(left) = left.filter(|left| !left.is_zero()) {
                        soonest = sooner(soonest, left);
                    }
                }
                Step::Out(remaining) => soonest = sooner(soonest, remaining),
                Step::Impossible(error) => refusal = Some(error),
                Step::Failed(lane) => {
                    let rail = lane.endpoint().failed_rail().map(|rail| rail.0);
                    self.metrics.endpoints_failed_total.add(1);
                    self.metrics.rails_failed_total.add(u64::from(rail.is_some()));
                    tracing::warn!(peer = %peer.id, transport = name, rail, state = ?lane.endpoint().state(),
                        "a connection failed; another transport is used until it is back");
                    self.close_lane(lane);
                    // An endpoint that was opened again has other keys.
                    peer.forget_regions();
                    return Ok(Found::Again);
                }
            }
        }
        match (soonest, refusal) {
            _ if is_connecting => Ok(Found::Wait(soonest)),
            (Some(remaining), _) => Ok(Found::Wait(Some(remaining))),
            (None, Some(error)) => Err(error),
            (None, None) => Err(Error::Unavailable {
                transport: "any",
                looked_for: self.names.join(", ").into(),
                cause: format!("none of them has the memory both here and at peer {}", peer.id).into(),
            }),
        }
    }

    fn close_lane(&self, lane: Arc<Lane>) {
        self.runtime.spawn(async move { lane.endpoint().close().await });
    }

    /// Begins to connect one way, once there is a link. It goes on whoever gives up waiting for it, for as long as one
    /// attempt may take: a transport that hangs is out for a while like one that fails, and is not tried by one request
    /// after the other. An error is of the peer as a whole; a failure of the transport is noted in the way.
    async fn begin_connect(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        index: usize,
        attempt: Attempt,
        deadline: Instant,
    ) -> Result<(), Error> {
        // Whatever becomes of this future and of the task, who waits for the way is told.
        let connecting =
            Connecting { engine: Arc::clone(self), peer: Arc::clone(peer), index, attempt, is_done: false };
        let link = self.link(peer, deadline).await?;
        peer.ways[index].begun(attempt, self.now());
        peer.changed.notify_waiters();
        self.runtime.spawn(connecting.run(link));
        Ok(())
    }

    /// `peer` has proved itself, so earlier incarnations of it are dead: all that hung on them ends, and they are forgotten.
    pub(super) fn bury_predecessors(&self, peer: PeerId) {
        let is_earlier = |id: &PeerId| id.member == peer.member && id.incarnation < peer.incarnation;
        let dead: Vec<PeerId> = self.peers.read().keys().copied().filter(is_earlier).collect();
        for id in dead {
            self.lose(id);
            self.peers.write().remove(&id);
        }
    }

    /// A link begins, over which nothing was granted yet. A peer that was asked for something from here can be dialled, too,
    /// when the link that it made is gone.
    pub(super) fn begin_link(&self, link: &Link) {
        let peer = self.peers.read().get(&link.peer()).cloned();
        if let Some(peer) = peer {
            // Who connected over the one before it takes nothing back from here on.
            drop(peer.forgetting.lock());
            peer.listens_at(link);
        }
    }

    /// Forgets a peer and its predecessors, as far as nobody uses them.
    pub(super) fn forget(&self, peer: PeerId) {
        let is_it = |id: &PeerId| id.member == peer.member && id.incarnation <= peer.incarnation;
        // Whoever uses one got it from this table, so nobody can begin to while it is held.
        self.peers
            .write()
            .retain(|id, known| !is_it(id) || Arc::strong_count(known) > 1 || self.links.link(*id).is_some());
    }

    /// The link to a peer is gone: all that hung on it ends.
    pub(super) fn lose(&self, id: PeerId) {
        self.members.lock().retain(|_, descriptor| descriptor.id != id);
        // What was granted to a peer is taken back also when nothing was ever asked of it from here.
        self.transports.iter().for_each(|transport| transport.forget(id));
        let Some(peer) = self.peers.read().get(&id).cloned() else { return };
        for lane in peer.ways.iter().filter_map(Way::reset) {
            self.close_lane(lane);
        }
        peer.forget_regions();
        peer.changed.notify_waiters();
    }
}

/// What looking for a way came to.
enum Found {
    Way(Opened),
    /// Something changed; look again.
    Again,
    /// Nothing is to be had before something changes, or before this time has passed.
    Wait(Option<Duration>),
}

/// Somebody is connecting a way: says so to the way when it is over, dropped futures included.
struct Connecting {
    engine: Arc<Inner>,
    peer: Arc<Peer>,
    index: usize,
    attempt: Attempt,
    is_done: bool,
}

impl Connecting {
    async fn run(mut self, link: Arc<Link>) {
        let engine = Arc::clone(&self.engine);
        let deadline = Instant::now() + engine.config.connect_timeout;
        let transport = &engine.transports[self.index];
        let (peer, name) = (self.peer.id, transport.name());
        let exchange = LinkExchange { link, transport: name, deadline };
        let connected = tokio::time::timeout_at(deadline.into(), transport.connect(peer, &exchange)).await;
        let connected = connected.unwrap_or(Err(Error::DeadlinePassed)).map(|endpoint| {
            let host = engine.host.get_or_init(|| Arc::new(Topology::of_this_host()));
            let rails = transport.rails();
            let lane = Lane::new(name, transport.capabilities(), rails, host, endpoint);
            Arc::new(lane.with_health(&self.peer.ways[self.index].rails))
        });
        if let Err(error) = &connected {
            if matches!(error, Error::Unavailable { .. }) {
                tracing::debug!(peer = %peer, transport = name, %error, "not a way to this peer");
            } else {
                engine.metrics.connects_failed_total.add(1);
                tracing::warn!(peer = %peer, transport = name, %error, "a transport cannot connect");
            }
        }
        self.report(connected);
        self.forget_if_lost();
    }

    /// The link was lost meanwhile: what the transport was told of the peer since then, nobody else takes back.
    fn forget_if_lost(&self) {
        let _no_link_begins = self.peer.forgetting.lock();
        if self.engine.links.link(self.peer.id).is_none() {
            self.engine.transports[self.index].forget(self.peer.id);
        }
    }

    fn report(&mut self, result: Result<Arc<Lane>, Error>) {
        self.is_done = true;
        let late = self.peer.ways[self.index].connected(self.attempt, result, self.engine.now());
        late.into_iter().for_each(|lane| self.engine.close_lane(lane));
        self.peer.changed.notify_waiters();
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if !self.is_done {
            self.report(Err(Error::Cancelled));
        }
    }
}

/// The link as a transport's two ends use it.
#[derive(Debug)]
pub(super) struct LinkExchange {
    pub(super) link: Arc<Link>,
    pub(super) transport: &'static str,
    pub(super) deadline: Instant,
}

impl Exchange for LinkExchange {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        let body = Exchanged { transport: self.transport.to_owned(), request }.to_bytes();
        self.link.call(EXCHANGE, body, self.deadline)
    }
}
