//! Scratch: slot files of gigabytes that are rewritten in place, local to the host and gone with their last user.
//!
//! They are ordinary sparse files on disks, counted by real blocks against a capacity. A file is unlinked from the
//! disk's own namespace as soon as it is made, so a daemon that dies leaves nothing behind. Of several disks a new file
//! goes to the one with most room; one that refuses is passed over.
//!
//! Threads: called from session threads; the count is one atomic. A thread of its own closes what nobody uses.

mod closer;
mod room;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::resource::{Resource, getrlimit};
use tidefs_engine::types::ByteCount;

use self::closer::{Closer, Closing};

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
    /// It took no more when the file was written.
    #[error("scratch was full when the file was written; raise scratch.capacity, or free its disk")]
    Before,
    /// There are as many files as may be: each takes a descriptor of the daemon.
    #[error(
        "{files} slot files are open, as many as may be; raise the daemon's limit on open files (LimitNOFILE)"
    )]
    TooMany {
        /// How many there are.
        files: u64,
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

/// Part of the daemon's descriptors that scratch files may take.
const FILES_SHARE: u64 = 4;

/// The scratch space of one mount.
#[derive(Debug)]
pub struct Scratch {
    homes: Vec<Home>,
    makes_parents: bool,
    capacity: ByteCount,
    used: AtomicU64,
    files: AtomicU64,
    /// How many may live: a part of the descriptors that the daemon may have, the others are for objects and clients.
    files_max: u64,
    next: AtomicU64,
    closer: Arc<Closer>,
}

/// A directory of scratch files.
#[derive(Debug)]
struct Home {
    directory: PathBuf,
    is_ready: OnceLock<()>,
}

/// One scratch file. Its blocks are given back soon after the value is dropped, which waits for no disk.
#[derive(Debug)]
pub struct ScratchFile {
    space: Arc<Scratch>,
    /// There until it is dropped.
    file: Option<Arc<File>>,
    /// Its directory, among those of the space.
    home: usize,
    charged: AtomicU64,
    /// Where what was [allocated](Self::grow) of it ends at most, which may be beyond its end.
    reach: AtomicU64,
}

impl Scratch {
    /// Scratch space in `directories`, each of which is made when the first file needs it; what is above it only when
    /// `makes_parents`: a disk that is not mounted is not to be written to.
    #[must_use]
    pub fn new(directories: Vec<PathBuf>, makes_parents: bool, capacity: ByteCount) -> Arc<Self> {
        let home = |directory| Home { directory, is_ready: OnceLock::new() };
        Arc::new(Self {
            homes: directories.into_iter().map(home).collect(),
            makes_parents,
            capacity,
            used: AtomicU64::new(0),
            files: AtomicU64::new(0),
            files_max: getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft / FILES_SHARE),
            next: AtomicU64::new(0),
            closer: Arc::default(),
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

    /// Files that were closed by whoever let go of them, for want of a thread, and may have waited for the disk.
    #[must_use]
    pub fn closed_without_thread(&self) -> u64 {
        self.closer.without_thread()
    }

    /// Most bytes that may be in use.
    #[must_use]
    pub fn capacity(&self) -> ByteCount {
        self.capacity
    }

    /// Makes an empty file. Waits for files that are being closed when there are as many as may be.
    ///
    /// # Errors
    /// [`ScratchError::Disk`] when no directory can be made or written, [`ScratchError::DiskFull`], [`ScratchError::TooMany`].
    pub fn create(self: &Arc<Self>) -> Result<ScratchFile, ScratchError> {
        while self.files() >= self.files_max {
            if !self.closer.help() {
                return Err(ScratchError::TooMany { files: self.files() });
            }
        }
        let mut refusal = None;
        for number in self.homes_by_room() {
            match self.create_in(&self.homes[number]) {
                Ok(file) => return Ok(self.count(file, number)),
                Err(error) => {
                    if self.homes.len() > 1 {
                        tracing::warn!(%error, "a disk takes no scratch file");
                    }
                    refusal.get_or_insert(error);
                }
            }
        }
        Err(refusal.unwrap_or_else(|| disk_error(Path::new(""), io::ErrorKind::NotFound.into())))
    }

    /// A file that was made in one of the homes.
    fn count(self: &Arc<Self>, file: File, home: usize) -> ScratchFile {
        self.files.fetch_add(1, Ordering::Relaxed);
        let (space, file) = (Arc::clone(self), Some(Arc::new(file)));
        ScratchFile { space, file, home, charged: AtomicU64::new(0), reach: AtomicU64::new(0) }
    }

    /// The directories, that on the disk with most room first.
    fn homes_by_room(&self) -> Vec<usize> {
        let mut homes: Vec<usize> = (0..self.homes.len()).collect();
        if homes.len() > 1 {
            // One that is not made yet is on the disk of the directory above it.
            let statvfs = |path: &Path| nix::sys::statvfs::statvfs(path).ok();
            let room = |home: &usize| {
                let directory = &self.homes[*home].directory;
                let facts = statvfs(directory).or_else(|| statvfs(directory.parent()?));
                facts.map_or(0, |facts| facts.fragment_size().saturating_mul(facts.blocks_available()))
            };
            homes.sort_by_cached_key(|home| std::cmp::Reverse(room(home)));
        }
        homes
    }

    fn create_in(&self, home: &Home) -> Result<File, ScratchError> {
        let directory = &home.directory;
        let failed = |source| disk_error(directory, source);
        if home.is_ready.get().is_none() {
            let made = if self.makes_parents { fs::create_dir_all(directory) } else { make_one(directory) };
            made.map_err(failed)?;
            home.is_ready.get_or_init(|| ());
        }
        let name = format!("{}-{}", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        let path = directory.join(name);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        fs::remove_file(&path).map_err(failed)?;
        Ok(file)
    }
}

/// Makes a directory below one that exists; one that is there is fine.
fn make_one(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

fn disk_error(directory: &Path, source: io::Error) -> ScratchError {
    let directory = directory.to_owned();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ScratchError::DiskFull { directory },
        io::ErrorKind::FileTooLarge => ScratchError::TooLong { directory },
        _ => ScratchError::Disk { directory, source },
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.closer.end();
    }
}

impl ScratchFile {
    fn disk(&self, source: io::Error) -> ScratchError {
        disk_error(&self.space.homes[self.home].directory, source)
    }

    /// The file itself, to read and to write inside what was [made room for](Self::grow).
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        self.file.as_ref().expect("it is taken when the value is dropped, and not before")
    }

    /// Counts the blocks that the file really has now. Called after each change of them.
    pub fn recount(&self) {
        let Ok(metadata) = self.file().metadata() else { return };
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
    /// [`ScratchError`]; nothing was written then, unless the disk refused: then a part of it may have been.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<(), ScratchError> {
        self.admit(offset, ByteCount(data.len() as u64))?;
        let written = self.file().write_all_at(data, offset);
        // A disk that became full took a part of it.
        self.recount();
        written.map_err(|source| self.disk(source))
    }

    /// Sets the length; growth is a hole and costs nothing yet.
    ///
    /// # Errors
    /// [`ScratchError`].
    pub fn set_length(&self, length: ByteCount) -> Result<(), ScratchError> {
        let before = self.file().metadata().map_err(|source| self.disk(source))?.len();
        self.file().set_len(length.get()).map_err(|source| self.disk(source))?;
        if length.get() < before {
            // What was allocated beyond has gone.
            self.reach.fetch_min(length.get(), Ordering::Relaxed);
        }
        self.recount();
        Ok(())
    }

    /// Allocates a range, so that writing it later cannot fail for room.
    ///
    /// # Errors
    /// [`ScratchError`].
    pub fn grow(&self, offset: u64, length: ByteCount, keep_size: bool) -> Result<(), ScratchError> {
        self.admit(offset, length)?;
        self.reach.fetch_max(offset.saturating_add(length.get()), Ordering::Relaxed);
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
            i64::try_from(value).map_err(|_| self.disk(io::Error::from(io::ErrorKind::FileTooLarge)))
        };
        let changed = fallocate(&**self.file(), flags, as_offset(offset)?, as_offset(length.get())?);
        // As above.
        self.recount();
        changed.map_err(|errno| self.disk(errno.into()))
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        let (space, charged) = (Arc::clone(&self.space), self.charged.load(Ordering::Relaxed));
        self.space.closer.close(Closing { space, file, charged });
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use super::*;

    #[test]
    fn blocks_are_counted_while_the_file_lives_and_holes_are_free() {
        let directory = tempfile::tempdir().unwrap();
        let space = Scratch::new(vec![directory.path().join("scratch")], true, ByteCount::mib(8));
        let file = space.create().unwrap();
        file.set_length(ByteCount::gib(4)).unwrap();
        assert!(space.used() < ByteCount::mib(1));
        file.write_at(&[7; 65536], 1 << 30).unwrap();
        assert!(space.used() >= ByteCount(65536));
        assert_eq!(fs::read_dir(directory.path().join("scratch")).unwrap().count(), 0);
        drop(file);
        until_closed(&space);
        assert_eq!(space.used(), ByteCount::ZERO);
    }

    fn until_closed(space: &Scratch) {
        while space.files() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A file whose last close takes until what stands in the connection is read: it waits for its peer to take what was
    /// sent, as that of a file waits for a disk.
    fn slow_to_close(space: &Arc<Scratch>) -> (ScratchFile, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let linger = libc::linger { l_onoff: 1, l_linger: 30 };
        nix::sys::socket::setsockopt(&sender, nix::sys::socket::sockopt::Linger, &linger).unwrap();
        sender.set_nonblocking(true).unwrap();
        while sender.write(&[1; 65536]).is_ok() {}
        (space.count(File::from(OwnedFd::from(sender)), 0), peer)
    }

    #[test]
    fn who_lets_go_of_a_file_does_not_wait_for_its_last_close() {
        let space = Scratch::new(vec![], false, ByteCount::mib(1));
        let (file, mut peer) = slow_to_close(&space);
        drop(file);
        assert_eq!(space.files(), 1, "its close goes on");
        io::copy(&mut peer, &mut io::sink()).unwrap();
        until_closed(&space);
    }

    #[test]
    fn who_needs_the_room_of_a_file_that_is_being_closed_waits_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let space = Scratch::new(vec![directory.path().to_path_buf()], true, ByteCount::mib(1));
        let (file, mut peer) = slow_to_close(&space);
        let other = space.create().unwrap();
        file.charged.store(1 << 20, Ordering::Relaxed);
        space.used.store(1 << 20, Ordering::Relaxed);
        assert!(matches!(other.write_at(&[1; 4096], 0), Err(ScratchError::Full { .. })), "nothing is closed");
        drop(file);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| other.write_at(&[1; 4096], 0));
            io::copy(&mut peer, &mut io::sink()).unwrap();
            writing.join().unwrap().expect("there is room once it is closed");
        });
    }

    #[test]
    fn a_length_that_the_disk_cannot_hold_is_told_from_a_disk_that_fails() {
        let directory = tempfile::tempdir().unwrap();
        let space = Scratch::new(vec![directory.path().to_path_buf()], true, ByteCount::mib(1));
        let file = space.create().unwrap();
        let beyond = i64::MAX as u64;
        // tmpfs takes any length; ext4, xfs and btrfs do not.
        match file.set_length(ByteCount(beyond)) {
            Ok(()) => assert_eq!(file.file().metadata().unwrap().len(), beyond),
            Err(error) => assert!(matches!(error, ScratchError::TooLong { .. }), "{error}"),
        }
        let error = file.grow(beyond, ByteCount(1), false).unwrap_err();
        assert!(matches!(error, ScratchError::TooLong { .. } | ScratchError::DiskFull { .. }), "{error}");
        let full = file.disk(io::Error::from_raw_os_error(libc::ENOSPC));
        assert!(matches!(full, ScratchError::DiskFull { .. }), "{full}");
    }

    #[test]
    fn what_would_pass_the_capacity_is_refused_whole() {
        let directory = tempfile::tempdir().unwrap();
        let space = Scratch::new(vec![directory.path().to_path_buf()], true, ByteCount::mib(1));
        let file = space.create().unwrap();
        assert!(matches!(file.write_at(&vec![1; 2 << 20], 0), Err(ScratchError::Full { .. })));
        assert_eq!(file.file().metadata().unwrap().len(), 0);
    }

    #[test]
    fn a_disk_that_is_not_there_is_passed_over_and_nothing_is_made_in_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let (absent, there) = (directory.path().join("absent"), directory.path().join("there"));
        fs::create_dir(&there).unwrap();
        let homes = [&absent, &there].map(|place| place.join("scratch")).to_vec();
        let space = Scratch::new(homes, false, ByteCount::mib(1));
        let file = space.create().unwrap();
        assert!(file.write_at(&[1; 4096], 0).is_ok() && there.join("scratch").exists() && !absent.exists());
        fs::remove_dir_all(&there).unwrap();
        assert!(matches!(space.create(), Err(ScratchError::Disk { .. })));
    }
}
