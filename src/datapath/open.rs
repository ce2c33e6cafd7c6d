//! Opening: which bytes a handle reads, and what an open promises to whom.
//!
//! Invariant: a sealed object that somebody has open or may have mapped is never changed in place.

use std::fs::File;
use std::sync::Arc;

use tidefs_engine::types::{ByteCount, Version};

use super::{Caller, Datapath, Error, HandleId, IoPath, Phase, State};
use crate::namespace::{Ino, Slot};

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// Is cut to nothing first.
    pub truncate: bool,
    /// Must not exist.
    pub exclusive: bool,
    /// Is cut to this length by who opens it, who needs no more of what stands there.
    pub cut_to: Option<ByteCount>,
    /// Is opened for a program that has it open already, and not by a name that was looked up. An open by name of a 32-bit program
    /// without `O_LARGEFILE`, or of the kernel itself, looks the same: it may read the version that it looked up.
    pub by_descriptor: bool,
}

impl OpenOptions {
    /// How much of what stands there is wanted at most; `None`: all of it.
    pub(super) fn wanted_max(&self) -> Option<ByteCount> {
        if self.truncate { Some(ByteCount::ZERO) } else { self.cut_to }
    }

    /// Whether nothing of what stands there is wanted: it need not be in memory.
    #[must_use]
    pub fn wants_nothing(&self) -> bool {
        self.write && self.wanted_max() == Some(ByteCount::ZERO)
    }
}

/// What an open gives.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The inode that was opened.
    pub ino: Ino,
    /// The handle.
    pub handle: HandleId,
    /// Who moves its bytes.
    pub path: IoPath,
    /// Whether closing it must be announced: others may be waiting to see the file.
    pub announces_close: bool,
    /// Whether the kernel may believe, until it is told otherwise, that the name stands for this file.
    pub is_cacheable: bool,
    /// Its bytes, where the kernel is to move them and does not have them: they may lose their name from now on.
    pub backing: Option<Arc<File>>,
    /// Whether it was on its way out of memory, and counts in the quotas above it again, or what is begun for its place counts more.
    pub is_readmitted: bool,
}

impl Datapath {
    /// Opens `ino`.
    ///
    /// # Errors
    /// [`Error::Stale`] when the name must be looked up again: the object is gone, hidden, or the writer is to meet
    /// the new version that was begun for it. [`Error::IsDirectory`], [`Error::NothingEvictable`], [`Error::Io`].
    pub fn open(&self, caller: &Caller, ino: Ino, options: OpenOptions) -> Result<Opened, Error> {
        let opened = self.open_version(caller, ino, options)?;
        self.fit_opened(&opened);
        self.cut_opened(&opened, options)?;
        Ok(opened)
    }

    /// Others leave for an object that stays though it was to leave, where a quota has no room for all of them.
    pub(super) fn fit_opened(&self, opened: &Opened) {
        if opened.is_readmitted {
            self.settle_quota(opened.ino);
        }
    }

    /// Whether [`open`](Self::open) may take long, and is not to be waited for by whoever answers the kernel.
    #[must_use]
    pub fn is_long_to_open(&self, ino: Ino, options: OpenOptions) -> bool {
        self.is_long_to_check(ino) || (options.truncate && options.write && self.is_long_to_cut(ino))
    }

