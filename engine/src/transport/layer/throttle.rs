//! Limits how many bytes per second go to all peers of a transport together.
//!
//! An operation starts when the bytes of those before it have had their time; one that is longer than what a moment
//! allows is not cut. Room is that of the transport below, so that a full queue is seen by who posts.

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

impl Policy for Throttle {
    fn decide(&self, _peer: PeerId, length: usize, now: Instant) -> (Instant, Outcome) {
        let mut free_at = self.free_at.lock();
        let start = free_at.map_or(now, |free_at| free_at.max(now));
        *free_at = Some(start + Duration::from_secs_f64(length as f64 / self.bytes_per_second as f64));
        (start, Outcome::Pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_starts_when_those_before_it_have_had_their_time() {
        let throttle = Throttle { bytes_per_second: 1000, free_at: Mutex::new(None) };
        let start = Instant::now();
        let decide = |length, at: u64| {
            let (due, outcome) =
                throttle.decide(PeerId::default(), length, start + Duration::from_millis(at));
            assert_eq!(outcome, Outcome::Pass);
            due.duration_since(start).as_millis()
        };
        assert_eq!(decide(500, 0), 0);
        assert_eq!(decide(250, 100), 500);
        assert_eq!(decide(1, 100), 750);
        // Time in which nothing was asked is not made up for.
        assert_eq!(decide(1000, 5000), 5000);
        assert_eq!(decide(1, 5000), 6000);
    }
}
