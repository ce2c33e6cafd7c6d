//! What the cache keeps of each directory: its policy, what is stored below it, and how large its objects are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::{HashMap, HashSet};
use tidefs_engine::types::{ByteCount, ObjectCount, PAGE};

use super::domains::DomainId;
use super::guess::{Expected, SizeGuess};
use super::room::footprint;
use super::{Error, Object, Phase, State};
use crate::namespace::{Name, Slot, Tree};
use crate::tier::eviction::RetentionClass;
use crate::tier::memory::{Pin, PolicyRecord};

/// Levels of directories below the root at most. A path of 4096 bytes, the longest that the kernel takes, names fewer; and
/// what is done under the lock for each level stays below some tens of microseconds.
pub(super) const DEPTH_MAX: u32 = 2048;

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

/// A quota that something would pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuotaInTheWay {
    /// Where that grows: at or below `limited`.
    pub(super) growing: Slot,
    /// The directory that has the quota.
    pub(super) limited: Slot,
    /// The quota.
    pub(super) quota: ByteCount,
}

/// What is in force for an object after inheritance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct EffectivePolicy {
    pub(super) record: PolicyRecord,
}

impl EffectivePolicy {
    /// The class in which an object is ranked for eviction.
    pub(super) fn class(&self) -> RetentionClass {
        if matches!(self.record.pin, Some(Pin::Soft { .. })) {
            return RetentionClass::SOFT_PIN;
        }
        let priority = i16::from(self.record.priority.unwrap_or(0)).clamp(-100, 100);
        RetentionClass(
            u8::try_from(i16::from(RetentionClass::NORMAL.0) + priority).unwrap_or(RetentionClass::NORMAL.0),
        )
    }

    /// Whether the object is never evicted.
    pub(super) fn is_hard_pinned(&self) -> bool {
        matches!(self.record.pin, Some(Pin::Hard))
    }
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
    /// The policy in force for the node in `slot`: its own settings, else those of the nearest directory above.
    pub(super) fn effective_policy(&self, slot: Slot) -> EffectivePolicy {
        let own = self.object(slot).map(Object::policy).unwrap_or_default();
        let inherited = self.tree.ancestors(slot).filter_map(|ancestor| self.folders.get(ancestor));
        let record = inherited.fold(own, |mut nearer, folder| {
            let farther = &folder.policy;
            nearer.quota = nearer.quota.or(farther.quota);
            nearer.floor = nearer.floor.or(farther.floor);
            nearer.ttl_s = nearer.ttl_s.or(farther.ttl_s);
            nearer.pin = nearer.pin.or(farther.pin);
            nearer.priority = nearer.priority.or(farther.priority);
            nearer.scratch = nearer.scratch.or(farther.scratch);
            nearer.durable = nearer.durable.or(farther.durable);
            nearer.replicas = nearer.replicas.or(farther.replicas);
            let rate = &mut nearer.recompute_bytes_per_second;
            *rate = rate.or(farther.recompute_bytes_per_second);
            if nearer.eviction.is_none() {
                nearer.eviction.clone_from(&farther.eviction);
            }
            nearer
        });
        let mut policy = EffectivePolicy { record };
        if self.unpinned.contains(&slot) && matches!(policy.record.pin, Some(Pin::Soft { .. })) {
            policy.record.pin = None;
        }
        policy
    }

    /// Whether files that are made in `directory` are slot files: as [`State::effective_policy`] has it, which is more work.
    pub(super) fn makes_slot_files(&self, directory: Slot) -> bool {
        let own = |ancestor| self.folders.get(ancestor)?.policy.scratch;
        !self.folders.slot_directories.is_empty()
            && self.tree.ancestors(directory).find_map(own) == Some(true)
    }

    /// When the soft pin in force on a sealed object ends: its time counts from the object's seal, or from when the pin was
    /// set on the object itself.
    pub(super) fn pin_end_ns(&self, slot: Slot) -> Option<i64> {
        let Some(Pin::Soft { ttl_s: Some(ttl_s) }) = self.effective_policy(slot).record.pin else {
            return None;
        };
        let ttl_ns = i64::try_from(ttl_s).unwrap_or(i64::MAX).saturating_mul(1_000_000_000);
        let object = self.object(slot).filter(|object| object.phase == Phase::Sealed)?;
        let set_at_ns = object.open.as_ref().and_then(|open| open.policy.pinned_at_ns);
        let since_ns = object.sealed_at_ns.max(set_at_ns.unwrap_or(i64::MIN));
        Some(since_ns.saturating_add(ttl_ns))
    }

    /// Notes when the soft pin of an object ends, after its policy or the object is new.
    pub(super) fn watch_pin(&mut self, slot: Slot) {
        self.forget_pin(slot);
        if let Some(end_ns) = self.pin_end_ns(slot) {
            self.pin_ends.insert((end_ns, slot));
            self.pin_end_of.insert(slot, end_ns);
        }
    }

