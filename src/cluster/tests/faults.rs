//! What happens to the members of a simulated cluster: one bad thing after the other, each with its end; and drains, which are none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidefs_engine::types::PeerId;
use tokio::time::sleep;

use super::host::Host;
use super::memory::Memory;
use super::simulation::World;
use crate::cluster::coordinator::Coordinator;
use crate::cluster::peers::Peer;
use crate::cluster::*;

/// How long a drain may take, with a crash in it.
const DRAIN_MAX: Duration = Duration::from_secs(90);

/// Tenths of a second in which two who were parted are to have met again.
const MEETING_MAX: u32 = 300;

/// What goes wrong while a member drains.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    Nothing,
    /// The member itself is killed, and started again.
    Drainer,
    /// One that may be asked to keep something is.
    Target,
}

impl World {
    fn peers(&self) -> Vec<(u64, PeerId)> {
        self.hosts.lock().iter().map(|(&id, host)| (id, host.cluster.core.me)).collect()
    }

    fn pick<T: std::marker::Copy>(&self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }

    fn begin_fault(&self, text: String) {
        self.is_faulty.store(true, Ordering::Relaxed);
        self.say(text);
    }

    fn take_host(&self, id: u64) -> Host {
        self.hosts.lock().remove(&id).unwrap()
    }

    async fn may_be_missing(&self, may_be_short: bool) {
        for name in &self.names {
            let mut history = name.lock().await;
            history.may_be_missing = true;
            history.may_be_short |= may_be_short;
        }
    }

    /// One thing that happens, and its end.
    pub(super) async fn break_something(&self) {
        let kind = self.below(11);
        let peers = self.peers();
        let (id, peer) = self.pick(&peers);
        let time = Duration::from_millis(200 + self.below(15_000));
        match kind {
            0 => self.part(peer, self.pick(&peers).1, time).await,
            1 => self.stop(id, peer, time).await,
            4 if peers.len() > 2 => self.leave(id, peer, time).await,
            5 => self.lose_session(id, time).await,
            7 | 8 if peers.len() > 2 => {
                let mishap = self.pick(&[Mishap::Nothing, Mishap::Drainer, Mishap::Target]);
                self.drain(id, mishap, time).await;
            }
            9 | 10 => self.lag(id, &peers, time).await,
            _ => self.kill(id, time).await,
        }
    }

    /// A member hears late what the coordinator says, and another one is started again meanwhile.
    async fn lag(&self, id: u64, peers: &[(u64, PeerId)], time: Duration) {
        let others: Vec<u64> = peers.iter().map(|&(other, _)| other).filter(|&other| other != id).collect();
        self.begin_fault(format!("{id} hears the coordinator late"));
        let handle = Arc::clone(&self.handles.lock()[&id]);
        handle.set_deaf(true);
        self.kill(self.pick(&others), time / 2).await;
        sleep(time / 2).await;
        handle.set_deaf(false);
        self.say(format!("{id} hears the coordinator again"));
    }

