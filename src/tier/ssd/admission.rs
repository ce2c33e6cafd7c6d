//! Which evicted objects are written: as many as the disk takes in good time, and the budget of bytes allows.
//!
//! Pure but for the clock it is given: what is refused is dropped, and costs a hit; nobody ever waits here.
//!
//! Limits: a record is admitted while those before it are written within the queue-time budget, at the rate the disk has
//! shown, and hold at most `queue_bytes_max`. The byte-rate budget fills a bucket of one second. All bytes are those that records
//! count ([`super::queue::cost_of`]): what a small one takes is not its data.

use std::time::Duration;

use tidefs_engine::types::ByteCount;

use super::bucket::Bucket;
use super::endurance::{DayStatus, Earlier, Endurance};

/// Rate that a disk is taken to have before it has shown one: a slow SSD.
const RATE_AT_START: u64 = 200 << 20;
/// Weight of a new measurement of the rate, as one part in so many.
const RATE_WEIGHT: u64 = 8;
/// Fewer bytes than these that a disk writes without a pause say more about latency than about the rate.
const MEASURED_MIN: u64 = 64 << 10;

/// What may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes a second; no limit without.
    pub bytes_per_second: Option<ByteCount>,
    /// Bytes a day; no limit without. See [`DayStatus`].
    pub bytes_per_day: Option<ByteCount>,
    /// Longest time a record waits for its disk.
    pub queue: Duration,
    /// Most bytes of records that wait: they hold memory.
    pub queue_bytes_max: ByteCount,
}

/// Why a record is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The disks have enough to do.
    QueueFull,
    /// The byte-rate budget is used up.
    OverRate,
    /// The budget of the day would be passed.
    OverDay,
    /// Larger than a zone holds.
    TooLarge,
    /// This version is on its way already.
    Underway,
    /// Its key, or what the owner keeps beside it, is longer than a record takes.
    KeyTooLong,
    /// No disk takes anything.
    NoDevice,
}

/// The state of the budgets.
#[derive(Debug)]
pub(super) struct Admission {
    budget: Budget,
    bucket: Bucket,
    endurance: Option<Endurance>,
    rate: u64,
    /// Bytes that the disk wrote without a pause since the rate was last measured, and the time that it took.
    unmeasured: (u64, Duration),
}

impl Admission {
    /// Full budgets at `now`, but for what was used `earlier` of the day.
    pub(super) fn new(budget: Budget, now: Duration, earlier: Earlier) -> Self {
        let bucket = Bucket::new(budget.bytes_per_second.unwrap_or_default().get(), now);
        let endurance = budget.bytes_per_day.map(|per_day| Endurance::new(per_day, now, earlier));
        Self { budget, bucket, endurance, rate: RATE_AT_START, unmeasured: (0, Duration::ZERO) }
    }

    /// What admits nothing, until it is replaced.
    pub(super) fn closed() -> Self {
        let nothing = Some(ByteCount::ZERO);
        let queue = Duration::ZERO;
        let budget = Budget {
            bytes_per_second: nothing,
            bytes_per_day: None,
            queue,
            queue_bytes_max: ByteCount::ZERO,
        };
        Self::new(budget, Duration::ZERO, Earlier::default())
    }

    /// Takes `length` bytes out of the budgets, if they allow it. `queued`: bytes that wait for the disk; `written`: all
    /// that it wrote since the start.
    ///
    /// # Errors
    /// Which budget does not.
    pub(super) fn admit(
        &mut self,
        length: ByteCount,
        queued: u64,
        written: u64,
        now: Duration,
    ) -> Result<(), Refused> {
        if !self.has_room(length, queued) {
            return Err(Refused::QueueFull);
        }
        self.admit_promised(length, queued, written, now)
    }

    /// The same of what was told that the queue has room for it, whoever was faster since then.
    ///
    /// # Errors
    /// Which budget does not.
    pub(super) fn admit_promised(
        &mut self,
        length: ByteCount,
        queued: u64,
        written: u64,
        now: Duration,
    ) -> Result<(), Refused> {
        // The bucket holds a second. Nothing is taken out of one budget that the other refuses.
        let rate = self.budget.bytes_per_second.map(ByteCount::get);
        if rate.is_some_and(|rate| !self.bucket.has(length.get(), rate, rate, now)) {
            return Err(Refused::OverRate);
        }
        let day = self.endurance.as_mut();
        if day.is_some_and(|day| !day.admits(length.get(), written.saturating_add(queued), now)) {
            return Err(Refused::OverDay);
        }
        if let Some(rate) = rate {
            self.bucket.take(length.get(), rate, rate, now);
        }
        Ok(())
    }

    /// The budget of the day, when there is one.
    pub(super) fn day(&self, written: u64, now: Duration) -> Option<DayStatus> {
        self.endurance.as_ref().map(|endurance| endurance.status(written, now))
    }

    /// What is used of the budget of the day, when there is one.
    pub(super) fn used(&mut self, written: u64, now: Duration) -> Option<Earlier> {
        self.endurance.as_mut().map(|endurance| endurance.used(written, now))
    }

    /// Whether the queue takes `length` bytes more. One record at least may be on its way, however slow the disk.
    pub(super) fn has_room(&self, length: ByteCount, queued: u64) -> bool {
        let after = queued.saturating_add(length.get());
        queued == 0
            || (after <= self.budget.queue_bytes_max.get() && self.drain_time(after) <= self.budget.queue)
    }

