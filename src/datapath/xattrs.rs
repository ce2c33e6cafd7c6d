//! Extended attributes: the control plane of a directory or object, in the hands of whoever owns it.
//!
//! `user.tidefs.*` are policy and facts ([`policy`]); other `user.*` attributes of applications are kept on the backing file
//! (objects) or the directory's record file, and go with it.

mod policy;

use std::sync::Arc;

pub(super) use policy::tier_text;

use super::decorations::{self, USER, told};
use super::policy_text::SETTABLE;
use super::{Datapath, Error, Marks, Object, Phase, Place, State};
use crate::namespace::{Ino, Slot};

/// What names of policy and facts begin with.
pub(super) const PREFIX: &str = "user.tidefs.";

/// Names of facts below [`PREFIX`].
pub(super) const FACTS: [&str; 4] = ["tier", "version", "checksum", "why"];

/// Condition under which an attribute is set (setxattr(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// `XATTR_CREATE`: only if it is not there.
    Absent,
    /// `XATTR_REPLACE`: only if it is there.
    Present,
    /// Both, of which one is in the way of any.
    Neither,
}

/// What is done to the attributes of applications.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Set,
    Remove,
}

impl Presence {
    /// Whether one that `is_there`, or is not, may be set with the condition `only`.
    pub(super) fn check(only: Option<Self>, is_there: bool) -> Result<(), Error> {
        match (only, is_there) {
            (Some(Self::Absent | Self::Neither), true) => Err(Error::Exists),
            (Some(Self::Present | Self::Neither), false) => Err(Error::NoAttribute),
            _ => Ok(()),
        }
    }
}

impl Datapath {
    /// The value of attribute `name` of `ino`.
    ///
    /// # Errors
    /// [`Error::NoAttribute`], [`Error::Stale`], [`Error::Io`].
    pub fn get_attribute(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Error> {
        let Ok(name) = std::str::from_utf8(name) else { return Err(Error::NoAttribute) };
        if let Some(key) = name.strip_prefix(PREFIX) {
            return self.policy_value(ino, key).map(String::into_bytes);
        }
        if !name.starts_with(USER) {
            return Err(Error::NoAttribute);
        }
        is_named(name)?;
        self.with_decorations(ino, Use::Read, |file| {
            decorations::get(file, name).map_err(told)?.ok_or(Error::NoAttribute)
        })
    }

    /// The names of all attributes that `ino` has, policy by inheritance included.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Io`].
    pub fn list_attributes(&self, ino: Ino) -> Result<Vec<u8>, Error> {
        let mut names = Vec::new();
        for key in SETTABLE.iter().chain(&FACTS) {
            if self.has_value(ino, key) {
                names.extend_from_slice(PREFIX.as_bytes());
                names.extend_from_slice(key.as_bytes());
                names.push(0);
            }
        }
        let own = self.with_decorations(ino, Use::Read, |file| decorations::names(file).map_err(told));
        for name in own.unwrap_or_default() {
            names.extend_from_slice(&name);
            names.push(0);
        }
        Ok(names)
    }

    /// Whether a user may set, or remove, an attribute: the kernel asks for the right to write alone, which others than the
    /// owner may have. What others are kept from using is root's to say.
    #[must_use]
    pub fn may_change_attribute(&self, uid: u32, ino: Ino, name: &[u8]) -> bool {
        let key = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix(PREFIX));
        match key {
            _ if uid == 0 => true,
            None | Some("pin" | "priority") => true,
            Some("floor") => false,
            Some(_) => {
                let state = self.lock();
                state.slot_of(ino).is_ok_and(|slot| state.tree.node(slot).attributes.uid == uid)
            }
        }
    }

