//! Removals that a member which stops has not told to all who were to know, kept in files for its next start.
//!
//! Which are those of its own programs that nobody who decides was told of, as nobody was reached or there, and those that it
//! decided or knows while whoever serves their shard with it is lost: nobody else remembers them then. Who comes back with what was
//! removed would have it stand again for all. Those that an earlier start kept, and that not all were told of yet, are kept once more.
//!
//! Invariants
//! - What was kept is told by the next start that takes part ([`super::recalling`]): the files go when that one is registered, and
//!   knows it.
//! - All files hold the same, as one may be lost with a restart of the machine, and another with a container. Where they differ, as one
//!   could not be written, that which was written last holds.
//! - What is older than removals are remembered is not gone by.
//!
//! Limits: [`KEPT_MAX`] of each kind, and it is said when there are more. A member that is killed keeps nothing. While it is not
//! there nobody knows of them; what they removed goes again when it is back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidefs_engine::types::MemberId;

use super::core::{Core, wall_ms};
use super::object::Stamp;
use super::recalling::Removal;
use super::settings::ClusterConfig;
use super::shards::{KeyId, Shard};
use crate::replace::{read_whole, replace_durably};

/// Removals of each kind that are kept.
const KEPT_MAX: usize = 65_536;
/// Length of a name in the file.
const NAME_MAX: usize = 2 * libc::PATH_MAX as usize;
/// Length of what else there is in the file of a removal, and more.
const REMOVAL_MAX: usize = 256;
/// Length of the file.
const FILE_MAX: usize = KEPT_MAX * (NAME_MAX + 2 * REMOVAL_MAX);

/// Removals as they are kept.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Removals {
    /// When they were written, in milliseconds since 1970.
    at_ms: u64,
    /// By name, those that nobody who decides was told of.
    untold: Vec<(String, Stamp)>,
    /// By the hash of the name in hexadecimal digits, those that were decided, and how long before, in milliseconds.
    decided: Vec<(String, Stamp, u64)>,
}

/// A name as text: any bytes are one.
fn in_digits(name: &[u8]) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of what [`in_digits`] wrote; `None` for what it did not.
fn from_digits(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|digit| u8::try_from(digit.to_digit(16)?).ok()).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

impl Removals {
    fn load(file: &Path) -> io::Result<Self> {
        match read_whole(file, FILE_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            read => serde_json::from_slice(&read?).map_err(io::Error::other),
        }
    }

    /// What that of `files` holds that was written last, as of now. Of one that cannot be read, which is said, nothing.
    fn recall(files: &[PathBuf], retention: Duration) -> Self {
        let load = |file: &PathBuf| {
            Self::load(file).unwrap_or_else(|error| {
                tracing::warn!(file = %file.display(), %error, "what an earlier start removed last cannot be read there and is not told");
                Self::default()
            })
        };
        let last = files.iter().map(load).max_by_key(|kept| kept.at_ms);
        last.unwrap_or_default().at(wall_ms(), retention)
    }

    /// What of it is remembered at a later time.
    fn at(self, now_ms: u64, retention: Duration) -> Self {
        let since_ms = now_ms.saturating_sub(self.at_ms);
        let is_young = |age_ms: u64| Duration::from_millis(age_ms) < retention;
        let untold = if is_young(since_ms) { self.untold } else { Vec::new() };
        let aged =
            |(key, through, age_ms): (String, Stamp, u64)| (key, through, since_ms.saturating_add(age_ms));
        let decided = self.decided.into_iter().map(aged).filter(|&(.., age_ms)| is_young(age_ms)).collect();
        Self { at_ms: now_ms, untold, decided }
    }

    fn is_empty(&self) -> bool {
        self.untold.is_empty() && self.decided.is_empty()
    }

    /// Keeps it in place of what `files` hold.
    fn keep(&self, files: &[PathBuf]) {
        if self.is_empty() {
            return forget(files);
        }
        for file in files {
            if let Err(error) = self.store(file) {
                tracing::warn!(file = %file.display(), %error, "what was removed is not kept there; copies of it may live on elsewhere");
            }
        }
    }

    fn store(&self, file: &Path) -> io::Result<()> {
        let directory = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        replace_durably(file, &serde_json::to_vec(self).map_err(io::Error::other)?)
    }
}

