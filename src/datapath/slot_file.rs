//! Slot files: how a file comes to live on disk, by its directory's policy, its size, or its unlink.
//!
//! Only a file that the daemon serves can move: a handle that the kernel serves by passthrough stays with the backing
//! file it was opened with (docs/adr/0005-slot-files-are-served-by-the-daemon-first.md).
//!
//! Invariants
//! - No byte, and no attribute of a program, is written to a file while it moves: who does holds the file where it is, and
//!   a move waits for it.
//!
//! Limits: an unlinked file moves while it has at most `COPIED_MAX` bytes; a larger one stays in memory. A file that is cut in each
//! of `COPIES_MAX` copies does not move, and who would have made a slot file of it is told so.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use tidefs_engine::types::ByteCount;

use super::decorations;
use super::moves::{Alone, Stays};
use super::write::SizeChange;
use super::{Datapath, Error, Marks, Object, OpenOptions, Phase, Place, State};
use crate::namespace::{Ino, Slot};
use crate::tier::scratch::{ScratchError, ScratchFile, Wait};

/// Most bytes that an unlink copies: about 20 ms of a disk's time.
const COPIED_MAX: ByteCount = ByteCount::mib(64);
/// How often a file is copied that is cut meanwhile.
const COPIES_MAX: u32 = 8;
/// How often the copy gets the times that were set meanwhile.
const STAMPS_MAX: u32 = 64;

