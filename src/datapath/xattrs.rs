//! Extended attributes: the control plane of a directory or object, in the hands of whoever owns it.
//!
//! `user.tidefs.*` are policy and facts; other `user.*` attributes of applications are kept on the backing file
//! (objects) or the directory's record file, and go with it.

use std::sync::Arc;

use tidefs_engine::types::ByteCount;

use super::decorations::{self, USER, told};
use super::policy_text::{RECOMPUTE, SETTABLE, apply, is_settable, written};
use super::regroup::Changes;
use super::{Datapath, Error, Marks, Phase, Place, State};
use crate::namespace::{Ino, Slot};
use crate::tier::memory::{Pin, PolicyRecord};

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

    /// Whether there is a value. That of a checksum is not taken for it: it is of all bytes of the object.
    fn has_value(&self, ino: Ino, key: &str) -> bool {
        if key == "checksum" { self.may_have_checksum(ino) } else { self.policy_value(ino, key).is_ok() }
    }

    fn policy_value(&self, ino: Ino, key: &str) -> Result<String, Error> {
        if key == "checksum" {
            let checksum = self.checksum(ino)?.ok_or(Error::NoAttribute)?;
            return Ok(format!("xxh3-64:{:016x}", checksum.0));
        }
        let state = self.lock();
        let slot = state.slot_of(ino)?;
        let policy = state.effective_policy(slot).record;
        let is_file = state.object(slot).is_some();
        match key {
            "policy" => Some(state.domains.get(state.domain_for_reading(slot)).order.name().to_owned()),
            "tier" if is_file => state.object(slot).map(|object| tier_text(object).to_owned()),
            "version" if is_file => state.object(slot).map(|object| object.version.to_string()),
            "why" if is_file => Some(state.why_text(slot)),
            _ => written(&policy, key),
        }
        .ok_or(Error::NoAttribute)
    }

    /// Whether a policy is set on the node itself.
    fn has_own_policy(&self, ino: Ino, key: &str) -> Result<bool, Error> {
        let state = self.lock();
        let slot = state.slot_of(ino)?;
        let mut own = match state.folders.get(slot) {
            Some(folder) => folder.policy.clone(),
            None => state.object(slot).map(super::Object::policy).unwrap_or_default(),
        };
        // Taking it out of a copy tells whether it was there; what is no policy is refused by the caller's next step.
        Ok(apply(&mut own, key, None).unwrap_or(false))
    }

    /// Sets, or with `None` removes, one policy of a directory, or of an object that is in memory.
    pub(super) fn change_policy(&self, ino: Ino, key: &str, value: Option<&str>) -> Result<(), Error> {
        is_settable(key)?;
        self.with_room_for(ino, || self.set_own_policy(ino, key, value))
    }

    fn set_own_policy(&self, ino: Ino, key: &str, value: Option<&str>) -> Result<(), Error> {
        let mut state = self.lock();
        let slot = state.slot_in_use(ino)?;
        if state.object(slot).is_some_and(super::Object::is_on_ssd_alone) {
            // It was to be brought back before, and could not be. Its record on disk would say nothing of this.
            return Err(Error::NoObject);
        }
        let is_directory = state.tree.directory(slot).is_some();
        if !is_directory && matches!(key, "quota" | "floor" | "policy" | "scratch" | "durability" | RECOMPUTE)
        {
            return Err(Error::Invalid("this policy is set on directories"));
        }
        let before = match state.folders.get(slot) {
            Some(folder) => folder.policy.clone(),
            None => state.object(slot).map(super::Object::policy).unwrap_or_default(),
        };
        let mut after = before.clone();
        let changed = apply(&mut after, key, value)?;
        if !changed {
            return Err(Error::NoAttribute);
        }
        let now_ns = self.now_ns();
        if key == "pin" {
            // One that is set again counts from now, too.
            let has_end = !is_directory && matches!(after.pin, Some(Pin::Soft { ttl_s: Some(_) }));
            after.pinned_at_ns = has_end.then_some(now_ns);
        }
        let is_other = after != before;
        let changes = Changes::between(&before, &after);
        state.set_policy(slot, after);
        state.tree.node_mut(slot).attributes.ctime_ns = now_ns;
        let persisted = if is_directory {
            self.persist_directory(&mut state, slot)
        } else {
            self.rewrite_record(&mut state, slot)
        };
        if let Err(error) = persisted {
            state.set_policy(slot, before);
            return Err(error);
        }
        if let Some(next) = state.next_version(slot).filter(|_| is_other) {
            let mut after = state.object(next).map(super::Object::policy).unwrap_or_default();
            if apply(&mut after, key, value)? {
                state.set_policy(next, after);
            }
        }
        let quota = state.folders.get(slot).and_then(|folder| folder.policy.quota);
        let walk = (is_directory && changes.is_any()).then(|| state.begin_walk(slot, changes));
        if !is_directory {
            let parent = state.tree.node(slot).parent;
            state.regroup_object(parent, slot, Changes { order: true, expiries: key == "ttl" });
        }
        drop(state);
        walk.into_iter().for_each(|walk| self.regroup(walk));
        if let Some(side) = self.cluster.get().filter(|_| key == "replicas") {
            side.cluster().check_copies();
        }
        if key == "quota" && quota.is_some() {
            // A quota below what is there takes effect by evicting down to it; what cannot go stays.
            let _ = self.make_room_in_quota(ByteCount::ZERO, slot);
        }
        Ok(())
    }
}

/// Whether there is a name behind the prefix: before an object is changed for what no file system takes.
fn is_named(name: &str) -> Result<(), Error> {
    if name == USER { Err(Error::Invalid("an attribute without a name")) } else { Ok(()) }
}

/// Which tier an object is in, as `user.tidefs.tier` spells it.
pub(super) fn tier_text(object: &super::Object) -> &'static str {
    match (&object.place, object.phase) {
        (Place::Scratch(_), _) => "scratch",
        (_, Phase::Writing | Phase::Parked) => "writing",
        (Place::Packed(_), _) => "packed",
        (Place::Solo(_), _) => "memory",
        (Place::Ssd, _) => "ssd",
        (Place::Remote, _) => "remote",
    }
}

impl State {
    pub(super) fn set_policy(&mut self, slot: Slot, policy: PolicyRecord) {
        let policy_of_object = self.folders.set_policy(slot, policy);
        if let Some((object, policy)) = self.object_mut(slot).zip(policy_of_object) {
            object.open_mut().policy = policy;
            object.settle();
        }
    }

    /// The domain that orders the objects directly in a directory, or a file among its siblings.
    fn domain_for_reading(&self, slot: Slot) -> super::domains::DomainId {
        if self.folders.get(slot).is_some() { self.folders.domain(slot) } else { self.domain_of(slot) }
    }

    fn why_text(&self, slot: Slot) -> String {
        let Some(object) = self.object(slot) else { return String::new() };
        match object.phase {
            Phase::Writing => {
                "being written: hidden from others until its last writer closes or renames it".to_owned()
            }
            Phase::Parked if object.is_slot_file() => {
                "a slot file: on the disk of this host, until its name or its daemon goes".to_owned()
            }
            Phase::Parked => "a closed temporary file: becomes an object when it is renamed".to_owned(),
            Phase::Gone => "without a name: kept for whoever has it open".to_owned(),
            Phase::Sealed => format!("present in {}", tier_text(object)),
        }
    }
}
