//! Which record holds a key: one small entry for each object on the disks, and what they take together.
//!
//! Limits: 40 bytes for an entry, and at most 100 with the table around it; a test measures it.
//! Threads: any; sharded by hash, each shard under its own lock.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::hash_table::Entry as TableEntry;
use hashbrown::{HashSet, HashTable};
use parking_lot::Mutex;
use tidefs_engine::types::Version;

use super::format::{BLOCK_BYTES, RecordHash, ZONE_BYTES_MAX};

const SHARDS: usize = 16;
/// How often a use is counted before it makes no difference: reclaim asks whether there were any.
const HEAT_MAX: u32 = 3;
const HEAT_SHIFT: u32 = 30;
/// Whether an older record of the version may stand on the disk too.
const AGAIN: u32 = 1 << 29;
/// Of the longest zone.
const BLOCKS_MASK: u32 = AGAIN - 1;

const _: () = assert!(ZONE_BYTES_MAX / BLOCK_BYTES <= BLOCKS_MASK as u64);

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    /// Device and zone, see [`ZoneId`].
    pub(super) zone: ZoneId,
    /// Block of the header within the zone.
    pub(super) block: u32,
}

/// A zone among all of a pool: the device in the upper 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ZoneId(u32);

/// Most zones of one device; the last number stands for records on the move.
pub(super) const ZONES_MAX: u32 = (1 << 24) - 1;

impl ZoneId {
    /// The zone `zone` of `device`.
    pub(super) fn new(device: u8, zone: u32) -> Self {
        debug_assert!(zone < ZONES_MAX, "devices have fewer zones than that");
        Self(u32::from(device) << 24 | (zone & ZONES_MAX))
    }

    /// No zone of `device`: where records stand while reclaim moves them, so that their old zone may be used again.
    pub(super) fn on_the_move(device: u8) -> Self {
        Self(u32::from(device) << 24 | ZONES_MAX)
    }

    /// The device.
    pub(super) fn device(self) -> u8 {
        let [device, ..] = self.0.to_be_bytes();
        device
    }

    /// The zone on it.
    pub(super) fn zone(self) -> u32 {
        self.0 & ZONES_MAX
    }
}

/// What is known of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Located {
    pub(super) version: Version,
    pub(super) place: Place,
    /// Blocks with the header.
    pub(super) blocks: u32,
    /// What the owner gave to find its object again.
    pub(super) owner: u32,
    /// Uses since it was written, and those that it came with, up to a few.
    pub(super) heat: u32,
    /// Whether its version was stored before, and that record may stand on the disk too.
    pub(super) is_again: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: RecordHash,
    version: Version,
    zone: ZoneId,
    block: u32,
    owner: u32,
    /// Blocks, with the heat in the upper two bits and [`AGAIN`] below.
    blocks: u32,
}

const _: () = assert!(size_of::<Entry>() == 40);

impl Entry {
    fn new(hash: RecordHash, located: &Located) -> Self {
        let Located { version, place, blocks, owner, heat, is_again } = *located;
        let again = if is_again { AGAIN } else { 0 };
        let blocks = (blocks & BLOCKS_MASK) | again | heat.min(HEAT_MAX) << HEAT_SHIFT;
        Self { hash, version, zone: place.zone, block: place.block, owner, blocks }
    }

    fn located(&self) -> Located {
        Located {
            version: self.version,
            place: Place { zone: self.zone, block: self.block },
            blocks: self.blocks & BLOCKS_MASK,
            owner: self.owner,
            heat: self.blocks >> HEAT_SHIFT,
            is_again: self.blocks & AGAIN != 0,
        }
    }
}

fn table_hash(hash: &RecordHash) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = hash.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

type Shard = HashTable<Entry>;

/// The index of a pool.
#[derive(Debug)]
pub(super) struct Index {
    shards: [Mutex<Shard>; SHARDS],
    /// Blocks of all records that are entered, headers included.
    blocks: AtomicU64,
}

