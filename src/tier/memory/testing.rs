//! A place for tests on a real tmpfs, which is unmounted however the test ends.

use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};
use tidefs_engine::types::ByteCount;

use super::{HugePages, MemoryConfig, MemoryTier, Recovered, RecoverySummary};

/// A directory for one memory tier.
#[derive(Debug)]
pub(super) struct Workplace {
    _root: tempfile::TempDir,
    path: PathBuf,
    huge_pages: HugePages,
}

impl Workplace {
    /// A directory on the disk, where a tmpfs can be mounted.
    pub(super) fn new() -> Self {
        Self::within(std::env::temp_dir())
    }

    /// The same, for tiers that ask for huge pages.
    pub(super) fn with_huge_pages() -> Self {
        let mut place = Self::new();
        place.huge_pages = HugePages::Auto;
        place
    }

    /// A directory on the machine's shared tmpfs.
    pub(super) fn on_shared_tmpfs() -> Self {
        Self::within("/dev/shm")
    }

    fn within(parent: impl AsRef<Path>) -> Self {
        let root = tempfile::tempdir_in(parent).unwrap();
        let path = root.path().join("memory");
        std::fs::create_dir(&path).unwrap();
        Self { path: path.canonicalize().unwrap(), _root: root, huge_pages: HugePages::Never }
    }

    /// The directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A configuration of so much capacity there.
    pub(super) fn config(&self, capacity: ByteCount) -> MemoryConfig {
        let (directory, huge_pages) = (self.path.clone(), self.huge_pages);
        MemoryConfig { directory, capacity, huge_pages, prefault_max: ByteCount::ZERO }
    }

    /// Opens the tier there.
    pub(super) fn open(&self, capacity: ByteCount) -> MemoryTier {
        MemoryTier::open(&self.config(capacity)).unwrap()
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        while umount2(&self.path, MntFlags::MNT_DETACH).is_ok() {}
    }
}

/// Everything that a recovery tells.
pub(super) fn recovered(tier: &MemoryTier) -> (Vec<Recovered>, RecoverySummary) {
    let mut told = Vec::new();
    let summary = tier.recover(&mut |found| told.push(found)).unwrap();
    (told, summary)
}
