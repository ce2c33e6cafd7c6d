//! Room in quotas: evicting below the directory that has one, before something that grows there is accepted.
//!
//! Invariants
//! - Who is told that there is none is counted, and nobody else: what is trimmed, or left out, is no request that is refused.
//! - For what nobody asked for yet only what stands elsewhere leaves, and nobody waits.
//!
//! Limits: a request that finds nothing to evict while a changed policy is being applied there waits for that, at most
//! `runtime.deadline_ms`. It may be one that answers the kernel, so no longer, and not for what is applied elsewhere.

use std::time::Duration;

use tidefs_engine::types::ByteCount;

use super::folders::QuotaInTheWay;
use super::history::Ending;
use super::room::Loss;
use super::ssd::MayLend;
use super::{Datapath, Error, Marks, State};
use crate::namespace::Slot;

impl Datapath {
    /// Evicts inside the directories whose quota `more` bytes in `directory` would pass.
    pub(super) fn make_room_in_quota(&self, more: ByteCount, directory: Slot) -> Result<(), Error> {
        self.make_room_in_quota_beside(more, directory, None)
    }

    /// As [`Datapath::make_room_in_quota`], for bytes that the directories at and above `counted_in` count already.
    pub(super) fn make_room_in_quota_beside(
        &self,
        more: ByteCount,
        directory: Slot,
        counted_in: Option<Slot>,
    ) -> Result<(), Error> {
        self.make_room_below(more, |state| state.quota_in_the_way(directory, more, counted_in))
    }

    /// As [`Datapath::make_room_in_quota`], for something that is left out where there is none: nobody is refused.
    pub(super) fn look_for_room_in_quota(&self, more: ByteCount, directory: Slot) -> Result<(), Error> {
        self.evict_for_quota(more, Loss::Accepted, |state| state.quota_in_the_way(directory, more, None))
    }

    /// The same at the cost of copies alone: what is nowhere else stays.
    pub(super) fn make_room_in_quota_without_loss(
        &self,
        more: ByteCount,
        directory: Slot,
    ) -> Result<(), Error> {
        self.evict_for_quota(more, Loss::Refused, |state| state.quota_in_the_way(directory, more, None))
    }

    /// Evicts inside the directories at and above `directory` that are beyond their quotas by what came to be there. What
    /// cannot go stays: nobody is refused.
    pub(super) fn trim_to_quota(&self, directory: Slot) {
        self.trim_below(|state| state.quota_in_the_way(directory, ByteCount::ZERO, None));
    }

    /// The same below the directory whose quota `in_the_way` names, until it names none.
    pub(super) fn trim_below(&self, in_the_way: impl FnMut(&mut State) -> Option<QuotaInTheWay>) {
        // It says which quota stays passed.
        let _ = self.evict_for_quota(ByteCount::ZERO, Loss::Accepted, in_the_way);
    }

    /// Evicts below the directory whose quota `in_the_way` names, until it names none. What is to be `whole` bytes in a
    /// quota that is smaller is refused at once.
    pub(super) fn make_room_below(
        &self,
        whole: ByteCount,
        in_the_way: impl FnMut(&mut State) -> Option<QuotaInTheWay>,
    ) -> Result<(), Error> {
        self.evict_for_quota(whole, Loss::Accepted, in_the_way)
            .inspect_err(|_| self.telemetry.over_quota.increment())
    }

    /// As [`Datapath::make_room_below`], for what is tried in another way when there is none: nobody is refused, nor waits.
    pub(super) fn look_for_room_below(
        &self,
        whole: ByteCount,
        in_the_way: impl FnMut(&mut State) -> Option<QuotaInTheWay>,
    ) -> Result<(), Error> {
        self.evict_for_quota_within(Duration::ZERO, whole, Loss::Accepted, in_the_way)
    }

    /// The same, not counted as a refusal.
    fn evict_for_quota(
        &self,
        whole: ByteCount,
        loss: Loss,
        in_the_way: impl FnMut(&mut State) -> Option<QuotaInTheWay>,
    ) -> Result<(), Error> {
        self.evict_for_quota_within(self.settings.deadline, whole, loss, in_the_way)
    }

    /// The same, for somebody who waits so long for a policy that is being applied.
    fn evict_for_quota_within(
        &self,
        patience: Duration,
        whole: ByteCount,
        loss: Loss,
        mut in_the_way: impl FnMut(&mut State) -> Option<QuotaInTheWay>,
    ) -> Result<(), Error> {
        let started = self.clock.monotonic();
        let mut passed_over = Vec::new();
        loop {
            let leaving = {
                let mut state = self.lock();
                let Some(in_the_way) = in_the_way(&mut state) else {
                    passed_over.into_iter().for_each(|slot| state.update_hold(slot));
                    return Ok(());
                };
                let QuotaInTheWay { growing, limited, quota } = in_the_way;
                let may_leave = whole <= quota;
                let victim =
                    may_leave.then(|| state.victim_in_quota(limited, growing, &mut passed_over)).flatten();
                let victim = victim.and_then(|victim| self.victim_at(loss, &mut state, victim, growing));
                let Some(victim) = victim else {
                    passed_over.drain(..).for_each(|slot| state.update_hold(slot));
                    let waited = self.clock.monotonic().saturating_sub(started);
                    let left = patience.saturating_sub(waited);
                    let may_wait = may_leave && loss == Loss::Accepted && !left.is_zero();
                    if may_wait && state.is_walked(limited) {
                        self.walked.wait_for(&mut state, left);
                        continue;
                    }
                    return Err(Error::OverQuota {
                        directory: state.path_text(limited),
                        slot: limited,
                        quota,
                    });
                };
                // It leaves the quota at once, and memory when it is on disk.
                self.let_leave(&mut state, victim, Ending::EvictedForQuota, MayLend::IfRoom)
            };
            self.see_off(leaving, None);
        }
    }

    /// The victim, if it may leave at that loss, or one that is to leave soon and may.
    fn victim_at(&self, loss: Loss, state: &mut State, victim: Slot, growing: Slot) -> Option<Slot> {
        if loss == Loss::Accepted {
            return Some(victim);
        }
        let leaving = if self.has_copy(state, victim) {
            victim
        } else {
            self.copied_instead(state, victim, growing).filter(|&slot| state.makes_room(slot))?
        };
        // What was brought ahead of its use does not give way to more of that.
        let is_unused = state.object(leaving).is_some_and(|object| object.marks.has(Marks::PREFETCHED));
        (!is_unused).then_some(leaving)
    }
}

#[cfg(test)]
mod tests;
