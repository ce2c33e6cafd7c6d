//! Changes of the length of a file, and of its pages: it is cut, grown, or gets a hole.
//!
//! Invariants
//! - What grows a file finds room before it happens; what is refused changes nothing.
//! - What was known of the pages of a file counts for nobody who knew it before some of them were cut off.

use std::fs::File;
use std::sync::Arc;

use tidefs_engine::types::{ByteCount, FileOffset};

use super::super::slot_file::{change_scratch, scratch_error};
use super::super::{
    Caller, Datapath, Error, HandleId, IoPath, Object, OpenOptions, Opened, Phase, Place, State,
};
use super::Reserved;
use crate::namespace::{Ino, Slot};
use crate::tier::scratch::Wait;

/// How a length changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeChange {
    /// ftruncate(2): the file has this length.
    Set(ByteCount),
    /// fallocate(2): the range has its pages; the length grows to its end unless `keep_size`.
    Allocate {
        /// Start of the range.
        offset: ByteCount,
        /// Its length.
        length: ByteCount,
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
    /// fallocate(2) with `FALLOC_FL_PUNCH_HOLE`: the range reads as zeros.
    Punch {
        /// Start of the range.
        offset: ByteCount,
        /// Its length.
        length: ByteCount,
    },
}

impl SizeChange {
    /// Up to where the file is to have room afterwards.
    pub(in crate::datapath) fn end(self) -> ByteCount {
        match self {
            Self::Set(length) => length,
            Self::Allocate { offset, length, .. } => offset.saturating_add(length),
            Self::Punch { .. } => ByteCount::ZERO,
        }
    }
}

impl Datapath {
    /// Changes the length or the pages of a file that is being written.
    ///
    /// Through a handle that may write, the file of that handle. By name, one that nobody has open for writing is opened for
    /// it, changed and closed: a sealed object gets a new version of that length, sealed at once.
    ///
    /// # Errors
    /// As [`Datapath::write`]; [`Error::Stale`] when the name must be looked up again.
    pub fn change_size(
        &self,
        caller: &Caller,
        ino: Ino,
        through: Option<HandleId>,
        change: SizeChange,
    ) -> Result<(), Error> {
        self.change_size_within(caller, ino, through, change, Wait::Patiently)
    }

    /// The same, with a limit to the wait for room of a slot file.
    ///
    /// # Errors
    /// As [`change_size`](Self::change_size).
    pub fn change_size_within(
        &self,
        caller: &Caller,
        ino: Ino,
        through: Option<HandleId>,
        change: SizeChange,
        wait: Wait,
    ) -> Result<(), Error> {
        self.change_size_and(caller, ino, (through, change), wait, || Ok(()))
    }

    /// The same, and does `then` while the file is open, so that it does not leave in between.
    pub(in crate::datapath) fn change_size_and<T>(
        &self,
        caller: &Caller,
        ino: Ino,
        (through, change): (Option<HandleId>, SizeChange),
        wait: Wait,
        then: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(slot) = through.and_then(|handle| self.lock().written_through(handle)) {
            // What is refused changes nothing: the file is what its writers made of it.
            return self.change_open_size(slot, change, wait).and_then(|()| then());
        }
        let cut_to = match change {
            SizeChange::Set(length) => Some(length),
            SizeChange::Allocate { .. } | SizeChange::Punch { .. } => None,
        };
        let options = OpenOptions { write: true, cut_to, ..OpenOptions::default() };
        let joined = {
            let mut state = self.lock();
            let slot = state.slot_of(ino)?;
            let is_hidden = self.is_hidden_from(&mut state, caller, slot, options.write);
            let is_written = state.object(slot).ok_or(Error::IsDirectory)?.is_cut_where_it_is();
            (is_written && !is_hidden).then(|| {
                // Who was sent to open a version has come, to change its length and nothing more.
                state.take_resent(caller, Some(slot));
                // The last of the others may close it at any moment: it is not sealed before this is done.
                self.open_handle(&mut state, caller, slot, options, IoPath::Direct)
            })
        };
        let has_joined = joined.is_some();
        // truncate(2) by name: open, cut, close. The second look-up meets the new version.
        let opened = joined.map_or_else(|| self.open(caller, ino, options), Ok)?;
        let slot = opened.ino.slot();
        let outcome = self.change_open_size(slot, change, wait).and_then(|()| then());
        if let Err(error) = &outcome
            && !has_joined
            && self.lock().versions_of(slot).0.is_some_and(|current| current != slot)
        {
            // The version that was begun for this is not sealed over the one that stands.
            self.note_refusal(slot, error);
        }
        // It is closed as by close(2), or it would count as one whose writer was killed.
        self.lock().count_flush(opened.handle);
        self.release(opened.handle);
        outcome
    }

    fn change_open_size(&self, slot: Slot, change: SizeChange, wait: Wait) -> Result<(), Error> {
        let end = change.end();
        if end >= self.settings.scratch_min {
            let ino = self.lock().tree.ino(slot);
            self.become_scratch(ino, wait)?;
        }
        let _stays = self.stays_where_it_is(slot);
        let (file, known, directory) = {
            let mut state = self.lock();
            if let Some(Place::Scratch(scratch)) = state.object(slot).map(|object| &object.place) {
                let scratch = Arc::clone(scratch);
                drop(state);
                return change_scratch(&scratch, change, wait).map(|()| self.lock().count_write(slot));
            }
            self.open_backing(&mut state, slot)?;
            let object = state.object(slot).ok_or(Error::BadHandle)?;
            let open = object.open.as_ref().ok_or(Error::BadHandle)?;
            let directory =
                open.supersedes.as_ref().map_or(state.tree.node(slot).parent, |(parent, _)| *parent);
            (Arc::clone(open.file.as_ref().ok_or(Error::BadHandle)?), Reserved::of(open), directory)
        };
        if end > known.end && !matches!(change, SizeChange::Punch { .. }) {
            let missing = end.saturating_sub(known.end).round_up_to_pages();
            self.claim_all(slot, end)?;
            self.reserve(&file, known.end, missing, directory).inspect_err(|_| self.lock().measure(slot))?;
        }
        let outcome = self.apply(slot, &file, known, change);
        self.lock().measure(slot);
        outcome
    }

