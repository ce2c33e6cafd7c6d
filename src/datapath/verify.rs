//! Checksums: taken when the machine is idle, compared when an object is met again after a restart, or when asked.
//!
//! A process that dies cannot damage a segment: the pages belong to the kernel. Checksums guard against everything
//! else, and are what remote hosts compare with, so taking one may wait; it never delays a close.
//!
//! Limits: `QUEUE_MAX` inodes wait; beyond that an object simply has no checksum until it is asked for.
//! Threads: `check_in_background` runs in a thread of its own, at idle priority but for the moments in which it holds
//! the lock: there everybody else would wait for a CPU along with it.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidefs_engine::types::{ByteCount, Checksum, FileOffset, Version};

use super::history::Ending;
use super::{Datapath, Error, Marks, Object, Phase, Place, State};
use crate::ffi::IdlePriority;
use crate::namespace::{Ino, Slot};
use crate::tier::eviction::Departure;
use crate::tier::memory::{checksum_bytes, checksum_file};
use crate::tier::ssd::Missed;

const QUEUE_MAX: usize = 1 << 16;

/// Bytes of an object from which on checking or copying it takes long: some tenths of a millisecond, as long as many requests.
pub(super) const LONG: ByteCount = ByteCount::mib(1);

/// Objects that the background thread takes the checksums of together, and bytes of them, unless it is one alone: to change its
/// priority, and to sleep, costs as much as the checksum of a small object.
const TOGETHER_MAX: usize = 4;
const TOGETHER_BYTES: ByteCount = ByteCount::mib(1);

/// How often the background thread looks for work. Nobody wakes it: that would cost each close more than its own work.
const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// Where sealed objects wait for their checksum. A mutex: taken to add or take one number.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<VecDeque<Ino>>);

/// How many objects have [`Marks::UNVERIFIED`]: who opens one takes no lock to learn that there are none. Changed under the
/// state's lock, with the marks.
#[derive(Clone, Debug, Default)]
pub(super) struct Unverified(Arc<AtomicUsize>);

impl Unverified {
    /// Whether there are any.
    pub(super) fn are_any(&self) -> bool {
        self.count() > 0
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// An object is no more.
    pub(super) fn part_from(&self, object: &Object) {
        if object.marks.has(Marks::UNVERIFIED) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What verifying one object showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes match.
    Sound,
    /// They do not; the object is gone.
    Corrupt,
    /// Not a sealed, final object (any more).
    Skipped,
    /// Nothing is known of them: their disk failed, or took too long, or the record that has their checksum is damaged.
    Unreadable,
}

/// Whether the object is final, with its bytes in memory.
fn is_final(object: &Object) -> bool {
    let is_here = !Datapath::is_away(&object.place);
    object.phase == Phase::Sealed && object.marks.has(Marks::FINAL) && is_here
}

/// Where the bytes of an object are found without the lock.
#[derive(Debug)]
enum Source {
    Packed(Vec<u8>),
    Solo(File),
}

/// The bytes of one version of an object.
#[derive(Debug)]
struct Bytes {
    source: Source,
    size: ByteCount,
    version: Version,
    place: Place,
}

impl Bytes {
    /// Whether they are still those of `object`. Its segment may have been cut, or hold another one, since it left that.
    fn are_of(&self, object: &Object) -> bool {
        object.version == self.version && is_final(object) && object.place.is_same(&self.place)
    }

    /// Their checksum; one that matches nothing when the file is shorter than the object.
    fn checksum(&self) -> Result<Checksum, Error> {
        self.checksum_by(&mut Vec::new(), || false)
    }

    /// The same, by way of a buffer; an error as soon as it `is_stopping`.
    fn checksum_by(&self, buffer: &mut Vec<u8>, is_stopping: impl Fn() -> bool) -> Result<Checksum, Error> {
        Ok(match &self.source {
            Source::Packed(data) => checksum_bytes(data),
            Source::Solo(file) => match checksum_file(file, self.size, buffer, is_stopping) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Checksum(!0),
                taken => taken.map_err(Error::io("checksum of a segment"))?,
            },
        })
    }
}

impl Datapath {
    /// Notes that the object's checksum is to be taken. Forgets it when the queue is full.
    pub(super) fn check_later(&self, ino: Ino) {
        let mut waiting = self.unchecked.0.lock();
        if waiting.len() < QUEUE_MAX {
            waiting.push_back(ino);
        }
    }

