//! Removals that are not on disk yet, kept where a kill of the daemon does not reach.
//!
//! A removal returns before its tombstone is on disk, which takes milliseconds. Until then it stands in a file of a
//! tmpfs, written in one system call: a daemon that is killed finds it at its next start. A power cut takes both the file
//! and the tombstones of the last moment, as it takes every unlink that was not synced.
//!
//! Limits: 32 bytes for each removal that waits; the file is emptied whenever none does.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use parking_lot::Mutex;
use tidefs_engine::types::Version;
use xxhash_rust::xxh3::xxh3_64;

use super::format::RecordHash;

const ENTRY_BYTES: usize = 32;

#[derive(Debug)]
struct Pending {
    file: File,
    waiting: u64,
}

/// The file of removals that wait.
#[derive(Debug)]
pub(super) struct Intents {
    /// Guards the file and the count of what in it waits. `None` without a file.
    pending: Mutex<Option<Pending>>,
}

impl Intents {
    /// Opens the file, and returns what an earlier daemon left in it. Without a path nothing is kept.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn open(path: Option<&Path>) -> io::Result<(Self, Vec<(RecordHash, Version)>)> {
        let Some(path) = path else { return Ok((Self { pending: Mutex::new(None) }, Vec::new())) };
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        // What is left is noted again when it is made good, and goes with the first time that nothing waits.
        Ok((Self { pending: Mutex::new(Some(Pending { file, waiting: 0 })) }, parse(&bytes)))
    }

    /// Notes a removal, before anybody is told that it happened.
    pub(super) fn add(&self, hash: RecordHash, version: Version) {
        let mut pending = self.pending.lock();
        let Some(pending) = pending.as_mut() else { return };
        pending.waiting += 1;
        if let Err(error) = pending.file.write_all(&entry(hash, version)) {
            tracing::error!(%error, "a removal may be forgotten if the daemon is killed now");
        }
    }

    /// So many removals are on disk, durably.
    pub(super) fn settle(&self, count: u64) {
        let mut pending = self.pending.lock();
        let Some(pending) = pending.as_mut() else { return };
        pending.waiting = pending.waiting.saturating_sub(count);
        if pending.waiting == 0
            && let Err(error) = pending.file.set_len(0)
        {
            tracing::warn!(%error, "removals that are on disk are kept beside it too");
        }
    }
}

fn entry(hash: RecordHash, version: Version) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[..16].copy_from_slice(&hash.0);
    bytes[16..24].copy_from_slice(&version.0.to_le_bytes());
    let checksum = xxh3_64(&bytes[..24]);
    bytes[24..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Entries that are whole; arbitrary bytes are safe to pass.
fn parse(bytes: &[u8]) -> Vec<(RecordHash, Version)> {
    let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
    let parse_one = |bytes: &[u8; ENTRY_BYTES]| {
        let (hash, rest) = bytes.split_first_chunk::<16>()?;
        let (version, _) = rest.split_first_chunk::<8>()?;
        let found = (RecordHash(*hash), Version(u64::from_le_bytes(*version)));
        (entry(found.0, found.1) == *bytes).then_some(found)
    };
    entries.iter().filter_map(parse_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_found_by_the_next_daemon_and_what_is_settled_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("intents");
        let (intents, left) = Intents::open(Some(&path)).unwrap();
        assert_eq!(left, []);
        intents.add(RecordHash([1; 16]), Version(5));
        intents.add(RecordHash([2; 16]), Version(6));
        intents.settle(1);
        let (intents, left) = Intents::open(Some(&path)).unwrap();
        assert_eq!(left, [(RecordHash([1; 16]), Version(5)), (RecordHash([2; 16]), Version(6))]);
        left.iter().for_each(|&(hash, version)| intents.add(hash, version));
        intents.settle(2);
        assert_eq!(Intents::open(Some(&path)).unwrap().1, []);
    }

    #[test]
    fn a_torn_or_damaged_entry_loses_only_itself() {
        let mut bytes = entry(RecordHash([1; 16]), Version(5)).to_vec();
        bytes.extend(entry(RecordHash([2; 16]), Version(6)));
        bytes.extend(entry(RecordHash([3; 16]), Version(7)));
        bytes[40] ^= 1;
        bytes.truncate(bytes.len() - 3);
        assert_eq!(parse(&bytes), [(RecordHash([1; 16]), Version(5))]);
    }
}
