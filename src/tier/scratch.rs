//! Scratch: slot files of gigabytes that are rewritten in place, local to the host and gone with their last user.
//!
//! They are ordinary sparse files on disks, counted by real blocks against a capacity. A file is unlinked from the
//! disk's own namespace as soon as it is made, so a daemon that dies leaves nothing behind. Of several disks a new file
//! goes to the one with most room; one that refuses is passed over.
//!
//! Limits: `scratch.capacity`, and a part of the daemon's descriptors. Who finds no room waits at most `PATIENCE` for what others
//! give back, then says so; what it waited for a thread before counts ([`Wait`]).
//!
//! Threads: called from session threads, and from those that may wait where that is known ahead. A thread for each disk closes what
//! nobody uses.

mod budget;
mod closer;
mod file;
mod home;
mod room;
#[cfg(test)]
pub(crate) mod testing;

use std::cmp::Reverse;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit};
use tidefs_engine::types::ByteCount;

use self::budget::{Budget, Claim};
use self::closer::Closer;

pub use self::file::ScratchFile;
pub(crate) use self::home::Home;

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
    /// Its disk was not mounted, and the file system above is not to be filled.
    #[error(
        "scratch in `{directory}`: nothing was mounted on {root} when that was last looked at, and its disk \
         was at an earlier start; mount it, or name another directory in scratch.dir; the next slot file \
         looks again"
    )]
    Unmounted {
        /// Where scratch files live.
        directory: PathBuf,
        /// Where its file system was mounted at an earlier start.
        root: PathBuf,
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

/// Names in a row that may be taken.
const TAKEN_MAX: u32 = 1024;

/// How long somebody waits for the room of files that are being closed: a disk takes seconds for one in many pieces.
const PATIENCE: Duration = Duration::from_secs(30);
/// What who comes when that is over waits nevertheless.
const LATE_PATIENCE: Duration = Duration::from_millis(100);

/// How long somebody waits for what others give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Half a minute at most, from when there is no room.
    Patiently,
    /// Until a moment at most: a part of its time went before, as for a thread.
    Until(Instant),
    /// Not at all: it answers the kernel.
    NotHere,
}

/// The scratch space of one mount.
#[derive(Debug)]
pub struct Scratch {
    homes: Vec<Home>,
    makes_parents: bool,
    /// Those of all files, and of what is about to be written.
    bytes: Budget,
    /// Those that live, or are being made: a part of the descriptors that the daemon may have, the others are for objects and clients.
    files: Budget,
    patience: Duration,
    next: AtomicU64,
    closer: Arc<Closer>,
}

impl Scratch {
    /// Scratch space in `directories`, each of which is made when the first file needs it; what is above it only when
    /// `makes_parents`: a disk that is not mounted is not to be written to.
    #[must_use]
    pub fn new(directories: Vec<PathBuf>, makes_parents: bool, capacity: ByteCount) -> Arc<Self> {
        Self::in_homes(directories.into_iter().map(Home::new).collect(), makes_parents, capacity)
    }

