//! Two tiers: objects that are about to leave memory go to the SSD tier, and their names stay.
//!
//! ```text
//!  in memory ──depart──> on its way (STORING) ──stored──> on SSD (Place::Ssd) ──promote──> in memory, ON_SSD
//!      ^                       │ used meanwhile                                               │
//!      └───────────────────────┘                       <──demote, at once: the record stands──┘
//! ```
//! Invariants
//! - An object that is on its way or on SSD is in no order of eviction and in no account of memory.
//! - Who needs room at once never waits for a disk: it takes what is on SSD already, or drops. A thread keeps room free
//!   ahead of writers by sending what is coldest to the disks, as fast as they take it.
//! - A record on SSD is removed before its key stands for anything else.
//!
//! Limits: memory that is lent to records on their way is bounded by the tier's queue.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};

use tidefs_engine::types::{ByteCount, DirectoryId, Version};

use super::burial::Doomed;
use super::history::Ending;
use super::room::footprint;
use super::{Datapath, Marks, Object, Phase, Place, State};
use crate::namespace::{Ino, Slot};
use crate::tier::eviction::Departure;
use crate::tier::memory::ObjectRecord;
use crate::tier::ssd::{DroppedFor, Owner, SsdTier};

/// An object on its way to a disk.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) ino: Ino,
    pub(super) slot: Slot,
    pub(super) size: ByteCount,
    pub(super) key: Vec<u8>,
    pub(super) record: ObjectRecord,
    pub(super) place: Place,
    pub(super) may_change: bool,
    /// How often it was used after the first time, which is what it was made for.
    pub(super) uses: u32,
    /// As what it leaves memory. `None`: it stays, and its pages are not about to be free.
    pub(super) leaves: Option<Ending>,
    /// Whether the record that stands, or is on its way, says other things of it.
    pub(super) was_stale: bool,
}

/// A record of the SSD tier that stands for nothing any more.
#[derive(Debug)]
pub(super) struct SsdRecord {
    pub(super) key: Vec<u8>,
    pub(super) version: Version,
}

/// What becomes of a victim.
#[derive(Debug)]
pub(super) enum Leaving {
    /// It left: its bytes are to be freed.
    Gone(Doomed),
    /// It goes to a disk, and its bytes are freed when it is there.
    Lent(Box<Lent>),
}

/// Whether a victim may go to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MayLend {
    /// Its room is needed now.
    No,
    /// If the disks have room for it.
    IfRoom,
    /// They have.
    Yes,
}

/// The key of an object on SSD.
pub(super) fn object_key(directory: DirectoryId, name: &[u8]) -> Vec<u8> {
    [b"o", &directory.0.to_le_bytes()[..], name].concat()
}

/// The directory and the name in the key of an object on SSD.
pub(super) fn parse_object_key(key: &[u8]) -> Option<(DirectoryId, &[u8])> {
    let (id, name) = key.strip_prefix(b"o")?.split_first_chunk::<8>()?;
    Some((DirectoryId(u64::from_le_bytes(*id)), name))
}

/// Whether a key on SSD is one of a directory.
pub(super) fn is_directory_key(key: &[u8]) -> bool {
    key.first() == Some(&b'd')
}

/// The key of a directory on SSD.
pub(super) fn directory_key(directory: DirectoryId) -> Vec<u8> {
    [b"d", &directory.0.to_le_bytes()[..]].concat()
}

/// The directory whose key on SSD that is.
pub(super) fn parse_directory_key(key: &[u8]) -> Option<DirectoryId> {
    let id = <[u8; 8]>::try_from(key.strip_prefix(b"d")?).ok()?;
    Some(DirectoryId(u64::from_le_bytes(id)))
}

impl Object {
    /// Whether it is in its order of eviction and in the accounts, once it is sealed.
    pub(super) fn is_resident(&self) -> bool {
        !Datapath::is_away(&self.place) && !self.marks.has(Marks::STORING)
    }

    /// Whether a disk may have a record of it.
    pub(super) fn is_storable(&self) -> bool {
        self.phase == Phase::Sealed
            && self.marks.has(Marks::FINAL)
            // What applications attached is not in the record.
            && !self.marks.has(Marks::DECORATED)
    }

    /// Whether its bytes are on a disk alone.
    pub(super) fn is_on_ssd_alone(&self) -> bool {
        self.phase == Phase::Sealed && matches!(self.place, Place::Ssd)
    }
}