    fn open_version(&self, caller: &Caller, ino: Ino, options: OpenOptions) -> Result<Opened, Error> {
        match self.verify_before_first_use(ino) {
            // That it is gone is found below.
            Ok(()) | Err(Error::Stale) => {}
            Err(error) => return Err(error),
        }
        let (mut was_resent, mut was_told_stale, mut sent_to) = (false, false, None);
        let outcome = {
            let mut state = self.lock();
            let slot = state.slot_of(ino).ok();
            let refused = state.take_resent(caller, slot).and_then(|resent| {
                let is_same = self.is_resent(&state, &resent, slot);
                was_resent = is_same && resent.is_for(options);
                was_told_stale = is_same && slot.is_some_and(|slot| state.is_there(slot));
                let (name, refused) = resent.outcome();
                let refused = refused.filter(|_| was_resent);
                sent_to = name.filter(|_| refused.is_none());
                refused
            });
            match (refused, slot) {
                (Some(error), _) => Err(error),
                (None, None) => Err(Error::Stale),
                (None, Some(slot)) => self.open_or_send(&mut state, caller, slot, options, was_resent),
            }
        };
        match outcome {
            Err(Error::Stale) if was_resent && options.write => {
                // What it was sent for may have been an open that its program was told the end of: then this is the first one of
                // another, which is sent.
                let in_place = self.open_in_place(caller, ino, options);
                in_place.inspect_err(|error| {
                    if matches!(error, Error::Stale) {
                        self.note_resent_or_failed(caller, ino, options);
                    }
                })
            }
            Err(Error::Stale) if was_resent => Err(Error::NoObject), // for a reader that is a miss
            Err(Error::NoObject) if was_resent => {
                // Who asks brings it back and asks again for the same open(2), which the kernel sends nowhere a second time.
                self.note_resent_for(&mut self.lock(), caller, sent_to, options);
                Err(Error::NoObject)
            }
            Err(Error::Stale) => {
                // Who was told so of its attributes may be in the same open(2), which is sent only once. What somebody uses
                // is not changed in place: then its program sees ESTALE.
                let in_place =
                    was_told_stale.then(|| self.open_in_place(caller, ino, options).ok()).flatten();
                in_place.ok_or_else(|| {
                    self.note_resent(caller, ino, options);
                    Error::Stale
                })
            }
            other => other,
        }
    }

    /// Opens the file in `slot`, or says that its name is to be looked up again, which the kernel does once for each open.
    fn open_or_send(
        &self,
        state: &mut State,
        caller: &Caller,
        slot: Slot,
        options: OpenOptions,
        was_resent: bool,
    ) -> Result<Opened, Error> {
        let goes_by_name = options.write || (self.is_in_cluster() && !options.by_descriptor);
        if !was_resent && goes_by_name && !state.is_there(slot) {
            // It left its name after it was looked up: what a writer adds to it would be lost. For a reader it will do,
            // unless a rename that is under way here takes its name, and another host may have replaced that already.
            return Err(Error::Stale);
        }
        if !options.write {
            state.stop_expecting_writer(slot, caller);
        }
        if self.is_hidden_from(state, caller, slot, options.write)
            || (!was_resent && self.meets_next_version(state, caller, slot))
        {
            return Err(Error::Stale);
        }
        let is_sealed = state.object(slot).is_some_and(|object| object.phase == Phase::Sealed);
        if options.write && is_sealed {
            if was_resent {
                // The version that this thread was sent to was sealed by somebody else meanwhile: it goes on in place if nobody
                // uses that one. If somebody does, the open below says so once more.
                let in_place = OpenOptions { truncate: false, ..options };
                let _ = self.unseal_in_place(state, slot, in_place);
            } else if state.tree.node(slot).lookups > 0 {
                // It becomes one to be written when its name is looked up again: it may have another one by now than the
                // caller looked up.
                return Err(Error::Stale);
            }
        }
        self.open_locked(state, caller, slot, options)
    }

    /// The last resort of a writer who met a third version within a moment: changes it in place if nobody uses it. A reader is
    /// shown nothing by it that is hidden.
    ///
    /// # Errors
    /// To a reader it is a miss; a writer is told [`Error::Stale`]: there may be an object, and it may open it again.
    fn open_in_place(&self, caller: &Caller, ino: Ino, options: OpenOptions) -> Result<Opened, Error> {
        // A packed object gets a segment that can be written. That it has one already is fine.
        let was_packed = self.unpack(ino).unwrap_or(false);
        let opened = self.open_unpacked(caller, ino, options);
        // That is marked as one for attributes of a program, of which there are none.
        if was_packed && let Err(error) = self.undecorate(ino) {
            tracing::debug!(%error, "an object without attributes counts as one with some");
        }
        opened
    }