    /// The same in `homes`, of whose disks something may be known.
    pub(crate) fn in_homes(homes: Vec<Home>, makes_parents: bool, capacity: ByteCount) -> Arc<Self> {
        let files_max = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft / FILES_SHARE);
        let closer = Closer::new(homes.len());
        Arc::new(Self {
            homes,
            makes_parents,
            bytes: Budget::new(capacity.get()),
            files: Budget::new(files_max),
            patience: PATIENCE,
            next: AtomicU64::new(0),
            closer,
        })
    }

    /// Real bytes in use, and those that what is being written may take.
    #[must_use]
    pub fn used(&self) -> ByteCount {
        ByteCount(self.bytes.taken())
    }

    /// Files that live, or are being made.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.taken()
    }

    /// Files that were closed by whoever let go of them, for want of a thread, and may have waited for the disk.
    #[must_use]
    pub fn closed_without_thread(&self) -> u64 {
        self.closer.without_thread()
    }

    /// Why directories were not used when that was last looked at, for the last file or at the start. Waits for no disk.
    #[must_use]
    pub fn troubles(&self) -> Vec<String> {
        self.homes.iter().filter_map(Home::trouble).map(|trouble| trouble.to_string()).collect()
    }

    /// Most bytes that may be in use.
    #[must_use]
    pub fn capacity(&self) -> ByteCount {
        ByteCount(self.bytes.max())
    }

    /// Whether who writes `length` bytes at `offset` of one of the files may have to [wait](ScratchFile::waits_for_room). Mostly there
    /// is room, which costs a look.
    #[must_use]
    pub fn may_wait_for_room(&self, offset: u64, length: ByteCount) -> bool {
        !self.bytes.has_room(room::pages(offset, length).get()) && self.bytes.is_any_loose()
    }

    /// The wait of who begins with it now, all of it.
    #[must_use]
    pub fn wait_from_now(&self) -> Wait {
        Wait::Until(Instant::now() + self.patience)
    }

    /// Until when who has to wait now does so.
    fn end_of(&self, wait: Wait) -> Instant {
        match wait {
            Wait::Patiently => Instant::now() + self.patience,
            // What others claim for the length of one write comes back in a moment.
            Wait::Until(end) => end.max(Instant::now() + LATE_PATIENCE),
            Wait::NotHere => Instant::now(),
        }
    }

    /// Whether who was refused would find room, or a place, now or after a wait.
    #[must_use]
    pub fn may_be_had(&self, refusal: &ScratchError) -> bool {
        match refusal {
            ScratchError::Full { needed, .. } => self.bytes.may_be_had(needed.get()),
            ScratchError::TooMany { .. } => self.files.may_be_had(1),
            ScratchError::DiskFull { .. }
            | ScratchError::Before
            | ScratchError::TooLong { .. }
            | ScratchError::Unmounted { .. }
            | ScratchError::Disk { .. } => false,
        }
    }

    /// Makes an empty file. Waits for files that are being closed when there are as many as may be.
    ///
    /// # Errors
    /// [`ScratchError::Disk`] when no directory can be made or written, [`ScratchError::Unmounted`], [`ScratchError::DiskFull`],
    /// [`ScratchError::TooMany`].
    pub fn create_within(self: &Arc<Self>, wait: Wait) -> Result<ScratchFile, ScratchError> {
        let place = self.files.claim(1, self.end_of(wait));
        let place = place.ok_or_else(|| ScratchError::TooMany { files: self.files() })?;
        let mut refusal = None;
        for number in self.homes_by_room() {
            match self.create_in(&self.homes[number]) {
                Ok(file) => return Ok(self.count(place, file, number)),
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

    /// A file that was made in one of the homes, for which there was a place.
    fn count(self: &Arc<Self>, place: Claim<'_>, file: File, home: usize) -> ScratchFile {
        place.settle(0, 1);
        ScratchFile::new(Arc::clone(self), file, home)
    }

    /// The directories, that on the disk with most room first, and those last whose disks are away, which is looked at here.
    fn homes_by_room(&self) -> Vec<usize> {
        let mut homes: Vec<usize> = (0..self.homes.len()).collect();
        if homes.len() > 1 {
            // One that is not made yet is on the disk of the directory above it.
            let statvfs = |path: &Path| nix::sys::statvfs::statvfs(path).ok();
            let room = |directory: &Path| {
                let facts = statvfs(directory).or_else(|| statvfs(directory.parent()?));
                facts.map_or(0, |facts| facts.fragment_size().saturating_mul(facts.blocks_available()))
            };
            homes.sort_by_cached_key(|number| {
                let home = &self.homes[*number];
                // One without any room may take an empty file.
                let is_away = home.unmounted().is_some();
                (is_away, Reverse(if is_away { 0 } else { room(home.directory()) }))
            });
        }
        homes
    }

    fn create_in(&self, home: &Home) -> Result<File, ScratchError> {
        home.prepare(self.makes_parents)?;
        let directory = home.directory();
        let failed = |source| disk_error(directory, source);
        let (path, file) = self.make_named(directory).map_err(failed)?;
        fs::remove_file(&path).map_err(failed)?;
        Ok(file)
    }

    /// A new file under the next name that is free: a daemon that was killed may have left some, and in a container its number is that
    /// of the next one.
    fn make_named(&self, directory: &Path) -> io::Result<(PathBuf, File)> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let mut taken = 0;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let path = directory.join(format!("{}-{number}", std::process::id()));
            match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && taken < TAKEN_MAX => taken += 1,
                outcome => return outcome.map(|file| (path, file)),
            }
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

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

    #[test]
    fn names_that_a_killed_daemon_of_the_same_number_left_are_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let left = |number: u32| directory.path().join(format!("{}-{number}", std::process::id()));
        (0..3).for_each(|number| drop(File::create(left(number)).unwrap()));
        let space = Scratch::new(vec![directory.path().to_path_buf()], true, ByteCount::mib(1));
        let made = space.create();
        assert!(made.is_ok(), "{made:?}");
        assert!((0..3).all(|number| left(number).exists()), "they may be another daemon's");
    }

    #[test]
    fn no_more_files_are_made_at_once_than_may_be() {
        let directory = tempfile::tempdir().unwrap();
        let mut space = Scratch::new(vec![directory.path().to_path_buf()], true, ByteCount::mib(1));
        Arc::get_mut(&mut space).unwrap().files = Budget::new(2);
        let together = Barrier::new(6);
        let create = || {
            together.wait();
            space.create()
        };
        let made: Vec<_> = thread::scope(|scope| {
            let making: Vec<_> = (0..6).map(|_| scope.spawn(create)).collect();
            making.into_iter().map(|making| making.join().unwrap()).collect()
        });
        assert_eq!((made.iter().flatten().count(), space.files()), (2, 2));
        let are_told =
            made.iter().all(|made| matches!(made, Ok(_) | Err(ScratchError::TooMany { files: 2 })));
        assert!(are_told);
        drop(made);
        let again = space.create();
        assert!(again.is_ok(), "who is refused takes no place: {again:?}");
    }
}
