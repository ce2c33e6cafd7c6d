//! Scratch: slot files of gigabytes that are rewritten in place, local to the host and gone with their last user.
//!
//! They are ordinary sparse files on a disk, counted by real blocks against a capacity. A file is unlinked from the
//! disk's own namespace as soon as it is made, so a daemon that dies leaves nothing behind.
//!
//! Threads: called from session threads; the count is one atomic.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nix::fcntl::{FallocateFlags, fallocate};
use tidefs_engine::types::ByteCount;

/// Why scratch space cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScratchError {
    /// The capacity is used up.
    #[error("scratch is full: {needed} more would pass its capacity of {capacity}; raise scratch.capacity")]
    Full {
        /// What was asked for.
        needed: ByteCount,
        /// The configured capacity.
        capacity: ByteCount,
    },
    /// The disk is full, though the capacity is not used up.
    #[error("the disk of scratch in `{directory}` is full; free some of it, or lower scratch.capacity")]
    DiskFull {
        /// Where scratch files live.
        directory: PathBuf,
    },
    /// No file of the disk's file system can be that long.
    #[error("the file system of scratch in `{directory}` holds no file of that length")]
    TooLong {
        /// Where scratch files live.
        directory: PathBuf,
    },
    /// The disk refused.
    #[error("scratch in `{directory}`: {source}; check that scratch.dir is on a writable disk")]
    Disk {
        /// Where scratch files live.
        directory: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// The scratch space of one mount.
#[derive(Debug)]
pub struct Scratch {
    directory: PathBuf,
    capacity: ByteCount,
    used: AtomicU64,
    files: AtomicU64,
    ready: OnceLock<()>,
    next: AtomicU64,
}

/// One scratch file. Its blocks are given back when the value is dropped.
#[derive(Debug)]
pub struct ScratchFile {
    space: Arc<Scratch>,
    file: Arc<File>,
    charged: AtomicU64,
}

impl Scratch {
    /// Scratch space in `directory`, which is made when the first file needs it.
    #[must_use]
    pub fn new(directory: PathBuf, capacity: ByteCount) -> Arc<Self> {
        Arc::new(Self {
            directory,
            capacity,
            used: AtomicU64::new(0),
            files: AtomicU64::new(0),
            ready: OnceLock::new(),
            next: AtomicU64::new(0),
        })
    }

    /// Real bytes in use.
    #[must_use]
    pub fn used(&self) -> ByteCount {
        ByteCount(self.used.load(Ordering::Relaxed))
    }

    /// Files that live.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Most bytes that may be in use.
    #[must_use]
    pub fn capacity(&self) -> ByteCount {
        self.capacity
    }

    fn disk(&self, source: io::Error) -> ScratchError {
        let directory = self.directory.clone();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ScratchError::DiskFull { directory },
            io::ErrorKind::FileTooLarge => ScratchError::TooLong { directory },
            _ => ScratchError::Disk { directory, source },
        }
    }

    /// Makes an empty file.
    ///
    /// # Errors
    /// [`ScratchError::Disk`] when the directory cannot be made or written, [`ScratchError::DiskFull`].
    pub fn create(self: &Arc<Self>) -> Result<ScratchFile, ScratchError> {
        if self.ready.get().is_none() {
            fs::create_dir_all(&self.directory).map_err(|source| self.disk(source))?;
            self.ready.get_or_init(|| ());
        }
        let name = format!("{}-{}", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        let path = self.directory.join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|source| self.disk(source))?;
        fs::remove_file(&path).map_err(|source| self.disk(source))?;
        self.files.fetch_add(1, Ordering::Relaxed);
        Ok(ScratchFile { space: Arc::clone(self), file: Arc::new(file), charged: AtomicU64::new(0) })
    }
}

impl ScratchFile {
    /// The file itself, to read and to write inside what was [made room for](Self::grow).
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Makes sure that `more` bytes may be written.
    ///
    /// # Errors
    /// [`ScratchError::Full`] when they would pass the capacity.
    pub fn admit(&self, more: ByteCount) -> Result<(), ScratchError> {
        if self.space.used().saturating_add(more) > self.space.capacity {
            return Err(ScratchError::Full { needed: more, capacity: self.space.capacity });
        }
        Ok(())
    }

