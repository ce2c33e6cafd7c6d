//! How many bytes the tier holds, and how it gets and gives back pages.
//!
//! On its private tmpfs, which has a page for the names clock beside the capacity, the kernel counts, so that what writers put into segments by passthrough is counted too,
//! and refuses what passes the capacity. Without one ([`Space::count_here`]) the bytes are counted here, from
//! `st_blocks` before and after each of the tier's own operations; pages of a file that is unlinked while open
//! are not counted then.
//!
//! Invariants
//! - A reservation that fails leaves exactly the pages that were there before.
//! - `usage` costs one fstatvfs(2) on a kept descriptor and takes no lock but the counter's.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::{FileStat, Mode, fstatat};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{UnlinkatFlags, unlinkat};
use parking_lot::Mutex;
use tidefs_control_api::ioctl::CLOCK_BYTES;
use tidefs_engine::types::{ByteCount, FileOffset, PAGE};

use super::error::MemoryError;
use super::prefault::Prefault;

/// Bytes of the tmpfs that are the tier's own, beside those of objects: the names clock.
const OWN: ByteCount = ByteCount(CLOCK_BYTES as u64);

/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Bytes of the tier at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// What may be used, as configured and rounded down to pages.
    pub capacity: ByteCount,
    /// What is used, open and unlinked files included. More than `capacity` only while a shrink is pending.
    pub used: ByteCount,
    /// What can still be reserved.
    pub free: ByteCount,
}

/// The directory of the tier and the count of its pages.
#[derive(Debug)]
pub(super) struct Space {
    path: PathBuf,
    directory: File,
    capacity: ByteCount,
    /// Set while the kernel would accept more than `capacity`.
    shrink_pending: AtomicBool,
    /// Bytes in use where the kernel does not count for the tier alone. A mutex, since each operation is
    /// measured by looking before and after.
    counted: Option<Mutex<u64>>,
    /// What is freed before pages are allocated here.
    prefault: Option<Prefault>,
}

impl Space {
    /// The space of the private tmpfs that is mounted on `path`.
    pub(super) fn private(path: &Path, capacity: ByteCount) -> Result<Self, MemoryError> {
        Self::new(path, capacity, None)
    }

    /// The space of a plain directory on somebody's tmpfs; [`Self::count_here`] sets what is there already.
    pub(super) fn shared(path: &Path, capacity: ByteCount) -> Result<Self, MemoryError> {
        Self::new(path, capacity, Some(Mutex::new(0)))
    }

    fn new(path: &Path, capacity: ByteCount, counted: Option<Mutex<u64>>) -> Result<Self, MemoryError> {
        let directory = File::open(path).map_err(|error| MemoryError::io("open", path, error))?;
        Ok(Self {
            path: path.to_owned(),
            directory,
            capacity,
            shrink_pending: AtomicBool::new(false),
            counted,
            prefault: None,
        })
    }

    /// The same space, for which memory is touched ahead.
    pub(super) fn with_prefault(self, prefault: Prefault) -> Self {
        Self { prefault: Some(prefault), ..self }
    }

    /// See [`Self::with_prefault`].
    pub(super) fn prefault(&self) -> Option<&Prefault> {
        self.prefault.as_ref()
    }

    /// The directory of the tier.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The size of a private tmpfs for so many bytes of objects.
    pub(super) fn size_for(capacity: ByteCount) -> ByteCount {
        capacity.saturating_add(OWN)
    }

    /// What may be used.
    pub(super) fn capacity(&self) -> ByteCount {
        self.capacity
    }

    /// An open descriptor of the directory.
    pub(super) fn directory(&self) -> &File {
        &self.directory
    }

    /// Says whether the kernel's limit is still above the capacity.
    pub(super) fn set_shrink_pending(&self, pending: bool) {
        self.shrink_pending.store(pending, Ordering::Relaxed);
    }

    /// See [`Self::set_shrink_pending`].
    pub(super) fn shrink_pending(&self) -> bool {
        self.shrink_pending.load(Ordering::Relaxed)
    }

    /// Adds the pages of a file that was there before the tier opened.
    pub(super) fn count_here(&self, name: &str) -> Result<(), MemoryError> {
        if let Some(counted) = &self.counted {
            *counted.lock() += stat_bytes(&self.stat(name)?);
        }
        Ok(())
    }

