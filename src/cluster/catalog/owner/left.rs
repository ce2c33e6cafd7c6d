//! Copies that members let go of while their shard is handed over: who hands it over may not have heard of that, and would
//! name them again. And those that this member itself let go of where it decides: the other owner, from which it was parted,
//! may not have heard of that either.
//!
//! Invariants
//! - Who says once more that it has a copy has it.
//! - Bounded: beyond [`LEFT_MAX`] of each kind that which was noted longest ago is forgotten, and may be named until somebody asks
//!   for it.

use std::collections::BTreeSet;
use std::hash::Hash;

use lru::LruCache;

use super::super::entry::Slot;
use super::super::table::KeyHash;
use super::Owner;
use crate::cluster::catalog::wire::Change;
use crate::cluster::object::Stamp;
use crate::cluster::shards::{KeyId, Shard};

/// Copies that are remembered.
const LEFT_MAX: usize = 16_384;

/// Through which version each of some copies was let go of.
#[derive(Debug)]
pub(super) struct RecentlyLeft<K: Hash + Eq> {
    /// The one that was noted last first.
    copies: LruCache<K, Stamp, KeyHash>,
}

impl<K: Hash + Eq> Default for RecentlyLeft<K> {
    fn default() -> Self {
        Self { copies: LruCache::unbounded_with_hasher(KeyHash::default()) }
    }
}

impl<K: Hash + Eq> RecentlyLeft<K> {
    /// There is no copy of that version, or of one before.
    fn note(&mut self, copy: K, stamp: Stamp) {
        let known = self.copies.peek(&copy).copied().unwrap_or_default();
        self.copies.put(copy, stamp.max(known));
        if self.copies.len() > LEFT_MAX {
            self.copies.pop_lru();
        }
    }

    /// There is a copy.
    fn take_back(&mut self, copy: &K) {
        self.copies.pop(copy);
    }

    /// Whether that version was let go of.
    fn contains(&self, copy: &K, stamp: Stamp) -> bool {
        self.copies.peek(copy).is_some_and(|&through| stamp <= through)
    }

    /// Others may have been told in place of this member what came since.
    pub(super) fn forget_all(&mut self) {
        self.copies.clear();
    }
}

/// What was let go of in shards that are being handed over to this member.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Shards that were gained, and of which nobody has said yet that it has told all.
    arriving: BTreeSet<Shard>,
    recent: RecentlyLeft<(KeyId, Slot)>,
}

impl Left {
    /// `shard` is handed over from now on.
    pub(super) fn begin(&mut self, shard: Shard) {
        self.arriving.insert(shard);
    }

    /// All of `shard` is handed over, or others serve it.
    pub(super) fn end(&mut self, shard: Shard) {
        if self.arriving.remove(&shard) {
            self.recent.copies.retain(|(key, _), _| key.shard() != shard);
        }
    }

    /// `slot` has no copy of that version, or of one before.
    pub(super) fn note(&mut self, key: KeyId, slot: Slot, stamp: Stamp) {
        if self.arriving.contains(&key.shard()) {
            self.recent.note((key, slot), stamp);
        }
    }

    /// `slot` has a copy.
    pub(super) fn take_back(&mut self, key: KeyId, slot: Slot) {
        self.recent.take_back(&(key, slot));
    }

    /// Whether `slot` has let go of that version, and has not said since that it has one.
    pub(super) fn contains(&self, key: KeyId, slot: Slot, stamp: Stamp) -> bool {
        self.recent.contains(&(key, slot), stamp)
    }

    /// As [`RecentlyLeft::forget_all`].
    pub(super) fn forget_all(&mut self) {
        self.recent.forget_all();
    }
}

impl Owner {
    /// Takes note of what `slot` says that it holds, or does not hold any more.
    pub(super) fn note_left(&mut self, key: KeyId, slot: Slot, change: &Change) {
        match change {
            Change::LetGo { stamp, .. } => self.left.note(key, slot, *stamp),
            Change::Publish { .. } | Change::Announce { .. } | Change::Hold { .. } => {
                self.left.take_back(key, slot);
            }
            _ => {}
        }
    }

    /// Takes note of what this member itself says that it holds, or does not hold any more, whoever decides about it.
    pub(super) fn note_own(&mut self, key: KeyId, change: &Change) {
        match change {
            Change::LetGo { stamp, .. }
                if self.map.owners(key.shard()).is_some_and(|owners| owners.primary == self.me) =>
            {
                self.own_left.note(key, *stamp);
            }
            Change::Publish { .. } | Change::Announce { .. } | Change::Hold { .. } => {
                self.own_left.take_back(&key);
            }
            _ => {}
        }
    }

    /// Whether this member has let go of that version, and has not said since that it has one.
    pub(super) fn has_own_left(&self, key: KeyId, stamp: Stamp) -> bool {
        self.own_left.contains(&key, stamp)
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
        assert!(!left.contains(key, slot, Stamp(5)) && left.recent.copies.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut left = RecentlyLeft::default();
        for number in 0..=LEFT_MAX {
            left.note(copy(number), Stamp(5));
        }
        let is_there = |number| left.contains(&copy(number), Stamp(5));
        assert!(!is_there(0) && is_there(1) && is_there(LEFT_MAX));
        assert_eq!(left.copies.len(), LEFT_MAX);
        left.forget_all();
        assert!(left.copies.is_empty());
    }

    #[test]
    fn what_is_let_go_of_once_more_is_remembered_as_the_newest() {
        let mut left = RecentlyLeft::default();
        left.note(copy(0), Stamp(5));
        left.note(copy(1), Stamp(5));
        left.take_back(&copy(0));
        for number in 2..LEFT_MAX {
            left.note(copy(number), Stamp(5));
        }
        left.note(copy(1), Stamp(4));
        left.note(copy(0), Stamp(5));
        assert!((0..LEFT_MAX).all(|number| left.contains(&copy(number), Stamp(5))));
        left.note(copy(LEFT_MAX), Stamp(5));
        let is_there = |number| left.contains(&copy(number), Stamp(5));
        assert!(is_there(0) && is_there(1) && !is_there(2));
    }
}
