//! Beginning: new files and new directories.
//!
//! Invariants
//! - A new file gets its name and its first writer in one step, and its backing before that: who finds the name taken by then
//!   frees the backing and joins the file that stands there.
//! - A writer of whose file nobody knows how large it becomes is served by the daemon where there is little room, so that each
//!   write asks for its own.
//! - A directory whose record cannot be written is not made.
//!
//! Limits: a create whose name changes under it [`JOINS_MAX`] times is told that it is stale.

use std::fs::File;
use std::sync::Arc;

use tidefs_engine::types::{ByteCount, FileOffset};

use super::guessed::Guess;
use super::{
    Caller, Credentials, Datapath, Error, IoPath, Marks, Object, OpenOptions, Opened, Phase, Place, Stat,
    State,
};
use crate::namespace::{Attributes, Body, Directory, Ino, Name, Slot};
use crate::tier::memory::{DirectoryRecord, PolicyRecord};
use crate::tier::scratch::Wait;

/// How often a create meets a name that changes under it before it gives up.
const JOINS_MAX: u32 = 16;

/// Free part of the capacity above which files of unknown size may be written without the daemon: a half.
const SPARE_SHARE: u64 = 2;

/// What a new file is made of: a segment with as many pages as its writer is expected to need, or a slot file.
struct Backing {
    place: Place,
    file: Option<Arc<File>>,
    reserved: ByteCount,
}

impl Datapath {
    /// Makes a segment for a new file in `directory`, with the bytes of `guess` allocated if there is room for them.
    fn fresh_segment(&self, directory: Slot, guess: &Guess<'_>) -> Result<Backing, Error> {
        let (id, file) = self.tier.create_segment()?;
        let has_room = self.make_room_for_guess(directory, guess) && guess.bytes() > ByteCount::ZERO;
        let is_reserved = has_room && self.tier.reserve(&file, FileOffset(0), guess.bytes()).is_ok();
        let reserved = if is_reserved { guess.bytes() } else { ByteCount::ZERO };
        Ok(Backing { place: Place::Solo(id), file: Some(Arc::new(file)), reserved })
    }

    /// Whether a file may grow by far more than anybody expects before something has to be evicted.
    fn has_room_to_spare(&self) -> Result<bool, Error> {
        Ok(self.tier.usage()?.free >= ByteCount(self.settings.capacity.get() / SPARE_SHARE))
    }

