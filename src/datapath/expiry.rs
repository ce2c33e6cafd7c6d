//! What time ends: objects past their time to live, soft pins, the wait for a rename, and hidden versions that nobody came to
//! write.
//!
//! Much of it may fall due at one moment, when a directory gets a time to live that its objects have passed: it is ended in
//! parts. A look-up does not wait for that: of an object that is due it ends that one, and is told that nothing is there.
//!
//! Threads: one ends what is due, several times a second; look-ups end what they ask for.

use super::afterwards::Afterwards;
use super::below::PART;
use super::burial::Doomed;
use super::history::Ending;
use super::{Datapath, Object, State};
use crate::namespace::Slot;
use crate::tier::eviction::Departure;

/// How long an object that is due is left alone because it is being written, in nanoseconds.
const WRITTEN_AGAIN_NS: i64 = 1_000_000_000;

/// What is left to do, outside the lock, for objects that were due.
#[derive(Debug, Default)]
pub(super) struct Ended {
    doomed: Vec<Doomed>,
    /// Whether the kernel may go on to show one of them.
    may_stand: bool,
}

impl Datapath {
    /// Removes what is past its time to live, and hidden versions that nobody came to write; ends soft pins, and the time for
    /// which a closed temporary file stays whatever the pressure.
    pub fn expire(&self) {
        self.expire_until(|| false);
    }

    /// The same, until `is_stopping` says that the daemon ends: the next one does the rest.
    pub fn expire_until(&self, is_stopping: impl Fn() -> bool) {
        let goes_on = || (!is_stopping()).then_some(());
        let (now_ns, now_ms) = (self.now_ns(), self.now_ms());
        let lives = |state: &mut State| goes_on().and_then(|()| self.end_lives(state, now_ns));
        self.in_parts(lives, |ended| self.see_out(ended));
        self.in_parts(|state| goes_on().filter(|()| state.end_pins(now_ns, PART)), |()| {});
        self.in_parts(|state| goes_on().filter(|()| state.end_waits(now_ms, PART)), |()| {});
        let mut next = Slot::ROOT;
        let abandoned =
            |state: &mut State| goes_on().and_then(|()| self.end_abandoned(state, now_ms, &mut next));
        self.in_parts(abandoned, |afterwards| self.carry_out(afterwards));
    }

    /// Ends up to [`PART`] lives that are over. `None` when there are none.
    fn end_lives(&self, state: &mut State, now_ns: i64) -> Option<Ended> {
        let due = state.expiry_of.take_due(now_ns, PART);
        if due.is_empty() {
            return None;
        }
        let mut ended = Ended::default();
        due.into_iter().for_each(|slot| self.end_life(state, slot, now_ns, &mut ended));
        Some(ended)
    }

    /// Removes the object in `slot`, whose time is over. What is in use gets a later time.
    pub(super) fn end_life(&self, state: &mut State, slot: Slot, now_ns: i64, ended: &mut Ended) {
        let is_written = |object: &Object| object.writers() > 0 || object.next_version().is_some();
        if state.object(slot).is_some_and(is_written) {
            // What replaces it is not to be lost with it.
            return state.set_expiry(slot, now_ns.saturating_add(WRITTEN_AGAIN_NS));
        }
        self.telemetry.expirations.increment();
        let ino = state.tree.ino(slot);
        ended.doomed.push(self.remove_object(state, slot, Departure::Gone, (now_ns, Ending::Expired)));
        ended.may_stand |= state.still_answers(ino);
    }

    /// Tells the kernel of what ended, and frees its bytes. Never under the lock.
    pub(super) fn see_out(&self, ended: Ended) {
        if ended.may_stand {
            self.forget_names_in_kernel();
        }
        ended.doomed.into_iter().for_each(|doomed| self.bury(doomed));
    }

    /// Ends up to [`PART`] hidden versions from slot `next` on that are past the time in which their writer comes back to open
    /// them. `None` when none are left.
    fn end_abandoned(&self, state: &mut State, now_ms: u64, next: &mut Slot) -> Option<Afterwards> {
        let part: Vec<Slot> = state.writing.range(*next..).take(PART).copied().collect();
        *next = Slot(part.last()?.0.checked_add(1)?);
        let mut afterwards = Afterwards::default();
        for slot in part {
            state.stop_expecting(slot, now_ms);
            afterwards.extend(self.end_if_abandoned(state, slot, now_ms));
        }
        Some(afterwards)
    }
}

impl State {
    /// Sets the wall-clock time at which an object expires.
    pub(super) fn set_expiry(&mut self, slot: Slot, at_ns: i64) {
        self.expiry_of.set(slot, at_ns);
        // What was without an end has one now.
        self.tell_clients(slot);
    }

    /// Counts the time to live in force on a sealed object from its seal. A seal that is ahead of this host's clock, since another
    /// host's is, counts as one of now.
    pub(super) fn renew_expiry(&mut self, slot: Slot) {
        self.clear_expiry(slot);
        let now_ns = super::nanos_of(self.clock.wall());
        if let (Some(ttl_s), Some(object)) = (self.effective_policy(slot).record.ttl_s, self.object(slot)) {
            let ttl_ns = i64::try_from(ttl_s).unwrap_or(i64::MAX).saturating_mul(1_000_000_000);
            self.set_expiry(slot, object.sealed_at_ns.min(now_ns).saturating_add(ttl_ns));
        }
    }

    /// The object does not expire.
    pub(super) fn clear_expiry(&mut self, slot: Slot) {
        self.expiry_of.clear(slot);
    }

    /// Whether the time to live of the object in `slot` has passed.
    pub(super) fn is_due(&self, slot: Slot, now_ns: i64) -> bool {
        self.expiry_of.get(&slot).is_some_and(|&at_ns| at_ns <= now_ns)
    }

    /// Up to `limit` closed temporary files do not wait for their rename any longer, whatever the pressure. Returns whether any
    /// did.
    fn end_waits(&mut self, now_ms: u64, limit: usize) -> bool {
        let due = self.parked.take_due(now_ms, limit);
        due.iter().for_each(|&slot| self.refresh_rank(slot));
        !due.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::testing::{make, unprivileged};
    use crate::namespace::Ino;

    #[test]
    fn a_daemon_that_stops_does_not_end_first_whatever_is_due() {
        let (_place, datapath) = unprivileged();
        let due = make(&datapath, Ino::ROOT, "due");
        datapath.lock().set_expiry(due.slot(), 0);
        let is_there = || datapath.lock().tree.child(Slot::ROOT, b"due").is_some();
        datapath.expire_until(|| true);
        assert!(is_there());
        datapath.expire_until(|| false);
        assert!(!is_there());
    }
}
