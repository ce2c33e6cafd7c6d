//! A heap of object slots that knows where each slot stands, so that any of them can be moved or taken out.
//!
//! The ranks stay in the policy's own table of nodes; the heap holds 4 bytes per object, where an ordered set
//! would hold about 40. Four children per parent halve the depth of a binary heap, and sifting is what costs.
//!
//! Invariants
//! - No slot ranks lower than its parent: the first is the lowest of all. Equal ranks are ordered by slot.
//! - A node's [`HeapNode::position`] is where its slot stands here, or [`ABSENT`].

/// Children per parent.
const ARITY: usize = 4;

/// Position of a node that stands in no heap.
pub(super) const ABSENT: u32 = u32::MAX;

/// A node of a policy's table, as the heap sees it.
pub(super) trait HeapNode {
    /// Lower leaves first.
    fn rank(&self) -> u64;
    /// Where the heap put it.
    fn position(&self) -> u32;
    /// Called by the heap alone.
    fn set_position(&mut self, position: u32);
}

/// Slots ordered by the rank of their nodes. Every call gets the table of nodes that the slots index.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotHeap {
    slots: Vec<u32>,
}

impl SlotHeap {
    /// The slot of lowest rank.
    pub(super) fn first(&self) -> Option<u32> {
        self.slots.first().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slot at `position` and the positions of its children, for a walk in order of rank.
    pub(super) fn at(&self, position: usize) -> Option<(u32, std::ops::Range<usize>)> {
        let slot = *self.slots.get(position)?;
        Some((slot, children(position, self.slots.len())))
    }

    /// Adds a slot that stands in no heap.
    pub(super) fn push<N: HeapNode>(&mut self, nodes: &mut [N], slot: u32) {
        debug_assert_eq!(nodes[index(slot)].position(), ABSENT);
        grow_gently(&mut self.slots, 1);
        self.slots.push(slot);
        self.sift_up(nodes, self.slots.len() - 1, slot);
    }

    /// Takes a slot of this heap out.
    pub(super) fn remove<N: HeapNode>(&mut self, nodes: &mut [N], slot: u32) {
        let position = index(nodes[index(slot)].position());
        debug_assert_eq!(self.slots[position], slot);
        nodes[index(slot)].set_position(ABSENT);
        let last = self.slots.pop().expect("the slot stands in this heap, so the heap is not empty");
        if last != slot {
            self.place(nodes, position, last);
        }
    }

    /// Restores the order after the rank of one slot of this heap changed.
    pub(super) fn reorder<N: HeapNode>(&mut self, nodes: &mut [N], slot: u32) {
        let position = index(nodes[index(slot)].position());
        debug_assert_eq!(self.slots[position], slot);
        self.place(nodes, position, slot);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }

    /// Puts `slot` at `position`, or above or below it as its rank asks.
    fn place<N: HeapNode>(&mut self, nodes: &mut [N], position: usize, slot: u32) {
        if position > 0 && order(nodes, slot) < order(nodes, self.slots[(position - 1) / ARITY]) {
            self.sift_up(nodes, position, slot);
        } else {
            self.sift_down(nodes, position, slot);
        }
    }

    fn sift_up<N: HeapNode>(&mut self, nodes: &mut [N], mut position: usize, slot: u32) {
        let own = order(nodes, slot);
        while position > 0 {
            let parent = (position - 1) / ARITY;
            let above = self.slots[parent];
            if order(nodes, above) <= own {
                break;
            }
            self.set(nodes, position, above);
            position = parent;
        }
        self.set(nodes, position, slot);
    }

    fn sift_down<N: HeapNode>(&mut self, nodes: &mut [N], mut position: usize, slot: u32) {
        let own = order(nodes, slot);
        loop {
            let lowest = children(position, self.slots.len())
                .map(|child| (order(nodes, self.slots[child]), child))
                .min();
            match lowest {
                Some((below, child)) if below < own => {
                    self.set(nodes, position, self.slots[child]);
                    position = child;
                }
                _ => break,
            }
        }
        self.set(nodes, position, slot);
    }

    fn set<N: HeapNode>(&mut self, nodes: &mut [N], position: usize, slot: u32) {
        self.slots[position] = slot;
        nodes[index(slot)].set_position(u32::try_from(position).expect("as many positions as slots"));
    }
}

/// Reserves room for `more` elements in steps of an eighth: doubling would waste up to half of the table.
fn grow_gently<T>(table: &mut Vec<T>, more: usize) {
    if table.capacity() - table.len() < more {
        table.reserve_exact(more.max(table.len() / 8).max(64));
    }
}

/// Lets a table of nodes reach to `slot`, with `vacant` ones.
pub(super) fn reach<N: Copy>(nodes: &mut Vec<N>, slot: u32, vacant: N) {
    let missing = (index(slot) + 1).saturating_sub(nodes.len());
    grow_gently(nodes, missing);
    nodes.resize(nodes.len() + missing, vacant);
}

/// A slot as an index into a table.
pub(super) fn index(slot: u32) -> usize {
    usize::try_from(slot).expect("tidefs runs on 64-bit hosts")
}

fn children(position: usize, len: usize) -> std::ops::Range<usize> {
    let first = position * ARITY + 1;
    first.min(len)..(first + ARITY).min(len)
}

fn order<N: HeapNode>(nodes: &[N], slot: u32) -> (u64, u32) {
    (nodes[index(slot)].rank(), slot)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    struct Item {
        rank: u64,
        position: u32,
    }

    impl HeapNode for Item {
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

    proptest! {
        /// Random pushes, rank changes and removals, compared with a scan for the minimum after each.
        #[test]
        fn the_first_is_always_the_lowest(ops in prop::collection::vec((0u32..40, 0u64..50), 0..300)) {
            let mut items = vec![Item { rank: 0, position: ABSENT }; 40];
            let mut heap = SlotHeap::default();
            for (slot, rank) in ops {
                if items[index(slot)].position == ABSENT {
                    items[index(slot)].rank = rank;
                    heap.push(&mut items, slot);
                } else if rank < 25 {
                    heap.remove(&mut items, slot);
                } else {
                    items[index(slot)].rank = rank - 25;
                    heap.reorder(&mut items, slot);
                }
                let lowest = (0u32..40)
                    .filter(|&slot| items[index(slot)].position != ABSENT)
                    .min_by_key(|&slot| order(&items, slot));
                prop_assert_eq!(heap.first(), lowest);
            }
        }
    }
}