    /// Bytes of the tier now.
    pub(super) fn usage(&self) -> Result<MemoryUsage, MemoryError> {
        let stat = fstatvfs(&self.directory).map_err(|error| self.error("ask the usage of", error))?;
        let fragment = stat.fragment_size();
        let (used, available) = match &self.counted {
            None => {
                let used = fragment * stat.blocks().saturating_sub(stat.blocks_free());
                (used.saturating_sub(OWN.get()), u64::MAX)
            }
            Some(counted) => (*counted.lock(), fragment * stat.blocks_available()),
        };
        let free = self.capacity.get().saturating_sub(used).min(available);
        Ok(MemoryUsage { capacity: self.capacity, used: ByteCount(used), free: ByteCount(free) })
    }

    /// Allocates every page of a range without changing the file's size.
    pub(super) fn reserve(
        &self,
        file: &File,
        offset: FileOffset,
        length: ByteCount,
    ) -> Result<(), MemoryError> {
        if length == ByteCount::ZERO {
            return Ok(());
        }
        if self.shrink_pending() && self.usage()?.free < length {
            return Err(self.full(length, self.usage()?.used.get()));
        }
        if let Some(prefault) = &self.prefault {
            prefault.give(length);
        }
        match &self.counted {
            None => match allocate(file, offset, length) {
                Ok(()) => Ok(()),
                Err(error) => Err(self.refused(file, error, length, self.usage()?.used.get())),
            },
            Some(counted) => {
                let mut counted = counted.lock();
                let mut used = *counted;
                self.reserve_counted(&mut used, file, offset, length)?;
                // What a file gets after its name went is in no account: nobody tells of its last close.
                if is_named(file).map_err(|error| MemoryError::file("stat", file, error))? {
                    *counted = used;
                }
                Ok(())
            }
        }
    }

    /// Cuts the file to `length`, and gives back whatever is allocated beyond.
    ///
    /// # Source
    /// tmpfs frees pages beyond the end of a file when it is truncated to the size it has already
    /// (`shmem_setattr`); a test below holds the kernel to it.
    pub(super) fn trim(&self, file: &File, length: ByteCount) -> Result<(), MemoryError> {
        self.changing(file, || file.set_len(length.get()))
            .map_err(|error| MemoryError::file("trim", file, error))
    }

    /// Gives back the pages that lie wholly in a range, all of which reads as zeros from then on.
    pub(super) fn punch(
        &self,
        file: &File,
        offset: FileOffset,
        length: ByteCount,
    ) -> Result<(), MemoryError> {
        self.changing(file, || punch(file, offset, length))
            .map_err(|error| MemoryError::file("punch", file, error))
    }