    /// The disk wrote `bytes` in `elapsed`. `was_busy`: it had them to write already when it ended what was before them.
    pub(super) fn measured(&mut self, bytes: u64, elapsed: Duration, was_busy: bool) {
        let before = std::mem::take(&mut self.unmeasured);
        let (bytes_before, elapsed_before) = if was_busy { before } else { (0, Duration::ZERO) };
        let (bytes, elapsed) = (bytes_before.saturating_add(bytes), elapsed_before.saturating_add(elapsed));
        if bytes < MEASURED_MIN {
            self.unmeasured = (bytes, elapsed);
            return;
        }
        let elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1);
        let seen = bytes.saturating_mul(1_000_000) / elapsed_us;
        self.rate = (self.rate / RATE_WEIGHT * (RATE_WEIGHT - 1) + seen / RATE_WEIGHT).max(1);
    }

    /// Bytes a second that the disk has shown.
    pub(super) fn rate(&self) -> ByteCount {
        ByteCount(self.rate)
    }

    fn drain_time(&self, bytes: u64) -> Duration {
        Duration::from_micros(bytes.saturating_mul(1_000_000) / self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: ByteCount = ByteCount::mib(1);

    fn budget(rate: Option<u64>) -> Budget {
        Budget {
            bytes_per_second: rate.map(ByteCount::mib),
            bytes_per_day: None,
            queue: Duration::from_millis(100),
            queue_bytes_max: ByteCount::mib(64),
        }
    }

    #[test]
    fn a_slow_disk_admits_less_and_never_nothing() {
        let mut admission = Admission::new(budget(None), Duration::ZERO, Earlier::default());
        assert_eq!(admission.admit(MIB, 18 << 20, 0, Duration::ZERO), Ok(()));
        assert_eq!(admission.admit(MIB, 20 << 20, 0, Duration::ZERO), Err(Refused::QueueFull));
        (0..100).for_each(|_| admission.measured(1 << 20, Duration::from_millis(100), false));
        assert_eq!(admission.admit(MIB, 1 << 20, 0, Duration::ZERO), Err(Refused::QueueFull));
        assert_eq!(admission.admit(ByteCount::gib(1), 0, 0, Duration::ZERO), Ok(()));
        (0..100).for_each(|_| admission.measured(1 << 20, Duration::from_micros(100), false));
        assert_eq!(admission.admit(MIB, 62 << 20, 0, Duration::ZERO), Ok(()));
        assert_eq!(admission.admit(MIB, 64 << 20, 0, Duration::ZERO), Err(Refused::QueueFull));
    }

    #[test]
    fn small_records_that_keep_a_disk_busy_show_its_rate_and_those_that_come_alone_do_not() {
        let mut admission = Admission::new(budget(None), Duration::ZERO, Earlier::default());
        let (bytes, taken) = (8192, Duration::from_millis(8));
        (0..2000).for_each(|_| admission.measured(bytes, taken, false));
        assert_eq!(admission.rate(), ByteCount(RATE_AT_START));
        (0..2000).for_each(|_| admission.measured(bytes, taken, true));
        let rate = admission.rate().get();
        assert!((1_000_000..1_050_000).contains(&rate), "{rate} bytes a second, and not 1,024,000");
    }

    #[test]
    fn the_byte_rate_is_kept_over_time() {
        let mut admission = Admission::new(budget(Some(10)), Duration::ZERO, Earlier::default());
        let mut admitted = 0;
        for step in 0..10_000u64 {
            admitted += u64::from(admission.admit(MIB, 0, 0, Duration::from_millis(step)).is_ok());
        }
        // Ten seconds at 10 MiB/s, and the bucket that was full at the start.
        assert!((100..=110).contains(&admitted), "{admitted}");
    }

    #[test]
    fn what_the_rate_refuses_takes_nothing_of_the_day() {
        let budget = Budget { bytes_per_day: Some(ByteCount::gib(13)), ..budget(Some(1)) };
        let mut admission = Admission::new(budget, Duration::ZERO, Earlier::default());
        // So much in ten seconds that the day is tight: it gives 136 KiB a second, and a minute of these at once.
        let written = 2 << 30;
        let mut admit =
            |length: ByteCount, ms: u64| admission.admit(length, 0, written, Duration::from_millis(ms));
        assert_eq!(admit(MIB, 10_000), Ok(()));
        assert_eq!(admit(MIB, 40_000), Ok(()));
        for _ in 0..100 {
            assert_eq!(admit(ByteCount::kib(512), 40_000), Err(Refused::OverRate));
        }
        assert_eq!(admit(MIB, 41_000), Ok(()));
    }

    #[test]
    fn a_record_larger_than_a_second_of_budget_passes_once_in_a_while() {
        let mut admission = Admission::new(budget(Some(1)), Duration::ZERO, Earlier::default());
        let large = ByteCount::mib(50);
        assert_eq!(admission.admit(large, 0, 0, Duration::ZERO), Ok(()));
        assert_eq!(admission.admit(large, 0, 0, Duration::from_millis(500)), Err(Refused::OverRate));
        assert_eq!(admission.admit(large, 0, 0, Duration::from_secs(2)), Ok(()));
    }
}
