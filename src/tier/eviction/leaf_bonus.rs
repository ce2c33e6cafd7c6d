//! The default policy: exact, leaf first, recency with a bonus for use, a long memory of what left.
//!
//! `score = clock of the last touch + bonus x capacity x min(hits, hits_max)`, where capacity is the number of
//! cached objects at that touch. The object of lowest (class, score) leaves first, among *leaves*: a block whose
//! successor is cached stays, because without it the successor could never be read. So an eviction shortens a
//! chain from its end and makes no hole.
//!
//! Chains are inferred, so a link may be wrong, and a wrong link must not keep a cold object. Two rules bound it:
//! - *Refutation.* Who reads a block reads its prefix too. A link whose successor is touched while the
//!   predecessor was not, since before the successor's earlier touch, is dropped.
//! - *Patience.* A block is never much older than what needs it. A non-leaf that scores lower than the coldest
//!   leaf by more than `link_patience` x capacity leaves before it.
//!
//! The objects inserted last are *newcomers* and leave after the others of their class. Room is made before a
//! block is inserted; without them, when all other leaves had a bonus, each block of a new chain would push out
//! the one before it and leave a hole.
//!
//! Invariants
//! - An object that is neither held nor a newcomer stands in exactly one heap: `leaves` without cached
//!   successors, else `inner`.
//! - A predecessor was inserted before its successor, so links form trees and there always is a leaf.
//! - A removed object's successors become roots: their link names a generation of the slot that is over.
//!
//! Cost: every call is O(log objects) but [`Eviction::coldest`]. Memory: 36 bytes per object and 3 per remembered
//! key, so about 60 per object with the ghost full.

mod newcomers;
mod node;
mod rehearsal;

#[cfg(test)]
mod model;

use tidefs_engine::types::KeyHash;

use self::newcomers::Newcomers;
use self::node::{Capacity, HITS_LIMIT, Node};
use super::ghost::{Fingerprint, Ghost};
use super::heap::{SlotHeap, index, reach};
use super::standing::{Standing, Turn};
use super::{Departure, Eviction, ObjectSlot, RetentionClass};

/// What can be tuned; the defaults are measured by the replay test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeafBonusParameters {
    /// Worth of one hit, in capacities of recency. Resolution 1/256. 0 is pure recency.
    pub bonus: f64,
    /// Hits that count, at most 15.
    pub hits_max: u8,
    /// Evicted keys remembered, per cached object.
    pub ghost_factor: u32,
    /// How much colder than the coldest leaf a non-leaf may be, in capacities. Resolution 1/256.
    pub link_patience: f64,
    /// Objects inserted last that are not evicted while another of their class can be, at most an eighth of all.
    pub newcomers_max: u8,
    /// Touches within which the order of a predecessor's and its successor's touch says nothing: clients read
    /// the blocks of a request in parallel.
    pub refutation_slack: u32,
}

impl Default for LeafBonusParameters {
    fn default() -> Self {
        Self {
            bonus: 1.0,
            hits_max: 2,
            ghost_factor: 8,
            link_patience: 4.0,
            newcomers_max: 16,
            refutation_slack: 64,
        }
    }
}

/// See the module page.
#[derive(Debug)]
pub struct LeafBonus {
    nodes: Vec<Node>,
    leaves: SlotHeap,
    inner: SlotHeap,
    newcomers: Newcomers,
    ghost: Ghost,
    clock: u64,
    len: usize,
    hits_max: u8,
    refutation_slack: u64,
    bonus: Ratio,
    link_patience: Ratio,
}

/// A factor in 1/256, so that scores are integers and replay alike everywhere.
#[derive(Clone, Copy, Debug)]
struct Ratio(u32);

impl Ratio {
    #[expect(clippy::cast_possible_truncation, reason = "clamped to the range first; a float cast saturates")]
    #[expect(clippy::cast_sign_loss, reason = "clamped to be positive")]
    fn new(factor: f64) -> Self {
        Self((factor * 256.0).round().clamp(0.0, f64::from(u32::MAX)) as u32)
    }

    fn of(self, amount: u64) -> u64 {
        amount.saturating_mul(u64::from(self.0)) >> 8
    }
}

