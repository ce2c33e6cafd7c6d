//! Sealing: a written file becomes an immutable, visible object, in one step.
//!
//! The step is the record: an xattr of the segment file, written in one system call under the lock. A daemon that
//! dies before it leaves a segment without a record, which the next start removes; one that dies after it leaves a
//! whole object. A version replaced by it is recognised at recovery by its smaller version number.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use tidefs_engine::types::{ByteCount, DirectoryId, KeyHash, Version};

use super::afterwards::Afterwards;
use super::room::footprint;
use super::stat::{last_changed_ns, last_written_ns};
use super::{Datapath, Error, HandleId, Marks, Object, Phase, Place, State};
use crate::namespace::{Ino, Name, Slot};

/// After a change of pages that no writer made: the file was written when it was written last, or when its owner says.
fn set_back_times(file: &File, before: &Metadata) -> Result<(), Error> {
    let written = before.modified().and_then(|written| file.set_modified(written));
    written.map_err(Error::io("times of a segment"))
}

/// How long after the last change of a directory the kernel is told of one that it does not know of, in nanoseconds: a program has
/// to have looked at the directory in between.
const UNNOTICED_NS: i64 = 2_000_000;

impl Datapath {
    /// Makes sure that every byte of the file behind `handle` has its page, and its directories room for it.
    ///
    /// # Errors
    /// [`Error::OverQuota`] and [`Error::NothingEvictable`] when there is none.
    pub(super) fn make_whole(&self, handle: HandleId) -> Result<(), Error> {
        let slot = {
            let state = self.lock();
            let Some(handle) = state.handles.get(&handle) else { return Ok(()) };
            handle.slot
        };
        self.fill_holes(slot).and_then(|()| self.fit_quota(slot)).inspect_err(|error| {
            tracing::warn!(%error, "a file finds no room at its close and is dropped");
        })
    }

    /// Makes room for a file that is about to be sealed or parked in the quotas above it: the daemon sees no passthrough
    /// write.
    pub(super) fn fit_quota(&self, slot: Slot) -> Result<(), Error> {
        let size = {
            let state = self.lock();
            let Some(object) = state.object(slot) else { return Ok(()) };
            let node = state.tree.node(slot);
            let claim = object.open.as_ref().and_then(|open| open.supersedes.as_ref());
            if object.is_slot_file() || (claim.is_none() && node.is_detached()) {
                return Ok(());
            }
            self.stat_of(&state, slot).size
        };
        self.claim_all(slot, size)
    }

    /// Gives every hole of the file in `slot` its pages. Others may be writing it meanwhile.
    pub(super) fn fill_holes(&self, slot: Slot) -> Result<(), Error> {
        let (file, reserved, behind_hole, directory) = {
            let state = self.lock();
            let Some(object) = state.object(slot) else { return Ok(()) };
            let (Some(open), Place::Solo(_)) = (&object.open, &object.place) else { return Ok(()) };
            // A parked one was filled when it was closed.
            let Some(file) = open.file.as_ref().filter(|_| object.phase != Phase::Parked) else {
                return Ok(());
            };
            (Arc::clone(file), open.reserved, open.reserved_behind_hole, state.final_place(slot).0)
        };
        let metadata = file.metadata().map_err(Error::io("stat of a segment"))?;
        let length = ByteCount(metadata.len());
        if reserved >= length {
            return Ok(());
        }
        // Pages beyond the end would make up for those that a hole lacks.
        let is_known = behind_hole <= length.round_up_to_pages();
        let blocks = if is_known { ByteCount(metadata.blocks() * 512) } else { ByteCount::ZERO };
        if blocks >= length {
            return Ok(());
        }
        let mut attempts = 0;
        loop {
            self.make_room(length.saturating_sub(blocks), directory)?;
            match self.tier.fill_holes(&file, length) {
                Err(error) if error.is_full() && attempts < 10 => attempts += 1,
                done => {
                    done?;
                    return set_back_times(&file, &metadata);
                }
            }
        }
    }

