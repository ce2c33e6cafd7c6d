//! Copies that members let go of while their shard is handed over: who hands it over may not have heard of that, and would
//! name them again. And those that this member itself let go of where it decides: the other owner, from which it was parted,
//! may not have heard of that either.
//!
//! Invariants
//! - Who says once more that it has a copy has it.
//! - Bounded: beyond [`LEFT_MAX`] of each kind the oldest is forgotten, and may be named until somebody asks for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;

use super::super::entry::Slot;
use super::super::table::KeyHash;
use super::Owner;
use crate::cluster::catalog::wire::Change;
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

/// What this member let go of where it decides, by the map that counts. All that it holds there it tells this catalog
/// first.
#[derive(Debug, Default)]
pub(super) struct OwnLeft {
    /// Through which version each was let go of.
    copies: HashMap<KeyId, Stamp, KeyHash>,
    /// The same in the order in which they went, with some that came back since.
    order: VecDeque<KeyId>,
}

impl OwnLeft {
    fn note(&mut self, key: KeyId, stamp: Stamp) {
        self.order.push_back(key);
        let through = self.copies.entry(key).or_default();
        *through = stamp.max(*through);
        while self.order.len() > LEFT_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.copies.remove(&oldest);
            }
        }
    }

    /// Who decides is another one, or is told by others now.
    pub(super) fn forget_all(&mut self) {
        self.copies.clear();
        self.order.clear();
    }
}

impl Owner {
    /// Takes note of what this member itself says that it holds, or does not hold any more, whoever decides about it.
    pub(super) fn note_own(&mut self, key: KeyId, change: &Change) {
        match change {
            Change::LetGo { stamp, .. }
                if self.map.owners(key.shard()).is_some_and(|owners| owners.primary == self.me) =>
            {
                self.own_left.note(key, *stamp);
            }
            Change::Publish { .. } | Change::Announce { .. } | Change::Hold { .. } => {
                self.own_left.copies.remove(&key);
            }
            _ => {}
        }
    }

    /// Whether this member has let go of that version, and has not said since that it has one.
    pub(super) fn has_own_left(&self, key: KeyId, stamp: Stamp) -> bool {
        self.own_left.copies.get(&key).is_some_and(|&through| stamp <= through)
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

    #[test]
    fn what_is_remembered_of_own_copies_is_bounded() {
        let mut left = OwnLeft::default();
        for number in 0..=LEFT_MAX {
            left.note(copy(number).0, Stamp(5));
        }
        let is_there = |number| left.copies.contains_key(&copy(number).0);
        assert!(!is_there(0) && is_there(1) && is_there(LEFT_MAX));
        assert_eq!(left.order.len(), LEFT_MAX);
        left.forget_all();
        assert!(left.copies.is_empty() && left.order.is_empty());
    }
}
