//! One scratch file: what is written, allocated and freed of it. Room is claimed before each change that takes some, and the blocks
//! that it has are counted after it.
//!
//! Invariants
//! - What is counted for a file is given back once, when it is [closed](super::closer).
//! - What the disk took is counted also when it refused the rest.
//! - Of two who count one file, what was seen last stands: it has the blocks of both.
//!
//! Threads: any, and several may change one file at the same time. They take turns in counting it, which who reads it does not.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{FallocateFlags, fallocate};
use parking_lot::Mutex;
use tidefs_engine::types::ByteCount;

use super::budget::Claim;
use super::closer::Closing;
use super::{Scratch, ScratchError, Wait, disk_error};

/// One scratch file. Its blocks are given back soon after the value is dropped, which waits for no disk.
#[derive(Debug)]
pub struct ScratchFile {
    pub(super) space: Arc<Scratch>,
    /// There until it is dropped.
    file: Option<Arc<File>>,
    /// Its directory, among those of the space.
    home: usize,
    /// The bytes of its blocks, as they were counted last. Locked from before they are looked up until that is counted.
    pub(super) charged: Mutex<u64>,
    /// Where what was [allocated](Self::grow_within) of it ends at most, which may be beyond its end.
    pub(super) reach: AtomicU64,
}

impl ScratchFile {
    /// An empty file in one of the directories of `space`.
    pub(super) fn new(space: Arc<Scratch>, file: File, home: usize) -> Self {
        let file = Some(Arc::new(file));
        Self { space, file, home, charged: Mutex::new(0), reach: AtomicU64::new(0) }
    }

    fn disk(&self, source: io::Error) -> ScratchError {
        disk_error(self.space.homes[self.home].directory(), source)
    }

