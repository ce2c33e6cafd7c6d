//! Whether the processors have time for work that nobody waits for.
//!
//! Idle priority does not answer that where a piece of such work cannot be interrupted: while a virtual machine waits for memory
//! of its host, the processor that touched it does nothing else.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(100);
/// With so many of them idle, all have time: whoever wakes finds another one.
const IDLE_ENOUGH: u64 = 4;
/// What [`Times`] are counted in (proc_stat(5), `USER_HZ`).
const TICK: Duration = Duration::from_millis(10);

/// What processors did since the machine started, in ticks, and how many there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Times {
    idle: u64,
    all: u64,
    count: u64,
}

/// What a thread that works aside knows of the processors.
#[derive(Debug, Default)]
pub(super) struct Processors {
    times: Times,
    /// Processor time of this thread, in ticks.
    own: u64,
    have_time: bool,
    /// When it is looked again.
    look: Duration,
}

impl Processors {
    /// Whether, since it was looked last, work other than the calling thread's left enough of them idle. The first time nothing
    /// is known, and they have none.
    pub(super) fn have_time(&mut self, now: Duration) -> bool {
        if now >= self.look {
            self.look = now + LOOK;
            let times = File::open("/proc/stat").ok().and_then(|file| read_times(BufReader::new(file)));
            // Where nothing tells of it, as in some sandboxes, idle priority has to do.
            let Some(times) = times else {
                self.have_time = true;
                return true;
            };
            let own = own_ticks();
            let ran = own.saturating_sub(self.own);
            self.have_time = self.times.count > 0 && leave_enough(self.times, times, ran);
            (self.times, self.own) = (times, own);
        }
        self.have_time
    }
}

/// Whether between two looks, during which the asking thread ran for `own` ticks, at least three quarters of the processors,
/// or [`IDLE_ENOUGH`] of them, had nothing else to do.
fn leave_enough(before: Times, after: Times, own: u64) -> bool {
    let passed = after.all.saturating_sub(before.all);
    let left = after.idle.saturating_sub(before.idle).saturating_add(own);
    let enough = (after.count * 3).min(IDLE_ENOUGH * 4);
    left * 4 * after.count >= passed * enough
}

/// What the lines of /proc/stat say of processors: all of them first, then each.
fn read_times(stat: impl BufRead) -> Option<Times> {
    let mut lines = stat.lines().map_while(Result::ok).take_while(|line| line.starts_with("cpu"));
    let all = lines.next()?;
    // user nice system idle iowait irq softirq steal; what guests had is within the first two.
    let ticks: Vec<u64> =
        all.split_whitespace().skip(1).take(8).map_while(|field| field.parse().ok()).collect();
    let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
    Some(Times { idle, all: ticks.iter().sum(), count: lines.count() as u64 })
}

fn own_ticks() -> u64 {
    let own = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from);
    u64::try_from(own.as_millis() / TICK.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  10 1 20 300 40 5 6 7 2 1\ncpu0 5 0 10 150 20 2 3 3 1 0\ncpu1 5 1 10 150 20 3 3 4 1 1\nintr 9\ncpu9 1\n";

    #[test]
    fn what_processors_did_is_read_from_the_lines_of_stat() {
        assert_eq!(read_times(STAT.as_bytes()), Some(Times { idle: 340, all: 389, count: 2 }));
        for none in ["", "intr 9\n", "cpu  10 1 20 300\n", "cpu  10 1 20 many 40\n"] {
            assert_eq!(read_times(none.as_bytes()), None, "{none:?}");
        }
    }

    #[test]
    fn three_quarters_or_four_idle_processors_are_time_and_the_own_work_takes_none_of_it() {
        // In a second, in which so many ticks passed on all processors together.
        let looked = |count: u64, idle: u64, own: u64| {
            let after = Times { idle: 1_000 + idle, all: 5_000 + count * 100, count };
            leave_enough(Times { idle: 1_000, all: 5_000, count }, after, own)
        };
        assert!(looked(2, 150, 0) && !looked(2, 149, 0));
        assert!(looked(2, 70, 80) && !looked(2, 70, 79), "what this thread did");
        assert!(looked(1, 75, 0) && !looked(1, 74, 0));
        assert!(looked(64, 400, 0) && !looked(64, 399, 0), "others find one of four");
    }

    #[test]
    fn nothing_is_known_at_first_and_it_is_looked_again_after_a_while_alone() {
        let mut processors = Processors::default();
        assert!(!processors.have_time(Duration::ZERO));
        let first = processors.times;
        assert!(first.count > 0 && first.all >= first.idle, "{first:?}");
        for (now, next_look) in [(LOOK - Duration::from_nanos(1), LOOK), (LOOK, LOOK * 2)] {
            processors.have_time(now);
            assert_eq!(processors.look, next_look);
        }
        assert!(processors.times.all >= first.all);
    }
}
