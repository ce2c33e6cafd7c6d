//! Names that stand for something on other members of the cluster: asked for, shown, forgotten.
//!
//! ```text
//! look-up ──nothing here──> ask the catalog ──present──> a node without bytes (Place::Remote) ──open──> fetched
//!                                            └─absent──> remembered until the catalog revokes it
//! ```
//! Invariants
//! - What is here is valid: the catalog has it withdrawn before anything else stands under its name.
//! - Absence is remembered only while the catalog watches the name, and not when it changed while it was asked for.
//! - Nothing waits for a peer under the lock, or on a thread that answers the kernel.
//!
//! Without a cluster none of this costs more than one look at an empty cell.

// This daemon's place in its cluster, and what all members agree on.
mod agreed;
mod side;

// What others hold: asked for, shown without bytes, fetched, and left alone when nobody can give it.
mod asking;
mod fetch;
mod paths;
mod shown;
mod soft;
mod stream;
mod unreached;

// What is held here for others: lent, and kept as a copy that counts.
mod keep;
mod lend;
mod member;

// What others are told, one thing of a name at a time.
mod moved;
mod news;
mod tell;
mod turns;

use std::num::NonZeroUsize;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use lru::LruCache;
use tidefs_control_api::KeyPath;
use tidefs_engine::types::ByteCount;

use super::{Datapath, Error, Object, Phase, Place, State};
use crate::cluster::shards::KeyId;
use crate::cluster::{Cluster, Copy, DirectoryFacts, Facts, FileFacts, Listing, Medium, Stamp};
use crate::namespace::{Cookie, Ino, Slot};

pub(super) use fetch::Away;
pub use member::MemberSide;
pub use news::News;
pub(super) use paths::Paths;
pub use side::ClusterSide;
pub use stream::Stream;
pub(super) use stream::{Arriving, Reach};

/// Names whose last withdrawal is remembered: as many as may be under way while a close is told.
const WITHDRAWN_MAX: NonZeroUsize = NonZeroUsize::new(1 << 12).expect("4096 is not zero");
/// Absent names that are remembered: about 25 MiB at most.
const ABSENT_MAX: NonZeroUsize = NonZeroUsize::new(1 << 18).expect("262144 is not zero");
/// Objects of which the head of their chain is remembered; of others it is taken to be themselves.
const HEADS_MAX: NonZeroUsize = NonZeroUsize::new(1 << 16).expect("65536 is not zero");

/// A question that is under way.
#[derive(Debug, Default)]
struct Asking {
    askers: u32,
    has_changed: bool,
}

/// What is known of names on other members.
#[derive(Debug)]
pub(super) struct Elsewhere {
    /// Names that stand for nothing anywhere, until the catalog says otherwise.
    absent: LruCache<KeyId, ()>,
    /// Up to which version names were withdrawn: who publishes one may hear that it was after it was withdrawn.
    withdrawn: LruCache<KeyId, Stamp>,
    asking: HashMap<KeyId, Asking>,
    /// Who holds the bytes of the objects that are shown and not here.
    copies: HashMap<Slot, Vec<Copy>>,
    shown: shown::Shown,
    /// Objects that are on their way and can be read already.
    streams: HashMap<Ino, Arc<Stream>>,
    /// Objects that nobody could give a moment ago.
    unreached: unreached::UnreachedNames,
    /// Copies that leave first.
    soft: HashMap<KeyId, Slot>,
    soft_bytes: u64,
    /// How often soft copies that left were read.
    met: LruCache<KeyId, u16>,
    /// Reads after which a soft copy stays longer than those that were read less.
    soft_after: u16,
    /// Copies that went to a disk or came back, of which other members have not heard.
    moved: HashSet<Slot>,
    /// Objects of whose version, or name, no other member has been told yet, and somebody is about to tell; and directories of
    /// which nobody could be told.
    untold: HashSet<Ino>,
    /// Objects that outlived what was told in their place, and the version of that: somebody is about to tell of them once more.
    retold: HashMap<Ino, Stamp>,
    /// Heads of the chains of objects that were sealed or are kept here, by inode.
    heads: LruCache<Ino, KeyId>,
    /// Hears of what leaves this host. It takes that without waiting.
    cluster: Option<Arc<Cluster>>,
    /// What all members agree on about directories.
    agreed: agreed::Agreed,
    /// Set while this host is to be a member and is none yet: what it removes meanwhile is told when it is.
    solitude: Option<side::Solitude>,
}

impl Default for Elsewhere {
    fn default() -> Self {
        Self {
            absent: LruCache::new(ABSENT_MAX),
            withdrawn: LruCache::new(WITHDRAWN_MAX),
            asking: HashMap::new(),
            copies: HashMap::new(),
            shown: shown::Shown::default(),
            streams: HashMap::new(),
            unreached: unreached::UnreachedNames::default(),
            soft: HashMap::new(),
            soft_bytes: 0,
            met: LruCache::new(soft::MET_MAX),
            soft_after: 2,
            moved: HashSet::new(),
            untold: HashSet::new(),
            retold: HashMap::new(),
            heads: LruCache::new(HEADS_MAX),
            cluster: None,
            agreed: agreed::Agreed::default(),
            solitude: None,
        }
    }
}

