//! How threads and tasks wait for the ends of operations.

use std::fmt;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How a thread that moves bytes waits when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// It sleeps at once.
    Blocking,
    /// It looks again and again for a moment first: a short answer is there before a sleeper would have woken.
    Adaptive,
}

/// Processors of this host at most, on which spinning takes the time of those who have something to do.
const BLOCKING_PROCESSORS: usize = 2;
/// How long an adaptive thread looks before it sleeps: about what waking it costs.
const SPIN: Duration = Duration::from_micros(50);

/// Processors that this process may use.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Completion {
    /// Blocking on hosts of one or two processors, adaptive on others.
    #[must_use]
    pub fn of_this_host() -> Self {
        if processors() <= BLOCKING_PROCESSORS { Self::Blocking } else { Self::Adaptive }
    }

    /// How long to look before sleeping.
    pub(crate) fn spin(self) -> Duration {
        match self {
            Self::Blocking => Duration::ZERO,
            Self::Adaptive => SPIN,
        }
    }
}

/// Resolves when `holds` does. It is looked at now, and whenever `changed` wakes all who wait.
pub(crate) async fn until(changed: &Notify, holds: impl Fn() -> bool) {
    loop {
        // Before the look, or what comes in between is missed.
        let woken = changed.notified();
        if holds() {
            return;
        }
        woken.await;
    }
}

/// Work that a thread which blocks for a transfer may do itself: it saves the hand-over from the thread that would do it,
/// which costs more than a short transfer.
pub trait Progress: Send + Sync + fmt::Debug {
    /// Works on the caller's thread until `is_done` says so, or `until`, or until others do it better. Called from any
    /// thread that may block.
    fn work(&self, is_done: &dyn Fn() -> bool, until: Instant);

    /// Makes threads that are in [`Self::work`] look at `is_done` again.
    fn nudge(&self);
}
