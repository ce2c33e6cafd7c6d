//! The headroom: free bytes that passthrough writers grow into without asking, and the keeper thread that restores them.
//!
//! The keeper sleeps while nobody writes, and nearly always beside who does. Each of its wake-ups costs a writer on the same
//! processor more than what it does then, so it looks again only before what is free can be filled
//! (docs/adr/0004-room-for-passthrough-writers.md, point 3).

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidefs_engine::types::{ByteCount, PAGE};

use super::Datapath;
use super::room::Loss;
use crate::namespace::Slot;
use crate::tier::memory::MemoryUsage;

/// How often free room is looked at least while passthrough writers are open and little is free.
const WATCH_INTERVAL: Duration = Duration::from_micros(500);
/// Bytes a second that one writer is taken to write: twice what a processor was seen to copy into pages that had just become free.
const WRITE_RATE: u64 = 28 << 30;
/// How long the keeper pauses at most on the strength of that: several threads may write by one handle.
const WATCH_INTERVAL_FEW: Duration = Duration::from_millis(2);
/// Bytes a second that all writers together are taken to write at most: the memory of a large machine.
const WRITE_RATE_MAX: u64 = 256 << 30;
/// How long the keeper pauses at most however much is free.
const WATCH_INTERVAL_MAX: Duration = Duration::from_millis(20);
/// How long the keeper goes on watching after the last of them came, or was seen: the next one is on its way.
const WATCHED_AFTER_MS: u64 = 1000;
/// How long the keeper sleeps at most when there are none; the next writer wakes it.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);
/// A pause of writers after which the keeper may be asleep; it watches for a second after the last of them.
const KEEPER_SLEEPS_AFTER_MS: u64 = 500;

/// How long the keeper may look away while `spare` bytes may be filled by `writers`: as long as all that a machine can write
/// does not fill them, or for a moment that so few do not fill them in.
fn watch_interval(spare: ByteCount, writers: u64) -> Duration {
    let filled_in = |rate: u64| Duration::from_micros(spare.get() / (rate / 1_000_000));
    let by_few = filled_in(WRITE_RATE.saturating_mul(writers.max(1)));
    filled_in(WRITE_RATE_MAX).max(by_few.min(WATCH_INTERVAL_FEW)).clamp(WATCH_INTERVAL, WATCH_INTERVAL_MAX)
}

/// Whether a writer wakes the keeper that comes at `now_ms`, when the last one before it came at `last_ms`.
fn wakes_keeper(now_ms: u64, last_ms: u64) -> bool {
    now_ms.saturating_sub(last_ms) > KEEPER_SLEEPS_AFTER_MS
}

/// Whether the keeper goes on watching at `now_ms`, when it last saw a writer at `seen_ms` and the last one came at `opened_ms`: most
/// write for less time than passes between two looks.
fn goes_on_watching(now_ms: u64, seen_ms: u64, opened_ms: u64) -> bool {
    now_ms.saturating_sub(seen_ms.max(opened_ms)) <= WATCHED_AFTER_MS
}

