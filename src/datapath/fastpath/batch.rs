//! The references that one look-up gave, and which of them are held still.
//!
//! Invariants
//! - What was given back is stepped over: whatever ranges a client gives back again, and however often, each costs little more
//!   than what it takes out.
//! - What is kept is bounded by what is held, not by what was looked up: see [`Batch::compact`].

use std::ops::Range;

use crate::namespace::Slot;

/// References of which nothing is left out: looking up so many, of which few are there, is frequent, and to be fast.
const FEW: usize = 32;

/// Entries to one that is held at most, beyond [`FEW`].
const SPARSE: usize = 4;

/// One reference.
#[derive(Clone, Copy, Debug)]
enum Entry {
    Held(Slot),
    /// There was none, or it was given back. No other is held before this position.
    Gone(u32),
}

/// References that follow each other.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<Entry>,
    /// Which reference each entry is, in rising order. `None` while nothing was left out: each is the one of its position.
    indices: Option<Box<[u32]>>,
    held: usize,
}

impl Batch {
    /// One without references, with room for as many.
    pub(super) fn with_capacity(entries: usize) -> Self {
        Self { entries: Vec::with_capacity(entries), indices: None, held: 0 }
    }

    /// Adds the next reference; [`Slot::NONE`]: there is none. At most as many as a request has entries, and before any is left
    /// out.
    pub(super) fn push(&mut self, slot: Slot) {
        let next = u32::try_from(self.entries.len() + 1).unwrap_or(u32::MAX);
        self.held += usize::from(slot != Slot::NONE);
        self.entries.push(if slot == Slot::NONE { Entry::Gone(next) } else { Entry::Held(slot) });
    }

    /// How many are held.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Takes those out that are in `range`.
    pub(super) fn take(&mut self, range: Range<u32>, taken: &mut Vec<Slot>) {
        if range.is_empty() {
            return;
        }
        let range = self.positions(range);
        let mut at = self.held_from(range.start);
        while at < range.end
            && let Some(entry) = self.entries.get_mut(at as usize)
            && let Entry::Held(slot) = *entry
        {
            *entry = Entry::Gone(at + 1);
            self.held -= 1;
            taken.push(slot);
            at = self.held_from(at + 1);
        }
        self.compact();
    }

    /// Where the entries of a range of references are.
    fn positions(&self, range: Range<u32>) -> Range<u32> {
        let Some(indices) = &self.indices else { return range };
        let position = |index: u32| {
            let before = indices.partition_point(|&other| other < index);
            u32::try_from(before).unwrap_or(u32::MAX)
        };
        position(range.start)..position(range.end)
    }

    /// The first position from `at` on that is held, or one behind all. Shortens the way for who comes after.
    fn held_from(&mut self, mut at: u32) -> u32 {
        while let Some(&Entry::Gone(next)) = self.entries.get(at as usize) {
            if let Some(&after @ Entry::Gone(_)) = self.entries.get(next as usize) {
                self.entries[at as usize] = after;
            }
            at = next;
        }
        at
    }

    /// Leaves out what is not held when that is most of it, so that nobody who looks up much and holds little has memory kept for
    /// all. That costs no more than it did to enter what is left out. A batch of which nothing is held is about to go as a whole.
    pub(super) fn compact(&mut self) {
        let count = self.entries.len();
        if count <= FEW || self.held == 0 || self.held > count / SPARSE {
            return;
        }
        let mut entries = Vec::with_capacity(self.held);
        let mut indices = Vec::with_capacity(self.held);
        for (position, entry) in (0u32..).zip(&self.entries) {
            if let Entry::Held(_) = entry {
                indices.push(self.indices.as_ref().map_or(position, |known| known[position as usize]));
                entries.push(*entry);
            }
        }
        self.entries = entries;
        self.indices = Some(indices.into_boxed_slice());
    }

    /// All that are held.
    pub(super) fn into_held(self) -> impl Iterator<Item = Slot> {
        self.entries.into_iter().filter_map(|entry| match entry {
            Entry::Held(slot) => Some(slot),
            Entry::Gone(_) => None,
        })
    }

