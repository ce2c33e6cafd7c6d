//! At a start: what the SSD tier holds gets its names again, beside what memory held.

use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use tidefs_engine::types::{DirectoryId, Version};

use super::burial::Doomed;
use super::ssd::SsdOwner;
use super::{Datapath, Error, Marks, Phase, Place, State};
use crate::namespace::{Name, Slot, permissions};
use crate::tier::eviction::Departure;
use crate::tier::memory::{DirectoryRecord, ObjectRecord};
use crate::tier::ssd::{FoundRecord, RecoverySummary, SsdTier};

/// Versions and directories begin above this many for each second since 1970, so that those of a life whose memory is
/// gone and whose disk was away are never given out twice.
const NUMBERS_PER_SECOND_SHIFT: u32 = 20;

/// A start in progress.
#[derive(Default)]
struct Adoption {
    slots: HashMap<DirectoryId, Slot>,
    /// Objects whose directory was not met yet.
    waiting: Vec<(ObjectRecord, FoundRecord)>,
    directories: Vec<(DirectoryRecord, FoundRecord)>,
    doomed: Vec<Doomed>,
}

impl Datapath {
    /// Takes the SSD tier into use: names for what it holds, then its threads. Called once, after
    /// [`Datapath::recover`] and before the mount.
    ///
    /// # Errors
    /// [`Error::Io`] when a thread cannot be started.
    pub fn attach_ssd(self: &Arc<Self>, tier: SsdTier) -> Result<RecoverySummary, Error> {
        let tier = Arc::new(tier);
        self.know_itself();
        let mut state = self.lock();
        state.number_from(self.now_ns());
        let summary = self.adopt_directories_of_ssd(&mut state, &tier);
        let missing = state.directories_not_on(&tier);
        drop(state);
        let owner = SsdOwner(Weak::clone(self.this.get().unwrap_or(&Weak::new())));
        tier.start(Arc::new(owner)).map_err(Error::io("start of the SSD tier's threads"))?;
        let _ = self.ssd.set(tier);
        let mut state = self.lock();
        missing.into_iter().for_each(|slot| self.keep_directory(&mut state, slot));
        Ok(summary)
    }

    /// Directories come first, from a pass of their own; then objects.
    fn adopt_directories_of_ssd(&self, state: &mut State, tier: &SsdTier) -> RecoverySummary {
        let mut adoption = Adoption { slots: state.directory_slots(), ..Adoption::default() };
        let mut unwanted: Vec<(Vec<u8>, Version)> = Vec::new();
        let mut summary = tier.recover(&mut |found| {
            if let Ok(record) = DirectoryRecord::decode(&found.meta) {
                let slot = adoption.slots.get(&record.id).map(|slot| slot.0);
                if slot.is_none() {
                    adoption.directories.push((record, found));
                }
                return Some(slot.unwrap_or_default());
            }
            let record = ObjectRecord::decode(&found.meta).ok()?;
            match adoption.slots.get(&record.parent).copied() {
                Some(parent) => {
                    state.adopt_from_ssd(parent, &record, &mut adoption.doomed).map(|slot| slot.0)
                }
                None => {
                    adoption.waiting.push((record, found));
                    Some(0)
                }
            }
        });
        let directories = std::mem::take(&mut adoption.directories);
        let records = directories.iter().map(|(record, _)| record.clone()).collect();
        state.adopt_directories(records, &mut adoption.slots);
        for (record, found) in directories {
            match adoption.slots.get(&record.id) {
                Some(slot) => tier.set_owner(&found.key, found.version, slot.0),
                None => unwanted.push((found.key, found.version)),
            }
            summary.objects = summary.objects.saturating_sub(1);
        }
        for (record, found) in std::mem::take(&mut adoption.waiting) {
            let parent = adoption.slots.get(&record.parent).copied();
            let slot = parent.and_then(|parent| state.adopt_from_ssd(parent, &record, &mut adoption.doomed));
            match slot {
                Some(slot) => tier.set_owner(&found.key, found.version, slot.0),
                None => unwanted.push((found.key, found.version)),
            }
        }
        for (key, version) in unwanted {
            tier.remove(&key, version);
        }
        for slot in adoption.slots.values() {
            // Directories that memory did not have are kept there from now on.
            if state.tree.directory(*slot).is_some()
                && let Err(error) = self.tier.put_directory(&state.directory_record(*slot))
            {
                tracing::warn!(%error, "a directory is not kept in memory");
            }
        }
        adoption.doomed.into_iter().for_each(|doomed| self.bury(doomed));
        summary
    }
}

impl State {
    /// Gives out versions and directories above everything that an earlier life may have given out.
    fn number_from(&mut self, now_ns: i64) {
        let seconds = u64::try_from(now_ns / 1_000_000_000).unwrap_or(0);
        let least = seconds << NUMBERS_PER_SECOND_SHIFT;
        self.next_version = self.next_version.max(Version(least));
        self.next_directory = self.next_directory.max(DirectoryId(least));
    }

    fn directory_slots(&self) -> HashMap<DirectoryId, Slot> {
        let id_of = |slot: Slot| Some((self.tree.directory(slot)?.id, slot));
        self.subtree(Slot::ROOT).into_iter().chain([Slot::ROOT]).filter_map(id_of).collect()
    }

    fn directories_not_on(&self, tier: &SsdTier) -> Vec<Slot> {
        let slots = self.directory_slots();
        let is_missing =
            |(id, _): &(DirectoryId, Slot)| tier.holds(&super::ssd::directory_key(*id)).is_none();
        slots.into_iter().filter(is_missing).map(|(_, slot)| slot).collect()
    }

    /// Gives an object on SSD its name. Returns where it stands; `None` when it is not wanted any more.
    fn adopt_from_ssd(
        &mut self,
        parent: Slot,
        record: &ObjectRecord,
        doomed: &mut Vec<Doomed>,
    ) -> Option<Slot> {
        let name = Name::new(&record.name).ok()?;
        self.next_version = self.next_version.max(Version(record.version.0 + 1));
        if let Some(slot) = self.tree.child(parent, name.as_bytes()) {
            let now = self.tree.node(slot).attributes;
            let is_same = (now.ctime_ns, now.mtime_ns) == (record.ctime_ns, record.mtime_ns)
                && (now.mode, now.uid, now.gid) == (permissions(record.mode), record.uid, record.gid);
            let object = self.object_mut(slot)?;
            if object.version == record.version && object.phase == Phase::Sealed {
                object.marks.set(Marks::ON_SSD, true);
                object.marks.set(Marks::STALE_ON_SSD, !is_same);
                return Some(slot);
            }
            if object.version > record.version {
                return None;
            }
            doomed.push(self.remove_object(slot, Departure::Gone, None));
        }
        let (slot, _) = self.adopt_object(parent, name, Place::Ssd, record).ok()?;
        if let Some(object) = self.object_mut(slot) {
            object.marks.set(Marks::ON_SSD, true);
            // Every load compares the checksum.
            object.marks.set(Marks::UNVERIFIED, false);
        }
        self.renew_expiry(slot);
        self.watch_pin(slot);
        Some(slot)
    }
}