    /// Takes checksums until `is_stopping`. One that is being taken then is given up: of a large object it takes long.
    pub fn check_in_background(&self, is_stopping: impl Fn() -> bool) {
        let (priority, mut buffer) = (IdlePriority::enter(), Vec::new());
        while !is_stopping() {
            if self.unchecked.0.lock().is_empty() {
                std::thread::sleep(LOOKS_EVERY);
                continue;
            }
            let pieces = self.check_together(&priority, &mut buffer, &is_stopping);
            // At the pace of one at a time: what is saved is for others.
            priority.rest_after(2 * pieces);
        }
    }

    /// Takes the checksums of the next objects that wait for theirs. Returns of how many, and 1 for none.
    fn check_together(
        &self,
        priority: &IdlePriority,
        buffer: &mut Vec<u8>,
        is_stopping: impl Fn() -> bool,
    ) -> u32 {
        let tell = |ino: Ino, error: Error| tracing::debug!(ino = ino.0, %error, "no checksum was taken");
        let together = priority.suspended(|| self.unchecked_together(tell));
        let taken = together.into_iter().filter_map(|(ino, bytes)| {
            let taken = bytes.checksum_by(buffer, &is_stopping).map_err(|error| tell(ino, error)).ok()?;
            Some((ino, taken, bytes))
        });
        let taken: Vec<_> = taken.collect();
        priority.suspended(|| {
            for (ino, taken, bytes) in &taken {
                if let Err(error) = self.keep_checksum(*ino, *taken, bytes) {
                    tell(*ino, error);
                }
            }
        });
        u32::try_from(taken.len()).unwrap_or(1).max(1)
    }

    /// The bytes of the next objects that wait for their checksum. `tell` gets those that failed.
    fn unchecked_together(&self, tell: impl Fn(Ino, Error)) -> Vec<(Ino, Bytes)> {
        let (mut together, mut size) = (Vec::new(), ByteCount::ZERO);
        // Those that left meanwhile count, too: there may be tens of thousands.
        for _ in 0..TOGETHER_MAX {
            let next = self.unchecked.0.lock().pop_front();
            let Some(ino) = next else { break };
            match self.unchecked_bytes(ino) {
                Ok(Some(bytes)) => {
                    size = size.saturating_add(bytes.size);
                    if size > TOGETHER_BYTES && !together.is_empty() {
                        // Small ones do not wait for what takes long.
                        self.unchecked.0.lock().push_front(ino);
                        break;
                    }
                    together.push((ino, bytes));
                }
                Ok(None) => {}
                Err(error) => tell(ino, error),
            }
        }
        together
    }

    /// Whether an object is such that it has a checksum, or one can be taken.
    pub(super) fn may_have_checksum(&self, ino: Ino) -> bool {
        let state = self.lock();
        state.slot_of(ino).is_ok_and(|slot| state.object(slot).is_some_and(is_final))
    }

    /// The checksum of a final object, taken now if it was not before; `None` for what is not sealed and final.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Io`].
    pub(super) fn checksum(&self, ino: Ino) -> Result<Option<Checksum>, Error> {
        let bytes = {
            let state = self.lock();
            let slot = state.slot_of(ino)?;
            let Some(object) = state.object(slot).filter(|object| is_final(object)) else { return Ok(None) };
            if let Some(taken) = self.recorded_checksum(object)? {
                return Ok(Some(taken));
            }
            self.bytes_of(object)?
        };
        let taken = bytes.checksum()?;
        self.keep_checksum(ino, taken, &bytes)?;
        Ok(Some(taken))
    }

    /// The checksum that a final object has now, for one whose bytes may have changed since its checksum was recorded.
    pub(super) fn checksum_now(&self, ino: Ino) -> Result<Option<Checksum>, Error> {
        let bytes = {
            let state = self.lock();
            let slot = state.slot_of(ino)?;
            let Some(object) = state.object(slot).filter(|object| is_final(object)) else { return Ok(None) };
            self.bytes_of(object)?
        };
        Ok(Some(bytes.checksum()?))
    }