impl Index {
    /// An empty index.
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), blocks: AtomicU64::new(0) }
    }

    fn shard(&self, hash: &RecordHash) -> &Mutex<Shard> {
        &self.shards[usize::from(hash.0[15]) % SHARDS]
    }

    /// The record of a key.
    pub(super) fn get(&self, hash: &RecordHash) -> Option<Located> {
        let shard = self.shard(hash).lock();
        shard.find(table_hash(hash), |entry| entry.hash == *hash).map(Entry::located)
    }

    /// The same, when it stands at a place.
    pub(super) fn get_at(&self, hash: &RecordHash, place: Place) -> Option<Located> {
        self.get(hash).filter(|found| found.place == place)
    }

    /// The same, when it is of a version.
    pub(super) fn get_version(&self, hash: &RecordHash, version: Version) -> Option<Located> {
        self.get(hash).filter(|found| found.version == version)
    }

    /// Enters a record, unless a later version stands there. Returns whether it was entered.
    pub(super) fn put(&self, hash: RecordHash, located: &Located) -> bool {
        let mut shard = self.shard(&hash).lock();
        let slot =
            shard.entry(table_hash(&hash), |entry| entry.hash == hash, |entry| table_hash(&entry.hash));
        match slot {
            TableEntry::Occupied(mut slot) => {
                let known = slot.get().located();
                let is_newer = known.version <= located.version;
                if is_newer {
                    self.count_out(&known);
                    self.count_in(located);
                    let is_again = located.is_again || known.version == located.version;
                    *slot.get_mut() = Entry::new(hash, &Located { is_again, ..*located });
                }
                is_newer
            }
            TableEntry::Vacant(slot) => {
                self.count_in(located);
                slot.insert(Entry::new(hash, located));
                true
            }
        }
    }

    /// Takes a record out if `is_meant` says so.
    pub(super) fn remove_if(
        &self,
        hash: &RecordHash,
        is_meant: impl FnOnce(&Located) -> bool,
    ) -> Option<Located> {
        let mut shard = self.shard(hash).lock();
        let slot = shard.find_entry(table_hash(hash), |entry| entry.hash == *hash).ok()?;
        let located = slot.get().located();
        is_meant(&located).then(|| {
            slot.remove();
            self.count_out(&located);
            located
        })
    }

    /// The record of a version that stands at `from` stands at `to` now, and its uses count anew. Returns whether it stood
    /// there.
    pub(super) fn relocate(&self, hash: &RecordHash, version: Version, from: Place, to: Place) -> bool {
        self.change(hash, |entry| {
            let stands = entry.version == version && entry.zone == from.zone && entry.block == from.block;
            if stands {
                (entry.zone, entry.block) = (to.zone, to.block);
                entry.blocks &= BLOCKS_MASK | AGAIN;
            }
            stands
        })
    }

    /// Counts a use.
    pub(super) fn touch(&self, hash: &RecordHash) {
        self.change(hash, |entry| {
            let heat = (entry.blocks >> HEAT_SHIFT).saturating_add(1).min(HEAT_MAX);
            entry.blocks = (entry.blocks & (BLOCKS_MASK | AGAIN)) | heat << HEAT_SHIFT;
            true
        });
    }

    /// Notes that an older record of a version may stand. Returns whether that version stands.
    pub(super) fn mark_again(&self, hash: &RecordHash, version: Version) -> bool {
        self.change(hash, |entry| {
            let is_meant = entry.version == version;
            if is_meant {
                entry.blocks |= AGAIN;
            }
            is_meant
        })
    }

    /// Notes how the owner finds the object of a version.
    pub(super) fn set_owner(&self, hash: &RecordHash, version: Version, owner: u32) -> bool {
        self.change(hash, |entry| {
            let is_meant = entry.version == version;
            if is_meant {
                entry.owner = owner;
            }
            is_meant
        })
    }

    fn change(&self, hash: &RecordHash, change: impl FnOnce(&mut Entry) -> bool) -> bool {
        let mut shard = self.shard(hash).lock();
        shard.find_mut(table_hash(hash), |entry| entry.hash == *hash).is_some_and(change)
    }

    /// Takes out everything that stands in `zone`.
    pub(super) fn remove_zone(&self, zone: ZoneId) -> Vec<(RecordHash, Located)> {
        self.remove_all(|entry| entry.zone == zone)
    }

    /// The same of some zones. All entries are looked at, however many zones there are.
    pub(super) fn remove_zones(&self, zones: &HashSet<ZoneId>) -> Vec<(RecordHash, Located)> {
        self.remove_all(|entry| zones.contains(&entry.zone))
    }

    /// The same, of which nobody wants to know what that was.
    pub(super) fn forget_zones(&self, zones: &HashSet<ZoneId>) {
        if zones.is_empty() {
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.lock();
            let taken = shard.extract_if(|entry| zones.contains(&entry.zone));
            taken.for_each(|entry| self.count_out(&entry.located()));
        }
    }

    /// Takes out everything that stands on a device, or on its way from there.
    pub(super) fn remove_device(&self, device: u8) -> Vec<(RecordHash, Located)> {
        self.remove_all(|entry| entry.zone.device() == device)
    }

    fn remove_all(&self, is_meant: impl Fn(&Entry) -> bool) -> Vec<(RecordHash, Located)> {
        let take = |shard: &Mutex<Shard>| {
            let mut shard = shard.lock();
            shard
                .extract_if(|entry| is_meant(entry))
                .map(|entry| (entry.hash, entry.located()))
                .collect::<Vec<_>>()
        };
        let taken: Vec<_> = self.shards.iter().flat_map(take).collect();
        taken.iter().for_each(|(_, located)| self.count_out(located));
        taken
    }

    fn count_in(&self, located: &Located) {
        self.blocks.fetch_add(u64::from(located.blocks & BLOCKS_MASK), Ordering::Relaxed);
    }

    fn count_out(&self, located: &Located) {
        self.blocks.fetch_sub(u64::from(located.blocks & BLOCKS_MASK), Ordering::Relaxed);
    }

    /// Blocks of all records, headers included.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// How many records stand on a device.
    pub(super) fn count_device(&self, device: u8) -> u64 {
        let count = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            shard.iter().filter(|entry| entry.zone.device() == device).count() as u64
        };
        self.shards.iter().map(count).sum()
    }

    /// Records in all.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Bytes of the tables.
    pub(super) fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().allocation_size()).sum()
    }
}

