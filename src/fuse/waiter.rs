//! Requests that wait for a writer's close to arrive, off the session threads that must receive it.
//!
//! Limits: a request waits at most [`CLOSE_WAIT`]; then the file counts as hidden still. At most `WAITING_MAX` wait;
//! further ones are answered at once.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use crate::datapath::{CLOSE_WAIT, Datapath};

const WAITING_MAX: usize = 4096;
const ROUND: Duration = Duration::from_millis(1);

/// A request, with its reply, that a close may have to come for.
pub(super) trait Waiting: Send {
    /// Answers the request. Gives it back when it has to wait still; never when `is_late`.
    fn try_again(self: Box<Self>, is_late: bool) -> Option<Box<dyn Waiting>>;
}

/// Where requests are left to wait.
#[derive(Clone)]
pub(super) struct Waiter(SyncSender<Box<dyn Waiting>>);

impl fmt::Debug for Waiter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Waiter").finish_non_exhaustive()
    }
}

impl Waiter {
    /// The two ends: the first for session threads, the second for [`run`].
    pub(super) fn new() -> (Self, Receiver<Box<dyn Waiting>>) {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        (Self(sender), receiver)
    }

    /// Leaves a request to wait. It is answered at once when too many do already.
    pub(super) fn leave(&self, waiting: Box<dyn Waiting>) {
        if let Err(TrySendError::Full(waiting) | TrySendError::Disconnected(waiting)) =
            self.0.try_send(waiting)
        {
            waiting.try_again(true);
        }
    }
}

/// What was left to wait, when it is time to look at all that wait: at once when none does, and something is
/// left; else after a release, or a millisecond. `None` when nobody is there any more to leave something.
/// `waiting`: how many wait already, of `most`; what has no room stays in its channel, which is bounded.
pub(super) fn next_round<T>(
    datapath: &Datapath,
    arrivals: &Receiver<T>,
    waiting: usize,
    most: usize,
) -> Option<impl Iterator<Item = T>> {
    let first = if waiting == 0 {
        Some(arrivals.recv().ok()?)
    } else {
        datapath.wait_for_release(ROUND);
        None
    };
    Some(first.into_iter().chain(arrivals.try_iter()).take(most.saturating_sub(waiting)))
}

/// Answers waiting requests until every [`Waiter`] is gone.
pub(super) fn run(datapath: &Datapath, arrivals: &Receiver<Box<dyn Waiting>>) {
    let mut waiting: Vec<(Instant, Box<dyn Waiting>)> = Vec::new();
    while let Some(arrived) = next_round(datapath, arrivals, waiting.len(), WAITING_MAX) {
        waiting.extend(arrived.map(|arrived| (Instant::now() + CLOSE_WAIT, arrived)));
        let mut still = Vec::new();
        for (deadline, one) in waiting.drain(..) {
            let is_late = Instant::now() >= deadline;
            if is_late {
                datapath.telemetry().hidden_wait_timeouts.increment();
            }
            if let Some(one) = one.try_again(is_late) {
                still.push((deadline, one));
            }
        }
        waiting = still;
    }
}
