//! What is remembered of objects that were evicted: a fingerprint of the key and how often it was used.
//!
//! A block of KV is of the scale of a MiB, so a memory of eight times the cached objects is nearly free if an
//! entry is small; it is worth more than the choice of algorithm when the cache is small. An entry is 24 bits:
//! 20 of the key's hash and 4 of the hit count. Entries stand in buckets of 16, newest first; a full bucket
//! forgets its oldest, which is a FIFO in all but name and needs no links.
//!
//! Invariants
//! - `take` finds a key recorded less than about `capacity` records ago, or a stranger with the same
//!   bucket and fingerprint: once in 65,000 look-ups of a full ghost. The only harm is an undeserved bonus.
//! - An answer is given once: what comes back is an object again and no ghost.
//!
//! Limits: capacity follows the number of cached objects in powers of two, between 2/3 and 4/3 of what is asked
//! while it grows. Growing copies each bucket to both its halves, so nothing is forgotten and the strangers in
//! each half age out. Who records waits for one doubling at most: a ghost that is behind what is asked grows with
//! the next ones, and the first one makes it as large as it needs to be.

use std::num::NonZeroU32;

use tidefs_engine::types::KeyHash;

/// Entries of a bucket; with 3 bytes each, a bucket is less than one cache line.
const WAYS: usize = 16;
/// Largest hit count an entry can hold.
pub const HITS_MAX: u8 = 15;
/// An entry that holds nothing. No key has fingerprint zero.
const EMPTY: Entry = [0; 3];
/// Bits of a [`Fingerprint`] that name the bucket at most.
const BUCKET_BITS_MAX: u32 = 28;

type Entry = [u8; 3];

/// The 48 bits of a key that a ghost needs, in 6 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint([u16; 3]);

impl Fingerprint {
    /// Of no key; what a vacant slot holds.
    pub(super) const NOTHING: Self = Self([0; 3]);

    /// Mixes `key`, because a test or a weak hash may count upwards, and drops 16 bits.
    #[expect(clippy::cast_possible_truncation, reason = "taking 16 bits at a time is the purpose")]
    pub(super) fn of(key: KeyHash) -> Self {
        // The finisher of splitmix64: a bijection, so no two keys meet before the cut to 48 bits.
        let mut mixed = key.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        Self([(mixed >> 48) as u16, (mixed >> 32) as u16, (mixed >> 16) as u16])
    }

    fn bits(self) -> u64 {
        u64::from(self.0[0]) << 32 | u64::from(self.0[1]) << 16 | u64::from(self.0[2])
    }

    /// Bucket among `2^bucket_bits`: the upper bits, so that a bucket's halves are neighbours.
    fn bucket(self, bucket_bits: u32) -> usize {
        usize::try_from(self.bits() >> (48 - bucket_bits)).unwrap_or(usize::MAX)
    }

    /// The entry of this key with `hits`: 20 low bits, never zero, then the count.
    #[expect(clippy::cast_possible_truncation, reason = "the value is masked to the bits that are kept")]
    fn entry(self, hits: u8) -> Entry {
        let tag = ((self.bits() & 0xf_ffff) as u32).max(1);
        let packed = tag << 4 | u32::from(hits.min(HITS_MAX));
        [packed as u8, (packed >> 8) as u8, (packed >> 16) as u8]
    }
}

/// Whether two entries are of the same key.
fn same_key(left: Entry, right: Entry) -> bool {
    left[0] >> 4 == right[0] >> 4 && left[1..] == right[1..]
}

/// A bounded memory of evicted keys.
#[derive(Debug)]
pub struct Ghost {
    buckets: Vec<[Entry; WAYS]>,
    bucket_bits: u32,
    factor: u32,
    /// Objects of a lower tier.
    below: usize,
}

/// How often the objects of all tiers fit the ghost at least.
const OF_ALL_TIERS: usize = 2;

impl Ghost {
    /// An empty ghost that remembers about `factor` times the number of cached objects; 0 remembers nothing.
    #[must_use]
    pub fn new(factor: u32) -> Self {
        Self { buckets: Vec::new(), bucket_bits: 0, factor, below: 0 }
    }

    /// Tells how many objects a lower tier holds.
    pub(super) fn set_below(&mut self, objects: usize) {
        self.below = objects;
    }

    /// Remembers that `key` was evicted after `hits` uses, while `cached` objects stay.
    pub(super) fn record(&mut self, key: Fingerprint, hits: u8, cached: usize) {
        let Some(factor) = NonZeroU32::new(self.factor) else { return };
        let factor = usize::try_from(factor.get()).unwrap_or(usize::MAX);
        let of_all = cached.saturating_add(self.below).saturating_mul(OF_ALL_TIERS);
        self.fit(cached.saturating_mul(factor).max(of_all));
        let entry = key.entry(hits);
        let bucket = &mut self.buckets[key.bucket(self.bucket_bits)];
        // An older entry of the same key gives its place, else the oldest of the bucket.
        let place = bucket.iter().position(|&old| same_key(old, entry)).unwrap_or(WAYS - 1);
        bucket.copy_within(0..place, 1);
        bucket[0] = entry;
    }

    /// Forgets `key` and says how often it was used in its earlier lives, or `None` if it is not remembered.
    pub(super) fn take(&mut self, key: Fingerprint) -> Option<u8> {
        let bucket = self.buckets.get_mut(key.bucket(self.bucket_bits))?;
        let wanted = key.entry(0);
        let place = bucket.iter().position(|&entry| same_key(entry, wanted))?;
        let hits = bucket[place][0] & HITS_MAX;
        bucket.copy_within(place + 1.., place);
        bucket[WAYS - 1] = EMPTY;
        Some(hits)
    }

