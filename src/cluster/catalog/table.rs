//! The table of an owner: for each key of its shards which version stands there and who holds it.
//!
//! No I/O, and no clock: times come in as they are asked for. Who is to be told of a change is returned, not told.
//!
//! Invariants
//! - Stamps of a key only grow, through removals too: what is put in order later has the larger one.
//! - A member is in the index of a shard for exactly the keys of which the table names it.
//! - A key has an entry or a tombstone, never both, and beside an entry no end.
//!
//! Limits: none of its own for entries, which are bounded by what members hold: an entry without copies leaves.

mod adopting;
mod ends;

use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};

pub use adopting::{Adopted, State};

use super::entry::{Entry, Slot};
use super::tombstones::Tombstones;
use crate::cluster::object::{Facts, Medium, Stamp};
use crate::cluster::shards::{KeyId, SHARDS, Shard};

/// Hashes keys, which are hashes already: their low half.
#[derive(Clone, Copy, Debug, Default)]
pub struct LowHalf(u64);

impl Hasher for LowHalf {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }
}

/// Hash of maps by key.
pub type KeyHash = BuildHasherDefault<LowHalf>;

/// One shard.
#[derive(Debug, Default)]
struct Part {
    entries: HashMap<KeyId, Entry, KeyHash>,
    /// Which keys each member holds, so that losing one costs no more than what it held.
    held: Vec<(Slot, HashSet<KeyId, KeyHash>)>,
}

impl Part {
    fn index(&mut self, key: KeyId, slot: Slot) {
        match self.held.iter_mut().find(|(other, _)| *other == slot) {
            Some((_, keys)) => drop(keys.insert(key)),
            None => self.held.push((slot, std::iter::once(key).collect())),
        }
    }

    fn unindex(&mut self, key: KeyId, slot: Slot) {
        let Some(at) = self.held.iter().position(|(other, _)| *other == slot) else { return };
        let (_, keys) = &mut self.held[at];
        keys.remove(&key);
        if keys.is_empty() {
            self.held.swap_remove(at);
        } else if keys.capacity() > 64 && keys.len() < keys.capacity() / 4 {
            keys.shrink_to_fit();
        }
    }

    fn take(&mut self, key: KeyId) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        for (slot, _) in entry.copies.iter() {
            self.unindex(key, slot);
        }
        if self.entries.capacity() > 64 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to_fit();
        }
        Some(entry)
    }

    fn put(&mut self, key: KeyId, entry: Entry) -> Option<Entry> {
        let before = self.take(key);
        for (slot, _) in entry.copies.iter() {
            self.index(key, slot);
        }
        self.entries.insert(key, entry);
        before
    }

    fn put_copy(&mut self, key: KeyId, slot: Slot, medium: Medium) {
        if self.entries.get_mut(&key).is_some_and(|entry| entry.copies.put(slot, medium)) {
            self.index(key, slot);
        }
    }
}

/// What a publish or an announcement did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// The same was there already: one holder more.
    Collapsed {
        /// The version that it is.
        stamp: Stamp,
    },
    /// There was nothing.
    Appeared {
        /// The version that it is.
        stamp: Stamp,
    },
    /// An earlier version was there.
    Replaced {
        /// The version that it is.
        stamp: Stamp,
        /// The version before.
        through: Stamp,
        /// Who else held that.
        holders: Vec<Slot>,
    },
    /// It is not valid any more, through this version.
    Refused {
        /// Through which one.
        through: Stamp,
    },
}

/// What a removal did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Through which version the name is not valid.
    pub through: Stamp,
    /// Who else held it.
    pub holders: Vec<Slot>,
}

/// What it did to forget the copies of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Keys of which no copy is left, with their last version.
    pub gone: Vec<(KeyId, Stamp)>,
    /// Keys of which only copies are left that leave first.
    pub soft: Vec<KeyId>,
    /// How many copies there were.
    pub count: usize,
}

/// All shards of an owner.
#[derive(Debug)]
pub struct Table {
    parts: Box<[Part]>,
    tombstones: Tombstones,
    /// See [`Self::note_end`]. Their horizon counts for nothing.
    ends: Tombstones,
    entries: usize,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(tombstones: Tombstones) -> Self {
        let ends = tombstones.alike();
        Self { parts: (0..SHARDS).map(|_| Part::default()).collect(), tombstones, ends, entries: 0 }
    }

