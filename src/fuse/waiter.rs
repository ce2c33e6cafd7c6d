//! Look-ups that wait for a writer's close to arrive, off the session threads that must receive it.
//!
//! Limits: a look-up waits at most `WAIT_MAX`; then the file counts as hidden still. At most `WAITING_MAX` wait;
//! further ones are answered at once.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use fuser::ReplyEntry;

use super::attributes::Lifetimes;
use super::ops::names::reply_lookup;
use crate::datapath::{Caller, Datapath, Lookup, Patience};
use crate::namespace::Ino;

const WAIT_MAX: Duration = Duration::from_millis(200);
const WAITING_MAX: usize = 4096;
const ROUND: Duration = Duration::from_millis(1);

/// One look-up with its reply.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) caller: Caller,
    pub(super) parent: Ino,
    pub(super) name: Box<[u8]>,
    pub(super) reply: ReplyEntry,
}

/// Where look-ups are left to wait.
#[derive(Clone, Debug)]
pub(super) struct Waiter(SyncSender<Waiting>);

impl Waiter {
    /// The two ends: the first for session threads, the second for [`run`].
    pub(super) fn new() -> (Self, Receiver<Waiting>) {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        (Self(sender), receiver)
    }

    /// Leaves a look-up to wait. Gives it back when too many do already.
    pub(super) fn leave(&self, waiting: Waiting) -> Result<(), Waiting> {
        self.0.try_send(waiting).map_err(|error| match error {
            std::sync::mpsc::TrySendError::Full(waiting)
            | std::sync::mpsc::TrySendError::Disconnected(waiting) => waiting,
        })
    }
}

/// Answers waiting look-ups until every [`Waiter`] is gone.
pub(super) fn run(datapath: &Arc<Datapath>, lifetimes: Lifetimes, arrivals: &Receiver<Waiting>) {
    let mut waiting: Vec<(Instant, Waiting)> = Vec::new();
    loop {
        let arrived = if waiting.is_empty() {
            arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            datapath.wait_for_release(ROUND);
            arrivals.try_recv().map_err(|_| RecvTimeoutError::Timeout)
        };
        match arrived {
            Ok(arrived) => waiting.push((Instant::now() + WAIT_MAX, arrived)),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        waiting.extend(arrivals.try_iter().map(|arrived| (Instant::now() + WAIT_MAX, arrived)));
        let mut still = Vec::new();
        for (deadline, one) in waiting.drain(..) {
            let patience = if Instant::now() < deadline { Patience::Writers } else { Patience::None };
            if patience == Patience::None {
                datapath.telemetry().hidden_wait_timeouts.increment();
            }
            match datapath.lookup(&one.caller, one.parent, &one.name, patience) {
                Ok(Lookup::Wait) => still.push((deadline, one)),
                outcome => reply_lookup(&lifetimes, outcome, one.reply),
            }
        }
        waiting = still;
    }
}
