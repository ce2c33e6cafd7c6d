//! What a disk is late with: loads that nobody waits for any more, whose memory the disk may fill yet.
//!
//! Each load from a disk that hangs would hold memory for as long as the disk does, and a thread for as long as a request may
//! take. So from the first one on that is late, loads from the disk are misses at once. It is over when all that is late has
//! ended, or when the disk has answered a read of one block, of which it is sent one in the time of a request.
//!
//! A disk that reads nothing at all, and says so at once, gets no loads for a while either, again and again. New records go to
//! other disks until a read went well.
//!
//! Invariants
//! - Nothing is taken from the disk here: memory is kept by the requests that may touch it, until they end.
//!
//! Limits: held is what was being loaded when the disk stopped. One that hangs now and then gets no loads while more than
//! `HELD_BYTES_MAX` are. It is sent at most `PROBES_MAX` blocks that it does not answer.
//! Threads: any. For a disk that is in time this is one look at a flag.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::memory::Mapping;

use super::disk::Ticket;
use super::memory::{Buffer, Memory};

/// Most bytes of late loads beside which others are begun.
const HELD_BYTES_MAX: u64 = 64 << 20;
/// Most probes that have not ended.
const PROBES_MAX: usize = 8;

/// Memory that a request may hold.
#[derive(Debug)]
enum Held {
    Buffer(Weak<Buffer>),
    Segment(Weak<Mapping>),
}

impl Held {
    fn is_held(&self) -> bool {
        match self {
            Self::Buffer(buffer) => buffer.strong_count() > 0,
            Self::Segment(mapping) => mapping.strong_count() > 0,
        }
    }
}

impl From<&Memory> for Held {
    fn from(memory: &Memory) -> Self {
        match memory {
            Memory::Buffer(buffer) => Self::Buffer(Arc::downgrade(buffer)),
            Memory::Segment(mapping) => Self::Segment(Arc::downgrade(mapping)),
        }
    }
}

#[derive(Debug, Default)]
struct Late {
    /// Memory of the loads, with its bytes.
    loads: Vec<(Held, u64)>,
    /// Reads that only ask whether the disk answers.
    probes: Vec<Ticket>,
    /// When the next of them may be sent; at once without.
    next_probe: Option<Instant>,
    /// Until when the disk gets no loads, whatever it answers.
    aside_until: Option<Instant>,
}

impl Late {
    fn is_aside(&self) -> bool {
        self.aside_until.is_some_and(|until| Instant::now() < until)
    }

    fn has_ended(&mut self) -> bool {
        if self.is_aside() {
            return false;
        }
        self.loads.retain(|(held, _)| held.is_held());
        let held: u64 = self.loads.iter().map(|(_, bytes)| bytes).sum();
        let has_answered = || self.probes.iter().any(Ticket::is_over);
        let has_ended = held == 0 || (held <= HELD_BYTES_MAX && has_answered());
        if has_ended {
            self.probes.clear();
            self.next_probe = None;
            self.aside_until = None;
        }
        has_ended
    }
}

/// What one disk is late with.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// Whether it gets no loads.
    is_late: AtomicBool,
    /// Whether it was last seen to read nothing.
    reads_nothing: AtomicBool,
    /// Guards what it has not ended. Taken only for a disk that is late, or was.
    late: Mutex<Late>,
}

impl Overdue {
    /// A load into `memory` was given up. Returns whether the disk was in time before.
    pub(super) fn leave(&self, memory: &Memory, bytes: u64) -> bool {
        let mut late = self.late.lock();
        late.loads.retain(|(held, _)| held.is_held());
        late.loads.push((memory.into(), bytes));
        !self.is_late.swap(true, Ordering::Relaxed)
    }

    /// The disk reads nothing: it gets no loads for `pause`. Returns whether it read something before.
    pub(super) fn set_aside(&self, pause: Duration) -> bool {
        let mut late = self.late.lock();
        late.aside_until = Some(Instant::now() + pause);
        self.is_late.store(true, Ordering::Relaxed);
        !self.reads_nothing.swap(true, Ordering::Relaxed)
    }