impl Elsewhere {
    fn begin(&mut self, key: KeyId) {
        self.asking.entry(key).or_default().askers += 1;
    }

    /// Ends a question. Returns whether the name changed while it was under way.
    fn end(&mut self, key: KeyId) -> bool {
        let Some(asking) = self.asking.get_mut(&key) else { return true };
        asking.askers -= 1;
        let has_changed = asking.has_changed;
        if asking.askers == 0 {
            self.asking.remove(&key);
        }
        has_changed
    }

    /// What was answered, or is being answered, about the name is not true any more. Returns whether it was known to stand
    /// for nothing.
    fn change(&mut self, key: KeyId) -> bool {
        let was_absent = self.absent.pop(&key).is_some();
        if let Some(asking) = self.asking.get_mut(&key) {
            asking.has_changed = true;
        }
        was_absent
    }

    /// All versions of the name up to `through` were withdrawn. Of what was said at about the same time the earlier word may
    /// come last: it takes nothing back.
    fn note_withdrawn(&mut self, key: KeyId, through: Stamp) {
        let known = self.withdrawn.get(&key).copied().unwrap_or_default();
        self.withdrawn.put(key, through.max(known));
    }

    /// Whether that version of the name was withdrawn.
    fn was_withdrawn(&mut self, path: &[u8], stamp: Stamp) -> bool {
        self.withdrawn.get(&KeyId::of(path)).is_some_and(|&through| stamp <= through)
    }

    /// Nothing that was answered about absent names is true for sure any more.
    fn forget_absence(&mut self) {
        self.absent.clear();
        self.asking.values_mut().for_each(|asking| asking.has_changed = true);
    }

    /// The node is not one of an object elsewhere any more.
    pub(super) fn leave(&mut self, slot: Slot) {
        self.copies.remove(&slot);
    }
}

/// The version of an object, as members tell each other.
fn stamp_of(object: &Object) -> Stamp {
    Stamp(u64::try_from(object.sealed_at_ns).unwrap_or(0))
}

impl Object {
    /// Whether its bytes are on other members alone.
    pub(super) fn is_remote(&self) -> bool {
        matches!(self.place, Place::Remote)
    }
}

impl State {
    /// Length of the object in `slot` when its bytes are on other members alone.
    pub(super) fn remote_size(&self, slot: Slot) -> Option<ByteCount> {
        self.object(slot).filter(|object| object.is_remote()).map(|object| object.size)
    }

    /// Who has the bytes of the object in `slot`, when they are on other members alone.
    pub(super) fn remote_copies(&self, slot: Slot) -> Option<Vec<Copy>> {
        self.remote_size(slot)?;
        self.elsewhere.copies.get(&slot).cloned()
    }

