//! What a disk did since the start, and how fast its loads are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::reading::Ending;
use super::reasons::{ByReason, ReadFor, WrittenFor};
use crate::telemetry::Histogram;

/// What a device did since the start.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) written: ByReason<WrittenFor>,
    pub(super) read: ByReason<ReadFor>,
    /// Data of the objects that it was given, without headers and padding.
    pub(super) stored_bytes: AtomicU64,
    pub(super) read_errors: AtomicU64,
    pub(super) write_errors: AtomicU64,
    /// Bytes that are being loaded.
    loading_bytes: AtomicU64,
    /// Bytes a second that all loads together were seen to get, averaged; zero before the first.
    load_rate: AtomicU64,
    pub(super) ending: Ending,
    pub(super) read_times: Histogram,
    pub(super) write_times: Histogram,
    pub(super) write_errors_in_a_row: AtomicU64,
    /// Failed writes of its superblock, for a pool that went ahead without it; no other write ends that row.
    pub(super) superblock_errors_in_a_row: AtomicU64,
}

/// Loads smaller than this say more about latency than about the rate.
const MEASURED_MIN: u64 = 64 << 10;

impl Work {
    /// A load of `bytes` begins. Returns how many are being loaded from now on.
    pub(super) fn begin_load(&self, bytes: u64) -> u64 {
        self.loading_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// A load of `bytes` has ended. `served`: bytes that were being loaded when it began, it included, if it went well.
    pub(super) fn end_load(&self, bytes: u64, served: Option<u64>, taken: Duration) {
        self.loading_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let Some(served) = served.filter(|_| bytes >= MEASURED_MIN) else { return };
        let micros = u64::try_from(taken.as_micros()).unwrap_or(u64::MAX).max(1);
        let seen = served.saturating_mul(1_000_000) / micros;
        // Racing loads may lose one of two measurements.
        let before = self.load_rate.load(Ordering::Relaxed);
        let after = if before == 0 { seen } else { before / 8 * 7 + seen / 8 };
        self.load_rate.store(after.max(1), Ordering::Relaxed);
    }

    /// How long a load of `bytes` would take behind those that are under way, when that can be said.
    pub(super) fn predicted_load(&self, bytes: u64) -> Option<Duration> {
        let rate = self.load_rate.load(Ordering::Relaxed);
        let before = self.loading_bytes.load(Ordering::Relaxed);
        (rate > 0).then(|| Duration::from_secs_f64((before + bytes) as f64 / rate as f64))
    }
}