    /// Sets attribute `name`.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for facts and names outside `user.`; [`Error::Invalid`] for a value that means
    /// nothing; [`Error::Unsupported`] for an unknown `user.tidefs.` name; [`Error::NoObject`] for an object that is on disk alone.
    pub fn set_attribute(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        only: Option<Presence>,
    ) -> Result<(), Error> {
        let name =
            std::str::from_utf8(name).map_err(|_| Error::Invalid("an attribute's name is not text"))?;
        if let Some(key) = name.strip_prefix(PREFIX) {
            let value =
                std::str::from_utf8(value).map_err(|_| Error::Invalid("the value is not text"))?.trim();
            Presence::check(only, self.has_own_policy(ino, key)?)?;
            return self.change_policy(ino, key, Some(value));
        }
        if !name.starts_with(USER) {
            return Err(Error::Unsupported("attributes outside user."));
        }
        is_named(name)?;
        let may_set = |file: &std::fs::File| {
            Presence::check(only, decorations::get(file, name).map_err(told)?.is_some())?;
            let has_room = decorations::has_room(file, name, value).map_err(told)?;
            if has_room { Ok(()) } else { Err(Error::AttributesFull) }
        };
        // Before the object is changed for it: one with attributes goes to no disk.
        match self.with_decorations(ino, Use::Read, may_set) {
            Err(Error::NoAttribute) => Presence::check(only, false)?,
            outcome => outcome?,
        }
        let set = self.with_decorations(ino, Use::Set, |file| {
            may_set(file)?;
            decorations::set(file, name, value).map_err(told)
        });
        if let Err(error) = set {
            self.undecorate(ino)?;
            return Err(error);
        }
        if let Some(next) = self.next_version_of(ino) {
            self.with_decorations(next, Use::Set, |file| decorations::set(file, name, value).map_err(told))?;
        }
        self.note_attribute(ino)
    }

    /// The version that is being written over an object, as an inode.
    fn next_version_of(&self, ino: Ino) -> Option<Ino> {
        let state = self.lock();
        let next = state.next_version(state.tree.by_ino(ino)?)?;
        Some(state.tree.ino(next))
    }

    /// Removes attribute `name`; a policy is inherited again.
    ///
    /// # Errors
    /// [`Error::NoAttribute`], [`Error::NotPermitted`]; [`Error::NoObject`] for an object that is on disk alone.
    pub fn remove_attribute(&self, ino: Ino, name: &[u8]) -> Result<(), Error> {
        let Ok(name) = std::str::from_utf8(name) else { return Err(Error::NoAttribute) };
        if let Some(key) = name.strip_prefix(PREFIX) {
            return self.change_policy(ino, key, None);
        }
        if !name.starts_with(USER) {
            return Err(Error::Unsupported("attributes outside user."));
        }
        is_named(name)?;
        let remove = |file: &std::fs::File| decorations::remove(file, name).map_err(told);
        self.with_decorations(ino, Use::Remove, remove)?;
        let next = self.next_version_of(ino);
        match next.map(|next| self.with_decorations(next, Use::Remove, remove)) {
            None | Some(Ok(()) | Err(Error::NoAttribute)) => {}
            Some(failed) => return failed,
        }
        for ino in [Some(ino), next].into_iter().flatten() {
            self.undecorate(ino)?;
        }
        self.note_attribute(ino)
    }

    /// An object whose last attribute was removed, or that got none after all, goes to a disk again.
    pub(super) fn undecorate(&self, ino: Ino) -> Result<(), Error> {
        // Nobody is between the mark and the attribute that it is for.
        let _alone = self.has_alone(ino.slot());
        let mut state = self.lock();
        let Some(slot) = state.tree.by_ino(ino) else { return Ok(()) };
        // A slot file goes nowhere, and what is away has none.
        let is_marked = state.object(slot).is_some_and(|object| {
            matches!(object.place, Place::Solo(_)) && object.marks.has(Marks::DECORATED)
        });
        if !is_marked {
            return Ok(());
        }
        let file = self.backing_file_of(&state, slot)?;
        if !decorations::names(&file).map_err(told)?.is_empty() {
            return Ok(());
        }
        if let Some(object) = state.object_mut(slot) {
            object.marks.set(Marks::DECORATED, false);
        }
        self.rewrite_record(&mut state, slot)
    }