    /// A read went well.
    pub(super) fn has_read(&self) {
        if self.reads_nothing() {
            self.reads_nothing.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the disk reads nothing, as far as is known: until a read goes well, also while it gets loads again.
    pub(super) fn reads_nothing(&self) -> bool {
        self.reads_nothing.load(Ordering::Relaxed)
    }

    /// Whether it gets no loads right now because of that.
    pub(super) fn is_aside(&self) -> bool {
        self.is_late.load(Ordering::Relaxed) && self.late.lock().is_aside()
    }

    /// Whether the disk may be asked for a load. While it may not, it is now and then sent what `probe` begins, at most once
    /// within `limit`.
    pub(super) fn may_load(&self, limit: Duration, probe: impl FnOnce() -> Ticket) -> bool {
        if !self.is_late.load(Ordering::Relaxed) {
            return true;
        }
        let mut late = self.late.lock();
        if self.is_over(&mut late) {
            return true;
        }
        if late.is_aside() {
            return false;
        }
        let now = Instant::now();
        late.probes.retain(|probe| !probe.is_over());
        if late.next_probe.is_none_or(|at| now >= at) && late.probes.len() < PROBES_MAX {
            late.next_probe = Some(now + limit);
            late.probes.push(probe());
        }
        false
    }

    /// Whether the disk gets no loads.
    pub(super) fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Relaxed) && !self.is_over(&mut self.late.lock())
    }

    fn is_over(&self, late: &mut Late) -> bool {
        let is_over = late.has_ended();
        if is_over {
            self.is_late.store(false, Ordering::Relaxed);
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(3600);

    fn memory(bytes: u64) -> Memory {
        Memory::Buffer(Arc::new(Buffer::zeroed(usize::try_from(bytes).unwrap())))
    }

    #[test]
    fn a_disk_gets_loads_again_when_all_that_is_late_has_ended() {
        let overdue = Overdue::default();
        let (first, second) = (memory(4096), memory(4096));
        assert!(overdue.leave(&first, 4096) && !overdue.leave(&second, 4096));
        let mut probes = Vec::new();
        let mut may_load = || {
            overdue.may_load(LIMIT, || {
                let (ticket, completion) = Ticket::new(1);
                probes.push(completion);
                ticket
            })
        };
        assert!(!may_load() && !may_load());
        drop(first);
        assert!(!may_load());
        drop(second);
        assert!(may_load());
        assert_eq!(probes.len(), 1, "one within the limit");
        assert!(!overdue.is_late());
    }

    #[test]
    fn a_disk_that_is_set_aside_is_asked_for_nothing_until_that_is_over() {
        let overdue = Overdue::default();
        assert!(!overdue.reads_nothing() && overdue.set_aside(LIMIT));
        assert!(!overdue.may_load(LIMIT, || unreachable!("it is not asked")));
        assert!(overdue.is_late() && overdue.is_aside());
        assert!(!overdue.set_aside(Duration::ZERO), "it was known");
        assert!(overdue.may_load(LIMIT, || unreachable!("it may be asked for a load")));
        assert!(!overdue.is_late() && !overdue.is_aside() && overdue.reads_nothing());
        overdue.has_read();
        assert!(!overdue.reads_nothing());
    }

    #[test]
    fn a_disk_that_answers_gets_loads_again_unless_too_much_is_held() {
        for (held, may_load) in [(HELD_BYTES_MAX, true), (HELD_BYTES_MAX + 1, false)] {
            let overdue = Overdue::default();
            let memory = memory(4096);
            overdue.leave(&memory, held);
            let (ticket, completion) = Ticket::new(1);
            assert!(!overdue.may_load(LIMIT, || ticket));
            completion.end_one(Ok(()));
            assert_eq!(overdue.may_load(LIMIT, || Ticket::new(1).0), may_load);
            assert_eq!(overdue.is_late(), !may_load);
        }
    }

    #[test]
    fn a_disk_that_answers_nothing_is_sent_few_probes() {
        let overdue = Overdue::default();
        let memory = memory(4096);
        overdue.leave(&memory, 4096);
        let mut sent = 0;
        for _ in 0..100 {
            let may_load = overdue.may_load(Duration::ZERO, || {
                sent += 1;
                Ticket::new(1).0
            });
            assert!(!may_load);
        }
        assert_eq!(sent, PROBES_MAX);
    }
}