    /// Does the change, of which `known` was looked up before room was made for it.
    fn apply(&self, slot: Slot, file: &File, known: Reserved, change: SizeChange) -> Result<(), Error> {
        let length = ByteCount(file.metadata().map_err(Error::io("stat of a segment"))?.len());
        let kept = match change {
            SizeChange::Set(wanted) => {
                self.tier.trim(file, wanted)?;
                // Cutting frees what lies beyond the new end, also where that is the old one; growing keeps what was reserved.
                if wanted <= length { wanted } else { known.end.max(wanted) }
            }
            SizeChange::Allocate { offset, length: more, keep_size } => {
                let end = offset.saturating_add(more);
                if !keep_size && end > length {
                    file.set_len(end.get()).map_err(Error::io("ftruncate of a segment"))?;
                }
                known.end.max(end)
            }
            SizeChange::Punch { offset, length: cut } => {
                self.tier.punch(file, FileOffset(offset.get()), cut)?;
                // Pages from here on are no longer known to be there.
                known.end.min(offset)
            }
        };
        let sized = ByteCount(file.metadata().map_err(Error::io("stat of a segment"))?.len());
        let now_ns = self.now_ns();
        let mut state = self.lock();
        state.tree.node_mut(slot).attributes.ctime_ns = now_ns;
        if let Some(object) = state.object_mut(slot) {
            if object.phase == Phase::Parked {
                object.size = sized;
            }
            let open = object.open_mut();
            open.sized = sized;
            open.writes += 1;
            let was_cut = open.cuts != known.cuts;
            match change {
                SizeChange::Punch { .. } => {
                    open.cuts += 1;
                    open.reserved_behind_hole = open.reserved_behind_hole.max(open.reserved);
                }
                SizeChange::Set(wanted) if wanted <= length => {
                    open.cuts += 1;
                    open.reserved_behind_hole = ByteCount::ZERO;
                }
                SizeChange::Set(_) | SizeChange::Allocate { .. } => {}
            }
            let kept = kept.round_up_to_pages();
            if was_cut {
                // Somebody else took pages away meanwhile, and what was allocated lies behind them perhaps.
                open.reserved_behind_hole = open.reserved_behind_hole.max(kept);
            }
            open.reserved = if was_cut { kept.min(open.reserved) } else { kept };
            open.guessed = open.guessed.min(open.reserved);
        }
        if !matches!(change, SizeChange::Punch { .. }) {
            // Of an object whose writer goes on after the rename, this is the length that a restart finds.
            self.rewrite_record(&mut state, slot)?;
        }
        Ok(())
    }

    /// Cuts a file that was just opened to be cut to nothing. Where that fails it is closed again.
    pub(in crate::datapath) fn cut_opened(&self, opened: &Opened, options: OpenOptions) -> Result<(), Error> {
        if !options.truncate || !options.write {
            return Ok(());
        }
        self.cut(opened.ino.slot()).inspect_err(|_| {
            // It is closed as by close(2), or it would count as one whose writer was killed.
            self.lock().count_flush(opened.handle);
            self.release(opened.handle);
        })
    }

    /// Cuts an open file to nothing: without the lock, since it may have many pages, and the disk of a slot file may free blocks
    /// for seconds.
    fn cut(&self, slot: Slot) -> Result<(), Error> {
        // Nobody writes to what was reserved before it is known that it is gone.
        let _alone = self.has_alone(slot);
        let file = {
            let mut state = self.lock();
            let object = state.object_mut(slot).ok_or(Error::BadHandle)?;
            if object.phase == Phase::Sealed {
                // A rename came in between: who reads it must not lose its pages.
                return Err(Error::Stale);
            }
            // What was refused, or written by somebody who died, is not there any more: it drops nothing of what comes now.
            let open = object.open_mut();
            (open.refused, open.writer_killed) = (None, None);
            open.writes += 1;
            if let Place::Scratch(scratch) = &object.place {
                let scratch = Arc::clone(scratch);
                drop(state);
                return scratch.set_length(ByteCount::ZERO).map_err(scratch_error);
            }
            object.file().cloned().ok_or(Error::Stale)?
        };
        self.tier.trim(&file, ByteCount::ZERO)?;
        let mut state = self.lock();
        if let Some(open) = state.object_mut(slot).map(Object::open_mut) {
            open.cuts += 1;
            (open.reserved, open.reserved_behind_hole) = (ByteCount::ZERO, ByteCount::ZERO);
            open.guessed = ByteCount::ZERO;
        }
        state.measure(slot);
        // Of what a rename sealed just now: a restart would miss the bytes that its record tells of.
        self.rewrite_record(&mut state, slot)
    }
}

impl State {
    /// The file that may be written through `handle`.
    fn written_through(&self, handle: HandleId) -> Option<Slot> {
        self.handles.get(&handle).filter(|handle| handle.options.write).map(|handle| handle.slot)
    }
}

#[cfg(test)]
mod tests;
