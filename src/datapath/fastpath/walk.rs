//! Hot path: the way from the names of a batch to the directories that they stand in. Most are in one, to which the way is gone
//! once.
//!
//! Invariant: each directory on the way is one that the session may search, from the scope of its names on.

use tidefs_engine::types::DirectoryId;

use super::Located;
use crate::cluster::shards::KeyId;
use crate::datapath::State;
use crate::datapath::elsewhere::Paths;
use crate::datapath::rights::{Credentials, Right};
use crate::namespace::{Ino, Name, Slot, split_path};

/// Bytes of the longest path, with its end, that the kernel takes (path_resolution(7)).
const PATH_MAX: usize = libc::PATH_MAX.unsigned_abs() as usize;

/// A directory that a batch looked into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Within {
    pub(super) slot: Slot,
    pub(super) id: DirectoryId,
}

/// Resolves the names of a batch; most are in one directory.
pub(super) struct Walk<'s, 'n> {
    pub(super) credentials: &'s Credentials,
    scope: Result<Slot, Located>,
    last: Option<(&'n [u8], Result<Within, Located>)>,
    /// Of names that are not here.
    paths: Paths,
}

impl<'s, 'n> Walk<'s, 'n> {
    pub(super) fn new(state: &State, credentials: &'s Credentials, scope: Ino) -> Self {
        let scope = match state.living_directory(scope) {
            Err(_) => Err(Located::NoScope),
            Ok(slot) if !state.may_search(credentials, slot) => Err(Located::Denied),
            Ok(slot) => Ok(slot),
        };
        Self { credentials, scope, last: None, paths: Paths::new() }
    }

    /// The directory that `name` stands in, and its name there.
    pub(super) fn split(&mut self, state: &State, name: &'n [u8]) -> (Result<Within, Located>, &'n [u8]) {
        let (path, leaf) = split_path(name);
        if leaf.is_empty() || leaf == b"." || leaf == b".." {
            return (Err(Located::Invalid), leaf);
        }
        if name.len() >= PATH_MAX {
            // No file can be reached by it, so nothing is looked for.
            return (Err(Located::Absent), leaf);
        }
        if let Some((last, within)) = self.last
            && last == path
        {
            return (within, leaf);
        }
        let within = self.walk(state, path);
        self.last = Some((path, within));
        (within, leaf)
    }

    fn walk(&mut self, state: &State, path: &[u8]) -> Result<Within, Located> {
        let mut slot = self.scope?;
        for component in path.split(|&byte| byte == b'/').filter(|component| !component.is_empty()) {
            if component == b"." || component == b".." {
                return Err(Located::Invalid);
            }
            let Some(child) = state.tree.child(slot, component) else {
                // Another member may have the directory, and a file call asks.
                let may_be = state.has_members() && !state.was_key_absent(self.key(state, slot, component));
                return Err(if may_be { Located::AskByFile } else { Located::Absent });
            };
            slot = child;
            if state.tree.directory(slot).is_none() {
                return Err(Located::Absent);
            }
            if !self.credentials.may(&state.tree.node(slot).attributes, Right::SEARCH) {
                return Err(Located::Denied);
            }
        }
        let id = state.directory_id(slot).map_err(|_| Located::Absent)?;
        Ok(Within { slot, id })
    }

    /// By what members know the name `leaf` in the directory in `slot`.
    pub(super) fn key(&mut self, state: &State, slot: Slot, leaf: &[u8]) -> KeyId {
        self.paths.key(state, slot, leaf)
    }

    /// The first component of `name` that nothing is known of here, with its directory: other members are to be asked. And
    /// whether it is the last one.
    pub(super) fn unknown(&mut self, state: &State, name: &[u8]) -> Option<(Ino, Name, bool)> {
        let mut slot = self.scope.ok()?;
        let mut components = name.split(|&byte| byte == b'/').filter(|component| !component.is_empty());
        while let Some(component) = components.next() {
            if let Some(child) = state.tree.child(slot, component) {
                slot = child;
                continue;
            }
            let may_look = state.tree.directory(slot).is_some()
                && self.credentials.may(&state.tree.node(slot).attributes, Right::SEARCH);
            if !may_look || state.was_key_absent(self.key(state, slot, component)) {
                return None;
            }
            return Some((state.tree.ino(slot), Name::new(component).ok()?, components.next().is_none()));
        }
        None
    }
}
