//! Bytes through the daemon, and changes of length: everything that must find room before it happens.
//!
//! Passthrough reads and writes never come here. What does come is written at once into the backing file, whose pages
//! were allocated first; nothing is buffered.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tidefs_engine::types::{ByteCount, FileOffset};

use super::elsewhere::{Reach, Stream};
use super::object::{OpenState, Refusal};
use super::slot_file::{change_scratch, scratch_error};
use super::{
    Caller, Datapath, Error, Handle, HandleId, IoPath, Object, OpenOptions, Opened, Phase, Place, State,
};
use crate::namespace::{Ino, Slot};
use crate::tier::scratch::ScratchFile;

/// Reservations of a growing file are made this much ahead, so that not every request allocates.
const RESERVE_STEP: ByteCount = ByteCount::mib(2);

/// What a read comes to.
#[derive(Debug)]
pub enum Read {
    /// So many bytes: fewer than wanted only at the end.
    Bytes(usize),
    /// They are on their way from another member.
    NotYet(Arc<Stream>),
}

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
    pub(super) fn end(self) -> ByteCount {
        match self {
            Self::Set(length) => length,
            Self::Allocate { offset, length, .. } => offset.saturating_add(length),
            Self::Punch { .. } => ByteCount::ZERO,
        }
    }
}

enum Target {
    Segment { file: Arc<File>, reserved: Reserved, directory: Slot, slot: Slot },
    Scratch(Arc<ScratchFile>),
}

/// What is known of the pages of a file.
#[derive(Clone, Copy)]
struct Reserved {
    /// So many bytes from its start have theirs.
    end: ByteCount,
    /// As [`OpenState::cuts`] when that was so.
    cuts: u64,
}

impl Reserved {
    fn of(open: &OpenState) -> Self {
        Self { end: open.reserved, cuts: open.cuts }
    }
}

impl Datapath {
    fn target(&self, handle: HandleId) -> Result<Target, Error> {
        let state = self.lock();
        let handle = state.handles.get(&handle).ok_or(Error::BadHandle)?;
        let object = state.object(handle.slot).ok_or(Error::BadHandle)?;
        if let Place::Scratch(scratch) = &object.place {
            return Ok(Target::Scratch(Arc::clone(scratch)));
        }
        let open = object.open.as_ref().ok_or(Error::BadHandle)?;
        let file = Arc::clone(open.file.as_ref().ok_or(Error::BadHandle)?);
        let directory = match &open.supersedes {
            Some((parent, _)) => *parent,
            None => state.tree.node(handle.slot).parent,
        };
        Ok(Target::Segment { file, reserved: Reserved::of(open), directory, slot: handle.slot })
    }

    /// Writes all of `data` at `offset`, or nothing, through a handle that was opened to write.
    ///
    /// # Errors
    /// [`Error::NothingEvictable`], [`Error::OverQuota`], [`Error::TooLarge`] when there is no room;
    /// [`Error::BadHandle`]; [`Error::Io`].
    pub fn write(&self, handle: HandleId, offset: u64, data: &[u8]) -> Result<(), Error> {
        let outcome = self.write_all(handle, offset, data);
        if let Err(error) = &outcome {
            let slot = self.lock().handles.get(&handle).map(|handle| handle.slot);
            slot.into_iter().for_each(|slot| self.note_refusal(slot, error));
        }
        outcome
    }

    /// Remembers that the file in `slot` is not what its writer meant.
    pub(super) fn note_refusal(&self, slot: Slot, error: &Error) {
        let refusal = match error {
            Error::OverQuota { slot, quota, .. } => Refusal::OverQuota { directory: *slot, quota: *quota },
            Error::ScratchFull(_) => Refusal::ScratchFull,
            Error::NothingEvictable { .. } | Error::TooLarge { .. } | Error::TooLong => Refusal::NoRoom,
            _ => return,
        };
        // A slot file is what was written to it, however long it was to be.
        let keeps_slot_file = matches!(error, Error::TooLong);
        let mut state = self.lock();
        if let Some(object) = state.object_mut(slot)
            && object.phase == Phase::Writing
            && !(keeps_slot_file && object.is_slot_file())
        {
            object.open_mut().refused = Some(refusal);
        }
    }

