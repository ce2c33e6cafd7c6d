//! At a start: what the SSD tier holds gets its names again, beside what memory held.
//!
//! Directories come first, before the mount: what is made below one must not take the place of what stands there. Objects
//! get their names while the mount is served already ([`super::naming`]).

use std::sync::Arc;

use hashbrown::HashMap;
use tidefs_engine::types::{DirectoryId, Version};

use super::burial::Doomed;
use super::naming::Naming;
use super::regroup::Changes;
use super::ssd::{SsdOwner, directory_key, is_directory_key, parse_directory_key};
use super::{Datapath, Error, Marks, Phase, Place, State};
use crate::namespace::{Name, Slot, permissions};
use crate::tier::eviction::Departure;
use crate::tier::memory::{DirectoryRecord, ObjectRecord, PolicyRecord, RecordError};
use crate::tier::ssd::{Indexed, Owner, RecoverySummary, SsdTier, Standing, Unnamed};

impl Datapath {
    /// Takes the SSD tier into use: names for the directories that it holds, then its threads. Called once, after
    /// [`Datapath::recover`] and before the mount. What it returns is to be passed to [`Datapath::name_objects`].
    ///
    /// # Errors
    /// [`Error::Io`] when a thread cannot be started.
    pub fn attach_ssd(self: &Arc<Self>, tier: SsdTier) -> Result<(RecoverySummary, Unnamed), Error> {
        let tier = Arc::new(tier);
        let mut state = self.lock();
        state.has_ssd = true;
        let Indexed { summary, last_version, early, unnamed } = tier.index(&is_directory_key);
        state.next_version = state.next_version.max(Version(last_version.0.saturating_add(1)));
        let mut has_unread = summary.lost_zones > 0;
        let (slots, mut unkept) = self.adopt_directories_of_ssd(&mut state, &tier, early, &mut has_unread);
        unkept.extend(state.directories_not_on(&tier));
        let (objects, first_new) = (summary.objects, state.next_directory);
        state.naming = Some(Naming::new(Arc::clone(&tier), slots, objects, has_unread, first_new));
        drop(state);
        tier.start(self.ssd_owner()).map_err(Error::io("start of the SSD tier's threads"))?;
        let _ = self.ssd.set(tier);
        self.loader.share_with_disk();
        let mut state = self.lock();
        unkept.into_iter().for_each(|slot| self.keep_directory(&mut state, slot));
        Ok((summary, unnamed))
    }

    /// What the SSD tier tells of records that it gives up.
    #[must_use]
    pub fn ssd_owner(self: &Arc<Self>) -> Arc<dyn Owner> {
        self.know_itself();
        Arc::new(SsdOwner(Arc::downgrade(self)))
    }

    /// Takes an SSD tier that runs and holds nothing yet into use while the mount is served: from the return on what leaves
    /// memory goes to its disks. Called once, by a daemon that had none.
    ///
    /// The tree is looked at once, under the lock, as a listing of the whole mount does.
    pub fn attach_new_ssd(&self, tier: Arc<SsdTier>) {
        let mut state = self.lock();
        state.has_ssd = true;
        // Whoever makes a directory holds the lock, and from here on keeps it on disk by itself. A second tier would be a
        // bug of the composition root; the first one stays.
        let _ = self.ssd.set(tier);
        self.loader.share_with_disk();
        let directories = state.directory_slots();
        directories.into_values().for_each(|slot| self.keep_directory(&mut state, slot));
    }

