//! How long things took, in buckets that double.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper end of the first bucket, in microseconds.
const FIRST_US: u64 = 32;
/// Buckets with an end: the last one ends above a minute.
const ENDS: usize = 22;

/// Counts of durations. Observing costs two relaxed additions.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; ENDS + 1],
    sum_ns: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Seconds of all together.
    pub sum_s: f64,
    /// How many.
    pub count: u64,
    /// Upper end in seconds of each bucket, the last one without, and how many are in it and in none before it.
    pub buckets: Vec<(f64, u64)>,
}

impl Eq for Distribution {}

impl Histogram {
    /// Counts one that took so long.
    pub fn observe(&self, taken: Duration) {
        let micros = u64::try_from(taken.as_micros()).unwrap_or(u64::MAX);
        let bucket = (0..ENDS).find(|bucket| micros <= FIRST_US << bucket).unwrap_or(ENDS);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The counts now.
    #[must_use]
    pub fn distribution(&self) -> Distribution {
        let end = |bucket: usize| {
            if bucket < ENDS { (FIRST_US << bucket) as f64 / 1e6 } else { f64::INFINITY }
        };
        let counts = self.buckets.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<_> = counts.enumerate().map(|(bucket, count)| (end(bucket), count)).collect();
        Distribution {
            sum_s: self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9,
            count: buckets.iter().map(|(_, count)| count).sum(),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_first_bucket_that_reaches_it() {
        let histogram = Histogram::default();
        for micros in [0, 32, 33, 64, 1_000_000, u64::MAX / 1000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let found = histogram.distribution();
        assert_eq!(found.count, 6);
        assert_eq!(found.buckets[0], (32e-6, 2));
        assert_eq!(found.buckets[1], (64e-6, 2));
        assert_eq!(found.buckets[15], (1.048_576, 1));
        assert_eq!(found.buckets[ENDS], (f64::INFINITY, 1));
    }
}
