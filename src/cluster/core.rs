//! One member: its state, and what arrives for it.
//!
//! Locks are taken in the order `owner`, `peers`, the rest; none is held while something is waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::time::ClockId;
use parking_lot::{Mutex, RwLock};
use tidefs_engine::engine::{Answer, Engine};
use tidefs_engine::link::Channel;
use tidefs_engine::types::{BoxFuture, Incarnation, MemberId, PeerId};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::announcing::Plan;
use super::carrier::Carrier;
use super::catalog::owner::Owner;
use super::catalog::tombstones::Tombstones;
use super::catalog::watches::Watches;
use super::catalog::wire::{
    AGREED, Agreed, CATCH_UP, CHANGE, Changes, DRAIN, Done, Drain, FAREWELL, FIND, Find, KEEP, Keep, LEND,
    LIST, Lend, List, Message, RELEASE, REPLICATE, REVOKE, Release, Replicate, Revoke, VERSION, WireError,
};
use super::coordinator::Coordinator;
use super::copying::Copying;
use super::deciding::Unsettled;
use super::draining::Draining;
use super::giving_back::GivingBack;
use super::gone::AllGone;
use super::lending::{Loans, registers_slowly};
use super::letting_go::LetGo;
use super::member::{ClusterId, Member, View};
use super::object::Holder;
use super::parting::Parting;
use super::peers::Peers;
use super::publishing::Publishing;
use super::recalling::Recalled;
use super::removing::Unheard;
use super::settings::ClusterConfig;
use super::shards::{SHARDS, Shard, ShardMap};
use super::speaking::{Speaking, answer_in};
use super::status::Counters;

/// The members, and who serves what among them.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) view: View,
    pub(super) map: Arc<ShardMap>,
    /// There is nobody else, and never was.
    pub(super) is_alone: bool,
}

/// Shards that this member began to answer for: nobody is told that something is settled before all others have forgotten
/// what was answered about them before.
#[derive(Debug)]
pub(super) struct Takeover {
    pub(super) shards: BTreeSet<Shard>,
    pub(super) is_over: watch::Receiver<bool>,
}

/// How long members take at most to agree on who decides, and to hand over what they know, unless they have much.
const SETTLING: Duration = Duration::from_secs(1);

/// How long this host has been suspended since it was started.
///
/// # Source
/// clock_gettime(2): `CLOCK_BOOTTIME` is `CLOCK_MONOTONIC`, and counts the time in which the system is suspended too.
pub(super) fn host_slept() -> Duration {
    let read = |clock: ClockId| clock.now().map(Duration::from).unwrap_or_default();
    // In this order: what passes between the two is taken off, and is no sleep.
    let with_sleep = read(ClockId::CLOCK_BOOTTIME);
    with_sleep.saturating_sub(read(ClockId::CLOCK_MONOTONIC))
}

/// What time it is by the clock that people go by, in milliseconds since 1970.
pub(super) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// One member.
pub(super) struct Core {
    pub(super) me: PeerId,
    pub(super) cluster: ClusterId,
    pub(super) config: ClusterConfig,
    pub(super) runtime: Handle,
    pub(super) coordinator: Arc<dyn Coordinator>,
    /// What this member is registered as. Set once.
    pub(super) registration: OnceLock<Member>,
    pub(super) holder: Weak<dyn Holder>,
    pub(super) carrier: Speaking,
    pub(super) engine: Option<Engine>,
    /// Whether what is lent is to be registered where nobody else waits.
    pub(super) registers_slowly: bool,
    pub(super) seen: RwLock<Arc<Seen>>,
    /// The catalog that this member serves. Held for the keys of one message, in slices.
    pub(super) owner: Mutex<Owner>,
    pub(super) peers: Mutex<Peers>,
    /// Taken inside the lock of the peers.
    pub(super) gone: Mutex<AllGone>,
    /// For each shard, how often something about it was revoked here.
    revoked: Box<[AtomicU64]>,
    /// Before this view nothing may be remembered.
    pub(super) needed_view: AtomicU64,
    /// Taken last, inside the owner's lock, that of the peers, and a holder's.
    pub(super) publishing: Mutex<Publishing>,
    /// Taken inside the owner's lock.
    pub(super) unsettled: Mutex<Unsettled>,
    pub(super) takeovers: Mutex<Vec<Takeover>>,
    pub(super) plan: Plan,
    /// Removals that nobody who decides could be told of.
    pub(super) unheard: Unheard,
    /// Removals that an earlier start kept, and that not all who serve their shards have heard of.
    pub(super) recalled: Recalled,
    /// Copies that are gone, and of which nobody who decides could be told.
    pub(super) let_go: LetGo,
    pub(super) loans: Loans,
    pub(super) giving_back: GivingBack,
    pub(super) copying: Copying,
    pub(super) draining: Draining,
    pub(super) parting: Parting,
    pub(super) counters: Counters,
    began: tokio::time::Instant,
    /// How long the host had slept then, and since, in milliseconds: the clock of deadlines stands still meanwhile, and the
    /// other members do not.
    slept_before: Duration,
    slept_ms: AtomicU64,
    pub(super) tasks: Mutex<JoinSet<()>>,
    pub(super) is_closed: AtomicBool,
    /// Hand-overs of shards that are under way.
    pub(super) handing_over: AtomicUsize,
    /// The last view was without this member.
    pub(super) was_out: AtomicBool,
    /// This member decides nothing any more, whatever view comes: its daemon ends.
    pub(super) is_out_for_good: AtomicBool,
    /// A later start of this member, that the last view was with: others know this one no more.
    pub(super) successor: OnceLock<(Incarnation, Instant)>,
    /// When members last came, went or were lost, in milliseconds since this one began.
    moved_ms: AtomicU64,
    /// Up to which revision the holder goes by what is agreed on about directories; `None` until it was told once.
    pub(super) applied: watch::Sender<Option<u64>>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("me", &self.me).finish_non_exhaustive()
    }
}

