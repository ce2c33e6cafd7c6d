//! Hot path: the paths of many names, most of which are in one directory: its own is put together once.
//!
//! Invariant: made and used under one hold of the lock, in which no directory moves.

use super::super::State;
use crate::cluster::shards::KeyId;
use crate::namespace::Slot;

/// Paths below the mount, one after the other.
#[derive(Debug)]
pub(in crate::datapath) struct Paths {
    /// The directory of the last one, [`Slot::NONE`] before the first.
    parent: Slot,
    /// The last one, of which so much is the directory.
    path: Vec<u8>,
    above: usize,
}

impl Paths {
    pub(in crate::datapath) fn new() -> Self {
        Self { parent: Slot::NONE, path: Vec::new(), above: 0 }
    }

    /// The path of `name` in the directory `parent`.
    pub(in crate::datapath) fn of(&mut self, state: &State, parent: Slot, name: &[u8]) -> &[u8] {
        if self.parent != parent {
            self.path = state.path_of_child(parent, b"");
            (self.parent, self.above) = (parent, self.path.len());
        }
        self.path.truncate(self.above);
        self.path.extend_from_slice(name);
        &self.path
    }

    /// Which key that is.
    pub(in crate::datapath) fn key(&mut self, state: &State, parent: Slot, name: &[u8]) -> KeyId {
        KeyId::of(self.of(state, parent, name))
    }
}
