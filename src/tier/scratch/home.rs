//! A directory of scratch files, which is made when one of them needs it.
//!
//! It may be the mount point of a disk, or lie on one. Without the disk its name leads into the file system above, which files of
//! gigabytes would fill. So where its file system was mounted at an earlier start, and nothing is, no file is made; it is looked
//! again for each one, by some stat(2) of what making it goes through anyway. Where nothing is known of it the directory is made once:
//! one that is gone later may have been on a disk.
//!
//! Limits: one that is mounted for the first time in this life is not missed when it is unmounted in it, nor one that is between the
//! look and the file.
//! Threads: those that make scratch files, and the one that starts the daemon. Who asks for the trouble with it waits for no disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::roots::is_unmounted;
use super::{ScratchError, disk_error};

/// A directory of scratch files.
#[derive(Debug)]
pub(crate) struct Home {
    directory: PathBuf,
    /// Where its file system was mounted at an earlier start, as far as that is known.
    root: Option<PathBuf>,
    /// A file with which it is used wherever it lies.
    sign: Option<PathBuf>,
    /// Set when it was made.
    is_made: OnceLock<()>,
    /// Whether its disk was away when that was last looked at.
    was_away: AtomicBool,
}

impl Home {
    /// One of whose disk nothing is known.
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self::on_disk(directory, None, None)
    }

    /// One whose file system was mounted on `root` at an earlier start. It is used wherever it lies when there is the file `sign`.
    pub(crate) fn on_disk(directory: PathBuf, root: Option<&Path>, sign: Option<PathBuf>) -> Self {
        let (root, was_away) = (root.map(Path::to_owned), AtomicBool::new(false));
        Self { directory, root, sign, is_made: OnceLock::new(), was_away }
    }

    /// The directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Looks whether its disk is there. Where that was mounted, when it is not.
    pub(crate) fn unmounted(&self) -> Option<&Path> {
        let root = self.root.as_deref()?;
        let is_wanted_here = self.sign.as_ref().is_some_and(|sign| sign.try_exists().unwrap_or(true));
        let is_away = !is_wanted_here && is_unmounted(&self.directory, root);
        self.was_away.store(is_away, Ordering::Relaxed);
        is_away.then_some(root)
    }

    /// Why it could not be used when that was last looked at.
    pub(super) fn trouble(&self) -> Option<ScratchError> {
        let root = self.root.as_deref().filter(|_| self.was_away.load(Ordering::Relaxed))?;
        Some(self.unmounted_from(root))
    }

    /// Makes the directory, if need be; what is above it only when `makes_parents`.
    ///
    /// # Errors
    /// [`ScratchError::Unmounted`], [`ScratchError::DiskFull`], [`ScratchError::Disk`].
    pub(super) fn prepare(&self, makes_parents: bool) -> Result<(), ScratchError> {
        if let Some(root) = self.unmounted() {
            return Err(self.unmounted_from(root));
        }
        // Where its disk is known to be there that may be another one by now.
        if self.root.is_none() && self.is_made.get().is_some() {
            return Ok(());
        }
        let directory = &self.directory;
        let made = if makes_parents { fs::create_dir_all(directory) } else { make_one(directory) };
        made.map_err(|source| disk_error(directory, source))?;
        self.is_made.get_or_init(|| ());
        Ok(())
    }

    fn unmounted_from(&self, root: &Path) -> ScratchError {
        ScratchError::Unmounted { directory: self.directory.clone(), root: root.to_owned() }
    }
}

/// Makes a directory below one that exists; one that is there is fine.
fn make_one(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    use tidefs_engine::types::ByteCount;

    use super::super::super::small_disk::SmallDisk;
    use super::super::Scratch;
    use super::*;

    fn mount_on(root: &Path) {
        mount(Some("back"), root, Some("tmpfs"), MsFlags::empty(), Some("size=16m")).unwrap();
    }

    fn unmount(root: &Path) {
        umount2(root, MntFlags::MNT_DETACH).unwrap();
    }

    /// A disk that is away, and its mount point.
    fn away() -> (SmallDisk, PathBuf) {
        let disk = SmallDisk::new("16m", MsFlags::empty());
        let root = fs::canonicalize(disk.path()).unwrap();
        unmount(&root);
        (disk, root)
    }

    fn space(home: Home) -> Arc<Scratch> {
        Scratch::in_homes(vec![home], true, ByteCount::mib(1))
    }

    #[test]
    fn no_file_is_made_below_a_mount_point_whose_disk_is_not_there_and_the_next_one_is_when_it_is() {
        let (_disk, root) = away();
        // The mount point itself may be the directory.
        for directory in [root.join("below/slots"), root.clone()] {
            let space = space(Home::on_disk(directory.clone(), Some(&root), None));
            assert!(space.troubles().is_empty(), "nobody looked");
            // Each time another disk is mounted, on which nothing is.
            for _ in 0..2 {
                for _ in 0..2 {
                    let made = space.create();
                    assert!(matches!(made, Err(ScratchError::Unmounted { .. })), "{made:?}");
                    assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "something is made below it");
                    let said = space.troubles();
                    assert!(said.len() == 1 && said[0].contains("nothing was mounted on"), "{said:?}");
                }
                mount_on(&root);
                space.create().unwrap();
                assert!(space.troubles().is_empty() && directory.is_dir());
                unmount(&root);
            }
        }
    }

    #[test]
    fn of_two_directories_the_one_whose_disk_is_there_is_used() {
        let (_disk, root) = away();
        // Less room than there is on the disk that is away, or where its mount point lies.
        let other = SmallDisk::new("1m", MsFlags::empty());
        let [directory, beside] = [root.as_path(), other.path()].map(|disk| disk.join("slots"));
        let homes = vec![Home::on_disk(directory.clone(), Some(&root), None), Home::new(beside.clone())];
        let space = Scratch::in_homes(homes, true, ByteCount::mib(1));
        space.create().unwrap();
        assert!(beside.is_dir() && fs::read_dir(&root).unwrap().count() == 0);
        assert_eq!(space.troubles().len(), 1, "{:?}", space.troubles());
        mount_on(&root);
        space.create().unwrap();
        assert!(space.troubles().is_empty() && directory.is_dir(), "{:?}", space.troubles());
    }

    #[test]
    fn a_directory_of_whose_disk_nothing_is_known_is_made_once() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("below/slots");
        let space = space(Home::new(directory.clone()));
        space.create().unwrap();
        fs::remove_dir_all(above.path().join("below")).unwrap();
        let made = space.create();
        assert!(matches!(made, Err(ScratchError::Disk { .. })) && !directory.exists(), "{made:?}");
    }

    #[test]
    fn a_directory_that_is_wanted_where_it_lies_is_used_without_its_disk() {
        let (_disk, root) = away();
        let sign = root.join("sign");
        let home = Home::on_disk(root.join("below/slots"), Some(&root), Some(sign.clone()));
        assert_eq!(home.unmounted(), Some(root.as_path()));
        fs::write(&sign, "").unwrap();
        assert_eq!(home.unmounted(), None);
        space(home).create().unwrap();
    }
}
