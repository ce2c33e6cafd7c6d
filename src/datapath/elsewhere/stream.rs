//! Objects that are read while they arrive: those for which the first byte is not to wait for the last.
//!
//! `open` returns when the first part is here, a read when its bytes are. The daemon serves such handles, with direct I/O,
//! from the segment that is being filled; to everyone else the object has no bytes here until all of them came.
//!
//! Invariants
//! - The last byte is given out only when all were compared with their checksum: who reads an object whole never gets a wrong one.
//! - What was given out does not change: once somebody reads it, an object that turns out corrupt is not fetched anew under them.
//! - A read that waits is answered when its bytes come, or when the fetch ends, which has a deadline.
//!
//! Limits: at most `WAITING_MAX` reads wait for one object; further ones fail, counted and logged.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;
use tidefs_engine::types::ByteCount;

use super::super::loader::Rest;
use super::super::{Caller, Datapath, IoPath, OpenOptions, Opened, State};
use super::{Stamp, stamp_of};
use crate::cluster::Arrival;
use crate::namespace::{Ino, Slot};
use crate::telemetry::Telemetry;

const WAITING_MAX: usize = 4096;

/// Whether bytes can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::datapath) enum Reach {
    There,
    NotYet,
    /// No source gave them.
    Never,
}

#[derive(Default)]
struct Progress {
    arrived: ByteCount,
    /// Whether all came, once that is known.
    ending: Option<bool>,
    is_read: bool,
    waiting: Vec<(ByteCount, Rest)>,
}

impl Progress {
    fn reach(&self, end: ByteCount) -> Reach {
        match self.ending {
            Some(false) => Reach::Never,
            Some(true) => Reach::There,
            None if end <= self.arrived => Reach::There,
            None => Reach::NotYet,
        }
    }
}

/// An object that is being fetched and can be read.
pub struct Stream {
    file: Arc<File>,
    size: ByteCount,
    /// Guards how far it has come, and who waits for more.
    progress: Mutex<Progress>,
    telemetry: Arc<Telemetry>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Stream {
    fn new(file: &Arc<File>, size: ByteCount, telemetry: &Arc<Telemetry>) -> Self {
        let (file, telemetry) = (Arc::clone(file), Arc::clone(telemetry));
        Self { file, size, progress: Mutex::default(), telemetry }
    }

    /// The segment that is being filled.
    pub(in crate::datapath) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Whether `length` bytes from `offset` on, as far as there are so many, can be read.
    pub(in crate::datapath) fn reach(&self, offset: u64, length: usize) -> Reach {
        self.progress.lock().reach(self.end_of(offset, length))
    }

    fn end_of(&self, offset: u64, length: usize) -> ByteCount {
        ByteCount(offset.saturating_add(length as u64).min(self.size.get()))
    }

    /// Does `rest` when these bytes can be read, or never will: it is told which. So it is at once when too many wait already.
    pub fn wait_for(&self, offset: u64, length: usize, rest: Rest) {
        let end = self.end_of(offset, length);
        let reach = {
            let mut progress = self.progress.lock();
            let reach = progress.reach(end);
            if reach == Reach::NotYet && progress.waiting.len() < WAITING_MAX {
                return progress.waiting.push((end, rest));
            }
            reach
        };
        if reach == Reach::NotYet {
            self.telemetry.remote_stream_refusals.increment();
            tracing::warn!(
                size = %self.size,
                offset,
                waiting = WAITING_MAX,
                "too many reads wait for an object that is on its way from another member: this one gets EIO; \
                 tidefs_remote_stream_refusals_total counts them"
            );
        }
        rest(reach == Reach::There);
    }

    /// Somebody opens it. Returns whether it can be read.
    fn join(&self) -> bool {
        let mut progress = self.progress.lock();
        progress.is_read |= progress.ending != Some(false);
        progress.ending != Some(false)
    }

    /// Whether somebody opened it, and not all of it is here.
    fn is_read_in_part(&self) -> bool {
        let progress = self.progress.lock();
        progress.is_read && progress.ending.is_none()
    }

    fn change(&self, change: impl FnOnce(&mut Progress)) {
        let ready: Vec<(Reach, Rest)> = {
            let mut progress = self.progress.lock();
            change(&mut progress);
            let (ready, waiting) = std::mem::take(&mut progress.waiting)
                .into_iter()
                .partition(|(end, _)| progress.reach(*end) != Reach::NotYet);
            progress.waiting = waiting;
            let with_reach = |(end, rest): (ByteCount, Rest)| (progress.reach(end), rest);
            Vec::into_iter(ready).map(with_reach).collect()
        };
        ready.into_iter().for_each(|(reach, rest)| rest(reach == Reach::There));
    }

    fn arrived(&self, bytes: ByteCount) {
        let unchecked = self.size.saturating_sub(ByteCount(1));
        self.change(|progress| progress.arrived = bytes.min(unchecked));
    }

    fn end(&self, went_well: bool) {
        self.change(|progress| {
            progress.ending.get_or_insert(went_well);
        });
    }

    /// Forgets what came, unless somebody may have read it.
    fn starts_again(&self) -> bool {
        let mut progress = self.progress.lock();
        if !progress.is_read {
            progress.arrived = ByteCount::ZERO;
        }
        !progress.is_read
    }
}

/// A fetch whose object is shown to readers from its first part on, until this is dropped.
pub(in crate::datapath) struct Arriving<'a> {
    datapath: &'a Datapath,
    ino: Ino,
    stamp: Stamp,
    stream: Arc<Stream>,
    is_shown: Cell<bool>,
}