impl Datapath {
    /// The file in `slot` does not move until the guard is dropped.
    pub(super) fn stays_where_it_is(&self, slot: Slot) -> Stays<'_> {
        self.moves.stays(slot)
    }

    /// Nobody writes to the file in `slot`, but by passthrough, and it does not move otherwise, until the guard is dropped.
    pub(super) fn has_alone(&self, slot: Slot) -> Alone<'_> {
        self.moves.alone(slot)
    }

    /// How long a request waits for room of slot files that is left to a thread now: it waits for that in the same time.
    #[must_use]
    pub fn slot_file_wait(&self) -> Wait {
        self.scratch.wait_from_now()
    }

    /// A new file for a directory whose policy says that all are slot files.
    pub(super) fn fresh_slot_file(&self, wait: Wait) -> Result<Place, Error> {
        let scratch = self.scratch.create_within(wait).map_err(scratch_error)?;
        self.telemetry.scratch_conversions.increment();
        Ok(Place::Scratch(Arc::new(scratch)))
    }

    /// Moves a file that turns out to be a slot file to disk, with the bytes, the times and the attributes it has.
    ///
    /// A file that the kernel serves by passthrough cannot move any more: it stays in memory as long as that has room.
    pub(super) fn become_scratch(&self, ino: Ino, wait: Wait) -> Result<(), Error> {
        let (slot, Movable::From(_)) = self.lock().movable(ino)? else { return Ok(()) };
        let moving = self.has_alone(slot);
        // One for all that is copied: who uses the file waits for that.
        let wait = if wait == Wait::Patiently { self.scratch.wait_from_now() } else { wait };
        for _ in 0..COPIES_MAX {
            match self.try_to_move(ino, wait)? {
                Moved::From(old) => {
                    drop(moving);
                    self.telemetry.scratch_conversions.increment();
                    self.free_place(old);
                    return Ok(());
                }
                Moved::Not => return Ok(()),
                Moved::Changed => {}
            }
        }
        Err(Error::io("copy of a file to disk")(io::Error::other("it was cut during each attempt")))
    }

    /// Copies a file to disk and has it live there from then on, if it is what was copied. Attributes that are set meanwhile cost no
    /// other copy.
    fn try_to_move(&self, ino: Ino, wait: Wait) -> Result<Moved, Error> {
        let (slot, file, mut attributes, is_decorated) = {
            let state = self.lock();
            let (slot, Movable::From(file)) = state.movable(ino)? else { return Ok(Moved::Not) };
            let is_decorated = state.object(slot).is_some_and(|object| object.marks.has(Marks::DECORATED));
            (slot, file, self.stat_of(&state, slot).attributes, is_decorated)
        };
        let scratch = self.scratch.create_within(wait).map_err(scratch_error)?;
        let length = copy(&file, &scratch, wait)?;
        if is_decorated {
            decorations::copy(&file, scratch.file()).map_err(decorations::told)?;
        }
        let mut stamps = 0;
        let mut state = loop {
            // Without the lock: it is on a disk.
            self.stamp(scratch.file(), &attributes);
            stamps += 1;
            let state = self.lock();
            // Who opened it meanwhile may have cut it, or has the kernel serve it.
            let (_, Movable::From(now)) = state.movable(ino)? else { return Ok(Moved::Not) };
            if !Arc::ptr_eq(&now, &file) || length_of(&file)? != length {
                return Ok(Moved::Changed);
            }
            let now = self.stat_of(&state, slot).attributes;
            // Who sets them without end sets those of the file on disk from now on.
            if now == attributes || stamps == STAMPS_MAX {
                break state;
            }
            attributes = now;
        };
        if let Some(kernel) = self.kernel.get() {
            // Who opened it before and closed it left the segment registered: it would serve whoever opens it next.
            kernel.release_backing(ino);
        }
        let object = state.object_mut(slot).ok_or(Error::BadHandle)?;
        object.marks.set(Marks::FINAL, false);
        object.open_mut().file = None;
        object.open_mut().reserved = ByteCount::ZERO;
        let old = std::mem::replace(&mut object.place, Place::Scratch(Arc::new(scratch)));
        state.recharge(slot);
        Ok(Moved::From(old))
    }

    /// Whether cutting `ino` to nothing may wait for a disk.
    pub(super) fn is_long_to_cut(&self, ino: Ino) -> bool {
        self.is_moving(ino) || self.lock().slot_file(ino).is_some()
    }

    /// Whether `ino` is becoming a slot file, or is being cut: who writes to it waits for that.
    #[must_use]
    pub fn is_moving(&self, ino: Ino) -> bool {
        self.moves.is_under_way(ino.slot())
    }

    /// Whether changing the length or the pages of `ino` may wait for a disk, and is not for whoever answers the kernel.
    #[must_use]
    pub fn is_long_to_change(&self, ino: Ino, change: SizeChange) -> bool {
        self.is_long_to_cut(ino) || self.would_move(ino, change.end())
    }

    /// The same of truncate(2) by name, which opens the file: one that nobody writes becomes a slot file by that, too.
    #[must_use]
    pub fn is_long_to_truncate(&self, ino: Ino, length: ByteCount) -> bool {
        length >= self.settings.scratch_min || self.is_long_to_change(ino, SizeChange::Set(length))
    }

    /// The same of a write of `length` bytes at `offset` of `ino`: it is long when it makes a slot file of it, or somebody else does,
    /// and when it takes room of a slot file that others are about to give back. What finds its room is in the page cache of the disk
    /// at once.
    #[must_use]
    pub fn is_long_to_write(&self, ino: Ino, offset: u64, length: ByteCount) -> bool {
        self.is_moving(ino)
            || self.would_move(ino, ByteCount(offset).saturating_add(length))
            || self.waits_for_room(ino, offset, length)
    }

    fn waits_for_room(&self, ino: Ino, offset: u64, length: ByteCount) -> bool {
        if !self.scratch.may_wait_for_room(offset, length) {
            return false;
        }
        let slot_file = self.lock().slot_file(ino);
        slot_file.is_some_and(|scratch| scratch.waits_for_room(offset, length))
    }

    /// Whether what was refused may be had by who waits for it: others have it, and may give it back.
    #[must_use]
    pub fn is_worth_waiting(&self, error: &Error) -> bool {
        matches!(error, Error::ScratchFull(refusal) if self.scratch.may_be_had(refusal))
    }

    /// Whether creating `name` in `parent` may wait for a disk: it is to be a slot file, or one stands there that is to be cut.
    ///
    /// Hot path: mostly there is nothing to wait for, which costs a look at each, and no lock.
    #[must_use]
    pub fn is_long_to_create(&self, parent: Ino, name: &[u8], options: OpenOptions) -> bool {
        let may_wait = self.slot_directories.load(Ordering::Relaxed) > 0
            || self.scratch.files() > 0
            || self.moves.are_any_under_way()
            || self.unverified.are_any();
        if !may_wait {
            return false;
        }
        let existing = {
            let state = self.lock();
            let Some(parent) = state.tree.by_ino(parent) else { return false };
            if state.makes_slot_files(parent) {
                return true;
            }
            state.tree.child(parent, name).map(|slot| state.tree.ino(slot))
        };
        existing.is_some_and(|ino| self.is_long_to_open(ino, options))
    }

    fn would_move(&self, ino: Ino, end: ByteCount) -> bool {
        end >= self.settings.scratch_min && matches!(self.lock().movable(ino), Ok((_, Movable::From(_))))
    }

    /// Whether `ino` is to move to disk, as it lost its name while somebody has it open for writing: it will never be an object.
    pub(super) fn is_left_to_move(&self, ino: Ino) -> bool {
        let state = self.lock();
        let Ok((slot, Movable::From(file))) = state.movable(ino) else { return false };
        let is_unlinked = |object: &Object| object.phase == Phase::Gone && object.writers() > 0;
        state.object(slot).is_some_and(is_unlinked)
            && file.metadata().is_ok_and(|metadata| ByteCount(metadata.len()) <= COPIED_MAX)
    }

    /// Moves what [`unlink_name`](Self::unlink_name) left to disk, for which that may take long.
    ///
    /// What stands in the way is no error of the unlink: the file then stays in memory, counted, until it is closed.
    pub fn move_unlinked(&self, left: Vec<Ino>, wait: Wait) {
        for ino in left {
            match self.become_scratch(ino, wait) {
                // Closed meanwhile, it is gone.
                Ok(()) | Err(Error::BadHandle) => {}
                Err(error) => {
                    tracing::warn!(%error, "an unlinked file that is being written stays in memory");
                }
            }
        }
    }
}