#[cfg(test)]
mod tests {
    //! Shows what an entry costs, and that versions and places decide what is changed.

    use super::*;
    use crate::tier::ssd::format::Uuid;

    fn hash(number: u64) -> RecordHash {
        RecordHash::of(Uuid([1; 16]), &number.to_le_bytes())
    }

    fn located(version: u64, zone: u32, block: u32) -> Located {
        let place = Place { zone: ZoneId::new(3, zone), block };
        Located { version: Version(version), place, blocks: 5, owner: 9, heat: 0, is_again: false }
    }

    #[test]
    fn an_object_costs_at_most_100_bytes_at_every_size() {
        let index = Index::new();
        let mut worst: usize = 0;
        for number in 0..600_000 {
            index.put(hash(number), &located(1, 0, 0));
            if number >= 50_000 && number % 10_000 == 0 {
                worst = worst.max(index.memory_bytes().div_ceil(index.len()));
            }
        }
        assert!((40..=100).contains(&worst), "{worst} bytes for each object");
    }

    #[test]
    fn an_older_version_never_replaces_a_later_one() {
        let index = Index::new();
        assert!(index.put(hash(1), &located(5, 1, 2)));
        assert!(!index.put(hash(1), &located(4, 8, 8)));
        assert_eq!(index.get(&hash(1)), Some(located(5, 1, 2)));
        assert!(index.put(hash(1), &located(5, 2, 2)));
        assert_eq!(index.remove_if(&hash(1), |found| found.version <= Version(4)), None);
        let again = Located { is_again: true, ..located(5, 2, 2) };
        assert_eq!(index.remove_if(&hash(1), |found| found.version <= Version(5)), Some(again));
        assert_eq!((index.get(&hash(1)), index.len()), (None, 0));
    }

    #[test]
    fn a_record_that_moved_loses_its_uses_and_nothing_else() {
        let index = Index::new();
        index.put(hash(1), &located(5, 1, 2));
        (0..9).for_each(|_| index.touch(&hash(1)));
        assert_eq!(index.get(&hash(1)).unwrap().heat, HEAT_MAX);
        let (from, to) = (located(5, 1, 2).place, located(5, 7, 3).place);
        assert!(!index.relocate(&hash(1), Version(5), to, from));
        assert!(!index.relocate(&hash(1), Version(4), from, to));
        assert!(index.relocate(&hash(1), Version(5), from, to));
        assert_eq!(index.get(&hash(1)), Some(located(5, 7, 3)));
        // Nor that an older record of its version may stand.
        index.put(hash(1), &located(5, 8, 3));
        index.touch(&hash(1));
        assert!(index.relocate(&hash(1), Version(5), located(5, 8, 3).place, to));
        assert_eq!(index.get(&hash(1)), Some(Located { is_again: true, ..located(5, 7, 3) }));
    }

    #[test]
    fn a_zone_goes_with_all_its_records() {
        let index = Index::new();
        assert!(
            (0..100)
                .all(|number| index.put(hash(number), &located(1, u32::try_from(number % 4).unwrap(), 0)))
        );
        assert_eq!(index.remove_zone(ZoneId::new(3, 2)).len(), 25);
        assert_eq!(index.len(), 75);
        let zones = |numbers: &[u32]| -> HashSet<ZoneId> {
            numbers.iter().map(|&number| ZoneId::new(3, number)).collect()
        };
        assert_eq!(index.remove_zones(&zones(&[1, 2, 7])).len(), 25);
        index.forget_zones(&zones(&[]));
        assert_eq!((index.len(), index.blocks()), (50, 50 * 5));
        index.forget_zones(&zones(&[3, 0]));
        assert_eq!((index.len(), index.blocks()), (0, 0));
        assert_eq!(ZoneId::new(3, 2).device(), 3);
        assert_eq!(ZoneId::new(3, 2).zone(), 2);
    }
}
