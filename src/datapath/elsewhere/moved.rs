//! Copies that go from memory to a disk of this host, or come back. The catalog is told now and then, so that others ask first who
//! has it in memory; what went there and back in between is told once, as it lies then.
//!
//! Limits: [`MOVED_MAX`] copies wait to be told; of more the catalog hears when their shard is announced again. Until then they
//! are asked for in another order than the best.

use super::super::{Datapath, State};
use crate::cluster::Holding;
use crate::namespace::Slot;

/// Copies that wait to be told: 2 MiB at most.
const MOVED_MAX: usize = 1 << 18;

impl State {
    /// The bytes of the object in `slot` are on a disk now and were in memory, or the other way round.
    pub(in crate::datapath) fn note_moved(&mut self, slot: Slot) {
        let moved = &mut self.elsewhere.moved;
        if self.elsewhere.cluster.is_some() && moved.len() < MOVED_MAX {
            moved.insert(slot);
        }
    }
}

impl Datapath {
    /// Tells of up to `max` of the copies that moved, as they lie now; of none that is gone meanwhile. Returns how many those
    /// are.
    pub(super) fn tell_moved(&self, max: usize) -> usize {
        let Some(side) = self.cluster.get() else { return 0 };
        // Told under the lock: that one leaves is told after this.
        let mut state = self.lock();
        let slots: Vec<Slot> = state.elsewhere.moved.extract_if(|_| true).take(max).collect();
        for &slot in &slots {
            if let Some(Holding { path, stamp, medium, .. }) = self.told_holding(&state, slot) {
                side.cluster.hold(&path, stamp, medium);
            }
        }
        slots.len()
    }
}
