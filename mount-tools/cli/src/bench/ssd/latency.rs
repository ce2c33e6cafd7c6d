//! Latencies: of objects that come from the disk, and of those in memory while others go there.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use tidefs_engine::types::ByteCount;

use super::fio::{Fio, Pattern};
use super::subject::{Subject, objects_of, read_whole, remove_all};
use super::{Bench, HOT_SIZE, WRITE_DEPTH};
use crate::bench::error::Error;
use crate::bench::report::{Row, Target, Unit};
use crate::bench::statistics::{Spread, median_of, paired_ratios};

/// Objects that are read in memory while others go to the disk.
const HOT_OBJECTS: usize = 32;

impl Bench {
    /// Latency of open + read + close of an object on disk, against a read of fio and a copy.
    pub(super) fn measure_cold_reads(&mut self, size: ByteCount) -> Result<Row, Error> {
        let (count, bytes) = objects_of(size, self.sample)?;
        let (mut cold, mut plain) = (Vec::new(), Vec::new());
        self.progress.set_message("cold reads");
        let paths = self.subject.write("cold", count, bytes, &mut self.source)?;
        for round in 0..=self.rounds {
            let before = self.subject.lost()?;
            self.subject.evict(ByteCount((count * bytes) as u64))?;
            let target = &mut self.target;
            let mut latencies = nanoseconds(&paths, |path| read_whole(path, target.next(bytes)))?;
            let fio = self.fio.run(Pattern::RandomRead, 0, size, 1)?;
            let copies = vec![(); count];
            let mut copied = nanoseconds(&copies, |()| {
                let started = std::time::Instant::now();
                self.memory.copy_out(0, self.target.next(bytes));
                Ok(started.elapsed().as_secs_f64() * 1e6)
            })?;
            self.check_nothing_lost(before)?;
            if round > 0 {
                cold.push(median_of(&mut latencies) as f64 / 1e3);
                plain.push(fio.latency_us + median_of(&mut copied) as f64 / 1e3);
            }
            self.progress.inc(1);
        }
        remove_all(&paths)?;
        Ok(latency_row("open + read + close, cold", size, "fio + memcpy", [&cold, &plain], 1.0 / 1.3))
    }

    /// The 99th percentile of reads that memory serves: while objects go to the disk, while none do, and while fio writes,
    /// which shows what the machine adds.
    pub(super) fn measure_hits_beside_offload(&mut self, size: ByteCount) -> Result<[Row; 2], Error> {
        let (count, bytes) = objects_of(size, self.sample)?;
        let (_, hot_bytes) = objects_of(HOT_SIZE, HOT_SIZE)?;
        let hot = self.subject.write("hot", HOT_OBJECTS, hot_bytes, &mut self.source)?;
        for path in &hot {
            self.subject.pin(path)?;
        }
        let (mut busy, mut idle, mut beside_fio) = (Vec::new(), Vec::new(), Vec::new());
        self.progress.set_message("hits beside offload");
        for round in 0..=self.rounds as u64 {
            let before = self.subject.lost()?;
            let paths = self.subject.write(&format!("beside-{round}"), count, bytes, &mut self.source)?;
            let (sent, mut beside) = self
                .read_while(&hot, hot_bytes, |subject, _| subject.evict(ByteCount((count * bytes) as u64)))?;
            let (_, mut alone) = self.read_while(&hot, hot_bytes, |_, _| {
                std::thread::sleep(std::time::Duration::from_secs_f64(sent));
                Ok(0.0)
            })?;
            let (_, mut yardstick) = self.read_while(&hot, hot_bytes, |_, fio| {
                fio.run(Pattern::Write, round, size, WRITE_DEPTH).map(|reached| reached.rate)
            })?;
            remove_all(&paths)?;
            self.check_nothing_lost(before)?;
            if round > 0 {
                busy.push(percentile_99(&mut beside));
                idle.push(percentile_99(&mut alone));
                beside_fio.push(percentile_99(&mut yardstick));
            }
            self.progress.inc(1);
        }
        self.subject.unpin_and_remove(&hot)?;
        let row = |case, value: &[f64]| latency_row(case, HOT_SIZE, "idle", [value, &idle], 1.0 / 1.2);
        let yardstick = Row { target: None, ..row("the same beside fio's write", &beside_fio) };
        Ok([row("p99 of hits beside offload", &busy), yardstick])
    }

