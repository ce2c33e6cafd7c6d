//! A bucket of bytes that fills over time: who takes from it keeps to a rate on average.

use std::time::Duration;

#[derive(Debug)]
pub(super) struct Bucket {
    /// Bytes that may be taken now, and when that was so.
    tokens: u64,
    filled_at: Duration,
}

impl Bucket {
    /// A bucket of `tokens` bytes at `now`.
    pub(super) fn new(tokens: u64, now: Duration) -> Self {
        Self { tokens, filled_at: now }
    }

    /// Whether `length` bytes may be taken out of a bucket that holds at most `size` and earns `rate` a second. What is larger
    /// than the bucket takes all of it; the next one waits for it to fill again.
    pub(super) fn has(&mut self, length: u64, rate: u64, size: u64, now: Duration) -> bool {
        let elapsed_ns = now.saturating_sub(self.filled_at).as_nanos();
        let earned = u128::from(rate).saturating_mul(elapsed_ns) / 1_000_000_000;
        let earned = u64::try_from(earned).unwrap_or(u64::MAX);
        if earned > 0 {
            self.tokens = self.tokens.saturating_add(earned);
            self.filled_at = now;
        }
        self.tokens = self.tokens.min(size);
        size > 0 && self.tokens >= length.min(size)
    }

    /// Takes them. Returns whether there was enough.
    pub(super) fn take(&mut self, length: u64, rate: u64, size: u64, now: Duration) -> bool {
        let has_enough = self.has(length, rate, size, now);
        if has_enough {
            self.tokens -= length.min(size);
        }
        has_enough
    }
}