impl Datapath {
    /// Passthrough handles that may write and are open.
    pub(super) fn count_passthrough_writer(&self, opened: bool) {
        if opened {
            let others = self.passthrough_writers.fetch_add(1, Ordering::Relaxed);
            let now_ms = self.now_ms();
            if others == 0
                && wakes_keeper(now_ms, self.last_writer_ms.load(Ordering::Relaxed))
                && let Some(keeper) = self.keeper.get()
            {
                keeper.unpark();
            }
            self.last_writer_ms.store(now_ms, Ordering::Relaxed);
        } else {
            self.passthrough_writers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The keeper's loop: restores the headroom while passthrough writers are open, until `is_stopping` says so.
    ///
    /// The composition root runs it with real-time priority where it may: it sleeps nearly always, and what it does
    /// in time is what keeps a writer from a full tmpfs.
    pub fn keep_headroom(&self, is_stopping: impl Fn() -> bool) {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        let mut last_writer = self.now_ms();
        while !is_stopping() {
            let now_ms = self.now_ms();
            let mut writers = self.passthrough_writers.load(Ordering::Relaxed);
            if writers > 0 {
                last_writer = now_ms;
            } else if !goes_on_watching(now_ms, last_writer, self.last_writer_ms.load(Ordering::Relaxed)) {
                std::thread::park_timeout(IDLE_INTERVAL);
                if self.passthrough_writers.load(Ordering::Relaxed) > 0 {
                    last_writer = self.now_ms();
                }
                continue;
            }
            let mut spare = ByteCount::ZERO;
            while let Ok(MemoryUsage { free, .. }) = self.tier.usage() {
                if free < PAGE {
                    self.ends_of_room.fetch_add(1, Ordering::Relaxed);
                }
                self.give_up_prefault(free);
                spare = free.saturating_sub(self.watch_reserve().max(self.prefaulted()));
                let missing = self.missing_headroom(free);
                if missing == ByteCount::ZERO || !self.restore_headroom(missing, free) {
                    break;
                }
                self.telemetry.surprise_growth_bytes.add(missing.get());
            }
            // Those that came while room was made.
            writers = writers.max(self.passthrough_writers.load(Ordering::Relaxed)).min(processors);
            std::thread::sleep(watch_interval(spare, writers));
        }
    }

    /// What the keeper leaves of the headroom for a wake-up that comes late: a quarter.
    fn watch_reserve(&self) -> ByteCount {
        ByteCount(self.settings.write_headroom.get() / 4)
    }

    /// Bytes that the headroom lacks. What is on its way to a disk counts as free until half of the headroom is used:
    /// dropping something else for the moment that its write takes would lose it for nothing.
    fn missing_headroom(&self, free: ByteCount) -> ByteCount {
        let missing = self.settings.write_headroom.saturating_sub(free);
        if self.is_urgent(free) { missing } else { missing.saturating_sub(self.lent_bytes()) }
    }

    /// Whether so little is free that room is needed at once.
    fn is_urgent(&self, free: ByteCount) -> bool {
        free < ByteCount(self.settings.write_headroom.get() / 2)
    }

    /// Lets objects of `missing` bytes leave. While there is time they go to a disk that takes them, so that the keeper, which
    /// runs before the demoter, loses nothing that the demoter would have kept; and while the disks write, which makes room
    /// in their queues, only those leave that are there already. Returns whether anything went.
    fn restore_headroom(&self, missing: ByteCount, free: ByteCount) -> bool {
        if self.free_what_waits(missing) {
            return true;
        }
        let has_time = !self.is_urgent(free);
        if has_time && self.send_coldest(missing) {
            return true;
        }
        if has_time && self.ssd.get().is_some_and(|ssd| ssd.is_writing()) {
            return self.evict(missing, Slot::ROOT, Loss::Refused) > 0;
        }
        self.evict_round_for_reuse(missing, Slot::ROOT) > 0
    }

    /// The keeper's thread, to be woken when a writer comes after a pause.
    pub fn set_keeper(&self, thread: std::thread::Thread) {
        // A second keeper would be a bug of the composition root; the first one is woken.
        let _ = self.keeper.set(thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_does_not_wake_the_keeper_comes_while_it_watches_though_it_saw_none_before() {
        let opened_ms = 60_000;
        for passed_ms in 0..=2 * WATCHED_AFTER_MS {
            let now_ms = opened_ms + passed_ms;
            assert!(wakes_keeper(now_ms, opened_ms) || goes_on_watching(now_ms, 0, opened_ms), "{passed_ms}");
        }
        assert!(!goes_on_watching(opened_ms + 2 * WATCHED_AFTER_MS, 0, opened_ms));
    }

    #[test]
    fn the_keeper_looks_again_before_writers_can_fill_what_is_free() {
        for spare in [0, 1, 12 << 20, 200 << 20, 1 << 30, 5 << 30, 1 << 40].map(ByteCount) {
            for writers in [0, 1, 2, 16, 1000] {
                let pause = watch_interval(spare, writers);
                assert!((WATCH_INTERVAL..=WATCH_INTERVAL_MAX).contains(&pause), "{spare}: {pause:?}");
                let is_filled_by =
                    |rate: u64| u128::from(rate) * pause.as_nanos() / 1_000_000_000 > u128::from(spare.get());
                let is_short = pause == WATCH_INTERVAL
                    || pause <= WATCH_INTERVAL_FEW && !is_filled_by(WRITE_RATE * writers);
                assert!(is_short || !is_filled_by(WRITE_RATE_MAX), "{spare}, {writers}: {pause:?}");
            }
        }
    }
}
