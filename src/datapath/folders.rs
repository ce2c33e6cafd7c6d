//! What the cache keeps of each directory: its policy, what is stored below it, and how large its objects are.
//!
//! Invariant: bytes and objects that are counted of a directory are counted of each above it, too, in the same step.
//!
//! Limits: [`DEPTH_MAX`] levels of directories: each is gone through under the lock for what changes below it.

mod policies;
mod quotas;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::{HashMap, HashSet};
use tidefs_engine::types::{ByteCount, ObjectCount};

pub(super) use quotas::QuotaInTheWay;

use super::domains::DomainId;
use super::guess::{ExpectedSize, SizeGuess};
use super::{Error, Object, State};
use crate::cluster::PATH_MAX;
use crate::namespace::{Cookie, NAME_LENGTH_MAX, Name, Slot, Tree};
use crate::tier::memory::PolicyRecord;

/// Levels of directories below the root at most. A path of 4096 bytes, the longest that the kernel takes, names fewer; and
/// what is done under the lock for each level stays below some tens of microseconds.
pub(super) const DEPTH_MAX: u32 = 2048;
/// Bytes of the path of a directory that is made on a member of a cluster, at most: every name in it is a path of which members
/// tell each other.
pub(super) const CLUSTER_PATH_MAX: usize = PATH_MAX - 1 - NAME_LENGTH_MAX;

/// One directory.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    /// Policy set on the directory itself.
    pub(super) policy: PolicyRecord,
    /// Levels of directories that were below it at most, since there was none.
    pub(super) height: u32,
    /// Who orders the eviction of the objects directly in it.
    pub(super) domain: DomainId,
    /// Who still orders those that do not have its turn.
    pub(super) former: Option<DomainId>,
    /// [`Marks::TURN`](super::Marks::TURN) of the objects that `domain` orders.
    pub(super) turn: bool,
    /// Bytes of sealed objects below it, at any depth, in whole pages.
    pub(super) bytes: ByteCount,
    /// Bytes of unfinished files below it, at any depth, in whole pages.
    pub(super) unsealed: ByteCount,
    /// Those of them that were reserved on a guess and are not written, as far as is known.
    pub(super) guessed: ByteCount,
    /// Sealed objects below it, at any depth.
    pub(super) objects: ObjectCount,
    /// How large the next object written here is expected to be.
    pub(super) guess: SizeGuess,
    /// Opens to read below it, counted in top-level directories.
    pub(super) hits: u64,
    /// Look-ups that found nothing below it, counted in top-level directories.
    pub(super) misses: u64,
    /// Objects evicted below it, counted in top-level directories.
    pub(super) evicted: u64,
}

impl Folder {
    /// Counts so many bytes more of unfinished files, `guessed` of them on a guess.
    pub(super) fn add_unsealed(&mut self, bytes: ByteCount, guessed: ByteCount) {
        self.unsealed = self.unsealed.saturating_add(bytes);
        self.guessed = self.guessed.saturating_add(guessed);
    }

    /// Counts so many less.
    pub(super) fn take_unsealed(&mut self, bytes: ByteCount, guessed: ByteCount) {
        self.unsealed = self.unsealed.saturating_sub(bytes);
        self.guessed = self.guessed.saturating_sub(guessed);
    }

    /// Whether the objects here compete among themselves.
    pub(super) fn wants_domain(&self) -> bool {
        self.policy.quota.is_some() || self.policy.floor.is_some() || self.policy.eviction.is_some()
    }
}

/// All directories.
#[derive(Debug)]
pub(super) struct Folders {
    by_slot: HashMap<Slot, Folder>,
    /// Those of them that have a floor.
    floors: HashSet<Slot>,
    /// Those of them that say that files below are slot files.
    slot_directories: HashSet<Slot>,
    /// How many these are, for who does not have the lock.
    slot_directory_count: Arc<AtomicUsize>,
}

impl Folders {
    pub(super) fn new(root_domain: DomainId) -> Self {
        let mut folders = Self {
            by_slot: HashMap::new(),
            floors: HashSet::new(),
            slot_directories: HashSet::new(),
            slot_directory_count: Arc::default(),
        };
        folders.insert(Slot::ROOT, PolicyRecord::default(), root_domain);
        folders
    }

