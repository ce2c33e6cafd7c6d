//! A ring of the calling thread's own, for threads that wait for what they submit: a load then costs no hand-over to the
//! thread of the disk's ring and back, which takes longer than the disk for small objects.
//!
//! Invariants
//! - Only the thread that submitted drives its ring; who waits for another thread's ticket waits in vain, until its limit.
//! - What did not end in time stays in the table of the ring, and is looked after by [`settle`], and with the thread's next
//!   requests. Until then the thread's further requests go by the rings of their disks: the one that is late keeps places of
//!   this ring, and threads of the kernel that work for this one.
//! - Who never calls it is to load by the rings of the disks alone ([`looks_after`]): its ring would end with what is late.
//!
//! Limits: [`DEPTH`] requests are with the kernel at once; a thread that ends gives late ones [`LINGER`], then keeps their
//! memory for ever.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use io_uring::IoUring;
use io_uring::types::{SubmitArgs, Timespec};

use super::super::disk::Completion;
use super::Job;
use super::requests::{Requests, is_passing};

/// Requests of one thread that the kernel works on at once.
const DEPTH: u32 = 32;
/// How long the end of a thread waits for requests that ran out of time.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Default)]
enum Own {
    #[default]
    Untried,
    /// The kernel has no such ring for us.
    Refused,
    Ready(Box<OwnRing>),
}

thread_local! {
    /// The ring of this thread, made when it first submits.
    static RING: RefCell<Own> = const { RefCell::new(Own::Untried) };
    /// Whether this thread has called [`settle`], and so does again.
    static LOOKS_AFTER: Cell<bool> = const { Cell::new(false) };
}

struct OwnRing(Requests);

impl Drop for OwnRing {
    fn drop(&mut self) {
        let deadline = Instant::now() + LINGER;
        while !self.0.is_idle() && Instant::now() < deadline && self.step(deadline) {}
        self.0.give_up();
    }
}

impl OwnRing {
    fn new() -> Option<Self> {
        let plain = || IoUring::new(DEPTH);
        let ring =
            IoUring::builder().setup_single_issuer().setup_coop_taskrun().build(DEPTH).or_else(|_| plain());
        // Without it a wait has no end.
        ring.ok()
            .filter(|ring| ring.params().is_feature_ext_arg())
            .map(|ring| Self(Requests::new(ring, DEPTH)))
    }

    /// Takes what ended of what nobody waits for. What is not begun is not any more.
    fn settle(&mut self) {
        self.0.reap();
        self.0.start_waiting();
        // Of what the kernel does not take now the same is true at the next look.
        let _ = self.0.ring.submit();
    }

    /// Hands over what waits, and takes what ended; waits for one end until `deadline`. Returns whether the ring works.
    fn step(&mut self, deadline: Instant) -> bool {
        self.0.start_waiting();
        let left = Timespec::from(deadline.saturating_duration_since(Instant::now()));
        let outcome = self.0.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&left));
        self.0.reap();
        match outcome {
            Ok(_) => true,
            Err(error) if is_passing(&error) => true,
            Err(error) => {
                tracing::error!(%error, "a ring of the SSD tier failed");
                self.0.give_up();
                false
            }
        }
    }
}

/// Starts a request on this thread's ring. Gives it back when the thread can have none, or a disk keeps its own busy.
pub(super) fn submit(job: Job) -> Result<(), Job> {
    RING.with_borrow_mut(|own| {
        if matches!(own, Own::Untried) {
            *own = OwnRing::new().map_or(Own::Refused, |ring| Own::Ready(Box::new(ring)));
        }
        let Own::Ready(ring) = own else { return Err(job) };
        if ring.0.has_abandoned() {
            ring.settle();
            if ring.0.has_abandoned() {
                return Err(job);
            }
        }
        ring.0.waiting.push_back(job);
        ring.0.start_waiting();
        // What the kernel does not take now is handed over by whoever waits.
        let _ = ring.0.ring.submit();
        Ok(())
    })
}

/// Takes what ended of the requests for which this thread does not wait any more. Returns whether some have not.
pub(super) fn settle() -> bool {
    LOOKS_AFTER.set(true);
    RING.with_borrow_mut(|own| {
        let Own::Ready(ring) = own else { return false };
        if !ring.0.is_idle() {
            ring.settle();
        }
        !ring.0.is_idle()
    })
}

/// Whether this thread looks after what did not end in time.
pub(super) fn looks_after() -> bool {
    LOOKS_AFTER.get()
}

/// Works on this thread's ring until `completion` is over, or `limit` passes.
pub(super) fn drive(completion: &Completion, limit: Duration) {
    let deadline = Instant::now() + limit;
    RING.with_borrow_mut(|own| {
        let Own::Ready(ring) = own else { return };
        ring.0.reap();
        while !completion.is_over() && !ring.0.is_idle() && Instant::now() < deadline {
            if !ring.step(deadline) {
                *own = Own::Refused;
                return;
            }
        }
    });
}
