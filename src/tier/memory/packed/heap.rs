//! The blocks of one namespace: handed out, taken back, and their pages with them.
//!
//! Invariants
//! - Everything here happens under the lock of the namespace.
//! - Marks are written in an order that keeps the chain whole: first the mark of the rest, then of the block.

use std::sync::Arc;

use hashbrown::HashMap;
use tidefs_engine::types::{ByteCount, DirectoryId, FileOffset};
use tracing::warn;

use super::super::error::MemoryError;
use super::super::space::allocated;
use super::block::{State, UNIT};
use super::free_space::{FreeSpace, Place};
use super::{GRAIN, PackedPool, PackedUsage, Segment};

/// Units of one grain.
const GRAIN_UNITS: u32 = 256;

const _: () = assert!(GRAIN_UNITS as u64 * UNIT == GRAIN.0, "grains are counted in units here");

/// Free blocks that are tried when the tmpfs is full, to find one whose pages are there already.
const CANDIDATES_MAX: usize = 32;

/// One segment as its heap sees it.
#[derive(Debug)]
struct Held {
    segment: Arc<Segment>,
    /// Which grains are allocated.
    grains: Vec<bool>,
    objects: u64,
    live_units: u64,
    allocated: ByteCount,
}

/// The packed objects of one namespace.
#[derive(Debug)]
pub(super) struct Heap {
    segment_units: u32,
    free: FreeSpace,
    held: HashMap<u32, Held>,
}

impl Heap {
    /// A heap without segments.
    pub(super) fn new(segment_units: u32) -> Self {
        Self { segment_units, free: FreeSpace::default(), held: HashMap::new() }
    }

    /// Whether it has no segment.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Hands out a pending block of `units`, with its pages.
    ///
    /// # Errors
    /// [`MemoryError::Full`]; then nothing changed.
    pub(super) fn allocate(
        &mut self,
        pool: &PackedPool,
        namespace: DirectoryId,
        units: u32,
    ) -> Result<(Arc<Segment>, u32), MemoryError> {
        let mut full = None;
        let candidates: Vec<_> = self.free.candidates(units).take(CANDIDATES_MAX).collect();
        for (place, length) in candidates {
            match self.try_place(pool, place, length, units) {
                Err(error) if error.is_full() => full = Some(error),
                outcome => return outcome,
            }
        }
        if let Some(error) = full {
            return Err(error);
        }
        let segment = pool.create_segment(namespace)?;
        let index = segment.index;
        let allocated = allocated(&segment.file)?;
        let mut grains = vec![false; usize_of(self.segment_units.div_ceil(GRAIN_UNITS))];
        grains[0] = true;
        self.held.insert(index, Held { segment, grains, objects: 0, live_units: 0, allocated });
        let place = Place { segment: index, unit: 0 };
        self.free.insert(place, self.segment_units);
        let outcome = self.try_place(pool, place, self.segment_units, units);
        if outcome.is_err() {
            self.remove_if_empty(pool, index)?;
        }
        outcome
    }

    fn try_place(
        &mut self,
        pool: &PackedPool,
        place: Place,
        length: u32,
        units: u32,
    ) -> Result<(Arc<Segment>, u32), MemoryError> {
        let held = self.held.get_mut(&place.segment).expect("a free block lies in a segment of its heap");
        let rest = length - units;
        // The mark of the rest needs its page too.
        held.reserve(pool, place.unit, units + u32::from(rest > 0))?;
        if rest > 0 {
            held.segment.write_mark(place.unit + units, State::Free, rest)?;
        }
        held.segment.write_mark(place.unit, State::Pending, units)?;
        held.objects += 1;
        held.live_units += u64::from(units);
        self.free.take(place, units);
        Ok((Arc::clone(&held.segment), place.unit))
    }

    /// Takes back the block of `units` at `unit`, whatever its mark says, and the pages that only it used.
    pub(super) fn free(
        &mut self,
        pool: &PackedPool,
        segment: &Segment,
        unit: u32,
        units: u32,
    ) -> Result<(), MemoryError> {
        let place = Place { segment: segment.index, unit };
        let (start, length) = self.free.merged(place, units);
        if start.unit != unit {
            // Inside a larger free block its own mark would go on to say that it is there.
            segment.write_mark(unit, State::Free, units)?;
        }
        segment.write_mark(start.unit, State::Free, length)?;
        self.free.insert(place, units);
        let held = self.held.get_mut(&segment.index).expect("the segment was found through its heap's pool");
        held.objects -= 1;
        held.live_units -= u64::from(units);
        if !self.remove_if_empty(pool, segment.index)?
            && let Some(held) = self.held.get_mut(&segment.index)
        {
            held.release(pool, start.unit, length, unit..unit + units + 1);
        }
        Ok(())
    }

