//! A small filesystem of a test's own, so that nobody else takes its room or gives any back.

use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

/// A filesystem in memory, gone with the value.
pub(crate) struct SmallDisk(TempDir);

impl SmallDisk {
    /// One of `size`, as tmpfs(5) takes it.
    pub(crate) fn new(size: &str, flags: MsFlags) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let options = format!("size={size}");
        mount(Some("tidefs-test"), directory.path(), Some("tmpfs"), flags, Some(options.as_str()))
            .expect("mount of a small disk");
        Self(directory)
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // It may be busy for as long as a daemon that was killed takes to end.
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}
