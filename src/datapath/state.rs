//! The tables that decide: every name, file, handle and account of the cache, as they are behind the one lock.
//!
//! Invariant: there is one of these, and who has it has all of them as they are at one moment.
//!
//! Threads: whoever holds the lock, for about a microsecond (docs/adr/0002-one-lock.md).

use std::collections::{BTreeSet, VecDeque};
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use tidefs_control_api::KeyPath;
use tidefs_engine::time::Clock;
use tidefs_engine::types::{ByteCount, DirectoryId, KeyHash, Version};

use super::deadlines::Deadlines;
use super::domains::Domains;
use super::elsewhere::Elsewhere;
use super::folders::Folders;
use super::history::History;
use super::recent::Recent;
use super::{
    Error, Handle, HandleId, Object, Settings, departed, key_hash, lingering, misses, naming, prefetch,
    resent, unsealed, verify,
};
use crate::namespace::{Body, Ino, Processes, Slot, Tree};
use crate::telemetry::Telemetry;
use crate::tier::eviction::chain::ChainTracker;
use crate::tier::memory::{MemoryTier, NamesClock};
use crate::tier::ssd::SsdTier;

/// All tables, behind the lock.
#[derive(Debug)]
pub struct State {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tree: Tree<Object>,
    pub(super) folders: Folders,
    pub(super) domains: Domains,
    pub(super) handles: HashMap<HandleId, Handle>,
    pub(super) history: History,
    pub(super) chains: ChainTracker,
    pub(super) recent: Recent,
    pub(super) ahead: prefetch::Ahead,
    pub(super) elsewhere: Elsewhere,
    /// Whether there is an SSD tier, which is told of every sealed object that leaves a name.
    pub(super) has_ssd: bool,
    /// Objects that an earlier daemon left and that were not checked since.
    pub(super) unverified: verify::Unverified,
    /// Tells clients of the fast path that names changed.
    pub(super) names: Arc<NamesClock>,
    /// While objects on SSD are without their names.
    pub(super) naming: Option<naming::Naming>,
    /// The tier, when all objects on it have their names but some that this daemon cannot read: who takes one of these names
    /// has it removed there.
    pub(super) unread_on_ssd: Option<Arc<SsdTier>>,
    pub(super) processes: Processes,
    /// When objects with a time to live expire, in wall-clock nanoseconds.
    pub(super) expiry_of: Deadlines<i64>,
    /// When soft pins end, of those that do, in wall-clock nanoseconds.
    pub(super) pin_end_of: Deadlines<i64>,
    /// Objects whose soft pin has ended.
    pub(super) unpinned: HashSet<Slot>,
    /// Look-ups that found nothing and do not count yet.
    pub(super) misses: misses::Misses,
    /// Who was just sent to look a name up again, so that it is not sent twice.
    pub(super) resent: lru::LruCache<resent::SentCaller, resent::Resent>,
    /// Slots of files that are hidden, for `status` and for dropping abandoned versions.
    pub(super) writing: BTreeSet<Slot>,
    /// Until when closed temporary files wait for their rename, in monotonic milliseconds.
    pub(super) parked: Deadlines<u64>,
    /// Files that were parked last; those still parked have their backing file open.
    pub(super) parked_open: VecDeque<Slot>,
    /// What left its name and the kernel still knows.
    pub(super) lingering: lingering::Lingering,
    /// Sealed objects that left their names, and that the kernel or a client may still have.
    pub(super) departed: departed::Departed,
    /// Where the next look for idle inodes starts.
    pub(super) inode_hand: Slot,
    pub(super) next_version: Version,
    pub(super) next_directory: DirectoryId,
    pub(super) next_handle: u64,
    /// Where the walks begin that apply a changed policy and are not through.
    pub(super) walks: Vec<Ino>,
    /// Bytes that are being reserved on a guess and are in no charge yet.
    pub(super) guessing: ByteCount,
    /// What each unfinished file is counted with in the quotas above it.
    pub(super) charges: unsealed::Charges,
    pub(super) sealed_bytes: ByteCount,
    pub(super) sealed_objects: u64,
    /// Keys the hash of who may read what.
    pub(super) class_seed: u64,
}