    /// Reads hot objects, again and again, until `work` ends on another thread. Returns what it says and how many
    /// nanoseconds each read took.
    fn read_while(
        &mut self,
        hot: &[PathBuf],
        bytes: usize,
        work: impl FnOnce(&Subject, &Fio) -> Result<f64, Error> + Send,
    ) -> Result<(f64, Vec<u64>), Error> {
        let is_over = AtomicBool::new(false);
        let Self { subject, fio, target, .. } = self;
        let (subject, fio) = (&*subject, &*fio);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let outcome = work(subject, fio);
                is_over.store(true, Ordering::Relaxed);
                outcome
            });
            let mut latencies = Vec::new();
            let mut outcome = Ok(());
            for path in hot.iter().cycle() {
                if is_over.load(Ordering::Relaxed) || outcome.is_err() {
                    break;
                }
                outcome = read_whole(path, target.next(bytes))
                    .map(|taken| latencies.push(whole_nanoseconds(taken)));
            }
            let done = worker.join().expect("the worker does not panic")?;
            outcome.map(|()| (done, latencies))
        })
    }
}

fn latency_row(
    case: &str,
    size: ByteCount,
    baseline_name: &'static str,
    [value, baseline]: [&[f64]; 2],
    least: f64,
) -> Row {
    Row {
        case: case.to_owned(),
        size: Some(size),
        threads: 1,
        placement: None,
        unit: Unit::Microseconds,
        value: Spread::of(value),
        baseline: Spread::of(baseline),
        baseline_name,
        // Inverted, so that above 1 the mount is faster, as in the rows of bytes a second.
        ratio: Spread::of(&paired_ratios(baseline, value)),
        memcpy_ratio: None,
        target: Some(Target::RatioAtLeast(least)),
    }
}

/// What `once` says of each item, in microseconds, as whole nanoseconds.
fn nanoseconds<T>(items: &[T], mut once: impl FnMut(&T) -> Result<f64, Error>) -> Result<Vec<u64>, Error> {
    items.iter().map(|item| once(item).map(whole_nanoseconds)).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a latency is above zero and below hours"
)]
fn whole_nanoseconds(microseconds: f64) -> u64 {
    (microseconds * 1e3) as u64
}

/// The 99th percentile, in microseconds. Zero without samples.
fn percentile_99(nanoseconds: &mut [u64]) -> f64 {
    let index = (nanoseconds.len() * 99 / 100).min(nanoseconds.len().saturating_sub(1));
    if nanoseconds.is_empty() { 0.0 } else { *nanoseconds.select_nth_unstable(index).1 as f64 / 1e3 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_hundred_is_above_the_99th_percentile() {
        let mut samples: Vec<u64> = (1..=1000).map(|micros| micros * 1000).rev().collect();
        assert_eq!(percentile_99(&mut samples), 991.0);
        assert_eq!(percentile_99(&mut [5000]), 5.0);
        assert_eq!(percentile_99(&mut []), 0.0);
    }

    #[test]
    fn a_latency_passes_at_the_ratio_of_its_baseline_and_not_above() {
        let row = |value: f64| latency_row("p99", HOT_SIZE, "idle", [&[value], &[100.0]], 1.0 / 1.2);
        assert_eq!(row(119.0).verdict(), crate::bench::report::Verdict::Pass);
        assert_eq!(row(121.0).verdict(), crate::bench::report::Verdict::Below);
    }
}
