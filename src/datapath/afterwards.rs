//! What is left to do when a flow has let the lock go.

use std::sync::Weak;

use tidefs_engine::types::ByteCount;

use super::burial::Doomed;
use super::{Datapath, Place};
use crate::cluster::Stamp;
use crate::namespace::Ino;

/// What is done after the lock is let go.
#[derive(Debug, Default)]
pub(super) struct Afterwards {
    pub(super) doomed: Vec<Doomed>,
    /// Bytes to free, and how many they are.
    pub(super) places: Vec<(Place, ByteCount)>,
    /// Inodes whose attributes the kernel should ask for again.
    pub(super) changed: Vec<Ino>,
    /// Whether one of them is open and was moved to a name that stands for something else to one process: the kernel is to
    /// look that name up again, and can only be told to do so for all.
    pub(super) moved_open: bool,
    /// Objects that no other member was told of.
    pub(super) untold: Vec<Ino>,
    /// Names that stand for something on this host alone now, each with the version that went.
    pub(super) removed: Vec<(Vec<u8>, Stamp)>,
    /// Inodes whose checksum is to be taken when the machine is idle.
    pub(super) unchecked: Vec<Ino>,
    /// Objects that a disk is to have soon.
    pub(super) durable: Vec<Ino>,
}

impl Afterwards {
    /// What comes of something else, too.
    pub(super) fn extend(&mut self, other: Option<Self>) {
        let Some(other) = other else { return };
        // All of it by name, so that nothing that is added is left out here.
        let Self { doomed, places, changed, moved_open, untold, removed, unchecked, durable } = other;
        self.doomed.extend(doomed);
        self.places.extend(places);
        self.changed.extend(changed);
        self.moved_open |= moved_open;
        self.untold.extend(untold);
        self.removed.extend(removed);
        self.unchecked.extend(unchecked);
        self.durable.extend(durable);
    }
}

impl Datapath {
    /// Does it. Never under the lock.
    pub(super) fn carry_out(&self, afterwards: Afterwards) {
        afterwards.doomed.into_iter().for_each(|doomed| self.bury(doomed));
        afterwards.places.into_iter().for_each(|(place, _)| self.free_place(place));
        if let (Some(kernel), true) = (self.kernel.get(), !afterwards.changed.is_empty()) {
            // Before the request is answered: whoever looks next must not be told what the kernel had at hand.
            afterwards.changed.iter().for_each(|&ino| kernel.forget_attributes_now(ino));
            if afterwards.moved_open {
                // A kernel that cannot goes on to show the object to that one process, too.
                kernel.forget_names();
            }
        }
        for (path, through) in afterwards.removed {
            self.remove_later(path, through);
        }
        if let (Some(this), false) = (self.this.get().and_then(Weak::upgrade), afterwards.untold.is_empty()) {
            this.tell_later(afterwards.untold);
        }
        for ino in afterwards.unchecked {
            self.check_later(ino);
        }
        for ino in afterwards.durable {
            self.persist_later(ino);
        }
    }
}