    /// Creates and opens the file `name` in `parent`, or joins the one that another process is writing.
    ///
    /// # Errors
    /// [`Error::Exists`] when `options.exclusive` and the name is taken, be it hidden; what
    /// [`open`](Datapath::open) says of a file that exists; [`Error::Io`] when no segment can be made.
    pub fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mode: u32,
        options: OpenOptions,
    ) -> Result<(Stat, Opened), Error> {
        self.create_within(caller, parent, name, mode, options, Wait::Patiently)
    }

    /// The same, with a limit to the wait for a place for a slot file.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_within(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mode: u32,
        options: OpenOptions,
        wait: Wait,
    ) -> Result<(Stat, Opened), Error> {
        let name = Name::new(name)?;
        // Callers that cannot be told apart take from each other what they were sent for.
        let may_be_sent = !self.was_sent_to(caller, &name) && caller.thread.is_known();
        for _ in 0..JOINS_MAX {
            if let Some(joined) = self.join(caller, parent, &name, options, may_be_sent)? {
                return Ok(joined);
            }
            if let Some(created) = self.create_absent(caller, parent, &name, mode, options, wait)? {
                return Ok(created);
            }
        }
        Err(Error::Stale)
    }

    /// Creates and opens a file under a name that nothing stands under; `None` when something does by now.
    fn create_absent(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &Name,
        mode: u32,
        options: OpenOptions,
        wait: Wait,
    ) -> Result<Option<(Stat, Opened)>, Error> {
        let (parent, is_limited, is_scratch) = {
            let state = self.lock();
            let parent = state.living_directory(parent)?;
            (parent, state.has_quota(parent), state.makes_slot_files(parent))
        };
        if is_scratch {
            // Served by the daemon, which counts what it takes of the disk.
            let backing =
                Backing { place: self.fresh_slot_file(wait)?, file: None, reserved: ByteCount::ZERO };
            return self.enter_new_file(caller, parent, name, mode, options, (backing, IoPath::Direct));
        }
        let mut path = self.path_of_new_file(name, options);
        let is_guessed = path == IoPath::Passthrough;
        // Counted until the file has it, or is not made.
        let guess = if is_guessed { self.take_guess(parent) } else { Guess::nothing(self) };
        if path == IoPath::Passthrough
            && guess.bytes() == ByteCount::ZERO
            && (is_limited || !self.has_room_to_spare()? || (self.settings.is_limited_apart)(caller.thread))
        {
            // Nobody knows how large it becomes, and there is not much room, or it would be taken from the memory that the
            // writer has for itself: each write asks for its own.
            path = IoPath::Direct;
        }
        let backing = self.fresh_segment(parent, &guess)?;
        if backing.reserved < guess.bytes() {
            // There is no room even for what is expected: who writes is to be told, so the daemon must see it.
            path = IoPath::Direct;
        }
        self.enter_new_file(caller, parent, name, mode, options, (backing, path))
    }

    /// Enters a new file into the tables, open; `None`, and its backing is freed, when something has its name by now.
    fn enter_new_file(
        &self,
        caller: &Caller,
        parent: Slot,
        name: &Name,
        mode: u32,
        options: OpenOptions,
        (backing, path): (Backing, IoPath),
    ) -> Result<Option<(Stat, Opened)>, Error> {
        let mut state = self.lock();
        let is_taken = state.tree.child(parent, name.as_bytes()).is_some();
        if is_taken || !state.tree.is_living_directory(parent) {
            drop(state);
            self.free_place(backing.place);
            // Another member of the cluster removed it just now, of which the kernel does not know yet.
            return if is_taken { Ok(None) } else { Err(Error::Stale) };
        }
        let (gid, _) = state.inherited_group(parent, caller.gid);
        let attributes = Attributes::new(mode, caller.uid, gid, self.now_ns());
        let mut object = Object::writing(backing.place);
        object.marks.set(Marks::SHOWN, self.is_temporary(name));
        let open = object.open_mut();
        open.file = backing.file;
        (open.reserved, open.guessed) = (backing.reserved, backing.reserved);
        let slot = state.tree.make(attributes, Body::File(object));
        state.take_free_name(slot, parent, name.clone());
        state.recharge(slot);
        state.tree.reference(slot);
        state.tree.node_mut(parent).attributes.written_at(attributes.mtime_ns);
        state.writing.insert(slot);
        self.telemetry.creates.increment();
        // Who creates a file is its first writer, though it be open for reading only: its close seals it.
        let only_creates = !options.write;
        let options = OpenOptions { write: true, ..options };
        // The file is held since a moment ago, so this fails for nobody.
        let for_kernel = self.backing_for_kernel(&state, slot, path)?;
        let opened = self.open_handle(&mut state, caller, slot, options, path);
        if let Some(handle) = state.handles.get_mut(&opened.handle) {
            handle.only_creates = only_creates;
        }
        let opened = Opened { backing: for_kernel, ..opened };
        Ok(Some((self.stat_of(&state, slot), opened)))
    }

    /// Opens the file that stands under a name that was to be created, or its new version when it must not be
    /// changed in place. `None` when nothing stands there.
    ///
    /// The kernel takes the length that comes with the answer for that of the file, whatever was appended since, and appends
    /// there. So who comes to write one that it knows is sent to look it up, if that `may_be_sent`: an answer to that it does not
    /// take once it is out of date.
    fn join(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &Name,
        options: OpenOptions,
        may_be_sent: bool,
    ) -> Result<Option<(Stat, Opened)>, Error> {
        // The kernel believes that there is nothing, and looked at the directory alone.
        let mut credentials = None;
        for _ in 0..JOINS_MAX {
            let existing = {
                let mut state = self.lock();
                let parent = state.slot_of(parent)?;
                state.directory_id(parent)?;
                let Some(existing) = state.tree.child(parent, name.as_bytes()) else { return Ok(None) };
                if let Some(overtaken) = self.discard_overtaken(&mut state, existing) {
                    drop(state);
                    self.bury(overtaken);
                    return Ok(None);
                }
                if options.exclusive {
                    return Err(Error::Exists);
                }
                state.object(existing).ok_or(Error::IsDirectory)?;
                let Some(credentials) = &credentials else {
                    drop(state);
                    credentials = Some(Credentials::of(caller));
                    continue;
                };
                let next = if options.write {
                    state.version_to_join(existing)
                } else {
                    state.shown_next_version(existing)
                };
                let target = next.unwrap_or(existing);
                if !credentials.may_open(&state.tree.node(target).attributes, options) {
                    return Err(Error::Denied);
                }
                let is_written = state.object(target).is_some_and(|object| object.phase == Phase::Writing);
                if may_be_sent && options.write && is_written && state.tree.node(target).lookups > 0 {
                    self.expect_writer(&mut state, caller, target);
                    self.note_resent_for(&mut state, caller, Some(name.clone()), options);
                    return Err(Error::Stale);
                }
                let ino = state.tree.ino(existing);
                match self.open_locked(&mut state, caller, target, options) {
                    Err(Error::Stale) => {}
                    Err(Error::NoObject) if options.wants_nothing() => {}
                    Err(error) => return Err(error),
                    Ok(opened) => {
                        drop(state);
                        self.fit_opened(&opened);
                        self.cut_opened(&opened, options)?;
                        let mut state = self.lock();
                        state.tree.reference(target);
                        return Ok(Some((self.stat_of(&state, target), opened)));
                    }
                }
                ino
            };
            if options.write {
                match self.begin_version_if_sealed(caller, existing, options) {
                    // That it left its name meanwhile is found in the next round.
                    Ok(()) | Err(Error::Stale) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Err(Error::Stale)
    }

    /// Makes the directory `name` in `parent`. At the top level that is a namespace.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotDirectory`], [`Error::TooDeep`], [`Error::Io`] when its record cannot be written.
    pub fn make_directory(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mode: u32,
    ) -> Result<Stat, Error> {
        let name = Name::new(name)?;
        let mut state = self.lock();
        let parent = state.living_directory(parent)?;
        let present = state.tree.child(parent, name.as_bytes());
        if present.is_some_and(|present| !state.is_overtaken(present)) {
            return Err(Error::Exists);
        }
        state.check_depth(parent, 0)?;
        state.check_path(parent, &name)?;
        let overtaken = present.and_then(|present| self.discard_overtaken(&mut state, present));
        let (gid, marks) = state.inherited_group(parent, caller.gid);
        let attributes = Attributes::new(mode | marks, caller.uid, gid, self.now_ns());
        let made = self.enter_directory(&mut state, parent, name, attributes).map(|slot| {
            self.adopt_for_new(&mut state, slot);
            state.tree.reference(slot);
            self.stat_of(&state, slot)
        });
        drop(state);
        overtaken.into_iter().for_each(|overtaken| self.bury(overtaken));
        made
    }

    /// Enters a new directory in one that was not removed into the tables and keeps a record of it.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::Io`] when its record cannot be written: then there is no directory.
    pub(super) fn enter_directory(
        &self,
        state: &mut State,
        parent: Slot,
        name: Name,
        attributes: Attributes,
    ) -> Result<Slot, Error> {
        if state.tree.child(parent, name.as_bytes()).is_some() {
            return Err(Error::Exists);
        }
        let id = state.next_directory;
        state.next_directory = tidefs_engine::types::DirectoryId(id.0 + 1);
        let slot = state.tree.make(attributes, Body::Directory(Box::new(Directory::new(id))));
        state.take_free_name(slot, parent, name);
        state.enter_folder(slot, PolicyRecord::default(), parent);
        if let Err(error) = self.persist_directory(state, slot) {
            state.tree.detach(slot);
            state.drop_if_unused(slot);
            return Err(error);
        }
        state.tree.node_mut(parent).attributes.written_at(attributes.mtime_ns);
        Ok(slot)
    }

    /// Makes an empty regular file, as mknod(2): created and closed at once, so it is sealed.
    ///
    /// # Errors
    /// As [`Datapath::create`].
    pub fn make_file(&self, caller: &Caller, parent: Ino, name: &[u8], mode: u32) -> Result<Stat, Error> {
        self.make_file_within(caller, parent, name, mode, Wait::Patiently)
    }

    /// The same, with a limit to the wait for a place for a slot file.
    ///
    /// # Errors
    /// As [`Datapath::create`].
    pub fn make_file_within(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mode: u32,
        wait: Wait,
    ) -> Result<Stat, Error> {
        let options = OpenOptions { write: true, exclusive: true, ..OpenOptions::default() };
        let (stat, opened) = self.create_within(caller, parent, name, mode, options, wait)?;
        let flushed = self.flush(caller, opened.handle);
        self.release(opened.handle);
        // The kernel gets no inode with an error.
        flushed.and_then(|()| self.getattr(stat.ino)).inspect_err(|_| self.forget(stat.ino, 1))
    }
}

impl State {
    /// The group of a new node in `parent`, and the mode bits that a new directory there gets: a set-group-id directory
    /// hands both down (inode(7)).
    pub(super) fn inherited_group(&self, parent: Slot, callers: u32) -> (u32, u32) {
        let parent = self.tree.node(parent).attributes;
        let set_group_id = u32::from(parent.mode) & libc::S_ISGID;
        if set_group_id == 0 { (callers, 0) } else { (parent.gid, set_group_id) }
    }

    /// What a restart needs to know of a directory.
    pub(super) fn directory_record(&self, slot: Slot) -> DirectoryRecord {
        let node = self.tree.node(slot);
        let id =
            |slot: Slot| self.tree.directory(slot).map_or_else(Default::default, |directory| directory.id);
        DirectoryRecord {
            id: id(slot),
            parent: id(node.parent),
            name: self.tree.name(slot).as_bytes().to_vec(),
            mode: node.attributes.mode.into(),
            uid: node.attributes.uid,
            gid: node.attributes.gid,
            mtime_ns: node.attributes.mtime_ns,
            ctime_ns: node.attributes.ctime_ns,
            policy: self.folders.get(slot).map(|folder| folder.policy.clone()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::testing;

    /// Makes directories with the longest names, one in the other.
    fn make_levels(datapath: &Datapath, count: usize) -> Result<Ino, Error> {
        let make = |parent, _| {
            let made = datapath.make_directory(&testing::caller(), parent, &[b'd'; 255], 0o755);
            made.map(|stat| stat.ino)
        };
        (0..count).try_fold(Ino::ROOT, make)
    }

    #[test]
    fn a_directory_of_a_cluster_has_a_path_that_leaves_room_for_every_name_in_it() {
        let (_place, datapath) = testing::unprivileged();
        let datapath = Arc::new(datapath);
        datapath.expect_cluster();
        let deepest = make_levels(&datapath, 15).unwrap();
        for name in [&[b'd'; 255][..], b"d"] {
            let refused = datapath.make_directory(&testing::caller(), deepest, name, 0o755);
            assert!(matches!(refused, Err(Error::TooDeep)), "{refused:?}");
        }
        testing::make(&datapath, deepest, &"f".repeat(255));
    }

    #[test]
    fn a_directory_that_finds_its_name_taken_costs_nothing() {
        let (_place, datapath) = testing::unprivileged();
        testing::make(&datapath, Ino::ROOT, "taken");
        let mut state = datapath.lock();
        let known = state.tree.len();
        let (name, attributes) = (Name::new(b"taken").unwrap(), Attributes::new(0o755, 0, 0, 0));
        let refused = datapath.enter_directory(&mut state, Slot::ROOT, name, attributes);
        assert!(matches!(refused, Err(Error::Exists)), "{refused:?}");
        assert_eq!(state.tree.len(), known);
    }

    #[test]
    fn a_path_on_a_host_alone_may_be_longer_than_any_that_the_kernel_takes_at_once() {
        let (_place, datapath) = testing::unprivileged();
        make_levels(&datapath, 40).unwrap();
    }
}
