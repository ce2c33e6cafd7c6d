//! Bringing an object into memory, whole, from SSD or from another member: before it is opened, or, when it is large and comes
//! from another member, while it is read.
//!
//! Invariants
//! - An object is in memory only with all its bytes, compared with their checksum; else it is a miss.
//! - Nothing here runs on a thread that answers other requests: the disk, or the peer, may be slow.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidefs_engine::memory::Mapping;
use tidefs_engine::types::{ByteCount, Checksum, Version};

use super::blank::Blank;
use super::elsewhere::{Arriving, Away};
use super::history::Ending;
use super::room::footprint;
use super::ssd::{Leaving, MayLend, object_key};
use super::{Datapath, Error, Marks, Object, Phase, Place, State};
use crate::cluster::{Arrival, Fetch, Fetched, Purpose, SharedPurpose, Whole};
use crate::namespace::{Ino, Name, Slot};
use crate::tier::eviction::Departure;
use crate::tier::memory::checksum_bytes;
use crate::tier::ssd::{Missed, ReadFor, SsdTier};

/// How long a load waits for room that is on its way.
const ROOM_WAIT: Duration = Duration::from_millis(200);
/// How often it looks.
const ROOM_PAUSE: Duration = Duration::from_millis(1);

/// Of the loads that are predicted to take too long, one in so many is tried.
const TRIED_ANYWAY: u64 = 16;

/// What is to be loaded.
struct Wanted {
    key: Vec<u8>,
    /// Where it is when it is not on SSD.
    away: Option<Away>,
    version: Version,
    size: ByteCount,
    directory: Slot,
    is_small: bool,
    /// Of what is read from SSD.
    reason: ReadFor,
}

/// An object that is in memory. What nobody has to wait for is done when this is dropped, after those who waited for the object
/// were answered: the other members hear that it is here too, and what reading it took is given back.
#[derive(Debug)]
pub struct Promoted<'a> {
    datapath: &'a Datapath,
    arrived: Option<(Ino, Away, ByteCount)>,
    fetched: Option<Fetched>,
    has_loaded: bool,
}

impl Promoted<'_> {
    /// Whether this load brought it: it was not there before, nor did another load bring it meanwhile.
    pub(super) fn has_loaded(&self) -> bool {
        self.has_loaded
    }
}

impl Drop for Promoted<'_> {
    fn drop(&mut self) {
        // Told first, as what was lent leaves later than what was noted before: a holder that evicts it then is not the last one
        // that the catalog knows.
        if let Some((ino, away, size)) = self.arrived.take() {
            self.datapath.has_arrived(ino, away, size);
        }
        if self.fetched.take().is_some() {
            // Not while bytes came: a host with few processors needs them for that.
            self.datapath.blanks.make();
        }
    }
}

