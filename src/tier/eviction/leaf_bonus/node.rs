//! What the default policy keeps of one object: 32 bytes, because there are millions.
//!
//! Invariants
//! - The last touch is not stored: it is the score less the bonus, and the node keeps what made the bonus.
//! - A generation ends when an object leaves with links to it; links that name an older one are void. A link
//!   could be taken for live only after 65,536 such ends of one slot, and would then be a wrong link like any.

use super::super::ghost::{self, Fingerprint};
use super::super::heap::{ABSENT, HeapNode};
use super::super::{ObjectSlot, RetentionClass};

/// Hits beyond this are not counted: it fits the ghost's entry, so that a life continues where it ended.
pub(super) const HITS_LIMIT: u8 = ghost::HITS_MAX;

const _: () = assert!(size_of::<Node>() == 32, "two nodes to a cache line");
const _: () = assert!(HITS_LIMIT == (HITS_MASK >> HITS_SHIFT).to_le_bytes()[0], "the count fills its bits");

/// Bits of [`Node::rank`] below the class. 2^56 touches are 2,000 years of a million per second.
const SCORE_BITS: u32 = 56;
const SCORE_MAX: u64 = (1 << SCORE_BITS) - 1;

/// Layout of [`Node::counts`]: successors, hits, three flags.
const SUCCESSORS_MAX: u32 = (1 << 25) - 1;
const HITS_SHIFT: u32 = 25;
const HITS_MASK: u32 = 0xf << HITS_SHIFT;
const NEWCOMER: u32 = 1 << 29;
const HELD: u32 = 1 << 30;
const PRESENT: u32 = 1 << 31;

/// No predecessor.
const NONE: u32 = u32::MAX;

/// A number of objects to ten significant bits, in two bytes: mantissa x 2^exponent.
///
/// The bonus is measured in capacities; what it needs is the same value later, not all digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity(u16);

impl Capacity {
    const MANTISSA_BITS: u32 = 10;

    /// `objects`, rounded down.
    #[expect(clippy::cast_possible_truncation, reason = "a mantissa of 10 bits and an exponent below 64")]
    pub(super) fn round(objects: usize) -> Self {
        let objects = objects as u64;
        let exponent = (u64::BITS - objects.leading_zeros()).saturating_sub(Self::MANTISSA_BITS);
        Self((exponent << Self::MANTISSA_BITS) as u16 | (objects >> exponent) as u16)
    }

    pub(super) fn objects(self) -> u64 {
        let mantissa = self.0 & ((1 << Self::MANTISSA_BITS) - 1);
        u64::from(mantissa) << (self.0 >> Self::MANTISSA_BITS)
    }
}

/// One object, or a vacant slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Class in the upper 8 bits, score below: the order of eviction within a heap.
    rank: u64,
    predecessor: u32,
    position: u32,
    counts: u32,
    fingerprint: Fingerprint,
    capacity: Capacity,
    generation: u16,
    predecessor_generation: u16,
}

impl Node {
    pub(super) const VACANT: Self = Self {
        rank: 0,
        predecessor: NONE,
        position: ABSENT,
        counts: 0,
        fingerprint: Fingerprint::NOTHING,
        capacity: Capacity(0),
        generation: 0,
        predecessor_generation: 0,
    };

    /// Starts a life: a root, a leaf, not held, never used.
    pub(super) fn occupy(&mut self, fingerprint: Fingerprint, class: RetentionClass) {
        *self = Self { counts: PRESENT, fingerprint, generation: self.generation, ..Self::VACANT };
        self.set_class(class);
    }

    /// Ends a life; links to it become void.
    pub(super) fn vacate(&mut self) {
        let generation = if self.is_leaf() { self.generation } else { self.generation.wrapping_add(1) };
        *self = Self { generation, ..Self::VACANT };
    }

    pub(super) fn is_present(&self) -> bool {
        self.counts & PRESENT != 0
    }

    pub(super) fn is_held(&self) -> bool {
        self.counts & HELD != 0
    }

    pub(super) fn set_held(&mut self, held: bool) {
        self.counts = if held { self.counts | HELD } else { self.counts & !HELD };
    }

    pub(super) fn set_newcomer(&mut self, newcomer: bool) {
        self.counts = if newcomer { self.counts | NEWCOMER } else { self.counts & !NEWCOMER };
    }

