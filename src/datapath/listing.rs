//! Listing a directory, batch by batch, in bounded memory and with cookies that survive churn.

use std::time::Duration;

use hashbrown::HashSet;

use super::{Caller, Datapath, Error, Phase, Stat, State};
use crate::cluster::ListedName;
use crate::namespace::{Cookie, Ino, Name, Slot};

/// How often a listing of all members looks whether a close has come.
const CLOSE_PAUSE: Duration = Duration::from_millis(1);

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

/// A part of a directory that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Who asks.
    pub caller: Caller,
    /// The directory.
    pub directory: Ino,
    /// The part begins after this entry.
    pub after: Cookie,
    /// Whether the kernel is given a reference to each entry taken, as READDIRPLUS does.
    pub holds: bool,
    /// Monotonic milliseconds ([`Datapath::now_ms`]) of the request: closes announced until then are waited for. `None`: none is.
    pub asked_at_ms: Option<u64>,
}

/// How far a part of a listing got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Paged {
    /// As far as `visit` wanted, or to the end.
    Done,
    /// To a file whose writer is just closing it: ask for what follows when [`Datapath::wait_for_release`] returns.
    Wait,
}

impl Datapath {
    /// Hands the entries of a directory after `page.after` to `visit`, until that returns false or all were seen.
    ///
    /// `visit` gets each entry and answers whether it took it. Files that are hidden from the caller are left out. `visit` runs
    /// under the lock and must not wait.
    ///
    /// # Errors
    /// [`Error::NotDirectory`], [`Error::Stale`].
    pub fn list(&self, page: &Page, mut visit: impl FnMut(&Listed) -> bool) -> Result<Paged, Error> {
        const BATCH: usize = 256;
        let mut state = self.lock();
        let slot = state.slot_of(page.directory)?;
        state.directory_id(slot)?;
        let mut from = state.tree.passed(slot, page.after);
        loop {
            let batch: Vec<_> = state
                .tree
                .entries_after(slot, from)
                .take(BATCH)
                .map(|(cookie, child, _)| (cookie, child))
                .collect();
            if batch.is_empty() {
                return Ok(Paged::Done);
            }
            for (cookie, child) in batch {
                from = cookie;
                let is_writing = state.object(child).is_some_and(|object| object.phase == Phase::Writing);
                if is_writing && self.is_hidden_from(&mut state, &page.caller, child, false) {
                    if self.must_wait_for(&state, child, page.asked_at_ms) {
                        return Ok(Paged::Wait);
                    }
                    continue;
                }
                let entry = Listed {
                    cookie,
                    name: state.tree.name(child),
                    stat: self.stat_of(&state, child),
                    cacheable: state.is_cacheable(child),
                };
                if !visit(&entry) {
                    return Ok(Paged::Done);
                }
                if page.holds {
                    state.tree.reference(child);
                }
            }
        }
    }

    /// Whether the last close of the hidden file in `slot` was announced before a listing was asked for, and has not come yet.
    ///
    /// What was closed after that is not waited for: a directory that is written without end is listed in time.
    fn must_wait_for(&self, state: &State, slot: Slot, asked_at_ms: Option<u64>) -> bool {
        let Some(asked_at_ms) = asked_at_ms else { return false };
        let first_ms = self.first_expected_close_ms();
        state.object(slot).is_some_and(|object| object.is_about_to_show(first_ms..=asked_at_ms))
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
        let asked_at_ms = self.now_ms();
        let path = {
            let state = self.lock();
            let slot = state.slot_of(directory)?;
            state.directory_id(slot)?;
            state.tree.path(slot)
        };
        let mut listed = self.list_of_members(path, cookie, max).await.names;
        let last =
            if listed.len() < max { u64::MAX } else { listed.last().map_or(u64::MAX, |last| last.cookie) };
        let shared: HashSet<u64> = listed.iter().map(|entry| entry.cookie).collect();
        let is_wanted = |place: u64| place > cookie && place <= last && !shared.contains(&place);
        let of_this_host = loop {
            match self.list_of_this_host(caller, directory, (cookie, last), &is_wanted, asked_at_ms)? {
                Some(names) => break names,
                // It ends: what was closed later than the question, or too long ago, is not waited for.
                None => tokio::time::sleep(CLOSE_PAUSE).await,
            }
        };
        listed.extend(of_this_host);
        listed.sort_unstable_by_key(|entry| entry.cookie);
        Ok(listed)
    }

    /// What only this host shows in the places of a directory from `first` to `last`: temporary names, files that the caller
    /// writes, and what was closed before other members heard of it. `None`: such a close has not come yet.
    fn list_of_this_host(
        &self,
        caller: &Caller,
        directory: Ino,
        (first, last): (u64, u64),
        is_wanted: &dyn Fn(u64) -> bool,
        asked_at_ms: u64,
    ) -> Result<Option<Vec<ListedName>>, Error> {
        let mut state = self.lock();
        let slot = state.slot_of(directory)?;
        let within: Vec<_> = state
            .tree
            .entries_after(slot, Cookie::before(first))
            .take_while(|(place, ..)| place.0 >> 32 <= last >> 32)
            .map(|(_, child, _)| child)
            .collect();
        let mut listed = Vec::new();
        for child in within {
            let name = state.tree.name(child);
            let place = Cookie::shared(name.as_bytes()).0;
            if !is_wanted(place) {
                continue;
            }
            if !self.is_hidden_from(&mut state, caller, child, false) {
                let is_directory = state.tree.directory(child).is_some();
                listed.push(ListedName { cookie: place, name: name.as_bytes().to_vec(), is_directory });
            } else if self.must_wait_for(&state, child, Some(asked_at_ms)) {
                return Ok(None);
            }
        }
        Ok(Some(listed))
    }

    /// The directory above `directory`; the root is above itself.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn parent(&self, directory: Ino) -> Result<Ino, Error> {
        let state = self.lock();
        let slot = state.slot_of(directory)?;
        let parent = state.tree.node(slot).parent;
        Ok(if parent == Slot::NONE { Ino::ROOT } else { state.tree.ino(parent) })
    }
}
