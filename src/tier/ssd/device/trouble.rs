//! What is wrong with a disk: what its requests said is counted, and one whose writes fail gets no more.
//!
//! Invariants
//! - A disk that gets no more writes gets none until the next start.
//! - A write that went well ends the row of those that failed, also one of nothing, where nothing stands. That of the superblock
//!   of a disk that is behind is ended by the superblock alone: without it nothing on the disk is durable.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::format::BLOCK_BYTES;
use super::super::identity::{Unusable, flush, write_blocks};
use super::super::reasons::WrittenFor;
use super::super::zone::{Zone, ZoneState};
use super::Device;

/// After so many failed writes in a row a disk gets no more.
const WRITE_ERRORS_MAX: u64 = 3;
/// A block between the superblocks and the zones in which nothing stands.
const UNUSED: u64 = 2 * BLOCK_BYTES;
/// How long a disk is called slow after an answer that came too late.
const SLOW_FOR: Duration = Duration::from_secs(60);

/// What its requests said of it.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    gave_up: Option<Unusable>,
    late_at: Option<Instant>,
}

impl Device {
    /// A write of the device failed. Returns whether it gets no more.
    pub(in crate::tier::ssd) fn count_write_error(&self, error: &io::Error) -> bool {
        self.note_write_error(error);
        let errors = self.work.write_errors_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        self.end_writes_after(errors, error)
    }

    /// The superblock of a disk that is behind could not be written.
    pub(in crate::tier::ssd) fn count_superblock_error(&self, error: &io::Error) {
        self.note_write_error(error);
        let of_all = self.work.write_errors_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        let errors = self.work.superblock_errors_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        self.end_writes_after(errors.max(of_all), error);
    }

    /// The superblock of a disk was written: it is not behind.
    pub(in crate::tier::ssd) fn end_being_behind(&self) {
        self.is_behind.store(false, Ordering::Relaxed);
        self.work.superblock_errors_in_a_row.store(0, Ordering::Relaxed);
    }

    /// Says that a write failed, the last of so many `errors` in a row. Returns whether the disk gets no more.
    fn end_writes_after(&self, errors: u64, error: &io::Error) -> bool {
        let gives_up = errors >= WRITE_ERRORS_MAX;
        tracing::error!(device = self.name, %error, gives_up, "a write of the SSD tier failed");
        if gives_up {
            let reason = match Unusable::from(error) {
                Unusable::Failing(error) => {
                    Unusable::Failing(format!("its writes fail: {error}; it gets none until the next start"))
                }
                other => other,
            };
            self.trouble.lock().gave_up = Some(reason);
            self.is_failing.store(true, Ordering::Relaxed);
        }
        gives_up
    }

    /// A write of the device failed with which nothing is lost: what else is written says whether it gets more.
    pub(in crate::tier::ssd) fn note_write_error(&self, error: &io::Error) {
        self.work.write_errors.fetch_add(1, Ordering::Relaxed);
        self.note_late(error);
    }

    /// A read of the device failed.
    pub(in crate::tier::ssd) fn count_read_error(&self, zone: u32, error: &io::Error) {
        self.work.read_errors.fetch_add(1, Ordering::Relaxed);
        self.note_late(error);
        tracing::error!(device = self.name, zone, %error, "a read of the SSD tier failed");
    }

    fn note_late(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::TimedOut {
            self.trouble.lock().late_at = Some(Instant::now());
        }
    }

    /// What is wrong with it, the worst first.
    pub(in crate::tier::ssd) fn trouble(&self) -> Option<Unusable> {
        let (gave_up, late_at) = {
            let trouble = self.trouble.lock();
            (trouble.gave_up.clone(), trouble.late_at)
        };
        let is_quarantined = |zone: &&Zone| zone.state == ZoneState::Quarantined;
        let damaged = self.zones_in_capacity().iter().filter(is_quarantined).count() as u64;
        let is_slow = self.overdue.is_late() || late_at.is_some_and(|late_at| late_at.elapsed() < SLOW_FOR);
        let reads_nothing = self.overdue.reads_nothing();
        let unread =
            || Unusable::Failing("it reads nothing: what it holds is a miss until it does".to_owned());
        gave_up
            .or_else(|| reads_nothing.then(unread))
            .or(self.is_leaving().then_some(Unusable::Leaving))
            .or(is_slow.then_some(Unusable::Slow))
            .or((damaged > 0).then_some(Unusable::Damaged(damaged)))
            .or(self.is_full().then_some(Unusable::Full))
    }

    /// Whether its last write went well. One that did not is tried again, where nothing stands, before more is risked.
    pub(in crate::tier::ssd) fn can_be_written(&self, limit: Duration) -> bool {
        if self.work.write_errors_in_a_row.load(Ordering::Relaxed) == 0 {
            return true;
        }
        match write_blocks(&*self.disk, UNUSED, &[0], limit).and_then(|()| flush(&*self.disk, limit)) {
            Ok(()) => {
                self.count_written(WrittenFor::Structures, BLOCK_BYTES);
                true
            }
            Err(error) => {
                self.count_write_error(&error);
                false
            }
        }
    }

    /// A write of the device went well.
    pub(in crate::tier::ssd) fn count_written(&self, reason: WrittenFor, bytes: u64) {
        self.work.write_errors_in_a_row.store(0, Ordering::Relaxed);
        self.work.written.add(reason, bytes);
    }

    /// Whether it gets no more writes.
    pub(in crate::tier::ssd) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }
}
