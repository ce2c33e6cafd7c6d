//! Who sees what under a name: the hottest question of all, mostly answered "nothing".
//!
//! Hot path: one lock, no system call, unless the name stands for a file that is being written.

use tidefs_engine::types::DirectoryId;

use super::expiry::Ended;
use super::open_state::OpenState;
use super::{Caller, Datapath, Error, Marks, Object, Phase, Stat, State, key_hash};
use crate::namespace::{Ino, Name, ProcessId, Slot};

/// What a name stands for.
#[derive(Debug)]
pub enum Lookup {
    /// An inode, of which the kernel now holds one reference more.
    Found {
        /// Its attributes.
        stat: Stat,
        /// Whether the kernel may believe the answer until it is told otherwise.
        cacheable: bool,
    },
    /// Nothing that the caller may see.
    Absent {
        /// Whether the kernel may believe that until the name is created through it.
        cacheable: bool,
    },
    /// A writer is just closing the file: ask again when [`Datapath::wait_for_release`] returns.
    Wait,
    /// Nothing here, and other members may hold it: ask again when [`Datapath::ask`] has.
    Ask,
    /// A disk holds the object and it has no name yet: ask again when [`Datapath::name_one`] has.
    Name,
    /// The caller was sent here to write on in an object so large that checking or copying it takes long: ask again, with
    /// [`Patience::Members`], on a thread that answers nobody else.
    Long,
}

/// What a look-up may be told to come back after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Patience {
    /// Nothing: it is answered from what is here now.
    None,
    /// [`Lookup::Wait`].
    Writers,
    /// [`Lookup::Wait`], [`Lookup::Ask`] and [`Lookup::Name`].
    Members,
    /// Those, and [`Lookup::Long`].
    All,
}

enum Visible {
    Yes(Slot),
    No,
    /// A writer is closing. Meanwhile the caller may unlink or rename what it has written there itself, or the version before,
    /// if any.
    Closing(Option<Slot>),
}

impl State {
    /// Whether everybody sees the file in `slot` while it is written, also one that is written over an object; but not one that all had
    /// closed before that object took its name.
    ///
    /// A temporary name promises nothing, so its file shows itself as on any file system, and costs its writer no question
    /// that only a hidden file needs. Lock files are waited for by name while their writer holds them open (vLLM's hidden
    /// states); who comes to one that is used again is to meet the inode that its holder has locked.
    pub(super) fn is_shown_while_written(&self, slot: Slot) -> bool {
        let Some(object) = self.object(slot).filter(|object| !object.is_overtaken()) else { return false };
        object.marks.has(Marks::SHOWN) || self.name_sought(slot).as_bytes().ends_with(b".lock")
    }

    /// The version that is being written over the file in `slot`, if everybody sees that one.
    pub(super) fn shown_next_version(&self, slot: Slot) -> Option<Slot> {
        let is_shown = |&next: &Slot| {
            let is_written = self.object(next).is_some_and(|next| next.phase == Phase::Writing);
            is_written && self.is_shown_while_written(next)
        };
        self.next_version(slot).filter(is_shown)
    }

    /// The process of a caller's thread.
    pub(super) fn process(&mut self, caller: &Caller, now: std::time::Duration) -> ProcessId {
        self.processes.process_of(caller.thread, now)
    }

    /// Whether every process sees the same under the name of `slot`, until the kernel is told otherwise.
    pub(super) fn is_cacheable(&self, slot: Slot) -> bool {
        let has_next = |object: &Object| object.open.as_ref().is_some_and(|open| open.next_version.is_some());
        self.object(slot).is_none_or(|object| match object.phase {
            Phase::Sealed => object.writers() == 0 && !has_next(object),
            Phase::Writing | Phase::Parked => object.marks.has(Marks::SHOWN),
            Phase::Gone => false,
        })
    }

    /// A close was announced and did not come.
    fn stop_expecting_close(&mut self, slot: Slot) {
        let next = self.next_version(slot);
        for slot in [Some(slot), next].into_iter().flatten() {
            if let Some(open) = self.object_mut(slot).and_then(|object| object.open.as_mut()) {
                open.closing = false;
            }
        }
    }

    fn visible(&mut self, caller: &Caller, now: std::time::Duration, slot: Slot) -> Visible {
        let Some(object) = self.object(slot) else { return Visible::Yes(slot) };
        let next = object.next_version();
        let phase = object.phase;
        let is_closing = object.open.as_deref().is_some_and(OpenState::is_about_to_close);
        if phase == Phase::Writing && !self.is_shown_while_written(slot) {
            let process = self.process(caller, now);
            let Some(object) = self.object(slot) else { return Visible::No };
            if object.is_written_by(process) {
                return Visible::Yes(slot);
            }
            if is_closing {
                // Who has written it waits too: before it is sealed, another writer may join in and cut it.
                return Visible::Closing(object.was_closed_by(process).then_some(slot));
            }
            let sees = object.is_seen_by(process);
            return if sees { Visible::Yes(slot) } else { Visible::No };
        }
        if let Some(next) = next {
            if let Some(shown) = self.shown_next_version(slot) {
                return Visible::Yes(shown);
            }
            let process = self.process(caller, now);
            if let Some(version) = self.object(next)
                && version.phase == Phase::Writing
            {
                if version.is_written_by(process) {
                    return Visible::Yes(next);
                }
                if version.open.as_deref().is_some_and(OpenState::is_about_to_close) {
                    let seen = if version.was_closed_by(process) { next } else { slot };
                    return Visible::Closing(Some(seen));
                }
                if version.is_seen_by(process) {
                    return Visible::Yes(next);
                }
            }
        }
        Visible::Yes(slot)
    }
}