impl LeafBonus {
    /// An empty policy.
    #[must_use]
    pub fn new(parameters: LeafBonusParameters) -> Self {
        Self {
            nodes: Vec::new(),
            leaves: SlotHeap::default(),
            inner: SlotHeap::default(),
            newcomers: Newcomers::new(parameters.newcomers_max),
            ghost: Ghost::new(parameters.ghost_factor),
            clock: 0,
            len: 0,
            hits_max: parameters.hits_max.min(HITS_LIMIT),
            refutation_slack: u64::from(parameters.refutation_slack),
            bonus: Ratio::new(parameters.bonus),
            link_patience: Ratio::new(parameters.link_patience),
        }
    }

    fn node(&self, object: ObjectSlot) -> Option<&Node> {
        self.nodes.get(index(object.0)).filter(|node| node.is_present())
    }

    /// Whether the linked predecessor of `object` is still the object that the link meant.
    fn live_predecessor(&self, object: ObjectSlot) -> Option<ObjectSlot> {
        let (predecessor, generation) = self.nodes[index(object.0)].predecessor()?;
        (self.nodes[index(predecessor.0)].generation() == generation).then_some(predecessor)
    }

    fn bonus_of(&self, node: &Node) -> u64 {
        self.bonus.of(node.capacity().objects().saturating_mul(u64::from(node.hits().min(self.hits_max))))
    }

    fn last_touch_of(&self, node: &Node) -> u64 {
        node.score().saturating_sub(self.bonus_of(node))
    }

    /// Counts one use of a node now; its heap is not told.
    fn stamp(&mut self, object: ObjectSlot, hits: u8) {
        self.clock += 1;
        let capacity = Capacity::round(self.len);
        let node = &mut self.nodes[index(object.0)];
        node.set_use(hits, capacity);
        let bonus = self.bonus.of(capacity.objects().saturating_mul(u64::from(hits.min(self.hits_max))));
        node.set_score(self.clock.saturating_add(bonus));
    }

    fn heap_of(&mut self, object: ObjectSlot) -> (&mut SlotHeap, &mut [Node]) {
        let heap = if self.nodes[index(object.0)].is_leaf() { &mut self.leaves } else { &mut self.inner };
        (heap, &mut self.nodes)
    }

    fn enqueue(&mut self, object: ObjectSlot) {
        if self.nodes[index(object.0)].is_queued() {
            let (heap, nodes) = self.heap_of(object);
            heap.push(nodes, object.0);
        }
    }

    fn dequeue(&mut self, object: ObjectSlot) {
        if self.nodes[index(object.0)].is_queued() {
            let (heap, nodes) = self.heap_of(object);
            heap.remove(nodes, object.0);
        }
    }

    fn reorder(&mut self, object: ObjectSlot) {
        if self.nodes[index(object.0)].is_queued() {
            let (heap, nodes) = self.heap_of(object);
            heap.reorder(nodes, object.0);
        }
    }

    /// Makes `predecessor` the one of `object`, which has none yet.
    fn link(&mut self, object: ObjectSlot, predecessor: ObjectSlot) {
        self.dequeue(predecessor);
        let node = &mut self.nodes[index(predecessor.0)];
        let linked = node.add_successor();
        let generation = node.generation();
        self.enqueue(predecessor);
        if linked {
            self.nodes[index(object.0)].set_predecessor(Some((predecessor, generation)));
        }
    }

    /// Makes `object` a root; its predecessor may become a leaf by that.
    fn unlink(&mut self, object: ObjectSlot) {
        let predecessor = self.live_predecessor(object);
        self.nodes[index(object.0)].set_predecessor(None);
        if let Some(predecessor) = predecessor {
            self.dequeue(predecessor);
            self.nodes[index(predecessor.0)].drop_successor();
            self.enqueue(predecessor);
        }
    }

    /// Whether `object`, touched right now, was touched twice since its predecessor was touched last.
    fn refutes_its_link(&self, object: ObjectSlot) -> bool {
        self.live_predecessor(object).is_some_and(|predecessor| {
            let earlier = self.last_touch_of(&self.nodes[index(object.0)]);
            let prefix = self.last_touch_of(&self.nodes[index(predecessor.0)]);
            prefix.saturating_add(self.refutation_slack) < earlier
        })
    }

    /// Which of the coldest leaf and the coldest non-leaf goes first while `len` objects are cached.
    fn coldest_of(&self, leaf: Option<u32>, inner: Option<u32>, len: usize) -> Option<u32> {
        let (Some(leaf), Some(inner)) = (leaf, inner) else { return leaf.or(inner) };
        let (above, below) = (&self.nodes[index(leaf)], &self.nodes[index(inner)]);
        let patience = self.link_patience.of(Capacity::round(len).objects());
        let leaf_first =
            (above.class(), above.score()) <= (below.class(), below.score().saturating_add(patience));
        Some(if leaf_first { leaf } else { inner })
    }