impl State {
    /// The record that the SSD tier may have of the object in `slot`: of any that is sealed. Only the tier knows; what became
    /// of an object's last way there says nothing of the one before.
    pub(super) fn ssd_record(&self, slot: Slot) -> Option<SsdRecord> {
        let may_stand = |object: &&Object| object.phase == Phase::Sealed || self.naming.is_some();
        let object = self.object(slot).filter(|object| self.has_ssd && may_stand(object))?;
        Some(SsdRecord { version: object.version, key: self.ssd_key(slot)? })
    }

    /// The key of the object in `slot`, under the name that it has now.
    pub(super) fn ssd_key(&self, slot: Slot) -> Option<Vec<u8>> {
        let directory = self.tree.directory(self.tree.get(slot)?.parent)?;
        Some(object_key(directory.id, self.tree.name(slot).as_bytes()))
    }

    /// What a disk needs of an object, whose record is there or on its way from now on. Until that is handed over, one that stands
    /// says other things of it. `None` for what is not stored.
    pub(super) fn send(&mut self, slot: Slot) -> Option<Lent> {
        let object = self.object(slot).filter(|object| object.is_storable())?;
        let directory = self.directory_id(self.tree.get(slot)?.parent).ok()?;
        let name = self.tree.name(slot);
        let lent = Lent {
            ino: self.tree.ino(slot),
            slot,
            size: object.size,
            key: object_key(directory, name.as_bytes()),
            record: self.object_record(slot, directory, &name),
            place: object.place.clone(),
            may_change: object.marks.has(Marks::WRITABLE_MAPPING),
            uses: u32::from(object.uses).saturating_sub(1),
            leaves: None,
            was_stale: object.marks.has(Marks::ON_SSD) && object.marks.has(Marks::STALE_ON_SSD),
        };
        if let Some(object) = self.object_mut(slot) {
            object.marks.set(Marks::ON_SSD, true);
            object.marks.set(Marks::STALE_ON_SSD, true);
        }
        Some(lent)
    }

    /// Whether the disk to which the object in `slot` goes would take it right now, behind `ahead` bytes of others.
    pub(super) fn has_room_on(&self, ssd: &SsdTier, slot: Slot, ahead: ByteCount) -> bool {
        let size = self.object(slot).map(|object| object.size).unwrap_or_default();
        self.ssd_key(slot).is_some_and(|key| ssd.has_room_for(&key, size, ahead))
    }

    /// Whether the record of the object in `slot` [has settled](SsdTier::has_settled).
    pub(super) fn has_settled_on(&self, ssd: &SsdTier, slot: Slot) -> bool {
        self.ssd_record(slot).is_some_and(|record| ssd.has_settled(&record.key, record.version))
    }

    /// Takes a sealed object out of its order and the accounts of memory.
    fn depart(&mut self, slot: Slot) {
        let size = self.object(slot).map(|object| object.size).unwrap_or_default();
        self.leave_order(slot, footprint(size), Departure::Evicted);
        self.uncount(self.tree.node(slot).parent, size);
        self.part_from_begun(slot);
    }

    /// Enters a sealed object into its order and the accounts of memory again.
    pub(super) fn arrive(&mut self, slot: Slot) {
        let size = self.object(slot).map(|object| object.size).unwrap_or_default();
        self.count(self.tree.node(slot).parent, size);
        if let Some(key) = self.key_of(slot) {
            self.enter_order(slot, key, None, footprint(size));
        }
        // What is being written over it counts beside it.
        self.recharge(slot);
        self.update_hold(slot);
    }

    /// An object that is on its way is needed: it stays in memory, and its record will stand on SSD too. Returns whether it was on
    /// its way: then it counts in the quotas above it again, with no room made for it.
    pub(super) fn readmit(&mut self, slot: Slot) -> bool {
        let is_storing = |object: &&mut Object| object.marks.has(Marks::STORING);
        let Some(object) = self.object_mut(slot).filter(is_storing) else { return false };
        object.marks.set(Marks::STORING, false);
        self.arrive(slot);
        true
    }
}

impl Datapath {
    /// The SSD tier, if there is one.
    #[must_use]
    pub fn ssd(&self) -> Option<&Arc<SsdTier>> {
        self.ssd.get()
    }

    /// A victim leaves memory: to where its record stands already, to a disk as far as it `may`, or for good.
    pub(super) fn let_leave(&self, state: &mut State, victim: Slot, ending: Ending, may: MayLend) -> Leaving {
        if state.leaves_first(victim) {
            self.telemetry.soft_evictions.increment();
        } else if let Some(ssd) = self.ssd.get() {
            if self.stands_on_ssd(ssd, state, victim) {
                state.depart(victim);
                self.telemetry.ssd_demotions.increment();
                return Leaving::Gone(self.demote(state, victim));
            }
            if may != MayLend::No
                && let Some(lent) = self.lend(ssd, state, victim, (ending, may))
            {
                return Leaving::Lent(Box::new(lent));
            }
        }
        Leaving::Gone(state.evict_object(victim, self.now_ns(), ending))
    }