    /// Runs `action` on the file that keeps the attributes of applications. For one to be set, a packed object gets a
    /// segment of its own first.
    fn with_decorations<T>(
        &self,
        ino: Ino,
        use_of: Use,
        action: impl FnOnce(&std::fs::File) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let makes = use_of == Use::Set;
        let (slot, directory) = {
            let state = self.lock();
            let slot = state.slot_of(ino)?;
            (slot, state.tree.directory(slot).map(|directory| directory.id))
        };
        if let Some(id) = directory {
            if makes {
                let state = self.lock();
                let slot = state.living_directory(ino)?;
                self.tier.put_directory(&state.directory_record(slot))?;
            }
            let Some(file) = self.tier.open_directory(id)? else { return Err(Error::NoAttribute) };
            return action(&file);
        }
        // What changes goes along when the file moves to disk.
        let _stays = (use_of != Use::Read).then(|| self.stays_where_it_is(slot));
        let file = match self.decorated_file(ino, makes)? {
            Some(file) => file,
            None if !makes => return Err(Error::NoAttribute),
            None => {
                self.unpack(ino)?;
                self.decorated_file(ino, makes)?.ok_or(Error::Stale)?
            }
        };
        action(&file)
    }

    /// The file of an object of its own, which is not packed from now on when `makes`; `None` for a packed one, and for one that is
    /// on disk alone, which has no such attributes, or at other members, which keep theirs.
    fn decorated_file(&self, ino: Ino, makes: bool) -> Result<Option<Arc<std::fs::File>>, Error> {
        let mut state = self.lock();
        let slot = state.slot_of(ino)?;
        let object = state.object(slot).ok_or(Error::IsDirectory)?;
        if makes && object.is_on_ssd_alone() {
            return Err(Error::NoObject);
        }
        if object.is_the_kernels_alone() && !object.marks.has(Marks::DECORATED) {
            // It had none when it lost its name. As stat does, this tells of what is open, whoever asks.
            return if makes {
                Err(Error::Unsupported("attributes of what the kernel alone has"))
            } else {
                Ok(None)
            };
        }
        let is_below = !makes && matches!(object.place, Place::Ssd | Place::Remote);
        if is_below || matches!(object.place, Place::Packed(_)) {
            return Ok(None);
        }
        // In one step with the look at its place: its last close, which is on its way perhaps, packs what is not marked.
        if makes && !object.marks.has(Marks::DECORATED) {
            self.decorate(&mut state, slot);
            self.rewrite_record(&mut state, slot)?;
        }
        self.backing_file_of(&state, slot).map(Some)
    }

    /// An object is about to lose its name: who has it open goes on to read what programs attached to it. Where the kernel serves
    /// it the daemon has no file of it, and could not open one any more.
    pub(super) fn keep_decorations(&self, state: &mut State, slot: Slot) {
        let is_needed = |object: &Object| {
            object.is_open() && object.marks.has(Marks::DECORATED) && matches!(object.place, Place::Solo(_))
        };
        if state.object(slot).is_some_and(is_needed)
            && let Err(error) = self.open_backing(state, slot)
        {
            tracing::debug!(%error, "attributes of an object are gone with its name");
        }
    }

    /// A program attaches the first attribute to an object. No disk keeps those: what it has, or is given, of the object goes.
    pub(super) fn decorate(&self, state: &mut State, slot: Slot) {
        state.readmit(slot);
        let record = state.ssd_record(slot);
        let Some(object) = state.object_mut(slot) else { return };
        object.marks.set(Marks::DECORATED, true);
        object.marks.set(Marks::ON_SSD, false);
        if let Some(record) = record.filter(|_| object.phase == Phase::Sealed) {
            self.remove_from_ssd(&record);
        }
    }
}

/// Whether there is a name behind the prefix: before an object is changed for what no file system takes.
fn is_named(name: &str) -> Result<(), Error> {
    if name == USER { Err(Error::Invalid("an attribute without a name")) } else { Ok(()) }
}
