//! Which disks were added, emptied and removed since the configuration was written, kept for the next start of the daemon.
//!
//! A file of JSON beside the daemon's lock, which a restart of the machine takes away: from then on the configuration
//! counts again.
//!
//! Limits: `FILE_BYTES_MAX` of text, and in each list as many disks as a pool has, each once. What is longer is neither
//! kept nor taken for true.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidefs_engine::types::ByteCount;

use super::open::DEVICES_MAX;
use crate::replace::{read_whole, replace};

/// Longest file that is read: a disk in each list for every one of a pool, each with a path of `PATH_MAX` (4096) bytes
/// and 256 for what is beside it.
const FILE_BYTES_MAX: usize = 3 * DEVICES_MAX * (4096 + 256);

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
    /// What an earlier daemon left; nothing when it left nothing, or what cannot be read or be true, which is said.
    pub(super) fn load(file: Option<&Path>) -> Self {
        let Some(file) = file else { return Self::default() };
        read_whole(file, FILE_BYTES_MAX).and_then(|text| Self::parse(&text)).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(
                    file = %file.display(), %error,
                    "which disks were added, emptied or removed is not known any more: ssd.dirs counts; \
                     `tidefs tier add`, `drain` and `remove` do it again, and the file is written anew"
                );
            }
            Self::default()
        })
    }

    /// Reads the text of the file; arbitrary bytes are safe to pass.
    ///
    /// # Errors
    /// `InvalidData` when it is not such a text, or says what cannot be.
    pub(super) fn parse(text: &[u8]) -> io::Result<Self> {
        let changes: Self = serde_json::from_slice(text)?;
        changes.check()?;
        Ok(changes)
    }

    fn check(&self) -> io::Result<()> {
        let lists = [self.added.len(), self.removed.len(), self.leaving.len()];
        if lists.iter().any(|&count| count > DEVICES_MAX) {
            return Err(invalid(format!("it names more than {DEVICES_MAX} disks")));
        }
        let mut seen = HashSet::new();
        // A disk was either added or removed last; one that leaves may have been added.
        let changed = self.added.iter().map(|added| (false, &added.path));
        let changed = changed.chain(self.removed.iter().map(|path| (false, path)));
        let mut named = changed.chain(self.leaving.iter().map(|leaving| (true, &leaving.path)));
        match named.find(|named| !seen.insert(*named)) {
            Some((_, twice)) => Err(invalid(format!("it names {} twice", twice.display()))),
            None => Ok(()),
        }
    }

    fn text(&self) -> io::Result<Vec<u8>> {
        self.check()?;
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        if text.len() > FILE_BYTES_MAX { Err(too_long()) } else { Ok(text) }
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
            self.text().and_then(|text| replace(file, &text))
        };
        if let Err(error) = stored {
            tracing::warn!(file = %file.display(), %error, "a change of the disks is forgotten at the next start");
        }
    }
}

fn too_long() -> io::Error {
    invalid(format!("it is longer than {FILE_BYTES_MAX} bytes"))
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &[u8]) -> String {
        Changes::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn what_no_daemon_writes_is_refused() {
        let disks = |count: usize| -> Vec<PathBuf> { (0..count).map(|at| format!("/{at}").into()).collect() };
        let text = |removed| serde_json::to_vec(&Changes { removed, ..Changes::default() }).unwrap();
        assert_eq!(Changes::parse(&text(disks(DEVICES_MAX))).unwrap().removed.len(), DEVICES_MAX);
        assert_eq!(refusal(&text(disks(DEVICES_MAX + 1))), "it names more than 255 disks");
        let added = r#"{"path": "/a", "capacity": 1}"#;
        let leaving = r#"{"path": "/a", "bytes_per_second": null}"#;
        for twice in [
            format!(r#"{{"added": [{added}, {added}]}}"#),
            format!(r#"{{"added": [{added}], "removed": ["/a"]}}"#),
            r#"{"removed": ["/a", "/a"]}"#.to_owned(),
            format!(r#"{{"leaving": [{leaving}, {leaving}]}}"#),
        ] {
            assert_eq!(refusal(twice.as_bytes()), "it names /a twice", "{twice}");
        }
        let both = format!(r#"{{"added": [{added}], "leaving": [{leaving}]}}"#);
        Changes::parse(both.as_bytes()).unwrap();
    }

    #[test]
    fn a_file_that_is_too_long_is_not_read_and_one_that_would_be_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("places");
        let mut changes = Changes::default();
        changes.add(Path::new("/a"), ByteCount(1));
        changes.store(Some(&file));
        let text = fs::read(&file).unwrap();
        fs::write(&file, [text.clone(), vec![b' '; FILE_BYTES_MAX - text.len()]].concat()).unwrap();
        assert_eq!(Changes::load(Some(&file)), changes);
        fs::write(&file, [text.clone(), vec![b' '; FILE_BYTES_MAX]].concat()).unwrap();
        assert_eq!(Changes::load(Some(&file)), Changes::default());
        assert_eq!(read_whole(&file, FILE_BYTES_MAX).unwrap_err().kind(), io::ErrorKind::InvalidData);
        changes.store(Some(&file));
        let more = (0..DEVICES_MAX).map(|at| Added { path: format!("/{at}").into(), capacity: ByteCount(1) });
        let more =
            Changes { added: changes.added.iter().cloned().chain(more).collect(), ..Changes::default() };
        more.store(Some(&file));
        assert_eq!(Changes::load(Some(&file)), changes, "what it said before stays");
    }

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
