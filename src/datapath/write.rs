//! Bytes through the daemon: what is written must find room before it happens. Changes of length are in [`length`].
//!
//! Passthrough reads and writes never come here. What does come is written at once into the backing file, whose pages
//! were allocated first; nothing is buffered.

mod length;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tidefs_engine::types::{ByteCount, FileOffset};

pub use length::SizeChange;

use super::elsewhere::{Reach, Stream};
use super::open_state::{OpenState, Refusal};
use super::slot_file::scratch_error;
use super::{Datapath, Error, Handle, HandleId, Object, Phase, Place};
use crate::namespace::Slot;
use crate::tier::scratch::{ScratchFile, Wait};

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
        self.write_within(handle, offset, data, Wait::Patiently)
    }

    /// The same, with a limit to the wait for room of a slot file.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_within(&self, handle: HandleId, offset: u64, data: &[u8], wait: Wait) -> Result<(), Error> {
        let outcome = self.write_all(handle, offset, data, wait);
        outcome.inspect_err(|error| self.note_refused_write(handle, error))
    }

    /// The same for who must not wait for room of a slot file. Returns false, and nothing counts as refused, when others have
    /// it and may give it back: it is to be written by who may wait.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_now(&self, handle: HandleId, offset: u64, data: &[u8]) -> Result<bool, Error> {
        match self.write_all(handle, offset, data, Wait::NotHere) {
            Err(error) if self.is_worth_waiting(&error) => Ok(false),
            outcome => {
                outcome.inspect_err(|error| self.note_refused_write(handle, error))?;
                Ok(true)
            }
        }
    }

    fn note_refused_write(&self, handle: HandleId, error: &Error) {
        let slot = self.lock().handles.get(&handle).map(|handle| handle.slot);
        slot.into_iter().for_each(|slot| self.note_refusal(slot, error));
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

    fn write_all(&self, handle: HandleId, offset: u64, data: &[u8], wait: Wait) -> Result<(), Error> {
        let end = ByteCount(offset).saturating_add(ByteCount(data.len() as u64));
        let (slot, ino) = {
            let mut state = self.lock();
            let may_write = |handle: &&Handle| handle.options.write;
            let slot = state.handles.get(&handle).filter(may_write).ok_or(Error::BadHandle)?.slot;
            state.count_write(slot);
            (slot, state.tree.ino(slot))
        };
        if end >= self.settings.scratch_min {
            self.become_scratch(ino, wait)?;
        }
        let _stays = self.stays_where_it_is(slot);
        match self.target(handle)? {
            Target::Scratch(scratch) => scratch.write_within(data, offset, wait).map_err(scratch_error),
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
                Place::Solo(_) | Place::Freed => Arc::clone(object.file().ok_or(Error::BadHandle)?),
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
}
