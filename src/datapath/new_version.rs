//! New versions: what a writer makes of a sealed object that others use, beside it and hidden until it is whole.
//!
//! Invariants
//! - The object stays as it is for those who read it, whatever becomes of the version.
//! - There is at most one for each name: who comes to write joins in.
//! - It begins with as many bytes of the object as are wanted, all of one version, or not at all.

use std::fs::File;
use std::sync::Arc;

use tidefs_engine::types::{ByteCount, SegmentId, Version};

use super::room::footprint;
use super::{Caller, Datapath, Error, Marks, Object, OpenOptions, Phase, Place, decorations};
use crate::namespace::{Body, Ino};

impl Datapath {
    /// As [`Datapath::begin_version`], or joins the one that was begun. What is being written already is left as it is.
    ///
    /// # Errors
    /// The same, and [`Error::Stale`] when the object has left its name.
    pub(super) fn begin_version_if_sealed(
        &self,
        caller: &Caller,
        ino: Ino,
        options: OpenOptions,
    ) -> Result<(), Error> {
        {
            let mut state = self.lock();
            let slot = state.slot_of(ino)?;
            match state.object(slot).map(|object| object.phase) {
                Some(Phase::Sealed) => {}
                Some(Phase::Gone) => return Err(Error::Stale),
                Some(Phase::Writing | Phase::Parked) | None => return Ok(()),
            }
            if let Some(next) = state.version_to_join(slot) {
                // Somebody writes one already, and the caller joins in.
                self.expect_writer(&mut state, caller, next);
                return Ok(());
            }
        }
        self.begin_version(caller, ino, options)
    }

    /// Begins a hidden new version over the sealed object `ino`, which somebody uses, with as many of its bytes as are
    /// wanted. The kernel is sent to look the name up again, and its writer finds the new version.
    pub(super) fn begin_version(&self, caller: &Caller, ino: Ino, options: OpenOptions) -> Result<(), Error> {
        {
            let mut state = self.lock();
            let slot = state.slot_of(ino)?;
            state.object(slot).ok_or(Error::IsDirectory)?;
            // What makes room for its copy must not evict it.
            state.hold(slot);
        }
        let outcome = self.begin_version_of_held(caller, ino, options.wanted_max());
        let mut state = self.lock();
        if let Some(slot) = state.tree.by_ino(ino) {
            state.update_hold(slot);
        }
        outcome
    }

    fn begin_version_of_held(
        &self,
        caller: &Caller,
        ino: Ino,
        wanted_max: Option<ByteCount>,
    ) -> Result<(), Error> {
        let (parent, size, (counted, is_beside_another), version, place) = {
            let state = self.lock();
            let slot = state.slot_of(ino)?;
            let object = state.object(slot).ok_or(Error::IsDirectory)?;
            let counted = state.discount_of_version(slot);
            // As it is now: a writer may have gone on after the rename that sealed it.
            let size = self.stat_of(&state, slot).size;
            (state.tree.node(slot).parent, size, counted, object.version, object.place.clone())
        };
        let kept = wanted_max.map_or(size, |wanted_max| size.min(wanted_max));
        // Its place in the quota is that of the old version.
        self.make_room_in_quota(footprint(kept).saturating_sub(counted), parent)?;
        let (id, file) = self.tier.create_segment()?;
        let copied = self.reserve(&file, ByteCount::ZERO, kept, parent).and_then(|()| {
            if kept > ByteCount::ZERO { self.copy_object(ino, &file, wanted_max) } else { Ok(()) }
        });
        let is_entered =
            copied.and_then(|()| self.enter_version(caller, ino, (id, file), kept, (version, &place)));
        if !matches!(is_entered, Ok(true)) {
            self.free_place(Place::Solo(id));
        }
        if is_beside_another {
            // That counts whole from now on.
            self.trim_to_quota(parent);
        }
        is_entered.map(drop)
    }

    /// Enters a new version of the object `ino`, which keeps `kept` bytes of it in `segment`, into the tables. `false` when another
    /// writer was faster, whom this one joins. What all had closed before the object took its name gives way to it.
    ///
    /// # Errors
    /// [`Error::Stale`] when it is not what was copied: that `version`, in that place, under a name.
    fn enter_version(
        &self,
        caller: &Caller,
        ino: Ino,
        segment: (SegmentId, File),
        kept: ByteCount,
        (version, place): (Version, &Place),
    ) -> Result<bool, Error> {
        let (id, file) = segment;
        let mut state = self.lock();
        let slot = state.slot_of(ino)?;
        let attributes = self.stat_of(&state, slot).attributes;
        let node = state.tree.node(slot);
        let (parent, name) = (node.parent, state.tree.name(slot));
        if node.is_detached() {
            return Err(Error::Stale);
        }
        if let Some(next) = state.version_to_join(slot) {
            self.expect_writer(&mut state, caller, next);
            return Ok(false);
        }
        let old = state.object(slot).ok_or(Error::IsDirectory)?;
        let is_same = old.phase == Phase::Sealed
            && old.version == version
            && (kept == ByteCount::ZERO || old.place.is_same(place));
        if !is_same {
            // Written in place, or moved, while it was copied.
            return Err(Error::Stale);
        }
        let policy = old.policy();
        let is_decorated = old.marks.has(Marks::DECORATED) && !Self::is_away(&old.place);
        if is_decorated {
            let source = self.backing_file_of(&state, slot);
            source.and_then(|source| {
                decorations::copy(&source, &file).map_err(Error::io("attributes of an object"))
            })?;
        }
        self.stamp(&file, &attributes);
        // Who has that open goes on without a name, as after a rename over it.
        let mut overtaken = state.next_version(slot).map(|next| state.discard_writing(next));
        self.retire_all(overtaken.as_mut_slice());
        let mut object = Object::writing(Place::Solo(id));
        object.marks.set(Marks::DECORATED, is_decorated);
        let open = object.open_mut();
        open.policy = policy;
        open.file = Some(Arc::new(file));
        open.reserved = kept.round_up_to_pages();
        open.sized = kept;
        open.supersedes = Some((parent, name));
        let version = state.tree.make(attributes, Body::File(object));
        state.writing.insert(version);
        self.expect_writer(&mut state, caller, version);
        if let Some(old) = state.object_mut(slot) {
            old.open_mut().next_version = Some(version);
        }
        // What gave way had kept the object from leaving: it is not to go for the room that is made next.
        state.update_hold(slot);
        state.tell_clients(slot);
        state.part_from_begun(slot);
        state.recharge(version);
        self.telemetry.copy_ups.increment();
        drop(state);
        overtaken.into_iter().for_each(|doomed| self.bury(doomed));
        Ok(true)
    }
}