    /// Hangs the directories of the SSD tier into the tree. Returns where each directory is, and those that are in memory otherwise
    /// than on disk: the last life did not come to it, or another daemon wrote there. `has_unread`: whether there may be records of
    /// directories that are not found, and from then on, those that this daemon cannot read included.
    fn adopt_directories_of_ssd(
        &self,
        state: &mut State,
        tier: &SsdTier,
        found: Vec<Standing>,
        has_unread: &mut bool,
    ) -> (HashMap<DirectoryId, Slot>, Vec<Slot>) {
        let mut slots = state.directory_slots();
        let (mut outdated, mut left, mut faulty) = (Vec::new(), 0_u64, 0_u64);
        let decode = |standing: Standing| {
            let key = &standing.record.key;
            match DirectoryRecord::decode(&standing.record.meta) {
                Ok(record) if directory_key(record.id) == *key => return Some((record, standing)),
                Err(RecordError::Format { .. }) => {
                    match parse_directory_key(key).and_then(|id| slots.get(&id)) {
                        // Of the root more may be set there than memory knows.
                        Some(&slot) if slot != Slot::ROOT => outdated.push(slot),
                        Some(_) | None => left += 1,
                    }
                }
                Ok(_) | Err(_) => {
                    faulty += 1;
                    tier.remove(key, standing.record.version);
                }
            }
            None
        };
        let found: Vec<(DirectoryRecord, Standing)> = found.into_iter().filter_map(decode).collect();
        if left > 0 {
            *has_unread = true;
            tracing::warn!(
                directories = left,
                "directories on disk are of a format that this daemon does not know, and are left out with what is below them: use \
                 the daemon that wrote them"
            );
        }
        if faulty > 0 {
            tracing::warn!(
                directories = faulty,
                "records on disk were not those of their directories, and are removed"
            );
        }
        let is_new = |(record, _): &&(DirectoryRecord, Standing)| !slots.contains_key(&record.id);
        let new = found.iter().filter(is_new).map(|(record, _)| record.clone()).collect();
        let known = slots.clone();
        self.adopt_policy_of_root(state, &found);
        state.adopt_directories(new, &mut slots);
        for (record, standing) in found {
            match slots.get(&record.id) {
                Some(slot) => {
                    tier.own(&standing, slot.0);
                    let now = state.directory_record(*slot);
                    // Entries come and go without a word on disk.
                    let (mtime_ns, ctime_ns) = (now.mtime_ns, now.ctime_ns);
                    let is_same = DirectoryRecord { mtime_ns, ctime_ns, ..record } == now;
                    if !is_same {
                        outdated.push(*slot);
                    }
                }
                // What it is below may be in a zone that a later start can read.
                None if *has_unread => {}
                None => tier.remove(&standing.record.key, standing.record.version),
            }
        }
        for slot in slots.iter().filter(|(id, _)| !known.contains_key(*id)).map(|(_, slot)| slot) {
            // Directories that memory did not have are kept there from now on.
            if let Err(error) = self.tier.put_directory(&state.directory_record(*slot)) {
                tracing::warn!(%error, "a directory is not kept in memory");
            }
        }
        (slots, outdated)
    }

    /// Takes from disk what was set on the root, when memory was lost. Its mode and owner are the configuration's then: nothing tells
    /// whether those on disk are more than that of an earlier life.
    fn adopt_policy_of_root(&self, state: &mut State, found: &[(DirectoryRecord, Standing)]) {
        let root = found.iter().find(|(record, _)| record.id == DirectoryId::ROOT);
        let is_in_memory = || !matches!(self.tier.open_directory(DirectoryId::ROOT), Ok(None));
        if let Some((root, _)) = root.filter(|(record, _)| record.policy != PolicyRecord::default())
            && !is_in_memory()
        {
            let changes = Changes::between(&PolicyRecord::default(), &root.policy);
            state.folders.set_policy(Slot::ROOT, root.policy.clone());
            if changes.is_any() {
                // What memory kept since it was lost has its rank and its time without that policy.
                state.regroup_at_once(Slot::ROOT, changes);
            }
        }
    }
}

impl State {
    pub(super) fn directory_slots(&self) -> HashMap<DirectoryId, Slot> {
        let id_of = |slot: Slot| Some((self.tree.directory(slot)?.id, slot));
        self.subtree(Slot::ROOT).into_iter().chain([Slot::ROOT]).filter_map(id_of).collect()
    }

    fn directories_not_on(&self, tier: &SsdTier) -> Vec<Slot> {
        let slots = self.directory_slots();
        let is_missing = |(id, _): &(DirectoryId, Slot)| tier.holds(&directory_key(*id)).is_none();
        slots.into_iter().filter(is_missing).map(|(_, slot)| slot).collect()
    }

    /// Gives an object on SSD its name. Returns where it stands; `None` when it is not wanted any more.
    pub(super) fn adopt_from_ssd(
        &mut self,
        parent: Slot,
        record: &ObjectRecord,
        doomed: &mut Vec<Doomed>,
    ) -> Option<Slot> {
        let name = Name::new(&record.name).ok()?;
        self.next_version = self.next_version.max(Version(record.version.0.saturating_add(1)));
        if let Some(slot) = self.tree.child(parent, name.as_bytes()) {
            if self.object(slot)?.phase != Phase::Sealed {
                // It is being replaced.
                return None;
            }
            let now = self.tree.node(slot).attributes;
            let is_same = (now.ctime_ns, now.mtime_ns) == (record.ctime_ns, record.mtime_ns)
                && (now.mode, now.uid, now.gid) == (permissions(record.mode), record.uid, record.gid);
            let object = self.object_mut(slot)?;
            if object.version == record.version {
                if object.marks.has(Marks::DECORATED) {
                    // The daemon ended before the record was gone.
                    return None;
                }
                // Its attributes may have changed in this life too.
                let is_stale = !is_same || object.marks.has(Marks::STALE_ON_SSD);
                object.marks.set(Marks::ON_SSD, true);
                object.marks.set(Marks::STALE_ON_SSD, is_stale);
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
        }
        // Every load compares the checksum.
        self.mark_unverified(slot, false);
        self.renew_expiry(slot);
        self.watch_pin(slot);
        Some(slot)
    }
}
