//! What a start that takes long says: how far it is, in the log, and that it gets on at all, on standard output.
//!
//! Who waits for the mount takes a daemon for stuck that says nothing. A log may be silent by its level, and what takes long need
//! not know how far it is, so that a thread says it for all of the start. It says nothing of a process that neither runs nor reads:
//! that one hangs, as behind a disk that does not answer.
//!
//! Threads: `starting`, which lives as long as [`Starting`].

use std::cell::Cell;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use libc::c_long;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use super::tell;

/// How often it is said.
const INTERVAL: Duration = Duration::from_secs(10);

/// Time on processors in an interval, in microseconds, that threads which only wait do not come to.
const BUSY_MIN_US: i64 = 10_000;

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

/// What this process has done so far.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    /// Time on processors, in microseconds.
    busy_us: i64,
    /// Blocks read from disks.
    blocks: c_long,
}

impl Work {
    fn so_far() -> Self {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Self::default() };
        let busy = usage.user_time() + usage.system_time();
        Self { busy_us: busy.num_microseconds(), blocks: usage.block_reads() }
    }

    fn gets_on_since(self, before: Self) -> bool {
        self.blocks > before.blocks || self.busy_us - before.busy_us >= BUSY_MIN_US
    }
}

/// A start that goes on: while this lives, standard output is told so every now and then.
#[derive(Debug)]
pub(super) struct Starting {
    /// Gone at the end, which wakes the thread.
    goes_on: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Starting {
    pub(super) fn begin() -> Self {
        let (began, mut before) = (Instant::now(), Work::so_far());
        Self::every(INTERVAL, move || {
            let now = Work::so_far();
            if now.gets_on_since(before) {
                let seconds = began.elapsed().as_secs();
                tell(io::stdout(), format_args!("tidefs: starting, {seconds} s so far"));
            }
            before = now;
        })
    }

    fn every(interval: Duration, mut look: impl FnMut() + Send + 'static) -> Self {
        let (goes_on, end) = channel::<()>();
        let looks = move || {
            while end.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                look();
            }
        };
        // Where no thread can be started, the start itself tells of that, or does without.
        let thread = thread::Builder::new().name("starting".to_owned()).spawn(looks).ok();
        Self { goes_on: Some(goes_on), thread }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        drop(self.goes_on.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that says that a start goes on had panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_looked_at_until_it_ends_and_not_after() {
        let (looked, looks) = channel();
        let starting = Starting::every(Duration::from_millis(1), move || {
            // An error is the end of this test.
            let _ = looked.send(());
        });
        for _ in 0..3 {
            looks.recv_timeout(Duration::from_secs(30)).expect("it is looked at again");
        }
        drop(starting);
        while looks.try_recv().is_ok() {}
        assert!(looks.recv().is_err(), "nobody is left to look");
    }

    #[test]
    fn a_process_gets_on_that_runs_or_reads_and_not_one_whose_threads_wait() {
        let work = |busy_us, blocks| Work { busy_us, blocks };
        let before = work(5_000_000, 700);
        assert!(!work(5_000_000, 700).gets_on_since(before));
        assert!(!work(5_000_000 + BUSY_MIN_US - 1, 700).gets_on_since(before));
        assert!(work(5_000_000 + BUSY_MIN_US, 700).gets_on_since(before));
        assert!(work(5_000_000, 701).gets_on_since(before));
    }

    #[test]
    fn what_this_process_does_is_seen() {
        let (before, began) = (Work::so_far(), Instant::now());
        while !Work::so_far().gets_on_since(before) {
            assert!(began.elapsed() < Duration::from_secs(30), "{before:?}");
        }
    }
}
