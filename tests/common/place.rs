//! Where a test that starts the daemon itself puts it: a mount point and a state directory, both empty.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Two empty directories in a temporary one.
#[derive(Debug)]
pub(crate) struct Place {
    /// Holds the others, and goes with the value.
    pub(crate) base: TempDir,
    /// The mount point.
    pub(crate) point: PathBuf,
    /// The state directory.
    pub(crate) state: PathBuf,
}

impl Place {
    /// A fresh one.
    pub(crate) fn new() -> Self {
        let base = tempfile::tempdir().expect("a temporary directory");
        let (point, state) = (base.path().join("mount"), base.path().join("state"));
        fs::create_dir(&point).expect("a mount point");
        fs::create_dir(&state).expect("a state directory");
        Self { base, point, state }
    }
}

/// The regular files below a directory.
pub(crate) fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("a readable directory") {
        let entry = entry.expect("a readable entry");
        match entry.file_type().expect("a type") {
            kind if kind.is_dir() => files.extend(files_below(&entry.path())),
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}
