//! Blank segments: allocated, zeroed and mapped before an object that is brought back needs one.
//!
//! What is read from a disk or from a peer lands in fresh pages, which the kernel zeroes first: as much work as the transfer
//! itself. For the lengths that were loaded lately a thread does it beforehand, while nothing else wants its CPU. Pages of
//! earlier objects are no substitute: programs may still hold them by pipes, sockets and devices, which no call tells of.
//!
//! Limits: `COUNT_MAX` segments and a 128th of the capacity, of a small cache a 16th but no more than `SMALL_MAX`; one that
//! nobody took for `KEPT` goes. They go, too, before an object is evicted that is nowhere else.
//! Threads: [`Datapath::make_blanks`] is a thread of its own; the rest is called by whoever loads.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidefs_engine::memory::Mapping;
use tidefs_engine::types::{ByteCount, SegmentId};

use super::prefault::Prefaulting;
use super::{Datapath, Error, Place};
use crate::ffi::IdlePriority;
use crate::namespace::Slot;
use crate::tier::memory::write_zeros;

/// Part of the capacity that may be blank.
const SHARE: u64 = 128;
/// Part of a small one: a block of KV is a few MiB, and there is to be place for some.
const SMALL_SHARE: u64 = 16;
/// What that is at most.
const SMALL_MAX: ByteCount = ByteCount::mib(32);
/// Segments that may be blank, each with its file open.
const COUNT_MAX: usize = 64;
/// How long one stays that nobody takes.
const KEPT: Duration = Duration::from_secs(60);
/// How often the thread looks whether it is to end.
const WAIT: Duration = Duration::from_millis(200);
/// A segment that holds nothing, and all of whose pages stand.
#[derive(Debug)]
pub(super) struct Blank {
    pub(super) segment: SegmentId,
    pub(super) file: Arc<File>,
    pub(super) mapping: Mapping,
    /// On the monotonic clock.
    made: Duration,
}

impl Blank {
    fn size(&self) -> ByteCount {
        self.mapping.length()
    }
}

#[derive(Debug, Default)]
struct Stock {
    blanks: VecDeque<Blank>,
    /// Lengths that are to be made.
    wishes: VecDeque<ByteCount>,
    /// Bytes of both, and of the one that is being made.
    bytes: ByteCount,
    /// How many those are.
    count: usize,
}

impl Stock {
    fn count_out(&mut self, size: ByteCount) {
        self.bytes = self.bytes.saturating_sub(size.round_up_to_pages());
        self.count -= 1;
    }

    /// Takes out the ones that `is_surplus` says, the oldest first.
    fn take_all(&mut self, mut is_surplus: impl FnMut(&Blank) -> bool) -> Vec<Blank> {
        let (surplus, kept) =
            std::mem::take(&mut self.blanks).into_iter().partition(|blank| is_surplus(blank));
        self.blanks = kept;
        let surplus: VecDeque<Blank> = surplus;
        surplus.iter().for_each(|blank| self.count_out(blank.size()));
        surplus.into()
    }
}

/// The blank segments, and what is asked for.
#[derive(Debug)]
pub(super) struct Blanks {
    /// Guards which there are; held for moments.
    stock: Mutex<Stock>,
    /// Signalled when what is asked for is to be made.
    asked: Condvar,
    bytes_max: ByteCount,
}

impl Blanks {
    pub(super) fn new(capacity: ByteCount) -> Self {
        let small = ByteCount(capacity.get() / SMALL_SHARE).min(SMALL_MAX);
        let bytes_max = ByteCount(capacity.get() / SHARE).max(small);
        Self { stock: Mutex::default(), asked: Condvar::new(), bytes_max }
    }

    /// Takes a segment of exactly this length, and notes that another one is to be made: what is loaded now is likely to be
    /// loaded again.
    fn take(&self, size: ByteCount) -> Option<Blank> {
        let mut stock = self.stock.lock();
        let found = stock.blanks.iter().rposition(|blank| blank.size() == size);
        let blank = found.and_then(|index| stock.blanks.remove(index));
        if let Some(blank) = &blank {
            stock.count_out(blank.size());
        }
        let bytes = stock.bytes.saturating_add(size.round_up_to_pages());
        if bytes <= self.bytes_max && stock.count < COUNT_MAX {
            stock.bytes = bytes;
            stock.count += 1;
            stock.wishes.push_back(size);
        }
        blank
    }

