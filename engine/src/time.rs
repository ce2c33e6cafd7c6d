//! Clocks behind a trait, so that tests and simulations move time by hand.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Source of time. `monotonic` never goes back; `wall` is what files are stamped with and may jump.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Time since an arbitrary start, for deadlines and ages.
    fn monotonic(&self) -> Duration;
    /// Time of day, for timestamps that people see.
    fn wall(&self) -> SystemTime;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time is zero at `start`.
    #[must_use]
    pub fn starting_at(start: Instant) -> Self {
        Self { start }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::starting_at(Instant::now())
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// A clock that stands still until it is advanced.
#[derive(Debug, Default)]
pub struct SimClock {
    nanos: AtomicU64,
}

impl SimClock {
    /// Moves both clocks forward by `by` (at most 584 years in total).
    pub fn advance(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.monotonic()
    }
}
