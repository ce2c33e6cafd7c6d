//! Files that have left their name by the time a writer opens them, whom the kernel does not send to look that up once more: they
//! are written anew.
//!
//! The kernel knows the old inode and nothing else, so that gets new bytes, and becomes what the writer would have been given by
//! another look-up: the file of that name, or the next version of what stands there. While others write there it is what POSIX
//! makes of a file that is removed while it is open: what comes of it was replaced by theirs.
//!
//! Invariants
//! - Who has the old file open, or may have it mapped, keeps its bytes.
//! - Nobody writes by this what they may not write by a look-up.
//!
//! Limits: for a writer who needs nothing of the old bytes alone, and not where everybody sees what is written. Attributes of
//! programs are not kept.

use std::fs::File;
use std::sync::Arc;

use tidefs_engine::types::SegmentId;

use super::lookup::is_lock_file;
use super::{Caller, Credentials, Datapath, Error, Marks, Object, OpenOptions, Opened, Phase, Place, State};
use crate::namespace::{Attributes, Ino, Name, Slot};

/// Where a file is written for.
struct Target {
    parent: Slot,
    name: Name,
    goes: Goes,
}

/// What becomes of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    /// It has the name, at which nothing stands.
    ToName,
    /// It takes the place of this object when it is sealed.
    Over(Slot),
    /// Others write there: it goes with its last close.
    Nowhere,
}

impl Datapath {
    /// Opens the file `ino`, which has left its name and is open nowhere, to write it anew for the name in a directory by which the
    /// caller found it.
    ///
    /// # Errors
    /// [`Error::Stale`] when it is in use, or when the caller may not write there or needs more than an empty file;
    /// [`Error::NoObject`] when a file to be cut by its name is gone; [`Error::Io`].
    pub(super) fn open_anew(
        &self,
        caller: &Caller,
        ino: Ino,
        place: &(Ino, Name),
        options: OpenOptions,
    ) -> Result<Opened, Error> {
        if !options.truncate {
            let state = self.lock();
            let (directory, name) = place;
            let directory = state.tree.by_ino(*directory);
            let child = |directory| state.tree.child(directory, name.as_bytes());
            let is_there = directory.and_then(child).is_some();
            // truncate(2) makes no file; another writer may be about to.
            return Err(if options.cut_to.is_some() && !is_there { Error::NoObject } else { Error::Stale });
        }
        let credentials = Credentials::of(caller);
        let (segment, file) = self.tier.create_segment()?;
        let mut state = self.lock();
        let target = match self.target_of_new(&state, &credentials, ino, place, options) {
            Ok(target) => target,
            Err(error) => {
                drop(state);
                self.free_place(Place::Solo(segment));
                return Err(error);
            }
        };
        let slot = ino.slot();
        let old = self.renew_bytes(&mut state, caller, slot, &target, (segment, file));
        let opened = self.open_locked(&mut state, caller, slot, options);
        if target.goes == Goes::Nowhere {
            state.leave_to_others(slot, &target);
        }
        drop(state);
        old.into_iter().for_each(|place| self.free_place(place));
        opened
    }

    fn target_of_new(
        &self,
        state: &State,
        credentials: &Credentials,
        ino: Ino,
        (directory, name): &(Ino, Name),
        options: OpenOptions,
    ) -> Result<Target, Error> {
        let is_unused = |object: &&Object| {
            let is_here = matches!(object.place, Place::Solo(_) | Place::Packed(_) | Place::Freed);
            object.phase == Phase::Gone && !object.is_open() && is_here
        };
        state.object(state.slot_of(ino)?).filter(is_unused).ok_or(Error::Stale)?;
        let parent = state.living_directory(*directory)?;
        let present = state.tree.child(parent, name.as_bytes());
        let (is_allowed, goes) = match present {
            None => (state.may_put(credentials, parent, None), Goes::ToName),
            Some(present) => {
                let object = state.object(present).ok_or(Error::IsDirectory)?;
                let is_free = object.phase == Phase::Sealed && object.next_version().is_none();
                let may_write = state.may_search(credentials, parent)
                    && credentials.may_open(&state.tree.node(present).attributes, options);
                (may_write, if is_free { Goes::Over(present) } else { Goes::Nowhere })
            }
        };
        let is_shown = self.is_temporary(name) || is_lock_file(name);
        if !is_allowed || is_shown || state.makes_slot_files(parent) {
            return Err(Error::Stale);
        }
        Ok(Target { parent, name: name.clone(), goes })
    }

    /// Makes the file in `slot` an empty one that is written for `target`. Returns where its bytes were.
    fn renew_bytes(
        &self,
        state: &mut State,
        caller: &Caller,
        slot: Slot,
        target: &Target,
        (segment, file): (SegmentId, File),
    ) -> Option<Place> {
        state.forget_departed(slot);
        state.mark_unverified(slot, false);
        if let Some(kernel) = self.kernel.get() {
            kernel.release_backing(state.tree.ino(slot));
        }
        let mut object = Object::writing(Place::Solo(segment));
        // The kernel knows attributes of the old one.
        object.marks.set(Marks::FRESH, false);
        object.open_mut().file = Some(Arc::new(file));
        let attributes = match target.goes {
            Goes::Over(present) => {
                object.open_mut().policy = state.object(present).map(Object::policy).unwrap_or_default();
                self.stat_of(state, present).attributes
            }
            Goes::ToName | Goes::Nowhere => {
                let mode = state.tree.node(slot).attributes.mode;
                let (gid, _) = state.inherited_group(target.parent, caller.gid);
                Attributes::new(mode.into(), caller.uid, gid, self.now_ns())
            }
        };
        state.tree.node_mut(slot).attributes = attributes;
        let old = state.object_mut(slot).map(|old| std::mem::replace(old, object));
        state.writing.insert(slot);
        match target.goes {
            Goes::ToName => {
                state.take_free_name(slot, target.parent, target.name.clone());
                state.recharge(slot);
            }
            Goes::Over(present) => {
                state.supersede(present, slot, (target.parent, target.name.clone()));
                state.update_hold(present);
                state.tell_clients(present);
                state.part_from_begun(present);
                self.telemetry.copy_ups.increment();
            }
            Goes::Nowhere => {}
        }
        old.map(|old| old.place)
    }
}

impl State {
    /// What was just opened in `slot` has no name, and counts in the quotas above the place that it was opened for.
    fn leave_to_others(&mut self, slot: Slot, target: &Target) {
        self.writing.remove(&slot);
        if let Some(object) = self.object_mut(slot) {
            object.phase = Phase::Gone;
        }
        self.charge_in(slot, target.parent, &target.name);
    }
}
