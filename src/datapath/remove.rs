//! How things leave: eviction, unlink, replacement, a directory's end, and the kernel's FORGET.
//!
//! Invariants
//! - What loses its name keeps its slot while a handle or the kernel has it. Its bytes are handed to the caller, who frees them
//!   when the lock is let go.
//! - A version that is written over an object gives up its claim to the name when that goes to something else.

use tidefs_engine::types::{ByteCount, ObjectCount};

use super::burial::Doomed;
use super::folders::Change;
use super::history::Ending;
use super::room::footprint;
use super::{Caller, Datapath, Error, Marks, Phase, Place, State, key_hash};
use crate::namespace::{Body, Ino, Name, Node, Slot};
use crate::tier::eviction::Departure;
use crate::tier::scratch::Wait;

impl State {
    /// Takes a visible object out of every table and out of its directory. With open handles its node stays,
    /// without a name, until they are closed and the kernel forgot it.
    pub(super) fn remove_object(
        &mut self,
        slot: Slot,
        departure: Departure,
        ending: Option<(i64, Ending)>,
    ) -> Doomed {
        let is_sealed = self.object(slot).is_some_and(|object| object.phase == Phase::Sealed);
        let is_replaced = departure == Departure::Gone && ending.is_none() && is_sealed;
        if is_replaced {
            // What takes its place is told itself; a word about the old one before that would be a moment of absence.
            self.forget_replaced_copy(slot);
        } else {
            self.let_go(slot);
        }
        let on_ssd = self.ssd_record(slot);
        self.readmit(slot);
        let node = self.tree.node(slot);
        let (is_named, kernel_knows) = (!node.is_detached(), node.lookups > 0);
        let ino = self.tree.ino(slot);
        let size = self.object(slot).map(|object| object.size).unwrap_or_default();
        let next = self.next_version(slot);
        // What is written over it goes on as a file that had none before it, be it that another host replaced or removed this one
        // or that its bytes are broken. Of one that has no name any more nothing is written.
        let heir = next.filter(|_| ending.is_some() && is_named);
        let heir = heir.and_then(|next| self.drop_claim(next).map(|place| (next, place)));
        self.leave_accounts(slot, departure);
        self.writing.remove(&slot);
        self.parked.clear(slot);
        self.clear_expiry(slot);
        self.forget_pin(slot);
        if let (Some(key), Some((now_ns, ending))) = (self.key_of(slot), ending) {
            self.history.note(key, now_ns, ending);
        }
        self.leave_name(slot);
        if let Some((next, (parent, name))) = heir {
            self.take_free_name(next, parent, name);
        }
        let mut doomed = Doomed {
            on_ssd,
            size,
            kernel_knows: kernel_knows && is_named,
            is_open: false,
            ..Doomed::nothing(ino)
        };
        if let Some(object) = self.object_mut(slot) {
            object.phase = Phase::Gone;
            if let Some(open) = object.open.as_mut() {
                // It takes the place of what took this one's, or none.
                open.next_version = None;
                open.is_barred = matches!(ending, Some((_, Ending::Corrupt | Ending::EvictedByOperator)));
            }
            object.settle();
            // Who looked a name up just before it was replaced is still to open the old version: its bytes linger.
            doomed.take_bytes(object, is_replaced && kernel_knows);
        }
        self.recharge(slot);
        if let Some(next) = next {
            // It does not take this one's place any more.
            self.recharge(next);
        }
        if let Some(late) = self.drop_if_unused(slot)
            && doomed.place.is_none()
        {
            doomed.place = Some(late);
        }
        self.linger(slot);
        doomed
    }

    /// Takes an object that is about to lose its name out of the order of eviction and the accounts.
    fn leave_accounts(&mut self, slot: Slot, departure: Departure) {
        let Some(object) = self.object(slot) else { return };
        let size = object.size;
        match object.phase {
            Phase::Sealed if object.is_resident() => {
                self.note_departed(slot, size);
                self.leave_order(slot, footprint(size), departure);
                self.uncount(self.tree.node(slot).parent, size);
            }
            Phase::Parked if !object.is_slot_file() => self.leave_order(slot, footprint(size), departure),
            Phase::Sealed | Phase::Parked | Phase::Writing | Phase::Gone => {}
        }
    }

