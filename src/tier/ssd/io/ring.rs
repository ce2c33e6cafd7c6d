//! io_uring: one thread owns the ring, takes requests from a list and tells who waits.
//!
//! A request keeps its memory in the table of the thread until the kernel said that it ended, whoever stopped waiting.
//! When the tier is dropped the thread ends after the last request did.

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

/// Marks the read of the event descriptor.
const WAKE: u64 = u64::MAX;

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
        let room = usize::try_from(depth).unwrap_or(1).saturating_sub(1).max(1);
        let worker = Worker {
            ring,
            counter: WakeCounter::new(),
            shared: owned,
            under_way: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            running: 0,
            room,
            is_listening: false,
        };
        let thread = std::thread::Builder::new().name("ssd-ring".to_owned()).spawn(move || worker.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Leaves a request for the thread.
    pub(super) fn submit(&self, job: Job) {
        self.shared.wake(|arrivals| arrivals.jobs.push_back(job));
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.wake(|arrivals| arrivals.is_closed = true);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the SSD tier's ring had panicked");
        }
    }
}

/// What the thread holds. The ring is dropped first: the kernel touches nothing after that.
struct Worker {
    ring: IoUring,
    counter: WakeCounter,
    shared: Arc<Shared>,
    /// Requests that the kernel has, by the number in their completion.
    under_way: Vec<Option<Job>>,
    free: Vec<usize>,
    waiting: VecDeque<Job>,
    running: usize,
    room: usize,
    is_listening: bool,
}

impl Worker {
    fn run(mut self) {
        loop {
            let is_closed = self.take_arrivals();
            if is_closed && self.waiting.is_empty() && self.running == 0 {
                return;
            }
            self.start_waiting();
            self.listen();
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
                Err(error) => {
                    tracing::error!(%error, "the SSD tier's ring failed; every request to its disks fails from now on");
                    return self.fail_for_good();
                }
            }
            self.reap();
        }
    }

    /// Takes what was submitted since the last look. Returns whether nothing more will be.
    fn take_arrivals(&mut self) -> bool {
        let mut arrivals = self.shared.arrivals.lock();
        arrivals.is_woken = false;
        self.waiting.append(&mut arrivals.jobs);
        arrivals.is_closed
    }

    /// Ends every request with an error, until nobody submits any more. What the kernel has cannot be taken back, so
    /// that memory is never freed.
    fn fail_for_good(mut self) {
        for job in self.under_way.drain(..).flatten() {
            let Job { transfer, completion } = job;
            std::mem::forget(transfer);
            completion.end_one(Err(io::ErrorKind::BrokenPipe.into()));
        }
        loop {
            let is_closed = self.take_arrivals();
            self.waiting.drain(..).for_each(|job| job.end(Err(io::ErrorKind::BrokenPipe.into())));
            if is_closed {
                return;
            }
            // Ends with the next wake-up; an error is tried again a little later.
            if self.shared.event.read().is_err() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    /// Hands requests to the kernel, as many as it takes.
    fn start_waiting(&mut self) {
        while self.running < self.room
            && let Some(job) = self.waiting.pop_front()
        {
            let index = self.free.pop().unwrap_or_else(|| {
                self.under_way.push(None);
                self.under_way.len() - 1
            });
            let entry = job.transfer.entry().user_data(index as u64);
            if push(&mut self.ring, &entry).is_err() {
                self.free.push(index);
                self.waiting.push_front(job);
                return;
            }
            self.under_way[index] = Some(job);
            self.running += 1;
        }
    }

    /// Has the kernel say when somebody wakes the thread.
    fn listen(&mut self) {
        if !self.is_listening {
            let entry = self.counter.entry(self.shared.event.as_raw_fd()).user_data(WAKE);
            self.is_listening = push(&mut self.ring, &entry).is_ok();
        }
    }

    fn reap(&mut self) {
        let answers: Vec<(u64, i32)> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (index, answer) in answers {
            if index == WAKE {
                self.is_listening = false;
                continue;
            }
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            let Some(mut job) = self.under_way.get_mut(index).and_then(Option::take) else { continue };
            self.running -= 1;
            self.free.push(index);
            match job.transfer.advance(i64::from(answer)) {
                Some(outcome) => job.end(outcome),
                None => self.waiting.push_front(job),
            }
        }
    }
}
