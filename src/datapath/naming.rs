//! Objects on SSD get their names back while the mount is served already.
//!
//! The index of the SSD tier is complete before the mount, so it is known of each key whether a disk holds it; what is
//! not known until the disk was read is an object's attributes. Names appear in the order of the disks' zones, and at once
//! when one is looked up.
//!
//! Invariants
//! - What is written, removed or renamed meanwhile wins over the record on disk: whatever takes a name, or leaves it,
//!   removes the record under the same lock under which names are given back, and before anybody is told.
//! - A directory of an earlier life is not removed before all names below it are known.
//! - A record whose format this daemon does not know is left to the one that wrote it, unless its name is taken.
//!
//! Limits: a listing shows what has its name. What an application did not look up is told of zone by zone.
//! Threads: [`Datapath::name_objects`] has one of its own; [`Datapath::name_one`] waits for the disk, on a load thread.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use tidefs_engine::types::{DirectoryId, ObjectCount};

use super::burial::Doomed;
use super::ssd::{is_directory_key, object_key, parse_object_key};
use super::{Datapath, Error, State};
use crate::namespace::{Directory, Ino, Name, Slot};
use crate::tier::memory::{ObjectRecord, RecordError};
use crate::tier::ssd::{FoundRecord, SsdTier, Standing, Unnamed};

/// How often what waits for all names looks whether it should end.
const LOOK: Duration = Duration::from_millis(20);

/// The names that are still to be given back.
#[derive(Debug)]
pub(super) struct Naming {
    tier: Arc<SsdTier>,
    /// Where the directories of earlier lives were at the start.
    slots: HashMap<DirectoryId, Slot>,
    /// Directories from this one on are of this life, and nothing is on disk below them but what is known.
    first_new: DirectoryId,
    named: u64,
    objects: u64,
    /// Whether there are zones or records that the start could not read: the record of a directory may be among them.
    has_unread: bool,
    /// Objects that are left to the daemon that wrote them.
    left: u64,
    /// Records that no daemon should have written.
    faulty: u64,
}

impl Naming {
    pub(super) fn new(
        tier: Arc<SsdTier>,
        slots: HashMap<DirectoryId, Slot>,
        objects: u64,
        has_unread: bool,
        first_new: DirectoryId,
    ) -> Self {
        Self { tier, slots, first_new, named: 0, objects, has_unread, left: 0, faulty: 0 }
    }
}

impl State {
    /// Whether a disk holds an object under a name that stands for nothing yet.
    pub(super) fn is_unnamed(&self, parent: DirectoryId, name: &[u8]) -> bool {
        let holds = |naming: &Naming| naming.tier.holds(&object_key(parent, name)).is_some();
        self.naming.as_ref().is_some_and(holds)
    }

    /// Whether there may be objects below a directory that have no name yet.
    pub(super) fn may_hold_unnamed(&self, directory: &Directory) -> bool {
        self.naming.as_ref().is_some_and(|naming| directory.id < naming.first_new)
    }

    /// Gives a node without a name one. What a disk holds under it and nobody was told of is replaced.
    ///
    /// # Errors
    /// Something has that name, or its directory was removed.
    pub(super) fn take_name(&mut self, slot: Slot, parent: Slot, name: Name) -> Result<(), Error> {
        let tier = self.naming.as_ref().map(|naming| &naming.tier).or(self.unread_on_ssd.as_ref());
        if let Some(tier) = tier
            && self.tree.child(parent, name.as_bytes()).is_none()
            && let Some(directory) = self.tree.directory(parent)
        {
            let key = object_key(directory.id, name.as_bytes());
            if let Some(version) = tier.holds(&key) {
                tier.remove(&key, version);
            }
        }
        Ok(self.tree.attach(slot, parent, name)?)
    }

    /// The same where nothing has the name and its directory was not removed: who calls this has seen to both.
    pub(super) fn take_free_name(&mut self, slot: Slot, parent: Slot, name: Name) {
        self.take_name(slot, parent, name).expect("the name is free, in a directory that was not removed");
    }

    /// A node leaves its name for another one, which nothing has by now, below a directory that was not removed. A directory is
    /// not moved below itself.
    pub(super) fn move_name(&mut self, slot: Slot, parent: Slot, name: Name) {
        self.leave_name(slot);
        self.take_free_name(slot, parent, name);
    }

    /// Takes the name from a node. What a disk holds of it goes too, whether or not that was known.
    pub(super) fn leave_name(&mut self, slot: Slot) {
        if let Some(naming) = &self.naming
            && let Some(object) = self.object(slot)
            && let Some(key) = self.ssd_key(slot)
        {
            naming.tier.remove(&key, object.version);
        }
        self.tree.detach(slot);
        self.part_from_begun(slot);
        self.clear_untold(slot);
        self.tell_clients(slot);
    }

