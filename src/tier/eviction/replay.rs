//! Replays a public trace of requests and measures what a policy is for: the blocks that a request can read.
//!
//! Each block of a request is one object. A client reads the blocks before the first absent one and writes the
//! absent ones. *Hit ratio*: blocks before the first absent one over all blocks. *Hole rate*: blocks that are
//! cached behind an absent one, over all blocks. Links come from [`ChainTracker`], which sees only what the
//! kernel does not answer itself.
//!
//! The trace lies beside the checkout; without it the test says so and shows nothing.

use std::path::Path;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use serde::Deserialize;

use super::chain::ChainTracker;
use super::*;

const TRACE: &str = "../shared/traces/synthetic_trace.jsonl";
const CAPACITIES: [usize; 3] = [3_000, 10_000, 30_000];

#[derive(Deserialize)]
struct Request {
    hash_ids: Vec<u64>,
}

type Requests = Vec<Vec<u64>>;

fn requests() -> Option<Requests> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TRACE);
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("SKIPPED: no trace at {}", path.display());
        return None;
    };
    let parse = |line: &str| serde_json::from_str::<Request>(line).expect("a line is a request").hash_ids;
    Some(text.lines().map(parse).collect())
}

/// How a client uses names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// Probes all blocks, opens the present ones, creates the rest.
    ProbesAll,
    /// Probes to the first miss, opens those before, creates the rest with a probe of each.
    ProbesToMiss,
    /// One of each in turn.
    Both,
}

/// What reaches the daemon of the names that clients use.
#[derive(Debug)]
struct Kernel {
    /// Names it knows, present or absent. It forgets all of them now and then.
    names: HashSet<u64>,
    probes: u64,
    forget_every: u64,
}

impl Kernel {
    /// Whether a probe of `block` is sent on.
    fn sends_on(&mut self, block: u64) -> bool {
        self.probes += 1;
        if self.probes.is_multiple_of(self.forget_every) {
            self.names.clear();
        }
        self.names.insert(block)
    }
}

#[derive(Debug)]
struct Cache<'a> {
    policy: &'a mut dyn Eviction,
    capacity: usize,
    slots: HashMap<KeyHash, ObjectSlot>,
    blocks: Vec<u64>,
}