    fn open_unpacked(&self, caller: &Caller, ino: Ino, options: OpenOptions) -> Result<Opened, Error> {
        let missed = || if options.write { Error::Stale } else { Error::NoObject };
        let mut state = self.lock();
        let slot = state.slot_of(ino).map_err(|_| missed())?;
        if !options.write && self.is_hidden_from(&mut state, caller, slot, options.write) {
            return Err(Error::NoObject);
        }
        if state.object(slot).is_some_and(|object| object.phase == Phase::Sealed) {
            let in_place = OpenOptions { truncate: false, ..options };
            self.unseal_in_place(&mut state, slot, in_place).map_err(|_| missed())?;
        }
        self.open_locked(&mut state, caller, slot, options).map_err(|error| match error {
            Error::Stale => missed(),
            other => other,
        })
    }

    /// Opens the file in `slot`, which the caller may see.
    pub(super) fn open_locked(
        &self,
        state: &mut State,
        caller: &Caller,
        slot: Slot,
        options: OpenOptions,
    ) -> Result<Opened, Error> {
        // What is begun for the place of an object counts whole beside that while it is written where it is.
        let counts_more = options.write && state.is_beside_begun(slot);
        let is_readmitted = state.readmit(slot) || counts_more;
        let object = state.object(slot).ok_or(Error::IsDirectory)?;
        if object.phase == Phase::Sealed && Self::is_away(&object.place) {
            // It was to be brought back before, and is on its way; or it could not be, or left again: a miss.
            return self.open_arriving(state, caller, slot, options).ok_or(Error::NoObject);
        }
        let is_resumed = options.write && object.phase == Phase::Parked;
        match object.phase {
            Phase::Gone if object.open.as_ref().is_some_and(|open| open.is_barred) => {
                return Err(Error::Stale);
            }
            // The old version of a name that was replaced after it was looked up can be read to its end.
            Phase::Gone if !object.is_open() && (options.write || !object.is_readable()) => {
                return Err(Error::Stale);
            }
            // Those who have an object open keep its bytes, whoever comes to write it after it was replaced.
            Phase::Gone if options.write && object.version > Version::default() => return Err(Error::Stale),
            Phase::Gone | Phase::Writing => {}
            Phase::Sealed if options.write => self.unseal(state, caller, slot, options)?,
            Phase::Parked if options.write => state.reopen_parked(slot),
            Phase::Sealed | Phase::Parked => {}
        }
        let phase = state.object(slot).map(|object| object.phase);
        if phase == Some(Phase::Sealed) {
            self.note_hit(state, caller, slot);
        }
        let path = self.path_of(state, slot, options);
        // Of what was unlinked the kernel has the bytes, from which it serves those who have it open.
        let is_served = phase == Some(Phase::Gone)
            && path == IoPath::Passthrough
            && self.kernel.get().is_some_and(|kernel| kernel.has_backing(state.tree.ino(slot)));
        let is_at_hand = phase == Some(Phase::Sealed) || is_served;
        let needs_file = options.write || path == IoPath::Direct || !is_at_hand;
        if needs_file {
            self.open_backing(state, slot)?;
        }
        let backing = self.backing_for_kernel(state, slot, path)?;
        if is_resumed {
            self.resume_times(state, slot);
        }
        if options.write && caller.uid != 0 {
            // At the open, since the kernel leaves that to the daemon and writes without it (FUSE_HANDLE_KILLPRIV_V2).
            state.tree.node_mut(slot).attributes.drop_privileges();
        }
        Ok(Opened { backing, is_readmitted, ..self.open_handle(state, caller, slot, options, path) })
    }

    /// The caller opens the sealed object in `slot`.
    fn note_hit(&self, state: &mut State, caller: &Caller, slot: Slot) {
        self.telemetry.hits.increment();
        let namespace = state.namespace_of(slot);
        if let Some(folder) = state.folders.get_mut(namespace) {
            folder.hits += 1;
        }
        if let Some(object) = state.object_mut(slot) {
            object.uses = object.uses.saturating_add(1);
        }
        state.touch(slot);
        if let Some(key) = state.key_of(slot) {
            let before = state.chains.opened(caller.thread.0, key);
            self.note_use(state, slot, before);
        }
        state.tree.node_mut(slot).attributes.atime_ns = self.now_ns();
    }
}

impl State {
    /// Whether the node was not removed.
    pub(super) fn is_there(&self, slot: Slot) -> bool {
        self.object(slot).is_none_or(|object| object.phase != Phase::Gone)
    }
}