    /// Frees the node when it has no name, no handle and no kernel reference. Returns bytes that are still to free.
    pub(super) fn drop_if_unused(&mut self, slot: Slot) -> Option<Place> {
        let node = self.tree.get(slot)?;
        if !node.is_detached() || node.lookups > 0 || slot == Slot::ROOT {
            return None;
        }
        if self.object(slot).is_some_and(|object| object.is_open() || object.phase != Phase::Gone) {
            return None;
        }
        self.discharge(slot);
        self.forget_departed(slot);
        match self.tree.free(slot).body {
            Body::File(object) => {
                self.unverified.part_from(&object);
                match object.place {
                    Place::Remote => {
                        self.elsewhere.leave(slot);
                        None
                    }
                    Place::Scratch(_) | Place::Ssd | Place::Freed => None,
                    place @ (Place::Solo(_) | Place::Packed(_)) => Some(place),
                }
            }
            Body::Directory(_) => {
                self.leave_folder(slot);
                None
            }
        }
    }

    /// What stands under one name, whichever of the two `slot` is: the file that everyone sees, and the one that only
    /// its writers see.
    pub(super) fn versions_of(&self, slot: Slot) -> (Option<Slot>, Option<Slot>) {
        let Some(object) = self.object(slot) else { return (None, None) };
        let next_of = |slot: Slot| self.object(slot)?.open.as_ref()?.next_version;
        if object.phase != Phase::Writing {
            return (Some(slot), next_of(slot));
        }
        let claim = object.open.as_ref().and_then(|open| open.supersedes.as_ref());
        let current = claim.and_then(|(parent, name)| self.tree.child(*parent, name.as_bytes()));
        (current.filter(|&current| next_of(current) == Some(slot)), Some(slot))
    }

    /// The version that is being written over the object in `slot`, of which only its writers know.
    pub(super) fn next_version(&self, slot: Slot) -> Option<Slot> {
        self.object(slot)?.next_version()
    }

    /// The same, if it is what others come to write: not what all had closed before the object in `slot` took its name.
    pub(super) fn version_to_join(&self, slot: Slot) -> Option<Slot> {
        self.next_version(slot).filter(|&next| !self.object(next).is_some_and(super::Object::is_overtaken))
    }

    /// Drops a file that is being written: its name, if it has one, and its claim to replace another version.
    pub(super) fn discard_writing(&mut self, slot: Slot) -> Doomed {
        // While it is known which name it was to get.
        self.break_promise(slot);
        self.drop_claim(slot);
        self.remove_object(slot, Departure::Gone, None)
    }

    /// The file in `slot` is about to get another name than the version that it was to replace, which leaves the old one along
    /// with it.
    pub(super) fn leave_with_old_version(&mut self, slot: Slot) -> Option<Doomed> {
        let (Some(old), Some(next)) = self.versions_of(slot) else { return None };
        (next == slot).then(|| {
            self.drop_claim(slot);
            self.remove_object(old, Departure::Gone, None)
        })
    }

    /// Takes back a hidden version's claim to the name of an older one. Returns that place.
    pub(super) fn drop_claim(&mut self, slot: Slot) -> Option<(Slot, Name)> {
        let place = self.object_mut(slot)?.open.as_mut()?.supersedes.take()?;
        if let Some(old) = self.tree.child(place.0, place.1.as_bytes())
            && let Some(object) = self.object_mut(old)
            && object.open.as_ref().is_some_and(|open| open.next_version == Some(slot))
        {
            object.open_mut().next_version = None;
            object.settle();
            self.update_hold(old);
        }
        Some(place)
    }
}

