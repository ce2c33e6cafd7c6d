//! The rate at which a rail moves bytes, as it is measured.
//!
//! Limits: operations of less than [`TELLING_BYTES`] are not measured. Where none is ever longer, a rail has no measured rate, and
//! one that carries less than its NIC claims is not seen.

use std::time::Instant;

/// Shortest operation that tells a rate. What is shorter takes the way there and back, whatever its length: a rail that happened
/// to carry some would count as slow beside the others.
const TELLING_BYTES: u64 = 256 << 10;

/// Measured rate of a rail: an exponentially weighted mean over the operations that it carried and that were long enough to tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    bytes_per_second: f64,
    /// When the last of them ended.
    last_end: Option<Instant>,
}

impl Rate {
    /// Weight of one more sample.
    const WEIGHT: f64 = 0.125;

    /// An operation that was given to the rail at `began` has moved all of its `bytes`, and ended at `now`.
    pub fn ended(&mut self, bytes: u64, began: Instant, now: Instant) {
        if bytes < TELLING_BYTES {
            return;
        }
        // While others are under way, an operation has the rail from the end of the one before it.
        let since = self.last_end.map_or(began, |last_end| last_end.max(began));
        self.last_end = Some(now);
        let alone = now.saturating_duration_since(since);
        self.sample(bytes, u64::try_from(alone.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts `bytes` that took `nanos` while the rail had nothing else to do, or its share of the time.
    #[expect(clippy::cast_precision_loss, reason = "a mean of rates needs no 53rd bit")]
    fn sample(&mut self, bytes: u64, nanos: u64) {
        if nanos == 0 || bytes == 0 {
            return;
        }
        let found = bytes as f64 * 1e9 / nanos as f64;
        let weight = if self.bytes_per_second == 0.0 { 1.0 } else { Self::WEIGHT };
        self.bytes_per_second += weight * (found - self.bytes_per_second);
    }

    /// Bytes per second; 0 before the first sample.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate is finite and not negative"
    )]
    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_too_short_to_tell_a_rate_leaves_it_as_it_is() {
        let (mut rate, began) = (Rate::default(), Instant::now());
        let after = |micros| began + Duration::from_micros(micros);
        rate.ended(4096, began, after(100));
        assert_eq!(rate.bytes_per_second(), 0);
        rate.ended(1 << 20, began, after(1000));
        assert_eq!(rate.bytes_per_second(), 1000 << 20);
        // The second long one had the rail since the end of the first.
        rate.ended(4096, after(1000), after(1900));
        rate.ended(1 << 20, after(500), after(2000));
        assert_eq!(rate.bytes_per_second(), 1000 << 20);
    }

    #[test]
    fn a_rate_follows_what_is_measured() {
        let mut rate = Rate::default();
        rate.sample(1000, 1_000_000_000);
        assert_eq!(rate.bytes_per_second(), 1000);
        rate.sample(0, 5);
        rate.sample(5, 0);
        assert_eq!(rate.bytes_per_second(), 1000);
        (0..100).for_each(|_| rate.sample(500, 1_000_000_000));
        assert!((500..=501).contains(&rate.bytes_per_second()));
    }
}
