//! Closing: the moment at which a file written straight to its final name becomes an object.
//!
//! That is the RELEASE of its last writer, which the kernel sends after close(2) has returned; `flush.rs` has what is done
//! before.

use std::sync::Arc;

use tidefs_engine::types::{ByteCount, Version};

use super::afterwards::Afterwards;
use super::history::Ending;
use super::open_state::{OpenState, Refusal};
use super::{Datapath, Handle, HandleId, IoPath, Marks, Object, Phase, Place, State};
use crate::namespace::{ProcessId, Slot};
use crate::tier::eviction::Departure;

/// How long a closed temporary file is kept for its rename, whatever the pressure. After that it may be evicted.
const PARKED_FOR_MS: u64 = 60_000;

/// Closed temporary files whose backing file stays open at most: as many as are about to be renamed at one time.
const PARKED_OPEN_MAX: usize = 64;

impl Datapath {
    /// Whether releasing `handle` may wait for a disk: the kernel may have written a slot file through it.
    #[must_use]
    pub fn is_long_to_release(&self, handle: HandleId) -> bool {
        let state = self.lock();
        let written = state.handles.get(&handle).filter(|handle| handle.options.write);
        let by_kernel = written.filter(|handle| handle.path == IoPath::Passthrough);
        by_kernel.and_then(|handle| state.object(handle.slot)).is_some_and(Object::is_slot_file)
    }

    /// The last descriptor of `handle` is closed.
    pub fn release(&self, handle: HandleId) {
        let (passthrough_writer, scratch) = {
            let state = self.lock();
            let writer = state.handles.get(&handle).filter(|handle| handle.options.write);
            let passthrough = writer.filter(|writer| writer.path == IoPath::Passthrough);
            let scratch = passthrough.and_then(|writer| match &state.object(writer.slot)?.place {
                Place::Scratch(scratch) => Some(Arc::clone(scratch)),
                _ => None,
            });
            (passthrough.map(|writer| writer.slot), scratch)
        };
        if let Some(slot) = passthrough_writer {
            self.refuse_if_cut_short(slot);
        }
        if let Some(scratch) = scratch {
            // The kernel may have written it. Its disk may take its time.
            scratch.recount();
        }
        let mut whole = None;
        let mut afterwards = Afterwards::default();
        loop {
            let mut state = self.lock();
            // What was found out about a file that is being written is not true of the object that a rename made of it meanwhile.
            if let Some((slot, phase)) = state.becomes_final(handle)
                && whole.is_none_or(|(known, _)| known != phase)
            {
                // Without the lock: filling holes may have to evict.
                drop(state);
                let made =
                    if phase == Phase::Sealed { self.fill_holes(slot) } else { self.make_whole(handle) };
                whole = Some((phase, made.is_ok()));
                continue;
            }
            self.release_locked(
                &mut state,
                handle,
                whole.is_none_or(|(_, is_whole)| is_whole),
                &mut afterwards,
            );
            self.retire_all(&mut afterwards.doomed);
            break;
        }
        self.released.notify_all();
        self.carry_out(afterwards);
    }

    fn release_locked(&self, state: &mut State, handle: HandleId, whole: bool, afterwards: &mut Afterwards) {
        let Some(handle) = state.handles.remove(&handle) else { return };
        let slot = handle.slot;
        if handle.path == IoPath::Passthrough && handle.options.write {
            self.count_passthrough_writer(false);
        }
        if state.object(slot).is_none() {
            return;
        }
        let was_announced = !handle.announces_close || handle.was_flushed;
        let was_never_written =
            !was_announced && !handle.only_creates && self.stat_of(state, slot).size == ByteCount::ZERO;
        let Some(object) = state.object_mut(slot) else { return };
        let open = object.open_mut();
        open.part_from(&handle);
        if was_never_written && open.writers == 0 {
            // Killed inside open(2), or that failed: the descriptor never came to be, and nobody wrote. A direct descriptor of io_uring
            // looks the same when nothing was written by it: one that is dropped costs less than an empty object that nobody made.
            open.writer_killed.get_or_insert(handle.process);
        }
        let (writers, killed, refused) = (open.writers, open.writer_killed, open.refused);
        let phase = object.phase;
        if handle.options.write && writers == 0 {
            match phase {
                Phase::Writing if killed.is_some() || refused.is_some() || !whole => {
                    self.drop_unfinished(state, slot, ending_of(killed, refused), afterwards);
                }
                Phase::Writing if self.waits_for_writers(state, slot) => {}
                Phase::Writing => self.end_writing(state, slot, afterwards),
                Phase::Sealed if !whole => {
                    let ending = Some((self.now_ns(), Ending::NoRoom));
                    afterwards.doomed.push(state.remove_object(slot, Departure::Gone, ending));
                }
                Phase::Sealed => self.finish(state, slot, None, afterwards),
                Phase::Parked | Phase::Gone => {}
            }
        }
        state.recharge(slot);
        self.settle_closed(state, slot, afterwards);
    }