impl Datapath {
    /// Removes the file `name` of `parent`, as unlink(2).
    ///
    /// # Errors
    /// [`Error::NoObject`] when the caller sees no such file, [`Error::IsDirectory`].
    pub fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<(), Error> {
        let left = self.unlink_name(caller, parent, name)?;
        self.move_unlinked(left, Wait::Patiently);
        Ok(())
    }

    /// The same, but for what waits for a disk: the files that are left to [`move_unlinked`](Self::move_unlinked).
    ///
    /// # Errors
    /// As [`unlink`](Self::unlink).
    pub fn unlink_name(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Vec<Ino>, Error> {
        let name = Name::new(name)?;
        let (doomed, versions) = {
            let mut state = self.lock();
            let parent = state.slot_of(parent)?;
            let slot = self.visible_child(&mut state, caller, parent, &name)?;
            if state.tree.directory(slot).is_some() {
                return Err(Error::IsDirectory);
            }
            self.telemetry.unlinks.increment();
            let now_ns = self.now_ns();
            state.tree.node_mut(parent).attributes.written_at(now_ns);
            let (current, next) = state.versions_of(slot);
            state.note_name_lost([next, current], now_ns);
            let process = state.process(caller, self.clock.monotonic());
            let ending = (now_ns, Ending::Deleted { process: process.0 });
            let versions = [next, current].map(|version| version.map(|slot| state.tree.ino(slot)));
            let next = next.map(|next| state.discard_writing(next));
            let current = current.map(|slot| {
                self.keep_decorations(&mut state, slot);
                state.remove_object(slot, Departure::Gone, Some(ending))
            });
            let mut doomed: Vec<Doomed> = [next, current].into_iter().flatten().collect();
            self.retire_all(&mut doomed);
            (doomed, versions)
        };
        doomed.into_iter().for_each(|doomed| self.bury(doomed));
        Ok(versions.into_iter().flatten().filter(|&ino| self.is_left_to_move(ino)).collect())
    }

    /// Removes the empty directory `name` of `parent`, as rmdir(2).
    ///
    /// # Errors
    /// [`Error::NotEmpty`], also when only hidden files are in it; [`Error::NotDirectory`]; [`Error::NoObject`].
    pub fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<(), Error> {
        let name = Name::new(name)?;
        let mut state = self.lock();
        let parent = state.slot_of(parent)?;
        let slot = state.tree.child(parent, name.as_bytes()).ok_or(Error::NoObject)?;
        let directory = state.tree.directory(slot).ok_or(Error::NotDirectory)?;
        if !directory.children.is_empty() || state.may_hold_unnamed(directory) {
            return Err(Error::NotEmpty);
        }
        let id = directory.id;
        self.tier.remove_directory(id)?;
        let key = key_hash(state.directory_id(parent)?, name.as_bytes());
        let now_ns = self.now_ns();
        state.history.note(key, now_ns, Ending::Deleted { process: 0 });
        state.note_name_lost([Some(slot)], now_ns);
        state.leave_directory(slot);
        state.tree.node_mut(parent).attributes.written_at(now_ns);
        state.drop_if_unused(slot);
        self.forget_directory(&mut state, id);
        Ok(())
    }

    /// The kernel gives back `count` references to an inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        self.watch_for_end_of_room();
        let late = {
            let mut state = self.lock();
            let Some(slot) = state.tree.by_ino(ino) else { return };
            if slot == Slot::ROOT || !state.tree.dereference(slot, count) {
                return;
            }
            if let Some(kernel) = self.kernel.get() {
                // Under the lock: whoever looks the name up again and opens it has the kernel serve it from one backing
                // file that is registered anew, and while it is open another one means EIO.
                kernel.release_backing(ino);
            }
            if let Some(object) = state.object_mut(slot) {
                // No open file and no mapping is left: the kernel keeps the inode for either.
                object.marks.set(Marks::READ, false);
            }
            state.unshow(slot);
            state.drop_if_unused(slot)
        };
        if let Some(place) = late {
            self.free_place(place);
        }
    }

