//! What the cluster knows of a name, and what a member answers for what it holds.

use std::fmt;
use std::fs::File;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidefs_engine::types::{BoxFuture, ByteCount, MemberId};

use super::coordinator::Namespaces;
use super::shards::{KeyId, Shard};

/// Order of the versions of one key: nanoseconds since 1970 of its seal, moved on where clocks disagree, so that it grows
/// with each version. Equal stamps of one key are one version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(pub u64);

/// Most members that are to hold one object.
pub const REPLICAS_MAX: u8 = 16;

/// What a look-up tells of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PackedFacts", into = "PackedFacts")]
pub struct FileFacts {
    /// Length.
    pub size: ByteCount,
    /// Time of the last change, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// xxh3 of the bytes, where it is known already: it is taken after the seal.
    pub checksum: Option<u64>,
    /// How many members are to hold it, from 1 to [`REPLICAS_MAX`].
    pub replicas: u8,
}

/// Where the number of further copies stands beside the permission bits, four bits of it.
const COPIES_SHIFT: u32 = 16;

/// Permission bits, and how many members are to hold the object. One costs nothing, and is what is read from members that
/// know no other number.
#[must_use]
pub fn pack_mode(mode: u32, replicas: u8) -> u32 {
    (mode & 0xffff) | (u32::from(replicas.clamp(1, REPLICAS_MAX) - 1) << COPIES_SHIFT)
}

/// What [`pack_mode`] packed.
#[must_use]
pub fn unpack_mode(packed: u32) -> (u32, u8) {
    let further = (packed >> COPIES_SHIFT) & 0xf;
    (packed & 0xffff, u8::try_from(further).unwrap_or(0) + 1)
}

/// As members tell each other.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct PackedFacts {
    size: ByteCount,
    mtime_ns: i64,
    mode: u32,
    uid: u32,
    gid: u32,
    checksum: Option<u64>,
}

impl From<PackedFacts> for FileFacts {
    fn from(packed: PackedFacts) -> Self {
        let PackedFacts { size, mtime_ns, mode, uid, gid, checksum } = packed;
        let (mode, replicas) = unpack_mode(mode);
        Self { size, mtime_ns, mode, uid, gid, checksum, replicas }
    }
}

impl From<FileFacts> for PackedFacts {
    fn from(facts: FileFacts) -> Self {
        let FileFacts { size, mtime_ns, mode, uid, gid, checksum, replicas } = facts;
        Self { size, mtime_ns, mode: pack_mode(mode, replicas), uid, gid, checksum }
    }
}

/// What a look-up tells of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryFacts {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What stands under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Facts {
    /// A sealed object.
    File(FileFacts),
    /// A directory. Its version is shown to nobody but who removes it: to others its stamp is zero.
    Directory(DirectoryFacts),
}

/// Where a copy lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Medium {
    /// In memory.
    Memory,
    /// On SSD alone.
    Ssd,
    /// In memory for its readers there: it leaves before what has no other copy, so it is none to rely on.
    Soft,
}

impl Medium {
    /// Whether the copy is one to rely on: not one that leaves first.
    #[must_use]
    pub fn is_hard(self) -> bool {
        self != Self::Soft
    }

    /// Order in which copies are read: memory first, soft or not, since both are as fast.
    #[must_use]
    pub fn distance(self) -> u8 {
        match self {
            Self::Memory | Self::Soft => 0,
            Self::Ssd => 1,
        }
    }
}

/// A member that holds a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// Who.
    pub member: MemberId,
    /// Where there.
    pub medium: Medium,
}

/// What the catalog answers for one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No member holds it. When that changes [`Holder::appeared`] is called, if `is_watched`.
    Absent {
        /// Whether the catalog will tell when it appears.
        is_watched: bool,
    },
    /// It stands there. When that changes, [`Holder::withdraw`] is called.
    Present {
        /// Which version.
        stamp: Stamp,
        /// What it is.
        facts: Facts,
        /// Who holds it, the best source first. Empty for a directory.
        copies: Vec<Copy>,
    },
    /// Nobody could be asked in time. A miss that must not be remembered.
    Unknown,
}

/// What keeps lent bytes from being reused, until it is dropped.
pub type Hold = Box<dyn std::any::Any + Send + Sync>;

/// Bytes of an object that its holder keeps for a reader, until this is dropped.
pub struct Lent {
    /// What keeps the bytes from being reused; dropped when no reader uses them any more.
    pub hold: Hold,
    /// Where the bytes are.
    pub bytes: LentBytes,
    /// xxh3 of the bytes.
    pub checksum: u64,
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Why something is not kept for another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unkept {
    /// It is not what stands there.
    Gone,
    /// It could not be fetched, or there is no room.
    NotNow,
}

/// Why bytes are not lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlent {
    /// This version is not held here any more: nobody is to be sent here for it.
    Gone,
    /// It is held and cannot be read now: somebody may still write it, or its disk is too slow.
    NotNow,
}

