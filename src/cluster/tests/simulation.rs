//! A cluster in virtual time, over a network that is made up: clients write, remove, look up, read and evict while members
//! drain, and are parted, killed, started again, stopped or lost by the coordinator, of which they may not hear, or hear late,
//! one after the other ([`super::faults`]). One seed decides everything; it is printed when something is wrong.
//!
//! What holds, at any time: every call ends by its deadline; bytes are of the name that was read, and were written once.
//! Until the first fault every look-up says what is, while members drain, too; a drain ends, with a crash in it, too. After the
//! last fault, when all have had time to settle: what was removed last stays removed, on every host; what is found is what
//! was written last, or later without success; what is remembered is true; the owners of a shard agree, know of every object
//! that is held, and name nobody who is gone; nobody owes anybody anything; of what is held one copy is one to rely on, and
//! not one that leaves first; what is to be held twice is, unless a copy was let go of; nobody decides for one that is there.
//!
//! 40 seeds, or 500 when CI=true; `TIDEFS_SIMULATION_SEEDS` says how many, `TIDEFS_SIMULATION_SEED` which one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::rng::Rng;
use tidefs_engine::types::{MemberId, PeerId};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::deaf::Deaf;
use super::history::History;
use super::host::Host;
use super::memory::{Memory, Remembered};
use super::network::{End, Network, SILENCE};
use crate::cluster::carrier::Carrier;
use crate::cluster::catalog::owner::Role;
use crate::cluster::catalog::wire::Known;
use crate::cluster::coordinator::Coordinator;
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::core::{Core, Ingredients};
use crate::cluster::peers::Link;
use crate::cluster::shards::{KeyId, Shard};
use crate::cluster::*;

const KEYS: u64 = 12;
const CLIENTS: u64 = 4;
const OPERATIONS: u64 = 40;
const DEADLINE: Duration = Duration::from_secs(2);

pub(super) struct World {
    pub(super) network: Arc<Network>,
    coordinator: Embedded,
    pub(super) handles: Mutex<BTreeMap<u64, Arc<Deaf>>>,
    /// Those on which clients work.
    pub(super) hosts: Mutex<BTreeMap<u64, Host>>,
    pub(super) names: Vec<tokio::sync::Mutex<History>>,
    rng: Mutex<Rng>,
    began: tokio::time::Instant,
    /// Set with the first fault: from then on look-ups may miss.
    pub(super) is_faulty: std::sync::atomic::AtomicBool,
    /// Where members keep that they drain.
    files: tempfile::TempDir,
    log: Mutex<Vec<String>>,
}

impl World {
    pub(super) fn below(&self, bound: u64) -> u64 {
        self.rng.lock().below(bound)
    }

    pub(super) fn say(&self, text: String) {
        let at = self.began.elapsed().as_millis();
        self.log.lock().push(format!("{at:>7} {text}"));
    }

    fn stamp(&self) -> Stamp {
        Stamp(1_000_000 + u64::try_from(self.began.elapsed().as_nanos()).unwrap())
    }

    pub(super) fn deadline(&self) -> Instant {
        tokio::time::Instant::now().into_std() + DEADLINE
    }

    pub(super) async fn start(&self, id: u64, memory: Arc<Memory>) {
        let mut config = ClusterConfig::new(MemberId(id), &format!("host-{id}"));
        config.timings.silence = SILENCE;
        config.timings.reconnect = Duration::from_millis(200);
        config.timings.tick = Duration::from_millis(100);
        config.timings.grace = Duration::from_secs(20);
        config.drain_file = Some(self.files.path().join(format!("{id}.json")));
        let handle = Deaf::new(self.coordinator.another());
        let begun = handle.begin(MemberId(id), self.deadline()).await.unwrap();
        let me = PeerId { member: MemberId(id), incarnation: begun.incarnation };
        let end = End { me, network: Arc::clone(&self.network) };
        let holder: std::sync::Weak<dyn Holder> = Arc::<Memory>::downgrade(&memory);
        let core = Core::new(Ingredients {
            me,
            cluster: begun.cluster,
            config,
            runtime: Handle::current(),
            coordinator: Arc::clone(&handle) as Arc<dyn Coordinator>,
            holder,
            carrier: Arc::new(end) as Arc<dyn Carrier>,
            engine: None,
        });
        self.network.add(&core);
        let descriptor = tidefs_engine::engine::PeerDescriptor {
            id: me,
            addresses: vec![([127, 0, 0, 1], 1).into()],
            transports: Vec::new(),
        };
        let cluster = Cluster::join(core, descriptor, self.deadline()).await.unwrap();
        memory.belongs_to(&cluster);
        self.handles.lock().insert(id, handle);
        self.hosts.lock().insert(id, Host { cluster, memory });
    }

