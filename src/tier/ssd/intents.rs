//! Removals that are not on disk yet, kept where a kill of the daemon does not reach.
//!
//! A removal returns before its tombstone is on disk, which takes milliseconds. Until then it stands in a file of a
//! tmpfs, written in one system call: a daemon that is killed finds it at its next start. A power cut takes both the file
//! and the tombstones of the last moment, as it takes every unlink that was not synced.
//!
//! What is stored after its removal is not to be removed by what the file says of that, though it is emptied only when
//! nothing waits: it is written anew without it.
//!
//! Invariant: each entry begins where the last whole one ends, whatever one that could not be written as a whole left there.
//!
//! Limits: 32 bytes for each removal that waits, and about as much memory; the file is emptied whenever none does, and
//! written anew beyond a MiB, when most of it does not wait any more. For a disk that takes no writes removals wait until
//! the next start, one for each key.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tidefs_engine::types::Version;
use twox_hash::XxHash3_64;

use super::format::{NUMBER_MAX, RecordHash, Tombstone};
use super::removing::version_before;
use crate::replace::replace;

const ENTRY_BYTES: usize = 32;
/// Bytes of the file from which on it is written anew, when most of them say what is on disk by now.
const REWRITTEN_BYTES: u64 = 1 << 20;

#[derive(Debug)]
struct Pending {
    file: File,
    path: PathBuf,
    /// Of its whole entries.
    bytes: u64,
    /// From how many bytes on it is written anew.
    rewritten_bytes: u64,
    /// The latest version of each key that waits, by the number of the disk.
    open: HashMap<(u8, RecordHash), Version>,
    /// The latest version of each key that the file names, waiting or not.
    named: HashMap<RecordHash, Version>,
}

/// The file of removals that wait.
#[derive(Debug)]
pub(super) struct Intents {
    /// Guards the file and what in it waits. `None` without a file.
    pending: Mutex<Option<Pending>>,
}

impl Intents {
    /// Opens the file, and returns what an earlier daemon left in it. Without a path nothing is kept.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn open(path: Option<&Path>) -> io::Result<(Self, Vec<(RecordHash, Version)>)> {
        let Some(path) = path else { return Ok((Self { pending: Mutex::new(None) }, Vec::new())) };
        let mut file = open_file(path)?;
        let mut found = Vec::new();
        file.read_to_end(&mut found)?;
        let left = parse(&found);
        // What is left is noted again when it is made good, and goes with the first time that nothing waits.
        let mut pending = Pending {
            file,
            path: path.to_owned(),
            bytes: (found.len() / ENTRY_BYTES * ENTRY_BYTES) as u64,
            rewritten_bytes: REWRITTEN_BYTES.max(2 * found.len() as u64),
            open: HashMap::new(),
            named: HashMap::new(),
        };
        left.iter().for_each(|&(hash, version)| pending.name(hash, version));
        Ok((Self { pending: Mutex::new(Some(pending)) }, left))
    }

    /// Notes a removal for a disk, before anybody is told that it happened.
    pub(super) fn add(&self, disk: u8, hash: RecordHash, version: Version) {
        let mut pending = self.pending.lock();
        let Some(pending) = pending.as_mut() else { return };
        let open = pending.open.entry((disk, hash)).or_default();
        *open = (*open).max(version);
        pending.name(hash, version);
        match pending.file.write_all_at(&entry(hash, version), pending.bytes) {
            Ok(()) => pending.bytes += ENTRY_BYTES as u64,
            Err(error) => {
                tracing::error!(%error, "a removal may be forgotten if the daemon is killed now");
            }
        }
        if pending.bytes >= pending.rewritten_bytes {
            pending.rewrite();
        }
    }

    /// These removals are on a disk, durably.
    pub(super) fn settle(&self, disk: u8, removals: &[Tombstone]) {
        self.forget(|open| {
            for removal in removals {
                let key = (disk, removal.hash);
                if open.get(&key).is_some_and(|version| *version <= removal.version) {
                    open.remove(&key);
                }
            }
        });
    }

    /// A version stands on a disk, stored after whatever the file says of its removal: that says one version less now.
    pub(super) fn note_stored(&self, hash: RecordHash, version: Version) {
        let mut pending = self.pending.lock();
        let Some(pending) = pending.as_mut().filter(|pending| pending.named.get(&hash) == Some(&version))
        else {
            return;
        };
        let of_it = pending.open.iter_mut().filter(|((_, other), open)| *other == hash && **open == version);
        of_it.for_each(|(_, open)| *open = version_before(version));
        pending.rewrite();
    }

    /// A disk is out of use: nothing on it can come back.
    pub(super) fn settle_disk(&self, disk: u8) {
        self.forget(|open| open.retain(|(other, _), _| *other != disk));
    }

    fn forget(&self, forget: impl FnOnce(&mut HashMap<(u8, RecordHash), Version>)) {
        let mut pending = self.pending.lock();
        let Some(pending) = pending.as_mut() else { return };
        let had_some = !pending.open.is_empty();
        forget(&mut pending.open);
        if had_some && pending.open.is_empty() {
            match pending.file.set_len(0) {
                Ok(()) => {
                    (pending.bytes, pending.rewritten_bytes) = (0, REWRITTEN_BYTES);
                    pending.named.clear();
                }
                Err(error) => tracing::warn!(%error, "removals that are on disk are kept beside it too"),
            }
        }
    }
}

