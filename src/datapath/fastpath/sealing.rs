//! Sealing the new objects of the fast path: each is cut to its length, and then gets its name in one step, by the rules of
//! rename(2).
//!
//! Invariants
//! - Whoever is told that an object is sealed finds it by its name through the kernel, too.
//! - What cannot be sealed is given up: nothing of it stays.

use std::mem;

use tidefs_engine::types::{ByteCount, Version};

use super::remains::Remains;
use super::session::Begun;
use super::{LOCKED_AT_ONCE, Located, Session};
use crate::datapath::afterwards::Afterwards;
use crate::datapath::room::footprint;
use crate::datapath::{Caller, Datapath, Error, State, key_hash};

/// An object to seal.
#[derive(Clone, Copy, Debug)]
pub struct SealRequest {
    /// The reference that the begin gave.
    pub reference: u64,
    /// Its length.
    pub length: ByteCount,
}

impl Datapath {
    /// Makes begun objects visible. `tell` is called once for each, in order: with its version, or with why it was given up.
    pub fn seal_begun(
        &self,
        session: &Session,
        caller: &Caller,
        requests: impl Iterator<Item = SealRequest>,
        mut tell: impl FnMut(Result<Version, Located>),
    ) -> Remains {
        let (mut requests, mut remains) = (requests.peekable(), Remains::default());
        while requests.peek().is_some() {
            let prepared: Vec<Result<Begun, Located>> = requests
                .by_ref()
                .take(LOCKED_AT_ONCE)
                .map(|request| self.prepare_seal(session, &request, &mut remains))
                .collect();
            for sealed in self.publish_all(session, caller, prepared, &mut remains) {
                tell(sealed);
            }
        }
        self.free_what_is_little(remains)
    }

    /// Cuts a begun object to its length and makes room for it in the quotas above it.
    fn prepare_seal(
        &self,
        session: &Session,
        request: &SealRequest,
        remains: &mut Remains,
    ) -> Result<Begun, Located> {
        let mut begun = session.holdings.lock().begun.remove(&request.reference).ok_or(Located::Invalid)?;
        self.fast.segments.lock().end_writes(begun.segment);
        let prepared = (|| {
            if request.length > begun.size {
                return Err(Error::Invalid("longer than was asked for"));
            }
            if request.length < self.fast.following.lock().ready_end(begun.slot) {
                return Err(Error::Invalid("shorter than what was made ready"));
            }
            let is_as_begun = begun.file.metadata().is_ok_and(|metadata| metadata.len() == begun.size.get());
            if request.length < begun.size || !is_as_begun {
                self.tier.trim(&begun.file, request.length)?;
                // The rest of its pages is gone: it is no segment for another object of the old length.
                let mut segments = self.fast.segments.lock();
                if let Some(shared) = segments.known.get_mut(&begun.segment)
                    && let Some(shape) = &mut shared.shape
                {
                    shape.pages = footprint(request.length);
                }
            }
            self.lock().living_directory(begun.parent)?;
            self.claim_all(begun.slot, request.length)
        })();
        match prepared {
            Ok(()) => {
                begun.size = request.length;
                Ok(begun)
            }
            Err(error) => {
                remains.doomed.extend(self.take_out(&begun));
                Err(Located::of(&error))
            }
        }
    }

    /// Publishes those that could be prepared, and has the kernel know of their names before it returns. What they take the place
    /// of is left in `remains`.
    pub(super) fn publish_all(
        &self,
        session: &Session,
        caller: &Caller,
        prepared: Vec<Result<Begun, Located>>,
        remains: &mut Remains,
    ) -> Vec<Result<Version, Located>> {
        let doomed = mem::take(&mut remains.doomed);
        let mut afterwards = Afterwards { doomed, ..Afterwards::default() };
        let (sealed, is_unknown) = {
            let _publishing = self.fast.publishing.lock();
            let mut is_unknown = false;
            let sealed: Vec<_> = {
                let mut state = self.lock();
                let sealed = prepared.into_iter().map(|begun| {
                    let begun = begun?;
                    self.publish_begun(&mut state, (session, caller), begun, &mut is_unknown, &mut afterwards)
                });
                let sealed = sealed.collect();
                if is_unknown {
                    // Before the kernel is told, so that what it is told from now on counts.
                    self.fast.absences.clear();
                }
                sealed
            };
            if is_unknown && let Some(kernel) = self.kernel.get() {
                kernel.forget_names();
            }
            (sealed, is_unknown)
        };
        if is_unknown {
            self.telemetry.fast_name_resets.increment();
        }
        self.released.notify_all();
        remains.doomed = mem::take(&mut afterwards.doomed);
        self.carry_out(afterwards);
        sealed
    }

    /// Publishes one object. Sets `is_unknown` when the kernel may believe something else of its name.
    fn publish_begun(
        &self,
        state: &mut State,
        (session, caller): (&Session, &Caller),
        begun: Begun,
        is_unknown: &mut bool,
        afterwards: &mut Afterwards,
    ) -> Result<Version, Located> {
        let Begun { slot, parent, name, file, size, .. } = begun;
        self.fast.following.lock().end(slot);
        if let Some(object) = state.object_mut(slot) {
            object.open_mut().writers = 0;
        }
        // It may have been removed meanwhile: what is begun in it does not keep it.
        let published = state.living_directory(parent).and_then(|parent| {
            let directory = state.directory_id(parent)?;
            let present = state.tree.child(parent, name.as_bytes());
            if present.is_some_and(|present| state.tree.directory(present).is_some()) {
                return Err(Error::IsDirectory);
            }
            // As rename(2) looks at it: owners and modes may have changed since it was begun, and what stands there too.
            if !state.may_put(session.credentials(), parent, present) {
                return Err(Error::NotPermitted("making that name"));
            }
            let metadata = file.metadata().map_err(Error::io("stat of a segment"))?;
            if metadata.len() != size.get() {
                return Err(Error::Invalid("longer than it is sealed"));
            }
            let known = present.is_some_and(|present| state.tree.node(present).lookups > 0);
            *is_unknown |= known || self.fast.absences.may_hold(key_hash(directory, name.as_bytes()));
            let (thread, measured) = (Some(caller.thread.0), (&*file, metadata));
            self.publish_measured(state, slot, (parent, name), thread, measured, afterwards)?;
            afterwards.changed.extend(self.note_name_shown(state, parent));
            Ok(())
        });
        match published {
            Ok(()) => {
                if self.ssd.get().is_some() {
                    // Its directory may be one since it was begun in which a disk is to have it.
                    afterwards.durable.extend(state.must_persist(slot));
                }
                if state.has_members() {
                    // Nobody waits until the other members know.
                    afterwards.untold.push(state.tree.ino(slot));
                }
                Ok(state.object(slot).map(|object| object.version).unwrap_or_default())
            }
            Err(error) => {
                tracing::debug!(%error, "a begun object could not be sealed");
                self.telemetry.discarded_writes.increment();
                afterwards.doomed.push(state.discard_begun(slot, size));
                Err(Located::of(&error))
            }
        }
    }
}