    fn any_host(&self) -> Option<(u64, Host)> {
        let hosts = self.hosts.lock();
        let at = usize::try_from(self.below(hosts.len() as u64)).unwrap();
        hosts.iter().nth(at).map(|(&id, host)| (id, host.clone()))
    }

    pub(super) fn is_faulty(&self) -> bool {
        self.is_faulty.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// One operation of one client on a name that nobody else changes meanwhile.
    async fn operate(&self, number: u64) {
        let key = usize::try_from(self.below(KEYS)).unwrap();
        let name = format!("kv/{key}");
        let kind = self.below(10);
        let mut history = self.names[key].lock().await;
        let Some((id, host)) = self.any_host() else { return };
        let (was_faulty, began) = (self.is_faulty(), tokio::time::Instant::now());
        let deadline = self.deadline();
        match kind {
            0..=2 => {
                let bytes = format!("{name} as {number}").into_bytes();
                let replicas = replicas_of(key);
                let done = host.write_copies(&name, &bytes, self.stamp(), replicas, deadline).await;
                self.say(format!("host {id} writes {name} as {number}: {done:?}"));
                assert!(was_faulty || self.is_faulty() || done.as_ref().is_ok_and(|done| done.is_settled));
                history.changes.push((Some(bytes), done.is_ok() && !host.is_dead()));
                history.may_be_missing &= host.is_dead();
                history.may_be_short &= host.is_dead();
            }
            3 => {
                let done = host.unlink(&name, self.stamp(), deadline).await;
                self.say(format!("host {id} removes {name}: {done:?}"));
                assert!(was_faulty || self.is_faulty() || done.is_ok());
                history.changes.push((None, done.is_ok() && !host.is_dead()));
            }
            4 => {
                host.evict(&name);
                self.say(format!("host {id} evicts {name}"));
                (history.may_be_missing, history.may_be_short) = (true, true);
            }
            5 | 6 => {
                let seen = host.look_up(&name, deadline).await;
                self.say(format!("host {id} looks {name} up: {seen:?}"));
                if !was_faulty && !self.is_faulty() {
                    let is_there = history.changes.last().is_some_and(|(bytes, _)| bytes.is_some());
                    let is_right =
                        seen.is_present() == is_there || (history.may_be_missing && !seen.is_present());
                    assert!(is_right, "{name} is {seen:?}, {history:?}");
                }
            }
            _ => {
                let read = host.read_and_keep(&name, deadline).await;
                self.say(format!(
                    "host {id} reads {name}: {:?}",
                    read.as_deref().map(String::from_utf8_lossy)
                ));
                if let Some(bytes) = &read {
                    let was_written = history.changes.iter().any(|(known, _)| known.as_ref() == Some(bytes));
                    assert!(was_written, "{name} was never {}", String::from_utf8_lossy(bytes));
                }
                if !was_faulty && !self.is_faulty() && !history.may_be_missing {
                    assert_eq!(read, history.changes.last().and_then(|(bytes, _)| bytes.clone()), "{name}");
                }
            }
        }
        let took = began.elapsed();
        // Reads are two calls, each with the rest of the time.
        assert!(took <= DEADLINE + Duration::from_millis(50), "an operation took {took:?}");
    }

    fn is_settled(&self) -> bool {
        let hosts = self.hosts.lock();
        hosts.values().all(|host| {
            let status = host.cluster.status();
            let peers = host.cluster.core.peers.lock();
            let mut members = peers.values().filter(|peer| peer.is_registered);
            let quiet =
                members.all(|peer| peer.link == Link::Up && !peer.is_slow && !peer.is_owed_anything());
            status.members.len() == hosts.len()
                && status.incomplete_shards == 0
                && status.shards_to_announce == 0
                && quiet
        })
    }

    async fn check_the_end(&self) {
        for _ in 0..600 {
            sleep(Duration::from_millis(100)).await;
            if self.is_settled() {
                break;
            }
        }
        assert!(self.is_settled(), "not settled after a minute");
        // What is under way arrives, and what was asked for again is announced.
        sleep(Duration::from_secs(5)).await;
        assert!(self.is_settled(), "settled, and then not any more");
        let hosts = self.hosts.lock().clone();
        for (id, host) in &hosts {
            let owner = host.cluster.core.owner.lock();
            let acts = Shard::all().any(|shard| owner.role(shard) == Role::Acting);
            assert!(!acts, "host {id} decides for one that is there");
        }
        for (key, history) in self.names.iter().enumerate() {
            let (name, history) = (format!("kv/{key}"), history.lock().await);
            let allowed = history.allowed();
            for (id, host) in &hosts {
                self.check_answers(*id, host, &name, &hosts);
                let held = host.memory.state.lock().objects.get(name.as_bytes()).cloned();
                if let Some(object) = held {
                    assert!(
                        allowed.contains(&Some(&object.bytes)),
                        "host {id} holds {name} as {object:?}, {history:?}"
                    );
                    let found = primary(&hosts, &name).1;
                    let is_known = match &found {
                        Known::Present { stamp, copies, .. } => {
                            *stamp == object.stamp && copies.iter().any(|copy| copy.member == MemberId(*id))
                        }
                        _ => false,
                    };
                    assert!(is_known, "host {id} holds {name} as {object:?}, the catalog says {found:?}");
                }
            }
        }
        // Which finds out, and tells, that a copy is not there any more: not before all were looked at.
        for (key, history) in self.names.iter().enumerate() {
            let (name, history) = (format!("kv/{key}"), history.lock().await);
            let allowed = history.allowed();
            for (id, host) in &hosts {
                let read = host.read(&name, self.deadline()).await;
                // After faults a name may be missing: whether it was written whole since is not followed that closely.
                let is_allowed = read.is_none() || allowed.contains(&read.as_deref());
                assert!(is_allowed, "host {id} reads {name} as {read:?}, {history:?}");
            }
        }
        // Who was asked in vain for a copy has said so, each shard was looked through once more, and what was lost is made
        // good after the time for which a lost member keeps its place.
        sleep(Duration::from_secs(40)).await;
        for (key, history) in self.names.iter().enumerate() {
            let (name, history) = (format!("kv/{key}"), history.lock().await);
            if let Known::Present { copies, .. } = primary(&hosts, &name).1 {
                let relied_on = copies.iter().filter(|copy| copy.medium.is_hard()).count();
                assert!(relied_on > 0, "all copies of {name} leave first: {copies:?}");
                let wanted = usize::from(replicas_of(key)).min(hosts.len());
                assert!(
                    history.may_be_short || relied_on >= wanted,
                    "{name} is to be held {wanted} times: {copies:?}"
                );
            }
            let (first, second) = owners_know(&hosts, &name);
            for known in [&first, &second] {
                let Known::Present { copies, .. } = known else { continue };
                let are_members = copies.iter().all(|copy| hosts.contains_key(&copy.member.0));
                assert!(are_members, "{name} is said to be where no member is: {known:?}");
            }
            assert!(
                agree(&hosts, &name, &first, &second),
                "{name}: the primary knows {first:?}, the backup {second:?}"
            );
        }
    }

    fn check_answers(&self, id: u64, host: &Host, name: &str, hosts: &BTreeMap<u64, Host>) {
        let (_, known) = primary(hosts, name);
        match (host.remembers(name), &known) {
            (None, _) | (Some(Remembered::Absent), Known::Gone { .. } | Known::Removed { .. }) => {}
            (Some(Remembered::Present(seen)), Known::Present { stamp, .. }) if seen == *stamp => {}
            (Some(answer), _) => panic!("host {id} remembers that {name} is {answer:?}, it is {known:?}"),
        }
    }
}

/// How many hosts are to hold a name.
fn replicas_of(key: usize) -> u8 {
    if key.is_multiple_of(3) { 2 } else { 1 }
}

fn known_at(host: &Host, name: &str) -> Known {
    let core = &host.cluster.core;
    core.owner.lock().known(KeyId::of(name.as_bytes()), Stamp(0), core.now())
}

fn primary(hosts: &BTreeMap<u64, Host>, name: &str) -> (MemberId, Known) {
    let any = hosts.values().next().unwrap();
    let owners = any.cluster.core.seen().map.owners(KeyId::of(name.as_bytes()).shard()).unwrap();
    (owners.primary, known_at(&hosts[&owners.primary.0], name))
}

fn owners_know(hosts: &BTreeMap<u64, Host>, name: &str) -> (Known, Known) {
    let any = hosts.values().next().unwrap();
    let owners = any.cluster.core.seen().map.owners(KeyId::of(name.as_bytes()).shard()).unwrap();
    let know = |member: MemberId| known_at(&hosts[&member.0], name);
    (know(owners.primary), know(owners.backup.unwrap_or(owners.primary)))
}

/// A backup may name copies that are gone, which whoever asks for them finds out; it misses none, and no removal.
fn agree(hosts: &BTreeMap<u64, Host>, name: &str, first: &Known, second: &Known) -> bool {
    match (first, second) {
        (Known::Present { stamp, .. }, Known::Present { stamp: other, .. }) => stamp == other,
        (Known::Gone { .. }, Known::Present { stamp, copies, .. }) => !copies.iter().any(|copy| {
            let state = hosts[&copy.member.0].memory.state.lock();
            state.objects.get(name.as_bytes()).is_some_and(|object| object.stamp == *stamp)
        }),
        (Known::Present { .. }, _) | (_, Known::Present { .. }) => false,
        _ => true,
    }
}

async fn run(seed: u64) -> Arc<World> {
    let mut rng = Rng::seeded(seed);
    let (members, faults) = (2 + rng.below(3), rng.below(5));
    let world = Arc::new(World {
        network: Network::new(rng.next_u64()),
        coordinator: Embedded::new(ClusterId(seed)),
        handles: Mutex::default(),
        hosts: Mutex::default(),
        names: (0..KEYS).map(|_| tokio::sync::Mutex::default()).collect(),
        rng: Mutex::new(rng),
        began: tokio::time::Instant::now(),
        is_faulty: false.into(),
        files: tempfile::tempdir().unwrap(),
        log: Mutex::default(),
    });
    LAST.set(Some(Arc::clone(&world)));
    for id in 1..=members {
        world.start(id, Arc::default()).await;
    }
    while !world.is_settled() {
        sleep(Duration::from_millis(20)).await;
    }
    sleep(Duration::from_secs(1)).await;
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let world = Arc::clone(&world);
        tasks.spawn(async move {
            for number in 0..OPERATIONS {
                sleep(Duration::from_millis(world.below(400))).await;
                world.operate(client * 1000 + number).await;
            }
        });
    }
    for _ in 0..faults {
        sleep(Duration::from_millis(world.below(8000))).await;
        world.break_something().await;
        // Time to catch up: what both owners of a shard lose at once is lost.
        sleep(SILENCE).await;
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    world.check_the_end().await;
    let hosts = std::mem::take(&mut *world.hosts.lock());
    for host in hosts.into_values() {
        host.cluster.close().await;
    }
    world
}

thread_local! {
    /// The world that ran last in this thread, for what is printed when it fails.
    static LAST: RefCell<Option<Arc<World>>> = const { RefCell::new(None) };
}

fn simulate(seed: u64) -> Result<(), String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        drop(runtime.block_on(run(seed)));
    }));
    let world = LAST.take();
    result.map_err(|_| {
        let log = world.map(|world| world.log.lock().join("\n")).unwrap_or_default();
        format!("{log}\nseed {seed} fails: TIDEFS_SIMULATION_SEED={seed} runs it alone")
    })
}

pub(super) fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_seed_brings_back_what_was_removed_or_forgets_who_was_answered() {
    let default = if std::env::var_os("CI").is_some() { 500 } else { 40 };
    let seeds = match from_environment("TIDEFS_SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_environment("TIDEFS_SIMULATION_SEEDS").unwrap_or(default),
    };
    let seeds = Mutex::new(seeds);
    let next = || seeds.lock().next();
    let run = || std::iter::from_fn(next).try_for_each(simulate);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        for thread in running {
            if let Err(report) = thread.join().unwrap() {
                panic!("{report}");
            }
        }
    });
}