fn key(block: u64) -> KeyHash {
    KeyHash(block.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl Cache<'_> {
    fn has(&self, block: u64) -> bool {
        self.slots.contains_key(&key(block))
    }

    /// Makes room as the daemon does, before the block comes; returns the slot and what was evicted.
    fn make_room(&mut self) -> (ObjectSlot, Option<u64>) {
        if self.slots.len() < self.capacity {
            self.blocks.push(0);
            return (ObjectSlot(u32::try_from(self.blocks.len() - 1).unwrap()), None);
        }
        let victim = self.policy.victim().expect("a full cache has a victim");
        self.policy.remove(victim, Departure::Evicted);
        let evicted = self.blocks[victim.0 as usize];
        self.slots.remove(&key(evicted));
        (victim, Some(evicted))
    }

    fn insert(&mut self, slot: ObjectSlot, block: u64, predecessor: Option<KeyHash>) {
        let predecessor = predecessor.and_then(|before| self.slots.get(&before).copied());
        self.policy.insert(slot, key(block), predecessor, RetentionClass::NORMAL);
        self.slots.insert(key(block), slot);
        self.blocks[slot.0 as usize] = block;
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Score {
    blocks: usize,
    hits: usize,
    holes: usize,
    created: usize,
    sent_on: u64,
    wrong_links: usize,
}

impl Score {
    fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.blocks as f64
    }

    fn hole_rate(&self) -> f64 {
        self.holes as f64 / self.blocks as f64
    }
}

fn replay(
    requests: &Requests,
    policy: &mut dyn Eviction,
    capacity: usize,
    client: Client,
    forget_every: u64,
) -> Score {
    let mut cache = Cache { policy, capacity, slots: HashMap::new(), blocks: Vec::new() };
    let mut kernel = Kernel { names: HashSet::new(), probes: 0, forget_every };
    let mut tracker = ChainTracker::new();
    let mut score = Score::default();
    for (number, blocks) in requests.iter().enumerate() {
        let probes_all = client == Client::ProbesAll || (client == Client::Both && number % 2 == 0);
        let thread = u32::from(probes_all);
        // Back to back: no time passes between requests.
        let now = Duration::ZERO;
        let first_absent = blocks.iter().position(|&block| !cache.has(block)).unwrap_or(blocks.len());
        score.blocks += blocks.len();
        score.hits += first_absent;
        score.holes += blocks[first_absent..].iter().filter(|&&block| cache.has(block)).count();

        let probed = if probes_all { blocks.len() } else { (first_absent + 1).min(blocks.len()) };
        for &block in &blocks[..probed] {
            if kernel.sends_on(block) {
                score.sent_on += 1;
                tracker.probed(thread, key(block));
            }
        }
        for &block in &blocks[..first_absent] {
            cache.policy.touch(cache.slots[&key(block)]);
            tracker.opened(thread, key(block));
        }
        for (index, &block) in blocks.iter().enumerate().skip(first_absent) {
            // Its own probe of this kind of client, or the kernel's look-up before the rename.
            if kernel.sends_on(block) {
                score.sent_on += 1;
                tracker.probed(thread, key(block));
            }
            if cache.has(block) {
                continue;
            }
            let (slot, evicted) = cache.make_room();
            evicted.map(|name| kernel.names.remove(&name));
            let predecessor = tracker.created(thread, key(block), now);
            let truth = index.checked_sub(1).map(|before| key(blocks[before]));
            score.created += 1;
            score.wrong_links += usize::from(predecessor != truth);
            cache.insert(slot, block, predecessor);
        }
    }
    score
}

/// Exact LRU, written for this test alone: a map by time and a map by block.
fn exact_lru_hit_ratio(requests: &Requests, capacity: usize) -> f64 {
    let mut times = HashMap::new();
    let mut order = std::collections::BTreeMap::new();
    let (mut clock, mut hits, mut total) = (0u64, 0, 0);
    for blocks in requests {
        let first_absent = blocks.iter().position(|block| !times.contains_key(block)).unwrap_or(blocks.len());
        hits += first_absent;
        total += blocks.len();
        for (index, &block) in blocks.iter().enumerate() {
            if index >= first_absent && times.contains_key(&block) {
                continue;
            }
            clock += 1;
            if let Some(earlier) = times.insert(block, clock) {
                order.remove(&earlier);
            }
            order.insert(clock, block);
            if times.len() > capacity {
                let (_, coldest) = order.pop_first().expect("not empty");
                times.remove(&coldest);
            }
        }
    }
    hits as f64 / total as f64
}

/// The promise of the default policy, for both kinds of client and with a kernel that forgets names or not.
#[test]
fn the_default_policy_is_at_least_exact_lru_and_makes_no_holes() {
    let Some(requests) = requests() else { return };
    for capacity in CAPACITIES {
        let lru = exact_lru_hit_ratio(&requests, capacity);
        for client in [Client::ProbesAll, Client::ProbesToMiss, Client::Both] {
            for forget_every in [u64::MAX, 500, 1] {
                let mut policy = policy_by_name(POLICY_NAMES[0], &EvictionParameters::default()).unwrap();
                let score = replay(&requests, policy.as_mut(), capacity, client, forget_every);
                println!(
                    "{capacity:>6} objects, {client:?}, {} probes seen: hits {:.4} (exact LRU {lru:.4}), \
                     holes {:.4}, wrong links {:.4}",
                    score.sent_on,
                    score.hit_ratio(),
                    score.hole_rate(),
                    score.wrong_links as f64 / score.created as f64,
                );
                assert!(score.hit_ratio() >= lru, "{capacity} {client:?} {score:?} against {lru}");
                assert!(score.hole_rate() < 0.005, "{capacity} {client:?} {score:?}");
            }
        }
    }
}

/// The reference figures of the trace, so that the table above is comparable with others.
#[test]
fn exact_lru_has_the_published_hit_ratios_and_the_lru_policy_too() {
    let Some(requests) = requests() else { return };
    for (capacity, published) in CAPACITIES.into_iter().zip([0.188, 0.424, 0.624]) {
        let exact = exact_lru_hit_ratio(&requests, capacity);
        assert!((exact - published).abs() < 0.0006, "{capacity}: {exact}");
        for name in POLICY_NAMES {
            let mut policy = policy_by_name(name, &EvictionParameters::default()).unwrap();
            let score = replay(&requests, policy.as_mut(), capacity, Client::Both, u64::MAX);
            println!(
                "{capacity:>6} {name:>10}: hits {:.4}, holes {:.4}",
                score.hit_ratio(),
                score.hole_rate()
            );
            if name == LRU {
                assert!((score.hit_ratio() - exact).abs() < 0.0006, "{capacity}: {score:?} against {exact}");
            }
        }
    }
}
