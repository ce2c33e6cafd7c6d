//! Announcing a close: FLUSH, for which close(2) waits.
//!
//! The kernel's RELEASE comes after close(2) has returned, so it may be read after a look-up that a later program
//! makes. A writer's close is therefore announced first by FLUSH: from then on whoever looks the hidden file up waits
//! for the RELEASE. FLUSH alone proves nothing: a forked child sends one too, for every descriptor that it inherited,
//! when it starts another program or ends. Only the process that opened the file announces.
//!
//! Before what may be the last close the file finds its room, so that close(2) can say that it has none, and gets a provisional
//! record, by which it survives a daemon that dies before the RELEASE. How its writer ended is noted here, too.
//!
//! Limit: an announced close is expected for [`CLOSE_WAIT`].

use std::time::Duration;

use tidefs_engine::types::ByteCount;

use super::{Caller, Datapath, Error, HandleId, IoPath, Marks, Object, Phase, Place, State};
use crate::namespace::{Name, ProcessId, Slot, WriterFate, writer_fate};

/// How long an announced close is expected: the kernel sends RELEASE at once, which waits for a thread of the daemon.
pub const CLOSE_WAIT: Duration = Duration::from_millis(200);

/// `sealed_at_ns` of a record that counts only while its file was not written after it.
pub(super) const PROVISIONAL: i64 = i64::MIN;

/// A close of a file that is being written.
struct Closing {
    slot: Slot,
    /// Who opened it.
    process: ProcessId,
    path: IoPath,
    /// As in [`Handle`](super::Handle).
    only_creates: bool,
    /// Whether no other close is to come, as far as is known.
    may_be_last: bool,
    /// Whether it is one of a process that inherited the descriptor.
    is_child: bool,
    /// Whether it was closed before another version took its name, and was not written since: nothing comes of it.
    adds_nothing: bool,
}

impl Datapath {
    /// A process closes one of its descriptors of `handle`. Others may remain.
    ///
    /// # Errors
    /// [`Error::BadHandle`]; [`Error::OverQuota`] and [`Error::NothingEvictable`] when it finds no room, or a write to it
    /// found none.
    pub fn flush(&self, caller: &Caller, handle: HandleId) -> Result<(), Error> {
        let Some(closing) = self.note_flush(caller, handle)? else { return Ok(()) };
        let Closing { slot, process, may_be_last, .. } = closing;
        let fate = if closing.only_creates { WriterFate::Sound } else { writer_fate(caller.thread) };
        // Its closer is told that it finds no room; what follows holds all the same.
        let is_sound_end = may_be_last && !closing.adds_nothing && fate == WriterFate::Sound;
        let kept = if is_sound_end { self.find_room_at_close(handle, slot, closing.path) } else { Ok(()) };
        let now_ms = self.now_ms();
        let mut state = self.lock();
        if may_be_last {
            // Who looks it up from now on waits for what comes of it, unless somebody is still to come.
            state.stop_expecting(slot, now_ms);
        }
        // A rename may have come meanwhile, and a writer who has it open from now on.
        let is_as_overtaken = state.is_as_overtaken(slot);
        let Some(object) = state.object_mut(slot) else { return kept };
        let was_shown = object.marks.has(Marks::SHOWN);
        let is_written = object.phase == Phase::Writing;
        let open = object.open_mut();
        if may_be_last && is_written && open.flushed == open.writers {
            (open.closing, open.is_overtaken) = (true, is_as_overtaken);
            open.announced_at_ms = now_ms;
        }
        if fate != WriterFate::Killed && open.was_child_killed {
            // Somebody has it open after that child, and closes it soundly.
            open.writer_killed = None;
            open.was_child_killed = false;
        }
        if fate == WriterFate::Killed {
            open.writer_killed = Some(process);
            open.was_child_killed = closing.is_child;
            if closing.is_child {
                return kept;
            }
            object.marks.set(Marks::SHOWN, false);
            let ino = state.tree.ino(slot);
            drop(state);
            if let (Some(kernel), true) = (self.kernel.get(), was_shown) {
                // Before the process is seen to have ended: whoever waited for that finds nothing.
                kernel.forget_attributes_now(ino);
            }
        } else if is_sound_end && kept.is_ok() {
            let changed = self.note_name_about_to_show(&mut state, slot);
            drop(state);
            if let (Some(kernel), Some(directory)) = (self.kernel.get(), changed) {
                kernel.forget_attributes_now(directory);
            }
        }
        kept
    }

