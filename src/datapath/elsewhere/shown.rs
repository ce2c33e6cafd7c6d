//! Objects of other members, shown under their names without their bytes.
//!
//! Invariants
//! - What is written here under a name is not hidden by what others hold there: that is shown in front of it, and the file takes
//!   its place when it is sealed, as if it had been there before.
//! - What is shown stays while somebody uses it, or writes a new version of it.

use std::collections::BTreeSet;

use tidefs_engine::types::Version;

use super::super::object::OpenState;
use super::super::{Marks, Object, Phase, Place, State};
use crate::cluster::shards::{KeyId, Shard};
use crate::cluster::{Copy, FileFacts, Stamp};
use crate::namespace::{Attributes, Body, Ino, Name, Slot, permissions};

impl State {
    /// Whether the file in `slot` is written under a name that stood for nothing here: what others hold there can be shown in
    /// front of it, as if it had been there before.
    pub(super) fn is_first_here(&self, slot: Slot) -> bool {
        self.object(slot).is_some_and(|object| {
            let is_first = |open: &OpenState| open.supersedes.is_none() && open.promised.is_none();
            object.phase == Phase::Writing
                && !object.is_slot_file()
                && object.version == Version::default()
                && object.open.as_deref().is_some_and(is_first)
        })
    }

    /// Whether the file in `slot`, which only its writers see, may keep others from what another member holds there.
    pub(in crate::datapath) fn may_hide_another(&mut self, slot: Slot) -> bool {
        let (parent, name) = (self.tree.node(slot).parent, self.tree.name(slot));
        self.has_members() && self.is_first_here(slot) && !self.is_absent_everywhere(parent, name.as_bytes())
    }

    /// Shows an object of another member under its name, without its bytes; in front of what is being written there.
    pub(super) fn show(
        &mut self,
        parent: Slot,
        name: Name,
        stamp: Stamp,
        facts: &FileFacts,
        copies: Vec<Copy>,
    ) {
        let mut object = Object::writing(Place::Remote);
        object.open = None;
        object.phase = Phase::Sealed;
        object.size = facts.size;
        object.version = self.take_version();
        object.sealed_at_ns = i64::try_from(stamp.0).unwrap_or(i64::MAX);
        object.marks = Marks::FINAL;
        if facts.replicas > 1 {
            // For the day when its copy here is the one that counts.
            object.open_mut().policy.replicas = Some(facts.replicas);
        }
        let attributes = Attributes {
            mode: permissions(facts.mode),
            uid: facts.uid,
            gid: facts.gid,
            atime_ns: facts.mtime_ns,
            mtime_ns: facts.mtime_ns,
            ctime_ns: object.sealed_at_ns,
        };
        let next = self.tree.child(parent, name.as_bytes());
        next.into_iter().for_each(|next| self.leave_name(next));
        let slot = self.tree.make(attributes, Body::File(object));
        if self.tree.attach(slot, parent, name.clone()).is_ok() {
            self.elsewhere.copies.insert(slot, copies);
            if let Some(next) = next {
                self.supersede(slot, next, (parent, name));
            }
        } else if let Some(object) = self.object_mut(slot) {
            object.phase = Phase::Gone;
            self.drop_if_unused(slot);
        }
    }

    /// The hidden file in `next` takes the place of the object in `slot` when it is sealed.
    fn supersede(&mut self, slot: Slot, next: Slot, place: (Slot, Name)) {
        if let Some(object) = self.object_mut(slot) {
            object.open_mut().next_version = Some(next);
        }
        if let Some(object) = self.object_mut(next) {
            object.open_mut().supersedes = Some(place);
        }
        self.recharge(next);
    }

    /// Takes an object that is only shown here, and that nobody uses, out of the tree.
    pub(in crate::datapath) fn unshow(&mut self, slot: Slot) {
        let is_idle =
            |object: &&mut Object| object.is_remote() && !object.is_open() && object.next_version().is_none();
        if let Some(object) = self.object_mut(slot).filter(is_idle) {
            object.phase = Phase::Gone;
            self.clear_expiry(slot);
            self.tree.detach(slot);
            self.drop_if_unused(slot);
        }
    }

    /// Takes those of `shown` out of the tree which others answer for from now on. Returns what the kernel knows of them.
    pub(super) fn unshow_moved(&mut self, shown: &[Slot], moved: &BTreeSet<Shard>) -> Vec<Ino> {
        let is_moved = |slot: &Slot| {
            // Since it was listed it may have become something else.
            self.elsewhere.copies.contains_key(slot)
                && moved.contains(&KeyId::of(&self.tree.path(*slot)).shard())
        };
        let slots: Vec<Slot> = shown.iter().copied().filter(is_moved).collect();
        let inos = slots.iter().map(|&slot| self.tree.ino(slot)).collect();
        slots.into_iter().for_each(|slot| self.unshow(slot));
        inos
    }
}
