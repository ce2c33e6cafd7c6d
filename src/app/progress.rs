//! When a start that takes long says how far it is: who waits for the mount sees by the log that the daemon gets on.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How often it is said.
const INTERVAL: Duration = Duration::from_secs(10);

/// When it was said last.
#[derive(Debug)]
pub(super) struct Progress(Cell<Instant>);

impl Progress {
    /// Nothing is to be said yet.
    pub(super) fn begin() -> Self {
        Self(Cell::new(Instant::now()))
    }

    /// Whether it is to be said again, now.
    pub(super) fn is_due(&self) -> bool {
        let is_due = self.0.get().elapsed() >= INTERVAL;
        if is_due {
            self.0.set(Instant::now());
        }
        is_due
    }
}
