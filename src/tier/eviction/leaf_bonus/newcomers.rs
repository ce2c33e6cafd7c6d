//! The objects that were inserted last, in order: what they belong to is still being written.
//!
//! Limits: at most 255, and at most an eighth of the objects, so that a tiny cache is not all newcomers.

use std::collections::VecDeque;

use super::super::ObjectSlot;
use super::super::heap::index;
use super::node::Node;

/// At most one object in this many is a newcomer.
const SHARE: usize = 8;

/// See the module page.
#[derive(Debug)]
pub(super) struct Newcomers {
    slots: VecDeque<u32>,
    max: usize,
}

impl Newcomers {
    pub(super) fn new(max: u8) -> Self {
        let max = usize::from(max);
        Self { slots: VecDeque::with_capacity(max + 1), max }
    }

    /// Adds the object inserted just now.
    pub(super) fn admit(&mut self, object: ObjectSlot) {
        self.slots.push_back(object.0);
    }

    /// Releases the oldest newcomer if there are too many for `len` cached objects.
    pub(super) fn settle(&mut self, len: usize) -> Option<ObjectSlot> {
        let too_many = self.slots.len() > self.max.min(len / SHARE);
        if too_many { self.slots.pop_front().map(ObjectSlot) } else { None }
    }

    /// Drops an object that leaves; it need not be a newcomer.
    pub(super) fn forget(&mut self, object: ObjectSlot) {
        self.slots.retain(|&slot| slot != object.0);
    }

    /// The newcomer to evict if no other object can be: lowest class, leaf, lowest score.
    pub(super) fn coldest(
        &self,
        nodes: &[Node],
        is_leaf: impl Fn(u32) -> bool,
        is_gone: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let candidates = self.slots.iter().copied();
        candidates.filter(|&slot| !nodes[index(slot)].is_held() && !is_gone(slot)).min_by_key(|&slot| {
            let node = &nodes[index(slot)];
            (node.class(), !is_leaf(slot), node.score(), slot)
        })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }
}
