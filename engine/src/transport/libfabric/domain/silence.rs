//! Peers that end nothing, and operations that were given up and do not end: how long is too long, by what the NIC carries,
//! and what is done then.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::NAME;
use super::super::endpoint::Connection;
use super::super::job::{Flight, Job};
use super::Domain;
use crate::error::Error;

/// How many times as long as expected an operation may take before its peer counts as silent.
const PATIENCE: u32 = 4;
/// How many times as long as [`Settings::settle`] what was given up may take at most beside much else: who waits for its memory
/// is not to wait for ever.
///
/// [`Settings::settle`]: super::super::job::Settings::settle
const SETTLE_STRETCH_MAX: u32 = 4;
/// Bytes per second that are assumed before any were carried, where the NIC claims nothing.
const ASSUMED_RATE: u64 = 100 << 20;
/// Why an endpoint is closed that has an operation for too long.
const LATE: &str = "an operation did not end in time";

/// Several times what `bytes` take at `rate` bytes per second, which is not zero.
fn ample_for(bytes: u64, rate: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / rate).saturating_mul(PATIENCE)
}

/// `settle`, or `ample` where that is longer, within bounds.
fn stretched(settle: Duration, ample: Duration) -> Duration {
    settle.max(ample.min(settle.saturating_mul(SETTLE_STRETCH_MAX)))
}

impl Domain {
    /// An operation has left the NIC.
    pub(super) fn note_end(&mut self, flight: &Flight, moved: bool) {
        self.credits.ended();
        let bytes = flight.job.operation.local.length() as u64;
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(bytes);
        if moved {
            let now = Instant::now();
            self.rate.ended(bytes, flight.began, now);
            self.heard.insert(flight.job.peer, now);
        }
    }

    /// Several times what all that is under way takes.
    fn ample(&self) -> Duration {
        let rates = [self.rate.bytes_per_second(), self.settings.bytes_per_second, ASSUMED_RATE];
        let rate = rates.into_iter().find(|&rate| rate > 0).unwrap_or(1);
        ample_for(self.in_flight_bytes, rate)
    }

    /// How long the peer of an operation that starts now may be silent.
    pub(super) fn patience(&self) -> Duration {
        self.settings.silence.max(self.ample())
    }

    /// How long what is given up now may take to end: it is behind all else that is under way.
    pub(super) fn time_to_settle(&self) -> Duration {
        stretched(self.settings.settle, self.ample())
    }

    /// Opens the endpoint again when something that was given up does not end.
    pub(super) fn leave_stuck_operations(&mut self, now: Instant) {
        let is_stuck = |flight: &&Flight| flight.given_up.as_ref().is_some_and(|(_, until)| *until <= now);
        let stuck = self.flights.iter().flatten().filter(is_stuck).map(|flight| &flight.job);
        let stuck: Vec<&Job> = stuck.collect();
        let error = Error::transport(NAME, LATE);
        stuck.iter().for_each(|job| job.fail_connection(&error));
        if !stuck.is_empty() {
            self.reopen(LATE);
        }
    }

    /// Fails the connections on which nothing has moved for too long, and what is under way on them.
    pub(super) fn leave_silent_peers(&mut self, now: Instant) {
        let is_silent = |flight: &&Flight| {
            let heard = self.heard.get(&flight.job.peer).copied();
            let since = heard.map_or(flight.began, |heard| heard.max(flight.began)).max(self.awake_since);
            flight.given_up.is_none() && since + flight.patience <= now
        };
        let busy: HashSet<u64> = self.flights.iter().flatten().map(|flight| flight.job.peer).collect();
        let is_shut_out = |job: &&Job| {
            let since = self.blocked.get(&job.peer).filter(|_| !busy.contains(&job.peer));
            since.is_some_and(|&since| since.max(self.awake_since) + self.settings.silence <= now)
        };
        let silent = self.flights.iter().flatten().filter(is_silent).map(|flight| &flight.job);
        let silent: Vec<(Arc<Connection>, usize)> = silent
            .chain(self.waiting.iter().filter(is_shut_out))
            .map(|job| (Arc::clone(&job.counted.connection), job.counted.rail))
            .collect();
        for (connection, rail) in silent {
            let error = Error::transport(NAME, format!("nothing is heard of {}", connection.peer));
            connection.fail_on(rail, &error);
            // Another NIC may have found a cause before.
            if let Err(error) = connection.check() {
                self.give_up(&error, |job| Arc::ptr_eq(&job.counted.connection, &connection));
            }
        }
    }

    /// Of whom nothing waits nothing is known, whatever was refused before.
    pub(super) fn forget_refused(&mut self) {
        let waiting: HashSet<u64> = self.waiting.iter().map(|job| job.peer).collect();
        self.blocked.retain(|peer, _| waiting.contains(peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_beside_much_else_has_the_time_that_all_of_it_takes_within_bounds() {
        let settle = Duration::from_secs(2);
        let beside = |bytes| stretched(settle, ample_for(bytes, 3 << 30));
        assert_eq!(beside(0), settle);
        assert_eq!(beside(1 << 30), settle);
        // A second of the NIC's time, of which it is given four.
        assert_eq!(beside(3 << 30), Duration::from_secs(4));
        assert_eq!(beside(300 << 30), Duration::from_secs(8));
        assert_eq!(beside(u64::MAX), Duration::from_secs(8));
    }
}