/// Where an object is brought back from.
enum Source<'a> {
    Ssd(&'a SsdTier),
    Member(&'a Away, Box<Fetch>),
}

impl Datapath {
    /// Whether the object must be brought back before it can be used.
    #[must_use]
    pub fn must_load(&self, ino: Ino) -> bool {
        self.has_lower_tier() && self.wanted(&self.lock(), ino).is_some()
    }

    /// The object under a name, when it must be brought back before it can be used.
    #[must_use]
    pub fn must_load_child(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        if !self.has_lower_tier() {
            return None;
        }
        let state = self.lock();
        let slot = state.tree.child(state.tree.by_ino(parent)?, name)?;
        let ino = state.tree.ino(slot);
        self.wanted(&state, ino).map(|_| ino)
    }

    /// Whether there may be objects that are not in memory.
    fn has_lower_tier(&self) -> bool {
        self.ssd.get().is_some() || self.cluster.get().is_some()
    }

    /// Whether computing an object again takes less time than bringing it back, as far as its namespace says how long that
    /// takes. A few are brought back nevertheless, so that what is known of the disk stays true; and what is on its way is.
    #[must_use]
    pub fn is_faster_computed(&self, ino: Ino) -> bool {
        let is_faster = self.is_predicted_faster_computed(&self.lock(), ino)
            && !self.loader.is_loading(ino)
            && !self.slow_loads.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRIED_ANYWAY);
        if is_faster {
            self.telemetry.ssd_too_slow.increment();
        }
        is_faster
    }

    /// The same, as far as the disk has shown how fast it is.
    pub(super) fn is_predicted_faster_computed(&self, state: &State, ino: Ino) -> bool {
        let Some(ssd) = self.ssd.get() else { return false };
        let rate = state.tree.by_ino(ino).and_then(|slot| {
            let rate = state.effective_policy(slot).record.recompute_bytes_per_second;
            rate.map(ByteCount::get).filter(|rate| *rate > 0)
        });
        let (Some(rate), Some(wanted)) = (rate, self.wanted(state, ino)) else { return false };
        let Some(load) = ssd.predicted_load(&wanted.key, wanted.size) else { return false };
        load > Duration::from_secs_f64(wanted.size.get() as f64 / rate as f64)
    }

    fn wanted(&self, state: &State, ino: Ino) -> Option<Wanted> {
        let slot = state.tree.by_ino(ino)?;
        let is_away = |object: &&Object| object.phase == Phase::Sealed && Self::is_away(&object.place);
        let object = state.object(slot).filter(is_away)?;
        let directory = state.tree.node(slot).parent;
        let id = state.directory_id(directory).ok()?;
        Some(Wanted {
            key: object_key(id, state.tree.name(slot).as_bytes()),
            away: state.away(slot),
            version: object.version,
            size: object.size,
            directory,
            is_small: object.size < self.settings.packed_max,
            reason: ReadFor::Use,
        })
    }

    /// Brings an object back into memory; one that is there is fine. Waits for the disk.
    ///
    /// # Errors
    /// [`Error::NoObject`] when it cannot be had: a miss.
    pub fn promote(&self, ino: Ino) -> Result<Promoted<'_>, Error> {
        self.promote_for(ino, ReadFor::Use)
    }

    /// The same, counted for another reason.
    pub(super) fn promote_for(&self, ino: Ino, reason: ReadFor) -> Result<Promoted<'_>, Error> {
        self.promote_as(ino, reason, &SharedPurpose::new(Purpose::Reading))
    }

    /// The same, of what programs do not wait for, too.
    pub(super) fn promote_as(
        &self,
        ino: Ino,
        reason: ReadFor,
        purpose: &SharedPurpose,
    ) -> Result<Promoted<'_>, Error> {
        let mut promoted = Promoted { datapath: self, arrived: None, fetched: None, has_loaded: false };
        let Some(wanted) = self.wanted(&self.lock(), ino) else { return Ok(promoted) };
        let wanted = Wanted { reason, ..wanted };
        // Nothing leaves memory for what is not going to be read.
        if wanted.away.is_none() && self.ssd.get().is_some_and(|ssd| !ssd.may_load(&wanted.key)) {
            self.telemetry.ssd_promotion_misses.increment();
            return Err(Error::NoObject);
        }
        self.wait_for_lent_room(wanted.size);
        let room = self.look_for_room_in_quota(footprint(wanted.size), wanted.directory);
        let outcome = room.and_then(|()| {
            if wanted.is_small {
                self.promote_small(ino, &wanted).map(|()| None)
            } else {
                self.promote_solo(ino, &wanted, purpose)
            }
        });
        match outcome {
            Ok(fetched) => {
                self.settle_quota(ino);
                if wanted.away.is_none() {
                    self.telemetry.ssd_promotions.increment();
                    self.telemetry.ssd_promoted_bytes.add(wanted.size.get());
                }
                promoted.arrived = wanted.away.map(|away| (ino, away, wanted.size));
                promoted.fetched = fetched;
                promoted.has_loaded = true;
                Ok(promoted)
            }
            Err(_) if self.is_back(ino, wanted.version) => Ok(promoted),
            Err(_) if wanted.away.is_some() => Err(Error::NoObject),
            Err(error) => {
                self.telemetry.ssd_promotion_misses.increment();
                tracing::debug!(ino = ino.0, %error, "an object on SSD is a miss");
                Err(Error::NoObject)
            }
        }
    }

    /// Whether another load, one ahead of its use perhaps, brought it meanwhile.
    fn is_back(&self, ino: Ino, version: Version) -> bool {
        let state = self.lock();
        let object = state.tree.by_ino(ino).and_then(|slot| state.object(slot));
        object.is_some_and(|object| object.version == version && !Self::is_away(&object.place))
    }

    /// What is brought back at once may pass a quota that had room for each of it: others leave for the object of `ino`.
    pub(super) fn settle_quota(&self, ino: Ino) {
        let mut passed_over = Vec::new();
        while let Some(leaving) = self.leaves_for(ino, &mut passed_over) {
            self.see_off(leaving, None);
        }
        if !passed_over.is_empty() {
            let mut state = self.lock();
            passed_over.into_iter().for_each(|slot| state.update_hold(slot));
        }
    }

    /// What leaves next where a quota has no room for the object of `ino`. `passed_over`: as of [`State::victim_in_quota`].
    fn leaves_for(&self, ino: Ino, passed_over: &mut Vec<Slot>) -> Option<Leaving> {
        let mut state = self.lock();
        let slot = state.tree.by_ino(ino)?;
        let directory = state.tree.node(slot).parent;
        let over = state.quota_in_the_way(directory, ByteCount::ZERO, None)?;
        state.hold(slot);
        let victim = state.victim_in_quota(over.limited, directory, passed_over);
        state.update_hold(slot);
        Some(self.let_leave(&mut state, victim?, Ending::EvictedForQuota, MayLend::IfRoom))
    }

    /// Waits a little while room is short and on its way: what would be evicted at once is not on a disk yet, and lost.
    fn wait_for_lent_room(&self, size: ByteCount) {
        let started = self.clock.monotonic();
        while self.has_lent()
            && self.tier.usage().is_ok_and(|usage| usage.free < size.round_up_to_pages())
            && self.clock.monotonic().saturating_sub(started) < ROOM_WAIT
        {
            std::thread::sleep(ROOM_PAUSE);
        }
    }

    /// What became of a load that missed: the object is gone, unless its disk was only too slow, or a record that was not found is
    /// there by now: another load may have brought it meanwhile, and it may have left again.
    fn missed(&self, ino: Ino, wanted: &Wanted, missed: Missed) -> Error {
        if missed != Missed::Failed {
            let doomed = {
                let mut state = self.lock();
                let Ok(slot) = state.slot_of(ino) else { return Error::NoObject };
                let is_same = self.wanted(&state, ino).is_some_and(|now| now.version == wanted.version);
                let ending = if missed == Missed::Corrupt {
                    self.telemetry.corrupt_objects.increment();
                    Ending::Corrupt
                } else {
                    Ending::Dropped(None)
                };
                let is_there = || {
                    let ssd = self.ssd.get().filter(|_| missed == Missed::Absent);
                    ssd.is_some_and(|ssd| ssd.has(&wanted.key, wanted.version))
                };
                let is_gone = is_same && !is_there();
                is_gone.then(|| state.remove_object(slot, Departure::Gone, Some((self.now_ns(), ending))))
            };
            doomed.into_iter().for_each(|doomed| self.bury(doomed));
        }
        Error::NoObject
    }

    fn promote_small(&self, ino: Ino, wanted: &Wanted) -> Result<(), Error> {
        let (data, checksum) = self.read_away(ino, wanted)?;
        self.with_room(|| {
            let mut state = self.lock();
            let (slot, directory, name) = self.still_wanted(&state, ino, wanted)?;
            let namespace = state.directory_id(state.namespace_of(directory))?;
            let mut record = state.object_record(slot, state.directory_id(directory)?, &name);
            record.checksum = Some(checksum);
            let extent = self.tier.pack(namespace, &record, &data)?;
            self.put_back(&mut state, slot, Place::Packed(extent));
            Ok(())
        })
    }

    /// The bytes of a small object, from where it is, and their checksum.
    fn read_away(&self, ino: Ino, wanted: &Wanted) -> Result<(Vec<u8>, Checksum), Error> {
        if let Some(away) = &wanted.away {
            return self.fetch_bytes(ino, away, wanted.size);
        }
        let ssd = self.ssd.get().ok_or(Error::NoObject)?;
        let data = ssd
            .read_for(&wanted.key, wanted.version, wanted.size, wanted.reason)
            .map_err(|missed| self.missed(ino, wanted, missed))?;
        let checksum = checksum_bytes(&data);
        Ok((data, checksum))
    }

    /// Fills a segment with an object, from where it is. Returns the checksum of the bytes, and what a member gave.
    fn fill_from(
        &self,
        source: Source<'_>,
        ino: Ino,
        wanted: &Wanted,
        (file, mapping): (&Arc<File>, Mapping),
        arriving: Option<&Arriving<'_>>,
    ) -> Result<(Checksum, Option<Fetched>), Error> {
        match source {
            Source::Member(away, fetch) => {
                let arrival = arriving.map_or(&Whole as &dyn Arrival, |arriving| arriving);
                let fetched = self.finish_fetch(*fetch, ino, away, (file, mapping), arrival)?;
                Ok((Checksum(fetched.checksum), Some(fetched)))
            }
            Source::Ssd(ssd) => ssd
                .load(&wanted.key, wanted.version, wanted.size, &Arc::new(mapping), wanted.reason)
                .map(|checksum| (checksum, None))
                .map_err(|missed| self.missed(ino, wanted, missed)),
        }
    }

    fn promote_solo(
        &self,
        ino: Ino,
        wanted: &Wanted,
        purpose: &SharedPurpose,
    ) -> Result<Option<Fetched>, Error> {
        // Who has the bytes is asked for them before there is a place for them.
        let source = match &wanted.away {
            Some(away) => {
                let fetch = self.begin_fetch(away, wanted.size)?.for_purpose(purpose.clone());
                Source::Member(away, Box::new(fetch))
            }
            None => Source::Ssd(self.ssd.get().ok_or(Error::NoObject)?),
        };
        let blank = self.take_blank(wanted.size);
        if matches!(source, Source::Ssd(_)) {
            // The next one is made while the disk works.
            self.blanks.make();
        }
        let (segment, file, mapping) = match blank {
            Some(Blank { segment, file, mapping, .. }) => (segment, file, Some(mapping)),
            None => {
                let (segment, file) = self.tier.create_segment()?;
                (segment, Arc::new(file), None)
            }
        };
        let arriving = wanted.away.as_ref().filter(|_| self.is_streamed(wanted.size));
        let arriving = arriving.map(|away| Arriving::new(self, (ino, away.stamp()), &file, wanted.size));
        let loaded = (|| {
            if mapping.is_none() {
                // The length comes first: the kernel takes huge pages for what lies within it alone.
                file.set_len(wanted.size.get()).map_err(Error::io("ftruncate of a segment"))?;
                self.reserve(&file, ByteCount::ZERO, wanted.size, wanted.directory)?;
            }
            let (checksum, fetched) = if wanted.size == ByteCount::ZERO {
                (checksum_bytes(&[]), None)
            } else {
                let fresh = || Mapping::new(&file, wanted.size).map_err(Error::io("mmap of a segment"));
                let mapping = mapping.map_or_else(fresh, Ok)?;
                self.fill_from(source, ino, wanted, (&file, mapping), arriving.as_ref())?
            };
            if let Some(arriving) = &arriving {
                arriving.is_whole();
            }
            let mut state = self.lock();
            let (slot, directory, name) = self.still_wanted(&state, ino, wanted)?;
            let mut record = state.object_record(slot, state.directory_id(directory)?, &name);
            record.checksum = Some(checksum);
            self.tier.seal(&file, &record)?;
            self.put_back(&mut state, slot, Place::Solo(segment));
            Ok(fetched)
        })();
        if loaded.is_err() {
            // A load that ran out of time may still fill it: its pages live as long as somebody maps them.
            self.free_place(Place::Solo(segment));
        }
        loaded
    }

    fn still_wanted(&self, state: &State, ino: Ino, wanted: &Wanted) -> Result<(Slot, Slot, Name), Error> {
        let now = self.wanted(state, ino).ok_or(Error::NoObject)?;
        if now.version != wanted.version || now.key != wanted.key {
            return Err(Error::NoObject);
        }
        let slot = state.slot_of(ino)?;
        Ok((slot, state.tree.node(slot).parent, state.tree.name(slot)))
    }

    /// The object is in memory again; its record on SSD stays.
    fn put_back(&self, state: &mut State, slot: Slot, place: Place) {
        let mut was_remote = false;
        if let Some(object) = state.object_mut(slot) {
            was_remote = object.is_remote();
            object.move_to(place);
            // Who reads it while it arrives may map it.
            object.marks.set(Marks::READ, object.is_open());
        }
        state.elsewhere.leave(slot);
        if was_remote {
            state.soften(slot);
            // What is only shown neither expires nor is pinned here.
            state.renew_expiry(slot);
            state.watch_pin(slot);
        } else {
            state.note_moved(slot);
        }
        state.arrive(slot);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::testing::{attach_disk, make, unprivileged};
    use super::*;

    #[test]
    fn a_load_that_found_no_record_takes_no_object_away_that_has_one_by_now() {
        let (_place, datapath) = unprivileged();
        let disk = tempfile::tempdir_in("/var/tmp").unwrap();
        let datapath = Arc::new(datapath);
        attach_disk(&datapath, disk.path(), ByteCount::gib(1));
        let ino = make(&datapath, Ino::ROOT, "key");
        assert!(datapath.send_coldest(ByteCount::mib(1)));
        let end = Instant::now() + Duration::from_secs(20);
        while !datapath.must_load(ino) {
            assert!(Instant::now() < end, "it does not leave");
            std::thread::sleep(ROOM_PAUSE);
        }
        let wanted = datapath.wanted(&datapath.lock(), ino).unwrap();
        let _ = datapath.missed(ino, &wanted, Missed::Absent);
        assert!(datapath.must_load(ino));
        datapath.ssd().unwrap().remove(&wanted.key, wanted.version);
        let _ = datapath.missed(ino, &wanted, Missed::Absent);
        assert!(!datapath.must_load(ino));
    }
}
