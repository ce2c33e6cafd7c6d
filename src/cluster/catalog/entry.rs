//! What the table keeps of one key, in 64 bytes: there are millions.

use tidefs_engine::types::ByteCount;

use crate::cluster::object::{DirectoryFacts, Facts, FileFacts, Medium, Stamp, pack_mode, unpack_mode};

/// A start of a member, as the tables of this process number it. 14 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// The number of slots: one is left over, for "none".
    pub const COUNT: u16 = (1 << 14) - 1;

    /// The slot with this number, if there is one.
    #[must_use]
    pub fn new(number: u16) -> Option<Self> {
        (number < Self::COUNT).then_some(Self(number))
    }

    /// As an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Bit of a packed copy that stands for [`Medium::Ssd`].
const ON_SSD: u16 = 1 << 15;
/// Bit of a packed copy that stands for [`Medium::Soft`].
const IS_SOFT: u16 = 1 << 14;
/// Bits of a packed copy that are not its slot.
const MEDIUM: u16 = ON_SSD | IS_SOFT;
/// A place for a copy that has none.
const NONE: u16 = u16::MAX;

/// Who holds copies. Three fit in place.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Packed {
    Few([u16; 3]),
    #[expect(clippy::box_collection, reason = "a Vec in place would cost each key 8 bytes more")]
    Many(Box<Vec<u16>>),
}

/// Who holds copies of one version, each slot once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies(Packed);

impl Default for Copies {
    fn default() -> Self {
        Self(Packed::Few([NONE; 3]))
    }
}

fn pack(slot: Slot, medium: Medium) -> u16 {
    slot.0
        | match medium {
            Medium::Memory => 0,
            Medium::Ssd => ON_SSD,
            Medium::Soft => IS_SOFT,
        }
}

impl Copies {
    fn packed(&self) -> &[u16] {
        match &self.0 {
            Packed::Few(few) => &few[..few.iter().position(|&copy| copy == NONE).unwrap_or(few.len())],
            Packed::Many(many) => many,
        }
    }

    /// All of them, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, Medium)> {
        self.packed().iter().map(|&copy| {
            let medium = match copy & MEDIUM {
                0 => Medium::Memory,
                IS_SOFT => Medium::Soft,
                _ => Medium::Ssd,
            };
            (Slot(copy & !MEDIUM), medium)
        })
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packed().len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packed().is_empty()
    }

    /// The members to whose copies it falls to be the one to rely on, the first of them first, when all that are left are soft.
    pub fn heirs(&self) -> impl Iterator<Item = Slot> {
        let is_soft = self.iter().all(|(_, medium)| !medium.is_hard());
        self.iter().map(|(slot, _)| slot).filter(move |_| is_soft)
    }

    /// Whether there are copies, and all of them are soft.
    #[must_use]
    pub fn has_heirs(&self) -> bool {
        self.heirs().next().is_some()
    }

    /// Whether `slot` has one.
    #[must_use]
    pub fn contains(&self, slot: Slot) -> bool {
        self.iter().any(|(other, _)| other == slot)
    }

    /// Notes that `slot` has one. Returns whether it had none.
    pub fn put(&mut self, slot: Slot, medium: Medium) -> bool {
        let copy = pack(slot, medium);
        let found = self.packed().iter().position(|other| other & !MEDIUM == slot.0);
        match (&mut self.0, found) {
            (Packed::Few(few), Some(at)) => few[at] = copy,
            (Packed::Many(many), Some(at)) => many[at] = copy,
            (Packed::Many(many), None) => many.push(copy),
            (Packed::Few(few), None) => match few.iter().position(|&other| other == NONE) {
                Some(free) => few[free] = copy,
                None => self.0 = Packed::Many(Box::new([few.as_slice(), &[copy]].concat())),
            },
        }
        found.is_none()
    }

    /// Notes those of `others`. Of whose is known already nothing changes.
    pub fn put_missing(&mut self, others: &Self) {
        for (slot, medium) in others.iter() {
            if !self.contains(slot) {
                self.put(slot, medium);
            }
        }
    }

    /// Notes that `slot` has none. Returns whether it had one.
    pub fn take(&mut self, slot: Slot) -> bool {
        let mut rest: Vec<u16> = self.packed().to_vec();
        let before = rest.len();
        rest.retain(|copy| copy & !MEDIUM != slot.0);
        let was_there = rest.len() < before;
        if was_there {
            let mut few = [NONE; 3];
            self.0 = if rest.len() <= few.len() {
                few[..rest.len()].copy_from_slice(&rest);
                Packed::Few(few)
            } else {
                Packed::Many(Box::new(rest))
            };
        }
        was_there
    }
}

/// Bit of the mode that stands for a directory.
const IS_DIRECTORY: u32 = 1 << 31;
/// Bit of the mode that stands for a checksum that is known.
const HAS_CHECKSUM: u32 = 1 << 30;

/// One key that stands for something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    stamp: u64,
    size: u64,
    mtime_ns: i64,
    checksum: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    /// Who holds it.
    pub copies: Copies,
}

const _: () = assert!(size_of::<Entry>() == 64, "the catalog's memory is mostly entries");

