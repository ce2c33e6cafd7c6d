//! S3-FIFO: a small queue for newcomers, a main queue for what was used, a ghost that opens the main queue.
//!
//! Each queue is ordered by when an object entered it. An object at the head of the small queue leaves unless it
//! was used there; one at the head of the main queue leaves unless it was used since it stood there last. Chains
//! are ignored.
//!
//! Differs from the paper where the trace of the replay test asks for it: the ghost is much longer, it remembers
//! what leaves the main queue too, and one use in the small queue is enough to be promoted.
//!
//! Invariants
//! - An object that is not held stands in exactly one queue; a held one keeps its queue and its place.
//! - [`Eviction::victim`] may move used objects to the back, as the algorithm does when it looks for a victim;
//!   asked again without a change in between, it answers the same.
//!
//! Limits: who looks for a victim moves `SECOND_CHANCES_MAX` to the back at most: of a cache in which all was used, the next in
//! line leaves all the same, and nobody waits for the others to be moved.
//!
//! Cost: O(log objects), amortised over touches. The queues are heaps ordered by entry, because a list would not
//! take a released object back at its place.

use tidefs_engine::types::KeyHash;

use super::ghost::{Fingerprint, Ghost};
use super::heap::{ABSENT, HeapNode, SlotHeap, index, reach};
use super::standing::Standing;
use super::{Departure, Eviction, ObjectSlot, RetentionClass};

/// Bits of [`Node::rank`] below the class.
const ENTRY_BITS: u32 = 56;

/// Objects in a row that a search for a victim moves to the back because they were used.
const SECOND_CHANCES_MAX: usize = 1024;

/// What can be tuned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct S3FifoParameters {
    /// Share of the objects in the small queue, in percent.
    pub small_percent: u8,
    /// Uses in the small queue that earn a place in the main one.
    pub promotion_hits: u8,
    /// Uses that count in the main queue: how many times an object goes to the back at most.
    pub hits_max: u8,
    /// Evicted keys remembered, per cached object.
    pub ghost_factor: u32,
}

impl Default for S3FifoParameters {
    fn default() -> Self {
        Self { small_percent: 10, promotion_hits: 1, hits_max: 3, ghost_factor: 8 }
    }
}

/// See the module page.
#[derive(Debug)]
pub struct S3Fifo {
    queues: Queues,
    ghost: Ghost,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Queue {
    #[default]
    Small,
    Main,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// Class in the upper 8 bits, order of entry below.
    rank: u64,
    last_touch: u64,
    position: u32,
    fingerprint: Fingerprint,
    hits: u8,
    state: State,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    present: bool,
    held: bool,
    queue: Queue,
}

/// Everything but the ghost, so that a rehearsal of evictions can work on a copy.
#[derive(Clone, Debug)]
struct Queues {
    nodes: Vec<Node>,
    small: SlotHeap,
    main: SlotHeap,
    parameters: S3FifoParameters,
    clock: u64,
    entries: u64,
    len: usize,
}

impl HeapNode for Node {
    fn rank(&self) -> u64 {
        self.rank
    }

    fn position(&self) -> u32 {
        self.position
    }

    fn set_position(&mut self, position: u32) {
        self.position = position;
    }
}

impl Node {
    fn class(&self) -> u64 {
        self.rank >> ENTRY_BITS
    }

    fn retention_class(&self) -> RetentionClass {
        let [.., class] = self.class().to_be_bytes();
        RetentionClass(class)
    }

    fn entry(&self) -> u64 {
        self.rank & ((1 << ENTRY_BITS) - 1)
    }

    fn set_rank(&mut self, class: u64, entry: u64) {
        self.rank = class << ENTRY_BITS | entry;
    }
}

impl Queues {
    fn node(&self, slot: u32) -> Option<&Node> {
        self.nodes.get(index(slot)).filter(|node| node.state.present)
    }

    fn heap_of(&mut self, slot: u32) -> (&mut SlotHeap, &mut [Node]) {
        let heap = match self.nodes[index(slot)].state.queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
        };
        (heap, &mut self.nodes)
    }

    fn enqueue(&mut self, slot: u32) {
        if !self.nodes[index(slot)].state.held {
            let (heap, nodes) = self.heap_of(slot);
            heap.push(nodes, slot);
        }
    }

    fn dequeue(&mut self, slot: u32) {
        if !self.nodes[index(slot)].state.held {
            let (heap, nodes) = self.heap_of(slot);
            heap.remove(nodes, slot);
        }
    }

    fn insert(&mut self, slot: u32, fingerprint: Fingerprint, class: RetentionClass, queue: Queue) {
        reach(&mut self.nodes, slot, Node::default());
        self.clock += 1;
        self.entries += 1;
        self.len += 1;
        let state = State { present: true, held: false, queue };
        let node = &mut self.nodes[index(slot)];
        *node = Node { fingerprint, last_touch: self.clock, position: ABSENT, state, ..Node::default() };
        node.set_rank(u64::from(class.0), self.entries);
        self.enqueue(slot);
    }