    fn write_all(&self, handle: HandleId, offset: u64, data: &[u8]) -> Result<(), Error> {
        let end = ByteCount(offset).saturating_add(ByteCount(data.len() as u64));
        let (slot, ino) = {
            let mut state = self.lock();
            let may_write = |handle: &&Handle| handle.options.write;
            let slot = state.handles.get(&handle).filter(may_write).ok_or(Error::BadHandle)?.slot;
            state.count_write(slot);
            (slot, state.tree.ino(slot))
        };
        if end >= self.settings.scratch_min {
            self.become_scratch(ino)?;
        }
        let _stays = self.stays_where_it_is(slot);
        match self.target(handle)? {
            Target::Scratch(scratch) => scratch.write_at(data, offset).map_err(scratch_error),
            Target::Segment { file, reserved, directory, slot } => {
                self.extend_reservation(slot, &file, reserved, end, directory)?;
                self.write_segment(&file, offset, data)
            }
        }
    }

    fn write_segment(&self, file: &File, offset: u64, data: &[u8]) -> Result<(), Error> {
        file.write_all_at(data, offset).map_err(Error::io("write to a segment"))?;
        self.telemetry.copied_bytes.add(data.len() as u64);
        Ok(())
    }

    /// Allocates up to `end`, and a step ahead when there is room for it; what somebody else cut off meanwhile, once more.
    fn extend_reservation(
        &self,
        slot: Slot,
        file: &File,
        mut known: Reserved,
        end: ByteCount,
        directory: Slot,
    ) -> Result<(), Error> {
        while end > known.end {
            let reserved = known.end;
            let missing = end.saturating_sub(reserved).round_up_to_pages();
            // Twice what it has, as far as that goes: a small file does not get pages that it never needs.
            let ahead = missing.saturating_add(reserved.min(RESERVE_STEP));
            let has_slack =
                self.tier.usage()?.free >= ahead && ahead.get() < self.settings.capacity.get() / 16;
            let wanted = reserved.saturating_add(if has_slack { ahead } else { missing });
            let exact = reserved.saturating_add(missing);
            let mut claimed = self.claim(slot, exact, wanted)?;
            let reserve =
                |end: ByteCount| self.reserve(file, reserved, end.saturating_sub(reserved), directory);
            let mut outcome = reserve(claimed);
            if claimed > exact && matches!(outcome, Err(Error::TooLong)) {
                // The write fits the limit on the length of files, and what is ahead of it does not.
                claimed = exact;
                outcome = reserve(exact);
            }
            let mut state = self.lock();
            let open = state.object_mut(slot).map(Object::open_mut);
            if let Some(open) = open.filter(|open| outcome.is_ok() && open.cuts == known.cuts) {
                open.reserved = open.reserved.max(claimed);
            }
            state.measure(slot);
            outcome?;
            let Some(open) = state.object(slot).and_then(|object| object.open.as_deref()) else { break };
            known = Reserved::of(open);
        }
        Ok(())
    }

    /// As [`Datapath::read_or_wait`], of an object all of whose bytes are here.
    ///
    /// # Errors
    /// The same, and [`Error::BadHandle`] when some are not.
    pub fn read(&self, handle: HandleId, offset: u64, target: &mut [u8]) -> Result<usize, Error> {
        match self.read_or_wait(handle, offset, target)? {
            Read::Bytes(count) => Ok(count),
            Read::NotYet(_) => Err(Error::BadHandle),
        }
    }