impl Datapath {
    /// The node that `name` in `parent` stands for, as the caller sees it.
    ///
    /// # Errors
    /// [`Error::NoObject`] when there is none, or it is hidden from the caller.
    pub(super) fn visible_child(
        &self,
        state: &mut State,
        caller: &Caller,
        parent: Slot,
        name: &Name,
    ) -> Result<Slot, Error> {
        if state.tree.directory(parent).is_none() {
            return Err(Error::NotDirectory);
        }
        let slot = state.tree.child(parent, name.as_bytes()).ok_or(Error::NoObject)?;
        match state.visible(caller, self.clock.monotonic(), slot) {
            Visible::Yes(slot) | Visible::Closing(Some(slot)) => Ok(slot),
            Visible::No | Visible::Closing(None) => Err(Error::NoObject),
        }
    }

    /// Looks up `name` in directory `parent`.
    ///
    /// # Errors
    /// [`Error::NameTooLong`], [`Error::Invalid`], [`Error::NotDirectory`], [`Error::Stale`].
    pub fn lookup(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        patience: Patience,
    ) -> Result<Lookup, Error> {
        let name = Name::new(name)?;
        let now = self.clock.monotonic();
        let mut state = self.lock();
        if self.looks_again(&mut state, caller, &name) {
            drop(state);
            if !self.welcome_resent(caller, parent, &name, patience < Patience::All) {
                return Ok(Lookup::Long);
            }
            state = self.lock();
        }
        let directory_ino = parent;
        let parent = state.slot_of(parent)?;
        let directory = state.directory_id(parent)?;
        let Some(child) = state.tree.child(parent, name.as_bytes()) else {
            return Ok(self.look_elsewhere(&mut state, caller, (parent, directory), &name, patience));
        };
        let now_ns = self.now_ns();
        if state.is_due(child, now_ns) {
            let mut ended = Ended::default();
            self.end_life(&mut state, child, now_ns, &mut ended);
            drop(state);
            self.see_out(ended);
            // What is in use stays, with a later time, so this comes here once.
            return self.lookup(caller, directory_ino, name.as_bytes(), patience);
        }
        if let Some(afterwards) = self.end_what_nobody_comes_for(&mut state, child) {
            drop(state);
            self.released.notify_all();
            self.carry_out(afterwards);
            // It is not being written any more, so this comes here once.
            return self.lookup(caller, directory_ino, name.as_bytes(), patience);
        }
        let seen = match state.visible(caller, now, child) {
            Visible::Closing(_) if patience >= Patience::Writers => {
                self.telemetry.hidden_waits.increment();
                return Ok(Lookup::Wait);
            }
            Visible::Closing(_) => {
                // It was no last close after all: whoever asks next does not wait for it again.
                state.stop_expecting_close(child);
                match state.visible(caller, now, child) {
                    Visible::Yes(slot) => Some(slot),
                    Visible::No | Visible::Closing(_) => None,
                }
            }
            Visible::Yes(slot) => Some(slot),
            Visible::No => None,
        };
        let Some(slot) = seen else {
            if patience >= Patience::Members && state.may_hide_another(child) {
                return Ok(Lookup::Ask);
            }
            // What is hidden is none to it.
            self.note_absent(&mut state, caller, &name);
            self.telemetry.misses.increment();
            return Ok(Lookup::Absent { cacheable: false });
        };
        if state.object(slot).is_some() && !self.is_temporary(&name) {
            state.chains.probed(caller.thread.0, key_hash(directory, name.as_bytes()));
        }
        state.tree.reference(slot);
        let stat = self.stat_of(&state, slot);
        self.note_found(&mut state, caller, &name, stat.ino);
        Ok(Lookup::Found { stat, cacheable: state.is_cacheable(slot) })
    }

    /// What is answered for a name that stands for nothing here.
    fn look_elsewhere(
        &self,
        state: &mut State,
        caller: &Caller,
        (parent, directory): (Slot, DirectoryId),
        name: &Name,
        patience: Patience,
    ) -> Lookup {
        if state.is_unnamed(directory, name.as_bytes()) {
            let is_patient = patience >= Patience::Members;
            return if is_patient { Lookup::Name } else { Lookup::Absent { cacheable: false } };
        }
        let key = key_hash(directory, name.as_bytes());
        self.fast.absences.note(key);
        if self.is_temporary(name) {
            // A writer's look-up before it creates or renames its file: no block of a chain, and no miss.
            self.note_absent(state, caller, name);
            return Lookup::Absent { cacheable: true };
        }
        let has_members = state.has_members();
        let is_certain = !has_members || state.is_absent_everywhere(parent, name.as_bytes());
        if !is_certain && patience >= Patience::Members {
            return Lookup::Ask;
        }
        self.note_absent(state, caller, name);
        state.chains.probed(caller.thread.0, key);
        self.note_miss(state, caller, parent, key);
        let is_revocable = !has_members || self.can_tell_names();
        Lookup::Absent { cacheable: is_certain && is_revocable }
    }

    /// Waits until some writer's last handle is released, or `limit` passes. Returns whether one was.
    pub fn wait_for_release(&self, limit: std::time::Duration) -> bool {
        let mut state = self.lock();
        !self.released.wait_for(&mut state, limit).timed_out()
    }

    /// Waits, at most for `limit`, until the close of `ino` that a writer was answered has arrived with all it brings.
    pub fn wait_until_closed(&self, ino: Ino, limit: std::time::Duration) {
        let mut state = self.lock();
        let is_closing = |state: &mut State| {
            let object = state.tree.by_ino(ino).and_then(|slot| state.object(slot));
            object.and_then(|object| object.open.as_ref()).is_some_and(|open| open.closing)
        };
        self.released.wait_while_for(&mut state, is_closing, limit);
    }
}