    pub(super) fn insert(&mut self, slot: Slot, policy: PolicyRecord, domain: DomainId) {
        let folder = Folder {
            policy,
            height: 0,
            domain,
            former: None,
            turn: false,
            bytes: ByteCount::ZERO,
            unsealed: ByteCount::ZERO,
            guessed: ByteCount::ZERO,
            objects: ObjectCount(0),
            guess: SizeGuess::default(),
            hits: 0,
            misses: 0,
            evicted: 0,
        };
        self.note(slot, facts_of(&folder.policy));
        self.by_slot.insert(slot, folder);
    }

    /// Notes the directory in `slot` among those of its kind.
    fn note(&mut self, slot: Slot, (has_floor, makes_slot_files): (bool, bool)) {
        for (noted, is_one) in [(&mut self.floors, has_floor), (&mut self.slot_directories, makes_slot_files)]
        {
            if is_one {
                noted.insert(slot);
            } else {
                noted.remove(&slot);
            }
        }
        self.slot_directory_count.store(self.slot_directories.len(), Ordering::Relaxed);
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        self.by_slot.remove(&slot);
        self.note(slot, (false, false));
    }

    /// Gives the directory in `slot` another policy of its own. Returns the policy again when there is no such directory.
    pub(super) fn set_policy(&mut self, slot: Slot, policy: PolicyRecord) -> Option<PolicyRecord> {
        let Some(folder) = self.by_slot.get_mut(&slot) else { return Some(policy) };
        let facts = facts_of(&policy);
        folder.policy = policy;
        self.note(slot, facts);
        None
    }

    /// How many directories say that files below them are slot files, as it will change.
    pub(super) fn slot_directories(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.slot_directory_count)
    }

    /// Whether any directory has a floor.
    pub(super) fn has_floors(&self) -> bool {
        !self.floors.is_empty()
    }

    /// The directories that have a floor, and it.
    pub(super) fn floors(&self) -> impl Iterator<Item = (Slot, ByteCount)> {
        self.floors.iter().filter_map(|&slot| Some((slot, self.get(slot)?.policy.floor?)))
    }

    /// Compares those that have a floor with the directories. For tests.
    pub(super) fn check_floors(&self) {
        let has_floor = |(slot, folder): (&Slot, &Folder)| folder.policy.floor.is_some().then_some(*slot);
        let found: HashSet<Slot> = self.by_slot.iter().filter_map(has_floor).collect();
        assert_eq!(self.floors, found, "directories with a floor");
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&Folder> {
        self.by_slot.get(&slot)
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Folder> {
        self.by_slot.get_mut(&slot)
    }

    /// The domain of the objects directly in `directory`; the root's when the directory is unknown.
    pub(super) fn domain(&self, directory: Slot) -> DomainId {
        self.by_slot.get(&directory).map_or(DomainId::ROOT, |folder| folder.domain)
    }

    /// Learns the size of an object that was sealed in `directory`.
    pub(super) fn learn_size(&mut self, directory: Slot, size: ByteCount) {
        if let Some(folder) = self.by_slot.get_mut(&directory) {
            folder.guess.learn(size);
        }
    }

    /// Changes what `directory` and everything above count of unfinished files.
    pub(super) fn account_unsealed(
        &mut self,
        tree: &Tree<Object>,
        directory: Slot,
        change: impl Fn(&mut Folder),
    ) {
        for ancestor in tree.ancestors(directory) {
            if let Some(folder) = self.by_slot.get_mut(&ancestor) {
                change(folder);
            }
        }
    }

    /// Adds an object to, or takes it from, `directory` and everything above.
    pub(super) fn account(&mut self, tree: &Tree<Object>, directory: Slot, change: Change) {
        for ancestor in tree.ancestors(directory) {
            let Some(folder) = self.by_slot.get_mut(&ancestor) else { continue };
            match change {
                Change::Add { bytes, objects } => {
                    folder.bytes.0 += bytes.0;
                    folder.objects.0 += objects.0;
                }
                Change::Take { bytes, objects } => {
                    folder.bytes = folder.bytes.saturating_sub(bytes);
                    folder.objects.0 = folder.objects.0.saturating_sub(objects.0);
                }
            }
        }
    }
}

/// What is noted of a directory with this policy of its own: whether it has a floor, and makes slot files of what is below.
fn facts_of(policy: &PolicyRecord) -> (bool, bool) {
    (policy.floor.is_some(), policy.scratch == Some(true))
}

/// A change of what is stored below a directory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Add { bytes: ByteCount, objects: ObjectCount },
    Take { bytes: ByteCount, objects: ObjectCount },
}

