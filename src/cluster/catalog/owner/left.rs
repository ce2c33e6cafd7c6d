//! Copies that members let go of while their shard is handed over: who hands it over may not have heard of that, and would name
//! them again.
//!
//! Invariants
//! - Who says once more that it has a copy has it.
//! - Bounded: beyond [`LEFT_MAX`] the oldest is forgotten, and may be named until somebody asks for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::entry::Slot;
use crate::cluster::object::Stamp;
use crate::cluster::shards::{KeyId, Shard};

/// Copies that are remembered.
const LEFT_MAX: usize = 16_384;

/// What was let go of in shards that are being handed over to this member.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Shards that were gained, and of which nobody has said yet that it has told all.
    arriving: BTreeSet<Shard>,
    /// Through which version each was let go of.
    copies: BTreeMap<(KeyId, Slot), Stamp>,
    /// The same in the order in which they went, with some that came back since.
    order: VecDeque<(KeyId, Slot)>,
}

impl Left {
    /// `shard` is handed over from now on.
    pub(super) fn begin(&mut self, shard: Shard) {
        self.arriving.insert(shard);
    }

    /// All of `shard` is handed over, or others serve it.
    pub(super) fn end(&mut self, shard: Shard) {
        if self.arriving.remove(&shard) {
            self.order.retain(|(key, _)| key.shard() != shard);
            self.copies.retain(|(key, _), _| key.shard() != shard);
        }
    }

    /// `slot` has no copy of that version, or of one before.
    pub(super) fn note(&mut self, key: KeyId, slot: Slot, stamp: Stamp) {
        if !self.arriving.contains(&key.shard()) {
            return;
        }
        self.order.push_back((key, slot));
        let through = self.copies.entry((key, slot)).or_default();
        *through = stamp.max(*through);
        while self.order.len() > LEFT_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.copies.remove(&oldest);
            }
        }
    }

    /// `slot` has a copy.
    pub(super) fn take_back(&mut self, key: KeyId, slot: Slot) {
        self.copies.remove(&(key, slot));
    }

    /// Whether `slot` has let go of that version, and has not said since that it has one.
    pub(super) fn contains(&self, key: KeyId, slot: Slot, stamp: Stamp) -> bool {
        self.copies.get(&(key, slot)).is_some_and(|&through| stamp <= through)
    }

    /// Others may have been told in place of this member what came since.
    pub(super) fn forget_all(&mut self) {
        self.copies.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(number: usize) -> (KeyId, Slot) {
        // All in one shard.
        (KeyId(u128::try_from(number).unwrap()), Slot::new(1).unwrap())
    }

    #[test]
    fn only_what_is_let_go_of_while_its_shard_arrives_is_remembered() {
        let (mut left, (key, slot)) = (Left::default(), copy(1));
        left.note(key, slot, Stamp(5));
        assert!(!left.contains(key, slot, Stamp(5)));
        left.begin(key.shard());
        left.note(key, slot, Stamp(5));
        assert!(left.contains(key, slot, Stamp(5)) && left.contains(key, slot, Stamp(4)));
        assert!(!left.contains(key, slot, Stamp(6)), "that came later");
        left.take_back(key, slot);
        assert!(!left.contains(key, slot, Stamp(5)));
        left.note(key, slot, Stamp(5));
        left.end(key.shard());
        assert!(!left.contains(key, slot, Stamp(5)) && left.order.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut left = Left::default();
        left.begin(copy(0).0.shard());
        for number in 0..=LEFT_MAX {
            let (key, slot) = copy(number);
            left.note(key, slot, Stamp(5));
        }
        let is_there = |number| {
            let (key, slot) = copy(number);
            left.contains(key, slot, Stamp(5))
        };
        assert!(!is_there(0) && is_there(1) && is_there(LEFT_MAX));
        assert_eq!((left.copies.len(), left.order.len()), (LEFT_MAX, LEFT_MAX));
    }
}