/// Where lent bytes are.
#[derive(Clone, Debug)]
pub enum LentBytes {
    /// A small object, to be sent in the answer: [`super::catalog::wire::INLINE_MAX`] bytes at most.
    Inline(Vec<u8>),
    /// The whole of a segment file of this length.
    Segment(Arc<File>, ByteCount),
}

/// One object or directory that a member holds, as it tells those who serve its shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Path below the mount.
    pub path: Vec<u8>,
    /// Which version.
    pub stamp: Stamp,
    /// What it is.
    pub facts: Facts,
    /// Where the copy lies.
    pub medium: Medium,
}

/// One name of a directory, as one member lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedName {
    /// Place in the order of the listing, the same on every host: a hash of the name.
    pub cookie: u64,
    /// The name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// Names of a directory, as all members list it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// In the order of cookies.
    pub names: Vec<ListedName>,
    /// Who may hold more of them, and did not answer.
    pub unanswered: Vec<MemberId>,
}

/// What a member does for the cluster with what it holds. Implemented by the datapath. None of the calls that return at
/// once blocks; those that return a future may wait for a disk, and end by themselves.
pub trait Holder: Send + Sync + fmt::Debug {
    /// Lends the bytes of `stamp` of the object at `path`.
    fn lend(&self, path: Vec<u8>, stamp: Stamp) -> BoxFuture<'static, Result<Lent, Unlent>>;

    /// What stood at `path` up to and with version `through` is not valid any more: it was removed or replaced elsewhere.
    /// When the future resolves nobody here finds it by name; who has it open keeps its bytes.
    fn withdraw(&self, path: Vec<u8>, through: Stamp) -> BoxFuture<'static, ()>;

    /// Who serves its shard knows by now of the directory at `path` that is here.
    fn was_announced(&self, path: &[u8]);

    /// Names that were absent stand for something now: absence must not be answered from memory any more when this
    /// returns.
    fn appeared(&self, paths: &[Vec<u8>]);

    /// Nobody else has a copy to rely on of these any more: those here count from now on. Returns what they are, with
    /// where they lie; what is not here is left out.
    fn inherit(&self, keys: &[KeyId]) -> Vec<(Vec<u8>, Stamp, Medium)>;

    /// Fetches `stamp` of what is at `path`, which `from` holds, and keeps it as what was written here; of a directory,
    /// takes note. `replicas` members are to hold it, and those of what has the same `head` are to be the same. Returns
    /// how many bytes of it had to come.
    fn keep(
        &self,
        path: Vec<u8>,
        stamp: Stamp,
        replicas: u8,
        head: KeyId,
        from: MemberId,
    ) -> BoxFuture<'static, Result<ByteCount, Unkept>>;

    /// Whether this member has a copy of that version.
    fn holds(&self, path: &[u8], stamp: Stamp) -> bool;

    /// The head of the chain of what is at `path`, as far as it is known; else its key.
    fn head(&self, path: &[u8]) -> KeyId;

    /// Places of all that other members may not have, the hottest first, and their bytes.
    fn hottest(&self) -> (Vec<u64>, ByteCount);

    /// Tells ([`super::Cluster::hold`]) where up to `max` of the copies lie that went from memory to a disk here, or came
    /// back, since they were told last. Returns how many those are.
    fn tell_moved(&self, max: usize) -> usize;

    /// What lies in such a place, if it is still something that others may not have.
    fn holding_at(&self, place: u64) -> Option<Holding>;

    /// What was answered about names of these shards must be asked for again: who served them does so no more.
    fn forget_answers(&self, shards: &[Shard]);

    /// What all members agree on about directories is this from now on. Called in order, on a thread that may wait.
    fn agreed(&self, namespaces: &Namespaces);

    /// Up to `max` things that this member holds whose shard is in `shards` (`is_wanted`), from the place `after`
    /// on; with the place where to go on, or `None` at the end.
    fn holdings(
        &self,
        is_wanted: &dyn Fn(Shard) -> bool,
        after: u64,
        max: usize,
    ) -> (Vec<Holding>, Option<u64>);

    /// Up to `max` names of what this member holds in the directory, in the order of cookies, from beyond `after` on.
    fn list(&self, directory: &[u8], after: u64, max: usize) -> Vec<ListedName>;
}