    /// Heap bytes of the table.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<[Entry; WAYS]>()
    }

    /// Doubles once, or halves, until the capacity is near `wanted` entries; shrinks late so as not to swing.
    fn fit(&mut self, wanted: usize) {
        let is_short = |bits: u32| (WAYS << bits).saturating_mul(3) / 2 < wanted && bits < BUCKET_BITS_MAX;
        if self.buckets.is_empty() {
            while is_short(self.bucket_bits) {
                self.bucket_bits += 1;
            }
            self.buckets = vec![[EMPTY; WAYS]; 1 << self.bucket_bits];
        } else if is_short(self.bucket_bits) {
            self.buckets = self.buckets.iter().flat_map(|&bucket| [bucket, bucket]).collect();
            self.bucket_bits += 1;
        }
        while self.capacity() / 4 > wanted && self.bucket_bits > 0 {
            self.buckets = self.buckets.chunks_exact(2).map(|pair| merge(&pair[0], &pair[1])).collect();
            self.bucket_bits -= 1;
        }
    }

    fn capacity(&self) -> usize {
        self.buckets.len() * WAYS
    }
}

/// The newer half of each of two buckets, newest first.
fn merge(left: &[Entry; WAYS], right: &[Entry; WAYS]) -> [Entry; WAYS] {
    std::array::from_fn(|place| if place % 2 == 0 { left[place / 2] } else { right[place / 2] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Fingerprint {
        Fingerprint::of(KeyHash(number))
    }

    #[test]
    fn a_key_comes_back_once_with_its_hits() {
        let mut ghost = Ghost::new(8);
        ghost.record(key(1), 3, 100);
        ghost.record(key(2), 200, 100);
        assert_eq!(ghost.take(key(1)), Some(3));
        assert_eq!(ghost.take(key(1)), None);
        assert_eq!(ghost.take(key(2)), Some(HITS_MAX), "the count is capped");
        assert_eq!(ghost.take(key(3)), None);
    }

    #[test]
    fn a_key_recorded_again_keeps_one_entry_with_the_newer_count() {
        let mut ghost = Ghost::new(8);
        ghost.record(key(1), 3, 100);
        ghost.record(key(1), 5, 100);
        assert_eq!(ghost.take(key(1)), Some(5));
        assert_eq!(ghost.take(key(1)), None);
    }

    #[test]
    fn it_remembers_most_of_the_factor_and_forgets_what_is_much_older() {
        let mut ghost = Ghost::new(8);
        for number in 0..100_000 {
            ghost.record(key(number), 1, 1000);
        }
        let recent = (96_000..100_000).filter(|&number| ghost.take(key(number)).is_some()).count();
        let ancient = (0..50_000).filter(|&number| ghost.take(key(number)).is_some()).count();
        assert!(recent > 3_700, "{recent} of the last 4,000");
        assert!(ancient < 25, "{ancient} of 50,000 that should be long gone");
    }

    #[test]
    fn growing_forgets_nothing_and_shrinking_keeps_the_newest() {
        let mut ghost = Ghost::new(8);
        for number in 0..8 {
            ghost.record(key(number), 2, 1);
        }
        ghost.record(key(8), 2, 100_000);
        assert!((0..9).all(|number| ghost.take(key(number)) == Some(2)));
        // It takes more than one round to become as large as it is to be.
        for number in (0..9).chain(0..9) {
            ghost.record(key(number), 4, 100_000);
        }
        let large = ghost.memory_bytes();
        ghost.record(key(9), 4, 100);
        assert!(ghost.memory_bytes() < large / 100);
        assert_eq!(ghost.take(key(9)), Some(4));
    }

    #[test]
    fn with_a_lower_tier_it_remembers_more_than_that_holds() {
        let mut ghost = Ghost::new(8);
        ghost.set_below(20_000);
        for number in 0..100_000 {
            ghost.record(key(number), 1, 100);
        }
        let recent = (80_000..100_000).filter(|&number| ghost.take(key(number)).is_some()).count();
        assert!(recent > 18_500, "{recent} of the last 20,000");
    }

    #[test]
    fn one_record_waits_for_one_doubling_at_most_and_the_first_for_none() {
        let mut ghost = Ghost::new(8);
        ghost.record(key(1), 1, 1);
        assert_eq!(ghost.buckets.len(), 1);
        ghost.set_below(1_000_000);
        let sizes = (2..20).map(|number| {
            ghost.record(key(number), 1, 1);
            ghost.buckets.len()
        });
        let sizes: Vec<usize> = sizes.collect();
        assert_eq!((sizes[0], sizes[1], sizes[2]), (2, 4, 8));
        let mut new = Ghost::new(8);
        new.set_below(1_000_000);
        new.record(key(1), 1, 1);
        assert_eq!(Some(&new.buckets.len()), sizes.last());
        assert!(new.capacity() * 3 / 2 >= 2_000_000);
        assert!((1..10).all(|number| ghost.take(key(number)) == Some(1)), "growing forgets nothing");
    }

    #[test]
    fn a_ghost_of_factor_zero_remembers_nothing_and_takes_no_memory() {
        let mut ghost = Ghost::new(0);
        ghost.record(key(1), 3, 100);
        assert_eq!(ghost.take(key(1)), None);
        assert_eq!(ghost.memory_bytes(), 0);
    }
}
