//! After a restart: the tables are built again from what the memory tier holds.
//!
//! Invariants
//! - Of several versions under one name the latest stays; what has no directory any more goes.
//! - New versions and directories have larger numbers than all that an earlier life may have given out.
//! - What was closed, and whose writer may live, waits for [`Datapath::settle`].

use hashbrown::HashMap;
use tidefs_engine::types::{ByteCount, DirectoryId, Version};

use super::flush::PROVISIONAL;
use super::room::footprint;
use super::settle::Unsettled;
use super::{Datapath, Error, Marks, Object, Phase, Place, State};
use crate::namespace::{Attributes, Body, Directory, Name, Slot, permissions};
use crate::tier::memory::{self, DECORATED, DirectoryRecord, ObjectRecord, SOFT_COPY};

/// Versions and directories begin above this many for each second since 1970, so that those of a life whose memory is
/// gone and whose disk was away are never given out twice.
const NUMBERS_PER_SECOND_SHIFT: u32 = 20;

/// What a start found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Objects that are served again.
    pub objects: u64,
    /// Their bytes.
    pub bytes: ByteCount,
    /// Directories.
    pub directories: u64,
    /// Objects that were not sealed, older versions, or without their directory: removed.
    pub removed: u64,
    /// Objects or directories whose records could not be read: removed.
    pub corrupt: u64,
}

/// A recovered object that has its name but no place in the order of eviction yet: that needs all of them.
#[derive(Debug)]
pub(super) struct Adopted {
    /// When it was last used, or sealed, in nanoseconds since 1970.
    used_at_ns: i64,
    version: Version,
    predecessor: Option<Version>,
    slot: Slot,
    is_soft: bool,
}

/// A start in progress. What is kept for an object until the end is small: there are millions.
#[derive(Debug, Default)]
pub(super) struct Takeover {
    /// Where each directory is, once all were told.
    pub(super) slots: HashMap<DirectoryId, Slot>,
    pub(super) adopted: Vec<Adopted>,
    pub(super) unwanted: Vec<Place>,
}