    /// Gives an object on disk its name, unless it was removed or replaced meanwhile. Returns whether it is left to the daemon
    /// that wrote it.
    fn give_name(&mut self, standing: &Standing, doomed: &mut Vec<Doomed>) -> bool {
        let Some(naming) = &mut self.naming else { return false };
        let tier = Arc::clone(&naming.tier);
        if !tier.stands(standing) || is_directory_key(&standing.record.key) {
            // A directory that is not known is left to a start that can read what this one could not.
            return false;
        }
        let record = match ObjectRecord::decode(&standing.record.meta) {
            Ok(record) if is_record_of(standing, &record) => Some(record),
            Err(RecordError::Format { .. }) => {
                let is_taken = parse_object_key(&standing.record.key).is_some_and(|(id, name)| {
                    let slot = naming.slots.get(&id).copied();
                    let is_it = |slot: &Slot| self.tree.directory(*slot).is_some_and(|found| found.id == id);
                    slot.filter(is_it).is_some_and(|slot| self.tree.child(slot, name).is_some())
                });
                if !is_taken {
                    return true;
                }
                None
            }
            Ok(_) | Err(_) => {
                naming.faulty += 1;
                None
            }
        };
        let is_known = |record: &ObjectRecord| naming.slots.contains_key(&record.parent);
        if naming.has_unread && record.as_ref().is_some_and(|record| !is_known(record)) {
            // A later start may be able to read what its directory is.
            return false;
        }
        let parent = record.as_ref().and_then(|record| {
            let slot = *naming.slots.get(&record.parent)?;
            // It may be gone, and its slot be another node's.
            let is_it = self.tree.directory(slot).is_some_and(|directory| directory.id == record.parent);
            (is_it && self.tree.is_living_directory(slot)).then_some(slot)
        });
        let slot =
            record.zip(parent).and_then(|(record, parent)| self.adopt_from_ssd(parent, &record, doomed));
        match slot {
            Some(slot) => {
                tier.own(standing, slot.0);
            }
            None => tier.remove(&standing.record.key, standing.record.version),
        }
        false
    }

    /// All objects on disk have their names, but for those that are left to another daemon.
    fn end_naming(&mut self) {
        let Some(Naming { tier, left, faulty, .. }) = self.naming.take() else { return };
        if left > 0 {
            tracing::warn!(
                objects = left,
                "objects on disk are of a format that this daemon does not know, and are misses: use the daemon that wrote them"
            );
            self.unread_on_ssd = Some(tier);
        }
        if faulty > 0 {
            tracing::warn!(
                objects = faulty,
                "records on disk were not those of their objects, and are removed"
            );
        }
    }
}

/// Whether what is kept beside a record is of its object: by another name it would not be found.
fn is_record_of(standing: &Standing, record: &ObjectRecord) -> bool {
    let FoundRecord { key, version, length, .. } = &standing.record;
    (record.version, record.size) == (*version, *length) && object_key(record.parent, &record.name) == *key
}

impl Datapath {
    /// Gives all objects on disk their names. Returns early when `is_stopping` says so.
    pub fn name_objects(&self, mut unnamed: Unnamed, is_stopping: impl Fn() -> bool) {
        let Some(tier) = self.ssd.get() else { return };
        let started = self.clock.monotonic();
        while !is_stopping() {
            let standing = tier.next_unnamed(&mut unnamed);
            let mut doomed = Vec::new();
            {
                let mut state = self.lock();
                let told = standing.iter().flatten();
                let left = told.filter(|standing| state.give_name(standing, &mut doomed)).count();
                match &standing {
                    None => state.end_naming(),
                    Some(standing) => {
                        if let Some(naming) = &mut state.naming {
                            naming.named += standing.len() as u64;
                            naming.left += left as u64;
                        }
                    }
                }
            }
            doomed.into_iter().for_each(|doomed| self.bury(doomed));
            if standing.is_none() {
                let seconds = self.clock.monotonic().saturating_sub(started).as_secs_f64();
                tracing::info!(objects = unnamed.objects(), seconds, "all objects on disk have their names");
                return;
            }
        }
    }

    /// Gives one object on disk its name, before its turn. Waits for the disk. What cannot be read is a miss for now.
    pub fn name_one(&self, parent: Ino, name: &[u8]) {
        let key = {
            let state = self.lock();
            let id = state.slot_of(parent).and_then(|slot| state.directory_id(slot));
            let Ok(id) = id else { return };
            object_key(id, name)
        };
        let Some(Ok(standing)) = self.ssd.get().map(|tier| tier.describe(&key)) else { return };
        let mut doomed = Vec::new();
        self.lock().give_name(&standing, &mut doomed);
        doomed.into_iter().for_each(|doomed| self.bury(doomed));
    }

    /// Names given back, and those that there were at the start, while not all are.
    #[must_use]
    pub fn naming(&self) -> Option<(ObjectCount, ObjectCount)> {
        let state = self.lock();
        state.naming.as_ref().map(|naming| (ObjectCount(naming.named), ObjectCount(naming.objects)))
    }

    /// Whether it is not known yet what is in a directory.
    #[must_use]
    pub fn may_hold_unnamed(&self, parent: Ino, name: &[u8]) -> bool {
        let state = self.lock();
        let child = state.tree.by_ino(parent).and_then(|parent| state.tree.child(parent, name));
        let directory = child.and_then(|child| state.tree.directory(child));
        directory.is_some_and(|directory| state.may_hold_unnamed(directory))
    }

    /// Waits until all objects on disk have their names, at most as long as a request may wait.
    pub fn wait_for_names(&self) {
        let started = self.clock.monotonic();
        while self.naming().is_some()
            && self.clock.monotonic().saturating_sub(started) < self.settings.deadline
        {
            std::thread::sleep(LOOK);
        }
    }
}
