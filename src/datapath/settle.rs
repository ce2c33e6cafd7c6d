//! The end of a start, when the disks are in use and nobody is served yet: what has no room any more leaves, and what is being
//! written on is copied.
//!
//! Invariants
//! - Nothing leaves memory before the disks can take it: a start that fails earlier leaves all as it was.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use tidefs_engine::types::{ByteCount, SegmentId};

use super::packing::copy_range;
use super::recover::Takeover;
use super::release::PROVISIONAL;
use super::room::footprint;
use super::{Datapath, Error, Place, Recovered, decorations};
use crate::namespace::Slot;
use crate::tier::eviction::Departure;
use crate::tier::memory::ObjectRecord;

/// What a start has found and is not done with.
#[derive(Debug)]
#[must_use = "what is being written on is missing until it is settled"]
pub struct Unsettled {
    pub(super) takeover: Takeover,
    /// Objects to which their writers have added since the seal.
    pub(super) grown: Vec<(SegmentId, ObjectRecord)>,
    pub(super) recovered: Recovered,
}

impl Datapath {
    /// Ends a start: evicts what a smaller capacity has no room for, then copies what is being written on. Called once, after
    /// [`Datapath::recover`], when the disks are in use, and before the mount. Returns early when `is_stopping` says so: the next
    /// start does the rest.
    ///
    /// # Errors
    /// [`Error::Io`] when the tier does not tell its usage, or cannot be resized.
    pub fn settle(&self, unsettled: Unsettled, is_stopping: impl Fn() -> bool) -> Result<Recovered, Error> {
        let Unsettled { mut takeover, grown, mut recovered } = unsettled;
        self.evict_down(ByteCount::ZERO, &is_stopping)?;
        self.tier.retry_resize()?;
        for (segment, record) in grown {
            // What is colder makes room for the copy, so it comes after all others.
            self.evict_down(footprint(record.size), &is_stopping)?;
            if is_stopping() {
                break;
            }
            self.take_over_grown(&mut takeover, segment, record, &mut recovered);
        }
        Ok(recovered)
    }

    /// Evicts what the capacity has no room for beside `needed` bytes, or all that may leave. Waits for the disks.
    fn evict_down(&self, needed: ByteCount, is_stopping: impl Fn() -> bool) -> Result<(), Error> {
        loop {
            let usage = self.tier.usage()?;
            // What a disk takes its time for is on its way.
            let kept = usage.used.saturating_sub(self.lent_bytes());
            let outgrown = kept.saturating_add(needed).saturating_sub(usage.capacity);
            let (evicted, _) = self.evict_for_operator(outgrown, &mut Vec::new(), |_, _| {
                if is_stopping() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            // Of small objects, which share pages, it takes more than their bytes say.
            if evicted == 0 || is_stopping() {
                return Ok(());
            }
        }
    }

    /// Takes over an object to which its writer has added, as it was at its seal.
    fn take_over_grown(
        &self,
        takeover: &mut Takeover,
        segment: SegmentId,
        record: ObjectRecord,
        recovered: &mut Recovered,
    ) {
        match self.as_it_was_sealed(segment, &record) {
            Ok(place) => {
                let mut state = self.lock();
                let older = takeover.slots.get(&record.parent).and_then(|&parent| {
                    let slot = state.tree.child(parent, &record.name)?;
                    state.object(slot).filter(|object| object.version < record.version).map(|_| slot)
                });
                let older = older.map(|slot| state.remove_object(slot, Departure::Gone, None));
                self.take_over(&mut state, takeover, place, record);
                self.has_unverified.fetch_or(!takeover.adopted.is_empty(), Ordering::Relaxed);
                state.order_adopted(std::mem::take(&mut takeover.adopted), recovered);
                drop(state);
                recovered.removed += takeover.unwanted.len() as u64 + u64::from(older.is_some());
                older.into_iter().for_each(|older| self.bury(older));
            }
            Err(error) => {
                recovered.removed += 1;
                tracing::warn!(segment = segment.0, %error, "an object that was being written on is dropped");
            }
        }
        takeover.unwanted.push(Place::Solo(segment));
        takeover.unwanted.drain(..).for_each(|place| self.free_place(place));
    }

    /// Copies an object, as long as it was at its seal, out of a segment to which its writer has added since: the writer
    /// may live, and so may whoever has mapped it, so the segment itself is neither kept nor cut.
    ///
    /// # Errors
    /// [`Error::NoObject`] when it was not sealed, or what stands in the way of a copy.
    fn as_it_was_sealed(&self, segment: SegmentId, record: &ObjectRecord) -> Result<Place, Error> {
        if record.sealed_at_ns == PROVISIONAL {
            return Err(Error::NoObject);
        }
        let source = self.tier.open_segment(segment)?;
        let (id, target) = self.tier.create_segment()?;
        let copied = (|| {
            self.reserve(&target, ByteCount::ZERO, record.size, Slot::ROOT)?;
            copy_range(&source, &target, record.size.get()).map_err(Error::io("copy of an object"))?;
            target.set_len(record.size.get()).map_err(Error::io("ftruncate of a segment"))?;
            decorations::copy(&source, &target).map_err(Error::io("attributes of an object"))?;
            Ok(self.tier.seal(&target, record)?)
        })();
        copied.map(|()| Place::Solo(id)).inspect_err(|_: &Error| self.free_place(Place::Solo(id)))
    }
}
