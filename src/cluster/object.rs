//! What the cluster knows of a name, and what a member answers for what it holds.

use std::fmt;
use std::fs::File;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidefs_engine::types::{BoxFuture, ByteCount, MemberId};

use super::shards::{KeyId, Shard};

/// Order of the versions of one key: nanoseconds since 1970 of its seal, moved on where clocks disagree, so that it grows
/// with each version. Equal stamps of one key are one version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(pub u64);

/// What a look-up tells of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// A directory. Its stamp is zero: directories have no versions.
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

/// Bytes of an object that its holder keeps for a reader, until this is dropped.
pub struct Lent {
    /// What keeps the bytes from being reused; dropped when no reader uses them any more.
    pub hold: Box<dyn std::any::Any + Send + Sync>,
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
    Inline(Arc<[u8]>),
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
    pub name: Vec<u8>,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// What a member does for the cluster with what it holds. Implemented by the datapath. None of the calls that return at
/// once blocks; those that return a future may wait for a disk, and end by themselves.
pub trait Holder: Send + Sync + fmt::Debug {
    /// Lends the bytes of `stamp` of the object at `path`.
    fn lend(&self, path: Vec<u8>, stamp: Stamp) -> BoxFuture<'static, Result<Lent, Unlent>>;

    /// What stood at `path` up to and with version `through` is not valid any more: it was removed or replaced elsewhere.
    /// When the future resolves nobody here finds it by name; who has it open keeps its bytes.
    fn withdraw(&self, path: Vec<u8>, through: Stamp) -> BoxFuture<'static, ()>;

    /// Names that were absent stand for something now: absence must not be answered from memory any more when this
    /// returns.
    fn appeared(&self, paths: &[Vec<u8>]);

    /// Nobody else has a copy to rely on of these any more: those here count from now on. Returns what they are, with
    /// where they lie; what is not here is left out.
    fn inherit(&self, keys: &[KeyId]) -> Vec<(Vec<u8>, Stamp, Medium)>;

    /// What was answered about names of these shards must be asked for again: who served them does so no more.
    fn forget_answers(&self, shards: &[Shard]);

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
