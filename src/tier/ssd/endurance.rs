//! Bytes a day, so that a disk lasts as long as it was bought for.
//!
//! Nothing is held back while the day's writes, continued at their present rate, stay within the budget. Once they would
//! pass it, what is left of the budget is spread evenly over what is left of the day.
//!
//! Pure but for the clock it is given. Days are counted from the first start of the daemon; a later one goes on with the day.

use std::time::Duration;

use tidefs_engine::types::ByteCount;

use super::bucket::Bucket;

/// How long a budget lasts.
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How far back the present rate looks: a burst of some minutes is no trend.
const MEMORY: Duration = Duration::from_secs(2 * 60 * 60);
/// How often the rate is looked at.
const LOOK: Duration = Duration::from_secs(10);
/// Seconds of the even rate that may be written at once.
const BURST_S: u64 = 60;

/// The budget at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DayStatus {
    /// Bytes that may be written in a day.
    pub budget: ByteCount,
    /// Bytes written in this day.
    pub written: ByteCount,
    /// What it will be at the end of the day, at the present rate.
    pub projected: ByteCount,
    /// Whether less is admitted because of that.
    pub is_tight: bool,
}

/// What was used of a day before a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Earlier {
    /// Since when the day counts.
    pub(super) age: Duration,
    /// Bytes written in it.
    pub(super) written: u64,
}

/// The state of the budget of one disk. Its clock runs from the beginning of the day that it was made in.
#[derive(Debug)]
pub(super) struct Endurance {
    per_day: u64,
    /// What an earlier daemon used of the first day.
    earlier: Earlier,
    day_began: Duration,
    /// Bytes that the disk had written when the day began.
    written_before: u64,
    /// Bytes a second, averaged.
    rate: f64,
    looked_at: Duration,
    looked_written: u64,
    bucket: Bucket,
}

impl Endurance {
    /// A day of which `earlier` is over at `now`.
    pub(super) fn new(per_day: ByteCount, now: Duration, earlier: Earlier) -> Self {
        Self {
            per_day: per_day.get(),
            earlier,
            day_began: now,
            written_before: 0,
            rate: earlier.written as f64 / earlier.age.max(MEMORY).as_secs_f64(),
            looked_at: now + earlier.age,
            looked_written: earlier.written,
            bucket: Bucket::new(0, now + earlier.age),
        }
    }

    /// The same with what was before this daemon.
    fn with_earlier(&self, written: u64, now: Duration) -> (u64, Duration) {
        (written.saturating_add(self.earlier.written), now + self.earlier.age)
    }

    /// Takes `length` bytes out of the budget, if it is tight. `written`: all bytes that the disk wrote so far.
    pub(super) fn admits(&mut self, length: u64, written: u64, now: Duration) -> bool {
        let (written, now) = self.with_earlier(written, now);
        self.look(written, now);
        if !self.status_at(written.saturating_add(length), now).is_tight {
            return true;
        }
        let left_s = self.left_s(now);
        let left = self.per_day.saturating_sub(written.saturating_sub(self.written_before));
        let even = left / left_s.max(1);
        length <= left && self.bucket.take(length, even, even.saturating_mul(BURST_S), now)
    }

    fn look(&mut self, written: u64, now: Duration) {
        while now.saturating_sub(self.day_began) >= DAY {
            self.day_began += DAY;
            self.written_before = written;
        }
        let passed = now.saturating_sub(self.looked_at);
        if passed >= LOOK {
            let seen = written.saturating_sub(self.looked_written) as f64 / passed.as_secs_f64();
            let weight = 1.0 - (-passed.as_secs_f64() / MEMORY.as_secs_f64()).exp();
            self.rate += (seen - self.rate) * weight;
            (self.looked_at, self.looked_written) = (now, written);
        }
    }

    fn left_s(&self, now: Duration) -> u64 {
        (self.day_began + DAY).saturating_sub(now).as_secs()
    }

