//! Objects of other members, shown under their names without their bytes.
//!
//! Invariants
//! - What is written here under a name is not hidden by what others hold there: that is shown in front of it, and the file takes
//!   its place when it is sealed, as if it had been there before.
//! - What is shown stays while somebody uses it, or writes a new version of it.
//!
//! Limits: what the kernel knows goes when that forgets it. Of what only clients of the fast path asked for the kernel says nothing:
//! of that [`SHOWN_MAX`] stay, and who asks for another one once more finds it again. One that is being loaded ahead just then is
//! a miss.

use std::collections::{BTreeSet, VecDeque};

use tidefs_engine::types::Version;

use super::super::open_state::OpenState;
use super::super::{Marks, Object, Phase, Place, State};
use crate::cluster::shards::{KeyId, Shard};
use crate::cluster::{Copy, FileFacts, Stamp};
use crate::namespace::{Attributes, Body, Ino, Name, Slot, permissions};

/// Objects that are shown and that the kernel does not know, at most.
pub(super) const SHOWN_MAX: usize = 65_536;

/// What is shown, that which was shown first in front.
#[derive(Debug)]
pub(super) struct Shown {
    /// Some of it is gone by now, or here, or left to the kernel.
    order: VecDeque<Ino>,
    pub(super) max: usize,
}

impl Default for Shown {
    fn default() -> Self {
        Self { order: VecDeque::new(), max: SHOWN_MAX }
    }
}

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

    /// Shows an object of another member under its name in a directory, without its bytes; in front of `next`, which is being
    /// written there.
    pub(super) fn show(
        &mut self,
        (parent, name): (Slot, Name),
        next: Option<Slot>,
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
        let place = next.map(|next| (next, name.clone()));
        next.into_iter().for_each(|next| self.leave_name(next));
        let slot = self.tree.make(attributes, Body::File(object));
        let shown = self.tree.attach(slot, parent, name);
        shown.expect("the name is free, in a directory that was not removed");
        self.elsewhere.copies.insert(slot, copies);
        if let Some((next, name)) = place {
            self.supersede(slot, next, (parent, name));
        }
        let ino = self.tree.ino(slot);
        self.elsewhere.shown.order.push_back(ino);
        self.bound_shown();
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

    /// Takes what was shown first out of the tree, while there is too much that the kernel does not know.
    fn bound_shown(&mut self) {
        // Two for each that comes: what somebody uses waits for another turn.
        for _ in 0..2 {
            let Shown { order, max } = &mut self.elsewhere.shown;
            if order.len() <= *max {
                return;
            }
            let Some(ino) = order.pop_front() else { return };
            let slot = self.tree.by_ino(ino).filter(|slot| self.elsewhere.copies.contains_key(slot));
            let Some(slot) = slot.filter(|&slot| self.tree.node(slot).lookups == 0) else { continue };
            self.unshow(slot);
            if self.elsewhere.copies.contains_key(&slot) {
                self.elsewhere.shown.order.push_back(ino);
            }
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
