//! Which blocks of a namespace's packed segments are free: found by size, merged by place.
//!
//! Ordered maps of the standard library rather than an O(1) allocator: those found keep a node per block, live
//! ones too, in tables sized beforehand, and cannot take over blocks at given places after a restart. Here only
//! free blocks cost memory.
//!
//! Invariants
//! - Both maps hold the same blocks.
//! - No two free blocks touch: [`FreeSpace::insert`] merges.

use std::collections::{BTreeMap, BTreeSet};

/// Start of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Number of the segment.
    pub(super) segment: u32,
    /// Offset in it.
    pub(super) unit: u32,
}

/// The free blocks, in units.
#[derive(Debug, Default)]
pub(super) struct FreeSpace {
    by_place: BTreeMap<Place, u32>,
    by_size: BTreeSet<(u32, Place)>,
}

impl FreeSpace {
    /// Free blocks of at least `units`, the best fitting first, old segments before new ones.
    pub(super) fn candidates(&self, units: u32) -> impl Iterator<Item = (Place, u32)> {
        let first = (units, Place { segment: 0, unit: 0 });
        self.by_size.range(first..).map(|(units, place)| (*place, *units))
    }

    /// Takes the first `units` of the free block at `place`, which is at least as long.
    pub(super) fn take(&mut self, place: Place, units: u32) {
        let length = self.remove(place).expect("the place is one of the candidates");
        if let Some(rest) = length.checked_sub(units).filter(|rest| *rest > 0) {
            self.put(Place { unit: place.unit + units, ..place }, rest);
        }
    }

    /// The free block that `units` at `place` become part of when they are freed.
    pub(super) fn merged(&self, place: Place, units: u32) -> (Place, u32) {
        let mut start = place;
        let mut length = units;
        if let Some((before, count)) = self.by_place.range(..place).next_back()
            && before.segment == place.segment
            && before.unit + count == place.unit
        {
            start = *before;
            length += count;
        }
        let after = Place { unit: place.unit + units, ..place };
        (start, length + self.by_place.get(&after).copied().unwrap_or(0))
    }

    /// Frees `units` at `place`, which touch no free block that [`Self::merged`] does not name.
    pub(super) fn insert(&mut self, place: Place, units: u32) {
        let (start, length) = self.merged(place, units);
        if start != place {
            self.remove(start);
        }
        self.remove(Place { unit: place.unit + units, ..place });
        self.put(start, length);
    }

    /// Forgets the free block at `place`, and returns its length if there is one.
    pub(super) fn remove(&mut self, place: Place) -> Option<u32> {
        let units = self.by_place.remove(&place)?;
        self.by_size.remove(&(units, place));
        Some(units)
    }

    fn put(&mut self, place: Place, units: u32) {
        self.by_place.insert(place, units);
        self.by_size.insert((units, place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(segment: u32, unit: u32) -> Place {
        Place { segment, unit }
    }

    fn blocks(free: &FreeSpace) -> Vec<(u32, u32, u32)> {
        assert_eq!(free.by_place.len(), free.by_size.len());
        free.by_place.iter().map(|(place, units)| (place.segment, place.unit, *units)).collect()
    }

    #[test]
    fn neighbours_merge_on_both_sides_and_never_across_segments() {
        let mut free = FreeSpace::default();
        free.insert(at(0, 0), 10);
        free.insert(at(0, 20), 10);
        free.insert(at(1, 0), 5);
        assert_eq!(free.merged(at(0, 10), 10), (at(0, 0), 30));
        free.insert(at(0, 10), 10);
        assert_eq!(blocks(&free), [(0, 0, 30), (1, 0, 5)]);
    }

    #[test]
    fn the_best_fit_comes_first_and_its_rest_stays_free() {
        let mut free = FreeSpace::default();
        free.insert(at(0, 0), 100);
        free.insert(at(0, 200), 7);
        assert_eq!(free.candidates(7).next(), Some((at(0, 200), 7)));
        assert_eq!(free.candidates(8).next(), Some((at(0, 0), 100)));
        assert_eq!(free.candidates(101).next(), None);
        free.take(at(0, 0), 60);
        free.take(at(0, 200), 7);
        assert_eq!(blocks(&free), [(0, 60, 40)]);
    }
}