impl Datapath {
    /// Takes over everything that an earlier daemon sealed in this memory tier. Called once, before the disks are in use. What it
    /// returns is to be passed to [`Datapath::settle`].
    ///
    /// # Errors
    /// [`Error::Io`] when the tier cannot be listed.
    pub fn recover(&self) -> Result<Unsettled, Error> {
        let mut state = self.lock();
        state.number_from(self.now_ns());
        let mut directories = Vec::new();
        let mut unfinished = Vec::new();
        let mut takeover = Takeover::default();
        let mut take_over = |state: &mut State, directories: &mut Vec<_>, place, record: ObjectRecord| {
            // The tier tells all directories before the first object.
            state.adopt_directories(std::mem::take(directories), &mut takeover.slots);
            state.take_over(&mut takeover, place, &record);
        };
        let summary = self.tier.recover(&mut |found| match found {
            memory::Recovered::Directory(record) => directories.push(record),
            memory::Recovered::Solo { segment, record } if record.sealed_at_ns != PROVISIONAL => {
                take_over(&mut state, &mut directories, Place::Solo(segment), record);
            }
            memory::Recovered::Solo { segment, record }
            | memory::Recovered::Unfinished { segment, record } => unfinished.push((segment, record)),
            memory::Recovered::Packed { extent, record } => {
                take_over(&mut state, &mut directories, Place::Packed(extent), record);
            }
        })?;
        state.adopt_directories(directories, &mut takeover.slots);
        let mut recovered = Recovered {
            directories: takeover.slots.len() as u64 - 1,
            removed: summary.unsealed + summary.superseded + takeover.unwanted.len() as u64,
            corrupt: summary.corrupt,
            ..Recovered::default()
        };
        state.order_adopted(std::mem::take(&mut takeover.adopted), &mut recovered);
        drop(state);
        takeover.unwanted.drain(..).for_each(|place| self.free_place(place));
        Ok(Unsettled { takeover, unfinished, recovered })
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

    /// Gives one object its name, or notes that it is not wanted.
    pub(super) fn take_over(&mut self, takeover: &mut Takeover, place: Place, record: &ObjectRecord) {
        self.next_version = self.next_version.max(Version(record.version.0 + 1));
        let target = takeover.slots.get(&record.parent).copied().zip(Name::new(&record.name).ok());
        let Some((parent, name)) = target else {
            takeover.unwanted.push(place);
            return;
        };
        match self.adopt_object(parent, name, place, record) {
            Ok((slot, older)) => {
                takeover.unwanted.extend(older);
                takeover.adopted.push(Adopted {
                    used_at_ns: record.atime_ns.max(record.sealed_at_ns),
                    version: record.version,
                    predecessor: record.predecessor,
                    slot,
                    is_soft: record.mode & SOFT_COPY != 0,
                });
            }
            Err(older) => takeover.unwanted.push(older),
        }
    }

    /// Hangs recovered directories into the tree, below those that are there, with their domains, and notes where each is;
    /// those without a parent are left out.
    pub(super) fn adopt_directories(
        &mut self,
        records: Vec<DirectoryRecord>,
        slots: &mut HashMap<DirectoryId, Slot>,
    ) {
        if records.is_empty() && !slots.is_empty() {
            return;
        }
        slots.insert(DirectoryId::ROOT, Slot::ROOT);
        let mut waiting: HashMap<DirectoryId, Vec<DirectoryRecord>> = HashMap::new();
        for record in records {
            self.next_directory = self.next_directory.max(DirectoryId(record.id.0.saturating_add(1)));
            if record.id == DirectoryId::ROOT {
                self.tree.node_mut(Slot::ROOT).attributes = attributes_of(&record);
                self.folders.set_policy(Slot::ROOT, record.policy);
            } else {
                waiting.entry(record.parent).or_default().push(record);
            }
        }
        let mut ready: Vec<_> = waiting.keys().copied().filter(|parent| slots.contains_key(parent)).collect();
        while let Some(parent) = ready.pop() {
            for record in waiting.remove(&parent).unwrap_or_default() {
                let (Ok(name), Some(&parent)) = (Name::new(&record.name), slots.get(&parent)) else {
                    continue;
                };
                let body = Body::Directory(Box::new(Directory::new(record.id)));
                let slot = self.tree.make(attributes_of(&record), body);
                if self.tree.attach(slot, parent, name).is_err() {
                    self.tree.free(slot);
                    continue;
                }
                self.enter_folder(slot, record.policy, parent);
                slots.insert(record.id, slot);
                ready.push(record.id);
            }
        }
        let lost: usize = waiting.values().map(Vec::len).sum();
        if lost > 0 {
            tracing::warn!(directories = lost, "directories without a parent were found and are not shown");
        }
        self.renew_domains();
    }

    /// Hangs a recovered object into the tree. Returns where, and the bytes of an older version that stood there.
    ///
    /// # Errors
    /// The place of the object itself, when a later version or a directory has its name.
    pub(super) fn adopt_object(
        &mut self,
        parent: Slot,
        name: Name,
        place: Place,
        record: &ObjectRecord,
    ) -> Result<(Slot, Option<Place>), Place> {
        let attributes = Attributes {
            mode: permissions(record.mode),
            uid: record.uid,
            gid: record.gid,
            atime_ns: record.atime_ns,
            mtime_ns: record.mtime_ns,
            ctime_ns: record.ctime_ns,
        };
        let mut object = Object::writing(place);
        object.open = None;
        object.phase = Phase::Sealed;
        object.size = record.size;
        object.version = record.version;
        object.sealed_at_ns = record.sealed_at_ns;
        object.marks.set(Marks::FINAL, true);
        object.marks.set(Marks::ADOPTED, true);
        object.marks.set(Marks::DECORATED, record.mode & DECORATED != 0);
        if record.policy != memory::PolicyRecord::default() {
            let mut policy = record.policy.clone();
            if matches!(policy.pin, Some(memory::Pin::Soft { ttl_s: Some(_) })) {
                // An earlier daemon kept only when the attributes changed last.
                policy.pinned_at_ns.get_or_insert(record.ctime_ns);
            }
            object.open_mut().policy = policy;
        }
        if let Some(slot) = self.tree.child(parent, name.as_bytes()) {
            return match self.object_mut(slot) {
                Some(older) if older.version < object.version => {
                    let older = std::mem::replace(older, object);
                    self.unverified.part_from(&older);
                    self.mark_unverified(slot, record.checksum.is_some());
                    self.tree.node_mut(slot).attributes = attributes;
                    Ok((slot, Some(older.place)))
                }
                _ => Err(object.place),
            };
        }
        let slot = self.tree.make(attributes, Body::File(object));
        self.tree.attach(slot, parent, name).expect("the name is free and its directory was just found");
        self.mark_unverified(slot, record.checksum.is_some());
        Ok((slot, None))
    }

    /// Enters adopted objects into the orders of eviction and the accounts: coldest first, so that the order is as it
    /// was.
    pub(super) fn order_adopted(&mut self, mut adopted: Vec<Adopted>, recovered: &mut Recovered) {
        adopted.sort_unstable_by_key(|one| (one.used_at_ns, one.version));
        let mut by_version: HashMap<Version, Slot> = HashMap::with_capacity(adopted.len());
        for one in adopted {
            let slot = one.slot;
            let is_newest = |object: &&Object| object.version == one.version;
            let Some(size) = self.object(slot).filter(is_newest).map(|object| object.size) else { continue };
            let Some(key) = self.key_of(slot) else { continue };
            let parent = self.tree.node(slot).parent;
            let predecessor = one.predecessor.and_then(|version| by_version.get(&version).copied());
            by_version.insert(one.version, slot);
            if one.is_soft {
                self.soften(slot);
            }
            self.count(parent, size);
            self.enter_order(slot, key, predecessor, footprint(size));
            self.folders.learn_size(parent, size);
            self.watch_pin(slot);
            self.renew_expiry(slot);
            recovered.objects += 1;
            recovered.bytes = recovered.bytes.saturating_add(size);
        }
    }
}

fn attributes_of(record: &DirectoryRecord) -> Attributes {
    Attributes {
        mode: permissions(record.mode),
        uid: record.uid,
        gid: record.gid,
        atime_ns: record.mtime_ns,
        mtime_ns: record.mtime_ns,
        ctime_ns: record.ctime_ns,
    }
}