    /// Gives back what was reserved beyond the end of the file in `slot`, which has no writer. `known`: its backing file as it was
    /// asked for a moment ago, without any writer either.
    ///
    /// The lock is held throughout: whoever opens the file as soon as it is let go writes beyond what is its end now, and
    /// cutting it there would take that away.
    pub(super) fn give_back_surplus(&self, state: &mut State, slot: Slot, known: Option<&Metadata>) {
        let Some(object) = state.object_mut(slot) else { return };
        let (Some(open), Place::Solo(_)) = (object.open.as_deref_mut(), &object.place) else { return };
        if open.writers == 0 {
            open.guessed = ByteCount::ZERO;
        }
        let reserved = open.reserved.max(open.reserved_behind_hole);
        let Some(file) = open.file.as_ref().filter(|_| open.writers == 0 && reserved > ByteCount::ZERO)
        else {
            return;
        };
        let asked = known.map_or_else(|| file.metadata(), |known| Ok(known.clone()));
        let trimmed = asked.map_err(Error::io("stat of a segment")).and_then(|metadata| {
            let length = ByteCount(metadata.len());
            let end = length.round_up_to_pages();
            if reserved > end {
                self.watch_for_end_of_room();
                self.tier.trim(file, length)?;
                set_back_times(file, &metadata)?;
                open.reserved = open.reserved.min(end);
                open.reserved_behind_hole = ByteCount::ZERO;
            }
            Ok(())
        });
        if let Err(error) = trimmed {
            tracing::warn!(%error, "pages reserved beyond the end of a file could not be given back");
        }
    }

    /// Seals the file in `slot` under the name it has, or the one of the version it supersedes.
    pub(super) fn seal(
        &self,
        state: &mut State,
        slot: Slot,
        afterwards: &mut Afterwards,
    ) -> Result<(), Error> {
        let (parent, name) = state.final_place(slot);
        let is_news = !self.is_noted_in_directory(state, slot);
        self.publish(state, slot, parent, name, None, afterwards)?;
        if is_news {
            afterwards.changed.extend(self.note_name_shown(state, parent));
        }
        if state.is_untold(slot) {
            afterwards.untold.push(state.tree.ino(slot));
        } else {
            state.wish_for_copies(slot);
        }
        Ok(())
    }

    /// Whether the directory of the file in `slot` needs no change when the file shows: its name has shown there already, or its
    /// last close was announced a moment ago, and who has asked since then waits for it.
    fn is_noted_in_directory(&self, state: &State, slot: Slot) -> bool {
        let first_ms = self.first_expected_close_ms();
        let was_announced = |object: &Object| {
            object.open.as_ref().is_some_and(|open| open.closing && open.announced_at_ms >= first_ms)
        };
        !state.is_new_name(slot) || state.object(slot).is_some_and(was_announced)
    }

    /// The last close of the hidden file in `slot` is announced: its directory changes before close(2) returns and not at some
    /// moment after it. Returns what the kernel is to be told of.
    pub(super) fn note_name_about_to_show(&self, state: &mut State, slot: Slot) -> Option<Ino> {
        let now_ms = self.now_ms();
        let object = state.object(slot).filter(|object| object.is_about_to_show(now_ms..=now_ms))?;
        let is_hidden = !object.marks.has(Marks::SHOWN) && state.is_new_name(slot);
        is_hidden.then(|| state.final_place(slot).0).and_then(|parent| self.note_name_shown(state, parent))
    }

    /// A name in `directory` shows from now on, of which the kernel does not know: that is a change of the directory. Returns what
    /// the kernel is to be told of.
    pub(super) fn note_name_shown(&self, state: &mut State, directory: Slot) -> Option<Ino> {
        let now_ns = self.now_ns();
        let attributes = &mut state.tree.node_mut(directory).attributes;
        let since_ns = now_ns.saturating_sub(attributes.mtime_ns);
        attributes.written_at(now_ns);
        // The kernel asks anew after each name that it makes there itself, a moment ago when the directory is busy. Of names that
        // clients of the fast path make one after the other it is told of the first, and knows the time of that until it asks.
        (since_ns >= UNNOTICED_NS).then(|| state.tree.ino(directory))
    }

    /// Makes the file in `slot` the object `name` in `parent`, in place of what stood there.
    ///
    /// The file is being written, with or without writers left, or parked. `thread`: who is asked for chains, when known.
    ///
    /// # Errors
    /// [`Error::NothingEvictable`] when there is no room for its record, [`Error::Stale`] when its bytes cannot be opened or the
    /// directory was removed, [`Error::Io`]. The file is what it was then, under the name that it had.
    pub(super) fn publish(
        &self,
        state: &mut State,
        slot: Slot,
        parent: Slot,
        name: Name,
        thread: Option<u32>,
        afterwards: &mut Afterwards,
    ) -> Result<(), Error> {
        if !state.tree.is_living_directory(parent) {
            return Err(Error::Stale);
        }
        state.harden(slot);
        self.open_backing(state, slot)?;
        let object = state.object(slot).ok_or(Error::IsDirectory)?;
        let file = Arc::clone(object.file().ok_or(Error::Stale)?);
        let metadata = file.metadata().map_err(Error::io("stat of a segment"))?;
        self.publish_measured(state, slot, (parent, name), thread, (&file, metadata), afterwards)
    }