    /// Whether the object's record on SSD is as it is in memory. Until one that was sent because attributes changed has ended its
    /// way, the one that stands there says what they were.
    pub(super) fn stands_on_ssd(&self, ssd: &SsdTier, state: &State, slot: Slot) -> bool {
        let is_same = |object: &Object| {
            object.phase == Phase::Sealed
                && object.marks.has(Marks::ON_SSD)
                && !object.marks.has(Marks::STALE_ON_SSD)
                && !object.marks.has(Marks::DECORATED)
        };
        state.object(slot).is_some_and(is_same) && state.has_settled_on(ssd, slot)
    }

    /// Takes a victim out of the tables of memory to send it to a disk, if one takes it.
    fn lend(
        &self,
        ssd: &SsdTier,
        state: &mut State,
        victim: Slot,
        (ending, may): (Ending, MayLend),
    ) -> Option<Lent> {
        if may != MayLend::Yes && !state.has_room_on(ssd, victim, ByteCount::ZERO) {
            if state.object(victim).is_some_and(Object::is_storable) {
                ssd.count_lost();
                self.telemetry.ssd_refusals.increment();
            }
            return None;
        }
        let lent = state.send(victim)?;
        state.depart(victim);
        if let Some(object) = state.object_mut(victim) {
            object.marks.set(Marks::STORING, true);
        }
        Some(Lent { leaves: Some(ending), ..lent })
    }

    pub(super) fn lent_bytes(&self) -> ByteCount {
        ByteCount(self.lent.load(Ordering::Relaxed))
    }

    /// Whether anything is on its way to a disk.
    pub(super) fn has_lent(&self) -> bool {
        self.lent_bytes() > ByteCount::ZERO
    }

    /// Removes a record that stands for nothing any more.
    pub(super) fn remove_from_ssd(&self, record: &SsdRecord) {
        if let Some(ssd) = self.ssd.get() {
            ssd.remove(&record.key, record.version);
        }
    }

    /// Does outside the lock what is left to do for a victim.
    pub(super) fn see_off(&self, leaving: Leaving, told: Option<std::sync::mpsc::SyncSender<()>>) {
        match leaving {
            Leaving::Gone(doomed) => {
                self.count_evictions(std::slice::from_ref(&doomed));
                self.bury(doomed);
            }
            Leaving::Lent(lent) => {
                self.store(*lent, false, told);
            }
        }
    }

    /// As [`Datapath::see_off`]. Returns who tells that an object that goes to a disk is there, or is not stored.
    pub(super) fn see_off_and_tell(&self, leaving: Leaving) -> Option<Receiver<()>> {
        let (sender, receiver) = sync_channel(1);
        let is_lent = matches!(leaving, Leaving::Lent(_));
        self.see_off(leaving, is_lent.then_some(sender));
        is_lent.then_some(receiver)
    }

    /// Waits for the end of an object's way to its disk. Late or not, it goes on. Returns whether it has ended.
    pub(super) fn wait_until_stored(&self, told: &Receiver<()>) -> bool {
        !matches!(told.recv_timeout(self.settings.deadline), Err(RecvTimeoutError::Timeout))
    }

    /// Whether an object may leave memory right now and is not lost for want of room in a queue: it stands elsewhere, or its disk
    /// would take it behind `ahead` bytes of others.
    pub(super) fn has_way_out(&self, ssd: &SsdTier, state: &State, slot: Slot, ahead: ByteCount) -> bool {
        self.has_copy(state, slot) || state.has_room_on(ssd, slot, ahead)
    }

    /// The SSD tier gave up a record.
    fn dropped(&self, slot: Slot, version: Version, reason: DroppedFor) {
        let doomed = {
            let mut state = self.lock();
            if state.tree.directory(slot).is_some() {
                // Not at once: a disk whose zone gave an error would fail again.
                self.unkept.lock().insert(slot);
                return;
            }
            // It was told late: what went with one disk may stand on another by now.
            let is_again = |record: SsdRecord| {
                record.version == version
                    && self.ssd.get().is_some_and(|ssd| ssd.has(&record.key, record.version))
            };
            if state.ssd_record(slot).is_some_and(is_again) {
                return;
            }
            let Some(object) = state.object_mut(slot).filter(|object| object.version == version) else {
                return;
            };
            object.marks.set(Marks::ON_SSD, object.marks.has(Marks::STORING));
            if object.phase != Phase::Sealed || !matches!(object.place, Place::Ssd) {
                return;
            }
            state.remove_object(slot, Departure::Gone, Some((self.now_ns(), Ending::Dropped(Some(reason)))))
        };
        self.bury(doomed);
    }