    /// What is used of the present day.
    pub(super) fn used(&mut self, written: u64, now: Duration) -> Earlier {
        let (written, now) = self.with_earlier(written, now);
        self.look(written, now);
        let age = now.saturating_sub(self.day_began);
        Earlier { age, written: written.saturating_sub(self.written_before) }
    }

    /// The budget now.
    pub(super) fn status(&self, written: u64, now: Duration) -> DayStatus {
        let (written, now) = self.with_earlier(written, now);
        self.status_at(written, now)
    }

    fn status_at(&self, written: u64, now: Duration) -> DayStatus {
        let written = written.saturating_sub(self.written_before);
        let coming = self.rate * self.left_s(now) as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast saturates, and no rate is negative"
        )]
        let projected = written.saturating_add(coming as u64);
        DayStatus {
            budget: ByteCount(self.per_day),
            written: ByteCount(written),
            projected: ByteCount(projected),
            is_tight: projected > self.per_day,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Offers `rate` bytes a second, in records of a second's bytes, from `from` on for `seconds`. Returns what was
    /// written in the end.
    fn offer(endurance: &mut Endurance, mut written: u64, rate: u64, from: u64, seconds: u64) -> u64 {
        for second in from..from + seconds {
            if endurance.admits(rate, written, Duration::from_secs(second)) {
                written += rate;
            }
        }
        written
    }

    #[test]
    fn what_stays_within_the_day_is_not_held_back() {
        let mut endurance = Endurance::new(ByteCount(100 * GIB), Duration::ZERO, Earlier::default());
        // A burst ten times the even rate for five minutes, then half of the even rate.
        let even = 100 * GIB / 86_400;
        let burst = offer(&mut endurance, 0, even * 10, 0, 300);
        assert_eq!(burst, even * 10 * 300);
        let written = offer(&mut endurance, burst, even / 2, 300, 20_000);
        assert_eq!(written, burst + even / 2 * 20_000);
        assert!(!endurance.status(written, Duration::from_secs(20_300)).is_tight);
    }

    #[test]
    fn a_day_that_would_pass_its_budget_ends_within_it_and_writes_most_of_it() {
        let mut endurance = Endurance::new(ByteCount(100 * GIB), Duration::ZERO, Earlier::default());
        let even = 100 * GIB / 86_400;
        let written = offer(&mut endurance, 0, even * 20, 0, 86_400);
        assert!(written <= 100 * GIB, "{}", written / GIB);
        assert!(written >= 90 * GIB, "{}", written / GIB);
        let status = endurance.status(written, Duration::from_secs(86_399));
        assert_eq!(status.written, ByteCount(written));
    }

    #[test]
    fn a_restart_goes_on_with_the_day() {
        let per_day = ByteCount(100 * GIB);
        let mut endurance = Endurance::new(per_day, Duration::ZERO, Earlier::default());
        let even = 100 * GIB / 86_400;
        let (mut written, mut earlier) = (0, Earlier::default());
        // Twelve lives of nearly two hours.
        for _ in 0..12 {
            written += offer(&mut endurance, 0, even * 20, 0, 7100);
            earlier = endurance.used(written - earlier.written, Duration::from_secs(7100));
            assert_eq!(earlier.written, written);
            endurance = Endurance::new(per_day, Duration::ZERO, earlier);
        }
        assert!((90 * GIB..=100 * GIB).contains(&written), "{}", written / GIB);
    }

    #[test]
    fn a_new_day_begins_with_its_whole_budget() {
        let mut endurance = Endurance::new(ByteCount(GIB), Duration::ZERO, Earlier::default());
        let written = offer(&mut endurance, 0, GIB / 100, 0, 86_400);
        assert!(endurance.admits(1, written, DAY + Duration::from_secs(1)) || written <= GIB);
        assert_eq!(endurance.status(written, DAY + Duration::from_secs(1)).written, ByteCount::ZERO);
    }
}
