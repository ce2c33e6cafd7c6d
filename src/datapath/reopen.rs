//! Reopening what was closed, to go on writing it where it is: sealed objects that nobody uses, and temporary files.
//!
//! A sealed object that is rewritten is hidden, while the kernel may still show its inode under its name to everyone.
//! To take the name from it without the directory's lock, the bytes move to a new inode: who comes by the old one is
//! told that it is stale and looks the name up again, and only its writers find the new one.

use tidefs_engine::types::ByteCount;

use super::room::footprint;
use super::{Caller, Datapath, Error, Marks, Object, OpenOptions, Phase, Place, State};
use crate::namespace::{Body, Slot};
use crate::tier::eviction::Departure;

impl Datapath {
    /// Takes a sealed object that nobody else uses back to being written, without a copy.
    ///
    /// # Errors
    /// [`Error::Stale`] when a new version must be begun for it, or when the kernel must look the name up again to find
    /// the inode that the caller is to write.
    pub(super) fn unseal(
        &self,
        state: &mut State,
        caller: &Caller,
        slot: Slot,
        options: OpenOptions,
    ) -> Result<(), Error> {
        self.withdraw(state, slot, options)?;
        if state.tree.node(slot).lookups == 0 {
            return Ok(()); // the kernel shows it to nobody
        }
        self.renew_inode(state, caller, slot);
        Err(Error::Stale)
    }

    /// As [`Datapath::unseal`], for a writer whom the kernel does not send to look the name up once more. Others may be
    /// shown attributes of the hidden object, and are told that it is absent when they open it.
    pub(super) fn unseal_in_place(
        &self,
        state: &mut State,
        slot: Slot,
        options: OpenOptions,
    ) -> Result<(), Error> {
        self.withdraw(state, slot, options)?;
        if let Some(kernel) = self.kernel.get() {
            kernel.forget_attributes(state.tree.ino(slot));
        }
        Ok(())
    }

    /// Takes a sealed object out of the order and the accounts: it is hidden again under its name.
    fn withdraw(&self, state: &mut State, slot: Slot, options: OpenOptions) -> Result<(), Error> {
        state.readmit(slot);
        let Some(object) = state.object(slot) else { return Err(Error::IsDirectory) };
        // Of what clients of an earlier daemon have mapped nobody ever tells that they have not any more.
        let may_be_mapped = object.marks.has(Marks::READ) || object.marks.has(Marks::ADOPTED);
        let is_used = object.is_open() || may_be_mapped || !object.marks.has(Marks::FINAL);
        // A disk may be written from it: a cut would take the pages from under that.
        let is_free = match object.place {
            Place::Solo(segment) => !self.fast.segments.lock().is_lent(segment),
            _ => false,
        };
        let size = object.size;
        if is_used || !is_free || object.next_version().is_some() || options.truncate {
            return Err(Error::Stale);
        }
        self.open_backing(state, slot)?;
        let Some(file) = state.object(slot).and_then(Object::file).cloned() else { return Err(Error::Stale) };
        self.tier.unseal(&file)?;
        if let Some(record) = state.ssd_record(slot) {
            self.remove_from_ssd(&record);
        }
        // What is written here is no copy of what others hold.
        state.harden(slot);
        state.leave_order(slot, footprint(size), Departure::Gone);
        state.uncount(state.tree.node(slot).parent, size);
        state.clear_expiry(slot);
        // Its checksum went with its record.
        state.mark_unverified(slot, false);
        // What it will be is told when it is closed, or sealed. Until then the cluster knows of it as what it was.
        let was_told = !state.clear_untold(slot) && state.has_members();
        let told = state.sealed_stamp(slot).filter(|_| was_told);
        state.writing.insert(slot);
        if let Some(object) = state.object_mut(slot) {
            object.phase = Phase::Writing;
            object.open_mut().promised = told.map(|stamp| (stamp, ByteCount(u64::MAX)));
            object.marks.set(Marks::FINAL, false);
            object.marks.set(Marks::ON_SSD, false);
            let open = object.open_mut();
            // Who died while the object was written before has nothing to do with what is written now.
            open.writer_killed = None;
            // It is sealed again as it was when nobody comes.
            open.was_opened = true;
            open.reserved = size.round_up_to_pages();
            open.sized = size;
            open.claimed = size;
        }
        state.recharge(slot);
        self.resume_times(state, slot);
        self.telemetry.unseals.increment();
        Ok(())
    }

    /// Gives the hidden file in `slot`, which nobody has open, a new inode under its name. The caller is its writer, and
    /// is expected to come for it; when it does not, the object is sealed again as it was.
    fn renew_inode(&self, state: &mut State, caller: &Caller, slot: Slot) {
        let (ino, attributes) = (state.tree.ino(slot), state.tree.node(slot).attributes);
        let (parent, name) = (state.tree.node(slot).parent, state.tree.name(slot));
        let Some(old) = state.object_mut(slot) else { return };
        let mut object = Object::writing(std::mem::replace(&mut old.place, Place::Freed));
        let shared = match object.place {
            Place::Solo(segment) if old.marks.has(Marks::SHARED) => Some(segment),
            _ => None,
        };
        object.version = old.version;
        object.marks = old.marks;
        // Clients are told of its new inode when they look it up.
        object.marks.set(Marks::SHARED, false);
        object.open = old.open.take();
        old.phase = Phase::Gone;
        object.open_mut().was_opened = true;
        let renewed = state.tree.make(attributes, Body::File(object));
        state.writing.remove(&slot);
        state.writing.insert(renewed);
        if let Some(segment) = shared {
            self.fast.segments.lock().pass_on(segment, state.tree.ino(renewed));
        }
        self.expect_writer(state, caller, renewed);
        state.forget_pin(slot);
        state.leave_name(slot);
        state.take_free_name(renewed, parent, name);
        state.move_charge(slot, renewed);
        if let Some(kernel) = self.kernel.get() {
            kernel.forget_attributes(ino);
            kernel.release_backing(ino);
        }
    }

    /// The backing file shows the time that the file had, until it is written.
    pub(super) fn resume_times(&self, state: &mut State, slot: Slot) {
        let Some(file) = state.object(slot).and_then(Object::file).cloned() else { return };
        self.stamp(&file, &state.tree.node(slot).attributes);
    }
}

impl State {
    /// A closed temporary file is written again.
    pub(super) fn reopen_parked(&mut self, slot: Slot) {
        let Some(object) = self.object(slot) else { return };
        if !object.is_slot_file() {
            let size = object.size;
            self.leave_order(slot, footprint(size), Departure::Gone);
        }
        self.parked.clear(slot);
        if let Some(object) = self.object_mut(slot) {
            object.phase = Phase::Writing;
            object.marks.set(Marks::FINAL, false);
        }
        self.writing.insert(slot);
    }
}
