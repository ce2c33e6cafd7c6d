//! Checksums: taken when the machine is idle, compared when an object is met again after a restart, or when asked.
//!
//! A process that dies cannot damage a segment: the pages belong to the kernel. Checksums guard against everything
//! else, and are what remote hosts compare with, so taking one may wait; it never delays a close.
//!
//! Limits: `QUEUE_MAX` inodes wait; beyond that an object simply has no checksum until it is asked for.
//! Threads: `check_in_background` runs in a thread of its own, which the composition root gives idle priority.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tidefs_engine::types::{ByteCount, Checksum};

use super::history::Ending;
use super::{Datapath, Error, Marks, Object, Phase, Place, State};
use crate::namespace::{Ino, Slot};
use crate::tier::eviction::Departure;
use crate::tier::memory::{checksum_bytes, checksum_file};

const QUEUE_MAX: usize = 1 << 16;

/// Where sealed objects wait for their checksum.
#[derive(Debug)]
pub(super) struct Queue(SyncSender<Ino>);

/// What verifying one object showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes match.
    Sound,
    /// They do not; the object is gone.
    Corrupt,
    /// Not a sealed, final object (any more).
    Skipped,
}

impl Datapath {
    /// Makes the queue; the receiving side belongs to the background thread.
    pub fn start_checking(&self) -> Receiver<Ino> {
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        // A second start would be a bug of the composition root; its receiver would stay empty.
        let _ = self.verifying.set(Queue(sender));
        receiver
    }

    /// Notes that the object's checksum is to be taken. Forgets it when the queue is full.
    pub(super) fn check_later(&self, ino: Ino) {
        if let Some(Queue(sender)) = self.verifying.get() {
            let _ = sender.try_send(ino);
        }
    }

    /// Takes checksums until the queue is closed or `is_stopping`.
    pub fn check_in_background(&self, queue: &Receiver<Ino>, is_stopping: impl Fn() -> bool) {
        while !is_stopping() {
            let Ok(ino) = queue.recv_timeout(Duration::from_millis(200)) else { continue };
            if let Err(error) = self.checksum(ino) {
                tracing::debug!(ino = ino.0, %error, "no checksum was taken");
            }
        }
    }

    /// The checksum of a final object, taken now if it was not before; `None` for what is not sealed and final.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Io`].
    pub(super) fn checksum(&self, ino: Ino) -> Result<Option<Checksum>, Error> {
        {
            let state = self.lock();
            let slot = state.slot_of(ino)?;
            let Some(object) = state.object(slot) else { return Ok(None) };
            let is_here = !matches!(object.place, Place::Ssd);
            if object.phase != Phase::Sealed || !object.marks.has(Marks::FINAL) || !is_here {
                return Ok(None);
            }
            if let Some(taken) = self.recorded_checksum(object)? {
                return Ok(Some(taken));
            }
        }
        let (taken, version) = self.compute(ino)?;
        let state = self.lock();
        let slot = state.slot_of(ino)?;
        let is_same = state
            .object(slot)
            .is_some_and(|object| object.version == version && object.marks.has(Marks::FINAL));
        if is_same {
            self.record_checksum(&state, slot, taken)?;
        }
        Ok(Some(taken))
    }

