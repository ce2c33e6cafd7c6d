//! Limits how many bytes per second go to all peers of a transport together.
//!
//! An operation starts when the bytes of those before it have had their time; one that is longer than what a moment
//! allows is not cut. Only what starts takes of that time: what is given up while it waits leaves it to others. Room is
//! that of the transport below, so that a full queue is seen by who posts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::Layer;
use super::hold::{Holder, Outcome, Policy};
use crate::transport::Transport;
use crate::types::PeerId;

/// `inner`, at `bytes_per_second` at most, which is at least 1. Timers run on `runtime`.
#[must_use]
pub fn throttled(inner: Arc<dyn Transport>, bytes_per_second: u64, runtime: &Handle) -> Arc<dyn Transport> {
    let operations_max = inner.capabilities().operations_max;
    let policy = Arc::new(Throttle { bytes_per_second: bytes_per_second.max(1), free_at: Mutex::new(None) });
    Arc::new(Layer { inner, wrap: Holder::new(policy, operations_max, runtime) })
}

#[derive(Debug)]
struct Throttle {
    bytes_per_second: u64,
    /// When the bytes that were let through have had their time.
    free_at: Mutex<Option<Instant>>,
}

impl Throttle {
    fn time_of(&self, length: usize) -> Duration {
        Duration::from_secs_f64(length as f64 / self.bytes_per_second as f64)
    }
}

impl Policy for Throttle {
    fn decide(&self, _peer: PeerId, _length: usize, now: Instant) -> (Instant, Outcome) {
        (now, Outcome::Pass)
    }

    fn ready_at(&self, due: Instant) -> Instant {
        self.free_at.lock().map_or(due, |free_at| free_at.max(due))
    }

    fn start(&self, due: Instant, length: usize, now: Instant) -> bool {
        let mut free_at = self.free_at.lock();
        let start = free_at.map_or(due, |free_at| free_at.max(due));
        if start > now {
            return false;
        }
        // Not from `now` on: nobody looks at the very moment at which it may start.
        *free_at = Some(start + self.time_of(length));
        true
    }

    fn not_started(&self, length: usize) {
        let mut free_at = self.free_at.lock();
        *free_at = free_at.and_then(|free_at| free_at.checked_sub(self.time_of(length)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_starts_when_those_before_it_have_had_their_time() {
        let throttle = Throttle { bytes_per_second: 1000, free_at: Mutex::new(None) };
        let start = Instant::now();
        // When one starts that is asked for at `at`.
        let decide = |length, at: u64| {
            let due = start + Duration::from_millis(at);
            let ready = throttle.ready_at(due);
            assert!(!throttle.start(due, length, ready - Duration::from_millis(1)));
            assert!(throttle.start(due, length, ready));
            ready.duration_since(start).as_millis()
        };
        assert_eq!(decide(500, 0), 0);
        assert_eq!(decide(250, 100), 500);
        assert_eq!(decide(1, 100), 750);
        // Time in which nothing was asked is not made up for.
        assert_eq!(decide(1000, 5000), 5000);
        assert_eq!(decide(1, 5000), 6000);
        // What finds no room below takes none of the time, and what is looked at late loses none.
        throttle.not_started(1);
        assert_eq!(decide(500, 5000), 6000);
        assert!(throttle.start(
            start + Duration::from_millis(6000),
            500,
            start + Duration::from_millis(9000)
        ));
        assert_eq!(decide(1, 6000), 7000);
    }
}
