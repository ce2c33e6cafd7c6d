//! Owner, mode and times: changed on sealed objects too, and kept across restarts.

use std::sync::Arc;

use super::{Caller, Datapath, Error, HandleId, Marks, Object, Phase, SizeChange, Stat, State};
use crate::namespace::{Attributes, Ino, Slot, permissions};
use crate::tier::scratch::Wait;

/// What setattr changes. `None` leaves a thing as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttributeChange {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length.
    pub size: Option<tidefs_engine::types::ByteCount>,
    /// Last use, in nanoseconds since 1970.
    pub atime_ns: Option<i64>,
    /// Last change of the contents, in nanoseconds since 1970.
    pub mtime_ns: Option<i64>,
    /// The handle through which the length is changed, if not by name.
    pub through: Option<HandleId>,
}

impl AttributeChange {
    /// Whether it sets anything, be it to what it is.
    fn is_any(&self) -> bool {
        self.is_of_access() || self.size.is_some() || self.atime_ns.is_some() || self.mtime_ns.is_some()
    }

    /// Whether it is about who may do what.
    #[must_use]
    pub fn is_of_access(&self) -> bool {
        self.mode.is_some() || self.uid.is_some() || self.gid.is_some()
    }
}

impl Datapath {
    /// Changes attributes of `ino` and returns all of them.
    ///
    /// # Errors
    /// As [`Datapath::change_size`] for a length; [`Error::Io`] when the record cannot be written; [`Error::NoObject`] of
    /// who may do what with an object that is on disk alone.
    pub fn setattr(&self, caller: &Caller, ino: Ino, change: &AttributeChange) -> Result<Stat, Error> {
        self.setattr_within(caller, ino, change, Wait::Patiently)
    }

    /// The same, with a limit to the wait for room of a slot file.
    ///
    /// # Errors
    /// As [`setattr`](Self::setattr).
    pub fn setattr_within(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &AttributeChange,
        wait: Wait,
    ) -> Result<Stat, Error> {
        let set = || self.with_room_for(ino, || self.set_attributes(caller, ino, change));
        match change.size {
            None => set(),
            Some(size) => {
                self.change_size_and(caller, ino, (change.through, SizeChange::Set(size)), wait, set)
            }
        }
    }

    fn set_attributes(&self, caller: &Caller, ino: Ino, change: &AttributeChange) -> Result<Stat, Error> {
        let now_ns = self.now_ns();
        let mut state = self.lock();
        let slot = state.slot_in_use(ino)?;
        if change.is_of_access() && state.object(slot).is_some_and(Object::is_on_ssd_alone) {
            // It was to be brought back before, and could not be. What its record on disk allows would be allowed again.
            return Err(Error::NoObject);
        }
        let changes_owner = change.uid.is_some() || change.gid.is_some();
        let is_file = state.object(slot).is_some();
        let was_stale = state.object(slot).is_some_and(|object| object.marks.has(Marks::STALE_ON_SSD));
        let loses_privileges = is_file && (changes_owner || (change.size.is_some() && caller.uid != 0));
        let attributes = &mut state.tree.node_mut(slot).attributes;
        let before = *attributes;
        if loses_privileges {
            attributes.drop_privileges();
        }
        attributes.mode = change.mode.map_or(attributes.mode, permissions);
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        attributes.atime_ns = change.atime_ns.unwrap_or(attributes.atime_ns);
        attributes.mtime_ns = change.mtime_ns.unwrap_or(attributes.mtime_ns);
        if change.size.is_some() && change.mtime_ns.is_none() {
            attributes.mtime_ns = now_ns;
        }
        let is_of_use_alone =
            change.size.is_none() && Attributes { atime_ns: before.atime_ns, ..*attributes } == before;
        if change.is_any() {
            attributes.ctime_ns = now_ns;
            let persisted = if state.tree.directory(slot).is_some() {
                self.persist_directory(&mut state, slot)
            } else {
                self.rewrite_record(&mut state, slot)
            };
            if let Err(error) = persisted {
                state.tree.node_mut(slot).attributes = before;
                return Err(error);
            }
            // A cache that touches what it hits is not to have all of it written to disk again.
            if is_of_use_alone && let Some(object) = state.object_mut(slot) {
                object.marks.set(Marks::STALE_ON_SSD, was_stale);
            }
            if change.mode.or(change.uid).or(change.gid).is_some() {
                state.tell_clients(slot);
            }
            // A version that is being written takes its place, as the file that it is to everybody.
            if let Some(next) = state.next_version(slot) {
                let attributes = &mut state.tree.node_mut(next).attributes;
                if loses_privileges {
                    attributes.drop_privileges();
                }
                attributes.mode = change.mode.map_or(attributes.mode, permissions);
                attributes.uid = change.uid.unwrap_or(attributes.uid);
                attributes.gid = change.gid.unwrap_or(attributes.gid);
            }
        }
        if change.mtime_ns.is_some()
            && let Some(file) = self.file_to_stamp(&state, slot)
        {
            let attributes = state.tree.node(slot).attributes;
            let before = state.content_if_noted(slot);
            if state.object(slot).is_some_and(Object::is_slot_file) {
                // Without the lock: it is on a disk.
                drop(state);
                self.stamp(&file, &attributes);
                self.lock().note_stamped(slot, before);
                return self.getattr(ino);
            }
            self.stamp(&file, &attributes);
            state.note_stamped(slot, before);
        }
        let stat = self.stat_of(&state, slot);
        Ok(stat)
    }

    /// An attribute of a program was set or removed: that moves ctime, as the kernel expects.
    pub(super) fn note_attribute(&self, ino: Ino) -> Result<(), Error> {
        self.with_room_for(ino, || {
            let now_ns = self.now_ns();
            let mut state = self.lock();
            let slot = state.slot_of(ino)?;
            state.tree.node_mut(slot).attributes.ctime_ns = now_ns;
            if state.tree.directory(slot).is_some() {
                self.persist_directory(&mut state, slot)
            } else {
                self.rewrite_record(&mut state, slot)
            }
        })
    }

    /// The backing file of what is not finished, or is open: its times say whether it is written after its owner set them.
    fn file_to_stamp(&self, state: &State, slot: Slot) -> Option<Arc<std::fs::File>> {
        let object = state.object(slot)?;
        let is_final = object.phase == Phase::Sealed && object.marks.has(Marks::FINAL);
        if is_final { object.file().cloned() } else { self.backing_file_of(state, slot).ok() }
    }

    /// Gives a backing file that is being written the times that its owner set.
    pub(super) fn stamp(&self, file: &std::fs::File, attributes: &Attributes) {
        let times = std::fs::FileTimes::new()
            .set_accessed(crate::namespace::time_of(attributes.atime_ns))
            .set_modified(crate::namespace::time_of(attributes.mtime_ns));
        if let Err(error) = file.set_times(times) {
            tracing::debug!(%error, "times of a segment could not be set");
        }
    }
}
