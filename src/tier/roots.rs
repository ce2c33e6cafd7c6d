//! In which file systems directories on disks lay at earlier starts, so that nothing is begun below a mount point whose disk is not
//! there.
//!
//! A directory may be the mount point of its disk, or lie on it. Without the disk its name leads into the file system above: what is
//! written there fills what is not ours, and is hidden when the disk is back.
//!
//! A file of JSON, which outlives a restart of the machine: by the name of the directory the top directory of its file system. One
//! that is mounted there anew is taken for the disk, with or without what was on it: some are empty at each start of a machine.
//!
//! Limits: directories that the configuration names. It is not known of one that was never used before, and not noted of one that
//! lies where nothing is above, or where the notes do: with its disk away they are away, too. Nor is it known where a link leads to
//! that leads to nothing: what was noted of it stays. File systems are told apart by their devices alone: a directory of the one
//! above, mounted in place of a disk (a bind mount) or made in place of a subvolume, is taken for a mount point whose disk is away.
//! Threads: the one that starts the daemon, those that open a place of the SSD tier, and those that make slot files.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::replace::{read_whole, replace_durably};

/// Longest file that is read: 256 places, each of two paths of `PATH_MAX` (4096) bytes and 128 for what is beside them.
const FILE_BYTES_MAX: usize = 256 * (2 * 4096 + 128);

/// Top directories by the names of places.
type Known = BTreeMap<String, PathBuf>;

/// The file systems of some places.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    path: Option<PathBuf>,
    known: Known,
}

impl Roots {
    /// What an earlier life left. Without a path nothing is kept.
    pub(crate) fn load(path: Option<&Path>) -> Self {
        let Some(path) = path else { return Self::default() };
        let known = read_whole(path, FILE_BYTES_MAX).and_then(|text| Self::parse(&text));
        let known = known.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(file = %path.display(), %error, "it is not known which disks were mounted at earlier starts");
            }
            Known::default()
        });
        Self { path: Some(path.to_owned()), known }
    }

    /// Reads the text of the file; arbitrary bytes are safe to pass.
    ///
    /// # Errors
    /// When it is not such a text.
    pub(crate) fn parse(text: &[u8]) -> io::Result<Known> {
        Ok(serde_json::from_slice(text)?)
    }

    /// Where the file system of a place was mounted at an earlier start, as far as that is known.
    pub(crate) fn root_of(&self, place: &Path) -> Option<&Path> {
        self.known.get(&name_of(place)).map(PathBuf::as_path)
    }

    /// Notes in which file systems the places are that can be `used`, and forgets those that are not `configured` any more.
    pub(crate) fn note(&mut self, configured: &[PathBuf], used: &[&Path]) {
        let Some(path) = &self.path else { return };
        let kept_on = path.parent().and_then(|directory| located(directory).ok()).map(|(_, root)| root);
        let mut known = self.known.clone();
        known.retain(|name, _| configured.iter().any(|place| name_of(place) == *name));
        for place in used {
            // What an earlier start knew stays.
            let Ok((lies_at, root)) = located(place) else { continue };
            let name = name_of(place);
            if let Some(before) = known.get(&name).filter(|before| is_below(&lies_at, &root, before)) {
                tracing::warn!(
                    place = name, before = %before.display(), now = %root.display(),
                    "a place lies in the file system above the one of earlier starts: is its disk not mounted?"
                );
            }
            let is_never_away = root.parent().is_none() || kept_on.as_ref() == Some(&root);
            if is_never_away {
                known.remove(&name);
            } else {
                known.insert(name, root);
            }
        }
        if known == self.known {
            return;
        }
        if let Err(error) = store(path, &known) {
            tracing::warn!(
                file = %path.display(), %error,
                "it is not kept where disks are mounted: without one a start may write below its mount point"
            );
        }
        self.known = known;
    }
}

/// Whether nothing is mounted any more on `root`, where the file system of a place was at an earlier start. The place need not exist.
pub(crate) fn is_unmounted(place: &Path, root: &Path) -> bool {
    located(place).is_ok_and(|(lies_at, now)| is_below(&lies_at, &now, root))
}

fn store(path: &Path, known: &Known) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    replace_durably(path, &serde_json::to_vec(known)?)
}

/// Whether nothing is mounted any more on the top directory that is `known` of a place: it lies at or below that still, and in a file
/// system above, whose top directory is `root`. A link may lead elsewhere by now, and further down another disk may be mounted.
fn is_below(lies_at: &Path, root: &Path, known: &Path) -> bool {
    lies_at.starts_with(known) && root != known && known.starts_with(root)
}