impl<'a> Arriving<'a> {
    pub(in crate::datapath) fn new(
        datapath: &'a Datapath,
        (ino, stamp): (Ino, Stamp),
        file: &Arc<File>,
        size: ByteCount,
    ) -> Self {
        let stream = Arc::new(Stream::new(file, size, &datapath.telemetry));
        Self { datapath, ino, stamp, stream, is_shown: Cell::new(false) }
    }

    /// All bytes are here and right.
    pub(in crate::datapath) fn is_whole(&self) {
        self.stream.end(true);
    }
}

impl Arrival for Arriving<'_> {
    fn arrived(&self, bytes: ByteCount) {
        self.stream.arrived(bytes);
        if !self.is_shown.replace(true) {
            {
                let mut state = self.datapath.lock();
                let slot = state.tree.by_ino(self.ino);
                let object = slot.and_then(|slot| state.object(slot));
                if object.is_some_and(|object| object.is_remote() && stamp_of(object) == self.stamp) {
                    state.elsewhere.streams.insert(self.ino, Arc::clone(&self.stream));
                }
            }
            self.datapath.loader().started(self.ino);
        }
    }

    fn starts_again(&self) -> bool {
        self.stream.starts_again()
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.datapath.lock();
            let is_this = |known: &Arc<Stream>| Arc::ptr_eq(known, &self.stream);
            if state.elsewhere.streams.get(&self.ino).is_some_and(is_this) {
                state.elsewhere.streams.remove(&self.ino);
            }
        }
        // Counted before its readers are told.
        if self.stream.is_read_in_part() {
            self.datapath.telemetry.remote_stream_failures.increment();
            tracing::warn!(
                ino = self.ino.0,
                size = %self.stream.size,
                "no member gave the rest of an object that is open: its readers get EIO; \
                 tidefs_remote_stream_failures_total counts them"
            );
        }
        self.stream.end(false);
    }
}

impl State {
    /// What of the object in `slot` can be read while it arrives.
    fn stream_of(&self, slot: Slot) -> Option<Arc<Stream>> {
        self.elsewhere.streams.get(&self.tree.ino(slot)).cloned()
    }
}

impl Datapath {
    /// Whether an object is read before all of it is here.
    pub(in crate::datapath) fn is_streamed(&self, size: ByteCount) -> bool {
        self.cluster.get().is_some_and(|side| size > side.fetch_whole_max)
    }

    /// Whether the object is on its way from another member and can be read already.
    #[must_use]
    pub fn is_arriving(&self, ino: Ino) -> bool {
        self.cluster.get().is_some() && self.lock().elsewhere.streams.contains_key(&ino)
    }