/// What a core is made of.
pub(super) struct Ingredients {
    pub(super) me: PeerId,
    pub(super) cluster: ClusterId,
    pub(super) config: ClusterConfig,
    pub(super) runtime: Handle,
    pub(super) coordinator: Arc<dyn Coordinator>,
    pub(super) holder: Weak<dyn Holder>,
    pub(super) carrier: Arc<dyn Carrier>,
    pub(super) engine: Option<Engine>,
}

impl Core {
    pub(super) fn new(ingredients: Ingredients) -> Arc<Self> {
        let Ingredients { me, cluster, config, runtime, coordinator, holder, carrier, engine } = ingredients;
        let (limits, protocol) = (config.limits, config.protocol);
        let tombstones = Tombstones::new(config.timings.tombstones, limits.tombstones);
        let watches = Watches::new(usize::try_from(limits.watches.get()).unwrap_or(usize::MAX));
        let view = View::default();
        let map = Arc::new(ShardMap::new(&view));
        Arc::new(Self {
            me,
            cluster,
            config,
            coordinator,
            registration: OnceLock::new(),
            holder,
            carrier: Speaking::new(carrier, protocol),
            registers_slowly: engine.as_ref().is_some_and(registers_slowly),
            engine,
            seen: RwLock::new(Arc::new(Seen { view, map, is_alone: true })),
            owner: Mutex::new(Owner::new(me.member, tombstones, watches)),
            peers: Mutex::new(BTreeMap::new()),
            gone: Mutex::default(),
            revoked: (0..SHARDS).map(|_| AtomicU64::new(0)).collect(),
            needed_view: AtomicU64::new(0),
            publishing: Mutex::default(),
            unsettled: Mutex::default(),
            takeovers: Mutex::default(),
            plan: Plan::default(),
            unheard: Unheard::default(),
            recalled: Recalled::default(),
            let_go: LetGo::default(),
            loans: Loans::default(),
            giving_back: GivingBack::default(),
            copying: Copying::default(),
            draining: Draining::default(),
            parting: Parting::default(),
            counters: Counters::default(),
            began: {
                let _context = runtime.enter();
                tokio::time::Instant::now()
            },
            runtime,
            slept_before: host_slept(),
            slept_ms: AtomicU64::new(0),
            tasks: Mutex::default(),
            is_closed: AtomicBool::new(false),
            handing_over: AtomicUsize::new(0),
            applied: watch::Sender::new(None),
            was_out: AtomicBool::new(false),
            is_out_for_good: AtomicBool::new(false),
            successor: OnceLock::new(),
            moved_ms: AtomicU64::new(0),
        })
    }

    /// Members came, went or were lost: who decides about what is being settled.
    pub(super) fn note_move(&self) {
        let now_ms = u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Whether that was so short a time ago that somebody may answer soon who does not know yet.
    pub(super) fn is_settling(&self) -> bool {
        self.now().saturating_sub(Duration::from_millis(self.moved_ms.load(Ordering::Relaxed))) < SETTLING
    }

    /// Time since this member began, that in which the host slept included.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed() + Duration::from_millis(self.slept_ms.load(Ordering::Relaxed))
    }

    /// The host has slept for so long since it was started.
    pub(super) fn note_sleep(&self, slept: Duration) {
        let since = slept.saturating_sub(self.slept_before).as_millis();
        self.slept_ms.fetch_max(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The moment that is `wait` from now.
    pub(super) fn within(&self, wait: Duration) -> Instant {
        tokio::time::Instant::now().into_std() + wait
    }

    /// The deadline of what nobody waits for.
    pub(super) fn in_background(&self) -> Instant {
        self.within(self.config.timings.background)
    }

    /// Time until `deadline`.
    pub(super) fn until(&self, deadline: Instant) -> Duration {
        deadline.saturating_duration_since(tokio::time::Instant::now().into_std())
    }

    /// How long ago a deadline passed.
    pub(super) fn since(&self, deadline: Instant) -> Duration {
        tokio::time::Instant::now().into_std().saturating_duration_since(deadline)
    }

    pub(super) fn seen(&self) -> Arc<Seen> {
        Arc::clone(&self.seen.read())
    }

    /// Runs a task for as long as this member takes part.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        if self.is_closed.load(Ordering::Acquire) {
            return;
        }
        while tasks.try_join_next().is_some() {}
        // Behind one type: what the runtime does with a task would be compiled once for each that there is.
        let task: BoxFuture<'static, ()> = Box::pin(task);
        tasks.spawn_on(task, &self.runtime);
    }

