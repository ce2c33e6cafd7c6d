//! What left its name while the kernel knew it: its bytes stay a moment for who is about to open them.
//!
//! A look-up and the open that follows it are two requests. Who looked a name up just before its object was replaced opens
//! the old version, so its bytes stay until the kernel forgets the inode, until the second sweep, or until room is needed
//! that nothing else gives. An open that comes later still is told to look the name up again.
//!
//! The kernel need not forget by itself: it keeps an inode with the name under which it knew it, and nobody may ever ask
//! for that name again. So a sweep also asks it to drop the inode.
//!
//! Bound: what left its names within two sweeps.

use tidefs_engine::types::ByteCount;

use super::{Datapath, Phase, Place, State};
use crate::namespace::{Ino, Slot};

/// Inodes without a name that nobody has open, by the sweep before which they came.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    fresh: Vec<Ino>,
    old: Vec<Ino>,
}

/// Which of them go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lingerers {
    /// Those that were here at the last sweep.
    Old,
    /// All.
    All,
}

impl Lingering {
    fn take(&mut self, which: Lingerers) -> Vec<Ino> {
        let mut taken = std::mem::take(&mut self.old);
        if which == Lingerers::All {
            taken.append(&mut self.fresh);
        }
        taken
    }

    /// Lets what came since the last sweep grow old.
    fn age(&mut self) {
        self.old.append(&mut self.fresh);
    }
}

impl State {
    /// Notes a file that left its name, if the kernel knows it and nobody has it open: the sweep after next lets it go.
    pub(super) fn linger(&mut self, slot: Slot) {
        let is_left = self.tree.get(slot).is_some_and(|node| node.is_detached() && node.lookups > 0);
        if is_left && self.object(slot).is_some_and(|object| object.phase == Phase::Gone && !object.is_open())
        {
            self.lingering.fresh.push(self.tree.ino(slot));
        }
    }
}

impl Datapath {
    /// Frees the bytes of what left its name two sweeps ago and is not open, and asks the kernel to drop its inodes.
    pub fn sweep(&self) {
        self.let_linger_no_more(Lingerers::Old);
        self.lock().lingering.age();
        self.age_blanks();
    }

    /// Frees the bytes of those that linger. Returns whether there were any in memory.
    pub(super) fn let_linger_no_more(&self, which: Lingerers) -> bool {
        let (mut places, mut slot_files, mut idle) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut state = self.lock();
            let lingering = state.lingering.take(which);
            if lingering.is_empty() {
                return false; // nearly always, and this is asked before each eviction
            }
            for ino in lingering {
                let Some(slot) = state.tree.by_ino(ino) else { continue };
                let Some(object) = state.object_mut(slot) else { continue };
                if object.phase != Phase::Gone || object.is_open() {
                    continue; // its last close notes it again
                }
                idle.push(ino);
                match object.place {
                    Place::Ssd | Place::Remote | Place::Freed => {}
                    // It frees itself with its last user, which is this one.
                    Place::Scratch(_) => slot_files.push(std::mem::replace(&mut object.place, Place::Freed)),
                    Place::Solo(_) | Place::Packed(_) => {
                        places.push(std::mem::replace(&mut object.place, Place::Freed));
                    }
                }
                if let Some(kernel) = self.kernel.get() {
                    // Under the lock, so that no open of this inode comes in between; it does not wait.
                    kernel.release_backing(ino);
                }
            }
        }
        if let Some(kernel) = self.kernel.get() {
            kernel.drop_idle(&idle);
        }
        let had_bytes = !places.is_empty();
        places.into_iter().chain(slot_files).for_each(|place| self.free_place(place));
        had_bytes
    }

    /// Gives up what nobody can ask for by a name: segments that wait to be used again, until `wanted` bytes are free, and
    /// what has lingered. Returns whether there was any.
    pub(super) fn free_what_waits(&self, wanted: ByteCount) -> bool {
        self.drain_pool(wanted) || self.let_linger_no_more(Lingerers::Old)
    }
}
