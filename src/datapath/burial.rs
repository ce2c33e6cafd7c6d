//! What is done outside the lock for an object that left the tables: the kernel is told, and its bytes are freed.

use tidefs_engine::types::ByteCount;

use super::history::Ending;
use super::ssd::SsdRecord;
use super::{Datapath, Object, Place, State};
use crate::namespace::{Ino, Slot};
use crate::tier::eviction::Departure;

/// What is left to do, outside the lock, for an object that left the tables.
#[derive(Debug)]
pub(super) struct Doomed {
    /// Bytes to free. `None` while somebody can still read them through the daemon.
    pub(super) place: Option<Place>,
    /// Bytes that are still read, and that a restart must not find.
    pub(super) retired: Option<Place>,
    /// Its record in the SSD tier.
    pub(super) on_ssd: Option<SsdRecord>,
    /// Whether a restart does not find its record any more.
    pub(super) is_retired: bool,
    /// Its length.
    pub(super) size: ByteCount,
    pub(super) ino: Ino,
    /// Whether the kernel may still show the name.
    pub(super) kernel_knows: bool,
    /// Whether the backing file may be needed by handles that are open, or by opens that are on their way.
    pub(super) is_open: bool,
}

impl Doomed {
    /// Nothing is to be done for the object yet, and its backing file stays.
    pub(super) fn nothing(ino: Ino) -> Self {
        Self {
            place: None,
            retired: None,
            on_ssd: None,
            is_retired: false,
            size: ByteCount::ZERO,
            ino,
            kernel_knows: false,
            is_open: true,
        }
    }

    /// Bytes of an object that stays under its name. The kernel gave its backing file up under the lock: it may have
    /// another one by now.
    pub(super) fn bytes_only(place: Place, size: ByteCount, ino: Ino) -> Self {
        Self { place: Some(place), size, ..Self::nothing(ino) }
    }

    /// The record in the SSD tier of an object that stays under another name.
    pub(super) fn record_only(record: SsdRecord, ino: Ino) -> Self {
        Self { on_ssd: Some(record), ..Self::nothing(ino) }
    }

    /// Takes the bytes of an object that lost its name just now: to free them, or while somebody may still come to them, as when
    /// they are to `linger`, only so that a restart does not find them.
    pub(super) fn take_bytes(&mut self, object: &mut Object, linger: bool) {
        self.is_open = object.is_open() || linger;
        // A segment file may lose its name at any time: who has it open or mapped keeps its pages. A packed object has no file of
        // its own, so its extent stays until it is closed, which is after the last mapping.
        let is_packed = matches!(object.place, Place::Packed(_));
        // So does what a client of the fast path holds a reference to: it may be about to map it.
        let stay = linger || object.references > 0 || (is_packed && self.is_open);
        let are_in_memory = is_packed || matches!(object.place, Place::Solo(_));
        if stay {
            self.retired = are_in_memory.then(|| object.place.clone());
        } else {
            self.place = Some(object.place.clone());
            if are_in_memory {
                // Freed once, now: the kernel may keep the inode for longer.
                object.place = Place::Freed;
            }
        }
    }
}

impl Datapath {
    /// Frees the bytes of an object that left the tables and tells the kernel. Never under the lock.
    pub(super) fn bury(&self, doomed: Doomed) {
        if let Some(kernel) = self.kernel.get() {
            if doomed.kernel_knows {
                kernel.forget_attributes_now(doomed.ino);
            }
            if !doomed.is_open {
                kernel.release_backing(doomed.ino);
            }
        }
        if let Some(record) = &doomed.on_ssd {
            self.remove_from_ssd(record);
        }
        if let Some(place) = &doomed.retired {
            self.retire(place);
        }
        if let Some(place) = doomed.place {
            self.free_place(place);
        }
    }

    /// Takes an object from its name, so that a restart does not find it either: see [`Datapath::retire_all`].
    pub(super) fn remove_object(
        &self,
        state: &mut State,
        slot: Slot,
        departure: Departure,
        ending: (i64, Ending),
    ) -> Doomed {
        self.keep_decorations(state, slot);
        let mut doomed = state.remove_object(slot, departure, Some(ending));
        self.retire_all(std::slice::from_mut(&mut doomed));
        doomed
    }

    /// Makes sure that a restart does not find objects that just left their names. Under the lock: what gets such a name next may
    /// be evicted or removed, and its bytes freed, by somebody else before these are buried, and is not there to take its place
    /// then. The record of a newer version is written already, so a daemon that dies here finds both, and takes the later one.
    pub(super) fn retire_all(&self, left: &mut [Doomed]) {
        for doomed in left.iter_mut().filter(|doomed| !doomed.is_retired) {
            doomed.is_retired = true;
            if let Some(place) = doomed.retired.take().as_ref().or(doomed.place.as_ref()) {
                self.retire(place);
            }
        }
    }

    /// Takes the record from bytes that are still there.
    pub(super) fn retire(&self, place: &Place) {
        let retired = match place {
            Place::Scratch(_) | Place::Ssd | Place::Remote | Place::Freed => Ok(()),
            Place::Packed(extent) => self.tier.retire_packed(*extent),
            Place::Solo(segment) => self.tier.unseal_segment(*segment),
        };
        match retired {
            Ok(()) => {}
            // Whoever read it let go meanwhile.
            Err(error) if error.is_gone() => {}
            Err(error) => tracing::error!(%error, "a removed object may come back after a restart"),
        }
    }

    /// Frees bytes of the memory tier. Scratch frees itself with its last user.
    pub(super) fn free_place(&self, place: Place) {
        self.watch_for_end_of_room();
        match place {
            Place::Scratch(_) | Place::Ssd | Place::Remote | Place::Freed => {}
            Place::Solo(segment) => self.free_segment(segment),
            Place::Packed(extent) => {
                if let Err(error) = self.tier.free_packed(extent) {
                    tracing::error!(%extent, %error, "a packed object could not be freed; its memory stays in use");
                }
            }
        }
    }
}