fn name_of(place: &Path) -> String {
    place.display().to_string()
}

/// Where a directory lies, or would if it were made, without links, and the top directory of its file system.
///
/// # Errors
/// What the system says.
fn located(place: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let there = what_is_there(place)?;
    let to_be_made = place.strip_prefix(there).map_err(io::Error::other)?;
    let there = fs::canonicalize(there)?;
    let device = fs::metadata(&there)?.dev();
    let mut root = there.clone();
    while let Some(above) = root.parent().map(Path::to_owned) {
        if fs::metadata(&above)?.dev() != device {
            break;
        }
        root = above;
    }
    Ok((there.join(to_be_made), root))
}

/// The directory itself, or the nearest one above that exists.
///
/// # Errors
/// What the system says, as of a disk that does not answer, or of a link that leads to nothing: then it is not known what is there.
fn what_is_there(place: &Path) -> io::Result<&Path> {
    for directory in place.ancestors() {
        // By the dot the system mounts what it mounts for who uses it.
        match fs::metadata(directory.join(".")) {
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(directory).is_err() => {}
            outcome => return outcome.map(|_| directory),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::mount::{MntFlags, MsFlags, mount, umount2};

    use super::super::small_disk::SmallDisk;
    use super::*;

    /// A disk, the top directory of its file system, and another directory, for the notes.
    fn disk() -> (SmallDisk, PathBuf, tempfile::TempDir) {
        let disk = SmallDisk::new("16m", MsFlags::empty());
        let root = fs::canonicalize(disk.path()).unwrap();
        (disk, root, tempfile::tempdir().unwrap())
    }

    #[test]
    fn a_directory_that_is_to_be_made_is_known_to_lie_on_its_disk_and_not_below_its_mount_point() {
        let (_disk, root, state) = disk();
        let (place, file) = (root.join("to be/made"), state.path().join("below/mounts.json"));
        let mut roots = Roots::load(Some(&file));
        assert_eq!(roots.root_of(&place), None);
        roots.note(std::slice::from_ref(&place), &[&place]);
        let mut roots = Roots::load(Some(&file));
        assert_eq!(roots.root_of(&place), Some(root.as_path()));
        assert!(!is_unmounted(&place, &root));
        umount2(&root, MntFlags::MNT_DETACH).unwrap();
        assert!(is_unmounted(&place, &root));
        // Whoever takes a disk away may take its mount point along.
        fs::remove_dir(&root).unwrap();
        assert!(is_unmounted(&place, &root));
        fs::create_dir(&root).unwrap();
        mount(Some("new"), &root, Some("tmpfs"), MsFlags::empty(), Some("size=16m")).unwrap();
        assert!(!is_unmounted(&place, &root));
        roots.note(&[], &[]);
        assert_eq!(Roots::load(Some(&file)).root_of(&place), None, "it is not configured any more");
    }

    #[test]
    fn nothing_is_noted_of_what_lies_where_the_notes_do() {
        let (_disk, root, _state) = disk();
        let (place, file) = (root.join("slots"), root.join("state/mounts.json"));
        let mut roots = Roots::load(Some(&file));
        roots.note(std::slice::from_ref(&place), &[&place]);
        assert!(roots.root_of(&place).is_none() && !file.exists());
    }

    #[test]
    fn of_what_cannot_be_looked_at_it_is_not_said_that_its_disk_is_away() {
        let (_disk, root, state) = disk();
        let file = root.join("file");
        fs::write(&file, "").unwrap();
        // It is no directory, so nothing can be below it.
        assert!(!is_unmounted(&file.join("slots"), &root) && located(&file.join("slots")).is_err());
        assert!(!is_unmounted(state.path(), &root), "it lies elsewhere");
        let (link, notes) = (state.path().join("link"), state.path().join("mounts.json"));
        let [place, there] = [&link, &root].map(|directory| directory.join("slots"));
        fs::create_dir(&there).unwrap();
        symlink(&there, &link).unwrap();
        let mut roots = Roots::load(Some(&notes));
        roots.note(std::slice::from_ref(&place), &[&place]);
        umount2(&root, MntFlags::MNT_DETACH).unwrap();
        // The link leads to nothing, and lies where no disk was ever mounted.
        assert!(!is_unmounted(&place, &root) && located(&link).is_err());
        roots.note(std::slice::from_ref(&place), &[&place]);
        assert_eq!(Roots::load(Some(&notes)).root_of(&place), Some(root.as_path()), "it is forgotten");
    }
}
