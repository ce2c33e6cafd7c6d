//! Objects that are gone by name while programs may still have them open or mapped: their pages are in use until then.
//!
//! A mapping outlives every handle, and only the kernel knows of it: it keeps the inode. So what was opened counts until the
//! kernel forgets it, which it does at once where it drops inodes at our word (Linux 6.18), and else when it likes.
//!
//! Bound: the inodes that the kernel holds, of which these are some.

use std::time::{Duration, Instant};

use hashbrown::HashMap;
use tidefs_engine::types::ByteCount;

use super::burial::Doomed;
use super::room::footprint;
use super::{Datapath, Marks, Place, State};
use crate::namespace::{Ino, Slot};

/// How long the kernel may take to drop what nobody uses, before it counts as used.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often it is looked whether it has.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Bytes of memory of each, by inode number.
#[derive(Debug, Default)]
pub(super) struct Departed(HashMap<Ino, ByteCount>);

impl State {
    /// The sealed object in `slot`, which has lost its name just now, occupies memory.
    pub(super) fn note_departed(&mut self, slot: Slot, size: ByteCount) {
        let ino = self.tree.ino(slot);
        self.departed.0.insert(ino, footprint(size));
    }

    /// Nobody can have it any more.
    pub(super) fn forget_departed(&mut self, slot: Slot) {
        self.departed.0.remove(&self.tree.ino(slot));
    }

    /// Bytes of all that programs may have.
    pub(super) fn held_by_departed(&self) -> ByteCount {
        self.held_by(self.departed.0.keys())
    }

    /// Bytes of those of `inos` that programs may have.
    fn held_by<'a>(&self, inos: impl IntoIterator<Item = &'a Ino>) -> ByteCount {
        let held = inos.into_iter().filter(|ino| self.may_be_in_use(**ino));
        held.filter_map(|ino| self.departed.0.get(ino))
            .fold(ByteCount::ZERO, |sum, bytes| sum.saturating_add(*bytes))
    }

    fn may_be_in_use(&self, ino: Ino) -> bool {
        self.tree.by_ino(ino).and_then(|slot| self.object(slot)).is_some_and(|object| {
            object.is_open() || object.marks.has(Marks::READ) || object.marks.has(Marks::WRITABLE_MAPPING)
        })
    }
}

impl Datapath {
    /// Bytes of what was just evicted that programs have open or mapped: the kernel is asked to drop the rest first.
    pub(super) fn held_of_evicted(&self, evicted: &[Ino]) -> ByteCount {
        let is_idle = |state: &State, ino: &Ino| {
            state
                .tree
                .by_ino(*ino)
                .and_then(|slot| state.object(slot))
                .is_some_and(|object| !object.is_open())
        };
        let idle: Vec<Ino> = {
            let state = self.lock();
            evicted.iter().copied().filter(|ino| is_idle(&state, ino)).collect()
        };
        if let Some(kernel) = self.kernel.get().filter(|_| !idle.is_empty()) {
            kernel.drop_idle(&idle);
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (held, held_by_idle) = {
                let state = self.lock();
                (state.held_by(evicted), state.held_by(&idle))
            };
            if held_by_idle == ByteCount::ZERO || Instant::now() >= deadline {
                return held;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}

impl Doomed {
    /// Bytes of memory that the object occupied: none of one that was on disk or elsewhere alone.
    pub(super) fn resident_bytes(&self) -> ByteCount {
        match self.place.as_ref().or(self.retired.as_ref()) {
            Some(Place::Solo(_) | Place::Packed(_)) => footprint(self.size),
            _ => ByteCount::ZERO,
        }
    }
}
