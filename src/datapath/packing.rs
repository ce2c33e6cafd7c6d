//! Small objects: copied together into packed segments, and back into segments of their own.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tidefs_engine::types::ByteCount;

use super::afterwards::Afterwards;
use super::{Datapath, Error, Marks, Object, Phase, Place, State};
use crate::namespace::{Ino, Slot};
use crate::tier::memory::{DECORATED, PackedExtent, checksum_bytes};

impl Datapath {
    /// Copies a small object that nobody has open or mapped writable into a packed segment, and frees its own.
    pub(super) fn pack_if_small(
        &self,
        state: &mut State,
        slot: Slot,
        file: &std::fs::File,
        afterwards: &mut Afterwards,
    ) -> bool {
        let Some(object) = state.object(slot) else { return false };
        let Place::Solo(segment) = object.place else { return false };
        let size = object.size;
        let is_packable = size < self.settings.packed_max
            && !object.is_open()
            && object.phase == Phase::Sealed
            && !object.marks.has(Marks::WRITABLE_MAPPING)
            && !object.marks.has(Marks::DECORATED);
        if !is_packable {
            return false;
        }
        match self.pack(state, slot, file) {
            Ok(extent) => {
                if let Some(object) = state.object_mut(slot) {
                    object.move_to(Place::Packed(extent));
                }
                if let Some(kernel) = self.kernel.get() {
                    kernel.release_backing(state.tree.ino(slot));
                }
                afterwards.places.push((Place::Solo(segment), size));
                true
            }
            Err(error) => {
                self.telemetry.pack_refusals.increment();
                tracing::debug!(%error, "a small object keeps its own segment");
                false
            }
        }
    }

    fn pack(&self, state: &State, slot: Slot, file: &std::fs::File) -> Result<PackedExtent, Error> {
        let object = state.object(slot).ok_or(Error::IsDirectory)?;
        let length = usize::try_from(object.size.get()).map_err(|_| Error::Invalid("too large to pack"))?;
        let mut data = vec![0; length];
        file.read_exact_at(&mut data, 0).map_err(Error::io("read of a small object"))?;
        let node = state.tree.node(slot);
        let directory = state.directory_id(node.parent)?;
        let namespace = state.directory_id(state.namespace_of(slot))?;
        let mut record = state.object_record(slot, directory, &state.tree.name(slot));
        // Its bytes are at hand, and few.
        record.checksum = Some(checksum_bytes(&data));
        let extent = self.tier.pack(namespace, &record, &data)?;
        self.telemetry.packed_bytes.add(length as u64);
        Ok(extent)
    }

    /// Gives a packed object a segment of its own. Who has it open reads on from there, by the daemon. Returns whether it was
    /// packed.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when it has no name any more.
    pub(super) fn unpack(&self, ino: Ino) -> Result<bool, Error> {
        let (directory, size) = {
            let mut state = self.lock();
            let slot = state.slot_of(ino)?;
            let is_packed = |object: &&Object| matches!(object.place, Place::Packed(_));
            let Some(object) = state.object(slot).filter(is_packed) else { return Ok(false) };
            let size = object.size;
            // What makes room for its segment must not evict it.
            state.hold(slot);
            (state.tree.node(slot).parent, size)
        };
        let outcome = self.unpack_held(ino, size, directory);
        let mut state = self.lock();
        if let Some(slot) = state.tree.by_ino(ino) {
            state.update_hold(slot);
        }
        outcome
    }

    fn unpack_held(&self, ino: Ino, size: ByteCount, directory: Slot) -> Result<bool, Error> {
        let (segment, file) = self.tier.create_segment()?;
        let moved = self.reserve(&file, ByteCount::ZERO, size, directory).and_then(|()| {
            let mut state = self.lock();
            let slot = state.slot_of(ino)?;
            let object = state.object(slot).ok_or(Error::IsDirectory)?;
            let Place::Packed(extent) = object.place else { return Ok(None) };
            // Clients of the fast path hold no references to what is packed.
            if object.phase != Phase::Sealed || object.size != size {
                return Err(Error::Unsupported(
                    "attributes of applications on a small object without a name",
                ));
            }
            let data = self.tier.read_packed_whole(&extent, size)?;
            file.write_all_at(&data, 0).map_err(Error::io("copy of a packed object"))?;
            let node = state.tree.node(slot);
            let mut record =
                state.object_record(slot, state.directory_id(node.parent)?, &state.tree.name(slot));
            record.checksum = self.recorded_checksum(object)?;
            record.mode |= DECORATED;
            self.tier.seal(&file, &record)?;
            self.decorate(&mut state, slot);
            if let Some(object) = state.object_mut(slot) {
                object.move_to(Place::Solo(segment));
                if object.is_open() {
                    object.open_mut().file = Some(Arc::new(file));
                }
            }
            Ok(Some(extent))
        });
        match moved {
            Ok(Some(extent)) => {
                self.free_place(Place::Packed(extent));
                Ok(true)
            }
            Ok(None) => {
                self.free_place(Place::Solo(segment));
                Ok(false)
            }
            Err(error) => {
                self.free_place(Place::Solo(segment));
                Err(error)
            }
        }
    }

    /// Copies the bytes of the object `ino`, or as many as are wanted, into `target`, through a buffer of the daemon.
    pub(super) fn copy_object(
        &self,
        ino: Ino,
        target: &std::fs::File,
        wanted_max: Option<ByteCount>,
    ) -> Result<(), Error> {
        let wanted_max = wanted_max.map_or(u64::MAX, ByteCount::get);
        let packed = {
            let state = self.lock();
            let slot = state.slot_of(ino)?;
            let object = state.object(slot).ok_or(Error::IsDirectory)?;
            match &object.place {
                Place::Packed(extent) => {
                    let mut data = self.tier.read_packed_whole(extent, object.size)?;
                    data.truncate(usize::try_from(wanted_max).unwrap_or(usize::MAX));
                    Some(data)
                }
                _ => None,
            }
        };
        if let Some(data) = packed {
            return target.write_all_at(&data, 0).map_err(Error::io("copy of a packed object"));
        }
        let source = self.backing_file(ino)?;
        let length = source.metadata().map_err(Error::io("stat of a segment"))?.len();
        let length = length.min(wanted_max);
        copy_range(&source, target, length).map_err(|error| self.copy_failed(ino, error))?;
        self.telemetry.copied_bytes.add(length);
        Ok(())
    }
}

/// Copies `length` bytes between the starts of two files without moving either's position.
pub(super) fn copy_range(source: &std::fs::File, target: &std::fs::File, length: u64) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < length {
        let wanted = usize::try_from(length - offset).unwrap_or(usize::MAX).min(buffer.len());
        source.read_exact_at(&mut buffer[..wanted], offset)?;
        target.write_all_at(&buffer[..wanted], offset)?;
        offset += wanted as u64;
    }
    Ok(())
}
