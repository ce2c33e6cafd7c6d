//! Why a request cannot be served. `src/fuse/errno.rs` holds the one table from here to the kernel's numbers.

use std::io;

use tidefs_engine::types::ByteCount;

use super::decorations::{BYTES_MAX, COUNT_MAX};
use super::folders::{CLUSTER_PATH_MAX, DEPTH_MAX};
use crate::namespace::{NameError, TreeError};
use crate::tier::memory::MemoryError;
use crate::tier::scratch::ScratchError;

/// An outcome of a file operation that is not a success. A cache miss is [`Error::NoObject`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing is stored under the name, or nothing that the caller may see.
    #[error("no such object")]
    NoObject,
    /// The name now stands for another version; the kernel looks it up again.
    #[error("the name stands for another version now")]
    Stale,
    /// The name is taken.
    #[error("the name exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A file was needed.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The name is longer than 255 bytes.
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    /// The directory would be too many levels below the root, or in a cluster have a path of which others cannot be told.
    #[error(
        "more than {DEPTH_MAX} levels of directories, or in a cluster a path of more than {CLUSTER_PATH_MAX} bytes"
    )]
    TooDeep,
    /// An argument means nothing.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The cache does not do this.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The cache never allows this.
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// Owner, group and mode of a file that the kernel was not told of give no right to it.
    #[error("owner, group and mode do not allow it")]
    Denied,
    /// The directory's quota is full of what cannot be evicted.
    #[error(
        "the quota of `{directory}` ({quota}) is full of what is open, pinned, being written or within a floor"
    )]
    OverQuota {
        /// Path of the directory that has the quota.
        directory: String,
        /// Its slot.
        slot: crate::namespace::Slot,
        /// Its quota.
        quota: ByteCount,
    },
    /// Everything left in the cache is open, pinned or protected.
    #[error("no room{}: everything left in the cache is open, pinned or within a floor", .needed.map(|needed| format!(" for {needed}")).unwrap_or_default())]
    NothingEvictable {
        /// What was asked for, where that is known.
        needed: Option<ByteCount>,
    },
    /// The disk of slot files takes no more.
    #[error(transparent)]
    ScratchFull(ScratchError),
    /// A file has as many attributes of applications, or as many bytes of them, as one may have.
    #[error("the attributes of one file are at most {COUNT_MAX} with {BYTES_MAX} bytes together")]
    AttributesFull,
    /// Larger than the cache or the scratch space can ever hold.
    #[error("{size} is more than the {capacity} that can ever be held")]
    TooLarge {
        /// What was asked for.
        size: ByteCount,
        /// What there is.
        capacity: ByteCount,
    },
    /// A length that no file of the scratch disk's file system can have, or none that this daemon may make.
    #[error("longer than a file of the scratch disk can be, or than one of this daemon may be (`ulimit -f`)")]
    TooLong,
    /// The extended attribute is not set.
    #[error("no such attribute")]
    NoAttribute,
    /// A directory of a cluster does not move: its contents are copied, and removed.
    #[error("a directory of a cluster is not renamed")]
    OtherPlace,
    /// The members of a cluster are to agree on this, and what they agree by is away. The log says what was asked, and why not.
    /// What had reached it may still come into force.
    #[error("the cluster's coordinator is away: what all members agree on cannot change now")]
    NotAgreed,
    /// As many directories of the cluster have a policy, owner or mode of their own as may. The log says how many that is.
    #[error("no more directories of a cluster can have a policy, owner or mode of their own")]
    AgreementsFull,
    /// A member that may hold something in the directory does not answer, and is not forgotten yet. The log says which.
    #[error("a member of the cluster does not say whether the directory is empty")]
    Unanswered,
    /// Too many requests wait already for threads that may wait.
    #[error("too many requests wait for a thread")]
    Overloaded,
    /// The file handle is not one of ours.
    #[error("not an open handle")]
    BadHandle,
    /// The operating system refused something that the cache needs.
    #[error("{operation}: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Wraps an I/O error with what was tried.
    pub(crate) fn io(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::FileTooLarge => Self::TooLong,
            _ => Self::Io { operation, source },
        }
    }
}

impl From<NameError> for Error {
    fn from(error: NameError) -> Self {
        match error {
            NameError::TooLong => Self::NameTooLong,
            NameError::Invalid => Self::Invalid("the name is empty, a dot, or holds a slash"),
        }
    }
}

impl From<TreeError> for Error {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Exists => Self::Exists,
            TreeError::Loop => Self::Invalid("a directory cannot move below itself"),
            TreeError::NotDirectory => Self::NotDirectory,
            TreeError::Removed => Self::Stale,
        }
    }
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Self {
        if error.is_full() {
            let needed = if let MemoryError::Full { needed, .. } = error { Some(needed) } else { None };
            return Self::NothingEvictable { needed };
        }
        if matches!(error, MemoryError::Stale { .. }) {
            return Self::Stale;
        }
        if error.is_too_long() {
            return Self::TooLong;
        }
        Self::Io { operation: "memory tier", source: io::Error::other(error) }
    }
}
