//! How far the epochs of pools went, kept where a restart of the machine does not reach.
//!
//! A disk that is away in a life of its pool is behind the others, and is not trusted when it comes back. Where no
//! other disk is there to go ahead, this file does: a life with none of a pool's disks, and one in which a disk lost
//! removals, count here.
//!
//! A file of JSON: a list of `{"pool": .., "epoch": ..}`, that which was used last first.
//!
//! Limits: `POOLS_MAX` pools; those that were not used for longest are forgotten.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::format::{EPOCH_MAX, Uuid};
use crate::replace::{read_whole, replace_durably};

const POOLS_MAX: usize = 16;

/// Longest file that is read: 256 bytes for each pool.
const FILE_BYTES_MAX: usize = POOLS_MAX * 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Reached {
    pool: Uuid,
    epoch: u64,
}

/// The epochs of the pools that this daemon knows.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    path: Option<PathBuf>,
    /// The one that was used last first.
    reached: Vec<Reached>,
}

impl Epochs {
    /// What an earlier life left. Without a path nothing is kept.
    pub(super) fn load(path: Option<&Path>) -> Self {
        let Some(path) = path else { return Self::default() };
        let mut epochs = read_whole(path, FILE_BYTES_MAX).and_then(|text| Self::parse(&text)).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(file = %path.display(), %error, "it is not known which disks of the SSD tier were missing");
            }
            Self::default()
        });
        epochs.path = Some(path.to_owned());
        epochs
    }

    /// Reads the text of the file; arbitrary bytes are safe to pass.
    ///
    /// # Errors
    /// `InvalidData` when it is not such a text, or names an epoch that none reaches: it could not grow.
    pub(super) fn parse(text: &[u8]) -> io::Result<Self> {
        let reached: Vec<Reached> = serde_json::from_slice(text)?;
        if reached.iter().any(|reached| reached.epoch > EPOCH_MAX) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an epoch that no pool reaches"));
        }
        let mut epochs = Self::default();
        reached.iter().rev().for_each(|reached| epochs.reach(reached.pool, reached.epoch));
        Ok(epochs)
    }

    /// The pool that was used last.
    pub(super) fn last_pool(&self) -> Option<Uuid> {
        self.reached.first().map(|reached| reached.pool)
    }

    /// The epoch that a pool reached; 0 for one that is not known.
    pub(super) fn of(&self, pool: Uuid) -> u64 {
        self.reached.iter().find(|reached| reached.pool == pool).map_or(0, |reached| reached.epoch)
    }

    /// A life of `pool` is at `epoch`.
    pub(super) fn reach(&mut self, pool: Uuid, epoch: u64) {
        let epoch = epoch.max(self.of(pool));
        self.reached.retain(|reached| reached.pool != pool);
        self.reached.insert(0, Reached { pool, epoch });
        self.reached.truncate(POOLS_MAX);
    }

    /// A life begins without a disk of any pool but `used`.
    pub(super) fn pass_others(&mut self, used: Option<Uuid>) {
        let others = self.reached.iter_mut().filter(|reached| Some(reached.pool) != used);
        others.for_each(|reached| reached.epoch = reached.epoch.saturating_add(1));
    }

    /// Keeps them, durably. Returns whether there is a file for that.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn store(&self) -> io::Result<bool> {
        let Some(path) = &self.path else { return Ok(false) };
        let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        replace_durably(path, &serde_json::to_vec(&self.reached)?)?;
        Ok(true)
    }

    /// Keeps them, or says what that may lead to.
    pub(super) fn store_or_warn(&self) {
        if let Err(error) = self.store() {
            let file = self.path.as_deref().unwrap_or(Path::new("")).display().to_string();
            tracing::warn!(
                file, %error,
                "it is not kept which disks of the SSD tier were there: deleted files may come back with one that was not"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Uuid = Uuid([1; 16]);
    const TWO: Uuid = Uuid([2; 16]);

    #[test]
    fn a_pool_that_is_passed_by_is_ahead_of_its_disks_and_one_that_is_used_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below").join("epochs.json");
        let mut epochs = Epochs::load(Some(&path));
        assert_eq!((epochs.last_pool(), epochs.of(ONE)), (None, 0));
        epochs.reach(ONE, 5);
        epochs.reach(TWO, 7);
        epochs.pass_others(Some(TWO));
        assert!(epochs.store().unwrap());
        let mut epochs = Epochs::load(Some(&path));
        assert_eq!((epochs.last_pool(), epochs.of(ONE), epochs.of(TWO)), (Some(TWO), 6, 7));
        // It never goes back.
        epochs.reach(ONE, 3);
        assert_eq!((epochs.last_pool(), epochs.of(ONE)), (Some(ONE), 6));
        fs::write(&path, b"{").unwrap();
        assert_eq!(Epochs::load(Some(&path)).last_pool(), None);
        // A pool at the last number would never go ahead of a disk that is missing.
        fs::write(&path, serde_json::to_vec(&[Reached { pool: ONE, epoch: u64::MAX }]).unwrap()).unwrap();
        assert_eq!(Epochs::load(Some(&path)).last_pool(), None);
        assert!(!Epochs::load(None).store().unwrap());
    }

    #[test]
    fn the_pools_that_were_used_last_are_known() {
        let mut epochs = Epochs::default();
        (0..40).for_each(|number| epochs.reach(Uuid([number; 16]), 1));
        assert_eq!(
            (epochs.of(Uuid([0; 16])), epochs.of(Uuid([39; 16])), epochs.reached.len()),
            (0, 1, POOLS_MAX)
        );
        let many: Vec<Reached> =
            (0..40).map(|number| Reached { pool: Uuid([number; 16]), epoch: 1 }).collect();
        let epochs = Epochs::parse(&serde_json::to_vec(&many).unwrap()).unwrap();
        assert_eq!((epochs.last_pool(), epochs.reached.len()), (Some(Uuid([0; 16])), POOLS_MAX));
    }
}
