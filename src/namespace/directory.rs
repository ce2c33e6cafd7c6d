//! A directory's entries, ordered by a hash of their names.
//!
//! One ordered set serves look-up and listing: an entry is one number, and that number is its cookie.
//! The cookie of an entry never changes while the entry exists, so a listing that is continued after other
//! entries came and went shows every entry that stayed exactly once.
//!
//! Limits: 2^32 entries; names whose 31-bit hashes collide are told apart by their slots. A listing that stopped at an entry which is
//! gone by now passes over others whose names hash like that one's.

use tidefs_engine::types::DirectoryId;
use twox_hash::XxHash3_64;

use super::node::Slot;
use super::ordered_set::OrderedSet;

/// Place of an entry in its directory's order, and where a listing continues. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Before the first entry.
    pub const START: Self = Self(0);

    fn new(name: &[u8], slot: Slot) -> Self {
        Self(hash_of(name) << 32 | u64::from(slot.0))
    }

    /// Place of `name` in the order that all members of a cluster share: the same hash as in the order here, and where
    /// names have one, another part of it in place of the slot.
    #[must_use]
    pub fn shared(name: &[u8]) -> Self {
        Self(hash_of(name) << 32 | XxHash3_64::oneshot(name) & u64::from(u32::MAX))
    }

    /// Before every entry whose name hashes like the one at `shared`.
    #[must_use]
    pub fn before(shared: u64) -> Self {
        Self((shared & !u64::from(u32::MAX)).saturating_sub(1))
    }

    /// After every entry whose name hashes like this one.
    fn past_hash(self) -> Self {
        Self(self.0 | u64::from(u32::MAX))
    }

    /// Whether both are of names that hash alike.
    #[must_use]
    pub fn has_hash_of(self, other: Self) -> bool {
        self.0 >> 32 == other.0 >> 32
    }

    fn slot(self) -> Slot {
        Slot(u32::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(0))
    }
}

/// 31 bits, so that a cookie is positive as an `off_t`; never zero, so that small positions are free for `.` and `..`.
fn hash_of(name: &[u8]) -> u64 {
    (XxHash3_64::oneshot(name) >> 33).max(1)
}

/// The entries of one directory.
#[derive(Debug, Default)]
pub struct Children {
    ordered: OrderedSet,
}

impl Children {
    /// Adds an entry; the caller made sure that the name is free.
    pub fn insert(&mut self, name: &[u8], slot: Slot) {
        self.ordered.insert(Cookie::new(name, slot).0);
    }

    /// Takes an entry out. Returns whether it was there.
    pub fn remove(&mut self, name: &[u8], slot: Slot) -> bool {
        self.ordered.remove(Cookie::new(name, slot).0)
    }

    /// Slots whose names hash like `name`; the caller compares the names.
    pub fn candidates(&self, name: &[u8]) -> impl Iterator<Item = Slot> {
        let first = hash_of(name) << 32;
        self.ordered.range(first..=first | u64::from(u32::MAX)).map(|cookie| Cookie(cookie).slot())
    }

    /// Where a listing goes on that has shown the entry at `cookie`: behind another version of its name that took its place since,
    /// and has a slot of its own.
    #[must_use]
    pub fn passed(&self, cookie: Cookie) -> Cookie {
        let is_entry = cookie.0 > u64::from(u32::MAX);
        let stands = || self.ordered.range(cookie.0..=cookie.0).next().is_some();
        if is_entry && !stands() { cookie.past_hash() } else { cookie }
    }

    /// Entries after `cookie`, in order.
    pub fn after(&self, cookie: Cookie) -> impl Iterator<Item = (Cookie, Slot)> {
        self.ordered
            .range(cookie.0.saturating_add(1)..=u64::MAX)
            .map(|cookie| (Cookie(cookie), Cookie(cookie).slot()))
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ordered.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a directory is beside its name and attributes.
#[derive(Debug)]
pub struct Directory {
    /// Identity across restarts.
    pub id: DirectoryId,
    /// Its entries.
    pub children: Children,
    /// Subdirectories, for `st_nlink`.
    pub subdirectories: u32,
}

impl Directory {
    /// An empty directory.
    #[must_use]
    pub fn new(id: DirectoryId) -> Self {
        Self { id, children: Children::default(), subdirectories: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_shows_entries_that_stay_exactly_once_under_churn() {
        let mut children = Children::default();
        let name = |index: u32| format!("object-{index}").into_bytes();
        for index in 1..=1000 {
            children.insert(&name(index), Slot(index));
        }
        let mut seen = Vec::new();
        let mut cookie = Cookie::START;
        let mut round = 0;
        loop {
            let batch: Vec<_> = children.after(cookie).take(7).collect();
            let Some(last) = batch.last() else { break };
            cookie = last.0;
            seen.extend(batch.iter().map(|entry| entry.1.0).filter(|slot| slot % 2 == 0));
            // Odd entries come and go while the even ones stay.
            round += 1;
            let victim = round * 2 + 1;
            children.remove(&name(victim), Slot(victim));
            children.insert(&name(victim + 2000), Slot(victim + 2000));
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=500).map(|half| half * 2).collect::<Vec<_>>());
    }

    #[test]
    fn a_name_that_was_listed_is_not_listed_again_in_the_slot_of_another_version() {
        let mut children = Children::default();
        children.insert(b"k", Slot(5));
        let (listed, _) = children.after(Cookie::START).next().unwrap();
        assert_eq!(children.passed(listed), listed);
        children.remove(b"k", Slot(5));
        children.insert(b"k", Slot(9));
        assert!(
            children.after(listed).next().is_some()
                && children.after(children.passed(listed)).next().is_none()
        );
        let before_it = Cookie::before(Cookie::shared(b"k").0);
        assert_eq!([Cookie::START, before_it].map(|from| children.passed(from)), [Cookie::START, before_it]);
    }

    #[test]
    fn cookies_are_positive_offsets() {
        let mut children = Children::default();
        children.insert(b"a", Slot(u32::MAX));
        let (cookie, slot) = children.after(Cookie::START).next().unwrap();
        assert!(i64::try_from(cookie.0).is_ok());
        assert_eq!(slot, Slot(u32::MAX));
    }
}
