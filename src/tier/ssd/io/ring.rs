//! io_uring: one thread owns the ring, takes requests from a list and tells who waits.
//!
//! A request keeps its memory in the table of the thread until the kernel said that it ended, whoever stopped waiting.
//! The thread ends after the last request did.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use io_uring::{IoUring, opcode};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use super::Job;
use super::ffi::{WakeCounter, push};
use super::requests::{Requests, WAKE, is_passing};

#[derive(Debug, Default)]
struct Arrivals {
    jobs: VecDeque<Job>,
    is_closed: bool,
    /// Whether the thread was woken and has not looked yet.
    is_woken: bool,
}

#[derive(Debug)]
struct Shared {
    /// Guards what waits to be taken by the thread.
    arrivals: Mutex<Arrivals>,
    event: EventFd,
}

impl Shared {
    fn wake(&self, change: impl FnOnce(&mut Arrivals)) {
        let was_woken = {
            let mut arrivals = self.arrivals.lock();
            change(&mut arrivals);
            std::mem::replace(&mut arrivals.is_woken, true)
        };
        if !was_woken && let Err(error) = self.event.write(1) {
            tracing::error!(%error, "the SSD tier's ring could not be woken");
        }
    }
}

/// A running ring.
#[derive(Debug)]
pub(super) struct Ring {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Ring {
    /// Makes a ring and its thread, if the kernel allows it.
    ///
    /// # Errors
    /// What io_uring_setup(2) says; `Unsupported` when the kernel lacks an operation.
    pub(super) fn start(depth: u32) -> io::Result<Self> {
        let ring = IoUring::new(depth)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        for code in [opcode::Readv::CODE, opcode::Writev::CODE, opcode::Fsync::CODE, opcode::Read::CODE] {
            if !probe.is_supported(code) {
                return Err(io::ErrorKind::Unsupported.into());
            }
        }
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?;
        let shared = Arc::new(Shared { arrivals: Mutex::default(), event });
        let owned = Arc::clone(&shared);
        let worker = Worker {
            requests: Requests::new(ring, depth),
            counter: WakeCounter::new(),
            shared: owned,
            is_listening: false,
        };
        let thread = std::thread::Builder::new().name("ssd-ring".to_owned()).spawn(move || worker.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Leaves a request for the thread.
    pub(super) fn submit(&self, job: Job) {
        self.shared.wake(|arrivals| arrivals.jobs.push_back(job));
    }

    /// Nothing more is submitted. Returns the thread, which ends when every request has.
    pub(super) fn close(&mut self) -> Option<JoinHandle<()>> {
        self.shared.wake(|arrivals| arrivals.is_closed = true);
        self.thread.take()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Only one that no disk was given has its thread still.
        if self.close().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the SSD tier's ring had panicked");
        }
    }
}

/// What the thread holds. The ring is dropped first: the kernel touches nothing after that.
struct Worker {
    requests: Requests,
    counter: WakeCounter,
    shared: Arc<Shared>,
    is_listening: bool,
}

impl Worker {
    fn run(mut self) {
        loop {
            let is_closed = self.take_arrivals();
            if is_closed && self.requests.is_idle() {
                return;
            }
            self.requests.start_waiting();
            self.listen();
            match self.requests.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(error) => {
                    tracing::error!(%error, "the SSD tier's ring failed; every request to its disks fails from now on");
                    return self.fail_for_good();
                }
            }
            if self.requests.reap() {
                self.is_listening = false;
            }
        }
    }

    /// Takes what was submitted since the last look. Returns whether nothing more will be.
    fn take_arrivals(&mut self) -> bool {
        let mut arrivals = self.shared.arrivals.lock();
        arrivals.is_woken = false;
        self.requests.waiting.append(&mut arrivals.jobs);
        arrivals.is_closed
    }

    /// Ends every request with an error, until nobody submits any more.
    fn fail_for_good(mut self) {
        loop {
            self.requests.give_up();
            let is_closed = self.take_arrivals();
            if is_closed {
                return self.requests.give_up();
            }
            // Ends with the next wake-up; an error is tried again a little later.
            if self.shared.event.read().is_err() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    /// Has the kernel say when somebody wakes the thread.
    fn listen(&mut self) {
        if !self.is_listening {
            let entry = self.counter.entry(self.shared.event.as_raw_fd()).user_data(WAKE);
            self.is_listening = push(&mut self.requests.ring, &entry).is_ok();
        }
    }
}