    /// Has what was noted be made now.
    pub(super) fn make(&self) {
        self.asked.notify_one();
    }

    fn bytes(&self) -> ByteCount {
        let stock = self.stock.lock();
        stock
            .blanks
            .iter()
            .fold(ByteCount::ZERO, |sum, blank| sum.saturating_add(blank.size().round_up_to_pages()))
    }
}

impl Datapath {
    /// A segment of exactly this length whose pages stand, if there is one. The next one is made when [`Blanks::make`] says so,
    /// or within moments.
    pub(super) fn take_blank(&self, size: ByteCount) -> Option<Blank> {
        let blank = (size > ByteCount::ZERO).then(|| self.blanks.take(size)).flatten();
        if blank.is_some() {
            self.telemetry.blanks_taken.increment();
        }
        blank
    }

    /// Makes blank segments as they are asked for, until `is_stopping` says so, and touches free memory while none is. Runs in
    /// a thread of its own.
    pub fn make_blanks(&self, is_stopping: impl Fn() -> bool) {
        let idle = IdlePriority::enter();
        let page = self.tier.prefault().and_then(|_| idle.suspended(|| self.tier.huge_page()));
        let mut prefaulting = Prefaulting::new(self.clock.monotonic(), page);
        while !is_stopping() {
            idle.rest_after(1);
            let wait = if self.prefault(&mut prefaulting, &idle) { Duration::ZERO } else { WAIT };
            let wish = idle.suspended(|| {
                let mut stock = self.blanks.stock.lock();
                if stock.wishes.is_empty() {
                    self.blanks.asked.wait_for(&mut stock, wait);
                }
                stock.wishes.pop_front()
            });
            let Some(size) = wish else { continue };
            match self.make_blank(size, &idle) {
                Ok(blank) => {
                    idle.suspended(|| self.blanks.stock.lock().blanks.push_back(blank));
                    self.telemetry.blanks_made.increment();
                }
                Err(error) => {
                    tracing::debug!(%size, %error, "no segment is made ahead of loads");
                    idle.suspended(|| self.blanks.stock.lock().count_out(size));
                }
            }
        }
        self.drain_blanks(self.settings.capacity);
    }

    fn make_blank(&self, size: ByteCount, idle: &IdlePriority) -> Result<Blank, Error> {
        // Whoever is not let run in the middle of this would keep locks from everybody.
        let (segment, file) = idle.suspended(|| self.allocate_blank(size))?;
        let made = (|| {
            write_zeros(&file, size).map_err(Error::io("write of a segment"))?;
            idle.suspended(|| {
                let mapping = Mapping::new(&file, size).map_err(Error::io("mmap of a segment"))?;
                mapping.populate(0, usize::try_from(size.get()).unwrap_or(usize::MAX));
                Ok(mapping)
            })
        })();
        match made {
            Ok(mapping) => Ok(Blank { segment, file: Arc::new(file), mapping, made: self.clock.monotonic() }),
            Err(error) => {
                idle.suspended(|| self.free_place(Place::Solo(segment)));
                Err(error)
            }
        }
    }

    fn allocate_blank(&self, size: ByteCount) -> Result<(SegmentId, File), Error> {
        // As any writer, it leaves the headroom to those that the kernel serves.
        self.make_room_without_loss(size.round_up_to_pages().saturating_add(self.settings.write_headroom))?;
        let (segment, file) = self.tier.create_segment()?;
        let length = file.set_len(size.get()).map_err(Error::io("ftruncate of a segment"));
        match length.and_then(|()| self.reserve(&file, ByteCount::ZERO, size, Slot::ROOT)) {
            Ok(()) => Ok((segment, file)),
            Err(error) => {
                self.free_place(Place::Solo(segment));
                Err(error)
            }
        }
    }

    /// Whether any segment is blank.
    pub(super) fn has_blanks(&self) -> bool {
        !self.blanks.stock.lock().blanks.is_empty()
    }

