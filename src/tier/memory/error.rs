//! What goes wrong in the memory tier, each with its cause and the next step.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use tidefs_engine::types::ByteCount;

use super::packed::PackedExtent;
use super::record::RecordError;

/// Why the memory tier did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The bytes do not fit now. Nothing was allocated; evicting and trying again is the way on.
    #[error(
        "the memory tier is full: {needed} more do not fit, {used} of {capacity} are used; evict objects or raise `capacity`"
    )]
    Full {
        /// Bytes that were asked for.
        needed: ByteCount,
        /// Bytes in use at that moment.
        used: ByteCount,
        /// The configured capacity.
        capacity: ByteCount,
    },
    /// The configured capacity cannot hold anything.
    #[error("capacity {capacity} is below the smallest memory tier, {minimum}; raise `capacity`")]
    CapacityTooSmall {
        /// What was configured.
        capacity: ByteCount,
        /// The least that works.
        minimum: ByteCount,
    },
    /// The private tmpfs was refused for another reason than missing rights.
    #[error("cannot mount the private tmpfs on {path}: {source}; see the kernel log, or choose another state directory", path = path.display())]
    Mount {
        /// Where it was to be mounted.
        path: PathBuf,
        /// What mount(2) said.
        source: io::Error,
    },
    /// No right to mount, and the directory is not on a tmpfs that could serve instead.
    #[error(
        "no right to mount a private tmpfs on {path} ({source}), and that directory is not on a tmpfs; start with CAP_SYS_ADMIN, or choose a state directory below /dev/shm",
        path = path.display()
    )]
    NotOnTmpfs {
        /// The directory that was configured.
        path: PathBuf,
        /// What mount(2) said.
        source: io::Error,
    },
    /// Neither user nor trusted extended attributes work there, so nothing could be found again.
    #[error(
        "{path} keeps no extended attributes ({source}); use Linux 6.6 or later, or start with CAP_SYS_ADMIN",
        path = path.display()
    )]
    NoAttributes {
        /// The directory that was probed.
        path: PathBuf,
        /// What fsetxattr(2) said to the last attempt.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {operation} {path}: {source}", path = path.display())]
    Io {
        /// What was tried, as a verb phrase.
        operation: &'static str,
        /// The file or directory concerned.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A record does not decode, or cannot be encoded.
    #[error("record of {path}: {source}", path = path.display())]
    Record {
        /// The file that carries the record, or the name it is for.
        path: PathBuf,
        /// What is wrong with it.
        source: RecordError,
    },
    /// A segment that is to be sealed, or a packed object, is not as long as its record states.
    #[error("{path} does not fit its record: it has {file}, the record states {record}", path = path.display())]
    SizeMismatch {
        /// The segment file, with the place of the packed object.
        path: PathBuf,
        /// Size of the file, or of the object in it.
        file: ByteCount,
        /// Size in the record, or that the object is known by.
        record: ByteCount,
    },
    /// A packed extent no longer holds the object it was given out for.
    #[error("{extent} holds no such object: it was freed; look the object up again")]
    Stale {
        /// The extent.
        extent: PackedExtent,
    },
    /// An object that is too large to be packed.
    #[error("an object of {size} cannot be packed, {maximum} is the most; give it a segment of its own")]
    TooLarge {
        /// Its size.
        size: ByteCount,
        /// The limit.
        maximum: ByteCount,
    },
}

impl MemoryError {
    /// True when freeing bytes and trying again can succeed.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            // A write into pages that were not reserved, or a file system without room for another file.
            Self::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            _ => false,
        }
    }

    /// True when the system lets this process make no file of that length.
    #[must_use]
    pub fn is_too_long(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::FileTooLarge)
    }

    /// True when the object or segment that was named is there no more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Stale { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    /// An [`MemoryError::Io`] about a path.
    pub(super) fn io(
        operation: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Io { operation, path: path.into(), source: source.into() }
    }

    /// An [`MemoryError::Io`] about an open file, whose name is asked from the kernel.
    pub(super) fn file(operation: &'static str, file: &File, source: impl Into<io::Error>) -> Self {
        Self::io(operation, path_of(file), source)
    }
}

/// The name of an open file, for messages only.
pub(super) fn path_of(file: &File) -> PathBuf {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::read_link(&link).unwrap_or_else(|_| link.into())
}
