//! Bytes of other members: read into memory of this host, whole before the object is opened unless it is [`stream`](super::stream)ed.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_engine::memory::{Access, Mapping, Region};
use tidefs_engine::types::{ByteCount, Checksum};

use super::super::history::Ending;
use super::super::{Datapath, Error, Place, State};
use super::stamp_of;
use crate::cluster::{Arrival, Copy, Fetch, Fetched, Medium, Stamp, Wanted};
use crate::namespace::{Ino, Slot};
use crate::tier::eviction::Departure;

/// How long a version that takes the place of another one is on its way into the catalog.
const TELLING: Duration = Duration::from_millis(2);

/// Bytes of a segment whose pages are made between two looks at whether the answer is there: one huge page.
const POPULATED_AT_ONCE: usize = 2 << 20;

/// Where the bytes of an object are, beyond this host.
#[derive(Clone, Debug)]
pub(in crate::datapath) struct Away {
    pub(super) path: Vec<u8>,
    pub(super) stamp: Stamp,
    pub(super) copies: Vec<Copy>,
}

impl Away {
    pub(in crate::datapath) fn stamp(&self) -> Stamp {
        self.stamp
    }

    fn wanted(&self, size: ByteCount) -> Wanted {
        let Self { path, stamp, copies } = self.clone();
        Wanted { path, stamp, size, copies }
    }
}

impl State {
    /// Where the bytes of the object in `slot` are, when they are on other members alone.
    pub(in crate::datapath) fn away(&self, slot: Slot) -> Option<Away> {
        let object = self.object(slot).filter(|object| object.is_remote())?;
        let copies = self.elsewhere.copies.get(&slot).cloned().unwrap_or_default();
        Some(Away { path: self.tree.path(slot), stamp: stamp_of(object), copies })
    }
}

impl Datapath {
    /// Reads a small object of other members. Waits.
    ///
    /// # Errors
    /// [`Error::NoObject`] when no member could give it: it is not shown any more.
    pub(in crate::datapath) fn fetch_bytes(
        &self,
        ino: Ino,
        away: &Away,
        size: ByteCount,
    ) -> Result<(Vec<u8>, Checksum), Error> {
        let side = self.cluster.get().ok_or(Error::NoObject)?;
        let deadline = Instant::now() + side.fetch_limit;
        let fetched = side.runtime.block_on(side.cluster.fetch_bytes(away.wanted(size), deadline));
        match fetched {
            Ok((bytes, checksum)) if bytes.len() as u64 == size.get() => Ok((bytes, Checksum(checksum))),
            Ok(_) => Err(self.unreachable(ino, away, &"a peer sent another length")),
            Err(error) => Err(self.unreachable(ino, away, &error)),
        }
    }

    /// Begins to read an object of other members.
    ///
    /// # Errors
    /// [`Error::NoObject`] when this host is no member.
    pub(in crate::datapath) fn begin_fetch(&self, away: &Away, size: ByteCount) -> Result<Fetch, Error> {
        let side = self.cluster.get().ok_or(Error::NoObject)?;
        let parts = size.get().div_ceil(side.fetch_whole_max.get()).max(1);
        let limit = side.fetch_limit.saturating_mul(u32::try_from(parts).unwrap_or(u32::MAX));
        Ok(side.cluster.fetch(away.wanted(size), side.fetch_limit, Instant::now() + limit))
    }

    /// Reads the rest of it, into a segment of its length. Waits.
    ///
    /// # Errors
    /// As [`Datapath::fetch_bytes`].
    pub(in crate::datapath) fn finish_fetch(
        &self,
        mut fetch: Fetch,
        ino: Ino,
        away: &Away,
        (file, mapping): (&Arc<File>, Mapping),
        arrival: &dyn Arrival,
    ) -> Result<Fetched, Error> {
        let length = usize::try_from(mapping.length().get()).unwrap_or(usize::MAX);
        // Pages that stand already when the bytes come cost their transfer nothing.
        for offset in (0..length).step_by(POPULATED_AT_ONCE) {
            if fetch.is_answered() {
                break;
            }
            mapping.populate(offset, POPULATED_AT_ONCE);
        }
        let region = Arc::new(Region::of_mapping(Arc::new(mapping), Arc::clone(file), Access::Read));
        fetch.into_region(&region, arrival).map_err(|error| self.unreachable(ino, away, &error))
    }

    /// Nobody could give the object: who looks it up next asks again.
    fn unreachable(&self, ino: Ino, away: &Away, error: &dyn std::fmt::Display) -> Error {
        self.telemetry.remote_misses.increment();
        tracing::debug!(ino = ino.0, %error, "an object of other members is a miss");
        let doomed = {
            let mut state = self.lock();
            let Ok(slot) = state.slot_of(ino) else { return Error::NoObject };
            let is_same =
                state.object(slot).is_some_and(|object| object.is_remote() && stamp_of(object) == away.stamp);
            let ending = (self.now_ns(), Ending::Unreachable);
            is_same.then(|| state.remove_object(slot, Departure::Gone, Some(ending)))
        };
        doomed.into_iter().for_each(|doomed| self.bury(doomed));
        // Whoever replaced it meanwhile is about to tell the catalog, which is asked again.
        std::thread::sleep(TELLING);
        let is_lost = self.cluster.get().is_none_or(|side| !side.cluster.is_any_there(&away.copies));
        let now = self.clock.monotonic();
        self.lock().elsewhere.unreached.note(away, is_lost, now);
        Error::NoObject
    }

    /// A copy of an object of other members is here now, and others may read it.
    pub(in crate::datapath) fn has_arrived(&self, ino: Ino, away: Away, size: ByteCount) {
        self.telemetry.remote_fetches.increment();
        self.telemetry.remote_fetched_bytes.add(size.get());
        let Some(side) = self.cluster.get() else { return };
        // Under the lock: that it leaves again is told after this.
        let state = self.lock();
        let slot = state.tree.by_ino(ino).filter(|&slot| state.sealed_stamp(slot) == Some(away.stamp));
        if let Some(slot) = slot.filter(|&slot| state.remote_size(slot).is_none()) {
            let medium = if state.is_soft(slot) { Medium::Soft } else { Medium::Memory };
            side.cluster.hold(&away.path, away.stamp, medium);
        }
    }

    /// Whether the object's bytes are on other members, and where here they would be put.
    pub(in crate::datapath) fn is_away(place: &Place) -> bool {
        matches!(place, Place::Ssd | Place::Remote)
    }
}