    /// Bytes that are kept for them.
    #[cfg(test)]
    fn kept_bytes(&self) -> usize {
        let indices = self.indices.as_ref().map_or(0, |indices| size_of_val(&**indices));
        self.entries.capacity() * size_of::<Entry>() + indices
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn batch_of(slots: &[Slot]) -> Batch {
        let mut batch = Batch::with_capacity(slots.len());
        slots.iter().for_each(|&slot| batch.push(slot));
        batch
    }

    /// As many as one request may have.
    const ENTRIES: u32 = 1 << 16;

    #[test]
    fn each_reference_is_taken_once_by_the_first_range_that_has_it() {
        let mut state = 0x9e37_79b9_u32;
        let mut random = |below: u32| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state % below
        };
        let (mut compacted, mut whole) = (0, 0);
        for _ in 0..400 {
            let length = 1 + random(120);
            // Of some most are there, and of others few.
            let misses = [2, 3, 9][random(3) as usize];
            let is_there = |random: u32| random.is_multiple_of(misses);
            let slots: Vec<Slot> = (0..length)
                .map(|_| if is_there(random(1000)) { Slot(1 + random(1000)) } else { Slot::NONE })
                .collect();
            let (mut batch, mut model) = (batch_of(&slots), slots.clone());
            if random(2) == 0 {
                batch.compact();
            }
            for _ in 0..random(40) {
                let start = random(length + 4);
                let end = if random(8) == 0 { u32::MAX } else { start + random(12) };
                let (mut taken, mut expected) = (Vec::new(), Vec::new());
                batch.take(start..end, &mut taken);
                for (slot, index) in model.iter_mut().zip(0u32..) {
                    if (start..end).contains(&index) && *slot != Slot::NONE {
                        expected.push(std::mem::replace(slot, Slot::NONE));
                    }
                }
                assert_eq!(taken, expected, "{start}..{end} of {slots:?}");
                assert_eq!(batch.held(), model.iter().filter(|&&slot| slot != Slot::NONE).count());
            }
            *(if batch.indices.is_some() { &mut compacted } else { &mut whole }) += 1;
            let left: Vec<Slot> = model.into_iter().filter(|&slot| slot != Slot::NONE).collect();
            assert_eq!(batch.into_held().collect::<Vec<_>>(), left);
        }
        assert!(compacted > 40 && whole > 40, "{compacted} compacted, {whole} whole");
    }

    #[test]
    fn a_request_of_ranges_in_which_nothing_is_held_holds_nobody_up() {
        // Beside two, and beside so many that nothing is left out.
        for first in [1, ENTRIES / 2] {
            let mut slots = vec![Slot::NONE; ENTRIES as usize];
            slots[..first as usize].fill(Slot(7));
            slots[ENTRIES as usize - 1] = Slot(8);
            let (mut batch, mut taken, started) = (batch_of(&slots), Vec::new(), Instant::now());
            for index in 0..ENTRIES {
                batch.take(0..0, &mut taken);
                batch.take(first..ENTRIES - 1, &mut taken);
                batch.take(first + index / 4..ENTRIES - 1, &mut taken);
            }
            assert!(taken.is_empty());
            assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
            batch.take(0..u32::MAX, &mut taken);
            slots.retain(|&slot| slot != Slot::NONE);
            assert_eq!((taken, batch.held()), (slots, 0));
        }
    }

    #[test]
    fn what_is_held_alone_of_a_large_batch_keeps_little_memory() {
        const LITTLE: usize = 1024;
        let middle = ENTRIES / 2;
        let mut slots = vec![Slot::NONE; ENTRIES as usize];
        slots[middle as usize] = Slot(7);
        let mut batch = batch_of(&slots);
        batch.compact();
        assert!(batch.kept_bytes() < LITTLE, "{} for one that was found", batch.kept_bytes());
        // Of all that were found, the first half at once and the rest one by one.
        slots.fill(Slot(7));
        let (mut other, mut taken) = (batch_of(&slots), Vec::new());
        other.compact();
        other.take(0..middle, &mut taken);
        for index in middle + 1..ENTRIES {
            other.take(index..index + 1, &mut taken);
        }
        assert_eq!(taken.len(), ENTRIES as usize - 1);
        assert!(other.kept_bytes() < LITTLE, "{} for one that is left", other.kept_bytes());
        for mut batch in [batch, other] {
            taken.clear();
            batch.take(middle..middle + 1, &mut taken);
            assert_eq!((&taken[..], batch.held()), (&[Slot(7)][..], 0));
        }
    }
}
