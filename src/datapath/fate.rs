//! What became of a key, for `why`.

use tidefs_control_api::EvictionCause;
use tidefs_engine::types::ByteCount;

use super::history::{Ending, dropped_text, not_stored_text};
use super::{Datapath, Object, Phase, State, key_hash};
use crate::namespace::{Ino, Slot, split_path};

/// What became of a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is here.
    Present {
        /// Its tier.
        tier: &'static str,
    },
    /// It is being written, by the process if that is known.
    BeingWritten {
        /// First of its writers.
        process: Option<u32>,
    },
    /// It was evicted.
    Evicted {
        /// When.
        at_ns: i64,
        /// The directory that grew, if it is known and still there, or `operator`.
        for_whom: Option<String>,
        /// What for.
        cause: EvictionCause,
        /// Why.
        reason: &'static str,
    },
    /// Its time to live passed.
    Expired {
        /// When.
        at_ns: i64,
    },
    /// It was removed or replaced on another member.
    Withdrawn {
        /// When.
        at_ns: i64,
    },
    /// No member that was said to hold it gave it.
    Unreachable {
        /// When.
        at_ns: i64,
    },
    /// It was removed by name.
    Deleted {
        /// When.
        at_ns: i64,
        /// By which process.
        process: u32,
    },
    /// It has another name now.
    Renamed {
        /// When.
        at_ns: i64,
        /// Path below the mount.
        to: Vec<u8>,
    },
    /// A write to it was refused by a quota.
    OverQuota {
        /// When.
        at_ns: i64,
        /// The directory that has the quota.
        directory: String,
        /// The quota.
        quota: ByteCount,
    },
    /// Its write was refused: the disk of slot files took no more.
    ScratchFull {
        /// When.
        at_ns: i64,
    },
    /// Its writer was killed.
    WriterKilled {
        /// When.
        at_ns: i64,
        /// The writer.
        process: u32,
    },
    /// Its bytes were damaged.
    Corrupt {
        /// When.
        at_ns: i64,
    },
    /// Nothing is known of it. `history_is_whole`: so it was never written.
    Unknown {
        /// Whether nothing that happened was forgotten yet.
        history_is_whole: bool,
    },
}

impl Datapath {
    /// Says that an earlier daemon served this mount: nothing is known of what became of keys then.
    pub fn follows_another(&self) {
        self.lock().history.follows_another();
    }

    /// What became of `path`.
    #[must_use]
    pub fn fate(&self, path: &[u8]) -> Fate {
        let state = self.lock();
        if let Some(slot) = state.tree.by_path(path) {
            return match state.object(slot) {
                Some(object) if object.phase == Phase::Writing => {
                    Fate::BeingWritten { process: first_writer(object) }
                }
                Some(object) => Fate::Present { tier: super::xattrs::tier_text(object) },
                None => Fate::Present { tier: "directory" },
            };
        }
        let (directory, name) = split_path(path);
        let ending = state
            .tree
            .by_path(directory)
            .and_then(|slot| state.tree.directory(slot))
            .and_then(|directory| state.history.get(key_hash(directory.id, name)));
        let Some((at_ns, ending)) = ending else {
            let is_forgotten = state.history.has_forgotten() || state.was_removed_above(path);
            return Fate::Unknown { history_is_whole: !is_forgotten };
        };
        let evicted = |cause, reason| Fate::Evicted { at_ns, for_whom: None, cause, reason };
        match ending {
            Ending::Evicted { for_directory } => Fate::Evicted {
                at_ns,
                for_whom: state.grown(for_directory),
                cause: EvictionCause::Room,
                reason: "the cache was full and it was the coldest",
            },
            Ending::EvictedForQuota => evicted(EvictionCause::Quota, "the quota of its directory was full"),
            Ending::Dropped(reason) => evicted(EvictionCause::Disk, dropped_text(reason)),
            Ending::NotStored(refused) => evicted(EvictionCause::Disk, not_stored_text(refused)),
            Ending::EvictedByOperator => Fate::Evicted {
                at_ns,
                for_whom: Some("operator".to_owned()),
                cause: EvictionCause::Operator,
                reason: "it was asked for by command",
            },
            Ending::Expired => Fate::Expired { at_ns },
            Ending::Withdrawn => Fate::Withdrawn { at_ns },
            Ending::Unreachable => Fate::Unreachable { at_ns },
            Ending::Deleted { process } => Fate::Deleted { at_ns, process },
            Ending::Renamed { ino } => match state.tree.by_ino(Ino(ino)) {
                Some(slot) if !state.tree.node(slot).is_detached() => {
                    Fate::Renamed { at_ns, to: state.tree.path(slot) }
                }
                _ => Fate::Unknown { history_is_whole: false },
            },
            Ending::OverQuota { directory, quota } => Fate::OverQuota {
                at_ns,
                directory: state
                    .tree
                    .get(Slot(directory))
                    .map(|_| state.path_text(Slot(directory)))
                    .unwrap_or_default(),
                quota: ByteCount(quota),
            },
            Ending::NoRoom => evicted(
                EvictionCause::Room,
                "its write was refused: nothing in the cache could be evicted for it",
            ),
            Ending::ScratchFull => Fate::ScratchFull { at_ns },
            Ending::WriterKilled { process } => Fate::WriterKilled { at_ns, process },
            Ending::Corrupt => Fate::Corrupt { at_ns },
        }
    }
}

impl State {
    /// The path of a directory for which something was evicted. `None` where nobody in particular grew, and when it is gone.
    fn grown(&self, directory: Ino) -> Option<String> {
        let slot = self.tree.by_ino(directory).filter(|&slot| slot != Slot::ROOT)?;
        self.tree.is_living_directory(slot).then(|| self.path_text(slot))
    }

    /// Whether a directory above `path` was removed: what was in it is not known any more, also where there is another by now.
    fn was_removed_above(&self, path: &[u8]) -> bool {
        let mut below = path;
        while !below.is_empty() {
            let (above, _) = split_path(below);
            let (parent, name) = split_path(above);
            let parent = self.tree.by_path(parent).and_then(|slot| self.tree.directory(slot));
            if parent.is_some_and(|parent| self.history.get(key_hash(parent.id, name)).is_some()) {
                return true;
            }
            below = above;
        }
        false
    }
}

fn first_writer(object: &Object) -> Option<u32> {
    object.open.as_ref()?.writer_processes.first().map(|writer| writer.id.0)
}
