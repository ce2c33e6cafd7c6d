//! Plays evictions without evicting: the order in which objects would leave, one after another.
//!
//! Walks both heaps from their tops, best first, and keeps beside them what the imagined departures change: the
//! successors that are left, and the non-leaves that become leaves. Cost: O(k log k) for k objects.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::{HashMap, HashSet};

use super::super::ObjectSlot;
use super::super::heap::{HeapNode, SlotHeap, index};
use super::LeafBonus;

/// A candidate: rank, slot, and its position in the heap it was found in (`None`: a leaf only since just now).
type Candidate = Reverse<(u64, u32, Option<usize>)>;

/// The coldest objects of a policy, coldest first.
pub(super) struct Rehearsal<'a> {
    policy: &'a LeafBonus,
    leaves: BinaryHeap<Candidate>,
    inner: BinaryHeap<Candidate>,
    /// Successors still cached, of predecessors that lost one.
    successors: HashMap<u32, u32>,
    /// Slots that are not to be taken where their heap has them: gone, or become leaves.
    moved: HashSet<u32>,
    gone: HashSet<u32>,
}

impl<'a> Rehearsal<'a> {
    pub(super) fn new(policy: &'a LeafBonus) -> Self {
        let mut rehearsal = Self {
            policy,
            leaves: BinaryHeap::new(),
            inner: BinaryHeap::new(),
            successors: HashMap::new(),
            moved: HashSet::new(),
            gone: HashSet::new(),
        };
        rehearsal.leaves.extend(rehearsal.candidate(&policy.leaves, 0));
        rehearsal.inner.extend(rehearsal.candidate(&policy.inner, 0));
        rehearsal
    }

    fn candidate(&self, heap: &SlotHeap, position: usize) -> Option<Candidate> {
        let (slot, _) = heap.at(position)?;
        Some(Reverse((self.policy.nodes[index(slot)].rank(), slot, Some(position))))
    }

    /// Replaces a candidate by its children in the heap.
    fn expand(&mut self, from_inner: bool, position: Option<usize>) {
        let heap = if from_inner { &self.policy.inner } else { &self.policy.leaves };
        let Some((_, children)) = position.and_then(|position| heap.at(position)) else { return };
        for child in children {
            let candidate = self.candidate(heap, child);
            if from_inner { &mut self.inner } else { &mut self.leaves }.extend(candidate);
        }
    }

    /// Takes the head of one queue and goes on behind it.
    fn pop(&mut self, from_inner: bool) -> Option<u32> {
        let queue = if from_inner { &mut self.inner } else { &mut self.leaves };
        let Reverse((_, slot, position)) = queue.pop()?;
        self.expand(from_inner, position);
        Some(slot)
    }

    /// The coldest slot that is still a non-leaf.
    fn first_inner(&mut self) -> Option<u32> {
        while let Some(&Reverse((_, slot, _))) = self.inner.peek() {
            if !self.moved.contains(&slot) {
                return Some(slot);
            }
            self.pop(true);
        }
        None
    }

    /// What the departure of `slot` changes for the object before it.
    fn release_predecessor(&mut self, slot: u32) {
        let Some(predecessor) = self.policy.live_predecessor(ObjectSlot(slot)) else { return };
        if self.gone.contains(&predecessor.0) {
            return;
        }
        let node = &self.policy.nodes[index(predecessor.0)];
        let left = self.successors.entry(predecessor.0).or_insert_with(|| node.successors());
        *left -= 1;
        if *left == 0 && node.is_queued() {
            self.moved.insert(predecessor.0);
            self.leaves.push(Reverse((node.rank(), predecessor.0, None)));
        }
    }
}

impl Iterator for Rehearsal<'_> {
    type Item = ObjectSlot;

    fn next(&mut self) -> Option<ObjectSlot> {
        let inner = self.first_inner();
        let leaf = self.leaves.peek().map(|Reverse((_, slot, _))| *slot);
        let queued = self.policy.coldest_of(leaf, inner, self.policy.len - self.gone.len());
        let is_leaf = |slot| {
            self.successors
                .get(&slot)
                .map_or_else(|| self.policy.nodes[index(slot)].is_leaf(), |&left| left == 0)
        };
        let newcomer =
            self.policy.newcomers.coldest(&self.policy.nodes, is_leaf, |slot| self.gone.contains(&slot));
        let slot = self.policy.settled_first(queued, newcomer)?;
        if Some(slot) == queued {
            self.pop(leaf != queued);
        }
        self.gone.insert(slot);
        self.moved.insert(slot);
        self.release_predecessor(slot);
        Some(ObjectSlot(slot))
    }
}