    /// As [`Datapath::publish`], by who has asked the backing file just now, under the lock. The directory is known to live.
    pub(super) fn publish_measured(
        &self,
        state: &mut State,
        slot: Slot,
        (parent, name): (Slot, Name),
        thread: Option<u32>,
        (file, metadata): (&File, Metadata),
        afterwards: &mut Afterwards,
    ) -> Result<(), Error> {
        let directory = state.directory_id(parent)?;
        let is_in_place = state.final_place(slot) == (parent, name.clone());
        let is_temporary = self.is_temporary(&name);
        let size = ByteCount(metadata.len());
        let version = state.take_version();
        let key = super::key_hash(directory, name.as_bytes());
        let predecessor = self.note_predecessor(state, slot, key, thread);
        let predecessor_version =
            predecessor.and_then(|slot| state.object(slot)).map(|object| object.version);
        let now_ns = self.now_ns();
        // Who closed it may have told the cluster already which version it will be.
        let promised_ns = is_in_place.then(|| state.promise_to_keep(slot, size)).flatten();
        let sealed_at_ns =
            promised_ns.unwrap_or_else(|| state.next_sealed_at_ns(parent, name.as_bytes(), now_ns));
        let attributes = &mut state.tree.node_mut(slot).attributes;
        attributes.mtime_ns = last_written_ns(attributes.mtime_ns, &metadata, now_ns);
        // A rename is a change, a close is none.
        let changed_ns = last_changed_ns(attributes.ctime_ns, &metadata, now_ns);
        attributes.ctime_ns = if is_in_place { changed_ns } else { now_ns };
        let mut record = state.object_record(slot, directory, &name);
        record.version = version;
        record.size = size;
        record.sealed_at_ns = sealed_at_ns;
        record.predecessor = predecessor_version;
        self.tier.seal_measured(file, &record)?;

        // Nothing fails from here on.
        let heir = self.take_final_place(state, slot, parent, name, is_in_place, afterwards);
        state.writing.remove(&slot);
        if let Some(object) = state.object_mut(slot) {
            object.become_sealed(&record);
            object.open_mut().next_version = heir;
        }
        match promised_ns {
            Some(_) => state.tell_who_came_since_promise(slot),
            None if !is_temporary => state.mark_untold(slot),
            None => {}
        }
        state.count(parent, size);
        state.recharge(slot);
        state.enter_order(slot, key, predecessor, footprint(size));
        state.update_hold(slot);
        state.history.clear(key);
        state.note_head(slot, predecessor);
        let ino = state.tree.ino(slot);
        state.recent.put(key, ino);
        state.folders.learn_size(parent, size);
        state.renew_expiry(slot);
        state.watch_pin(slot);
        self.telemetry.seals.increment();
        self.telemetry.sealed_bytes.add(size.get());
        if state.object(slot).is_some_and(|object| object.writers() == 0) {
            self.finish(state, slot, Some(metadata), afterwards);
            if let Some(object) = state.object_mut(slot) {
                object.settle();
            }
            state.update_hold(slot);
        }
        Ok(())
    }

    /// Gives the file in `slot`, which is sealed just now, the name that it is sealed under, in place of what stood there. Returns
    /// the version that is being written to replace it in turn.
    fn take_final_place(
        &self,
        state: &mut State,
        slot: Slot,
        parent: Slot,
        name: Name,
        is_in_place: bool,
        afterwards: &mut Afterwards,
    ) -> Option<Slot> {
        if is_in_place {
            state.end_promise(slot);
        }
        let doomed_before = afterwards.doomed.len();
        if state.object(slot).is_some_and(|object| object.phase == Phase::Parked) {
            state.unpark(slot);
        } else if !is_in_place {
            state.break_promise(slot);
            afterwards.doomed.extend(state.leave_with_old_version(slot));
        }
        state.drop_claim(slot);
        let heir = self.displace(state, parent, &name, slot, true, afterwards);
        self.retire_all(&mut afterwards.doomed[doomed_before..]);
        if state.tree.node(slot).parent != parent || state.tree.name(slot) != name {
            state.move_name(slot, parent, name);
        }
        heir
    }