    /// Asks the kernel to drop idle inodes while it holds more than are allowed.
    pub fn bound_kernel_inodes(&self) {
        const ASKED_AT_ONCE: u64 = 16_384;
        let idle: Vec<Ino> = {
            let mut state = self.lock();
            let surplus = state.tree.referenced().saturating_sub(self.settings.kernel_inodes_max);
            if surplus == 0 {
                return;
            }
            let limit = usize::try_from(surplus.min(ASKED_AT_ONCE)).unwrap_or(usize::MAX);
            let is_idle =
                |node: &Node<super::Object>| matches!(&node.body, Body::File(object) if !object.is_open());
            let (idle, next) = state.tree.idle_after(state.inode_hand, limit, is_idle);
            state.inode_hand = next;
            idle.into_iter().map(|slot| state.tree.ino(slot)).collect()
        };
        if let Some(kernel) = self.kernel.get() {
            kernel.drop_idle(&idle);
        }
    }
}

impl State {
    /// A program takes the names of nodes away, which moves the ctime of those that are open.
    pub(super) fn note_name_lost(&mut self, slots: impl IntoIterator<Item = Option<Slot>>, now_ns: i64) {
        for slot in slots.into_iter().flatten() {
            self.tree.node_mut(slot).attributes.ctime_ns = now_ns;
        }
    }

    /// Takes an empty directory's name and its domain away.
    pub(super) fn leave_directory(&mut self, slot: Slot) {
        self.leave_domain(slot);
        self.pass_charges_up(slot);
        self.clear_untold(slot);
        self.tree.detach(slot);
    }

    /// Takes a sealed object of `size` in `parent` out of the accounts.
    pub(super) fn uncount(&mut self, parent: Slot, size: ByteCount) {
        let change = Change::Take { bytes: footprint(size), objects: ObjectCount(1) };
        self.folders.account(&self.tree, parent, change);
        self.sealed_bytes = self.sealed_bytes.saturating_sub(size);
        self.sealed_objects = self.sealed_objects.saturating_sub(1);
    }

    /// Enters a sealed object of `size` in `parent` into the accounts.
    pub(super) fn count(&mut self, parent: Slot, size: ByteCount) {
        let change = Change::Add { bytes: footprint(size), objects: ObjectCount(1) };
        self.folders.account(&self.tree, parent, change);
        self.sealed_bytes = self.sealed_bytes.saturating_add(size);
        self.sealed_objects += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{caller, directory, make, unprivileged};
    use super::*;

    #[test]
    fn the_ctime_of_what_loses_its_name_moves_by_whatever_takes_it() {
        let (_place, datapath) = unprivileged();
        let begin = |ino: Ino| {
            datapath.lock().tree.node_mut(ino.slot()).attributes.ctime_ns = 0;
            ino
        };
        let rename = |name: &[u8], new_name: &[u8]| {
            datapath.rename(&caller(), (Ino::ROOT, name), (Ino::ROOT, new_name), false).unwrap();
        };
        let unlinked = begin(make(&datapath, Ino::ROOT, "unlinked"));
        datapath.unlink(&caller(), Ino::ROOT, b"unlinked").unwrap();
        let replaced = begin(make(&datapath, Ino::ROOT, "replaced"));
        make(&datapath, Ino::ROOT, "object");
        rename(b"object", b"replaced");
        let removed = begin(directory(&datapath, b"removed"));
        datapath.remove_directory(Ino::ROOT, b"removed").unwrap();
        let taken = begin(directory(&datapath, b"taken"));
        directory(&datapath, b"directory");
        rename(b"directory", b"taken");
        // The kernel knows them all still.
        for ino in [unlinked, replaced, removed, taken] {
            let stat = datapath.getattr(ino).unwrap();
            assert!(stat.attributes.ctime_ns > 0 && stat.links == 0, "{stat:?}");
        }
    }
}