    /// Opens an object without bytes to read it while it arrives. `None` when it does not.
    pub(in crate::datapath) fn open_arriving(
        &self,
        state: &mut State,
        caller: &Caller,
        slot: Slot,
        options: OpenOptions,
    ) -> Option<Opened> {
        let stream = state.stream_of(slot).filter(|stream| !options.write && stream.join())?;
        state.object_mut(slot)?.open_mut().stream = Some(stream);
        self.telemetry.hits.increment();
        self.telemetry.remote_streams.increment();
        Some(self.open_handle(state, caller, slot, options, IoPath::Direct))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const SIZE: ByteCount = ByteCount(1000);

    fn stream() -> Stream {
        Stream::new(&Arc::new(tempfile::tempfile().expect("a file")), SIZE, &Arc::default())
    }

    /// A wait that counts how it ends: 1 for bytes, 1000 for none.
    fn counted(ends: &Arc<AtomicU32>) -> Rest {
        let ends = Arc::clone(ends);
        Box::new(move |is_there| {
            ends.fetch_add(if is_there { 1 } else { 1000 }, Ordering::Relaxed);
        })
    }

    #[test]
    fn a_read_waits_for_its_own_bytes_and_no_others() {
        let (stream, ends) = (stream(), Arc::new(AtomicU32::new(0)));
        stream.wait_for(0, 100, counted(&ends));
        stream.wait_for(100, 400, counted(&ends));
        assert_eq!(ends.load(Ordering::Relaxed), 0);
        stream.arrived(ByteCount(100));
        assert_eq!(ends.load(Ordering::Relaxed), 1);
        stream.wait_for(50, 50, counted(&ends));
        assert_eq!(ends.load(Ordering::Relaxed), 2);
        stream.arrived(ByteCount(600));
        assert_eq!(ends.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn the_last_byte_waits_until_all_are_checked() {
        let (stream, ends) = (stream(), Arc::new(AtomicU32::new(0)));
        stream.arrived(SIZE);
        assert_eq!((stream.reach(0, 999), stream.reach(0, 1000)), (Reach::There, Reach::NotYet));
        // Beyond the end there is nothing, which is known no sooner.
        stream.wait_for(990, 4096, counted(&ends));
        stream.wait_for(5000, 10, counted(&ends));
        assert_eq!(ends.load(Ordering::Relaxed), 0);
        stream.end(true);
        assert_eq!((ends.load(Ordering::Relaxed), stream.reach(0, 1000)), (2, Reach::There));
    }

    #[test]
    fn a_failed_fetch_ends_every_wait_and_stays_failed() {
        let (stream, ends) = (stream(), Arc::new(AtomicU32::new(0)));
        stream.wait_for(0, 100, counted(&ends));
        assert!(stream.join());
        stream.end(false);
        stream.end(true);
        stream.wait_for(0, 100, counted(&ends));
        assert_eq!((ends.load(Ordering::Relaxed), stream.join()), (2000, false));
    }

    #[test]
    fn what_somebody_reads_is_not_fetched_anew_under_them() {
        let stream = stream();
        stream.arrived(ByteCount(500));
        assert!(stream.starts_again());
        assert_eq!(stream.reach(0, 1), Reach::NotYet);
        assert!(stream.join());
        assert!(!stream.starts_again());
    }

    #[test]
    fn no_more_reads_wait_than_are_bounded_and_those_that_do_not_are_counted() {
        let (stream, ends) = (stream(), Arc::new(AtomicU32::new(0)));
        let refused = || stream.telemetry.remote_stream_refusals.get();
        (0..WAITING_MAX).for_each(|_| stream.wait_for(0, 1, counted(&ends)));
        assert_eq!((ends.load(Ordering::Relaxed), refused()), (0, 0));
        stream.wait_for(0, 1, counted(&ends));
        assert_eq!((ends.load(Ordering::Relaxed), refused()), (1000, 1));
        // Nor are those whose bytes no member gives counted so: the fetch that ends is.
        stream.end(false);
        stream.wait_for(0, 1, counted(&ends));
        assert_eq!(refused(), 1);
    }
}
