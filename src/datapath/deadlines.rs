//! Moments at which something ends for what is in a slot: found by the slot, and taken in their order when they have come.
//!
//! Invariant: a slot has one moment at most, which stands in the order once.
//!
//! Threads: any, under the state's lock.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::namespace::Slot;

/// Slots, each with its moment on some clock. It is read like a map.
#[derive(Debug, Default)]
pub(super) struct Deadlines<T> {
    of: HashMap<Slot, T>,
    in_order: BTreeSet<(T, Slot)>,
}

impl<T: Copy + Ord> Deadlines<T> {
    /// The moment of `slot` is `at` from now on, and no other.
    pub(super) fn set(&mut self, slot: Slot, at: T) {
        self.clear(slot);
        self.of.insert(slot, at);
        self.in_order.insert((at, slot));
    }

    /// Nothing ends for `slot` any more.
    pub(super) fn clear(&mut self, slot: Slot) {
        if let Some(at) = self.of.remove(&slot) {
            self.in_order.remove(&(at, slot));
        }
    }

    pub(super) fn get(&self, slot: &Slot) -> Option<&T> {
        self.of.get(slot)
    }

    pub(super) fn contains_key(&self, slot: &Slot) -> bool {
        self.of.contains_key(slot)
    }

    /// Takes out up to `limit` slots whose moment has come, the earliest first.
    pub(super) fn take_due(&mut self, now: T, limit: usize) -> Vec<Slot> {
        let mut due = Vec::new();
        while due.len() < limit
            && let Some(&(at, slot)) = self.in_order.first()
            && at <= now
        {
            self.in_order.pop_first();
            self.of.remove(&slot);
            due.push(slot);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_taken_once_the_earliest_first() {
        let mut deadlines = Deadlines::default();
        [(1, 30), (2, 10), (3, 20), (4, 20)].into_iter().for_each(|(slot, at)| deadlines.set(Slot(slot), at));
        assert!(deadlines.take_due(9, 10).is_empty());
        assert_eq!(deadlines.take_due(20, 2), [2, 3].map(Slot));
        assert_eq!(deadlines.take_due(20, 2), [4].map(Slot));
        assert_eq!((deadlines.get(&Slot(1)), deadlines.get(&Slot(4))), (Some(&30), None));
        assert_eq!(deadlines.take_due(30, 2), [1].map(Slot));
        assert!(deadlines.take_due(i32::MAX, 2).is_empty());
    }

    #[test]
    fn a_slot_has_its_last_moment_alone_and_none_when_that_is_cleared() {
        let mut deadlines = Deadlines::default();
        deadlines.set(Slot(1), 10);
        deadlines.set(Slot(1), 20);
        deadlines.set(Slot(2), 10);
        deadlines.clear(Slot(2));
        deadlines.clear(Slot(3));
        assert!(deadlines.contains_key(&Slot(1)) && !deadlines.contains_key(&Slot(2)));
        assert!(deadlines.take_due(19, 10).is_empty());
        assert_eq!(deadlines.take_due(20, 10), [Slot(1)]);
        assert!(deadlines.of.is_empty() && deadlines.in_order.is_empty());
    }
}
