//! In which file systems the places of the tier lay, so that none begins anew below a mount point whose disk is not there.
//!
//! A place may be the mount point of its disk. Without the disk it is a directory of the file system above, in which a new file
//! would be made: it would fill what is not the tier's, and what is on the disk would be given up later.
//!
//! A file of JSON, which outlives a restart of the machine: by the name of the place the top directory of its file system. One
//! that is mounted there anew is taken for the disk, with or without the tier's file: some are empty at each start of a machine.
//!
//! Limits: places that the configuration names, and directories alone. It is not known of a place that was never used before.
//! Threads: the one that opens the tier, and those that open a place.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::identity::FILE_NAME;
use crate::replace::{read_whole, replace_durably};

/// Longest file that is read: 256 places, each of two paths of `PATH_MAX` (4096) bytes and 128 for what is beside them.
const FILE_BYTES_MAX: usize = 256 * (2 * 4096 + 128);

/// Top directories by the names of places.
type Known = BTreeMap<String, PathBuf>;

/// The file systems of the places.
#[derive(Debug, Default)]
pub(super) struct Roots {
    path: Option<PathBuf>,
    known: Known,
}

impl Roots {
    /// What an earlier life left. Without a path nothing is kept.
    pub(super) fn load(path: Option<&Path>) -> Self {
        let Some(path) = path else { return Self::default() };
        let known = read_whole(path, FILE_BYTES_MAX).and_then(|text| Self::parse(&text));
        let known = known.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(file = %path.display(), %error, "it is not known which disks of the SSD tier were mounted");
            }
            Known::default()
        });
        Self { path: Some(path.to_owned()), known }
    }

    /// Reads the text of the file; arbitrary bytes are safe to pass.
    ///
    /// # Errors
    /// When it is not such a text.
    pub(super) fn parse(text: &[u8]) -> io::Result<Known> {
        Ok(serde_json::from_slice(text)?)
    }

    /// The mount point of a place that is not mounted, when its file is not there either.
    pub(super) fn unmounted(&self, place: &Path) -> Option<PathBuf> {
        let known = self.known.get(&name_of(place))?;
        let has_file = place.join(FILE_NAME).try_exists().unwrap_or(true);
        if has_file || !place.is_dir() {
            return None;
        }
        let (lies_at, root) = located(place).ok()?;
        is_below(&lies_at, &root, known).then(|| known.clone())
    }

    /// Notes where the places lie that were `opened`, and forgets those that are not `configured` any more.
    pub(super) fn note(&mut self, configured: &[PathBuf], opened: &[&Path]) {
        let Some(path) = &self.path else { return };
        let mut known = self.known.clone();
        known.retain(|name, _| configured.iter().any(|place| name_of(place) == *name));
        for place in opened.iter().filter(|place| place.is_dir()) {
            let Ok((lies_at, root)) = located(place) else { continue };
            let name = name_of(place);
            if let Some(before) = known.get(&name).filter(|before| is_below(&lies_at, &root, before)) {
                tracing::warn!(
                    place = name, before = %before.display(), now = %root.display(),
                    "a place of the SSD tier lies in the file system above the one of earlier starts: is its disk not mounted?"
                );
            }
            known.insert(name, root);
        }
        if known == self.known {
            return;
        }
        if let Err(error) = store(path, &known) {
            tracing::warn!(
                file = %path.display(), %error,
                "it is not kept where the disks of the SSD tier are mounted: without one a start may write below its mount point"
            );
        }
        self.known = known;
    }
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

/// Where a directory lies, without links, and the top directory of its file system.
///
/// # Errors
/// What the system says.
fn located(place: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let lies_at = fs::canonicalize(place)?;
    let device = fs::metadata(&lies_at)?.dev();
    let mut root = lies_at.clone();
    while let Some(above) = root.parent().map(Path::to_owned) {
        if fs::metadata(&above)?.dev() != device {
            break;
        }
        root = above;
    }
    Ok((lies_at, root))
}