    /// Adds the checksum that was taken of a final object with a segment of its own to its record.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn record_checksum(&self, state: &State, slot: Slot, checksum: Checksum) -> Result<(), Error> {
        let Some(object) = state.object(slot) else { return Ok(()) };
        let Place::Solo(segment) = object.place else { return Ok(()) };
        let node = state.tree.node(slot);
        let mut record = state.object_record(slot, state.directory_id(node.parent)?, &state.tree.name(slot));
        record.checksum = Some(checksum);
        Ok(match object.file() {
            Some(file) => self.tier.seal(file, &record),
            None => self.tier.seal(&self.tier.open_segment(segment)?, &record),
        }?)
    }

    /// The checksum in the record of a sealed object, if it was taken.
    ///
    /// # Errors
    /// [`Error::Io`] when the record cannot be read.
    pub(super) fn recorded_checksum(&self, object: &Object) -> Result<Option<Checksum>, Error> {
        let record = match &object.place {
            Place::Packed(extent) => Some(self.tier.packed_record(extent)?),
            Place::Solo(segment) => match object.file() {
                Some(file) => self.tier.read_record(file)?,
                None => self.tier.read_record(&self.tier.open_segment(*segment)?)?,
            },
            Place::Scratch(_) | Place::Ssd => None,
        };
        Ok(record.and_then(|record| record.checksum))
    }

    /// Computes the checksum of the bytes as they are.
    fn compute(&self, ino: Ino) -> Result<(Checksum, tidefs_engine::types::Version), Error> {
        let (place, size, version) = {
            let state = self.lock();
            let slot = state.slot_of(ino)?;
            let object = state.object(slot).ok_or(Error::IsDirectory)?;
            if let Place::Packed(extent) = &object.place {
                let mut data = vec![0; usize::try_from(object.size.get()).unwrap_or(0)];
                let count = self.tier.read_packed(extent, tidefs_engine::types::FileOffset(0), &mut data)?;
                return Ok((checksum_bytes(&data[..count]), object.version));
            }
            (object.place.clone(), object.size, object.version)
        };
        let Place::Solo(segment) = place else {
            return Err(Error::Unsupported("what is not in memory has no checksum there"));
        };
        let file = self.tier.open_segment(segment)?;
        let length = file.metadata().map_err(Error::io("stat of a segment"))?.len();
        if ByteCount(length) < size {
            return Ok((Checksum(!0), version));
        }
        Ok((checksum_file(&file, size).map_err(Error::io("checksum of a segment"))?, version))
    }

    /// An object that an earlier daemon left is compared with its checksum when it is first opened.
    ///
    /// # Errors
    /// [`Error::Stale`] when it does not match: it is dropped, and the look-up that follows says so.
    pub(super) fn verify_before_first_use(&self, ino: Ino) -> Result<(), Error> {
        let needs = {
            let state = self.lock();
            let slot = state.slot_of(ino)?;
            state.object(slot).is_some_and(|object| object.marks.has(Marks::UNVERIFIED))
        };
        if needs && self.verify_object(ino)? == Verdict::Corrupt {
            return Err(Error::Stale);
        }
        Ok(())
    }

    /// Compares one object with its checksum, and drops it when they differ.
    pub fn verify_object(&self, ino: Ino) -> Result<Verdict, Error> {
        let expected = {
            let state = self.lock();
            let slot = state.slot_of(ino)?;
            let Some(object) = state.object(slot) else { return Ok(Verdict::Skipped) };
            let is_here = !matches!(object.place, Place::Ssd);
            if object.phase != Phase::Sealed || !object.marks.has(Marks::FINAL) || !is_here {
                return Ok(Verdict::Skipped);
            }
            // A record that cannot be read has no checksum to compare with.
            self.recorded_checksum(object).ok().flatten()
        };
        let Some(expected) = expected else {
            self.checksum(ino)?;
            return Ok(Verdict::Sound);
        };
        let (found, version) = self.compute(ino)?;
        let doomed = {
            let mut state = self.lock();
            let slot = state.slot_of(ino)?;
            let Some(object) = state.object_mut(slot) else { return Ok(Verdict::Skipped) };
            if object.version != version || object.phase != Phase::Sealed {
                return Ok(Verdict::Skipped);
            }
            if found == expected {
                object.marks.set(Marks::UNVERIFIED, false);
                return Ok(Verdict::Sound);
            }
            self.telemetry.corrupt_objects.increment();
            let path = state.path_text(slot);
            tracing::error!(
                path,
                "an object does not match its checksum and is dropped; it is a miss from now on"
            );
            state.remove_object(slot, Departure::Gone, Some((self.now_ns(), Ending::Corrupt)))
        };
        self.bury(doomed);
        Ok(Verdict::Corrupt)
    }

    /// Inode numbers of the sealed objects at and below `top`.
    pub(super) fn objects_below(&self, top: Slot) -> Vec<Ino> {
        let state = self.lock();
        let is_sealed = |&slot: &Slot| state.object(slot).is_some_and(|object| object.phase == Phase::Sealed);
        state.subtree(top).into_iter().filter(is_sealed).map(|slot| state.tree.ino(slot)).collect()
    }
}