impl State {
    /// No tables yet but the root.
    pub(super) fn new(
        settings: &Settings,
        tier: &MemoryTier,
        clock: Arc<dyn Clock>,
        telemetry: &Arc<Telemetry>,
    ) -> Self {
        let domains = Domains::new(&settings.eviction);
        Self {
            clock,
            tree: Tree::new(settings.root),
            folders: Folders::new(domains.root()),
            domains,
            handles: HashMap::new(),
            history: History::default(),
            chains: ChainTracker::default(),
            recent: Recent::default(),
            ahead: prefetch::Ahead::new(Arc::clone(telemetry)),
            elsewhere: Elsewhere::default(),
            has_ssd: false,
            unverified: verify::Unverified::default(),
            names: Arc::clone(tier.names_clock()),
            naming: None,
            unread_on_ssd: None,
            processes: Processes::default(),
            expiry_of: Deadlines::default(),
            pin_end_of: Deadlines::default(),
            unpinned: HashSet::new(),
            misses: misses::Misses::default(),
            resent: lru::LruCache::new(resent::RESENT_MAX),
            writing: BTreeSet::new(),
            parked: Deadlines::default(),
            parked_open: VecDeque::new(),
            lingering: lingering::Lingering::default(),
            departed: departed::Departed::default(),
            inode_hand: Slot(0),
            next_version: Version(1),
            next_directory: DirectoryId(DirectoryId::ROOT.0 + 1),
            next_handle: 1,
            walks: Vec::new(),
            guessing: ByteCount::ZERO,
            charges: unsealed::Charges::default(),
            sealed_bytes: ByteCount::ZERO,
            sealed_objects: 0,
            class_seed: std::hash::RandomState::new().build_hasher().finish(),
        }
    }

    pub(super) fn object(&self, slot: Slot) -> Option<&Object> {
        match &self.tree.get(slot)?.body {
            Body::File(object) => Some(object),
            Body::Directory(_) => None,
        }
    }

    pub(super) fn object_mut(&mut self, slot: Slot) -> Option<&mut Object> {
        self.tree.get(slot)?;
        match &mut self.tree.node_mut(slot).body {
            Body::File(object) => Some(object),
            Body::Directory(_) => None,
        }
    }

    pub(super) fn slot_of(&self, ino: Ino) -> Result<Slot, Error> {
        self.tree.by_ino(ino).ok_or(Error::Stale)
    }

    /// The same, of what somebody has open or a name leads to. A name by which the kernel got to one that a writer was given a new
    /// inode for leads to that.
    pub(super) fn slot_in_use(&self, ino: Ino) -> Result<Slot, Error> {
        let slot = self.slot_of(ino)?;
        if self.object(slot).is_some_and(Object::has_left) { Err(Error::Stale) } else { Ok(slot) }
    }

    /// The directory with this inode, to which names may be given: it was not removed.
    pub(super) fn living_directory(&self, ino: Ino) -> Result<Slot, Error> {
        let slot = self.slot_of(ino)?;
        self.tree.directory(slot).ok_or(Error::NotDirectory)?;
        if self.tree.is_living_directory(slot) { Ok(slot) } else { Err(Error::Stale) }
    }

    pub(super) fn directory_id(&self, slot: Slot) -> Result<DirectoryId, Error> {
        Ok(self.tree.directory(slot).ok_or(Error::NotDirectory)?.id)
    }

    pub(super) fn key_of(&self, slot: Slot) -> Option<KeyHash> {
        let node = self.tree.get(slot)?;
        let directory = self.tree.directory(node.parent)?;
        Some(key_hash(directory.id, self.tree.name(slot).as_bytes()))
    }

    /// The top-level directory above `slot`; the root for what stands directly in it.
    pub(super) fn namespace_of(&self, slot: Slot) -> Slot {
        let mut below = Slot::ROOT;
        for ancestor in self.tree.ancestors(slot) {
            if ancestor == Slot::ROOT {
                break;
            }
            below = ancestor;
        }
        if self.tree.directory(below).is_some() { below } else { Slot::ROOT }
    }

    pub(super) fn take_version(&mut self) -> Version {
        let version = self.next_version;
        self.next_version = Version(version.0 + 1);
        version
    }

    /// The path of a node as it is shown: no name can steer a terminal.
    pub(super) fn path_text(&self, slot: Slot) -> String {
        KeyPath::from_bytes(&self.tree.path(slot)).to_string()
    }
}