    /// A file is dropped that its writers did not finish. `ending`: what is remembered of that.
    fn drop_unfinished(
        &self,
        state: &mut State,
        slot: Slot,
        ending: Option<Ending>,
        afterwards: &mut Afterwards,
    ) {
        self.telemetry.discarded_writes.increment();
        let key = state.key_of(slot);
        afterwards.untold.extend(state.outlives(slot));
        afterwards.doomed.push(state.discard_writing(slot));
        if let (Some(key), Some(ending)) = (key, ending) {
            state.history.note(key, self.now_ns(), ending);
        }
    }

    /// The last writer left a file that was never renamed: it is sealed, or parked when its name is temporary.
    pub(super) fn end_writing(&self, state: &mut State, slot: Slot, afterwards: &mut Afterwards) {
        let stat = self.stat_of(state, slot);
        state.tree.node_mut(slot).attributes.mtime_ns = stat.attributes.mtime_ns;
        let open = state.object(slot).and_then(|object| object.open.as_deref());
        let is_pending = open.is_some_and(|open| open.supersedes.is_some());
        let as_it_is = Some((stat.size, stat.attributes.mtime_ns));
        let is_withdrawn = open.is_some_and(|open| open.withdrawn == as_it_is);
        let is_overtaken = open.is_some_and(|open| open.is_overtaken) || state.is_as_overtaken(slot);
        if is_withdrawn || is_overtaken {
            // All hosts had it for a while, until another one replaced or removed it, or it was closed before what stands there.
            afterwards.doomed.push(state.discard_writing(slot));
            return;
        }
        if state.object(slot).is_some_and(Object::is_slot_file) {
            // A slot file with a name stays what it is, visible to whoever looks, in place of what stood there: on this host alone.
            state.break_promise(slot);
            if let Some((parent, name)) = state.drop_claim(slot) {
                self.displace(state, parent, &name, slot, false, afterwards);
                if state.take_name(slot, parent, name).is_err() {
                    afterwards.doomed.push(state.discard_writing(slot));
                    return;
                }
            }
            state.park(slot, stat.size, self.now_ms());
            return;
        }
        // What was an object once is one again, whatever its name is.
        let was_sealed = state.object(slot).is_some_and(|object| object.version > Version::default());
        if !is_pending && !was_sealed && self.is_temporary(&state.tree.name(slot)) {
            self.give_back_surplus(state, slot, None);
            state.park(slot, stat.size, self.now_ms());
            return;
        }
        if let Err(error) = self.seal(state, slot, afterwards) {
            tracing::error!(path = state.path_text(slot), %error, "an object could not be sealed and is dropped");
            self.telemetry.discarded_writes.increment();
            afterwards.untold.extend(state.outlives(slot));
            afterwards.doomed.push(state.discard_writing(slot));
        }
    }

    /// Nobody has the file open any more: what only an open file needs goes.
    pub(super) fn settle_closed(&self, state: &mut State, slot: Slot, afterwards: &mut Afterwards) {
        let Some(object) = state.object_mut(slot) else { return };
        if object.is_open() {
            if object.readers() + object.writers() == 0 && object.phase != Phase::Gone {
                // Held by references alone from now on: noted, so that the last of them has it evictable again.
                state.update_hold(slot);
            }
            return;
        }
        if object.phase == Phase::Gone {
            state.discharge(slot);
            let Some(object) = state.object(slot) else { return };
            let (late, size) = (object.place.clone(), object.size);
            let ino = state.tree.ino(slot);
            if let Some(kernel) = self.kernel.get() {
                // Under the lock, so that no open of this inode comes in between; it does not wait.
                kernel.release_backing(ino);
            }
            if let Some(place) = state.drop_if_unused(slot) {
                afterwards.places.push((place, size));
            } else if let Some(object) = state.object_mut(slot) {
                object.settle();
                if matches!(late, Place::Scratch(_)) {
                    // The name is gone and so is the last user: the blocks go now, not at FORGET.
                    object.place = Place::Freed;
                }
                state.linger(slot);
            }
            return;
        }
        object.settle();
        state.update_hold(slot);
    }
}