    /// Counts the close of a descriptor of `handle`. `None` when nothing follows from it: it writes no hidden file, or says nothing
    /// of who does.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    fn note_flush(&self, caller: &Caller, handle: HandleId) -> Result<Option<Closing>, Error> {
        let mut state = self.lock();
        let known = state.handles.get(&handle).ok_or(Error::BadHandle)?;
        let (slot, process, path, only_creates) = (known.slot, known.process, known.path, known.only_creates);
        let (writes, was_flushed) = (known.options.write, known.was_flushed);
        let is_child = state.process(caller, self.clock.monotonic()) != process;
        if !was_flushed && is_child {
            // A child lets go of what it inherited, and may be killed at that: it says nothing of who opened the file
            // and has it open. After the opener's close it is a writer like any other.
            return Ok(None);
        }
        // Of a file that a rename has sealed, too: its RELEASE is not that of an open that never ended.
        let may_be_last = state.count_flush(handle);
        let is_written = state.object(slot).is_some_and(|object| object.phase == Phase::Writing);
        if !is_written || !writes {
            return Ok(None);
        }
        let adds_nothing = may_be_last && state.is_as_overtaken(slot);
        Ok(Some(Closing { slot, process, path, only_creates, may_be_last, is_child, adds_nothing }))
    }

    /// Finds room for the file in `slot`, of which the last writer closes, as far as that is known before the RELEASE.
    ///
    /// # Errors
    /// [`Error::OverQuota`] and [`Error::NothingEvictable`]: it has none, or what was written to it had none, and it is
    /// dropped when it is released.
    fn find_room_at_close(&self, handle: HandleId, slot: Slot, path: IoPath) -> Result<(), Error> {
        if path == IoPath::Passthrough {
            self.refuse_if_cut_short(slot);
        }
        self.keep_provisionally(handle)?;
        if path == IoPath::Passthrough { self.fit_what_the_kernel_wrote(slot) } else { Ok(()) }
    }

    /// Makes a file that is just being closed survive a daemon that dies before the RELEASE comes.
    ///
    /// Its segment gets a record that counts at a start only if the file was not written since: another descriptor
    /// may still be open somewhere. That it gets no record is no error: the file is sealed in a moment anyway.
    ///
    /// # Errors
    /// [`Error::OverQuota`] and [`Error::NothingEvictable`]: it has no room as an object, or what was written to it had none,
    /// and it is dropped when it is released.
    fn keep_provisionally(&self, handle: HandleId) -> Result<(), Error> {
        let place_of = |state: &State| {
            let slot = state.handles.get(&handle)?.slot;
            let node = state.tree.node(slot);
            let claim = state.object(slot)?.open.as_ref().and_then(|open| open.supersedes.clone());
            Some((slot, claim.unwrap_or_else(|| (node.parent, state.tree.name(slot)))))
        };
        let is_kept = |name: &Name| !self.is_temporary(name);
        let place = {
            let state = self.lock();
            let place = place_of(&state);
            let open = place.as_ref().and_then(|&(slot, _)| state.object(slot)?.open.as_deref());
            if let Some(refusal) = open.and_then(|open| open.refused) {
                return Err(state.error_of(refusal));
            }
            place
        };
        let Some((slot, (_, name))) = place else { return Ok(()) };
        if !is_kept(&name) {
            // Nothing is kept of a temporary file; its holes are to have their pages all the same.
            return self.fill_holes(slot);
        }
        self.make_whole(handle)?;
        let mut state = self.lock();
        let Some((slot, (parent, name))) = place_of(&state).filter(|(_, (_, name))| is_kept(name)) else {
            return Ok(());
        };
        // A rename may have sealed it meanwhile, and its record stands.
        let Some(object) = state.object(slot).filter(|object| object.phase == Phase::Writing) else {
            return Ok(());
        };
        let (Some(file), Ok(directory)) = (object.file().cloned(), state.directory_id(parent)) else {
            return Ok(());
        };
        let Ok(metadata) = file.metadata() else { return Ok(()) };
        if !matches!(object.place, Place::Solo(_)) {
            return Ok(());
        }
        let mut record = state.object_record(slot, directory, &name);
        record.version = state.take_version();
        record.size = ByteCount(metadata.len());
        record.mtime_ns = super::stat::written_ns(&metadata);
        record.sealed_at_ns = PROVISIONAL;
        if let Err(error) = self.tier.seal(&file, &record) {
            tracing::debug!(%error, "a closing file got no provisional record");
        }
        Ok(())
    }

    /// Monotonic milliseconds since when a close that was announced is still expected.
    pub(super) fn first_expected_close_ms(&self) -> u64 {
        self.now_ms().saturating_sub(u64::try_from(CLOSE_WAIT.as_millis()).unwrap_or(u64::MAX))
    }
}

impl State {
    /// A descriptor of `handle` is closed. Returns whether one of each handle was that may write its file: then this may
    /// be the last close, and the RELEASE of the others on its way.
    pub(super) fn count_flush(&mut self, handle: HandleId) -> bool {
        let Some(handle) = self.handles.get_mut(&handle).filter(|handle| handle.options.write) else {
            return false;
        };
        let (slot, process) = (handle.slot, handle.process);
        let was_flushed = std::mem::replace(&mut handle.was_flushed, true);
        let may_be_last = self.object_mut(slot).map(Object::open_mut).is_some_and(|open| {
            if !was_flushed {
                open.flushed += 1;
                open.ends_writing(process);
            }
            open.flushed == open.writers
        });
        if may_be_last {
            self.note_closed(slot);
        }
        may_be_last
    }
}