    /// The object in `slot` is no more, or its pin another.
    pub(super) fn forget_pin(&mut self, slot: Slot) {
        self.unpinned.remove(&slot);
        if let Some(end_ns) = self.pin_end_of.remove(&slot) {
            self.pin_ends.remove(&(end_ns, slot));
        }
    }

    /// Ends up to `limit` soft pins whose time is over. Returns whether there were any.
    pub(super) fn end_pins(&mut self, now_ns: i64, limit: usize) -> bool {
        let mut count = 0;
        while count < limit
            && let Some(&(end_ns, slot)) = self.pin_ends.first()
            && end_ns <= now_ns
        {
            count += 1;
            self.pin_ends.pop_first();
            self.pin_end_of.remove(&slot);
            // The slot may hold another object by now, or its pin another time.
            if self.pin_end_ns(slot).is_some_and(|end_ns| end_ns <= now_ns) {
                self.unpinned.insert(slot);
                self.refresh_rank(slot);
            }
        }
        count > 0
    }

    /// The nearest directory at or above `directory` whose quota `more` bytes would pass. Directories at and above
    /// `counted_in` count the bytes already.
    pub(super) fn quota_in_the_way(
        &self,
        directory: Slot,
        more: ByteCount,
        counted_in: Option<Slot>,
    ) -> Option<QuotaInTheWay> {
        // What is above one that counts them does so too.
        let counting: HashSet<Slot> =
            counted_in.into_iter().flat_map(|counted| self.tree.ancestors(counted)).collect();
        let mut growing = self.tree.ancestors(directory).take_while(|ancestor| !counting.contains(ancestor));
        growing.find_map(|limited| {
            let folder = self.folders.get(limited)?;
            let quota = folder.policy.quota?;
            let used = folder.bytes.saturating_add(folder.unsealed);
            let in_the_way = QuotaInTheWay { growing: directory, limited, quota };
            (used.saturating_add(more) > quota).then_some(in_the_way)
        })
    }

    /// Whether the object in `victim` may leave for what grows in `growing`: the directories above it that have a floor hold
    /// that much without it, or hold `growing` too and so pay for themselves.
    ///
    /// A floor is of all objects below its directory. Closed temporary files that nobody came for are none.
    pub(super) fn may_leave_for(&self, victim: Slot, growing: Slot) -> bool {
        if !self.folders.has_floors() {
            return true;
        }
        let Some(object) = self.object(victim).filter(|object| object.phase == Phase::Sealed) else {
            return true;
        };
        // An empty one makes no room.
        let bytes = footprint(object.size).max(PAGE);
        let is_broken = |folder: &Folder| {
            folder.policy.floor.is_some_and(|floor| folder.bytes < floor.saturating_add(bytes))
        };
        let mut above = self.tree.ancestors(victim);
        above.all(|directory| {
            !self.folders.get(directory).is_some_and(is_broken)
                || self.tree.ancestors(growing).any(|ancestor| ancestor == directory)
        })
    }

    /// Bytes of the object in `slot` that the quotas above it count: of one that is in memory.
    pub(super) fn counted(&self, slot: Slot) -> ByteCount {
        let is_counted = |object: &&Object| object.phase == Phase::Sealed && object.is_resident();
        self.object(slot).filter(is_counted).map_or(ByteCount::ZERO, |object| footprint(object.size))
    }

    /// The same of what stands under a name, whose place a new object takes, as far as no begun file has it already.
    pub(super) fn counted_under(&self, parent: Slot, name: &Name) -> ByteCount {
        self.tree.child(parent, name.as_bytes()).map_or(ByteCount::ZERO, |slot| self.discount_left(slot))
    }

    /// Whether `directory` or one above it has a quota.
    pub(super) fn has_quota(&self, directory: Slot) -> bool {
        self.tree.ancestors(directory).any(|ancestor| self.has_own_quota(ancestor))
    }

    /// Those of `directory` and the ones above it that have a quota, nearest first.
    pub(super) fn quotas_above(&self, directory: Slot) -> Vec<Slot> {
        self.tree.ancestors(directory).filter(|&ancestor| self.has_own_quota(ancestor)).collect()
    }

    fn has_own_quota(&self, directory: Slot) -> bool {
        self.folders.get(directory).is_some_and(|folder| folder.policy.quota.is_some())
    }

    /// What the next object in `directory` is expected to be, `None` when its sizes are not known or vary.
    ///
    /// A directory without objects expects what the nearest directory above has.
    pub(super) fn expected_size(&self, directory: Slot) -> Option<Expected> {
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
            found.extend(
                self.tree.entries_after(slot, crate::namespace::Cookie::START).map(|(_, child, _)| child),
            );
            next += 1;
        }
        found
    }

    /// Whether `slot` is a directory with its bookkeeping, as every directory is.
    pub(super) fn folder(&self, slot: Slot) -> Result<&Folder, Error> {
        self.folders.get(slot).ok_or(Error::NotDirectory)
    }
}
