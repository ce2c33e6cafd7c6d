//! Regions that one transport refuses, told once while it goes on refusing.
//!
//! A region is registered for each object that is lent and for each that is read: where a container may not pin memory, say,
//! all of them are refused, as fast as programs open.
//!
//! Limit: after [`QUIET`] without a refusal that is over, and the next one is told again.
//!
//! Threads: any that registers; where nothing was refused it costs them a look at a flag.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long nothing is refused until that is over.
const QUIET: Duration = Duration::from_secs(60);

/// What one transport has refused.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// Whether something was, and it is not known to be over.
    is_any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Regions, since that was told last.
    count: u64,
    last: Option<Instant>,
}

impl State {
    fn is_quiet(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now.saturating_duration_since(last) >= QUIET)
    }
}

impl Refusals {
    /// A region is refused at `now`. When that is to be told: how many were before it, and nobody was told of the end.
    pub(super) fn refused(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        let told = state.is_quiet(now).then(|| std::mem::take(&mut state.count));
        state.count += 1;
        state.last = Some(now);
        self.is_any.store(true, Ordering::Relaxed);
        told
    }

    /// A region is registered. When the refusals are over: how many there were.
    pub(super) fn registered(&self, now: impl FnOnce() -> Instant) -> Option<u64> {
        if !self.is_any.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.state.lock();
        // Another thread may have looked.
        if state.last.is_none() || !state.is_quiet(now()) {
            return None;
        }
        self.is_any.store(false, Ordering::Relaxed);
        Some(std::mem::take(&mut *state).count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_transport_goes_on_refusing_is_told_once_and_its_end_with_the_count() {
        let refusals = Refusals::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(refusals.registered(|| at(0)), None);
        assert_eq!(refusals.refused(at(0)), Some(0));
        // Others are registered all the time.
        for second in 1..1000 {
            assert_eq!(refusals.registered(|| at(second)), None);
            assert_eq!(refusals.refused(at(second)), None);
        }
        assert_eq!(refusals.registered(|| at(999 + 59)), None);
        assert_eq!(refusals.registered(|| at(999 + 60)), Some(1000));
        assert_eq!(refusals.registered(|| at(3000)), None, "it was told");
        assert_eq!(refusals.refused(at(3000)), Some(0));
        assert_eq!(refusals.refused(at(3060)), Some(1), "nothing was registered meanwhile");
    }
}