    /// The one of lower class, else the one that is no newcomer.
    fn settled_first(&self, settled: Option<u32>, newcomer: Option<u32>) -> Option<u32> {
        let (Some(settled), Some(newcomer)) = (settled, newcomer) else { return settled.or(newcomer) };
        let class = |slot| self.nodes[index(slot)].class();
        Some(if class(newcomer) < class(settled) { newcomer } else { settled })
    }
}

impl Eviction for LeafBonus {
    fn name(&self) -> &'static str {
        super::LEAF_BONUS
    }

    fn insert(
        &mut self,
        object: ObjectSlot,
        key: KeyHash,
        predecessor: Option<ObjectSlot>,
        class: RetentionClass,
    ) {
        self.remove(object, Departure::Gone);
        reach(&mut self.nodes, object.0, Node::VACANT);

        let fingerprint = Fingerprint::of(key);
        let hits = self.ghost.take(fingerprint).map_or(0, |hits| hits.saturating_add(1).min(HITS_LIMIT));
        self.len += 1;
        self.nodes[index(object.0)].occupy(fingerprint, class);
        self.stamp(object, hits);
        self.nodes[index(object.0)].set_newcomer(true);
        self.newcomers.admit(object);
        while let Some(settled) = self.newcomers.settle(self.len) {
            self.nodes[index(settled.0)].set_newcomer(false);
            self.enqueue(settled);
        }
        if let Some(predecessor) = predecessor.filter(|&it| it != object && self.node(it).is_some()) {
            self.link(object, predecessor);
        }
    }

    fn touch(&mut self, object: ObjectSlot) {
        let Some(node) = self.node(object) else { return };
        let hits = node.hits().saturating_add(1).min(HITS_LIMIT);
        if self.refutes_its_link(object) {
            self.unlink(object);
        }
        self.stamp(object, hits);
        self.reorder(object);
    }

    fn set_held(&mut self, object: ObjectSlot, held: bool) {
        let Some(node) = self.node(object) else { return };
        if node.is_held() != held {
            self.dequeue(object);
            self.nodes[index(object.0)].set_held(held);
            self.enqueue(object);
        }
    }

    fn set_class(&mut self, object: ObjectSlot, class: RetentionClass) {
        if self.node(object).is_some() {
            self.nodes[index(object.0)].set_class(class);
            self.reorder(object);
        }
    }

    fn remove(&mut self, object: ObjectSlot, departure: Departure) {
        if self.node(object).is_none() {
            return;
        }
        self.unlink(object);
        self.dequeue(object);
        self.len -= 1;
        self.newcomers.forget(object);
        let node = &mut self.nodes[index(object.0)];
        if departure == Departure::Evicted {
            self.ghost.record(node.fingerprint(), node.hits(), self.len);
        }
        node.vacate();
    }

    fn victim(&mut self) -> Option<ObjectSlot> {
        let queued = self.coldest_of(self.leaves.first(), self.inner.first(), self.len);
        let newcomer =
            self.newcomers.coldest(&self.nodes, |slot| self.nodes[index(slot)].is_leaf(), |_| false);
        self.settled_first(queued, newcomer).map(ObjectSlot)
    }

    fn coldest(&mut self, limit: usize) -> Vec<ObjectSlot> {
        rehearsal::Rehearsal::new(self).take(limit).collect()
    }

    fn standing(&self, object: ObjectSlot) -> Option<Standing> {
        let node = self.node(object)?;
        let is_newcomer = node.is_newcomer();
        let turn = Turn { class: node.retention_class(), is_newcomer, score: node.score() };
        let patience = self.link_patience.of(Capacity::round(self.len).objects());
        let at_latest = Turn { score: node.score().saturating_add(patience), ..turn };
        Some(Standing { turn, at_latest, predecessor: self.live_predecessor(object) })
    }

    fn last_touch(&self, object: ObjectSlot) -> Option<u64> {
        self.node(object).map(|node| self.last_touch_of(node))
    }

    fn set_below(&mut self, objects: usize) {
        self.ghost.set_below(objects);
    }

    fn len(&self) -> usize {
        self.len
    }

    fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.leaves.memory_bytes()
            + self.inner.memory_bytes()
            + self.newcomers.memory_bytes()
            + self.ghost.memory_bytes()
    }
}