    /// The bytes of a final object whose checksum was not taken.
    fn unchecked_bytes(&self, ino: Ino) -> Result<Option<Bytes>, Error> {
        let state = self.lock();
        let slot = state.slot_of(ino)?;
        let Some(object) = state.object(slot).filter(|object| is_final(object)) else { return Ok(None) };
        if matches!(object.place, Place::Packed(_)) && self.recorded_checksum(object)?.is_some() {
            return Ok(None);
        }
        let bytes = self.bytes_of(object)?;
        // By the file that is open by now.
        let record = match &bytes.source {
            Source::Solo(file) => self.tier.read_record(file)?,
            Source::Packed(_) => None,
        };
        Ok(record.is_none_or(|record| record.checksum.is_none()).then_some(bytes))
    }

    /// Records the checksum of `bytes`, if they are the object's still. Of one that is another version by now, as after a rename, it
    /// is to be taken again.
    fn keep_checksum(&self, ino: Ino, taken: Checksum, bytes: &Bytes) -> Result<(), Error> {
        let state = self.lock();
        let slot = state.slot_of(ino)?;
        // What is packed has it from the start.
        let (Source::Solo(file), Some(object)) = (&bytes.source, state.object(slot)) else { return Ok(()) };
        if !bytes.are_of(object) {
            let is_wanted = is_final(object);
            drop(state);
            if is_wanted {
                self.check_later(ino);
            }
            return Ok(());
        }
        let node = state.tree.node(slot);
        let mut record = state.object_record(slot, state.directory_id(node.parent)?, &state.tree.name(slot));
        record.checksum = Some(taken);
        Ok(self.tier.seal(file, &record)?)
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
            Place::Scratch(_) | Place::Ssd | Place::Remote | Place::Freed => None,
        };
        Ok(record.and_then(|record| record.checksum))
    }

    /// The bytes of an object as they are. Those of a packed one are read now: they move only under the lock.
    fn bytes_of(&self, object: &Object) -> Result<Bytes, Error> {
        let source = match &object.place {
            Place::Packed(extent) => {
                let mut data = vec![0; usize::try_from(object.size.get()).unwrap_or(0)];
                let count = self.tier.read_packed(extent, FileOffset(0), &mut data)?;
                data.truncate(count);
                Source::Packed(data)
            }
            Place::Solo(segment) => Source::Solo(self.tier.open_segment(*segment)?),
            Place::Scratch(_) | Place::Ssd | Place::Remote | Place::Freed => {
                return Err(Error::Unsupported("what is not in memory has no checksum there"));
            }
        };
        Ok(Bytes { source, size: object.size, version: object.version, place: object.place.clone() })
    }

    /// An object that an earlier daemon left is compared with its checksum when it is first opened.
    ///
    /// # Errors
    /// [`Error::Stale`] when it does not match: it is dropped, and the look-up that follows says so.
    pub(super) fn verify_before_first_use(&self, ino: Ino) -> Result<(), Error> {
        if self.unverified.are_any()
            && self.lock().unverified(ino).is_some()
            && self.verify_object(ino)? == Verdict::Corrupt
        {
            return Err(Error::Stale);
        }
        Ok(())
    }

    /// Whether the first use of an object begins with a check that is not for a thread which answers others.
    #[must_use]
    pub(super) fn is_long_to_check(&self, ino: Ino) -> bool {
        self.unverified.are_any() && self.lock().unverified(ino).is_some_and(|size| size >= LONG)
    }

    /// Compares an object's record on SSD with its checksum, whether the object is in memory too or not. A damaged record is
    /// given up, and with it the object if it stands nowhere else. One that its disk does not give says nothing. No use of it.
    ///
    /// # Errors
    /// [`Error::Stale`] when there is no such object any more.
    pub fn verify_on_ssd(&self, ino: Ino) -> Result<Verdict, Error> {
        let Some(ssd) = self.ssd() else { return Ok(Verdict::Skipped) };
        let (record, size, is_alone) = {
            let state = self.lock();
            let slot = state.slot_of(ino)?;
            let object = state.object(slot);
            let size = object.map(|object| object.size).unwrap_or_default();
            (state.ssd_record(slot), size, object.is_some_and(Object::is_on_ssd_alone))
        };
        let Some(record) = record else { return Ok(Verdict::Skipped) };
        Ok(match ssd.check(&record.key, record.version, size) {
            Ok(()) => Verdict::Sound,
            Err(Missed::Absent) => Verdict::Skipped,
            Err(Missed::Failed) => Verdict::Unreadable,
            Err(Missed::Corrupt) => {
                // What is in memory too lost a copy.
                if is_alone {
                    self.telemetry.corrupt_objects.increment();
                }
                Verdict::Corrupt
            }
        })
    }

