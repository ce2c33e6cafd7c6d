//! Versions that all had closed when another one was published under their name: what stands, and which close takes that back.
//!
//! close(2) is told of each descriptor, be it a duplicate or one that a child inherited, and mostly of one through which nothing was
//! written. So what a version is like is noted when all have closed it: a close is a later one only if it was written since.
//!
//! Invariants
//! - What was overtaken is sealed only when somebody has written it after that and closed it.
//! - What was written since all had closed it is not overtaken: somebody still has it open.
//!
//! Limits: what the kernel writes by passthrough is seen by the length and the time of the backing file alone. Where its clock moves
//! in ticks, before Linux 6.13, what is written over other bytes within one tick of the write before that is not seen; nor is on any
//! what is stored through a mapping. It is noted by FLUSH, so not when somebody is killed in his open(2).

use tidefs_engine::types::ByteCount;

use super::burial::Doomed;
use super::open_state::OpenState;
use super::stat::written_ns;
use super::{Datapath, Object, Place, State};
use crate::namespace::Slot;

/// What a file that is being written is like: one that is like that still was not written meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    size: ByteCount,
    written_ns: i64,
    /// As [`OpenState::writes`].
    writes: u64,
}

impl OpenState {
    /// It stands under another name than before, or is an object: nothing came before it there.
    pub(super) fn forget_overtaking(&mut self) {
        (self.is_overtaken, self.closed_as, self.overtaken_as) = (false, None, None);
    }
}

impl State {
    /// What the file in `slot`, which somebody has open or is to write, is like now.
    fn content_of(&self, slot: Slot) -> Option<Content> {
        let object = self.object(slot)?;
        let writes = object.open.as_deref()?.writes;
        let file = match &object.place {
            Place::Scratch(scratch) => scratch.file(),
            _ => object.file()?,
        };
        let metadata = file.metadata().ok()?;
        Some(Content { size: ByteCount(metadata.len()), written_ns: written_ns(&metadata), writes })
    }

    /// The daemon writes to the file in `slot`, or has changed its length, for somebody.
    pub(super) fn count_write(&mut self, slot: Slot) {
        if let Some(open) = self.object_mut(slot).and_then(|object| object.open.as_deref_mut()) {
            open.writes += 1;
        }
    }

    /// All who write the file in `slot` have closed it, as far as is known.
    pub(super) fn note_closed(&mut self, slot: Slot) {
        let open = self.object(slot).and_then(|object| object.open.as_deref());
        // Hot path: what is the first under its name gives way to whatever is published there.
        let content =
            if open.is_some_and(|open| open.supersedes.is_some()) { self.content_of(slot) } else { None };
        if let Some(open) = self.object_mut(slot).and_then(|object| object.open.as_deref_mut()) {
            open.closed_as = content;
        }
    }

    /// What the file in `slot` is like before its times are set, where somebody will compare that: else it is not asked for.
    pub(super) fn content_if_noted(&self, slot: Slot) -> Option<Content> {
        let open = self.object(slot)?.open.as_deref()?;
        let is_noted = open.closed_as.is_some() || open.overtaken_as.is_some();
        if is_noted { self.content_of(slot) } else { None }
    }

    /// The owner of the file in `slot` has set its times, which writes nothing: it was like `before`, if that matters.
    pub(super) fn note_stamped(&mut self, slot: Slot, before: Option<Content>) {
        let open = self.object_mut(slot).and_then(|object| object.open.as_deref_mut());
        let (Some(before), Some(open)) = (before, open) else { return };
        if [open.closed_as, open.overtaken_as].into_iter().flatten().any(|noted| noted != before) {
            // With its time set back it would look as if it had not been written.
            open.writes += 1;
        }
        let now = self.content_of(slot);
        let Some(open) = self.object_mut(slot).and_then(|object| object.open.as_deref_mut()) else { return };
        for noted in [&mut open.closed_as, &mut open.overtaken_as] {
            if *noted == Some(before) {
                *noted = now;
            }
        }
    }

    /// An object takes the name of the hidden version in `slot`, which replaces it in turn unless all had closed that before.
    pub(super) fn overtake(&mut self, slot: Slot) {
        let content = self.content_of(slot);
        let Some(open) = self.object_mut(slot).map(Object::open_mut) else { return };
        let is_as_closed = open.closed_as.is_none() || open.closed_as == content;
        open.is_overtaken = open.is_closed_by_all() && is_as_closed;
        if open.is_overtaken {
            open.overtaken_as = content;
        }
    }

    /// Whether all had closed the file in `slot` when another one was published under its name. When it has that name again, as the
    /// other one has gone since, nothing is to stand there.
    pub(super) fn is_overtaken(&self, slot: Slot) -> bool {
        self.object(slot).is_some_and(Object::is_overtaken)
    }

    /// Whether nothing comes of the version in `slot` as it is: it was overtaken, and nobody has written to it since, or opened it.
    pub(super) fn is_spent(&self, slot: Slot) -> bool {
        self.is_overtaken(slot) && self.is_as_overtaken(slot)
    }

    /// Whether another version was published under the name of the one in `slot` after all had closed that, and nobody wrote to it
    /// since. Somebody may have opened it.
    pub(super) fn is_as_overtaken(&self, slot: Slot) -> bool {
        let open = self.object(slot).and_then(|object| object.open.as_deref());
        let overtaken_as = open.and_then(|open| open.overtaken_as);
        overtaken_as.is_some() && overtaken_as == self.content_of(slot)
    }
}

impl Datapath {
    /// Takes the name from the file in `slot`, which stands there in vain.
    pub(super) fn discard_overtaken(&self, state: &mut State, slot: Slot) -> Option<Doomed> {
        state.is_overtaken(slot).then(|| {
            let mut doomed = state.discard_writing(slot);
            self.retire_all(std::slice::from_mut(&mut doomed));
            doomed
        })
    }
}