    fn remove(&mut self, slot: u32) -> Option<Node> {
        let node = *self.node(slot)?;
        self.dequeue(slot);
        self.nodes[index(slot)] = Node::default();
        self.len -= 1;
        Some(node)
    }

    /// Sends an object to the back of the main queue with `hits` left.
    fn requeue(&mut self, slot: u32, hits: u8) {
        self.dequeue(slot);
        self.entries += 1;
        let node = &mut self.nodes[index(slot)];
        node.state.queue = Queue::Main;
        node.hits = hits;
        node.set_rank(node.class(), self.entries);
        self.enqueue(slot);
    }

    /// The head of the queue whose turn it is: that of the lower class, else the small one when it is too long.
    fn head(&self) -> Option<(u32, Queue)> {
        let small = self.small.first().map(|slot| (slot, Queue::Small));
        let main = self.main.first().map(|slot| (slot, Queue::Main));
        let (Some(newcomer), Some(veteran)) = (small, main) else { return small.or(main) };
        let class_of = |(slot, _): (u32, Queue)| self.nodes[index(slot)].class();
        let share = (self.small.len() + self.main.len()) * usize::from(self.parameters.small_percent) / 100;
        let small_first = match class_of(newcomer).cmp(&class_of(veteran)) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.small.len() > share,
            std::cmp::Ordering::Greater => false,
        };
        Some(if small_first { newcomer } else { veteran })
    }

    fn victim(&mut self) -> Option<u32> {
        for _ in 0..SECOND_CHANCES_MAX {
            let (slot, queue) = self.head()?;
            let hits = self.nodes[index(slot)].hits;
            match queue {
                Queue::Small if hits >= self.parameters.promotion_hits.max(1) => self.requeue(slot, 0),
                Queue::Main if hits > 0 => self.requeue(slot, hits - 1),
                Queue::Small | Queue::Main => return Some(slot),
            }
        }
        let (slot, _) = self.head()?;
        // The same when it is asked for again.
        self.nodes[index(slot)].hits = 0;
        Some(slot)
    }
}

impl S3Fifo {
    /// An empty policy.
    #[must_use]
    pub fn new(parameters: S3FifoParameters) -> Self {
        let queues = Queues {
            nodes: Vec::new(),
            small: SlotHeap::default(),
            main: SlotHeap::default(),
            parameters,
            clock: 0,
            entries: 0,
            len: 0,
        };
        Self { queues, ghost: Ghost::new(parameters.ghost_factor) }
    }
}