    pub(super) fn revocations(&self, shard: Shard) -> u64 {
        self.revoked[usize::from(shard.number())].load(Ordering::Acquire)
    }

    pub(super) fn note_revocation(&self, shard: Shard) {
        self.revoked[usize::from(shard.number())].fetch_add(1, Ordering::AcqRel);
    }

    /// Whether answers may be remembered at all.
    pub(super) fn may_remember(&self) -> bool {
        !self.is_out() && self.seen.read().view.number >= self.needed_view.load(Ordering::Acquire)
    }

    /// Whether others serve what this member served: the coordinator has lost it, and told it so, or its daemon ends.
    pub(super) fn is_out(&self) -> bool {
        self.was_out.load(Ordering::Acquire) || self.is_out_for_good.load(Ordering::Acquire)
    }

    /// Whether `other` takes part, and no view that came here says that anybody does but this member. Its catalog was told
    /// nothing then, not even of what is held here.
    pub(super) fn has_yet_to_hear_of(&self, other: PeerId) -> bool {
        other.member != self.me.member && self.seen.read().is_alone
    }

    pub(super) fn is_suspect(&self, member: MemberId) -> bool {
        if member == self.me.member {
            return false;
        }
        let (now, patience) = (self.now(), self.first_patience());
        self.peers.lock().get(&member).is_none_or(|peer| peer.is_suspect(now, patience))
    }

    /// How long a member is not suspect that was never reached.
    pub(super) fn first_patience(&self) -> Duration {
        self.config.timings.reconnect * 2
    }

    /// A request of a peer, answered in its version.
    pub(super) fn serve(self: &Arc<Self>, peer: PeerId, channel: Channel, body: &[u8]) -> Answer {
        let Some(&version) = body.first() else { return Answer::Now(Err("no bytes".to_owned())) };
        let answer = match self.carrier.admit(body) {
            Ok(()) => self.serve_here(peer, channel, body),
            Err(refusal) => Answer::Now(Err(refusal)),
        };
        if version == VERSION { answer } else { answer_in(version, channel, answer) }
    }

    fn serve_here(self: &Arc<Self>, peer: PeerId, channel: Channel, body: &[u8]) -> Answer {
        let answer = match channel {
            FIND => Find::decode(body).map(|find| Answer::Now(Ok(self.answer_find(peer, &find).encode()))),
            CHANGE => Changes::decode(body).map(|changes| self.answer_changes(peer, &changes)),
            REPLICATE => Replicate::decode(body).map(|word| self.answer_replicate(peer, &word)),
            REVOKE => Revoke::decode(body).map(|revoke| self.answer_revoke(peer, revoke)),
            CATCH_UP => Done::decode(body).map(|_| self.answer_catch_up(peer)),
            LEND => Lend::decode(body).map(|lend| self.answer_lend(peer, lend)),
            KEEP => Keep::decode(body).map(|keep| self.answer_keep(peer, keep)),
            AGREED => Agreed::decode(body).map(|agreed| self.answer_agreed(agreed)),
            DRAIN => Drain::decode(body).map(|drain| self.answer_drain(drain)),
            LIST => List::decode(body).map(|list| Answer::Now(Ok(self.answer_list(&list).encode()))),
            _ => return Answer::Now(Err(format!("nobody answers on channel {}", channel.0))),
        };
        answer.unwrap_or_else(|error| {
            tracing::warn!(%peer, channel = channel.0, %error, "a request is refused");
            Answer::Now(Err(error.to_string()))
        })
    }

    /// A notification of a peer.
    pub(super) fn hear(self: &Arc<Self>, peer: PeerId, channel: Channel, body: &[u8]) {
        if let Err(refusal) = self.carrier.admit(body) {
            tracing::warn!(%peer, channel = channel.0, refusal, "a notification is refused");
            return;
        }
        let heard: Result<(), WireError> = match channel {
            RELEASE => Release::decode(body).map(|release| self.take_back(peer, &release)),
            FAREWELL => Done::decode(body).map(|_| self.bid_farewell(peer)),
            _ => Ok(()),
        };
        if let Err(error) = heard {
            tracing::warn!(%peer, channel = channel.0, %error, "a notification is refused");
        }
    }

    pub(super) async fn close(&self) {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
        self.carrier.close().await;
        self.loans.clear();
    }
}
