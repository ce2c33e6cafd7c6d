//! Threads that read and write, where there is no ring.
//!
//! Limits: a file that has no answer for now (EAGAIN) is asked again after a pause of `PAUSE_MIN` to `PAUSE_MAX`, for as long as
//! anybody waits for it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Job;

/// How long a thread pauses before it asks a file again that had no answer, the first time and at most.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
struct Line {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    /// Guards the requests that wait for a thread.
    line: Mutex<Line>,
    arrived: Condvar,
}

/// Running threads. Dropping it waits for those that were not [taken](Pool::close), until every request ended.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// What starting a thread says.
    pub(super) fn start(count: usize) -> io::Result<Self> {
        // Those that are there end when a further one cannot be started.
        let mut pool = Self { shared: Arc::default(), threads: Vec::with_capacity(count) };
        for index in 0..count {
            let shared = Arc::clone(&pool.shared);
            let thread = thread::Builder::new().name(format!("ssd-io-{index}"));
            pool.threads.push(thread.spawn(move || work(&shared))?);
        }
        Ok(pool)
    }

    /// Leaves a request for a thread.
    pub(super) fn submit(&self, job: Job) {
        self.shared.line.lock().jobs.push_back(job);
        self.shared.arrived.notify_one();
    }

    /// Nothing more is submitted. Returns the threads, which end when every request has.
    pub(super) fn close(&mut self) -> Vec<JoinHandle<()>> {
        self.shared.line.lock().is_closed = true;
        self.shared.arrived.notify_all();
        std::mem::take(&mut self.threads)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Only one that no disk was given has its threads still.
        for thread in self.close() {
            if thread.join().is_err() {
                tracing::error!("a thread of the SSD tier had panicked");
            }
        }
    }
}

fn work(shared: &Shared) {
    loop {
        let job = {
            let mut line = shared.line.lock();
            loop {
                if let Some(job) = line.jobs.pop_front() {
                    break job;
                }
                if line.is_closed {
                    return;
                }
                shared.arrived.wait(&mut line);
            }
        };
        move_bytes(job);
    }
}

/// Does what a request asks for, unless nobody waits for it when it is begun, or when its file has no answer for now.
fn move_bytes(job: Job) {
    let Some(mut job) = job.if_wanted() else { return };
    let mut pause = PAUSE_MIN;
    loop {
        let answer = job.transfer.call();
        if let Some(outcome) = job.transfer.advance(answer) {
            return job.end(outcome);
        }
        if answer == -i64::from(libc::EAGAIN) {
            thread::sleep(pause);
            pause = PAUSE_MAX.min(pause * 2);
            let Some(wanted) = job.if_wanted() else { return };
            job = wanted;
        }
    }
}
