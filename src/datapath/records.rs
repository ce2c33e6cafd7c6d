//! Records: what a restart finds of an object, written anew when something of it changes.

use std::sync::Arc;

use tidefs_engine::types::{ByteCount, DirectoryId, Version};

use super::{Datapath, Error, Marks, Object, Phase, Place, State};
use crate::namespace::{Name, Slot};
use crate::tier::memory::{DECORATED, ObjectRecord, SOFT_COPY, UNFINISHED};

impl Datapath {
    /// Writes the record of a sealed object anew, after its attributes or policy changed.
    ///
    /// # Errors
    /// [`Error::NothingEvictable`] when a packed object finds no room for it; see [`Datapath::with_room`].
    pub(super) fn rewrite_record(&self, state: &mut State, slot: Slot) -> Result<(), Error> {
        let Some(object) = state.object(slot).filter(|object| object.phase == Phase::Sealed) else {
            return Ok(());
        };
        let version = object.version;
        let node = state.tree.node(slot);
        let (parent, name, ctime_ns) = (node.parent, state.tree.name(slot), node.attributes.ctime_ns);
        self.write_record(state, slot, (parent, &name), version, ctime_ns)
    }

    /// Writes the record that a sealed object has under `name` in `parent`, before it is moved there.
    ///
    /// # Errors
    /// As [`Datapath::rewrite_record`]; then the old record stands.
    pub(super) fn write_record(
        &self,
        state: &mut State,
        slot: Slot,
        (parent, name): (Slot, &Name),
        version: Version,
        ctime_ns: i64,
    ) -> Result<(), Error> {
        let directory = state.directory_id(parent)?;
        if let Some(object) = state.object_mut(slot) {
            object.marks.set(Marks::STALE_ON_SSD, true);
        }
        let object = state.object(slot).ok_or(Error::IsDirectory)?;
        let file = match object.place {
            Place::Solo(segment) => Some(match object.file() {
                Some(file) => Arc::clone(file),
                None => Arc::new(self.tier.open_segment(segment)?),
            }),
            Place::Packed(_) | Place::Scratch(_) | Place::Ssd | Place::Remote | Place::Freed => None,
        };
        if let Some(file) = file.as_ref().filter(|_| !object.marks.has(Marks::FINAL)) {
            // Its writer may have gone on since the seal.
            let before = object.size;
            let now = ByteCount(file.metadata().map_err(Error::io("stat of a segment"))?.len());
            self.account_growth(state, slot, before, now);
        }
        let checksum = state.object(slot).map(|object| self.recorded_checksum(object));
        let mut record = state.object_record(slot, directory, name);
        // A record that cannot be read is written anew; its checksum is taken again when somebody asks.
        record.checksum = checksum.and_then(Result::ok).flatten();
        record.version = version;
        record.ctime_ns = ctime_ns;
        if let Some(file) = file {
            return Ok(self.tier.seal(&file, &record)?);
        }
        let Some(Place::Packed(old)) = state.object(slot).map(|object| object.place.clone()) else {
            return Ok(());
        };
        let namespace = state.directory_id(state.namespace_of(parent))?;
        let extent = self.tier.rewrite_packed(old, namespace, &record)?;
        // Readers find the extent in the table, under the lock, so none is on the old one.
        if let Some(object) = state.object_mut(slot) {
            object.place = Place::Packed(extent);
        }
        Ok(())
    }
}

impl State {
    /// What a restart needs to know of an object, but the checksum, which only its record has.
    pub(super) fn object_record(&self, slot: Slot, parent: DirectoryId, name: &Name) -> ObjectRecord {
        let attributes = self.tree.node(slot).attributes;
        let object = self.object(slot);
        // One that is on other members now is about to be here.
        let is_soft = object.is_some_and(|object| object.is_remote() || object.marks.has(Marks::SOFT));
        let soft = if is_soft { SOFT_COPY } else { 0 };
        let is_decorated = object.is_some_and(|object| object.marks.has(Marks::DECORATED));
        let decorated = if is_decorated { DECORATED } else { 0 };
        // Who has it open keeps its segment beyond the end of the daemon.
        let unfinished = if object.is_some_and(|object| object.writers() > 0) { UNFINISHED } else { 0 };
        let predecessor = self.standing(slot).and_then(|standing| standing.predecessor);
        ObjectRecord {
            parent,
            name: name.as_bytes().to_vec(),
            version: object.map(|object| object.version).unwrap_or_default(),
            size: object.map(|object| object.size).unwrap_or_default(),
            checksum: None,
            mode: u32::from(attributes.mode) | soft | decorated | unfinished,
            uid: attributes.uid,
            gid: attributes.gid,
            mtime_ns: attributes.mtime_ns,
            atime_ns: attributes.atime_ns,
            ctime_ns: attributes.ctime_ns,
            sealed_at_ns: object.map(|object| object.sealed_at_ns).unwrap_or_default(),
            predecessor: predecessor.and_then(|before| Some(self.object(Slot(before.0))?.version)),
            policy: object.map(Object::policy).unwrap_or_default(),
        }
    }
}