    /// Whether memory alone would do for a version: it is there, and nobody asked for it to be on disk.
    fn has_in_memory(&self, slot: Slot, version: Version) -> bool {
        let state = self.lock();
        let is_there = |object: &Object| object.version == version && object.is_resident();
        state.object(slot).is_some_and(is_there) && state.effective_policy(slot).record.durable != Some(true)
    }

    /// Whether a version is never to be evicted.
    fn is_version_pinned(&self, slot: Slot, version: Version) -> bool {
        let state = self.lock();
        state.object(slot).is_some_and(|object| object.version == version)
            && state.effective_policy(slot).is_hard_pinned()
    }
}

/// The datapath as the SSD tier sees it.
#[derive(Debug)]
pub(super) struct SsdOwner(pub(super) Weak<Datapath>);

impl Owner for SsdOwner {
    fn has_elsewhere(&self, number: u32, version: Version) -> bool {
        self.0.upgrade().is_some_and(|datapath| datapath.has_in_memory(Slot(number), version))
    }

    fn is_pinned(&self, number: u32, version: Version) -> bool {
        self.0.upgrade().is_some_and(|datapath| datapath.is_version_pinned(Slot(number), version))
    }

    fn must_stay(&self, key: &[u8]) -> bool {
        is_directory_key(key)
    }

    fn dropped(&self, number: u32, version: Version, reason: DroppedFor) {
        if let Some(datapath) = self.0.upgrade() {
            datapath.dropped(Slot(number), version, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{caller, unprivileged};
    use super::super::{Credentials, Located, OpenOptions};
    use super::*;

    /// A quota that is full of one object, beside another one that is on its way to a disk: its inode, and that of the directory.
    fn full_with_one_leaving() -> (tempfile::TempDir, Datapath, Ino, Ino) {
        let (base, datapath) = unprivileged();
        let place = datapath.make_directory(&caller(), Ino::ROOT, b"ns", 0o755).unwrap().ino;
        let make = |name: &[u8]| {
            let options = OpenOptions { write: true, ..OpenOptions::default() };
            let (_, opened) = datapath.create(&caller(), place, name, 0o644, options).unwrap();
            datapath.write(opened.handle, 0, &[1; 50_000]).unwrap();
            datapath.flush(&caller(), opened.handle).unwrap();
            datapath.release(opened.handle);
            opened.ino
        };
        let leaving = make(b"leaving");
        {
            let mut state = datapath.lock();
            let slot = state.tree.by_ino(leaving).unwrap();
            state.depart(slot);
            state.object_mut(slot).unwrap().marks.set(Marks::STORING, true);
        }
        make(b"other");
        // For one of them.
        datapath.set_attribute(place, b"user.tidefs.quota", b"52KiB", None).unwrap();
        assert_counts_one(&datapath, place);
        (base, datapath, leaving, place)
    }

    #[track_caller]
    fn assert_counts_one(datapath: &Datapath, place: Ino) {
        let state = datapath.lock();
        let folder = state.folder(state.tree.by_ino(place).unwrap()).unwrap();
        assert_eq!((folder.bytes, folder.objects.0), (ByteCount::kib(52), 1), "the other one leaves for it");
    }

    #[test]
    fn what_is_opened_on_its_way_to_a_disk_does_not_pass_a_quota_that_is_full_by_then() {
        let (_base, datapath, leaving, place) = full_with_one_leaving();
        let options = OpenOptions { read: true, ..OpenOptions::default() };
        let opened = datapath.open(&caller(), leaving, options).unwrap();
        assert_counts_one(&datapath, place);
        datapath.release(opened.handle);
    }

    #[test]
    fn what_is_renamed_on_its_way_to_a_disk_does_not_pass_a_quota_that_is_full_by_then() {
        let (_base, datapath, _, place) = full_with_one_leaving();
        datapath.rename(&caller(), (place, b"leaving"), (place, b"stays"), false).unwrap();
        assert_counts_one(&datapath, place);
    }

    #[test]
    fn what_a_client_maps_on_its_way_to_a_disk_does_not_pass_a_quota_that_is_full_by_then() {
        let (_base, datapath, _, place) = full_with_one_leaving();
        let session = datapath.begin_session(Credentials::of_request(0, 0, caller().thread), true);
        let is_here = |located| assert!(matches!(located, Located::Here { .. }), "{located:?}");
        datapath.locate(&session, &caller(), place, [&b"leaving"[..]].into_iter(), false, is_here);
        assert_counts_one(&datapath, place);
        datapath.end_session(&session);
    }
}
