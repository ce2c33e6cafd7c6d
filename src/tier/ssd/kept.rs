//! Which disks were added, emptied and removed since the configuration was written, kept for the next start of the daemon.
//!
//! A file of JSON beside the daemon's lock, which a restart of the machine takes away: from then on the configuration
//! counts again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidefs_engine::types::ByteCount;

use crate::replace::replace;

/// A disk that was added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Added {
    pub(super) path: PathBuf,
    pub(super) capacity: ByteCount,
}

/// A disk that is emptied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Leaving {
    pub(super) path: PathBuf,
    pub(super) bytes_per_second: Option<ByteCount>,
}

/// What changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Changes {
    pub(super) added: Vec<Added>,
    pub(super) removed: Vec<PathBuf>,
    pub(super) leaving: Vec<Leaving>,
}

impl Changes {
    /// What an earlier daemon left; nothing when it left nothing, or what cannot be read, which is said.
    pub(super) fn load(file: Option<&Path>) -> Self {
        let Some(file) = file else { return Self::default() };
        fs::read(file).and_then(|text| Self::parse(&text)).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(file = %file.display(), %error, "disks that were added or removed are not known any more");
            }
            Self::default()
        })
    }

    /// Reads the text of the file; arbitrary bytes are safe to pass.
    ///
    /// # Errors
    /// When it is not such a text.
    pub(super) fn parse(text: &[u8]) -> io::Result<Self> {
        Ok(serde_json::from_slice(text)?)
    }

    /// Notes a disk that was added.
    pub(super) fn add(&mut self, path: &Path, capacity: ByteCount) {
        self.forget(path);
        self.added.push(Added { path: path.to_owned(), capacity });
    }

    /// Notes a disk that was removed. One that the configuration does not name needs no note: no start looks for it.
    pub(super) fn remove(&mut self, path: &Path, is_configured: bool) {
        self.forget(path);
        if is_configured {
            self.removed.push(path.to_owned());
        }
    }

    /// Notes a disk that is emptied, at this rate.
    pub(super) fn leave(&mut self, path: &Path, bytes_per_second: Option<ByteCount>) {
        self.leaving.retain(|leaving| leaving.path != path);
        self.leaving.push(Leaving { path: path.to_owned(), bytes_per_second });
    }

    fn forget(&mut self, path: &Path) {
        self.leaving.retain(|leaving| leaving.path != path);
        self.added.retain(|added| added.path != path);
        self.removed.retain(|removed| removed != path);
    }

    /// Keeps them for the next start; of none there is no file. What stands in the way is logged: the disks are in use
    /// nevertheless.
    pub(super) fn store(&self, file: Option<&Path>) {
        let Some(file) = file else { return };
        let stored = if *self == Self::default() {
            fs::remove_file(file).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })
        } else {
            serde_json::to_vec(self).map_err(io::Error::other).and_then(|text| replace(file, &text))
        };
        if let Err(error) = stored {
            tracing::warn!(file = %file.display(), %error, "a change of the disks is forgotten at the next start");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_change_of_a_disk_counts_and_survives() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("places");
        assert_eq!(Changes::load(Some(&file)), Changes::default());
        let mut changes = Changes::default();
        changes.add(Path::new("/a"), ByteCount(1));
        changes.add(Path::new("/b"), ByteCount(2));
        changes.remove(Path::new("/a"), true);
        changes.add(Path::new("/b"), ByteCount(3));
        changes.leave(Path::new("/a"), None);
        changes.leave(Path::new("/b"), None);
        changes.leave(Path::new("/b"), Some(ByteCount(5)));
        changes.remove(Path::new("/a"), true);
        changes.store(Some(&file));
        let kept = Changes::load(Some(&file));
        assert_eq!(kept.added, [Added { path: "/b".into(), capacity: ByteCount(3) }]);
        assert_eq!(kept.removed, [PathBuf::from("/a")]);
        assert_eq!(kept.leaving, [Leaving { path: "/b".into(), bytes_per_second: Some(ByteCount(5)) }]);
        fs::write(&file, b"{").unwrap();
        assert_eq!(Changes::load(Some(&file)), Changes::default());
    }

    #[test]
    fn a_disk_that_was_added_and_removed_leaves_no_trace_unless_the_configuration_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("places");
        let place = Path::new("/a");
        for is_configured in [false, true] {
            let mut changes = Changes::default();
            changes.add(place, ByteCount(1));
            changes.leave(place, None);
            changes.store(Some(&file));
            assert!(file.exists());
            changes.remove(place, is_configured);
            changes.store(Some(&file));
            assert_eq!(file.exists(), is_configured);
        }
        Changes::default().store(Some(&directory.path().join("none")));
    }
}
