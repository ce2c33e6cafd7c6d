//! Durable objects: below a directory with `user.tidefs.durability=ssd` a rename, and an fsync(2) of what is sealed, wait
//! until the object is on a disk.
//!
//! Limits: a writer's close that was made before its rename arrives within `ANNOUNCED_CLOSE_WAIT`; of an object whose writer
//! keeps its descriptor nothing is promised. The wait for a disk is bounded by `runtime.deadline_ms`.
//! Threads: [`Datapath::persist`] waits, so it runs on load threads.

use std::io;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use super::ssd::directory_key;
use super::{Datapath, Error, HandleId, Marks, Object, Phase, State};
use crate::namespace::{Ino, Slot};
use crate::tier::ssd::SsdTier;

/// How long a rename waits for its writer to close.
const CLOSE_WAIT: Duration = Duration::from_millis(50);
/// How long it waits for a close that was announced: it arrives, however late.
const ANNOUNCED_CLOSE_WAIT: Duration = Duration::from_secs(2);
/// How often an object is sent: a disk is known to fail after three writes, and another one takes what comes then.
const ATTEMPTS: u32 = 4;
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
        let ssd = self.ssd().ok_or_else(|| failed("there is none"))?;
        let started = self.clock.monotonic();
        let is_late = || self.clock.monotonic().saturating_sub(started) >= self.settings.deadline;
        for attempt in 1..=ATTEMPTS {
            if self.persist_once(ssd, ino)? {
                return Ok(());
            }
            if attempt < ATTEMPTS && is_late() {
                break;
            }
        }
        Err(failed("no disk has the object"))
    }

    /// Returns whether the object is durable, and what its name hangs on.
    fn persist_once(&self, ssd: &SsdTier, ino: Ino) -> Result<bool, Error> {
        let (lent, key, above) = {
            let mut state = self.lock();
            let slot = state.slot_of(ino)?;
            let above = state.directories_above(slot);
            self.keep_above(ssd, &mut state, &above);
            let key = state.ssd_key(slot).ok_or(Error::Stale)?;
            let is_away = state.object(slot).is_some_and(|object: &Object| !object.is_resident());
            let stands = || self.stands_on_ssd(ssd, &state, slot) && ssd.can_keep(&key);
            let lent = if is_away || stands() {
                None
            } else {
                let why = "its writer has it open, or it has attributes of an application";
                Some(state.send(slot).ok_or_else(|| failed(why))?)
            };
            (lent, key, above)
        };
        if let Some(lent) = lent {
            let (sender, receiver) = sync_channel(1);
            self.store(lent, true, Some(sender));
            // Late or not, it goes on; what counts is what stands there.
            let _ = receiver.recv_timeout(self.settings.deadline);
        }
        // The records of the directories above came before it. A disk that has none of all these may fail.
        let keys = above.iter().map(|(_, key)| &key[..]).chain([&key[..]]);
        let is_flushed = ssd.flush_keys(keys, self.settings.deadline);
        let state = self.lock();
        let record = state.ssd_record(state.slot_of(ino)?);
        let stands = record.is_some_and(|record| ssd.holds(&record.key) == Some(record.version));
        let unkept = self.unkept.lock();
        let is_kept = |(slot, key): &(Slot, Vec<u8>)| ssd.can_keep(key) && !unkept.contains(slot);
        Ok(is_flushed && stands && above.iter().all(is_kept))
    }

    /// Sends the records of directories again that stand on no disk as they are, or on one that fails.
    fn keep_above(&self, ssd: &SsdTier, state: &mut State, above: &[(Slot, Vec<u8>)]) {
        for (slot, key) in above {
            let is_unkept = self.unkept.lock().remove(slot);
            if is_unkept || !ssd.can_keep(key) {
                self.keep_directory(state, *slot);
            }
        }
    }
}

fn failed(why: &'static str) -> Error {
    Error::Io { operation: "write to the SSD tier", source: io::Error::other(why) }
}

impl State {
    /// The directories above a node, without the root, and the keys of their records.
    fn directories_above(&self, slot: Slot) -> Vec<(Slot, Vec<u8>)> {
        let mut above = Vec::new();
        let mut at = self.tree.node(slot).parent;
        while at != Slot::ROOT
            && let Some(directory) = self.tree.directory(at)
        {
            above.push((at, directory_key(directory.id)));
            at = self.tree.node(at).parent;
        }
        above
    }

    /// The sealed object in `slot`, when its policy wants it to be durable.
    fn must_persist(&self, slot: Slot) -> Option<Ino> {
        let object = self.object(slot)?;
        let wants = object.phase == Phase::Sealed && self.effective_policy(slot).record.durable == Some(true);
        wants.then(|| self.tree.ino(slot))
    }
}