    /// Counts the blocks that the file really has now. Called after each change of them.
    pub fn recount(&self) {
        let Ok(metadata) = self.file.metadata() else { return };
        let now = metadata.blocks() * 512;
        let before = self.charged.swap(now, Ordering::Relaxed);
        if now >= before {
            self.space.used.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.space.used.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    /// Writes `data` at `offset`, growing the file as needed.
    ///
    /// # Errors
    /// [`ScratchError`], and then nothing was written.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<(), ScratchError> {
        self.admit(ByteCount(data.len() as u64))?;
        self.file.write_all_at(data, offset).map_err(|source| self.space.disk(source))?;
        self.recount();
        Ok(())
    }

    /// Sets the length; growth is a hole and costs nothing yet.
    ///
    /// # Errors
    /// [`ScratchError`].
    pub fn set_length(&self, length: ByteCount) -> Result<(), ScratchError> {
        self.file.set_len(length.get()).map_err(|source| self.space.disk(source))?;
        self.recount();
        Ok(())
    }

    /// Allocates a range, so that writing it later cannot fail for room.
    ///
    /// # Errors
    /// [`ScratchError`].
    pub fn grow(&self, offset: u64, length: ByteCount, keep_size: bool) -> Result<(), ScratchError> {
        self.admit(length)?;
        let flags = if keep_size { FallocateFlags::FALLOC_FL_KEEP_SIZE } else { FallocateFlags::empty() };
        self.change_range(flags, offset, length)
    }

    /// Frees a range, which then reads as zeros.
    ///
    /// # Errors
    /// [`ScratchError`].
    pub fn punch(&self, offset: u64, length: ByteCount) -> Result<(), ScratchError> {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        self.change_range(flags, offset, length)
    }

    fn change_range(
        &self,
        flags: FallocateFlags,
        offset: u64,
        length: ByteCount,
    ) -> Result<(), ScratchError> {
        let as_offset = |value: u64| {
            i64::try_from(value).map_err(|_| self.space.disk(io::Error::from(io::ErrorKind::FileTooLarge)))
        };
        fallocate(&*self.file, flags, as_offset(offset)?, as_offset(length.get())?)
            .map_err(|errno| self.space.disk(errno.into()))?;
        self.recount();
        Ok(())
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        self.space.files.fetch_sub(1, Ordering::Relaxed);
        self.space.used.fetch_sub(self.charged.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_while_the_file_lives_and_holes_are_free() {
        let directory = tempfile::tempdir().unwrap();
        let space = Scratch::new(directory.path().join("scratch"), ByteCount::mib(8));
        let file = space.create().unwrap();
        file.set_length(ByteCount::gib(4)).unwrap();
        assert!(space.used() < ByteCount::mib(1));
        file.write_at(&[7; 65536], 1 << 30).unwrap();
        assert!(space.used() >= ByteCount(65536));
        assert_eq!(fs::read_dir(directory.path().join("scratch")).unwrap().count(), 0);
        drop(file);
        assert_eq!(space.used(), ByteCount::ZERO);
    }

    #[test]
    fn a_length_that_the_disk_cannot_hold_is_told_from_a_disk_that_fails() {
        let directory = tempfile::tempdir().unwrap();
        let space = Scratch::new(directory.path().to_path_buf(), ByteCount::mib(1));
        let file = space.create().unwrap();
        let beyond = i64::MAX as u64;
        // tmpfs takes any length; ext4, xfs and btrfs do not.
        match file.set_length(ByteCount(beyond)) {
            Ok(()) => assert_eq!(file.file().metadata().unwrap().len(), beyond),
            Err(error) => assert!(matches!(error, ScratchError::TooLong { .. }), "{error}"),
        }
        let error = file.grow(beyond, ByteCount(1), false).unwrap_err();
        assert!(matches!(error, ScratchError::TooLong { .. } | ScratchError::DiskFull { .. }), "{error}");
        let full = space.disk(io::Error::from_raw_os_error(libc::ENOSPC));
        assert!(matches!(full, ScratchError::DiskFull { .. }), "{full}");
    }

    #[test]
    fn what_would_pass_the_capacity_is_refused_whole() {
        let directory = tempfile::tempdir().unwrap();
        let space = Scratch::new(directory.path().to_path_buf(), ByteCount::mib(1));
        let file = space.create().unwrap();
        assert!(matches!(file.write_at(&vec![1; 2 << 20], 0), Err(ScratchError::Full { .. })));
        assert_eq!(file.file().metadata().unwrap().len(), 0);
    }
}