    /// Path below the mount of `name` in the directory `parent`.
    pub(super) fn path_of_child(&self, parent: Slot, name: &[u8]) -> Vec<u8> {
        let mut path = self.tree.path(parent);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// The inode of what stands under `name` in a directory.
    fn ino_of_child(&self, parent: Slot, name: &[u8]) -> Option<Ino> {
        self.tree.child(parent, name).map(|slot| self.tree.ino(slot))
    }

    /// Whether the name is known to stand for nothing on any member.
    pub(super) fn is_absent_everywhere(&mut self, parent: Slot, name: &[u8]) -> bool {
        self.is_key_absent(KeyId::of(&self.path_of_child(parent, name)))
    }

    /// The same of a name by its key.
    pub(super) fn is_key_absent(&mut self, key: KeyId) -> bool {
        self.elsewhere.absent.get(&key).is_some()
    }

    /// The same, which does not count as a use of what is remembered.
    pub(super) fn was_key_absent(&self, key: KeyId) -> bool {
        self.elsewhere.absent.contains(&key)
    }

    /// What the cluster is told of the node in `slot`; `None` for what is only here: hidden files, temporary names, slot
    /// files.
    fn facts_for_members(&self, slot: Slot) -> Option<(Stamp, Facts)> {
        let attributes = self.tree.get(slot)?.attributes;
        let mode = attributes.mode.into();
        let (uid, gid) = (attributes.uid, attributes.gid);
        if self.tree.directory(slot).is_some() {
            return Some((Stamp::default(), Facts::Directory(DirectoryFacts { mode, uid, gid })));
        }
        let object = self.object(slot).filter(|object| object.phase == Phase::Sealed)?;
        let (size, mtime_ns) = (object.size, attributes.mtime_ns);
        let replicas = self.replicas(slot);
        let facts = FileFacts { size, mtime_ns, mode, uid, gid, checksum: None, replicas };
        Some((stamp_of(object), Facts::File(facts)))
    }

    /// Tells the catalog that the object in `slot`, which is about to leave its name, is not here any more. Nobody waits for
    /// that. One that is no member yet has nobody to tell, and may have copies of an earlier life.
    pub(super) fn let_go(&mut self, slot: Slot) {
        let Some(object) = self.object(slot) else { return };
        let cluster = self.elsewhere.cluster.clone();
        if cluster.is_none() && !self.is_soft(slot) {
            return;
        }
        let stamp = match object.phase {
            Phase::Sealed if !object.is_remote() => Some(stamp_of(object)),
            Phase::Writing => self.promised(slot),
            _ => None,
        };
        if let Some(stamp) = stamp {
            let Some(path) = self.final_path(slot) else {
                return; // it has lost its name, and that was told
            };
            if let Some(cluster) = cluster {
                cluster.let_go(&path, stamp);
            }
            self.forget_soft(slot, KeyId::of(&path));
        }
    }

    /// Whether anything below the directory in `slot` is not only shown here.
    fn has_own_children(&self, slot: Slot) -> bool {
        let mut children = self.tree.entries_after(slot, Cookie::START);
        children.any(|(_, child, _)| self.object(child).is_none_or(|object| !object.is_remote()))
    }

    /// Tells the catalog that this host knows the directory in `slot`, too.
    fn hold_directory(&self, slot: Slot) {
        if let Some(cluster) = &self.elsewhere.cluster {
            cluster.hold(&self.tree.path(slot), Stamp::default(), Medium::Memory);
        }
    }

    /// The version that was promised to the cluster for the file in `slot`.
    pub(super) fn promised(&self, slot: Slot) -> Option<Stamp> {
        self.object(slot)?.open.as_ref()?.promised.map(|(stamp, _)| stamp)
    }

    /// Whether the other members are just being told of what stands at `path`.
    fn is_being_told(&self, path: &[u8]) -> bool {
        self.elsewhere.cluster.as_ref().is_some_and(|cluster| cluster.is_publishing(path))
    }

    /// The version of the sealed object in `slot`.
    pub(super) fn sealed_stamp(&self, slot: Slot) -> Option<Stamp> {
        self.object(slot).filter(|object| object.phase == Phase::Sealed).map(stamp_of)
    }

    /// The time of seal that was promised to the cluster for the file in `slot`, which is sealed with `size`. `None` when none
    /// was, or another length, and when what was told of the name since, or is being told, stands above it.
    pub(super) fn promise_to_keep(&self, slot: Slot, size: ByteCount) -> Option<i64> {
        let promised = self.object(slot)?.open.as_ref()?.promised;
        let (stamp, _) = promised.filter(|&(_, length)| length == size)?;
        let path = self.final_path(slot)?;
        let shown = self.tree.by_path(&path).and_then(|shown| self.sealed_stamp(shown));
        if shown >= Some(stamp) || self.is_being_told(&path) {
            return None;
        }
        i64::try_from(stamp.0).ok()
    }

    /// The object in `slot` is sealed as what was promised to the cluster. Who serves its name since then may have heard of all that
    /// this host held by that time, and is told of this now.
    pub(super) fn tell_who_came_since_promise(&self, slot: Slot) {
        let Some(cluster) = &self.elsewhere.cluster else { return };
        let promised_in = self.object(slot).and_then(|object| Some(object.open.as_ref()?.promised_in));
        if promised_in.is_some_and(|view| view != cluster.view())
            && let Some(path) = self.final_path(slot)
        {
            cluster.announce(&path);
        }
    }

    /// The file in `slot` gets another name than the one that was promised to the cluster.
    pub(super) fn break_promise(&mut self, slot: Slot) {
        self.let_go(slot);
        self.end_promise(slot);
    }

    /// What was promised for the file in `slot` is kept, or told anew.
    pub(super) fn end_promise(&mut self, slot: Slot) {
        if let Some(open) = self.object_mut(slot).and_then(|object| object.open.as_mut()) {
            open.promised = None;
        }
    }

    /// Whether other members may hold names too, and are to be told of those here.
    pub(super) fn has_members(&self) -> bool {
        self.elsewhere.cluster.is_some() || self.elsewhere.solitude.is_some()
    }
}

impl Datapath {
    /// What all members, this one included, list of the directory at `path`, in the order that they share.
    pub(super) async fn list_of_members(&self, path: Vec<u8>, after: u64, max: usize) -> Listing {
        match self.cluster.get() {
            Some(side) => side.cluster.list(path, after, max, side.deadline()).await,
            None => Listing::default(),
        }
    }

    /// Whether a directory is empty on every member.
    ///
    /// # Errors
    /// [`Error::NotEmpty`]; [`Error::Unanswered`] when a member that may hold something in it does not answer;
    /// [`Error::NoObject`] when it is gone.
    pub async fn ensure_empty_everywhere(&self, parent: Ino, name: &[u8]) -> Result<(), Error> {
        let path = {
            let state = self.lock();
            let parent = state.slot_of(parent)?;
            state.path_of_child(parent, name)
        };
        let Listing { names, unanswered } = self.list_of_members(path.clone(), 0, 1).await;
        if !names.is_empty() {
            return Err(Error::NotEmpty);
        }
        if unanswered.is_empty() {
            return Ok(());
        }
        let directory = KeyPath::from_bytes(&path);
        tracing::warn!(%directory, ?unanswered, "a directory is not removed: these members do not say what they hold in it");
        Err(Error::Unanswered)
    }
}