    /// Gives up blank segments, the oldest first, until `wanted` bytes are free. Returns whether any went.
    pub(super) fn drain_blanks(&self, wanted: ByteCount) -> bool {
        let mut drained = ByteCount::ZERO;
        let surplus = self.blanks.stock.lock().take_all(|blank| {
            let is_surplus = drained < wanted;
            if is_surplus {
                drained = drained.saturating_add(blank.size().round_up_to_pages());
            }
            is_surplus
        });
        self.give_up_blanks(surplus)
    }

    /// Gives up those that nobody took for a while.
    pub(super) fn age_blanks(&self) {
        let now = self.clock.monotonic();
        let old = self.blanks.stock.lock().take_all(|blank| now.saturating_sub(blank.made) > KEPT);
        self.give_up_blanks(old);
    }

    fn give_up_blanks(&self, blanks: Vec<Blank>) -> bool {
        let have_gone = !blanks.is_empty();
        blanks.iter().for_each(|blank| self.free_place(Place::Solo(blank.segment)));
        have_gone
    }

    /// Bytes of blank segments: free memory to everybody who asks.
    pub(super) fn blank_bytes(&self) -> ByteCount {
        self.blanks.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: ByteCount = ByteCount::kib(64);

    /// Makes what is asked for, as the thread does.
    fn make(blanks: &Blanks, now: u64) -> usize {
        let mut stock = blanks.stock.lock();
        let wishes = std::mem::take(&mut stock.wishes);
        for (number, &size) in wishes.iter().enumerate() {
            let file = tempfile::tempfile().unwrap();
            file.set_len(size.get()).unwrap();
            let mapping = Mapping::new(&file, size).unwrap();
            let (segment, made) = (SegmentId(number as u64), Duration::from_secs(now));
            stock.blanks.push_back(Blank { segment, file: Arc::new(file), mapping, made });
        }
        wishes.len()
    }

    #[test]
    fn a_segment_is_made_for_each_load_and_goes_to_one_of_its_length_alone() {
        let blanks = Blanks::new(ByteCount::gib(1));
        assert!(blanks.take(LENGTH).is_none(), "nothing was loaded before");
        assert_eq!(make(&blanks, 0), 1);
        assert!(blanks.take(ByteCount(LENGTH.get() - 1)).is_none(), "another length");
        assert_eq!(blanks.take(LENGTH).unwrap().size(), LENGTH);
        assert_eq!(make(&blanks, 0), 2, "one of each length");
    }

    #[test]
    fn what_is_blank_is_bounded_by_bytes_what_is_asked_for_included() {
        let blanks = Blanks::new(ByteCount(LENGTH.get() * SMALL_SHARE * 3));
        (0..9).for_each(|_| drop(blanks.take(LENGTH)));
        assert_eq!((make(&blanks, 0), blanks.bytes()), (3, ByteCount::kib(192)));
        assert!(blanks.take(LENGTH).is_some());
        assert_eq!(make(&blanks, 0), 1, "the one that was taken is replaced");
        assert!(blanks.take(ByteCount::kib(256)).is_none());
        assert_eq!(make(&blanks, 0), 0, "longer than all together");
    }

    #[test]
    fn a_small_cache_has_place_for_some_blocks_too() {
        let max = |capacity| Blanks::new(capacity).bytes_max;
        assert_eq!(max(ByteCount::mib(256)), ByteCount::mib(16));
        assert_eq!((max(ByteCount::gib(1)), max(ByteCount::gib(4))), (SMALL_MAX, SMALL_MAX));
        assert_eq!(max(ByteCount::gib(64)), ByteCount::mib(512));
    }

    #[test]
    fn what_is_given_up_makes_place_for_others() {
        let blanks = Blanks::new(ByteCount(LENGTH.get() * SMALL_SHARE * 2));
        for now in [10, 20] {
            assert!(blanks.take(ByteCount::kib(60 + now / 10)).is_none());
            assert_eq!(make(&blanks, now), 1);
        }
        assert!(blanks.take(LENGTH).is_none());
        assert_eq!(make(&blanks, 30), 0, "there are two");
        let old = blanks.stock.lock().take_all(|blank| blank.made < Duration::from_secs(15));
        assert_eq!(old.len(), 1);
        assert!(blanks.take(LENGTH).is_none());
        assert_eq!((make(&blanks, 30), blanks.stock.lock().count), (1, 2));
    }
}