impl Eviction for S3Fifo {
    fn name(&self) -> &'static str {
        super::S3FIFO
    }

    fn insert(
        &mut self,
        object: ObjectSlot,
        key: KeyHash,
        _predecessor: Option<ObjectSlot>,
        class: RetentionClass,
    ) {
        self.queues.remove(object.0);
        let fingerprint = Fingerprint::of(key);
        let queue = if self.ghost.take(fingerprint).is_some() { Queue::Main } else { Queue::Small };
        self.queues.insert(object.0, fingerprint, class, queue);
    }

    fn touch(&mut self, object: ObjectSlot) {
        let hits_max = self.queues.parameters.hits_max.max(self.queues.parameters.promotion_hits);
        if self.queues.node(object.0).is_some() {
            self.queues.clock += 1;
            let node = &mut self.queues.nodes[index(object.0)];
            node.hits = node.hits.saturating_add(1).min(hits_max);
            node.last_touch = self.queues.clock;
        }
    }

    fn set_held(&mut self, object: ObjectSlot, held: bool) {
        let queues = &mut self.queues;
        if queues.node(object.0).is_some_and(|node| node.state.held != held) {
            queues.dequeue(object.0);
            queues.nodes[index(object.0)].state.held = held;
            queues.enqueue(object.0);
        }
    }

    fn set_class(&mut self, object: ObjectSlot, class: RetentionClass) {
        let queues = &mut self.queues;
        if queues.node(object.0).is_some() {
            queues.dequeue(object.0);
            let node = &mut queues.nodes[index(object.0)];
            node.set_rank(u64::from(class.0), node.entry());
            queues.enqueue(object.0);
        }
    }

    fn remove(&mut self, object: ObjectSlot, departure: Departure) {
        let Some(node) = self.queues.remove(object.0) else { return };
        if departure == Departure::Evicted {
            self.ghost.record(node.fingerprint, node.hits, self.queues.len);
        }
    }

    fn victim(&mut self) -> Option<ObjectSlot> {
        self.queues.victim().map(ObjectSlot)
    }

    /// Copies the queues and evicts from the copy: O(objects), which is fine for people.
    fn coldest(&mut self, limit: usize) -> Vec<ObjectSlot> {
        let mut rehearsal = self.queues.clone();
        std::iter::from_fn(|| {
            let slot = rehearsal.victim()?;
            rehearsal.remove(slot)?;
            Some(ObjectSlot(slot))
        })
        .take(limit)
        .collect()
    }

    fn lists_cheaply(&self) -> bool {
        false
    }

    fn set_below(&mut self, objects: usize) {
        self.ghost.set_below(objects);
    }

    fn standing(&self, object: ObjectSlot) -> Option<Standing> {
        self.queues.node(object.0).map(|node| Standing::alone(node.retention_class(), node.last_touch))
    }

    fn last_touch(&self, object: ObjectSlot) -> Option<u64> {
        self.queues.node(object.0).map(|node| node.last_touch)
    }

    fn len(&self) -> usize {
        self.queues.len
    }

    fn memory_bytes(&self) -> usize {
        self.queues.nodes.capacity() * size_of::<Node>()
            + self.queues.small.memory_bytes()
            + self.queues.main.memory_bytes()
            + self.ghost.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(small_percent: u8) -> S3Fifo {
        S3Fifo::new(S3FifoParameters { small_percent, promotion_hits: 2, ..S3FifoParameters::default() })
    }

    fn insert(policy: &mut S3Fifo, slots: std::ops::Range<u32>) {
        for slot in slots {
            policy.insert(ObjectSlot(slot), KeyHash(slot.into()), None, RetentionClass::NORMAL);
        }
    }

    fn touch(policy: &mut S3Fifo, slot: u32, times: usize) {
        (0..times).for_each(|_| policy.touch(ObjectSlot(slot)));
    }

    #[test]
    fn a_newcomer_needs_as_many_uses_as_promotion_asks_to_reach_the_main_queue() {
        let mut policy = policy(0);
        insert(&mut policy, 0..4);
        touch(&mut policy, 0, 1);
        touch(&mut policy, 1, 2);
        assert_eq!(policy.coldest(9), [0, 2, 3, 1].map(ObjectSlot));
    }

    #[test]
    fn a_key_that_the_ghost_remembers_enters_the_main_queue() {
        let mut policy = policy(0);
        insert(&mut policy, 0..3);
        policy.remove(ObjectSlot(0), Departure::Evicted);
        policy.remove(ObjectSlot(1), Departure::Gone);
        insert(&mut policy, 0..2);
        assert_eq!(policy.coldest(9), [2, 1, 0].map(ObjectSlot), "0 is in main, 1 is a newcomer again");
        policy.remove(ObjectSlot(0), Departure::Evicted);
        insert(&mut policy, 0..1);
        assert_eq!(policy.coldest(9), [2, 1, 0].map(ObjectSlot), "what leaves main is remembered too");
    }

    #[test]
    fn a_search_among_objects_that_were_all_used_ends_and_says_the_same_again() {
        let mut policy = policy(0);
        let count = 4 * u32::try_from(SECOND_CHANCES_MAX).unwrap();
        insert(&mut policy, 0..count);
        (0..count).for_each(|slot| touch(&mut policy, slot, 2));
        let entries = policy.queues.entries;
        let victim = policy.victim();
        assert_eq!(victim, Some(ObjectSlot(u32::try_from(SECOND_CHANCES_MAX).unwrap())), "the next in line");
        assert_eq!(policy.queues.entries - entries, SECOND_CHANCES_MAX as u64);
        assert_eq!((policy.victim(), policy.queues.entries - entries), (victim, SECOND_CHANCES_MAX as u64));
    }

    #[test]
    fn a_veteran_goes_to_the_back_once_per_use() {
        let mut policy = policy(0);
        insert(&mut policy, 0..3);
        (0..3).for_each(|slot| policy.remove(ObjectSlot(slot), Departure::Evicted));
        insert(&mut policy, 0..3);
        touch(&mut policy, 0, 1);
        touch(&mut policy, 1, 9);
        assert_eq!(policy.coldest(9), [2, 0, 1].map(ObjectSlot));
        touch(&mut policy, 0, 9);
        assert_eq!(policy.coldest(9), [2, 0, 1].map(ObjectSlot), "uses count up to a limit");
    }

    #[test]
    fn the_main_queue_gives_while_the_small_one_is_short() {
        let mut policy = policy(50);
        insert(&mut policy, 0..3);
        (0..3).for_each(|slot| policy.remove(ObjectSlot(slot), Departure::Evicted));
        insert(&mut policy, 0..4);
        assert_eq!(policy.victim(), Some(ObjectSlot(0)), "one newcomer of four is less than half");
        insert(&mut policy, 4..8);
        assert_eq!(policy.victim(), Some(ObjectSlot(3)), "five newcomers of eight are more");
    }
}
