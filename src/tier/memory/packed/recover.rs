//! Finds the packed objects again after a restart, by walking the chain of blocks of each segment file.
//!
//! A damaged block costs its object; a damaged chain costs what lies behind the damage in that segment. Neither
//! stops the start.

use std::sync::Arc;

use hashbrown::HashMap;
use tidefs_engine::types::{DirectoryId, Version};
use tracing::warn;

use super::super::error::MemoryError;
use super::super::name::Entry;
use super::super::record::ObjectRecord;
use super::block::{BlockHeader, HEADER_BYTES, State};
use super::{PackedExtent, PackedPool, Segment};

/// The first pass over the segments: their chains are whole again, their objects not yet told.
#[derive(Debug, Default)]
pub(in super::super) struct PackedRecovery {
    /// Segments with live blocks.
    found: Vec<Found>,
    /// Highest generation of each object that was rewritten, by its origin.
    generations: HashMap<Version, u16>,
    /// Objects told.
    pub(in super::super) objects: u64,
    /// Blocks that were handed out and never finished.
    pub(in super::super) unsealed: u64,
    /// Blocks and chains that did not parse.
    pub(in super::super) corrupt: u64,
    /// Objects dropped since a later rewrite of them was found.
    pub(in super::super) superseded: u64,
}

/// A segment taken over.
#[derive(Debug)]
struct Found {
    segment: Arc<Segment>,
    /// Unit and tag of each live block.
    live: Vec<(u32, u32)>,
}

/// What one walk found.
#[derive(Debug, Default)]
struct Walk {
    live: Vec<(u32, u32)>,
    live_units: u64,
    free: Vec<(u32, u32)>,
}

impl PackedPool {
    /// Takes over one segment file; the pool has not given out its number.
    pub(in super::super) fn adopt(
        &self,
        recovery: &mut PackedRecovery,
        index: u32,
        namespace: DirectoryId,
    ) -> Result<(), MemoryError> {
        let name = Entry::Packed { index, namespace }.to_string();
        if self.segments.read().contains_key(&index) {
            warn!(file = name, "a second packed segment of one number is dropped; something else made it");
            recovery.corrupt += 1;
            return self.space.unlink(&name);
        }
        let segment = Arc::new(Segment { index, namespace, file: self.space.open(&name)? });
        let walk = self.walk(&segment, recovery)?;
        if walk.live.is_empty() {
            return self.space.unlink(&name);
        }
        self.segments.write().insert(index, Arc::clone(&segment));
        self.heap(namespace).lock().adopt(
            self,
            Arc::clone(&segment),
            &walk.free,
            walk.live.len() as u64,
            walk.live_units,
        )?;
        recovery.found.push(Found { segment, live: walk.live });
        Ok(())
    }

    /// Tells every object to `visit`, which may free it.
    pub(in super::super) fn tell(
        &self,
        recovery: &mut PackedRecovery,
        visit: &mut dyn FnMut(PackedExtent, ObjectRecord),
    ) -> Result<(), MemoryError> {
        for Found { segment, live } in std::mem::take(&mut recovery.found) {
            for (unit, tag) in live {
                let extent = PackedExtent { segment: segment.index, unit, tag };
                match self.record_in(&segment, &extent) {
                    Ok(_) if Self::is_superseded(recovery, &segment, &extent)? => {
                        recovery.superseded += 1;
                        self.free(extent)?;
                    }
                    Ok(record) => {
                        recovery.objects += 1;
                        visit(extent, record);
                    }
                    Err(MemoryError::Stale { .. }) => {} // `visit` freed it before its turn
                    Err(error) => {
                        warn!(%extent, error = %error, "a damaged packed object is dropped");
                        recovery.corrupt += 1;
                        self.free(extent)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn is_superseded(
        recovery: &PackedRecovery,
        segment: &Segment,
        extent: &PackedExtent,
    ) -> Result<bool, MemoryError> {
        let header = segment.header(extent)?;
        let latest = recovery.generations.get(&header.origin);
        Ok(latest.is_some_and(|latest| header.generation < *latest))
    }

    fn walk(&self, segment: &Segment, recovery: &mut PackedRecovery) -> Result<Walk, MemoryError> {
        let mut walk = Walk::default();
        // Start of the run of blocks that become one free block, and whether its mark says so already.
        let mut free: Option<(u32, bool)> = None;
        let mut unit = 0;
        while unit < self.segment_units {
            let mut bytes = [0; HEADER_BYTES];
            let block = BlockHeader::parse(segment.read_block(unit, &mut bytes)?)
                .filter(|block| block.units <= self.segment_units - unit);
            let Some(block) = block else {
                // A file that was never written is a kill right after its creation, and no damage.
                if unit > 0 || segment.file.metadata().map_or(1, |metadata| metadata.len()) > 0 {
                    warn!(
                        file = segment.name(),
                        unit, "the chain of blocks ends early; what follows is dropped"
                    );
                    recovery.corrupt += 1;
                }
                free = Some((free.map_or(unit, |(start, _)| start), false));
                break;
            };
            match (block.state, block.header) {
                (State::Live, Some(header)) => {
                    if let Some((start, marked)) = free.take() {
                        Self::end_free_run(segment, &mut walk, start, unit - start, marked);
                    }
                    walk.live.push((unit, header.tag));
                    walk.live_units += u64::from(block.units);
                    if header.generation > 0 {
                        let latest = recovery.generations.entry(header.origin).or_default();
                        *latest = header.generation.max(*latest);
                    }
                }
                (state, _) => {
                    match state {
                        State::Live => {
                            warn!(file = segment.name(), unit, "a damaged packed object is dropped");
                            recovery.corrupt += 1;
                        }
                        State::Pending => recovery.unsealed += 1,
                        State::Free | State::Retired => {}
                    }
                    free = Some(free.map_or((unit, state == State::Free), |(start, _)| (start, false)));
                }
            }
            unit += block.units;
        }
        if let Some((start, marked)) = free
            && !walk.live.is_empty()
        {
            Self::end_free_run(segment, &mut walk, start, self.segment_units - start, marked);
        }
        Ok(walk)
    }

    /// Notes one free block; writes its mark unless it is there.
    fn end_free_run(segment: &Segment, walk: &mut Walk, start: u32, units: u32, marked: bool) {
        if !marked && let Err(error) = segment.write_mark(start, State::Free, units) {
            // Only behind a broken chain, whose pages may be gone, and only on a full tmpfs.
            warn!(file = segment.name(), unit = start, error = %error, "free space is lost until the next start");
            return;
        }
        walk.free.push((start, units));
    }
}