    /// Reads up to `target.len()` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::BadHandle`], [`Error::Io`].
    pub fn read_or_wait(&self, handle: HandleId, offset: u64, target: &mut [u8]) -> Result<Read, Error> {
        let file = {
            let state = self.lock();
            let handle = state.handles.get(&handle).ok_or(Error::BadHandle)?;
            let object = state.object(handle.slot).ok_or(Error::BadHandle)?;
            let stream = object.open.as_ref().and_then(|open| open.stream.as_ref());
            match &object.place {
                _ if let Some(stream) = stream => match stream.reach(offset, target.len()) {
                    Reach::There => Arc::clone(stream.file()),
                    Reach::NotYet => return Ok(Read::NotYet(Arc::clone(stream))),
                    Reach::Never => {
                        let source = std::io::Error::other("no member gave the rest of it");
                        return Err(Error::Io { operation: "read of an object of another member", source });
                    }
                },
                Place::Packed(extent) => {
                    // Under the lock, so that the extent is not moved meanwhile; at most packed_max bytes.
                    let count = self.tier.read_packed(extent, FileOffset(offset), target)?;
                    self.telemetry.packed_read_bytes.add(count as u64);
                    return Ok(Read::Bytes(count));
                }
                Place::Scratch(scratch) => Arc::clone(scratch.file()),
                Place::Solo(_) => Arc::clone(object.file().ok_or(Error::BadHandle)?),
                // Nothing that is open leaves memory.
                Place::Ssd | Place::Remote => return Err(Error::BadHandle),
            }
        };
        let mut filled = 0;
        while filled < target.len() {
            let count = file
                .read_at(&mut target[filled..], offset + filled as u64)
                .map_err(Error::io("read of a segment"))?;
            if count == 0 {
                break;
            }
            filled += count;
        }
        self.telemetry.copied_bytes.add(filled as u64);
        Ok(Read::Bytes(filled))
    }

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
        if let Some(slot) = through.and_then(|handle| self.lock().written_through(handle)) {
            // What is refused changes nothing: the file is what its writers made of it.
            return self.change_open_size(slot, change);
        }
        let cut_to = match change {
            SizeChange::Set(length) => Some(length),
            SizeChange::Allocate { .. } | SizeChange::Punch { .. } => None,
        };
        let options = super::OpenOptions { write: true, cut_to, ..super::OpenOptions::default() };
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
        let outcome = self.change_open_size(slot, change);
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

    fn change_open_size(&self, slot: Slot, change: SizeChange) -> Result<(), Error> {
        let end = change.end();
        if end >= self.settings.scratch_min {
            let ino = self.lock().tree.ino(slot);
            self.become_scratch(ino)?;
        }
        let _stays = self.stays_where_it_is(slot);
        let (file, reserved, directory) = {
            let mut state = self.lock();
            if let Some(Place::Scratch(scratch)) = state.object(slot).map(|object| &object.place) {
                let scratch = Arc::clone(scratch);
                drop(state);
                return change_scratch(&scratch, change).map(|()| self.lock().count_write(slot));
            }
            self.open_backing(&mut state, slot)?;
            let object = state.object(slot).ok_or(Error::BadHandle)?;
            let open = object.open.as_ref().ok_or(Error::BadHandle)?;
            let directory =
                open.supersedes.as_ref().map_or(state.tree.node(slot).parent, |(parent, _)| *parent);
            (Arc::clone(open.file.as_ref().ok_or(Error::BadHandle)?), open.reserved, directory)
        };
        if end > reserved && !matches!(change, SizeChange::Punch { .. }) {
            let missing = end.saturating_sub(reserved).round_up_to_pages();
            self.claim_all(slot, end)?;
            self.reserve(&file, reserved, missing, directory).inspect_err(|_| self.lock().measure(slot))?;
        }
        let outcome = self.apply(slot, &file, reserved, change);
        self.lock().measure(slot);
        outcome
    }

    fn apply(&self, slot: Slot, file: &File, reserved: ByteCount, change: SizeChange) -> Result<(), Error> {
        let length = ByteCount(file.metadata().map_err(Error::io("stat of a segment"))?.len());
        let kept = match change {
            SizeChange::Set(wanted) => {
                self.tier.trim(file, wanted)?;
                // Cutting frees what lies beyond the new end, also where that is the old one; growing keeps what was reserved.
                if wanted <= length { wanted } else { reserved.max(wanted) }
            }
            SizeChange::Allocate { offset, length: more, keep_size } => {
                let end = offset.saturating_add(more);
                if !keep_size && end > length {
                    file.set_len(end.get()).map_err(Error::io("ftruncate of a segment"))?;
                }
                reserved.max(end)
            }
            SizeChange::Punch { offset, length: cut } => {
                self.tier.punch(file, FileOffset(offset.get()), cut)?;
                // Pages from here on are no longer known to be there.
                reserved.min(offset)
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
            open.reserved = kept.round_up_to_pages();
            open.guessed = open.guessed.min(open.reserved);
        }
        if !matches!(change, SizeChange::Punch { .. }) {
            // Of an object whose writer goes on after the rename, this is the length that a restart finds.
            self.rewrite_record(&mut state, slot)?;
        }
        Ok(())
    }

    /// Cuts a file that was just opened to be cut to nothing. Where that fails it is closed again.
    pub(super) fn cut_opened(&self, opened: &Opened, options: OpenOptions) -> Result<(), Error> {
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