impl OpenState {
    /// A handle is closed for good.
    fn part_from(&mut self, handle: &Handle) {
        match handle.path {
            IoPath::Passthrough => self.passthrough = self.passthrough.saturating_sub(1),
            IoPath::Direct | IoPath::Cached if handle.options.read => {
                self.direct_mappable = self.direct_mappable.saturating_sub(1);
            }
            IoPath::Direct | IoPath::Cached => {}
        }
        if !handle.options.write {
            self.readers = self.readers.saturating_sub(1);
            return;
        }
        self.writers = self.writers.saturating_sub(1);
        if !handle.was_flushed {
            self.ends_writing(handle.process);
        }
        self.flushed = self.flushed.saturating_sub(u32::from(handle.was_flushed)).min(self.writers);
        // The closes of those that are left were announced before this one came in between.
        self.closing |= self.writers > 0 && self.flushed == self.writers;
    }
}

/// What is remembered of a file that its writers did not finish.
fn ending_of(killed: Option<ProcessId>, refused: Option<Refusal>) -> Option<Ending> {
    if let Some(process) = killed {
        return Some(Ending::WriterKilled { process: process.0 });
    }
    refused.map(|refusal| match refusal {
        Refusal::OverQuota { directory, quota } => {
            Ending::OverQuota { directory: directory.0, quota: quota.get() }
        }
        Refusal::NoRoom => Ending::NoRoom,
        Refusal::ScratchFull => Ending::ScratchFull,
    })
}

impl State {
    /// The file behind `handle` and its phase, if this is the last handle that may write it and the file stays.
    fn becomes_final(&self, handle: HandleId) -> Option<(Slot, Phase)> {
        let handle = self.handles.get(&handle).filter(|handle| handle.options.write)?;
        let object = self.object(handle.slot).filter(|object| object.writers() == 1)?;
        let is_sound = |open: &OpenState| open.writer_killed.is_none() && open.refused.is_none();
        let stays = match object.phase {
            Phase::Writing => object.open.as_deref().is_some_and(is_sound),
            Phase::Sealed => true,
            Phase::Parked | Phase::Gone => false,
        };
        stays.then_some((handle.slot, object.phase))
    }

    /// A temporary name without writers: visible and evictable, but no object yet.
    fn park(&mut self, slot: Slot, size: tidefs_engine::types::ByteCount, now_ms: u64) {
        let Some(key) = self.key_of(slot) else { return };
        if let Some(object) = self.object_mut(slot) {
            object.phase = Phase::Parked;
            object.size = size;
        }
        self.writing.remove(&slot);
        if self.object(slot).is_some_and(|object| !object.is_slot_file()) {
            if let Some(object) = self.object_mut(slot) {
                object.open_mut().claimed = size;
            }
            self.recharge(slot);
            self.parked.set(slot, now_ms + PARKED_FOR_MS);
            self.keep_open(slot);
            self.enter_order(slot, key, None, super::room::footprint(size));
            self.update_hold(slot);
        }
    }

    /// Keeps the backing file of the parked file in `slot` open for the rename that is on its way, and closes that of one
    /// that was parked long before.
    fn keep_open(&mut self, slot: Slot) {
        self.parked_open.push_back(slot);
        if self.parked_open.len() > PARKED_OPEN_MAX
            && let Some(oldest) = self.parked_open.pop_front()
            && let Some(object) = self.object_mut(oldest)
            && object.phase == Phase::Parked
            && !object.is_open()
        {
            object.open_mut().file = None;
        }
    }

    /// A parked file leaves the order, to be sealed.
    pub(super) fn unpark(&mut self, slot: Slot) {
        let Some(object) = self.object(slot) else { return };
        let size = object.size;
        self.leave_order(slot, super::room::footprint(size), Departure::Gone);
        self.parked.clear(slot);
        if let Some(object) = self.object_mut(slot) {
            object.phase = Phase::Writing;
            object.marks.set(Marks::FINAL, false);
        }
    }
}
