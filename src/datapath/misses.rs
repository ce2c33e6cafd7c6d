//! Misses: look-ups that found nothing, but for those that a rename makes of its target.
//!
//! The kernel looks up the target of each rename(2), whatever it knows of it, and does not say what for. So a look-up counts
//! once the thread that made it has gone on with something else, or the counters are read.

use tidefs_engine::types::KeyHash;

use super::{Caller, Datapath, State, key_hash};
use crate::namespace::{Name, Slot, ThreadId};

/// Threads that are told from each other; of two with the same place the later one makes the earlier one's look-up count.
const PLACES: u32 = 64;

/// A look-up that found nothing.
#[derive(Clone, Copy, Debug)]
struct Miss {
    thread: ThreadId,
    key: KeyHash,
    namespace: Slot,
}

/// The last look-up of each thread, if it found nothing and may be that of a rename.
#[derive(Debug, Default)]
pub(super) struct Misses(Vec<Option<Miss>>);

impl Misses {
    fn place(&mut self, thread: ThreadId) -> &mut Option<Miss> {
        self.0.resize(PLACES as usize, None);
        &mut self.0[(thread.0 % PLACES) as usize]
    }
}

impl Datapath {
    /// The caller found nothing under a name in `parent` that hashes to `key`.
    pub(super) fn note_miss(&self, state: &mut State, caller: &Caller, parent: Slot, key: KeyHash) {
        let miss = Miss { thread: caller.thread, key, namespace: state.namespace_of(parent) };
        let earlier = if caller.thread.is_known() {
            state.misses.place(caller.thread).replace(miss)
        } else {
            // It may be anybody: what it does next says nothing.
            Some(miss)
        };
        earlier.into_iter().for_each(|miss| self.count_miss(state, miss));
    }

    /// The caller renames to `name` in `parent`: if it has just looked that up, it was for this.
    pub(super) fn forget_miss(&self, state: &mut State, caller: &Caller, parent: Slot, name: &Name) {
        let Ok(directory) = state.directory_id(parent) else { return };
        let key = key_hash(directory, name.as_bytes());
        state.misses.place(caller.thread).take_if(|miss| miss.thread == caller.thread && miss.key == key);
    }

    /// Counts what is left: the counters are about to be read.
    pub(super) fn count_misses(&self, state: &mut State) {
        let left = std::mem::take(&mut state.misses);
        left.0.into_iter().flatten().for_each(|miss| self.count_miss(state, miss));
    }

    fn count_miss(&self, state: &mut State, miss: Miss) {
        self.telemetry.misses.increment();
        if let Some(folder) = state.folders.get_mut(miss.namespace) {
            folder.misses += 1;
        }
    }
}
