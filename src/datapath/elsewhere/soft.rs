//! Soft copies: objects of other members that were fetched for readers here. Another member has a copy to rely on, so
//! they leave before anything that has none, and never go to a disk.
//!
//! Invariants
//! - A copy is soft only from its fetch on; what is sealed, renamed or pinned here, and what another member asked this one
//!   to keep, is not. A restart finds it as soft as it was.
//! - When nobody else has a copy to rely on any more, its owners say so, and it counts from then on.
//! - Those that were read once leave before those that were read [`super::Elsewhere::soft_after`] times: a scan of what
//!   others hold displaces nothing but itself. How often one was read is remembered when it leaves.
//!
//! Limits: [`MET_MAX`] copies that left are remembered; of others the reads are counted anew.

use std::num::NonZeroUsize;

use super::super::{Marks, Phase, State};
use super::stamp_of;
use crate::cluster::shards::KeyId;
use crate::cluster::{Medium, Stamp};
use crate::namespace::Slot;
use crate::tier::eviction::RetentionClass;

/// Copies that left of which it is remembered how often they were read.
pub(super) const MET_MAX: NonZeroUsize = NonZeroUsize::new(1 << 16).expect("65536 is not zero");

impl State {
    /// Whether the object in `slot` is a copy that leaves first.
    pub(in crate::datapath) fn is_soft(&self, slot: Slot) -> bool {
        self.object(slot).is_some_and(|object| object.marks.has(Marks::SOFT))
    }

    /// Soft copies, and their bytes.
    pub(in crate::datapath) fn soft_copies(&self) -> (u64, u64) {
        (self.elsewhere.soft.len() as u64, self.elsewhere.soft_bytes)
    }

    /// The object in `slot` is about to be here, fetched from another member.
    pub(in crate::datapath) fn soften(&mut self, slot: Slot) {
        let key = KeyId::of(&self.tree.path(slot));
        let uses = self.elsewhere.met.pop(&key).unwrap_or(0);
        let Some(object) = self.object_mut(slot) else { return };
        object.marks.set(Marks::SOFT, true);
        object.uses = object.uses.max(uses);
        let size = object.size.get();
        if self.elsewhere.soft.insert(key, slot).is_none() {
            self.elsewhere.soft_bytes += size;
        }
    }

    /// All copies are ones to rely on from now on: this host is in no cluster.
    pub(in crate::datapath) fn harden_all(&mut self) {
        let soft: Vec<Slot> = self.elsewhere.soft.values().copied().collect();
        for slot in soft {
            self.harden(slot);
        }
    }

    /// The copy in `slot` is one to rely on from now on. Returns whether it was soft.
    pub(in crate::datapath) fn harden(&mut self, slot: Slot) -> bool {
        if !self.is_soft(slot) {
            return false;
        }
        let is_ordered =
            self.object(slot).is_some_and(|object| object.phase == Phase::Sealed && object.is_resident());
        if is_ordered {
            self.count_soft(slot, false);
        }
        let key = KeyId::of(&self.tree.path(slot));
        self.take_soft(slot, key);
        if let Some(object) = self.object_mut(slot) {
            object.marks.set(Marks::SOFT, false);
        }
        if is_ordered {
            self.refresh_rank(slot);
        }
        true
    }

    /// The object in `slot`, whose key is `key`, leaves: how often it was read is remembered if it was soft.
    pub(super) fn forget_soft(&mut self, slot: Slot, key: KeyId) {
        if self.is_soft(slot) && self.take_soft(slot, key) {
            let uses = self.object(slot).map_or(0, |object| object.uses);
            self.elsewhere.met.put(key, uses);
        }
    }

    /// The same for one whose name something else takes.
    pub(in crate::datapath) fn forget_replaced_copy(&mut self, slot: Slot) {
        if self.is_soft(slot) && !self.tree.node(slot).is_detached() {
            let key = KeyId::of(&self.tree.path(slot));
            self.take_soft(slot, key);
        }
    }

    fn take_soft(&mut self, slot: Slot, key: KeyId) -> bool {
        let was_there = self.elsewhere.soft.get(&key) == Some(&slot);
        if was_there {
            self.elsewhere.soft.remove(&key);
            let size = self.object(slot).map_or(0, |object| object.size.get());
            self.elsewhere.soft_bytes = self.elsewhere.soft_bytes.saturating_sub(size);
        }
        was_there
    }

    /// The class in which the object in `slot` is ranked for eviction.
    pub(in crate::datapath) fn class_of(&self, slot: Slot) -> RetentionClass {
        if self.is_abandoned(slot) {
            return RetentionClass::ABANDONED;
        }
        let policy = self.effective_policy(slot);
        let class = policy.class();
        let soft = self.object(slot).filter(|object| object.marks.has(Marks::SOFT));
        match soft {
            Some(_) if class == RetentionClass::SOFT_PIN || policy.is_hard_pinned() => class,
            Some(object) if object.uses >= self.elsewhere.soft_after => RetentionClass::SOFT_COPY,
            Some(_) => RetentionClass::PASSING_COPY,
            None => class,
        }
    }

    /// Whether the object in `slot` is soft, and nobody has pinned it.
    pub(in crate::datapath) fn leaves_first(&self, slot: Slot) -> bool {
        self.is_soft(slot) && self.class_of(slot) <= RetentionClass::SOFT_COPY
    }

    /// The copies of `keys` are the only ones: they count from now on. Returns those that are here.
    pub(super) fn inherit(&mut self, keys: &[KeyId]) -> Vec<(Vec<u8>, Stamp, Medium)> {
        let mut inherited = Vec::new();
        for key in keys {
            let Some(&slot) = self.elsewhere.soft.get(key) else { continue };
            if self.object(slot).is_none() {
                continue; // it left, and was not taken out of the table
            }
            let path = self.tree.path(slot);
            if KeyId::of(&path) == *key
                && self.harden(slot)
                && let Some(object) = self.object(slot)
            {
                inherited.push((path, stamp_of(object), Medium::Memory));
            }
        }
        inherited
    }
}