    fn part(&mut self, shard: Shard) -> &mut Part {
        // A shard's number is below SHARDS, which is the length.
        &mut self.parts[usize::from(shard.number())]
    }

    fn insert(&mut self, key: KeyId, entry: Entry) {
        self.tombstones.forget(key);
        self.ends.forget(key);
        if self.part(key.shard()).put(key, entry).is_none() {
            self.entries += 1;
        }
    }

    fn take(&mut self, key: KeyId) -> Option<Entry> {
        let entry = self.part(key.shard()).take(key)?;
        self.entries -= 1;
        Some(entry)
    }

    /// What stands under `key`.
    #[must_use]
    pub fn get(&self, key: KeyId) -> Option<&Entry> {
        self.parts[usize::from(key.shard().number())].entries.get(&key)
    }

    /// Puts a version in order that `slot` sealed, after everything that is known of `key`. What is alike collapses.
    pub fn publish(&mut self, key: KeyId, slot: Slot, proposed: Stamp, facts: Facts) -> Put {
        let removed = self.tombstones.through(key).max(self.ends.through(key));
        let Some(entry) = self.get(key) else {
            let stamp = proposed.max(Stamp(removed.map_or(1, |through| through.0.saturating_add(1))));
            self.insert_from(key, slot, Medium::Memory, stamp, facts);
            return Put::Appeared { stamp };
        };
        let through = entry.stamp();
        if entry.is_alike(&facts) {
            let is_holder = entry.copies.contains(slot);
            let part = self.part(key.shard());
            part.put_copy(key, slot, Medium::Memory);
            let Some(entry) = part.entries.get_mut(&key) else { return Put::Collapsed { stamp: through } };
            entry.make_anew(proposed);
            if is_holder {
                entry.set_facts(facts);
            }
            return Put::Collapsed { stamp: entry.stamp() };
        }
        let stamp = proposed.max(Stamp(through.0.saturating_add(1)));
        let holders = others(entry, slot);
        self.insert_from(key, slot, Medium::Memory, stamp, facts);
        Put::Replaced { stamp, through, holders }
    }

    fn insert_from(&mut self, key: KeyId, slot: Slot, medium: Medium, stamp: Stamp, facts: Facts) {
        let mut entry = Entry::new(stamp, facts);
        entry.copies.put(slot, medium);
        self.insert(key, entry);
    }

    /// Removes `key` at `at`, as `slot` wants, and remembers that.
    pub fn remove(&mut self, key: KeyId, slot: Slot, at: Stamp, now: Duration) -> Removal {
        let known = self.latest(key);
        let entry = self.take(key);
        let through = known.map_or(at, |known| known.max(at));
        self.note_removal(key, through, now, now);
        let through = self.tombstones.through(key).unwrap_or(through);
        Removal { through, holders: entry.map_or_else(Vec::new, |entry| others(&entry, slot)) }
    }

    /// `slot` has a copy of that version, or has it elsewhere. Returns whether that changes anything.
    pub fn hold(&mut self, key: KeyId, slot: Slot, stamp: Stamp, medium: Medium) -> bool {
        let is_it = self.get(key).is_some_and(|entry| {
            is_version(entry, stamp) && !entry.copies.iter().any(|copy| copy == (slot, medium))
        });
        if is_it {
            self.part(key.shard()).put_copy(key, slot, medium);
        }
        is_it
    }

    /// `slot` has no copy of that version. Returns `None` when that changes nothing, else the version when no copy is left.
    pub fn let_go(&mut self, key: KeyId, slot: Slot, stamp: Stamp) -> Option<Option<Stamp>> {
        let part = self.part(key.shard());
        let entry = part.entries.get_mut(&key).filter(|entry| is_version(entry, stamp))?;
        let version = entry.stamp();
        if !entry.copies.take(slot) {
            return None;
        }
        let is_last = entry.copies.is_empty();
        part.unindex(key, slot);
        if is_last {
            self.take(key);
        }
        Some(is_last.then_some(version))
    }