impl Entry {
    /// A version without copies.
    #[must_use]
    pub fn new(stamp: Stamp, facts: Facts) -> Self {
        let mut entry = Self {
            stamp: stamp.0,
            size: 0,
            mtime_ns: 0,
            checksum: 0,
            mode: 0,
            uid: 0,
            gid: 0,
            copies: Copies::default(),
        };
        entry.set_facts(facts);
        entry
    }

    /// Replaces what it is.
    pub fn set_facts(&mut self, facts: Facts) {
        let bits = |mode: u32| mode & !(IS_DIRECTORY | HAS_CHECKSUM);
        match facts {
            Facts::File(FileFacts { size, mtime_ns, mode, uid, gid, checksum, replicas }) => {
                let mode = pack_mode(mode, replicas);
                let flag = if checksum.is_some() { HAS_CHECKSUM } else { 0 };
                (self.size, self.mtime_ns) = (size.get(), mtime_ns);
                (self.mode, self.uid, self.gid) = (bits(mode) | flag, uid, gid);
                self.checksum = checksum.unwrap_or(0);
            }
            Facts::Directory(DirectoryFacts { mode, uid, gid }) => {
                (self.size, self.mtime_ns, self.checksum) = (0, 0, 0);
                (self.mode, self.uid, self.gid) = (bits(mode) | IS_DIRECTORY, uid, gid);
            }
        }
    }

    /// Which version. Directories have one here too, so that owners can tell which of them is later.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp(self.stamp)
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.mode & IS_DIRECTORY != 0
    }

    /// What it is.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let (mode, uid, gid) = (self.mode & !(IS_DIRECTORY | HAS_CHECKSUM), self.uid, self.gid);
        if self.is_directory() {
            return Facts::Directory(DirectoryFacts { mode, uid, gid });
        }
        let (mode, replicas) = unpack_mode(mode);
        Facts::File(FileFacts {
            size: ByteCount(self.size),
            mtime_ns: self.mtime_ns,
            mode,
            uid,
            gid,
            checksum: (self.mode & HAS_CHECKSUM != 0).then_some(self.checksum),
            replicas,
        })
    }

    /// A directory is made where it stands: it is later than what is removed there through an earlier version.
    pub fn make_anew(&mut self, stamp: Stamp) {
        if self.is_directory() {
            self.stamp = stamp.0.max(self.stamp);
        }
    }

    /// Whether `later` is the directory that this is, which was made anew.
    #[must_use]
    pub fn is_made_anew_as(&self, later: &Self) -> bool {
        self.is_directory() && later.is_directory() && later.stamp > self.stamp
    }

    /// More members are to hold it than was known.
    pub fn raise_replicas(&mut self, facts: Facts) {
        if let (Facts::File(theirs), Facts::File(ours)) = (facts, self.facts()) {
            let replicas = theirs.replicas.max(ours.replicas);
            self.set_facts(Facts::File(FileFacts { replicas, ..ours }));
        }
    }

    /// Whether it is the same as `facts`, as far as bytes go: both directories, or files whose checksums are known and
    /// equal.
    #[must_use]
    pub fn is_alike(&self, facts: &Facts) -> bool {
        match (self.facts(), facts) {
            (Facts::Directory(_), Facts::Directory(_)) => true,
            (Facts::File(mine), Facts::File(theirs)) => {
                mine.checksum.is_some() && mine.checksum == theirs.checksum && mine.size == theirs.size
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn copies_are_a_map_from_slot_to_medium(
            steps in proptest::collection::vec((any::<bool>(), 0_u16..6, 0_usize..3), 0..40)
        ) {
            let mut copies = Copies::default();
            let mut model = std::collections::BTreeMap::new();
            for (is_put, slot, medium) in steps {
                let medium = [Medium::Memory, Medium::Ssd, Medium::Soft][medium];
                let slot = Slot::new(slot).unwrap();
                if is_put {
                    prop_assert_eq!(copies.put(slot, medium), model.insert(slot, medium).is_none());
                } else {
                    prop_assert_eq!(copies.take(slot), model.remove(&slot).is_some());
                }
                let mut found: Vec<_> = copies.iter().collect();
                found.sort_unstable();
                prop_assert_eq!(found, model.clone().into_iter().collect::<Vec<_>>());
                prop_assert_eq!(copies.len(), model.len());
                let is_soft = !model.is_empty() && model.values().all(|medium| !medium.is_hard());
                prop_assert_eq!(copies.has_heirs(), is_soft);
            }
        }

        #[test]
        fn facts_are_kept_as_they_are(
            size: u64, mtime_ns: i64, mode in 0_u32..0o10000, uid: u32, gid: u32, checksum: Option<u64>,
            replicas in 1_u8..=16,
        ) {
            let file =
                Facts::File(FileFacts { size: ByteCount(size), mtime_ns, mode, uid, gid, checksum, replicas });
            let directory = Facts::Directory(DirectoryFacts { mode, uid, gid });
            let mut entry = Entry::new(Stamp(7), file);
            prop_assert_eq!(entry.facts(), file);
            prop_assert_eq!(entry.is_alike(&file), checksum.is_some());
            entry.set_facts(directory);
            prop_assert_eq!(entry.facts(), directory);
            prop_assert!(entry.is_alike(&directory) && !entry.is_alike(&file));
        }
    }
}
