//! Durable objects: below a directory with `user.tidefs.durability=ssd` a rename, and an fsync(2) of what is sealed, wait
//! until the object is on a disk.
//!
//! Limits: a writer's close that was made before its rename arrives within `ANNOUNCED_CLOSE_WAIT`; of an object whose writer
//! keeps its descriptor nothing is promised. The wait for a disk is bounded by `runtime.deadline_ms`.
//! Threads: [`Datapath::persist`] waits, so it runs on load threads.

use std::io;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use super::{Datapath, Error, HandleId, Marks, Object, Phase, State};
use crate::namespace::{Ino, Slot};

/// How long a rename waits for its writer to close.
const CLOSE_WAIT: Duration = Duration::from_millis(50);
/// How long it waits for a close that was announced: it arrives, however late.
const ANNOUNCED_CLOSE_WAIT: Duration = Duration::from_secs(2);
/// How often it looks.
const CLOSE_PAUSE: Duration = Duration::from_millis(1);

impl Datapath {
    /// The object under a name, when its rename is to wait for the disk.
    #[must_use]
    pub fn must_persist_child(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        self.ssd.get()?;
        let state = self.lock();
        let slot = state.tree.child(state.tree.by_ino(parent)?, name)?;
        state.must_persist(slot)
    }

    /// The object behind a handle, when fsync(2) is to wait for the disk.
    #[must_use]
    pub fn must_persist_handle(&self, handle: HandleId) -> Option<Ino> {
        self.ssd.get()?;
        let state = self.lock();
        let slot = state.handles.get(&handle)?.slot;
        // One that is still being written becomes durable with its rename.
        let is_final = state.object(slot).is_some_and(|object| object.marks.has(Marks::FINAL));
        is_final.then(|| state.must_persist(slot)).flatten()
    }

    /// Waits for a close that was made before the rename and arrives after it.
    fn wait_for_last_close(&self, ino: Ino) {
        let started = self.clock.monotonic();
        let patience = || {
            let state = self.lock();
            let object = state.object(state.tree.by_ino(ino)?)?;
            let is_written = object.phase == Phase::Sealed && !object.marks.has(Marks::FINAL);
            let is_announced = object.open.as_ref().is_some_and(|open| open.closing);
            is_written.then_some(if is_announced { ANNOUNCED_CLOSE_WAIT } else { CLOSE_WAIT })
        };
        let is_early = |limit| self.clock.monotonic().saturating_sub(started) < limit;
        while patience().is_some_and(is_early) {
            self.wait_for_release(CLOSE_PAUSE);
        }
    }

    /// Makes a sealed object durable on SSD; it stays in memory. Waits for the disk.
    ///
    /// # Errors
    /// [`Error::Io`] when no disk has it, and [`Error::Stale`] when it is gone.
    pub fn persist(&self, ino: Ino) -> Result<(), Error> {
        self.wait_for_last_close(ino);
        let outcome = self.try_persist(ino);
        if let Err(error) = &outcome {
            self.telemetry.ssd_durability_failures.increment();
            tracing::warn!(ino = ino.0, %error, "an object that was to be durable is in memory only");
        }
        outcome
    }

    fn try_persist(&self, ino: Ino) -> Result<(), Error> {
        let failed = |why: &'static str| Error::Io {
            operation: "write to the SSD tier",
            source: io::Error::other(why),
        };
        let ssd = self.ssd().ok_or_else(|| failed("there is none"))?;
        let lent = {
            let mut state = self.lock();
            let slot = state.slot_of(ino)?;
            let is_away = state.object(slot).is_some_and(|object: &Object| !object.is_resident());
            if is_away || self.stands_on_ssd(ssd, &state, slot) {
                None
            } else {
                let why = "its writer has it open, or it has attributes of an application";
                Some(state.send(slot).ok_or_else(|| failed(why))?)
            }
        };
        if let Some(lent) = lent {
            let (sender, receiver) = sync_channel(1);
            self.store(lent, true, Some(sender));
            // Late or not, it goes on; what counts is what stands there.
            let _ = receiver.recv_timeout(self.settings.deadline);
        }
        // The records of the directories above came before it, on whatever disk.
        let is_flushed = ssd.flush(self.settings.deadline);
        let state = self.lock();
        let record = state.ssd_record(state.slot_of(ino)?);
        let stands = record.is_some_and(|record| ssd.holds(&record.key) == Some(record.version));
        if is_flushed && stands { Ok(()) } else { Err(failed("no disk has the object")) }
    }
}

impl State {
    /// The sealed object in `slot`, when its policy wants it to be durable.
    fn must_persist(&self, slot: Slot) -> Option<Ino> {
        let object = self.object(slot)?;
        let wants = object.phase == Phase::Sealed && self.effective_policy(slot).record.durable == Some(true);
        wants.then(|| self.tree.ino(slot))
    }
}