    /// Takes over a segment after a restart: `free` are its free blocks, `objects` and `live_units` the rest.
    pub(super) fn adopt(
        &mut self,
        pool: &PackedPool,
        segment: Arc<Segment>,
        free: &[(u32, u32)],
        objects: u64,
        live_units: u64,
    ) -> Result<(), MemoryError> {
        let index = segment.index;
        let allocated = allocated(&segment.file)?;
        let grains = vec![true; usize_of(self.segment_units.div_ceil(GRAIN_UNITS))];
        let mut held = Held { segment, grains, objects, live_units, allocated };
        for (unit, units) in free {
            self.free.insert(Place { segment: index, unit: *unit }, *units);
            held.release(pool, *unit, *units, *unit..unit + units);
        }
        self.held.insert(index, held);
        self.remove_if_empty(pool, index)?;
        Ok(())
    }

    /// Adds what this heap holds.
    pub(super) fn add_to(&self, usage: &mut PackedUsage) {
        for held in self.held.values() {
            usage.segments += 1;
            usage.objects.0 += held.objects;
            usage.bytes_live.0 += held.live_units * UNIT;
            usage.bytes_allocated.0 += held.allocated.get();
        }
    }

    fn remove_if_empty(&mut self, pool: &PackedPool, index: u32) -> Result<bool, MemoryError> {
        match self.held.get(&index) {
            Some(held) if held.objects == 0 => {
                pool.remove_segment(&held.segment)?;
                self.held.remove(&index);
                self.free.remove(Place { segment: index, unit: 0 });
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

impl Held {
    /// Allocates the grains under `units` at `unit` that are not yet.
    fn reserve(&mut self, pool: &PackedPool, unit: u32, units: u32) -> Result<(), MemoryError> {
        let range = unit / GRAIN_UNITS..(unit + units).div_ceil(GRAIN_UNITS);
        let Some(first) = range.clone().find(|grain| !self.grains[usize_of(*grain)]) else { return Ok(()) };
        let offset = FileOffset(u64::from(first) * GRAIN.get());
        let length = ByteCount(u64::from(range.end - first) * GRAIN.get());
        pool.space.reserve(&self.segment.file, offset, length)?;
        self.grains[usize_of(first)..usize_of(range.end)].fill(true);
        self.allocated = allocated(&self.segment.file)?;
        Ok(())
    }

    /// Gives back the allocated grains among those that `changed` touches which lie inside the free block of
    /// `length` at `start`, its mark excepted.
    fn release(&mut self, pool: &PackedPool, start: u32, length: u32, changed: std::ops::Range<u32>) {
        let inside = (start + 1).div_ceil(GRAIN_UNITS)..(start + length) / GRAIN_UNITS;
        let first = inside.start.max(changed.start / GRAIN_UNITS);
        let end = inside.end.min(changed.end.div_ceil(GRAIN_UNITS));
        let mut grain = first;
        let mut punched = false;
        while grain < end {
            let run = (grain..end).take_while(|grain| self.grains[usize_of(*grain)]).count();
            let run = u32::try_from(run).expect("a run lies inside a segment");
            if run > 0 {
                let offset = FileOffset(u64::from(grain) * GRAIN.get());
                let bytes = ByteCount(u64::from(run) * GRAIN.get());
                match pool.space.punch(&self.segment.file, offset, bytes) {
                    Ok(()) => self.grains[usize_of(grain)..usize_of(grain + run)].fill(false),
                    Err(error) => warn!(error = %error, "free pages of a packed segment stay allocated"),
                }
                punched = true;
            }
            grain += run + 1;
        }
        if punched && let Ok(bytes) = allocated(&self.segment.file) {
            self.allocated = bytes;
        }
    }
}

fn usize_of(count: u32) -> usize {
    usize::try_from(count).expect("usize has at least 32 bits on every supported target")
}
