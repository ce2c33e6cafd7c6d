//! Rename: the commit point of every client that writes to a temporary name first.
//!
//! At the moment it returns, the new name is whole for everybody, whether or not the writer still has its
//! descriptor open.

mod directory;

use hashbrown::HashSet;
use tidefs_engine::types::{ByteCount, Version};

use super::afterwards::Afterwards;
use super::burial::Doomed;
use super::folders::QuotaInTheWay;
use super::history::Ending;
use super::open_state::{OpenState, Refusal};
use super::room::footprint;
use super::{Caller, Credentials, Datapath, Error, Marks, News, Object, Phase, State, key_hash};
use crate::namespace::{Ino, Name, Slot};
use crate::tier::eviction::Departure;
use crate::tier::scratch::ScratchError;

impl Datapath {
    /// As [`Datapath::rename_for_members`], where nobody is to be told of it.
    ///
    /// # Errors
    /// As [`Datapath::rename_for_members`].
    pub fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        keep_target: bool,
    ) -> Result<(), Error> {
        self.rename_for_members(caller, source, target, keep_target).map(drop)
    }

    /// Renames `name` in `parent` to `new_name` in `new_parent`, as rename(2), or with `keep_target` as
    /// `renameat2(RENAME_NOREPLACE)`. Returns what is to be told of the old name.
    ///
    /// # Errors
    /// [`Error::NoObject`], [`Error::Exists`], [`Error::IsDirectory`], [`Error::NotDirectory`],
    /// [`Error::NotEmpty`], [`Error::OverQuota`] of the target, [`Error::NothingEvictable`] when holes of the file
    /// find no pages; [`Error::Io`] when the record of a directory cannot be written. Then nothing has moved.
    pub fn rename_for_members(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        keep_target: bool,
    ) -> Result<News, Error> {
        let name = Name::new(name)?;
        let new_name = Name::new(new_name)?;
        let (slot, size, is_passthrough, replaced, left_behind_in) = {
            let mut state = self.lock();
            let parent = state.slot_of(parent)?;
            let new_parent = state.living_directory(new_parent)?;
            self.forget_miss(&mut state, caller, new_parent, &new_name);
            let slot = self.visible_child(&mut state, caller, parent, &name)?;
            if state.tree.directory(slot).is_some() {
                let moved = self.rename_directory(&mut state, slot, new_parent, new_name, keep_target)?;
                let limited = state.quotas_above(new_parent);
                drop(state);
                moved.overtaken.into_iter().for_each(|overtaken| self.bury(overtaken));
                moved.walk.into_iter().for_each(|walk| self.regroup(walk));
                self.fit_moved(slot, &limited);
                // None moves on a member of a cluster.
                return Ok(News::default());
            }
            // What makes room for it must not evict it.
            state.hold(slot);
            let replaced = state.tree.child(new_parent, new_name.as_bytes());
            let replaced = replaced.filter(|&replaced| state.object(replaced).is_some());
            replaced.into_iter().for_each(|replaced| state.hold(replaced));
            let open = state.object(slot).and_then(|object| object.open.as_ref());
            let is_passthrough = open.is_some_and(|open| open.passthrough > 0);
            // What was begun for its old name counts whole there, when it has another one, and what does not go along with it.
            let is_spent = state.next_version(slot).is_some_and(|next| state.is_spent(next));
            let leaves_behind = is_spent || state.is_beside_begun(slot);
            let left_behind_in = leaves_behind.then(|| state.tree.node(slot).parent);
            (slot, self.stat_of(&state, slot).size, is_passthrough, replaced, left_behind_in)
        };
        let update_holds = || {
            let mut state = self.lock();
            [Some(slot), replaced].into_iter().flatten().for_each(|slot| state.update_hold(slot));
        };
        if is_passthrough {
            self.refuse_if_cut_short(slot);
        }
        let room = self.fill_holes(slot).and_then(|()| self.room_for_move(slot, size, new_parent, &new_name));
        if let Err(error) = room {
            update_holds();
            return Err(error);
        }
        let mut afterwards = Afterwards::default();
        let outcome = self.with_room(|| {
            self.rename_file(
                &mut self.lock(),
                caller,
                (parent, &name),
                (new_parent, new_name.clone()),
                keep_target,
                &mut afterwards,
            )
        });
        if let Some(directory) = left_behind_in.filter(|_| outcome.is_ok()) {
            self.trim_to_quota(directory);
        }
        update_holds();
        self.carry_out(afterwards);
        outcome
    }

    /// Makes room for a file in the quotas above its new place, where it is not counted already.
    fn room_for_move(
        &self,
        slot: Slot,
        size: ByteCount,
        new_parent: Ino,
        new_name: &Name,
    ) -> Result<(), Error> {
        let (target, counted_in, counted, is_sealed) = {
            let state = self.lock();
            let target = state.slot_of(new_parent)?;
            let object = state.object(slot);
            if object.is_none_or(Object::is_slot_file) {
                return Ok(());
            }
            let is_sealed = object.is_some_and(|object| object.phase == Phase::Sealed);
            let charged_in = state.charges.of.get(&slot).map(|charge| charge.directory);
            // One that is on its way out of memory counts again from its rename on.
            let is_leaving = object.is_some_and(|object| object.marks.has(Marks::STORING));
            let sealed_in = (!is_leaving).then(|| state.tree.node(slot).parent);
            let counted_in = if is_sealed { sealed_in } else { charged_in };
            (target, counted_in, state.counted_under(target, new_name), is_sealed)
        };
        let is_to_be_sealed = !is_sealed && !self.is_temporary(new_name);
        if is_to_be_sealed && counted_in == Some(target) {
            // What the kernel wrote is counted with its commit, at the latest.
            self.claim_all(slot, size)?;
        }
        let more = footprint(size).saturating_sub(counted);
        self.make_room_in_quota_beside(more, target, counted_in)?;
        if is_to_be_sealed && counted_in != Some(target) {
            // The same above both places, which count it as it was when it was counted last. They may be past their quotas by it.
            self.make_room_below(more, |state| {
                let charge = state.charges.of.get(&slot)?;
                let (counted_in, counted) = (charge.directory, charge.bytes);
                let above: HashSet<Slot> = state.tree.ancestors(counted_in).collect();
                let common = state.tree.ancestors(target).find(|ancestor| above.contains(ancestor))?;
                let in_the_way = state.quota_in_the_way(common, more.saturating_sub(counted), None)?;
                Some(QuotaInTheWay { growing: target, ..in_the_way })
            })?;
        }
        Ok(())
    }

    fn rename_file(
        &self,
        state: &mut State,
        caller: &Caller,
        (parent, name): (Ino, &Name),
        (new_parent, new_name): (Ino, Name),
        keep_target: bool,
        afterwards: &mut Afterwards,
    ) -> Result<News, Error> {
        let parent = state.slot_of(parent)?;
        let new_parent = state.living_directory(new_parent)?;
        let slot = self.visible_child(state, caller, parent, name)?;
        if parent == new_parent && *name == new_name {
            return Ok(News::default());
        }
        if let Some(target) = state.tree.child(new_parent, new_name.as_bytes()) {
            if state.tree.directory(target).is_some() {
                return Err(Error::IsDirectory);
            }
            let is_in_vain = state.is_overtaken(target);
            if keep_target && !is_in_vain {
                return Err(Error::Exists);
            }
            // The kernel looks at that where it knows that there is something.
            let (directory, attributes) =
                (state.tree.node(new_parent).attributes, state.tree.node(target).attributes);
            if !is_in_vain
                && self.is_hidden_from(state, caller, target, false)
                && !Credentials::without_groups(caller).may_replace(&directory, &attributes)
            {
                return Err(Error::NotPermitted("replacing the file that another user is writing"));
            }
        }
        let Some(object) = state.object(slot) else { return Err(Error::NoObject) };
        let is_scratch = object.is_slot_file();
        let phase = object.phase;
        let refused = object.open.as_ref().and_then(|open| open.refused);
        if let (Phase::Writing, Some(refusal), false) =
            (phase, refused, is_scratch || self.is_temporary(&new_name))
        {
            // A write to it failed, or was cut short: what is there is no object, whether or not its writer looked.
            return Err(state.error_of(refusal));
        }
        let left = self.news_of_leaving(state, parent, name.as_bytes());
        match phase {
            Phase::Sealed => self.move_sealed(state, slot, new_parent, new_name, afterwards),
            _ if is_scratch || self.is_temporary(&new_name) => {
                self.move_unsealed(state, slot, new_parent, new_name, afterwards)
            }
            Phase::Parked | Phase::Writing | Phase::Gone => {
                self.publish(state, slot, new_parent, new_name, Some(caller.thread.0), afterwards)
            }
        }?;
        let now_ns = self.now_ns();
        state.tree.node_mut(parent).attributes.written_at(now_ns);
        state.tree.node_mut(new_parent).attributes.written_at(now_ns);
        Ok(left)
    }

    /// A sealed object gets another name.
    fn move_sealed(
        &self,
        state: &mut State,
        slot: Slot,
        parent: Slot,
        name: Name,
        afterwards: &mut Afterwards,
    ) -> Result<(), Error> {
        state.readmit(slot);
        if state.object(slot).is_some_and(|object| Self::is_away(&object.place)) {
            // It was to be brought back before, and could not be: a miss.
            return Err(Error::NoObject);
        }
        let directory = state.directory_id(parent)?;
        let (version, now_ns) = (state.take_version(), self.now_ns());
        // Under its new name nobody else has it.
        state.harden(slot);
        // First, since it may find no room; from two objects of one name a restart takes the one with this version.
        self.write_record(state, slot, (parent, &name), version, now_ns)?;
        if let Some(record) = state.ssd_record(slot) {
            let ino = state.tree.ino(slot);
            afterwards.doomed.push(Doomed::record_only(record, ino));
        }
        let size = state.object(slot).map(|object| object.size).unwrap_or_default();
        let next = state.next_version(slot);
        // What was closed before this object took its name keeps nobody from writing what stands under the other one.
        let spent = next.filter(|&next| state.is_spent(next));
        let doomed_before = afterwards.doomed.len();
        let keeps_heir = next.is_none() || spent.is_some();
        let heir = self.displace(state, parent, &name, slot, keeps_heir, afterwards);
        let spent = spent.filter(|_| heir.is_some());
        afterwards.doomed.extend(spent.map(|spent| state.discard_writing(spent)));
        let next = next.filter(|_| spent.is_none());
        self.retire_all(&mut afterwards.doomed[doomed_before..]);
        state.leave_order(slot, footprint(size), Departure::Gone);
        state.uncount(state.tree.node(slot).parent, size);
        if let Some(old_key) = state.key_of(slot) {
            let ino = state.tree.ino(slot).0;
            state.history.note(old_key, self.now_ns(), Ending::Renamed { ino });
        }
        let key = key_hash(directory, name.as_bytes());
        state.move_name(slot, parent, name.clone());
        if !self.is_temporary(&name) {
            state.mark_untold(slot);
        }
        state.count(parent, size);
        state.enter_order(slot, key, None, footprint(size));
        state.history.clear(key);
        if let Some(next) = next {
            self.take_along(state, next, (parent, name));
        }
        if heir.is_some()
            && let Some(object) = state.object_mut(slot)
        {
            object.open_mut().next_version = heir;
            // Nothing that was left behind makes it leave.
            state.update_hold(slot);
        }
        state.recharge(slot);
        // Whatever was in force in its old place.
        state.renew_expiry(slot);
        state.tree.node_mut(slot).attributes.ctime_ns = now_ns;
        state.watch_pin(slot);
        if let Some(object) = state.object_mut(slot) {
            object.version = version;
            object.marks.set(Marks::ON_SSD, false);
        }
        if state.tree.node(slot).lookups > 0 {
            afterwards.changed.push(state.tree.ino(slot));
        }
        Ok(())
    }

    /// Whoever writes a new version of an object that was moved goes on under its new name.
    fn take_along(&self, state: &mut State, next: Slot, place: (Slot, Name)) {
        // Under the name that it was promised for.
        state.break_promise(next);
        if let Some(object) = state.object_mut(next) {
            object.open_mut().supersedes = Some(place);
        }
        self.forget_announced_close(state, next);
    }

    /// The name under which the close of a hidden file was announced is not its name any more: a start must not find
    /// it there.
    fn forget_announced_close(&self, state: &State, slot: Slot) {
        let Some(object) = state.object(slot).filter(|object| object.phase == Phase::Writing) else { return };
        if let Some(file) = object.file()
            && let Err(error) = self.tier.unseal(file)
        {
            tracing::error!(%error, "a file that moved may be found under its old name after a restart");
        }
    }

    /// A file that is no object keeps its phase under another name.
    fn move_unsealed(
        &self,
        state: &mut State,
        slot: Slot,
        parent: Slot,
        name: Name,
        afterwards: &mut Afterwards,
    ) -> Result<(), Error> {
        state.directory_id(parent)?;
        state.break_promise(slot);
        let doomed_before = afterwards.doomed.len();
        afterwards.doomed.extend(state.leave_with_old_version(slot));
        self.displace(state, parent, &name, slot, false, afterwards);
        self.retire_all(&mut afterwards.doomed[doomed_before..]);
        self.forget_announced_close(state, slot);
        if let Some(open) = state.object_mut(slot).and_then(|object| object.open.as_deref_mut()) {
            open.forget_overtaking();
        }
        if let Some(object) = state.object_mut(slot)
            && object.version == Version::default()
            && self.is_temporary(&name)
        {
            object.marks.set(Marks::SHOWN, true);
        }
        let parked = state
            .object(slot)
            .filter(|object| object.phase == Phase::Parked && !object.is_slot_file())
            .map(|object| object.size);
        if let Some(size) = parked {
            state.leave_order(slot, footprint(size), Departure::Gone);
        }
        state.move_name(slot, parent, name);
        state.tree.node_mut(slot).attributes.ctime_ns = self.now_ns();
        if let (Some(size), Some(key)) = (parked, state.key_of(slot)) {
            state.enter_order(slot, key, None, footprint(size));
        }
        state.recharge(slot);
        Ok(())
    }

    /// Removes what stands under a name that `newcomer` is about to take. With `keeps_heir`, a hidden version that was
    /// to replace what everyone saw is returned, to replace the newcomer; else it is dropped.
    pub(super) fn displace(
        &self,
        state: &mut State,
        parent: Slot,
        name: &Name,
        newcomer: Slot,
        keeps_heir: bool,
        afterwards: &mut Afterwards,
    ) -> Option<Slot> {
        let old = state.tree.child(parent, name.as_bytes()).filter(|&old| old != newcomer)?;
        self.telemetry.replacements.increment();
        let (current, next) = state.versions_of(old);
        let next = next.filter(|&next| next != newcomer);
        state.note_name_lost([current], self.now_ns());
        // What all have closed has no RELEASE to come by which it ends: it waits for a writer, who finds the newcomer.
        let is_left = |&next: &Slot| {
            state.object(next).and_then(|next| next.open.as_deref()).is_some_and(OpenState::is_left)
        };
        let heir = next.filter(|next| keeps_heir && current.is_some() && !is_left(next));
        if let Some(heir) = heir {
            // What was closed before this does not replace it.
            state.overtake(heir);
        }
        if heir.is_some() && state.tree.node(newcomer).lookups > 0 {
            // The kernel shows it to everyone under its new name, and to one process that stands for the heir.
            afterwards.changed.push(state.tree.ino(newcomer));
            // While somebody has it open, who asks for its attributes may do so for a descriptor, and is told them.
            afterwards.moved_open |= state.object(newcomer).is_some_and(Object::is_open);
        }
        if let Some(next) = next.filter(|_| heir.is_none()) {
            afterwards.doomed.push(state.discard_writing(next));
        }
        if let Some(current) = current {
            if state.object(newcomer).is_some_and(Object::is_slot_file) && !self.is_temporary(name) {
                // The newcomer itself is told to nobody.
                let stamp = state.sealed_stamp(current).filter(|_| state.has_members());
                let path = || state.path_of_child(parent, name.as_bytes());
                afterwards.removed.extend(stamp.map(|stamp| (path(), stamp)));
            }
            self.keep_decorations(state, current);
            afterwards.doomed.push(state.remove_object(current, Departure::Gone, None));
        }
        heir
    }
}

impl State {
    /// What a write was refused with, once more.
    pub(super) fn error_of(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::OverQuota { directory, quota } => {
                let path = self.tree.get(directory).map(|_| self.path_text(directory));
                Error::OverQuota { directory: path.unwrap_or_default(), slot: directory, quota }
            }
            Refusal::NoRoom => Error::NothingEvictable { needed: None },
            Refusal::ScratchFull => Error::ScratchFull(ScratchError::Before),
        }
    }
}

#[cfg(test)]
mod tests;
