//! Requests around one ring: those that the kernel has, and those that wait until it takes more.
//!
//! Invariant: the memory of a request that the kernel has is kept until the kernel said that it ended, or for ever.

use std::collections::VecDeque;
use std::io;

use io_uring::IoUring;

use super::Job;
use super::ffi::push;

/// Marks what is no request but wakes the thread.
pub(super) const WAKE: u64 = u64::MAX;

/// Whether a submit is to be tried again.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN | libc::ETIME))
}

/// A ring with its requests. The ring is dropped first: the kernel takes nothing after that.
pub(super) struct Requests {
    pub(super) ring: IoUring,
    /// Requests that the kernel has, by the number in their completion.
    under_way: Vec<Option<Job>>,
    free: Vec<usize>,
    pub(super) waiting: VecDeque<Job>,
    running: usize,
    room: usize,
}

impl Requests {
    /// No request yet around a ring of `depth` entries, of which one is left for whatever wakes its thread.
    pub(super) fn new(ring: IoUring, depth: u32) -> Self {
        let room = usize::try_from(depth).unwrap_or(1).saturating_sub(1).max(1);
        Self { ring, under_way: Vec::new(), free: Vec::new(), waiting: VecDeque::new(), running: 0, room }
    }

    /// Whether there is nothing to wait for.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running == 0
    }

    /// Whether the kernel has requests for which nobody waits any more.
    pub(super) fn has_abandoned(&self) -> bool {
        self.running > 0 && self.under_way.iter().flatten().any(|job| job.completion.is_abandoned())
    }

    /// Hands requests to the kernel at its next submit, as many as it takes.
    pub(super) fn start_waiting(&mut self) {
        while self.running < self.room
            && let Some(job) = self.waiting.pop_front()
        {
            let Some(job) = job.if_wanted() else { continue };
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

    /// Ends the requests that the kernel has ended. Returns whether it was woken, too.
    pub(super) fn reap(&mut self) -> bool {
        let mut is_woken = false;
        let answers: Vec<(u64, i32)> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (index, answer) in answers {
            if index == WAKE {
                is_woken = true;
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
        is_woken
    }

    /// Ends everything with an error. What the kernel has cannot be taken back, so that memory is never freed.
    pub(super) fn give_up(&mut self) {
        for job in self.under_way.drain(..).flatten() {
            let Job { transfer, completion } = job;
            std::mem::forget(transfer);
            completion.end_one(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.running = 0;
        self.free.clear();
        self.waiting.drain(..).for_each(|job| job.end(Err(io::ErrorKind::BrokenPipe.into())));
    }
}
