//! A network that is made up: messages take times that a seed decides, in order for each direction of a connection; pairs
//! of members can be parted, and members killed. What is sent while two are parted arrives when they are joined, unless the
//! connection ended in between. Time is virtual.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::engine::{Answer, PeerDescriptor};
use tidefs_engine::error::Error;
use tidefs_engine::link::Channel;
use tidefs_engine::rng::Rng;
use tidefs_engine::types::{BoxFuture, PeerId};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{sleep_until, timeout_at};

use crate::cluster::carrier::Carrier;
use crate::cluster::core::Core;

/// How long a silence is borne.
pub(super) const SILENCE: Duration = Duration::from_secs(3);

type Pair = (PeerId, PeerId);

fn pair(one: PeerId, other: PeerId) -> Pair {
    (one.min(other), one.max(other))
}

#[derive(Debug)]
struct Connection {
    ended: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    members: BTreeMap<PeerId, Weak<Core>>,
    connections: BTreeMap<Pair, Connection>,
    parted: BTreeSet<Pair>,
    /// When the last message of a direction arrives.
    arrivals: BTreeMap<(PeerId, PeerId), tokio::time::Instant>,
    /// All that is sent, and by whom, if that is recorded.
    sent: Option<Vec<(PeerId, Channel, Vec<u8>)>>,
}

/// The network.
#[derive(Debug)]
pub(super) struct Network {
    /// Held for a look-up.
    state: Mutex<State>,
    /// Two that were parted are joined.
    joined: Notify,
}

impl Network {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        let state = State {
            rng: Rng::seeded(seed),
            members: BTreeMap::new(),
            connections: BTreeMap::new(),
            parted: BTreeSet::new(),
            arrivals: BTreeMap::new(),
            sent: None,
        };
        Arc::new(Self { state: Mutex::new(state), joined: Notify::new() })
    }

    pub(super) fn add(&self, core: &Arc<Core>) {
        self.state.lock().members.insert(core.me, Arc::downgrade(core));
    }

    /// From now on what is sent is recorded.
    pub(super) fn record(&self) {
        self.state.lock().sent = Some(Vec::new());
    }

    /// What `from` has sent since, in that order.
    pub(super) fn sent_by(&self, from: PeerId) -> Vec<(Channel, Vec<u8>)> {
        let state = self.state.lock();
        let sent = state.sent.iter().flatten().filter(|(sender, ..)| *sender == from);
        sent.map(|(_, channel, body)| (*channel, body.clone())).collect()
    }

    fn note_sent(&self, from: PeerId, channel: Channel, body: &[u8]) {
        if let Some(sent) = &mut self.state.lock().sent {
            sent.push((from, channel, body.to_vec()));
        }
    }

    fn core(&self, peer: PeerId) -> Option<Arc<Core>> {
        self.state.lock().members.get(&peer)?.upgrade()
    }

    /// When a message that is sent now arrives: after all that were sent before it.
    fn arrival(&self, from: PeerId, to: PeerId) -> tokio::time::Instant {
        let mut state = self.state.lock();
        let delay = Duration::from_millis(1 + state.rng.below(4));
        let now = tokio::time::Instant::now();
        let last = state.arrivals.get(&(from, to)).copied().unwrap_or(now);
        let arrival = (now + delay).max(last + Duration::from_millis(1));
        state.arrivals.insert((from, to), arrival);
        arrival
    }

    fn is_parted(&self, one: PeerId, other: PeerId) -> bool {
        self.state.lock().parted.contains(&pair(one, other))
    }

    /// From now on nothing passes between the two, in either direction.
    pub(super) fn part(self: &Arc<Self>, one: PeerId, other: PeerId) {
        self.state.lock().parted.insert(pair(one, other));
        let network = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(SILENCE).await;
            if network.is_parted(one, other) {
                network.end(one, other, "silent");
            }
        });
    }

    /// It passes again, and so does what was sent in between.
    pub(super) fn join(&self, one: PeerId, other: PeerId) {
        self.state.lock().parted.remove(&pair(one, other));
        self.joined.notify_waiters();
    }

    /// When a message that has arrived between the two passes.
    async fn passes(&self, one: PeerId, other: PeerId) {
        loop {
            let joined = self.joined.notified();
            if !self.is_parted(one, other) {
                return;
            }
            joined.await;
        }
    }

    /// The process is gone, and the kernel tells its peers.
    pub(super) fn kill(&self, peer: PeerId) {
        self.state.lock().members.remove(&peer);
        let pairs: Vec<Pair> = self.state.lock().connections.keys().copied().collect();
        for (one, other) in pairs.into_iter().filter(|&(one, other)| one == peer || other == peer) {
            self.end(one, other, "reset");
        }
    }

    pub(super) fn end(&self, one: PeerId, other: PeerId, cause: &str) {
        let Some(connection) = self.state.lock().connections.remove(&pair(one, other)) else { return };
        connection.ended.send_replace(true);
        for (here, there) in [(one, other), (other, one)] {
            if let Some(core) = self.core(here) {
                core.link_down(there, &Error::PeerGone { peer: there, cause: cause.into() });
            }
        }
    }

    fn ended(&self, one: PeerId, other: PeerId) -> Option<watch::Receiver<bool>> {
        Some(self.state.lock().connections.get(&pair(one, other))?.ended.subscribe())
    }
}