    /// The file itself, to read and to write inside what was [made room for](Self::grow_within).
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        self.file.as_ref().expect("it is taken when the value is dropped, and not before")
    }

    /// Counts the blocks that the file really has now. Called after each change of them.
    pub fn recount(&self) {
        self.settle(self.space.bytes.nothing());
    }

    /// The same, in place of what was claimed for the change.
    fn settle(&self, claim: Claim<'_>) {
        let mut charged = self.charged.lock();
        let Ok(metadata) = self.file().metadata() else { return };
        let now = metadata.blocks() * 512;
        let before = std::mem::replace(&mut *charged, now);
        claim.settle(before, now);
    }

    /// Writes `data` at `offset`, growing the file as needed.
    ///
    /// # Errors
    /// [`ScratchError`]; nothing was written then, unless the disk refused: then a part of it may have been.
    pub fn write_within(&self, data: &[u8], offset: u64, wait: Wait) -> Result<(), ScratchError> {
        let claim = self.admit(offset, ByteCount(data.len() as u64), wait)?;
        let written = self.file().write_all_at(data, offset);
        // A disk that became full took a part of it.
        self.settle(claim);
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
    pub fn grow_within(
        &self,
        offset: u64,
        length: ByteCount,
        keep_size: bool,
        wait: Wait,
    ) -> Result<(), ScratchError> {
        let claim = self.admit(offset, length, wait)?;
        self.reach.fetch_max(offset.saturating_add(length.get()), Ordering::Relaxed);
        let flags = if keep_size { FallocateFlags::FALLOC_FL_KEEP_SIZE } else { FallocateFlags::empty() };
        self.change_range(flags, offset, length, claim)
    }

    /// Frees a range, which then reads as zeros.
    ///
    /// # Errors
    /// [`ScratchError`].
    pub fn punch(&self, offset: u64, length: ByteCount) -> Result<(), ScratchError> {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        self.change_range(flags, offset, length, self.space.bytes.nothing())
    }

    fn change_range(
        &self,
        flags: FallocateFlags,
        offset: u64,
        length: ByteCount,
        claim: Claim<'_>,
    ) -> Result<(), ScratchError> {
        let as_offset = |value: u64| {
            i64::try_from(value).map_err(|_| self.disk(io::Error::from(io::ErrorKind::FileTooLarge)))
        };
        let changed = fallocate(&**self.file(), flags, as_offset(offset)?, as_offset(length.get())?);
        // As above.
        self.settle(claim);
        changed.map_err(|errno| self.disk(errno.into()))
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        let (space, charged) = (Arc::clone(&self.space), *self.charged.get_mut());
        self.space.closer.close(Closing { space, file, home: self.home, charged });
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Barrier;
    use std::time::{Duration, Instant};

    use super::super::testing::{self, slow_to_close};
    use super::*;

    const HALF: ByteCount = ByteCount::kib(512);

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

    #[test]
    fn what_several_write_to_one_file_at_once_is_all_counted() {
        let space = Scratch::new(vec![], false, ByteCount::mib(64));
        let memory = nix::sys::memfd::memfd_create(c"slots", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        let file = space.count(space.files.try_claim(1).unwrap(), File::from(memory), 0);
        let together = Barrier::new(3);
        let write_all = |writer: u64| {
            let rounds = (0..500_u64).map(|round| {
                together.wait();
                file.write_at(&[1; 4096], (3 * round + writer) * 4096).unwrap();
                together.wait();
                space.used() == ByteCount(file.file().metadata().unwrap().blocks() * 512)
            });
            rounds.filter(|is_right| !is_right).count()
        };
        let wrong: Vec<usize> = std::thread::scope(|scope| {
            let write_all = &write_all;
            let writing: Vec<_> = (0..3).map(|writer| scope.spawn(move || write_all(writer))).collect();
            writing.into_iter().map(|writing| writing.join().unwrap()).collect()
        });
        assert_eq!(wrong, [0; 3]);
    }

    fn until_closed(space: &Scratch) {
        while space.files() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn who_lets_go_of_a_file_does_not_wait_for_its_last_close() {
        let space = Scratch::new(vec![], false, ByteCount::mib(1));
        let (file, mut peer) = slow_to_close(&space, ByteCount::ZERO);
        drop(file);
        assert_eq!(space.files(), 1, "its close goes on");
        io::copy(&mut peer, &mut io::sink()).unwrap();
        until_closed(&space);
    }

    #[test]
    fn who_needs_the_room_of_a_file_that_is_being_closed_waits_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let space = Scratch::new(vec![directory.path().to_path_buf()], true, ByteCount::mib(1));
        let (file, mut peer) = slow_to_close(&space, ByteCount::mib(1));
        let other = space.create().unwrap();
        assert!(matches!(other.write_at(&[1; 4096], 0), Err(ScratchError::Full { .. })), "nothing is closed");
        drop(file);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| other.write_at(&[1; 4096], 0));
            io::copy(&mut peer, &mut io::sink()).unwrap();
            writing.join().unwrap().expect("there is room once it is closed");
        });
    }

    #[test]
    fn who_waits_for_a_close_closes_nothing_itself_and_gives_up_in_time() {
        let (_directory, space) = testing::space(Duration::from_millis(20));
        let other = space.create().unwrap();
        let (closing, peers): (Vec<_>, Vec<_>) = (0..2).map(|_| slow_to_close(&space, HALF)).unzip();
        drop(closing);
        let began = Instant::now();
        assert!(matches!(other.write_at(&[1; 4096], 0), Err(ScratchError::Full { .. })));
        assert!(began.elapsed() < Duration::from_secs(20) && space.files() == 3, "their closes go on");
        drop((other, peers));
        until_closed(&space);
    }

    #[test]
    fn who_waited_for_a_thread_until_its_time_was_over_waits_for_no_room() {
        let (_directory, space) = testing::space(Duration::from_secs(60));
        let wait = Wait::Until(Instant::now());
        let other = space.create().unwrap();
        let (closing, peer) = slow_to_close(&space, ByteCount::mib(1));
        drop(closing);
        let began = Instant::now();
        assert!(matches!(other.write_within(&[1; 4096], 0, wait), Err(ScratchError::Full { .. })));
        assert!(matches!(other.grow_within(0, HALF, false, wait), Err(ScratchError::Full { .. })));
        assert!(began.elapsed() < Duration::from_secs(20));
        drop(peer);
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
}