    /// Notes for the chains that the file in `slot` becomes the object of `key`. Returns the one that its writer made
    /// before it, if the two are of one chain and that one is still known.
    fn note_predecessor(
        &self,
        state: &mut State,
        slot: Slot,
        key: KeyHash,
        thread: Option<u32>,
    ) -> Option<Slot> {
        let thread = thread.or_else(|| state.writer_thread(slot))?;
        let before = self.note_created(state, (thread, key), slot, self.clock.monotonic())?;
        if !state.chains.walks(thread) && !state.chains.was_probed(key) {
            return None;
        }
        let ino = state.recent.get(before)?;
        state.tree.by_ino(ino).filter(|&other| other != slot)
    }

    /// The last writer of a sealed object is gone: its bytes are final. `as_sealed`: the backing file at the seal, when
    /// nobody had it open for writing then; else somebody may have written since.
    pub(super) fn finish(
        &self,
        state: &mut State,
        slot: Slot,
        as_sealed: Option<std::fs::Metadata>,
        afterwards: &mut Afterwards,
    ) {
        let Some(object) = state.object(slot) else { return };
        let (before, file) = (object.size, object.file().cloned());
        let Some(file) = file else { return };
        let wrote_since = as_sealed.is_none();
        let metadata = as_sealed.or_else(|| file.metadata().ok());
        let now = metadata.as_ref().map_or(before, |metadata| ByteCount(metadata.len()));
        let stored_ns = state.tree.node(slot).attributes.mtime_ns;
        let last_ns = |metadata: &Metadata| last_written_ns(stored_ns, metadata, self.now_ns());
        let written_ns = metadata.as_ref().map_or(stored_ns, last_ns);
        self.give_back_surplus(state, slot, metadata.as_ref());
        let went_on = wrote_since && written_ns != stored_ns;
        if now != before || went_on {
            // The writer went on after the rename through a descriptor it had kept.
            self.account_growth(state, slot, before, now);
            if went_on {
                let attributes = &mut state.tree.node_mut(slot).attributes;
                attributes.mtime_ns = written_ns;
                if let Some(metadata) = &metadata {
                    attributes.ctime_ns = last_changed_ns(attributes.ctime_ns, metadata, self.now_ns());
                }
            }
        }
        let is_fresh = state.object(slot).is_some_and(|object| object.marks.has(Marks::FRESH));
        if let Some(object) = state.object_mut(slot) {
            object.marks.set(Marks::FINAL, true);
            object.marks.set(Marks::FRESH, false);
            let open = object.open_mut();
            open.writer_processes.clear();
            open.closing = false;
            open.reserved = ByteCount::ZERO;
        }
        let ino = state.tree.ino(slot);
        let is_packed = self.pack_if_small(state, slot, &file, afterwards);
        if !is_packed {
            if wrote_since {
                self.record_as_finished(state, slot, &file);
            }
            afterwards.unchecked.push(ino);
        }
        if !is_fresh && state.tree.node(slot).lookups > 0 {
            afterwards.changed.push(ino);
        }
    }

    /// A restart takes the segment as it is from now on, and need not copy what its writer may change.
    fn record_as_finished(&self, state: &State, slot: Slot, file: &File) {
        let directory = state.directory_id(state.tree.node(slot).parent).unwrap_or(DirectoryId::ROOT);
        let record = state.object_record(slot, directory, &state.tree.name(slot));
        if let Err(error) = self.tier.seal(file, &record) {
            tracing::error!(%error, "the record of an object that its writer closed could not be written");
        }
    }

    pub(super) fn account_growth(&self, state: &mut State, slot: Slot, before: ByteCount, now: ByteCount) {
        let parent = state.tree.node(slot).parent;
        state.uncount(parent, before);
        state.count(parent, now);
        let id = state.domain_of(slot);
        let grown = |held: ByteCount| held.saturating_sub(footprint(before)).saturating_add(footprint(now));
        state.domains.change_bytes(id, grown);
        if let Some(object) = state.object_mut(slot) {
            object.size = now;
        }
        state.recharge(slot);
    }
}

impl State {
    /// Whether the hidden file in `slot` is to show under a name at which nothing shows, nor has it shown itself before.
    fn is_new_name(&self, slot: Slot) -> bool {
        let Some(object) = self.object(slot) else { return false };
        let is_named = !self.tree.node(slot).is_detached()
            || object.open.as_ref().is_some_and(|open| open.supersedes.is_some());
        is_named && object.version == Version::default() && self.versions_of(slot).0.is_none()
    }

    /// A process that wrote the file, to stand for the thread when the seal comes with a close.
    fn writer_thread(&self, slot: Slot) -> Option<u32> {
        self.object(slot)?.open.as_ref()?.writer_processes.first().map(|writer| writer.id.0)
    }
}