/// What came of moving a file to disk.
enum Moved {
    /// It cannot, or is there already.
    Not,
    /// It lives there now, and not in this place any more.
    From(Place),
    /// It is not what was copied.
    Changed,
}

/// Whether a file can move to disk.
enum Movable {
    /// It cannot, or is there already.
    Not,
    /// It can, with the bytes of this backing file.
    From(Arc<File>),
}

impl State {
    fn slot_file(&self, ino: Ino) -> Option<Arc<ScratchFile>> {
        match &self.object(self.tree.by_ino(ino)?)?.place {
            Place::Scratch(scratch) => Some(Arc::clone(scratch)),
            Place::Solo(_) | Place::Packed(_) | Place::Ssd | Place::Remote | Place::Freed => None,
        }
    }

    fn movable(&self, ino: Ino) -> Result<(Slot, Movable), Error> {
        let slot = self.tree.by_ino(ino).ok_or(Error::BadHandle)?;
        let object = self.object(slot).ok_or(Error::BadHandle)?;
        let open = object.open.as_ref().ok_or(Error::BadHandle)?;
        let is_in_segment = matches!(object.place, Place::Solo(_) | Place::Freed);
        if !is_in_segment || open.passthrough > 0 || object.phase == Phase::Sealed {
            return Ok((slot, Movable::Not));
        }
        Ok((slot, Movable::From(Arc::clone(open.file.as_ref().ok_or(Error::BadHandle)?))))
    }
}

fn length_of(file: &File) -> Result<u64, Error> {
    Ok(file.metadata().map_err(Error::io("stat of a segment"))?.len())
}

/// Copies all bytes of a segment, and leaves its holes. Returns its length.
fn copy(file: &File, scratch: &ScratchFile, wait: Wait) -> Result<u64, Error> {
    let length = length_of(file)?;
    let mut buffer = vec![0; 1 << 20];
    let mut end = 0;
    while let Some(begin) = seek(file, end, Whence::SeekData)? {
        // There is a hole at the end of each file.
        end = seek(file, begin, Whence::SeekHole)?.unwrap_or(begin);
        let mut offset = begin;
        while offset < end {
            let wanted = usize::try_from(end - offset).map_or(buffer.len(), |left| left.min(buffer.len()));
            let count =
                file.read_at(&mut buffer[..wanted], offset).map_err(Error::io("read of a segment"))?;
            if count == 0 {
                break; // cut meanwhile: the length says so
            }
            scratch.write_within(&buffer[..count], offset, wait).map_err(scratch_error)?;
            offset += count as u64;
        }
    }
    scratch.set_length(ByteCount(length)).map_err(scratch_error)?;
    Ok(length)
}

/// Where the next bytes, or the next hole, of a file begin. `None` behind the last of them. Nothing else uses the offset of the
/// file, which this moves.
fn seek(file: &File, from: u64, whence: Whence) -> Result<Option<u64>, Error> {
    let from = i64::try_from(from).map_err(|_| Error::TooLong)?;
    match lseek(file, from, whence) {
        Ok(at) => Ok(u64::try_from(at).ok()),
        Err(Errno::ENXIO) => Ok(None),
        Err(errno) => Err(Error::io("lseek in a segment")(errno.into())),
    }
}

/// Changes the length or the pages of a slot file.
pub(super) fn change_scratch(scratch: &ScratchFile, change: SizeChange, wait: Wait) -> Result<(), Error> {
    match change {
        SizeChange::Set(length) => scratch.set_length(length),
        SizeChange::Allocate { offset, length, keep_size } => {
            scratch.grow_within(offset.get(), length, keep_size, wait)
        }
        SizeChange::Punch { offset, length } => scratch.punch(offset.get(), length),
    }
    .map_err(scratch_error)
}

pub(super) fn scratch_error(error: ScratchError) -> Error {
    match error {
        ScratchError::Full { .. }
        | ScratchError::DiskFull { .. }
        | ScratchError::Before
        | ScratchError::TooMany { .. } => Error::ScratchFull(error),
        ScratchError::TooLong { .. } => Error::TooLong,
        // What is to be mounted stands in its text.
        ScratchError::Unmounted { .. } => Error::Io { operation: "scratch", source: io::Error::other(error) },
        ScratchError::Disk { source, .. } => Error::Io { operation: "scratch", source },
    }
}

#[cfg(test)]
mod tests;
