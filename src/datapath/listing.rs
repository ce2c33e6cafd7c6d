//! Listing a directory, batch by batch, in bounded memory and with cookies that survive churn.

use super::{Caller, Datapath, Error, Phase, Stat};
use crate::namespace::{Cookie, Ino, Name};

/// One entry of a listing.
#[derive(Debug)]
pub struct Listed {
    /// Where the listing continues after this entry.
    pub cookie: Cookie,
    /// The entry's name.
    pub name: Name,
    /// Its attributes.
    pub stat: Stat,
    /// Whether the kernel may believe that this name stands for this inode.
    pub cacheable: bool,
}

impl Datapath {
    /// Hands the entries of `directory` after `cookie` to `visit`, until that returns false or all were seen.
    ///
    /// `visit` gets each entry and answers whether it took it. With `holds`, the kernel
    /// is given a reference to each entry taken, as READDIRPLUS does. Files that are hidden from the caller are left
    /// out. `visit` runs under the lock and must not wait.
    ///
    /// # Errors
    /// [`Error::NotDirectory`], [`Error::Stale`].
    pub fn list(
        &self,
        caller: &Caller,
        directory: Ino,
        cookie: Cookie,
        holds: bool,
        mut visit: impl FnMut(&Listed) -> bool,
    ) -> Result<(), Error> {
        const BATCH: usize = 256;
        let mut state = self.lock();
        let slot = state.slot_of(directory)?;
        state.directory_id(slot)?;
        let mut from = cookie;
        loop {
            let batch: Vec<_> = state
                .tree
                .entries_after(slot, from)
                .take(BATCH)
                .map(|(cookie, child, _)| (cookie, child))
                .collect();
            if batch.is_empty() {
                return Ok(());
            }
            for (cookie, child) in batch {
                from = cookie;
                let is_writing = state.object(child).is_some_and(|object| object.phase == Phase::Writing);
                if is_writing && self.is_hidden_from(&mut state, caller, child) {
                    continue;
                }
                let entry = Listed {
                    cookie,
                    name: state.tree.name(child),
                    stat: self.stat_of(&state, child),
                    cacheable: state.is_cacheable(child),
                };
                if !visit(&entry) {
                    return Ok(());
                }
                if holds {
                    state.tree.reference(child);
                }
            }
        }
    }

    /// The directory above `directory`; the root is above itself.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn parent(&self, directory: Ino) -> Result<Ino, Error> {
        let state = self.lock();
        let slot = state.slot_of(directory)?;
        let parent = state.tree.node(slot).parent;
        Ok(if parent == crate::namespace::Slot::NONE { Ino::ROOT } else { state.tree.ino(parent) })
    }
}
