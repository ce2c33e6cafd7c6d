//! What an operator has evicted: one object, or those below a directory that are meant, but for what has to stay.
//!
//! Limits: of all that stay the number is told, of [`STAYED_NAMED_MAX`] the name and what keeps them.

use std::ops::ControlFlow;

use hashbrown::HashSet;
use tidefs_engine::types::ByteCount;

use super::super::burial::Doomed;
use super::super::history::Ending;
use super::super::inspect::{EvictionProgress, Obstacle, OperatorEviction, STAYED_NAMED_MAX};
use super::super::{Datapath, Error, Phase, State};
use crate::namespace::{Ino, Slot};

/// What an operator's eviction did to one object.
enum Judged {
    Gone(Doomed),
    Stays(Ino, Vec<u8>, Obstacle),
    Unmeant,
}

impl Datapath {
    /// Evicts the object at `path`, or of all below it those whose path `fits`: what nobody uses or has pinned, or all with
    /// `force`. Tells `progress` after each part, until that breaks it off.
    ///
    /// # Errors
    /// [`Error::NoObject`].
    pub fn evict_below(
        &self,
        path: &[u8],
        fits: impl Fn(&[u8]) -> bool,
        force: bool,
        mut progress: impl FnMut(&EvictionProgress) -> ControlFlow<()>,
    ) -> Result<OperatorEviction, Error> {
        let now_ns = self.now_ns();
        let evict = |state: &mut State, slot| {
            state.object(slot)?;
            let path = state.tree.path(slot);
            if !fits(&path) {
                return Some(Judged::Unmeant);
            }
            Some(match state.obstacle(slot, force) {
                Some(obstacle) => Judged::Stays(state.tree.ino(slot), path, obstacle),
                None => Judged::Gone(state.evict_object(slot, now_ns, Ending::EvictedByOperator)),
            })
        };
        let mut so_far = EvictionProgress { total: self.objects_below(path), ..EvictionProgress::default() };
        // Of all that stay the number is kept, of few the name.
        let (mut stayed, mut named) = (HashSet::new(), Vec::new());
        let (mut evicted, mut elsewhere) = (Vec::new(), ByteCount::ZERO);
        self.in_parts_below(path, evict, |part| {
            let mut doomed = Vec::new();
            so_far.looked_at += part.len() as u64;
            for judged in part {
                match judged {
                    Judged::Gone(gone) => doomed.push(gone),
                    Judged::Stays(ino, path, obstacle) => {
                        // What was moved ahead meanwhile is met twice.
                        if stayed.insert(ino) && named.len() < STAYED_NAMED_MAX {
                            named.push((path, obstacle));
                        }
                    }
                    Judged::Unmeant => {}
                }
            }
            so_far.objects += doomed.len() as u64;
            for gone in &doomed {
                let resident = gone.resident_bytes();
                so_far.bytes = so_far.bytes.saturating_add(resident);
                if resident == ByteCount::ZERO {
                    elsewhere = elsewhere.saturating_add(gone.size);
                } else {
                    evicted.push(gone.ino);
                }
            }
            self.count_evictions(&doomed);
            doomed.into_iter().for_each(|gone| self.bury(gone));
            progress(&so_far)
        })?;
        let (stayed, held) = (stayed.len() as u64, self.held_of_evicted(&evicted));
        let EvictionProgress { objects, bytes, .. } = so_far;
        Ok(OperatorEviction { objects, bytes, held, elsewhere, stayed, named })
    }

    /// Sealed objects at and below `path`, as they are counted.
    fn objects_below(&self, path: &[u8]) -> u64 {
        let state = self.lock();
        let folder = state.tree.by_path(path).and_then(|slot| state.folders.get(slot));
        folder.map_or(1, |folder| folder.objects.0)
    }
}

impl State {
    /// Why the file in `slot` stays although an operator asks for its eviction.
    fn obstacle(&self, slot: Slot, force: bool) -> Option<Obstacle> {
        let object = self.object(slot)?;
        match object.phase {
            _ if object.is_slot_file() => Some(Obstacle::Scratch),
            Phase::Sealed if force => None,
            Phase::Sealed if self.effective_policy(slot).is_hard_pinned() => Some(Obstacle::Pinned),
            Phase::Sealed if object.is_open() => Some(Obstacle::Open),
            Phase::Sealed => None,
            Phase::Writing | Phase::Parked | Phase::Gone => Some(Obstacle::Written),
        }
    }
}
