//! Writers that were sent to look a name up again, and for which the version that they are given waits before it is sealed.
//!
//! Others may have closed it meanwhile, and were told that it is done. So the wait is for those alone who can still come: not for
//! threads that have ended, as a program does that is told that its open has failed, and not for long.

use super::afterwards::Afterwards;
use super::open_state::OpenState;
use super::{Caller, Datapath, Object, Phase, State};
use crate::namespace::{ProcessId, Slot, ThreadId, has_memory};

/// How long a version waits for a thread that was sent to open it: it comes back within its system call, unless it dies.
pub(super) const EXPECTED_FOR_MS: u64 = 10_000;
/// The same where others miss something for that time: what they have closed, or an object that is to be written where it is.
const HIDDEN_FOR_MS: u64 = 500;

/// A thread that is about to open a version.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedWriter {
    thread: ThreadId,
    process: ProcessId,
    /// Whether its end can be seen: it was found alive when it was sent.
    is_seen: bool,
}

impl ExpectedWriter {
    /// Whether it is a thread of `process`.
    pub(super) fn is_of(&self, process: ProcessId) -> bool {
        self.process == process
    }

    pub(super) fn is_thread(&self, thread: ThreadId) -> bool {
        self.thread == thread
    }

    fn has_ended(&self) -> bool {
        self.is_seen && !has_memory(self.thread)
    }
}

impl Datapath {
    /// The file in `slot` waits for the caller, who comes to write it.
    pub(super) fn expect_writer(&self, state: &mut State, caller: &Caller, slot: Slot) {
        let process = state.process(caller, self.clock.monotonic());
        let Some(object) = state.object_mut(slot) else { return };
        let open = object.open_mut();
        let is_missed = open.is_left();
        let until_ms = self.now_ms() + if is_missed { HIDDEN_FOR_MS } else { EXPECTED_FOR_MS };
        if !open.expected.iter().any(|expected| expected.is_thread(caller.thread)) {
            let is_seen = has_memory(caller.thread);
            open.expected.push(ExpectedWriter { thread: caller.thread, process, is_seen });
        }
        open.abandoned_at_ms = open.abandoned_at_ms.max(until_ms);
    }

    /// All who had the hidden file in `slot` open have closed it. Returns whether somebody may still come who is waited for.
    pub(super) fn waits_for_writers(&self, state: &mut State, slot: Slot) -> bool {
        let now_ms = self.now_ms();
        state.stop_expecting(slot, now_ms);
        let Some(open) = state.object_mut(slot).map(Object::open_mut) else { return false };
        let is_awaited = !open.expected.is_empty();
        if is_awaited {
            open.abandoned_at_ms = open.abandoned_at_ms.min(now_ms + HIDDEN_FOR_MS);
        }
        is_awaited
    }

    /// A look-up comes to a name under which `slot` stands: what all have closed there, and nobody comes to write any more, is an
    /// object from now on.
    pub(super) fn end_what_nobody_comes_for(&self, state: &mut State, slot: Slot) -> Option<Afterwards> {
        // Hot path: nearly nothing is being written.
        let written = state.next_version(slot).unwrap_or(slot);
        let object = state.object(written).filter(|object| object.phase == Phase::Writing)?;
        object.open.as_deref().filter(|open| open.is_left())?;
        let now_ms = self.now_ms();
        state.stop_expecting(written, now_ms);
        self.end_if_abandoned(state, written, now_ms)
    }

    /// Ends the hidden version in `slot`, which nobody writes, when it is past the time in which its writer comes back.
    pub(super) fn end_if_abandoned(&self, state: &mut State, slot: Slot, now_ms: u64) -> Option<Afterwards> {
        let object = state.object(slot)?;
        let is_over = |open: &&OpenState| open.writers == 0 && open.abandoned_at_ms <= now_ms;
        let open = object.open.as_deref().filter(is_over)?;
        let mut afterwards = Afterwards::default();
        if open.was_opened {
            // Who was expected did not come; what the others wrote stands.
            self.end_writing(state, slot, &mut afterwards);
            state.settle_ended(slot);
        } else if object.is_open() {
            return None;
        } else {
            afterwards.doomed.push(state.discard_writing(slot));
        }
        self.retire_all(&mut afterwards.doomed);
        Some(afterwards)
    }
}

impl State {
    /// The caller's thread is not about to write the file in `slot` any more.
    pub(super) fn stop_expecting_writer(&mut self, slot: Slot, caller: &Caller) {
        self.forget_expected(slot, |expected| expected.is_thread(caller.thread));
    }

    /// Nobody waits for threads that have ended, nor any longer than until then.
    pub(super) fn stop_expecting(&mut self, slot: Slot, now_ms: u64) {
        let open = self.object(slot).and_then(|object| object.open.as_deref());
        let is_over = open.is_some_and(|open| open.abandoned_at_ms <= now_ms);
        self.forget_expected(slot, |expected| is_over || expected.has_ended());
    }

    fn forget_expected(&mut self, slot: Slot, comes_no_more: impl Fn(&ExpectedWriter) -> bool) {
        // What is parked has a time of its own, and does not end for want of a writer.
        let written = self.object_mut(slot).filter(|object| object.phase != Phase::Parked);
        let open = written.and_then(|object| object.open.as_mut()).filter(|open| !open.expected.is_empty());
        if let Some(open) = open {
            open.expected.retain(|expected| !comes_no_more(expected));
            if open.expected.is_empty() {
                open.abandoned_at_ms = 0; // the next sweep ends it, if nobody has it open
            }
        }
    }

    /// A file without handles needs nothing of what only an open one does.
    fn settle_ended(&mut self, slot: Slot) {
        if let Some(object) = self.object_mut(slot) {
            object.settle();
        }
        self.update_hold(slot);
    }
}