/// One member's end of it.
#[derive(Debug)]
pub(super) struct End {
    pub(super) me: PeerId,
    pub(super) network: Arc<Network>,
}

impl Carrier for End {
    fn call(
        &self,
        peer: PeerId,
        channel: Channel,
        body: Vec<u8>,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<Vec<u8>, Error>> {
        let (network, me) = (Arc::clone(&self.network), self.me);
        network.note_sent(me, channel, &body);
        Box::pin(async move {
            let gone = || Error::PeerGone { peer, cause: "no connection".into() };
            let mut ended = network.ended(me, peer).ok_or_else(gone)?;
            let arrival = network.arrival(me, peer);
            let (tell, told) = oneshot::channel();
            let carrying = Arc::clone(&network);
            let mut is_over = ended.clone();
            let carried = async move {
                sleep_until(arrival).await;
                carrying.passes(me, peer).await;
                if *is_over.borrow_and_update() {
                    return std::future::pending().await;
                }
                let Some(core) = carrying.core(peer) else { return std::future::pending().await };
                let answer = match core.serve(me, channel, &body) {
                    Answer::Now(answer) => answer,
                    Answer::Later(answer) => answer.await,
                };
                drop(core);
                sleep_until(carrying.arrival(peer, me)).await;
                carrying.passes(me, peer).await;
                let _ = tell.send(answer);
            };
            let mut over = ended.clone();
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    _ = over.wait_for(|ended| *ended) => {}
                    () = carried => {}
                }
            });
            let answered = async move {
                tokio::select! {
                    biased;
                    answer = told => answer.map_err(|_| gone())?.map_err(|cause| Error::Refused { cause: cause.into() }),
                    _ = ended.wait_for(|ended| *ended) => Err(gone()),
                }
            };
            timeout_at(deadline.into(), answered).await.unwrap_or(Err(Error::DeadlinePassed))
        })
    }

    fn notify(&self, peer: PeerId, channel: Channel, body: Vec<u8>) {
        let (network, me) = (Arc::clone(&self.network), self.me);
        network.note_sent(me, channel, &body);
        let arrival = network.arrival(me, peer);
        tokio::spawn(async move {
            sleep_until(arrival).await;
            let Some(mut ended) = network.ended(me, peer) else { return };
            let is_over = tokio::select! {
                biased;
                _ = ended.wait_for(|ended| *ended) => true,
                () = network.passes(me, peer) => false,
            };
            if !is_over && let Some(core) = network.core(peer) {
                core.hear(me, channel, &body);
            }
        });
    }

    fn is_connected(&self, peer: PeerId) -> bool {
        self.network.ended(self.me, peer).is_some()
    }

    fn connect(&self, peer: PeerDescriptor, deadline: Instant) -> BoxFuture<'static, Result<(), Error>> {
        let (network, me, peer) = (Arc::clone(&self.network), self.me, peer.id);
        Box::pin(async move {
            let unreachable =
                || Error::Unreachable { address: peer.to_string().into(), cause: "simulated".into() };
            if network.ended(me, peer).is_some() {
                return Ok(());
            }
            if network.is_parted(me, peer) {
                sleep_until(deadline.into()).await;
                return Err(Error::DeadlinePassed);
            }
            sleep_until(network.arrival(me, peer)).await;
            let (Some(here), Some(there)) = (network.core(me), network.core(peer)) else {
                return Err(unreachable());
            };
            if network.is_parted(me, peer) {
                return Err(unreachable());
            }
            let is_new = {
                let mut state = network.state.lock();
                let known = state.connections.contains_key(&pair(me, peer));
                if !known {
                    let connection = Connection { ended: watch::Sender::new(false) };
                    state.connections.insert(pair(me, peer), connection);
                }
                !known
            };
            if is_new {
                there.link_up(me);
                here.link_up(peer);
            }
            Ok(())
        })
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let (network, me) = (Arc::clone(&self.network), self.me);
        Box::pin(async move { network.kill(me) })
    }
}