    /// Takes note of what `slot` says that it holds, since when it was last certain to have heard of all removals
    /// (`contact`, `None` for never).
    pub fn announce(
        &mut self,
        key: KeyId,
        slot: Slot,
        stamp: Stamp,
        facts: Facts,
        medium: Medium,
        contact: Option<Duration>,
    ) -> Put {
        if let Some(through) = self.invalid_through(key, &facts).filter(|&through| through >= stamp) {
            return Put::Refused { through };
        }
        let Some(entry) = self.get(key) else {
            let is_forgotten = self
                .tombstones
                .horizon()
                .is_some_and(|horizon| contact.is_none_or(|contact| contact <= horizon));
            if is_forgotten {
                return Put::Refused { through: stamp };
            }
            self.insert_from(key, slot, medium, stamp.max(Stamp(1)), facts);
            return Put::Appeared { stamp };
        };
        let known = entry.stamp();
        if is_version(entry, stamp) {
            let part = self.part(key.shard());
            part.put_copy(key, slot, medium);
            if let Some(entry) = part.entries.get_mut(&key) {
                entry.raise_replicas(facts);
            }
            return Put::Collapsed { stamp: known };
        }
        if known > stamp {
            return Put::Refused { through: Stamp(known.0 - 1) };
        }
        let holders = others(entry, slot);
        self.insert_from(key, slot, medium, stamp, facts);
        Put::Replaced { stamp, through: known, holders }
    }

    /// Forgets the copies of `slot` in one shard: a slice of the work that losing a member is.
    pub fn drop_copies(&mut self, shard: Shard, slot: Slot) -> Dropped {
        let part = self.part(shard);
        let Some(at) = part.held.iter().position(|(other, _)| *other == slot) else {
            return Dropped::default();
        };
        let (_, keys) = part.held.swap_remove(at);
        let (mut gone, mut soft) = (Vec::new(), Vec::new());
        for &key in &keys {
            let Some(entry) = part.entries.get_mut(&key) else { continue };
            entry.copies.take(slot);
            if entry.copies.is_empty() {
                gone.push((key, entry.stamp()));
                part.entries.remove(&key);
            } else if entry.copies.has_heirs() {
                soft.push(key);
            }
        }
        if part.entries.capacity() > 64 && part.entries.len() < part.entries.capacity() / 4 {
            part.entries.shrink_to_fit();
        }
        self.entries -= gone.len();
        Dropped { gone, soft, count: keys.len() }
    }

    /// Keys of a shard that stand for something.
    pub fn keys(&self, shard: Shard) -> impl Iterator<Item = KeyId> {
        self.parts[usize::from(shard.number())].entries.keys().copied()
    }

    /// Copies that the table names each slot for, by its number; as many as it takes for the last that it names.
    #[must_use]
    pub fn copies(&self) -> Vec<usize> {
        let mut copies: Vec<usize> = Vec::new();
        for (slot, keys) in self.parts.iter().flat_map(|part| &part.held) {
            copies.resize(copies.len().max(slot.index() + 1), 0);
            copies[slot.index()] += keys.len();
        }
        copies
    }

    /// Forgets a shard: another member answers for it.
    pub fn forget_shard(&mut self, shard: Shard) {
        let part = std::mem::take(self.part(shard));
        self.entries -= part.entries.len();
    }

    /// Removed keys.
    #[must_use]
    pub fn tombstones(&self) -> &Tombstones {
        &self.tombstones
    }

    /// Removed keys, to expire them.
    pub fn tombstones_mut(&mut self) -> &mut Tombstones {
        &mut self.tombstones
    }

    /// Keys that stand for something.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Bytes of all of it. Looks at every shard, not at every entry: lists of more than three copies are not counted.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let part = |part: &Part| {
            let held: usize = part.held.iter().map(|(_, keys)| keys.allocation_size()).sum();
            size_of::<Part>()
                + part.entries.allocation_size()
                + held
                + part.held.capacity() * size_of::<(Slot, HashSet<KeyId, KeyHash>)>()
        };
        self.parts.iter().map(part).sum::<usize>() + self.tombstones.bytes() + self.ends.bytes()
    }
}

/// Directories have no versions that members know: any of theirs is meant.
fn is_version(entry: &Entry, stamp: Stamp) -> bool {
    entry.stamp() == stamp || (stamp == Stamp(0) && matches!(entry.facts(), Facts::Directory(_)))
}

fn others(entry: &Entry, slot: Slot) -> Vec<Slot> {
    entry.copies.iter().map(|(holder, _)| holder).filter(|&holder| holder != slot).collect()
}

#[cfg(test)]
mod tests;
