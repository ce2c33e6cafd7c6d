//! The end of a start, when the disks are in use and nobody is served yet: what has no room any more leaves, and what its
//! writer may go on to write is copied.
//!
//! Invariants
//! - Nothing leaves memory before the disks can take it: a start that fails earlier leaves all as it was.

use std::fs::{File, Metadata};
use std::ops::ControlFlow;

use tidefs_engine::types::{ByteCount, SegmentId, Version};

use super::flush::PROVISIONAL;
use super::history::Ending;
use super::packing::copy_range;
use super::recover::Takeover;
use super::room::footprint;
use super::stat::{changed_ns, written_ns};
use super::{Datapath, Error, Place, Recovered, decorations};
use crate::namespace::{Ino, Slot};
use crate::tier::eviction::Departure;
use crate::tier::memory::{ObjectRecord, UNFINISHED};

/// What a start has found and is not done with.
#[derive(Debug)]
#[must_use = "what its writers may go on to write is missing until it is settled"]
pub struct Unsettled {
    pub(super) takeover: Takeover,
    /// Objects that their writers may go on to write.
    pub(super) unfinished: Vec<(SegmentId, ObjectRecord)>,
    pub(super) recovered: Recovered,
}

impl Datapath {
    /// Ends a start: evicts what a smaller capacity has no room for, then copies what may be written on. Called once, after
    /// [`Datapath::recover`], when the disks are in use, and before the mount. Returns early when `is_stopping` says so: the next
    /// start does the rest.
    ///
    /// # Errors
    /// [`Error::Io`] when the tier does not tell its usage, or cannot be resized.
    pub fn settle(&self, unsettled: Unsettled, is_stopping: impl Fn() -> bool) -> Result<Recovered, Error> {
        let Unsettled { mut takeover, unfinished, mut recovered } = unsettled;
        let usage = self.tier.usage()?;
        if usage.used > usage.capacity {
            // With what writers want free from the first moment on: what has no copy by then is dropped for them.
            let ahead = self.settings.write_headroom.saturating_add(self.settings.free_ahead);
            self.evict_down(ahead, &is_stopping)?;
        }
        self.tier.retry_resize()?;
        for (segment, record) in unfinished {
            let is_wanted = self.is_wanted(&takeover, segment, &record);
            if is_wanted {
                // What is colder makes room for the copy, so it comes after all others.
                self.evict_down(footprint(record.size), &is_stopping)?;
            }
            if is_stopping() {
                break;
            }
            match is_wanted.then(|| self.as_it_was_sealed(&takeover, segment, record)) {
                None => recovered.removed += 1,
                Some(Ok((place, record))) => {
                    self.take_over_copy(&mut takeover, place, &record, &mut recovered)
                }
                Some(Err(error)) => {
                    recovered.removed += 1;
                    tracing::warn!(segment = segment.0, %error, "an object that was being written on is dropped");
                }
            }
            self.free_place(Place::Solo(segment));
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
            let ending = Ending::Evicted { for_directory: Ino::ROOT };
            let (evicted, _) = self.evict_coldest_bytes(outgrown, ending, &mut Vec::new(), |_, _| {
                if is_stopping() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            // Of small objects, which share pages, it takes more than their bytes say.
            if evicted == 0 || is_stopping() {
                return Ok(());
            }
        }
    }

    /// Whether an object was sealed, and nothing later has its name.
    fn is_wanted(&self, takeover: &Takeover, segment: SegmentId, record: &ObjectRecord) -> bool {
        let standing = self.standing(takeover, record);
        standing.is_none_or(|(version, _)| version < record.version)
            && self.tier.open_segment(segment).is_ok_and(|file| is_sealed(&file, record))
    }

    /// The version that stands under the name of an object, and when it was sealed.
    fn standing(&self, takeover: &Takeover, record: &ObjectRecord) -> Option<(Version, i64)> {
        let state = self.lock();
        let slot = state.tree.child(*takeover.slots.get(&record.parent)?, &record.name)?;
        state.object(slot).map(|object| (object.version, object.sealed_at_ns))
    }

    /// Takes over the copy of an object that its writer may go on to write.
    fn take_over_copy(
        &self,
        takeover: &mut Takeover,
        place: Place,
        record: &ObjectRecord,
        recovered: &mut Recovered,
    ) {
        let mut state = self.lock();
        let older = takeover.slots.get(&record.parent).and_then(|&parent| {
            let slot = state.tree.child(parent, &record.name)?;
            state.object(slot).filter(|object| object.version < record.version).map(|_| slot)
        });
        let older = older.map(|slot| state.remove_object(slot, Departure::Gone, None));
        state.take_over(takeover, place, record);
        state.order_adopted(std::mem::take(&mut takeover.adopted), recovered);
        drop(state);
        recovered.removed += takeover.unwanted.len() as u64 + u64::from(older.is_some());
        older.into_iter().for_each(|older| self.bury(older));
        takeover.unwanted.drain(..).for_each(|place| self.free_place(place));
    }

    /// Copies an object, as long as it was at its seal, out of a segment that its writer may go on to write: that one may live,
    /// and so may whoever has mapped it, so the segment itself is neither kept nor cut. Returns the record of the copy.
    ///
    /// # Errors
    /// [`Error::NoObject`] when it is not what was sealed any more, or what stands in the way of a copy.
    fn as_it_was_sealed(
        &self,
        takeover: &Takeover,
        segment: SegmentId,
        record: ObjectRecord,
    ) -> Result<(Place, ObjectRecord), Error> {
        let source = self.tier.open_segment(segment)?;
        let (id, target) = self.tier.create_segment()?;
        let copied = (|| {
            self.reserve(&target, ByteCount::ZERO, record.size, Slot::ROOT)?;
            copy_range(&source, &target, record.size.get()).map_err(Error::io("copy of an object"))?;
            target.set_len(record.size.get()).map_err(Error::io("ftruncate of a segment"))?;
            decorations::copy(&source, &target).map_err(Error::io("attributes of an object"))?;
            if !is_sealed(&source, &record) {
                return Err(Error::NoObject);
            }
            let sealed_at_ns = match record.sealed_at_ns {
                PROVISIONAL => {
                    // That record was the last change of the segment.
                    let closed = source.metadata().map_err(Error::io("stat of a segment"))?;
                    let replaced = self.standing(takeover, &record);
                    let least = replaced.map_or(i64::MIN, |(_, sealed_at_ns)| sealed_at_ns.saturating_add(1));
                    changed_ns(&closed).max(least)
                }
                sealed_at_ns => sealed_at_ns,
            };
            let copy = ObjectRecord { mode: record.mode & !UNFINISHED, sealed_at_ns, ..record };
            self.tier.seal(&target, &copy)?;
            Ok(copy)
        })();
        copied.map(|copy| (Place::Solo(id), copy)).inspect_err(|_: &Error| self.free_place(Place::Solo(id)))
    }
}

/// Whether the bytes of a segment are an object: a close that was announced counts if nobody wrote after that.
fn is_sealed(file: &File, record: &ObjectRecord) -> bool {
    let is_as_announced =
        |metadata: Metadata| written_ns(&metadata) == record.mtime_ns && metadata.len() == record.size.get();
    record.sealed_at_ns != PROVISIONAL || file.metadata().is_ok_and(is_as_announced)
}
