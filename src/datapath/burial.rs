//! What is done outside the lock for an object that left the tables: the kernel is told, and its bytes are freed.

use tidefs_engine::types::ByteCount;

use super::history::Ending;
use super::ssd::SsdRecord;
use super::{Datapath, Place, State};
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
    /// Bytes of an object that stays under its name. The kernel gave its backing file up under the lock: it may have
    /// another one by now.
    pub(super) fn bytes_only(place: Place, size: ByteCount, ino: Ino) -> Self {
        let place = Some(place);
        Self {
            place,
            retired: None,
            on_ssd: None,
            is_retired: false,
            size,
            ino,
            kernel_knows: false,
            is_open: true,
        }
    }

    /// The record in the SSD tier of an object that stays under another name.
    pub(super) fn record_only(record: SsdRecord, ino: Ino) -> Self {
        let size = ByteCount::ZERO;
        Self {
            place: None,
            retired: None,
            on_ssd: Some(record),
            is_retired: false,
            size,
            ino,
            kernel_knows: false,
            is_open: true,
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