fn forget(files: &[PathBuf]) {
    for file in files {
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(file = %file.display(), %error, "removals of before may be told again by a later start");
            }
            _ => {}
        }
    }
}

fn say_too_many() {
    tracing::warn!(
        "more was removed than is kept for the next start; copies of the rest may live on elsewhere"
    );
}

/// Keeps what a host has removed that stops before it has joined, beside what an earlier start of it has kept.
pub(crate) fn keep_untold(config: &ClusterConfig, removed: Vec<(Vec<u8>, Stamp)>) {
    let files = &config.removals_files;
    if files.is_empty() || removed.is_empty() {
        return;
    }
    let kept = Removals::recall(files, config.timings.tombstones);
    let mut untold: BTreeMap<String, Stamp> = kept.untold.into_iter().collect();
    for (path, through) in removed {
        let known = untold.entry(in_digits(&path)).or_default();
        *known = through.max(*known);
    }
    if untold.len() > KEPT_MAX {
        say_too_many();
    }
    let untold = untold.into_iter().take(KEPT_MAX).collect();
    Removals { untold, ..kept }.keep(files);
}

impl Core {
    /// Whether whoever serves `shard` with this member knows of all that was removed there.
    fn is_known_to_both(&self, shard: Shard) -> bool {
        let map = &self.seen().map;
        let Some(owners) = map.owners(shard).filter(|owners| owners.contains(self.me.member)) else {
            return true;
        };
        let is_other = |&member: &MemberId| member != self.me.member;
        let other = [Some(owners.primary), owners.backup].into_iter().flatten().find(is_other);
        let peers = self.peers.lock();
        other.is_some_and(|other| peers.get(&other).is_some_and(super::peers::Peer::has_heard_all))
    }

    /// Keeps what only this member knows to be removed, for its next start. Before it leaves, and once more when it decides nothing
    /// more.
    pub(super) fn keep_removals(&self) {
        let files = &self.config.removals_files;
        // Who has drained has seen to it that others know.
        if files.is_empty() || self.has_left() {
            return;
        }
        let lonely: Vec<Shard> = Shard::all().filter(|&shard| !self.is_known_to_both(shard)).collect();
        let now = self.now();
        let mut decided: Vec<_> = self.owner.lock().removals(|shard| lonely.binary_search(&shard).is_ok());
        // These are still to be told, also where the other owner is there and has heard all that was decided with it.
        let in_catalog: BTreeSet<KeyId> = decided.iter().map(|&(key, ..)| key).collect();
        decided.extend(self.recalled.all().into_iter().filter(|(key, ..)| !in_catalog.contains(key)));
        let mut untold = self.unheard.all();
        if decided.len() > KEPT_MAX || untold.len() > KEPT_MAX {
            say_too_many();
            decided.sort_unstable_by_key(|&(.., at)| std::cmp::Reverse(at));
            decided.truncate(KEPT_MAX);
            untold.truncate(KEPT_MAX);
        }
        let age_ms = |at: Duration| u64::try_from(now.saturating_sub(at).as_millis()).unwrap_or(u64::MAX);
        let kept = Removals {
            at_ms: wall_ms(),
            untold: untold.into_iter().map(|(path, through)| (in_digits(&path), through)).collect(),
            decided: decided
                .into_iter()
                .map(|(key, through, at)| (format!("{:032x}", key.0), through, age_ms(at)))
                .collect(),
        };
        if !kept.is_empty() && !self.seen().is_alone {
            tracing::warn!(
                untold = kept.untold.len(),
                decided = kept.decided.len(),
                "some of what was removed is known here alone; the next start of this member tells the others"
            );
        }
        kept.keep(files);
    }

    /// Knows again what an earlier start kept. Before it is registered.
    pub(super) fn recall_removals(&self) {
        let kept = Removals::recall(&self.config.removals_files, self.config.timings.tombstones);
        for (path, through) in kept.untold {
            if let Some(path) = from_digits(&path) {
                self.remove_later(path, through);
            }
        }
        let now = self.now();
        let recall = |(key, through, _): (String, Stamp, u64)| {
            Some((KeyId(u128::from_str_radix(&key, 16).ok()?), through, now))
        };
        let decided: Vec<Removal> = kept.decided.into_iter().filter_map(recall).collect();
        {
            let mut owner = self.owner.lock();
            decided.iter().for_each(|&(key, through, _)| owner.recall_removal(key, through, now));
        }
        self.recalled.set(decided);
    }