    /// Compares one object with its checksum, and drops it when they differ. Of one that has none yet it is taken; the record of
    /// one that may have had one, and does not say so any more, stays as it is.
    ///
    /// # Errors
    /// [`Error::Stale`] when there is no such object any more, or memory does not give what it is to hold; [`Error::Io`].
    pub fn verify_object(&self, ino: Ino) -> Result<Verdict, Error> {
        let (expected, bytes) = {
            let state = self.lock();
            let slot = state.slot_of(ino)?;
            let Some(object) = state.object(slot).filter(|object| is_final(object)) else {
                return Ok(Verdict::Skipped);
            };
            let bytes = self.bytes_of(object)?;
            match self.recorded_checksum(object) {
                Ok(expected) => (expected, bytes),
                Err(error) => {
                    let path = state.path_text(slot);
                    tracing::warn!(
                        path,
                        %error,
                        "the record of an object could not be read: nothing is known of its bytes"
                    );
                    return Ok(Verdict::Unreadable);
                }
            }
        };
        let found = bytes.checksum()?;
        let Some(expected) = expected else {
            self.keep_checksum(ino, found, &bytes)?;
            let mut state = self.lock();
            let slot = state.slot_of(ino)?;
            if state.object(slot).is_some_and(|object| bytes.are_of(object)) {
                // There was nothing to compare it with, nor will there be.
                state.mark_unverified(slot, false);
            }
            return Ok(Verdict::Sound);
        };
        let doomed = {
            let mut state = self.lock();
            let slot = state.slot_of(ino)?;
            let Some(object) = state.object(slot) else { return Ok(Verdict::Skipped) };
            if !bytes.are_of(object) {
                return Ok(Verdict::Skipped);
            }
            if found == expected {
                state.mark_unverified(slot, false);
                return Ok(Verdict::Sound);
            }
            self.telemetry.corrupt_objects.increment();
            let path = state.path_text(slot);
            tracing::error!(
                path,
                "an object does not match its checksum and is dropped; it is a miss from now on"
            );
            self.remove_object(&mut state, slot, Departure::Gone, (self.now_ns(), Ending::Corrupt))
        };
        self.bury(doomed);
        Ok(Verdict::Corrupt)
    }

    /// Counts the objects that were not checked since the start anew, and compares. For tests.
    ///
    /// # Panics
    /// When they are not as many as were counted.
    pub fn check_unverified(&self) {
        let state = self.lock();
        let is_unverified = |&(slot, _): &(Slot, _)| {
            state.object(slot).is_some_and(|object| object.marks.has(Marks::UNVERIFIED))
        };
        assert_eq!(state.tree.slots().filter(is_unverified).count(), self.unverified.count(), "unverified");
    }
}

impl State {
    /// The object in `slot` is to be checked when it is first used, or not any more.
    pub(super) fn mark_unverified(&mut self, slot: Slot, is: bool) {
        let Some(object) = self.object_mut(slot) else { return };
        let was = object.marks.has(Marks::UNVERIFIED);
        object.marks.set(Marks::UNVERIFIED, is);
        let Unverified(count) = &self.unverified;
        match (was, is) {
            (false, true) => _ = count.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = count.fetch_sub(1, Ordering::Relaxed),
            (false, false) | (true, true) => {}
        }
    }

    /// The size of an object that an earlier daemon left and that was not checked since.
    pub(super) fn unverified(&self, ino: Ino) -> Option<ByteCount> {
        let object = self.object(self.tree.by_ino(ino)?)?;
        object.marks.has(Marks::UNVERIFIED).then_some(object.size)
    }
}

#[cfg(test)]
mod tests;
