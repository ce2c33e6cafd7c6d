//! Durable objects: below a directory with `user.tidefs.durability=ssd` a rename, and an fsync(2) of what is sealed, wait
//! until the object is on a disk. What a client seals there, as it was begun before that was asked for, goes to one as well, and
//! nobody waits.
//!
//! Limits: a writer's close that was made before its rename arrives within `ANNOUNCED_CLOSE_WAIT`; of an object whose writer
//! keeps its descriptor nothing is promised. All waits of a request together, for the close and for the disks, are bounded by
//! `runtime.deadline_ms`, from when it is left to a thread: one that finds none in time waits for `LATE_PATIENCE` more.
//! Threads: [`Datapath::persist`] waits, so it runs on load threads.

use std::io;
use std::sync::Weak;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use super::ssd::directory_key;
use super::{Datapath, Error, HandleId, Marks, Object, Pace, Phase, State};
use crate::namespace::{Ino, Slot};
use crate::tier::ssd::SsdTier;

/// How long a rename waits for its writer to close.
const CLOSE_WAIT: Duration = Duration::from_millis(50);
/// How long it waits for a close that was announced: it arrives, however late.
const ANNOUNCED_CLOSE_WAIT: Duration = Duration::from_secs(2);
/// How long who found no thread in time waits for the disk nevertheless: the object goes there, and may be there soon.
const LATE_PATIENCE: Duration = Duration::from_millis(200);
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

    /// What is left until a moment of the monotonic clock.
    fn left_until(&self, end: Duration) -> Duration {
        end.saturating_sub(self.clock.monotonic())
    }

    /// Waits for a close that was made before the rename and arrives after it, until `end` at most.
    fn wait_for_last_close(&self, ino: Ino, end: Duration) {
        let started = self.clock.monotonic();
        let patience = || {
            let state = self.lock();
            let object = state.object(state.tree.by_ino(ino)?)?;
            let is_written = object.phase == Phase::Sealed && !object.marks.has(Marks::FINAL);
            let is_announced = object.open.as_ref().is_some_and(|open| open.closing);
            is_written.then_some(if is_announced { ANNOUNCED_CLOSE_WAIT } else { CLOSE_WAIT })
        };
        let is_early = |limit| self.clock.monotonic() < end.min(started.saturating_add(limit));
        while patience().is_some_and(is_early) {
            self.wait_for_release(CLOSE_PAUSE);
        }
    }

    /// Until when who asks now for an object to be durable waits for it: a moment of the monotonic clock.
    #[must_use]
    pub fn end_of_persist(&self) -> Duration {
        self.clock.monotonic().saturating_add(self.settings.deadline)
    }

    /// Makes a sealed object durable on SSD; it stays in memory. Waits for the disk, until [`end`](Self::end_of_persist) at most, or
    /// `LATE_PATIENCE` for who finds a thread when that is over or near.
    ///
    /// # Errors
    /// [`Error::Io`] when no disk has it, and [`Error::Stale`] when it is gone.
    pub fn persist(&self, ino: Ino, end: Duration) -> Result<(), Error> {
        let end = end.max(self.clock.monotonic().saturating_add(LATE_PATIENCE));
        self.wait_for_last_close(ino, end);
        let outcome = self.try_persist(ino, end);
        if let Err(error) = &outcome {
            self.telemetry.ssd_durability_failures.increment();
            tracing::warn!(ino = ino.0, %error, "an object that was to be durable is in memory only");
        }
        outcome
    }

    /// The same of an object that has its name whatever becomes of that, which is counted and logged. `pace`: that of its job.
    pub fn persist_named(&self, ino: Ino, end: Duration, pace: Pace) {
        match pace {
            Pace::AtLeisure => drop(self.persist(ino, end)),
            Pace::AtOnce => {
                self.telemetry.ssd_durability_failures.increment();
                tracing::warn!(
                    ino = ino.0,
                    "an object that was to be durable is in memory only: too many wait"
                );
            }
        }
    }

    /// The same, and keeps nobody waiting.
    pub(super) fn persist_later(&self, ino: Ino) {
        let Some(datapath) = self.this.get().and_then(Weak::upgrade) else { return };
        let end = self.end_of_persist();
        self.leave_durable_job(Box::new(move |pace| datapath.persist_named(ino, end, pace)));
    }

    fn try_persist(&self, ino: Ino, end: Duration) -> Result<(), Error> {
        let ssd = self.ssd().ok_or_else(|| failed("there is none"))?;
        for _ in 0..ATTEMPTS {
            if self.persist_once(ssd, ino, end)? {
                return Ok(());
            }
            if self.left_until(end).is_zero() {
                break;
            }
        }
        Err(failed("no disk has the object"))
    }

    /// Returns whether the object is durable, and what its name hangs on.
    fn persist_once(&self, ssd: &SsdTier, ino: Ino, end: Duration) -> Result<bool, Error> {
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
            let _ = receiver.recv_timeout(self.left_until(end));
        }
        // The records of the directories above came before it. A disk that has none of all these may fail.
        let keys = above.iter().map(|(_, key)| &key[..]).chain([&key[..]]);
        let is_flushed = ssd.flush_keys(keys, self.left_until(end));
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
    pub(super) fn must_persist(&self, slot: Slot) -> Option<Ino> {
        let object = self.object(slot)?;
        let wants = object.phase == Phase::Sealed && self.effective_policy(slot).record.durable == Some(true);
        wants.then(|| self.tree.ino(slot))
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::sync::Arc;
    use std::time::Instant;

    use tidefs_engine::types::ByteCount;

    use super::super::testing::{WRITE, attach_disk, caller, directory, unprivileged};
    use super::super::{BeginRequest, Credentials, Located, Opened, SealRequest};
    use super::*;

    #[test]
    fn what_was_begun_before_its_directory_was_to_be_durable_is_on_disk_soon_after_its_seal() {
        let (_place, mut datapath) = unprivileged();
        datapath.settings.deadline = Duration::from_secs(60);
        let (datapath, disk) = (Arc::new(datapath), tempfile::tempdir().unwrap());
        attach_disk(&datapath, disk.path(), ByteCount::mib(8));
        let ns = directory(&datapath, b"ns");
        let session = datapath.begin_session(Credentials::of_request(0, 0, caller().thread), true);
        let size = ByteCount::mib(1);
        let request = BeginRequest { name: b"key", size, mode: 0o644 };
        let reference = datapath.begin(&session, ns, iter::once(request), |begun| {
            assert!(matches!(begun, Located::Here { .. }), "{begun:?}");
        });
        datapath.set_attribute(ns, b"user.tidefs.durability", b"ssd", None).unwrap();
        let seal = iter::once(SealRequest { reference, length: size });
        let left =
            datapath.seal_begun(&session, &caller(), seal, |sealed| assert!(sealed.is_ok(), "{sealed:?}"));
        assert!(left.is_empty());
        datapath.loader.close();
        datapath.run_loads();
        let state = datapath.lock();
        let record = state.ssd_record(state.tree.by_path(b"ns/key").unwrap()).unwrap();
        assert_eq!(datapath.ssd().unwrap().holds(&record.key), Some(record.version));
        assert_eq!(datapath.telemetry.ssd_durability_failures.get(), 0);
    }

    /// A sealed object whose writer's close is announced and does not come.
    fn closing(datapath: &Datapath) -> Opened {
        let (_, opened) = datapath.create(&caller(), Ino::ROOT, b"written", 0o644, WRITE).unwrap();
        datapath.write(opened.handle, 0, &[1; 5000]).unwrap();
        datapath.flush(&caller(), opened.handle).unwrap();
        datapath.rename(&caller(), (Ino::ROOT, b"written"), (Ino::ROOT, b"key"), false).unwrap();
        let state = datapath.lock();
        let object = state.object(state.tree.by_ino(opened.ino).unwrap()).unwrap();
        let is_closing = object.open.as_ref().is_some_and(|open| open.closing);
        assert!(object.phase == Phase::Sealed && !object.marks.has(Marks::FINAL) && is_closing);
        opened
    }

    #[test]
    fn who_finds_no_thread_in_time_waits_for_a_moment_more() {
        let (_place, datapath) = unprivileged();
        let opened = closing(&datapath);
        let end = datapath.clock.monotonic();
        let began = Instant::now();
        assert!(datapath.persist(opened.ino, end).is_err(), "there is no disk");
        let waited = began.elapsed();
        assert!(waited >= LATE_PATIENCE && waited < ANNOUNCED_CLOSE_WAIT, "{waited:?}");
        assert_eq!(datapath.telemetry.ssd_durability_failures.get(), 1);
        datapath.release(opened.handle);
    }

    #[test]
    fn a_close_that_does_not_come_keeps_nobody_waiting_beyond_the_deadline() {
        let (_place, mut datapath) = unprivileged();
        datapath.settings.deadline = Duration::from_millis(20);
        let opened = closing(&datapath);
        let began = Instant::now();
        assert!(datapath.persist(opened.ino, datapath.end_of_persist()).is_err(), "there is no disk");
        let waited = began.elapsed();
        assert!(waited >= LATE_PATIENCE, "its close may come: {waited:?}");
        assert!(waited < ANNOUNCED_CLOSE_WAIT, "{waited:?}");
        datapath.release(opened.handle);
    }
}