impl State {
    /// What the next object in `directory` is expected to be, `None` when its sizes are not known or vary.
    ///
    /// A directory without objects expects what the nearest directory above has.
    pub(super) fn expected_size(&self, directory: Slot) -> Option<ExpectedSize> {
        self.tree
            .ancestors(directory)
            .filter_map(|ancestor| self.folders.get(ancestor))
            .find(|folder| folder.guess.has_met_any())
            .and_then(|folder| folder.guess.expected())
    }

    /// Refuses a directory in `parent` that has `height` levels below it, when there would be more than `DEPTH_MAX`.
    pub(super) fn check_depth(&self, parent: Slot, height: u32) -> Result<(), Error> {
        let depth = u32::try_from(self.tree.ancestors(parent).count()).unwrap_or(u32::MAX);
        if depth.saturating_add(height) > DEPTH_MAX { Err(Error::TooDeep) } else { Ok(()) }
    }

    /// Refuses a new directory `name` in `parent` on a member of a cluster, when its path would be longer than
    /// [`CLUSTER_PATH_MAX`]. A host alone has no such limit.
    pub(super) fn check_path(&self, parent: Slot, name: &Name) -> Result<(), Error> {
        let is_too_long = || self.path_of_child(parent, name.as_bytes()).len() > CLUSTER_PATH_MAX;
        if self.has_members() && is_too_long() { Err(Error::TooDeep) } else { Ok(()) }
    }

    /// A directory with `height` levels below it is in `parent` now.
    pub(super) fn raise(&mut self, parent: Slot, height: u32) {
        let mut height = height.saturating_add(1);
        for ancestor in self.tree.ancestors(parent) {
            let Some(folder) = self.folders.get_mut(ancestor).filter(|folder| folder.height < height) else {
                return;
            };
            folder.height = height;
            height = height.saturating_add(1);
        }
    }

    /// Levels of directories below `slot` at most.
    pub(super) fn height_of(&mut self, slot: Slot) -> u32 {
        let is_flat = self.tree.directory(slot).is_none_or(|directory| directory.subdirectories == 0);
        let folder = self.folders.get_mut(slot).filter(|folder| folder.height > 0);
        folder.map_or(0, |folder| {
            if is_flat {
                folder.height = 0;
            }
            folder.height
        })
    }

    /// Every node below `top`, itself included.
    pub(super) fn subtree(&self, top: Slot) -> Vec<Slot> {
        let mut found = vec![top];
        let mut next = 0;
        while let Some(&slot) = found.get(next) {
            found.extend(self.tree.entries_after(slot, Cookie::START).map(|(_, child, _)| child));
            next += 1;
        }
        found
    }

    /// The top-level directories in the order of a listing, by the shorter way: beside a few of them there may be millions of files at
    /// the top of the mount, or below them millions of directories.
    pub(super) fn namespaces(&self) -> Vec<Slot> {
        let at_top = self.tree.directory(Slot::ROOT).map_or(0, |root| root.children.len());
        if at_top <= self.folders.by_slot.len() {
            let entries = self.tree.entries_after(Slot::ROOT, Cookie::START).map(|(_, slot, _)| slot);
            return entries.filter(|&slot| self.folders.get(slot).is_some()).collect();
        }
        let is_at_top = |slot: &Slot| self.tree.get(*slot).is_some_and(|node| node.parent == Slot::ROOT);
        let mut found: Vec<Slot> = self.folders.by_slot.keys().copied().filter(is_at_top).collect();
        found.sort_by_cached_key(|&slot| Cookie::shared(self.tree.name(slot).as_bytes()));
        found
    }

    /// Whether `slot` is a directory with its bookkeeping, as every directory is.
    pub(super) fn folder(&self, slot: Slot) -> Result<&Folder, Error> {
        self.folders.get(slot).ok_or(Error::NotDirectory)
    }
}
