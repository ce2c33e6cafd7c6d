//! Listing a directory, batch by batch, in bounded memory and with cookies that survive churn.

use hashbrown::HashSet;

use super::{Caller, Datapath, Error, Phase, Stat};
use crate::cluster::ListedName;
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
                if is_writing && self.is_hidden_from(&mut state, caller, child, false) {
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

    /// Up to `max` entries of `directory` after `cookie`, of this and all other members, in the order that members share.
    ///
    /// # Errors
    /// [`Error::NotDirectory`], [`Error::Stale`].
    pub async fn list_everywhere(
        &self,
        caller: &Caller,
        directory: Ino,
        cookie: u64,
        max: usize,
    ) -> Result<Vec<ListedName>, Error> {
        let path = {
            let state = self.lock();
            let slot = state.slot_of(directory)?;
            state.directory_id(slot)?;
            state.tree.path(slot)
        };
        let mut listed = self.list_of_members(path, cookie, max).await;
        let last =
            if listed.len() < max { u64::MAX } else { listed.last().map_or(u64::MAX, |last| last.cookie) };
        // What only this host shows: temporary names, and files that the caller writes.
        let mut state = self.lock();
        let slot = state.slot_of(directory)?;
        let within: Vec<_> = state
            .tree
            .entries_after(slot, Cookie::before(cookie))
            .take_while(|(place, ..)| place.0 >> 32 <= last >> 32)
            .map(|(_, child, _)| child)
            .collect();
        let shared: HashSet<u64> = listed.iter().map(|entry| entry.cookie).collect();
        for child in within {
            let name = state.tree.name(child);
            let place = Cookie::shared(name.as_bytes()).0;
            let is_wanted = place > cookie && place <= last && !shared.contains(&place);
            if is_wanted && !self.is_hidden_from(&mut state, caller, child, false) {
                let is_directory = state.tree.directory(child).is_some();
                listed.push(ListedName { cookie: place, name: name.as_bytes().to_vec(), is_directory });
            }
        }
        listed.sort_unstable_by_key(|entry| entry.cookie);
        Ok(listed)
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
