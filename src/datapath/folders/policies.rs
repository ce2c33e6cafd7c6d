//! The policy in force: what an object or a directory says itself, else what the nearest directory above says; and when a soft
//! pin in it ends.
//!
//! Invariant: a soft pin ends by the time that is in force then, whatever was noted of it before.

use super::super::{Object, Phase, State};
use crate::namespace::Slot;
use crate::tier::eviction::RetentionClass;
use crate::tier::memory::{Pin, PolicyRecord};

/// What is in force for an object after inheritance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::datapath) struct EffectivePolicy {
    pub(in crate::datapath) record: PolicyRecord,
}

impl EffectivePolicy {
    /// The class in which an object is ranked for eviction.
    pub(in crate::datapath) fn class(&self) -> RetentionClass {
        if matches!(self.record.pin, Some(Pin::Soft { .. })) {
            return RetentionClass::SOFT_PIN;
        }
        let priority = i16::from(self.record.priority.unwrap_or(0)).clamp(-100, 100);
        RetentionClass(
            u8::try_from(i16::from(RetentionClass::NORMAL.0) + priority).unwrap_or(RetentionClass::NORMAL.0),
        )
    }

    /// Whether the object is never evicted.
    pub(in crate::datapath) fn is_hard_pinned(&self) -> bool {
        matches!(self.record.pin, Some(Pin::Hard))
    }
}

impl State {
    /// The policy in force for the node in `slot`: its own settings, else those of the nearest directory above.
    pub(in crate::datapath) fn effective_policy(&self, slot: Slot) -> EffectivePolicy {
        let own = self.object(slot).map(Object::policy).unwrap_or_default();
        let inherited = self.tree.ancestors(slot).filter_map(|ancestor| self.folders.get(ancestor));
        let record = inherited.fold(own, |mut nearer, folder| {
            let farther = &folder.policy;
            nearer.quota = nearer.quota.or(farther.quota);
            nearer.floor = nearer.floor.or(farther.floor);
            nearer.ttl_s = nearer.ttl_s.or(farther.ttl_s);
            nearer.pin = nearer.pin.or(farther.pin);
            nearer.priority = nearer.priority.or(farther.priority);
            nearer.scratch = nearer.scratch.or(farther.scratch);
            nearer.durable = nearer.durable.or(farther.durable);
            nearer.replicas = nearer.replicas.or(farther.replicas);
            let rate = &mut nearer.recompute_bytes_per_second;
            *rate = rate.or(farther.recompute_bytes_per_second);
            if nearer.eviction.is_none() {
                nearer.eviction.clone_from(&farther.eviction);
            }
            nearer
        });
        let mut policy = EffectivePolicy { record };
        if self.unpinned.contains(&slot) && matches!(policy.record.pin, Some(Pin::Soft { .. })) {
            policy.record.pin = None;
        }
        policy
    }

    /// Whether files that are made in `directory` are slot files: as [`State::effective_policy`] has it, which is more work.
    pub(in crate::datapath) fn makes_slot_files(&self, directory: Slot) -> bool {
        let own = |ancestor| self.folders.get(ancestor)?.policy.scratch;
        !self.folders.slot_directories.is_empty()
            && self.tree.ancestors(directory).find_map(own) == Some(true)
    }

    /// When the soft pin in force on a sealed object ends: its time counts from the object's seal, or from when the pin was
    /// set on the object itself.
    pub(in crate::datapath) fn pin_end_ns(&self, slot: Slot) -> Option<i64> {
        let Some(Pin::Soft { ttl_s: Some(ttl_s) }) = self.effective_policy(slot).record.pin else {
            return None;
        };
        let ttl_ns = i64::try_from(ttl_s).unwrap_or(i64::MAX).saturating_mul(1_000_000_000);
        let object = self.object(slot).filter(|object| object.phase == Phase::Sealed)?;
        let set_at_ns = object.open.as_ref().and_then(|open| open.policy.pinned_at_ns);
        let since_ns = object.sealed_at_ns.max(set_at_ns.unwrap_or(i64::MIN));
        Some(since_ns.saturating_add(ttl_ns))
    }

    /// Notes when the soft pin of an object ends, after its policy or the object is new.
    pub(in crate::datapath) fn watch_pin(&mut self, slot: Slot) {
        self.forget_pin(slot);
        if let Some(end_ns) = self.pin_end_ns(slot) {
            self.pin_end_of.set(slot, end_ns);
        }
    }

    /// The object in `slot` is no more, or its pin another.
    pub(in crate::datapath) fn forget_pin(&mut self, slot: Slot) {
        self.unpinned.remove(&slot);
        self.pin_end_of.clear(slot);
    }

    /// Ends up to `limit` soft pins whose time is over. Returns whether there were any.
    pub(in crate::datapath) fn end_pins(&mut self, now_ns: i64, limit: usize) -> bool {
        let due = self.pin_end_of.take_due(now_ns, limit);
        for &slot in &due {
            // The slot may hold another object by now, or its pin another time.
            if self.pin_end_ns(slot).is_some_and(|end_ns| end_ns <= now_ns) {
                self.unpinned.insert(slot);
                self.refresh_rank(slot);
            }
        }
        !due.is_empty()
    }
}
