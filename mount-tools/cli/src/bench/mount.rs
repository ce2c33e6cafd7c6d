//! Mounts that vanish with the bench.
//!
//! The bench runs in a mount namespace of its own, in which nothing it mounts is seen from outside and nothing
//! stays behind when it ends, however it ends. Daemons that it starts are in the same namespace.

use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use tidefs_engine::types::ByteCount;

use super::cleanup::Directory;
use super::error::Error;

/// Moves this thread, and those that it starts, into a mount namespace of their own. Called before all threads but the one
/// that waits for signals.
///
/// # Errors
/// [`Error::NeedsRoot`], and where root has not the right to (`CAP_SYS_ADMIN`).
pub(crate) fn enter_private_namespace() -> Result<(), Error> {
    if !geteuid().is_root() {
        return Err(Error::NeedsRoot);
    }
    unshare(CloneFlags::CLONE_NEWNS).map_err(Error::system("enter a private mount namespace"))?;
    let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
        .map_err(Error::system("make the mounts of the namespace private"))
}

/// A tmpfs with huge pages that only this bench sees: the fastest files that the kernel has.
#[derive(Debug)]
pub(crate) struct PrivateTmpfs {
    path: PathBuf,
    /// Removed after the mount is gone, as the last field.
    _directory: Directory,
}

impl PrivateTmpfs {
    /// Mounts a tmpfs of `size` in a new directory.
    ///
    /// # Errors
    /// Without the right to mount, or on a kernel whose tmpfs lacks `huge` or `noswap` (before 6.4).
    pub(crate) fn mount(size: ByteCount) -> Result<Self, Error> {
        let directory =
            Directory::new("tidefs-bench-").map_err(Error::system("make a directory for the baseline"))?;
        // As deep as the mounts of the bench's daemons: each part of a path costs the kernel some time.
        let path = make_directory(directory.path(), "mount")?;
        let options = format!("size={},huge=within_size,noswap,mode=0700", size.get());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOATIME;
        mount(Some("tidefs-bench"), &path, Some("tmpfs"), flags, Some(options.as_str()))
            .map_err(Error::system(format!("mount the baseline, a tmpfs with {options}")))?;
        Ok(Self { path, _directory: directory })
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateTmpfs {
    fn drop(&mut self) {
        detach(self.path());
    }
}

/// Takes a mount out of the tree; what is still open stays usable. A failure only leaves it to the namespace.
pub(crate) fn detach(path: &Path) {
    if let Err(error) = umount2(path, MntFlags::MNT_DETACH) {
        eprintln!("tidefs bench: unmount {}: {error}", path.display());
    }
}

/// Makes the directory of a bench below `root` and returns it.
///
/// # Errors
/// What mkdir(2) says.
pub(crate) fn make_directory(root: &Path, name: &str) -> Result<PathBuf, Error> {
    let path = root.join(name);
    std::fs::create_dir_all(&path).map_err(Error::file("make the directory", &path))?;
    Ok(path)
}
