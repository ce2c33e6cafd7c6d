//! The references that one look-up gave, and which of them are held still.
//!
//! Invariants
//! - What was given back is stepped over: whatever ranges a client gives back again, and however often, each costs little more
//!   than what it takes out.

use std::ops::Range;

use crate::namespace::Slot;

/// One reference.
#[derive(Clone, Copy, Debug)]
enum Entry {
    Held(Slot),
    /// There was none, or it was given back. No other is held before this index.
    Gone(u32),
}

/// References that follow each other.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<Entry>,
    held: usize,
}

impl Batch {
    /// One without references, with room for as many.
    pub(super) fn with_capacity(entries: usize) -> Self {
        Self { entries: Vec::with_capacity(entries), held: 0 }
    }

    /// Adds the next reference; [`Slot::NONE`]: there is none. At most as many as a request has entries.
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
    }

    /// The first index from `at` on that is held, or one behind all. Shortens the way for who comes after.
    fn held_from(&mut self, mut at: u32) -> u32 {
        while let Some(&Entry::Gone(next)) = self.entries.get(at as usize) {
            if let Some(&after @ Entry::Gone(_)) = self.entries.get(next as usize) {
                self.entries[at as usize] = after;
            }
            at = next;
        }
        at
    }

    /// All that are held.
    pub(super) fn into_held(self) -> impl Iterator<Item = Slot> {
        self.entries.into_iter().filter_map(|entry| match entry {
            Entry::Held(slot) => Some(slot),
            Entry::Gone(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn batch_of(slots: &[Slot]) -> Batch {
        let mut batch = Batch::default();
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
        for _ in 0..200 {
            let length = 1 + random(60);
            let slots: Vec<Slot> = (0..length).map(|_| Slot(random(3) * (1 + random(1000)))).collect();
            let (mut batch, mut model) = (batch_of(&slots), slots.clone());
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
            let left: Vec<Slot> = model.into_iter().filter(|&slot| slot != Slot::NONE).collect();
            assert_eq!(batch.into_held().collect::<Vec<_>>(), left);
        }
    }

    #[test]
    fn a_request_of_ranges_in_which_nothing_is_held_holds_nobody_up() {
        let mut slots = vec![Slot::NONE; ENTRIES as usize];
        slots[0] = Slot(7);
        slots[ENTRIES as usize - 1] = Slot(8);
        let (mut batch, mut taken, started) = (batch_of(&slots), Vec::new(), Instant::now());
        for index in 0..ENTRIES {
            batch.take(0..0, &mut taken);
            batch.take(1..ENTRIES - 1, &mut taken);
            batch.take(1 + index / 2..ENTRIES - 1, &mut taken);
        }
        assert!(taken.is_empty());
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        batch.take(0..u32::MAX, &mut taken);
        assert_eq!((taken, batch.held()), (vec![Slot(7), Slot(8)], 0));
    }
}