impl Pending {
    fn name(&mut self, hash: RecordHash, version: Version) {
        let named = self.named.entry(hash).or_default();
        *named = (*named).max(version);
    }

    /// Writes the file anew with what waits. Not before it is twice as long is it looked at again.
    fn rewrite(&mut self) {
        let bytes: Vec<u8> =
            self.open.iter().flat_map(|((_, hash), version)| entry(*hash, *version)).collect();
        let renew = || {
            replace(&self.path, &bytes)?;
            open_file(&self.path)
        };
        match renew() {
            Ok(file) => {
                (self.file, self.bytes) = (file, bytes.len() as u64);
                self.named.clear();
                let open: Vec<_> = self.open.iter().map(|((_, hash), version)| (*hash, *version)).collect();
                open.into_iter().for_each(|(hash, version)| self.name(hash, version));
            }
            Err(error) => tracing::warn!(%error, "the file of removals grows"),
        }
        self.rewritten_bytes = REWRITTEN_BYTES.max(2 * self.bytes);
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

pub(super) fn entry(hash: RecordHash, version: Version) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[..16].copy_from_slice(&hash.0);
    bytes[16..24].copy_from_slice(&version.0.to_le_bytes());
    let checksum = XxHash3_64::oneshot(&bytes[..24]);
    bytes[24..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Entries that are whole; arbitrary bytes are safe to pass.
pub(super) fn parse(bytes: &[u8]) -> Vec<(RecordHash, Version)> {
    let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
    let parse_one = |bytes: &[u8; ENTRY_BYTES]| {
        let (hash, rest) = bytes.split_first_chunk::<16>()?;
        let (version, _) = rest.split_first_chunk::<8>()?;
        let found = (RecordHash(*hash), Version(u64::from_le_bytes(*version)));
        // One of a version that no record has could not be written to a disk.
        (entry(found.0, found.1) == *bytes && found.1.0 <= NUMBER_MAX).then_some(found)
    };
    entries.iter().filter_map(parse_one).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn removal(number: u8, version: u64) -> Tombstone {
        Tombstone { order: 0, hash: RecordHash([number; 16]), version: Version(version) }
    }

    #[test]
    fn what_waits_is_found_by_the_next_daemon_and_what_is_settled_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("intents");
        let (intents, left) = Intents::open(Some(&path)).unwrap();
        assert_eq!(left, []);
        intents.add(0, RecordHash([1; 16]), Version(5));
        intents.add(0, RecordHash([2; 16]), Version(6));
        intents.settle(0, &[removal(1, 5)]);
        let (intents, left) = Intents::open(Some(&path)).unwrap();
        assert_eq!(left, [(RecordHash([1; 16]), Version(5)), (RecordHash([2; 16]), Version(6))]);
        left.iter().for_each(|&(hash, version)| intents.add(0, hash, version));
        intents.settle(0, &[removal(1, 5), removal(2, 6)]);
        assert_eq!(Intents::open(Some(&path)).unwrap().1, []);
    }

    #[test]
    fn the_file_is_as_long_as_what_waits_and_a_disk_that_takes_nothing_keeps_one_removal_of_each_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("intents");
        let (intents, _) = Intents::open(Some(&path)).unwrap();
        for version in 0..200_000_u64 {
            let number = u8::try_from(version % 50).unwrap();
            // Of one disk nothing is ever settled.
            intents.add(1, RecordHash([number; 16]), Version(version));
            intents.add(0, RecordHash([number; 16]), Version(version));
            intents.settle(0, &[removal(number, version)]);
        }
        let length = fs::metadata(&path).unwrap().len();
        assert!(length <= REWRITTEN_BYTES, "{length} bytes");
        let left = Intents::open(Some(&path)).unwrap().1;
        let last = |number: u8| {
            left.iter().filter(|(hash, _)| hash.0[0] == number).map(|(_, version)| version.0).max()
        };
        assert!((0..50).all(|number| last(number) == Some(200_000 - 50 + u64::from(number))));
        intents.settle_disk(1);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn what_was_stored_again_is_not_removed_by_what_is_left_of_its_removal() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("intents");
        let (intents, _) = Intents::open(Some(&path)).unwrap();
        let left = || {
            let mut left: Vec<_> = fs::read(&path).map(|bytes| parse(&bytes)).unwrap();
            left.sort_unstable();
            left.into_iter().map(|(hash, version)| (hash.0[0], version.0)).collect::<Vec<_>>()
        };
        // Two wait: one for a disk that takes nothing, and one that was stored on another disk since.
        intents.add(1, RecordHash([1; 16]), Version(5));
        intents.add(1, RecordHash([2; 16]), Version(6));
        intents.add(0, RecordHash([3; 16]), Version(7));
        intents.settle(0, &[removal(3, 7)]);
        intents.note_stored(RecordHash([1; 16]), Version(8));
        assert_eq!(left(), [(1, 5), (2, 6), (3, 7)], "of another version nothing is known");
        intents.note_stored(RecordHash([3; 16]), Version(7));
        assert_eq!(left(), [(1, 5), (2, 6)]);
        intents.note_stored(RecordHash([2; 16]), Version(6));
        assert_eq!(left(), [(1, 5), (2, 5)]);
        intents.add(0, RecordHash([3; 16]), Version(7));
        assert_eq!(left(), [(1, 5), (2, 5), (3, 7)], "it is removed again");
        intents.settle_disk(1);
        intents.settle(0, &[removal(3, 7)]);
        assert_eq!(left(), []);
    }

    #[test]
    fn an_entry_that_was_written_in_part_takes_none_along_that_come_later() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("intents");
        // As one leaves it for which the file system has room in part.
        let tear = || {
            let mut bytes = fs::read(&path).unwrap();
            bytes.extend([7; ENTRY_BYTES - 12]);
            fs::write(&path, bytes).unwrap();
        };
        let numbers = |left: Vec<(RecordHash, Version)>| {
            left.into_iter().map(|(hash, _)| hash.0[0]).collect::<Vec<_>>()
        };
        let (intents, _) = Intents::open(Some(&path)).unwrap();
        intents.add(0, RecordHash([1; 16]), Version(5));
        tear();
        intents.add(0, RecordHash([2; 16]), Version(6));
        tear();
        // Nor does one that an earlier daemon left.
        let (intents, left) = Intents::open(Some(&path)).unwrap();
        assert_eq!(numbers(left), [1, 2]);
        intents.add(0, RecordHash([3; 16]), Version(7));
        assert_eq!(numbers(Intents::open(Some(&path)).unwrap().1), [1, 2, 3]);
    }

    #[test]
    fn a_torn_or_damaged_entry_loses_only_itself() {
        let mut bytes = entry(RecordHash([1; 16]), Version(5)).to_vec();
        bytes.extend(entry(RecordHash([2; 16]), Version(6)));
        bytes.extend(entry(RecordHash([3; 16]), Version(7)));
        bytes[40] ^= 1;
        bytes.truncate(bytes.len() - 3);
        assert_eq!(parse(&bytes), [(RecordHash([1; 16]), Version(5))]);
        // Nor does one that no daemon writes.
        assert_eq!(parse(&entry(RecordHash([1; 16]), Version(u64::MAX))), []);
    }
}