    pub(super) fn is_newcomer(&self) -> bool {
        self.counts & NEWCOMER != 0
    }

    /// Whether it stands in a heap.
    pub(super) fn is_queued(&self) -> bool {
        self.counts & (PRESENT | HELD | NEWCOMER) == PRESENT
    }

    pub(super) fn successors(&self) -> u32 {
        self.counts & SUCCESSORS_MAX
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.successors() == 0
    }

    /// Counts a successor; `false` if there are as many as can be counted.
    pub(super) fn add_successor(&mut self) -> bool {
        let room = self.successors() < SUCCESSORS_MAX;
        self.counts += u32::from(room);
        room
    }

    pub(super) fn drop_successor(&mut self) {
        self.counts -= u32::from(!self.is_leaf());
    }

    pub(super) fn hits(&self) -> u8 {
        u8::try_from((self.counts & HITS_MASK) >> HITS_SHIFT).unwrap_or(HITS_LIMIT)
    }

    /// Records the count of uses and the capacity in force at the last one.
    pub(super) fn set_use(&mut self, hits: u8, capacity: Capacity) {
        self.counts = (self.counts & !HITS_MASK) | u32::from(hits.min(HITS_LIMIT)) << HITS_SHIFT;
        self.capacity = capacity;
    }

    pub(super) fn capacity(&self) -> Capacity {
        self.capacity
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub(super) fn class(&self) -> u64 {
        self.rank >> SCORE_BITS
    }

    pub(super) fn retention_class(&self) -> RetentionClass {
        let [.., class] = self.class().to_be_bytes();
        RetentionClass(class)
    }

    pub(super) fn set_class(&mut self, class: RetentionClass) {
        self.rank = u64::from(class.0) << SCORE_BITS | self.score();
    }

    pub(super) fn score(&self) -> u64 {
        self.rank & SCORE_MAX
    }

    pub(super) fn set_score(&mut self, score: u64) {
        self.rank = self.class() << SCORE_BITS | score.min(SCORE_MAX);
    }

    pub(super) fn generation(&self) -> u16 {
        self.generation
    }

    /// The linked predecessor and the generation of its slot that is meant.
    pub(super) fn predecessor(&self) -> Option<(ObjectSlot, u16)> {
        (self.predecessor != NONE).then_some((ObjectSlot(self.predecessor), self.predecessor_generation))
    }

    pub(super) fn set_predecessor(&mut self, link: Option<(ObjectSlot, u16)>) {
        let (slot, generation) = link.unwrap_or((ObjectSlot(NONE), 0));
        self.predecessor = slot.0;
        self.predecessor_generation = generation;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_is_exact_to_1023_and_close_beyond() {
        for objects in [0, 1, 2, 1000, 1023] {
            assert_eq!(Capacity::round(objects).objects(), objects as u64);
        }
        for objects in [1025, 30_000, 1_000_001, 4_000_000_007, usize::MAX] {
            let rounded = Capacity::round(objects).objects();
            let error = objects as u64 - rounded;
            assert!(error <= objects as u64 / 512, "{objects} became {rounded}");
        }
    }

    #[test]
    fn class_score_and_counts_do_not_touch_each_other() {
        let mut node = Node::VACANT;
        node.occupy(Fingerprint::NOTHING, RetentionClass(255));
        node.set_score(u64::MAX);
        node.set_use(200, Capacity::round(5));
        node.set_held(true);
        assert!(node.add_successor());
        assert_eq!((node.class(), node.score(), node.hits()), (255, SCORE_MAX, HITS_LIMIT));
        node.set_class(RetentionClass(1));
        assert_eq!((node.class(), node.score(), node.successors()), (1, SCORE_MAX, 1));
        node.set_held(false);
        node.drop_successor();
        node.drop_successor();
        assert!(node.is_leaf() && node.is_present() && !node.is_held());
    }

    #[test]
    fn only_a_life_with_links_to_it_ends_a_generation() {
        let mut node = Node::VACANT;
        node.occupy(Fingerprint::NOTHING, RetentionClass::NORMAL);
        node.vacate();
        assert_eq!(node.generation(), 0);
        node.occupy(Fingerprint::NOTHING, RetentionClass::NORMAL);
        assert!(node.add_successor());
        node.vacate();
        assert_eq!(node.generation(), 1);
        assert!(!node.is_present());
    }
}