    /// What an earlier start kept is for this one to tell. Once it is registered.
    pub(super) fn forget_kept_removals(&self) {
        forget(&self.config.removals_files);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_and_what_is_no_file_of_removals_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("removals.json");
        assert_eq!(Removals::load(&file).unwrap(), Removals::default());
        let kept = Removals {
            at_ms: 7,
            untold: vec![(in_digits(b"kv/\xff"), Stamp(u64::MAX))],
            decided: vec![(format!("{:032x}", u128::MAX), Stamp(1), 5)],
        };
        kept.store(&file).unwrap();
        assert_eq!(Removals::load(&file).unwrap(), kept);
        fs::write(&file, b"{").unwrap();
        Removals::load(&file).unwrap_err();
        let files = [file];
        forget(&files);
        forget(&files);
        assert!(!files[0].exists());
    }

    #[test]
    fn what_is_kept_is_found_as_long_as_one_file_is_left_and_an_older_one_says_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let files = ["run", "lasting"].map(|place| directory.path().join(place).join("removals.json"));
        let kept = |name: &[u8], ago_ms: u64| {
            let at_ms = wall_ms().saturating_sub(ago_ms);
            Removals { at_ms, untold: vec![(in_digits(name), Stamp(7))], decided: Vec::new() }
        };
        let recalled = || Removals::recall(&files, Duration::from_secs(600)).untold;
        assert!(recalled().is_empty());
        for lost in &files {
            kept(b"kv/a", 0).keep(&files);
            fs::remove_file(lost).unwrap();
            assert_eq!(recalled(), [(in_digits(b"kv/a"), Stamp(7))]);
        }
        for (older, last) in [(0, 1), (1, 0)] {
            kept(b"kv/a", 5000).store(&files[older]).unwrap();
            kept(b"kv/b", 0).store(&files[last]).unwrap();
            assert_eq!(recalled(), [(in_digits(b"kv/b"), Stamp(7))]);
        }
        Removals::default().keep(&files);
        assert!(files.iter().all(|file| !file.exists()));
    }

    #[test]
    fn what_is_older_than_removals_are_remembered_is_not_gone_by() {
        let (retention, key) = (Duration::from_millis(100), |key: &str| key.to_owned());
        let decided = vec![(key("1"), Stamp(1), 0), (key("2"), Stamp(1), 50)];
        let kept = Removals { at_ms: 1000, untold: vec![(in_digits(b"kv/a"), Stamp(1))], decided };
        let later = kept.at(1060, retention);
        assert_eq!((later.at_ms, later.untold.len()), (1060, 1));
        assert_eq!(later.decided, [(key("1"), Stamp(1), 60)]);
        assert!(later.at(1160, retention).is_empty());
    }

    #[test]
    fn what_is_removed_before_a_host_has_joined_is_kept_beside_what_an_earlier_start_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("removals.json");
        let mut config = ClusterConfig::new(MemberId(1), "host");
        config.removals_files = vec![file.clone()];
        keep_untold(&config, Vec::new());
        assert!(!file.exists());
        let (a, b) = (b"kv/a", b"kv/b");
        let decided = vec![("1".to_owned(), Stamp(3), 5)];
        let kept = Removals { at_ms: wall_ms(), untold: vec![(in_digits(a), Stamp(7))], decided };
        kept.store(&file).unwrap();
        keep_untold(&config, vec![(a.to_vec(), Stamp(5)), (b.to_vec(), Stamp(9))]);
        let both = Removals::load(&file).unwrap();
        assert_eq!(both.untold, [(in_digits(a), Stamp(7)), (in_digits(b), Stamp(9))]);
        assert_eq!(both.decided.len(), 1);
    }

    #[test]
    fn any_name_is_text_and_what_is_no_name_is_none() {
        let name: Vec<u8> = (0..=255).collect();
        assert_eq!(from_digits(&in_digits(&name)), Some(name));
        for text in ["f", "0g", "+1", "é"] {
            assert_eq!(from_digits(text), None, "{text}");
        }
    }
}