    /// Removes a name; that it is gone already is fine.
    pub(super) fn unlink(&self, name: &str) -> Result<(), MemoryError> {
        let mut counted = self.counted.as_ref().map(Mutex::lock);
        let held = if counted.is_some() { self.stat(name).map_or(0, |stat| stat_bytes(&stat)) } else { 0 };
        match unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => {
                if let Some(counted) = counted.as_deref_mut() {
                    *counted = counted.saturating_sub(held);
                }
                Ok(())
            }
            Err(Errno::ENOENT) => Ok(()),
            Err(error) => Err(MemoryError::io("unlink", self.path.join(name), error)),
        }
    }

    /// Removes the name of a file that is in no account; that it is gone already is fine.
    pub(super) fn unlink_own(&self, name: &str) -> Result<(), MemoryError> {
        match unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(error) => Err(MemoryError::io("unlink", self.path.join(name), error)),
        }
    }

    /// Makes a file that did not exist, open for reading and writing.
    pub(super) fn create(&self, name: &str) -> Result<File, MemoryError> {
        self.open_with(name, OFlag::O_CREAT | OFlag::O_EXCL)
            .map_err(|error| MemoryError::io("create", self.path.join(name), error))
    }

    /// Opens a file for reading and writing.
    pub(super) fn open(&self, name: &str) -> Result<File, MemoryError> {
        self.open_with(name, OFlag::empty())
            .map_err(|error| MemoryError::io("open", self.path.join(name), error))
    }

    /// Attributes of the file with that name.
    pub(super) fn stat(&self, name: &str) -> Result<FileStat, MemoryError> {
        fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|error| MemoryError::io("stat", self.path.join(name), error))
    }

    fn open_with(&self, name: &str, flags: OFlag) -> nix::Result<File> {
        let flags = flags | OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        openat(&self.directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(File::from)
    }

    /// Reserves where the kernel's limit is not the tier's.
    fn reserve_counted(
        &self,
        counted: &mut u64,
        file: &File,
        offset: FileOffset,
        length: ByteCount,
    ) -> Result<(), MemoryError> {
        let capacity = self.capacity.get();
        let pages = pages_around(offset, length);
        let before = allocated(file)?;
        if counted.saturating_add((pages.end - pages.start).saturating_mul(PAGE.get())) <= capacity {
            allocate(file, offset, length).map_err(|error| self.refused(file, error, length, *counted))?;
            *counted = counted.saturating_add(allocated(file)?.get()).saturating_sub(before.get());
            return Ok(());
        }
        // Close to the limit, where how much of the range is allocated already decides: page by page, so that
        // the new ones are known and can be given back.
        let mut held = before.get();
        let mut added: Vec<FileOffset> = Vec::new();
        for page in pages {
            let at = FileOffset(page * PAGE.get());
            let outcome =
                allocate(file, at, PAGE).map_err(|error| self.refused(file, error, length, *counted));
            let now = allocated(file)?.get();
            if now > held {
                added.push(at);
                held = now;
            }
            let total = counted.saturating_add(now).saturating_sub(before.get());
            let outcome = if total > capacity { Err(self.full(length, *counted)) } else { outcome };
            if outcome.is_err() {
                for at in added {
                    punch(file, at, PAGE).map_err(|error| MemoryError::file("punch", file, error))?;
                }
                return outcome;
            }
        }
        *counted = counted.saturating_add(held).saturating_sub(before.get());
        Ok(())
    }

    /// Runs an operation that may free pages of `file`, and counts them where that is done here.
    fn changing(&self, file: &File, operation: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Some(counted) = &self.counted else { return operation() };
        let mut counted = counted.lock();
        let before = blocks(file)?;
        let outcome = operation();
        if is_named(file)? {
            *counted = counted.saturating_add(blocks(file)?).saturating_sub(before);
        }
        outcome
    }

    fn refused(&self, file: &File, error: Errno, needed: ByteCount, used: u64) -> MemoryError {
        match error {
            Errno::ENOSPC => self.full(needed, used),
            error => MemoryError::file("reserve bytes of", file, error),
        }
    }

    fn full(&self, needed: ByteCount, used: u64) -> MemoryError {
        MemoryError::Full { needed, used: ByteCount(used), capacity: self.capacity }
    }

    fn error(&self, operation: &'static str, error: Errno) -> MemoryError {
        MemoryError::io(operation, &self.path, error)
    }
}

/// Bytes of the pages that a file holds, reserved ones included.
pub(super) fn allocated(file: &File) -> Result<ByteCount, MemoryError> {
    blocks(file).map(ByteCount).map_err(|error| MemoryError::file("stat", file, error))
}

fn blocks(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.blocks() * BLOCK_BYTES)
}

/// Whether the pages of a file are in the count: its name has not been removed.
fn is_named(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.nlink() > 0)
}

/// Bytes of the pages of a file.
pub(super) fn stat_bytes(stat: &FileStat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK_BYTES
}

/// Allocates the pages of a range; on failure the kernel gives back those that it added.
fn allocate(file: &File, offset: FileOffset, length: ByteCount) -> nix::Result<()> {
    let at = libc::off_t::try_from(offset.0).map_err(|_| Errno::EFBIG)?;
    let count = libc::off_t::try_from(length.get()).map_err(|_| Errno::EFBIG)?;
    loop {
        match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, at, count) {
            Err(Errno::EINTR) => {}
            outcome => return outcome,
        }
    }
}

fn punch(file: &File, offset: FileOffset, length: ByteCount) -> io::Result<()> {
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let at = libc::off_t::try_from(offset.0).map_err(|_| io::ErrorKind::InvalidInput)?;
    let count = libc::off_t::try_from(length.get()).map_err(|_| io::ErrorKind::InvalidInput)?;
    loop {
        match fallocate(file, flags, at, count) {
            Err(Errno::EINTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// Numbers of the pages that a range touches.
fn pages_around(offset: FileOffset, length: ByteCount) -> std::ops::Range<u64> {
    let end = offset.0.saturating_add(length.get());
    offset.0 / PAGE.get()..end.div_ceil(PAGE.get())
}