    async fn part(&self, one: PeerId, other: PeerId, time: Duration) {
        if other == one {
            return;
        }
        self.begin_fault(format!("{one} and {other} are parted for {time:?}"));
        self.network.part(one, other);
        sleep(time).await;
        self.network.join(one, other);
        self.say(format!("{one} and {other} are joined"));
        // What both who serve a key lose before they have met again is lost.
        for _ in 0..MEETING_MAX {
            if self.has_told(one, other) && self.has_told(other, one) {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Whether `other` knows all that `one` decided.
    fn has_told(&self, one: PeerId, other: PeerId) -> bool {
        let Some(host) = self.hosts.lock().get(&one.member.0).cloned() else { return true };
        let peers = host.cluster.core.peers.lock();
        peers.get(&other.member).is_none_or(Peer::has_heard_all)
    }

    async fn stop(&self, id: u64, peer: PeerId, time: Duration) {
        self.begin_fault(format!("{id} is stopped for {time:?}"));
        let others: Vec<PeerId> =
            self.peers().iter().map(|&(_, other)| other).filter(|&other| other != peer).collect();
        let host = self.take_host(id);
        for &other in &others {
            self.network.part(peer, other);
        }
        sleep(time).await;
        host.cluster.core.stood_still(time);
        for &other in &others {
            self.network.join(peer, other);
        }
        self.hosts.lock().insert(id, host);
        self.say(format!("{id} goes on"));
    }

    async fn kill(&self, id: u64, time: Duration) {
        let forgets = self.below(3) == 0;
        let is_noticed = self.below(2) == 0;
        self.begin_fault(format!(
            "{id} is killed for {time:?}, lease ends: {is_noticed}, memory lost: {forgets}"
        ));
        // Whoever is in the middle of something with it goes on until its call ends.
        let host = self.take_host(id);
        let memory = if forgets { Arc::default() } else { Arc::clone(&host.memory) };
        self.start_again(id, host, memory, (time, is_noticed)).await;
        if forgets {
            self.may_be_missing(false).await;
        }
    }

    /// Ends the process of a member, and starts it with what is in `memory` after a time. `is_noticed`: its lease ends meanwhile.
    async fn start_again(
        &self,
        id: u64,
        killed: Host,
        memory: Arc<Memory>,
        (time, is_noticed): (Duration, bool),
    ) {
        self.network.kill(killed.cluster.core.me);
        killed.cluster.close().await;
        let handle = self.handles.lock().remove(&id).unwrap();
        sleep(time / 2).await;
        if is_noticed {
            handle.leave(self.deadline()).await.unwrap();
        }
        sleep(time / 2).await;
        memory.state.lock().answers.clear();
        self.start(id, memory).await;
        self.say(format!("{id} is back"));
    }

    async fn leave(&self, id: u64, peer: PeerId, time: Duration) {
        self.begin_fault(format!("{id} leaves for ever"));
        let host = self.take_host(id);
        self.handles.lock().remove(&id);
        host.cluster.leave(self.deadline()).await.unwrap();
        sleep(time / 1000).await;
        self.network.kill(peer);
        host.cluster.close().await;
        self.may_be_missing(true).await;
    }

    /// The coordinator loses a member that the others reach, which hears of that, or does not, and is registered again.
    async fn lose_session(&self, id: u64, time: Duration) {
        let hears = self.below(2) == 0;
        self.begin_fault(format!("{id} loses its session for {time:?}, hears of it: {hears}"));
        let (core, handle) = {
            let hosts = self.hosts.lock();
            (Arc::clone(&hosts[&id].cluster.core), Arc::clone(&self.handles.lock()[&id]))
        };
        let member = handle.views().borrow().member(core.me.member).cloned();
        handle.set_deaf(!hears);
        handle.leave(self.deadline()).await.unwrap();
        sleep(time).await;
        if let Some(member) = member {
            handle.register(member, self.deadline()).await.unwrap();
        }
        handle.set_deaf(false);
        self.say(format!("{id} has its session again"));
    }

    /// A member leaves with nothing lost, whatever happens meanwhile. Its clients have left it before.
    async fn drain(&self, id: u64, mishap: Mishap, time: Duration) {
        let text = format!("{id} drains, what goes wrong: {mishap:?}");
        if matches!(mishap, Mishap::Nothing) {
            self.say(text)
        } else {
            self.begin_fault(text)
        }
        let mut host = self.take_host(id);
        for name in &self.names {
            // Whoever works on it does so with a name.
            drop(name.lock().await);
        }
        let order = DrainOrder::Begin { within_ms: None };
        host.cluster.drain(host.cluster.me(), order).await.unwrap();
        sleep(Duration::from_millis(self.below(30))).await;
        let is_noticed = time.as_millis().is_multiple_of(2);
        match mishap {
            Mishap::Nothing => {}
            Mishap::Drainer => {
                let memory = Arc::clone(&host.memory);
                self.start_again(id, host, memory, (time, is_noticed)).await;
                host = self.take_host(id);
            }
            Mishap::Target => {
                let (target, _) = self.pick(&self.peers());
                let killed = self.take_host(target);
                let memory = Arc::clone(&killed.memory);
                self.start_again(target, killed, memory, (time, is_noticed)).await;
            }
        }
        let until = tokio::time::Instant::now() + DRAIN_MAX;
        loop {
            let report = host.cluster.core.drain_report();
            match report.phase {
                DrainPhase::Left => break,
                DrainPhase::Copying => {}
                // Nobody took what is left for a while: it stayed, and begins again with that.
                _ => drop(host.cluster.drain(host.cluster.me(), order).await.unwrap()),
            }
            assert!(tokio::time::Instant::now() < until, "the drain of {id} does not end: {report:?}");
            sleep(Duration::from_millis(20)).await;
        }
        self.say(format!("{id} has left"));
        self.handles.lock().remove(&id);
        self.network.kill(host.cluster.core.me);
        host.cluster.close().await;
    }
}
