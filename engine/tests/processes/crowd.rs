//! A thousand peers that do nothing: what one end of each costs, by the resident memory of a process that has that end
//! and nothing else, and by how often its threads are woken. Each peer has been used once, so its data connections
//! stand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tidefs_engine::engine::{Engine, PeerDescriptor};
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::request::{Batch, LocalPlace, RemotePlace, Request};
use tidefs_engine::transport::Direction;
use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId, RegionId};
use tokio::runtime::Handle;

use crate::child;
use crate::load::SHARED;
use crate::orders::{Answer, Order, Setup, Target};
use crate::peer::{Peer, next_id, setup};

const PEERS: u64 = 1_000;
/// Bytes that one end of an idle peer may hold.
const IDLE_BYTES_MAX: u64 = 64 << 10;
/// How often threads may be woken in a second for all idle peers: less than once for each of their signs of life.
const IDLE_WAKES_MAX: u64 = 600;
/// Descriptors that a process with a crowd needs: a listener, a link and four data connections each, and some.
const DESCRIPTORS: u64 = 8 * PEERS;

/// What a process with a crowd does for [`Order::Crowd`].
pub(crate) async fn gather(
    crowd: &mut Vec<Engine>,
    like: &Setup,
    first_member: u64,
    count: u64,
    target: Option<Target>,
) -> Answer {
    raise_limit();
    let region = Arc::new(Region::anonymous(ByteCount(4096), PageKind::Base, Access::ReadWrite).unwrap());
    let mut targets = Vec::new();
    for member in first_member..first_member + count {
        let id = PeerId { member: MemberId(member), incarnation: Incarnation(1) };
        let engine = child::start(&Handle::current(), &Setup { id, ..like.clone() });
        assert_eq!(engine.register(&region).unwrap(), SHARED);
        if let Some(target) = &target {
            touch(&engine, SHARED, target).await;
        }
        targets.push(Target { id, descriptor: engine.descriptor().encode() });
        crowd.push(engine);
    }
    Answer::Crowd(targets)
}

/// What it does for [`Order::Greet`].
pub(crate) async fn greet(engine: &Engine, region: RegionId, targets: &[Target]) -> Answer {
    raise_limit();
    for target in targets {
        touch(engine, region, target).await;
    }
    Answer::Done
}

/// Connects, and reads a little.
async fn touch(engine: &Engine, region: RegionId, target: &Target) {
    let deadline = Instant::now() + Duration::from_secs(20);
    engine.connect(&PeerDescriptor::decode(&target.descriptor).unwrap(), deadline).await.unwrap();
    let read = Request {
        direction: Direction::Read,
        local: LocalPlace { region, offset: 0 },
        remote: RemotePlace { peer: target.id, region: SHARED, offset: 0 },
        length: ByteCount(64),
    };
    engine.submit(Batch::new(vec![read], deadline)).await.into_result().unwrap();
}

/// As far as this user may.
fn raise_limit() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if soft < DESCRIPTORS {
        let wanted = DESCRIPTORS.max(hard);
        let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted)
            .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
        raised.unwrap();
    }
}

impl Peer {
    fn gather(&mut self, count: u64, target: Option<&Self>) -> Vec<Target> {
        let target = target.map(Self::target);
        let mut all = Vec::new();
        // In parts, so that each answer comes in time.
        for first in (0..count).step_by(100) {
            let order = Order::Crowd {
                first_member: 10_000 + first,
                count: (count - first).min(100),
                target: target.clone(),
            };
            let Answer::Crowd(targets) = self.ask(&order) else { panic!("it does not tell") };
            all.extend(targets);
        }
        all
    }
}

/// What an idle crowd costs.
#[derive(Debug)]
struct Cost {
    bytes_each: u64,
    /// Of all, in a second.
    wakes: u64,
    cpu_us: u64,
}

/// What it costs `hub`, which had nothing before `join`.
fn cost_of(hub: &mut Peer, join: impl FnOnce(&mut Peer)) -> Cost {
    let before = hub.status();
    join(hub);
    let after = hub.status();
    let opened = after.descriptors - before.descriptors;
    assert!(opened >= PEERS * 5, "a link and four connections each: {opened}");
    let bytes_each = after.resident_bytes.saturating_sub(before.resident_bytes) / PEERS;
    // Long enough for each link to ask for a sign of life, and be asked.
    let began = Instant::now();
    std::thread::sleep(Duration::from_millis(hub.setup.silence_ms / 2));
    let idle = hub.status();
    assert_eq!(idle.descriptors, after.descriptors, "peers were lost");
    let a_second =
        |count: u64| u64::try_from(u128::from(count) * 1_000 / began.elapsed().as_millis()).unwrap();
    Cost {
        bytes_each,
        wakes: a_second(idle.wakes - after.wakes),
        cpu_us: a_second(idle.cpu_us - after.cpu_us),
    }
}

fn expect_little(end: &str, cost: &Cost) {
    println!("{end} {PEERS} idle peers costs {cost:?}");
    assert!(cost.bytes_each <= IDLE_BYTES_MAX, "{end} idle peers costs {cost:?}");
    assert!(cost.wakes <= IDLE_WAKES_MAX, "{end} idle peers costs {cost:?}");
    // Who asks again and again without waiting takes a whole processor.
    assert!(cost.cpu_us < 250_000, "{end} idle peers costs {cost:?}");
}

/// How both processes are set up: as an engine is by default.
fn idle() -> Setup {
    Setup { silence_ms: 10_000, ..setup(next_id(), &["127.0.0.1:0"], "tcp") }
}

#[test]
fn to_serve_a_thousand_idle_peers_costs_little_memory_and_no_processor() {
    let (mut hub, mut crowd) = (Peer::start(idle()), Peer::start(idle()));
    // Not of its own: the hub does not dial, but its process needs the descriptors.
    let Answer::Done = hub.ask(&Order::Greet { targets: Vec::new() }) else { panic!("it does not") };
    let cost = cost_of(&mut hub, |hub| drop(crowd.gather(PEERS, Some(hub))));
    expect_little("to serve", &cost);
}

#[test]
fn to_have_used_a_thousand_idle_peers_costs_little_memory_and_no_processor() {
    let (mut hub, mut crowd) = (Peer::start(idle()), Peer::start(idle()));
    let targets = crowd.gather(PEERS, None);
    let cost = cost_of(&mut hub, |hub| {
        for some in targets.chunks(100) {
            let Answer::Done = hub.ask(&Order::Greet { targets: some.to_vec() }) else {
                panic!("it does not")
            };
        }
    });
    expect_little("to have used", &cost);
}
