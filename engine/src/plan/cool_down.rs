//! Keeps a rail or transport that failed out of the plan for a while, twice as long each time.
//!
//! When the time is over, one operation tries it: success forgets the past, failure doubles the time. A connection
//! that is made is no success: some are made without a packet to the peer.

use std::time::Duration;

/// Time after the first failure.
const FIRST: Duration = Duration::from_millis(100);
/// Longest time.
const LONGEST: Duration = Duration::from_secs(30);

/// Whether one rail may be used. Times are the engine's monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoolDown {
    failures: u32,
    until: Duration,
    /// Somebody was let through after the time, and how that ended is not known yet.
    is_trial: bool,
}

impl CoolDown {
    /// An operation on it failed at `now`. Failures that arrive while it is out already are of the same fault.
    pub fn failed(&mut self, now: Duration) {
        if self.failures > 0 && now < self.until && !self.is_trial {
            return;
        }
        self.until = now + Self::time_after(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.is_trial = false;
    }

    fn time_after(failures: u32) -> Duration {
        FIRST.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX)).min(LONGEST)
    }

    /// An operation on it succeeded.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Whether a new operation may use it at `now`. After a failure, the first caller past the time gets true and tries
    /// it; the others get false until that has ended, or until the same time has passed without word of it.
    pub fn admits(&mut self, now: Duration) -> bool {
        if self.failures == 0 {
            return true;
        }
        if now < self.until {
            return false;
        }
        self.until = now + Self::time_after(self.failures - 1);
        self.is_trial = true;
        true
    }

    /// At `now` one operation may try it: what it goes over was made anew, or who was let through has not tried it.
    /// The past stays until an operation succeeds, for a connection may be made where nothing gets through.
    pub fn renewed(&mut self, now: Duration) {
        self.until = self.until.min(now);
        self.is_trial = false;
    }

    /// Failures since the last success, each after the time of the one before.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Time that is left at `now`; zero when it may be used or tried.
    #[must_use]
    pub fn remaining(&self, now: Duration) -> Duration {
        self.until.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_failed_rail_is_out_twice_as_long_each_time_and_at_most_30_s() {
        let mut rail = CoolDown::default();
        let mut now = ms(1000);
        for wanted in [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000] {
            assert!(rail.admits(now));
            rail.failed(now);
            assert_eq!(rail.remaining(now), ms(wanted));
            assert!(!rail.admits(now + ms(wanted - 1)));
            now += ms(wanted);
        }
    }

    #[test]
    fn one_caller_tries_it_and_success_forgets_the_past() {
        let mut rail = CoolDown::default();
        rail.failed(ms(0));
        assert!(rail.admits(ms(100)));
        assert!(!rail.admits(ms(100)), "somebody tries it already");
        assert!(rail.admits(ms(200)), "who tried it never said how it went");
        rail.succeeded();
        assert!(rail.admits(ms(100)) && rail.admits(ms(100)));
        rail.failed(ms(100));
        assert_eq!(rail.remaining(ms(100)), ms(100));
    }

    #[test]
    fn a_way_that_is_made_anew_is_tried_at_once_and_its_failures_still_add_up() {
        let mut rail = CoolDown::default();
        let mut now = ms(0);
        for wanted in [100, 200, 400, 800] {
            assert!(rail.admits(now));
            rail.failed(now);
            assert_eq!(rail.remaining(now), ms(wanted));
            // Somebody connects when the time is over, and somebody sends.
            now += ms(wanted);
            assert!(rail.admits(now) && !rail.admits(now));
            now += ms(1);
            rail.renewed(now);
        }
        let mut fresh = CoolDown::default();
        fresh.renewed(ms(5));
        assert!(fresh.admits(ms(1)) && fresh.admits(ms(1)));
    }

    #[test]
    fn failures_of_the_same_fault_count_once() {
        let mut rail = CoolDown::default();
        (0..1000).for_each(|_| rail.failed(ms(5)));
        assert_eq!(rail.remaining(ms(5)), ms(100));
        assert!(rail.admits(ms(105)));
        (0..1000).for_each(|_| rail.failed(ms(106)));
        assert_eq!(rail.remaining(ms(106)), ms(200));
    }
}
