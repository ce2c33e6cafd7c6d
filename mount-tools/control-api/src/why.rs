//! Why a key is here or is not: the question an operator asks of a cache.

use serde::{Deserialize, Serialize};
use tidefs_engine::types::ByteCount;

use crate::{KeyPath, Tier, Timestamp};

/// Answer of [`crate::routes::WHY`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// The key asked about.
    pub path: KeyPath,
    /// What became of it, for programs.
    pub verdict: Verdict,
    /// The same for people: what happened, and what to do about it.
    pub explanation: String,
}

impl Why {
    /// The answer to `path`, with the explanation that belongs to `verdict`.
    #[must_use]
    pub fn new(path: KeyPath, verdict: Verdict) -> Self {
        let explanation = verdict.explain(&path);
        Self { path, verdict, explanation }
    }
}

/// What an object was evicted for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvictionCause {
    /// Room in memory.
    #[default]
    Room,
    /// The quota of its directory.
    Quota,
    /// Its disk, or the one that it was to go to, which gave it up or did not take it.
    Disk,
    /// An operator asked for it.
    Operator,
    /// A cause that this version does not know.
    #[serde(other)]
    Other,
}

impl EvictionCause {
    /// What to do against it.
    fn advice(self) -> &'static str {
        match self {
            Self::Room => {
                " If it should have stayed: raise the capacity, give its namespace a floor (user.tidefs.floor), or \
                 pin it."
            }
            Self::Quota => " If it should have stayed: raise user.tidefs.quota of its directory, or pin it.",
            Self::Disk => " `tidefs tier status` tells how the disks are.",
            Self::Operator | Self::Other => "",
        }
    }
}

/// What became of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verdict {
    /// It is here.
    Present {
        /// Where its bytes are.
        tier: Tier,
    },
    /// Nobody wrote it since the daemon keeps books, which is from its mount's first start.
    NeverWritten {
        /// Where the books start; an older daemon does not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Timestamp>,
        /// Whether its books are those of one of several hosts.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        of_several_hosts: bool,
    },
    /// Other members of the cluster hold it, and it was not looked up on this host.
    Elsewhere {
        /// Their names.
        held_by: Vec<String>,
    },
    /// It made room.
    Evicted {
        /// When.
        at: Timestamp,
        /// The directory that grew, if it is known, or `operator`.
        for_whom: Option<String>,
        /// What for; an older daemon does not say.
        #[serde(default)]
        cause: EvictionCause,
        /// Why this one: cold, over quota, asked for.
        reason: String,
    },
    /// Its time to live was over.
    Expired {
        /// When.
        at: Timestamp,
    },
    /// It was removed or replaced on another member of the cluster.
    Withdrawn {
        /// When.
        at: Timestamp,
    },
    /// No member of the cluster that was said to hold it gave it.
    Unreachable {
        /// When.
        at: Timestamp,
    },
    /// A process deleted it.
    Deleted {
        /// When.
        at: Timestamp,
        /// The process, if it is known.
        by_pid: Option<u32>,
    },
    /// It was given another name.
    Renamed {
        /// When.
        at: Timestamp,
        /// The new name.
        to: KeyPath,
    },
    /// Its write was refused: the namespace was at its quota and nothing in it could be evicted.
    Quota {
        /// When.
        at: Timestamp,
        /// The namespace.
        namespace: String,
        /// Its quota.
        quota: ByteCount,
    },
    /// Its write was refused: the disk of slot files took no more.
    ScratchFull {
        /// When.
        at: Timestamp,
    },
    /// Its writer ended before it was whole.
    WriterDied {
        /// When.
        at: Timestamp,
        /// The writer.
        pid: u32,
    },
    /// It is being written, and hidden until it is whole.
    BeingWritten {
        /// The writer, if it is known.
        by_pid: Option<u32>,
    },
    /// Its bytes did not fit their checksum, so it was dropped.
    Corrupt {
        /// When.
        at: Timestamp,
    },
    /// It is not here, and what the books say does not reach back far enough: to before the daemon's start, or to what was in a
    /// directory that was removed, or to what came before the newest 65,536 endings.
    UnknownHistoryTooOld {
        /// When the daemon started.
        since: Timestamp,
    },
    /// A verdict that this version does not know; the explanation still is right.
    #[serde(other)]
    Other,
}

impl Verdict {
    /// What happened to `path` and what to do about it, in a few sentences.
    #[must_use]
    pub fn explain(&self, path: &KeyPath) -> String {
        let name = path.in_words();
        let by = |pid: &Option<u32>| pid.map_or_else(String::new, |pid| format!(" by process {pid}"));
        match self {
            // A directory, or a place that this version does not know.
            Self::Present { tier: Tier::Other } => format!("{name} is in the cache."),
            Self::Present { tier } => format!("{name} is in the cache ({tier})."),
            Self::Elsewhere { held_by } => format!(
                "{name} is held by {} and was not looked up on this host yet. Whoever opens it here fetches it.",
                held_by.join(" ")
            ),
            Self::NeverWritten { since, of_several_hosts } => {
                let since =
                    since.map_or_else(String::new, |since| format!(" since its daemon started, at {since}"));
                if *of_several_hosts {
                    return format!(
                        "{name} was never written on this host{since}, and no member of its cluster is known to have it. Check \
                         the spelling, and ask the other hosts with `tidefs why` what became of it."
                    );
                }
                format!(
                    "{name} was never written{since}. Check the spelling, and that its writer uses this mount and this \
                     namespace."
                )
            }
            Self::Evicted { at, for_whom, cause, reason } => {
                let who = for_whom.as_ref().filter(|_| *cause == EvictionCause::Room);
                let for_whom = who.map_or_else(String::new, |who| format!(" to make room for `{who}`"));
                format!("{name} was evicted at {at}{for_whom} ({reason}).{}", cause.advice())
            }
            Self::Expired { at } => format!(
                "{name} expired at {at}, when its time to live was over. If that was too early, raise \
                 user.tidefs.ttl on its directory."
            ),
            Self::Withdrawn { at } => format!(
                "{name} was removed or replaced on another member of the cluster at {at}. Ask there, with \
                 `tidefs why`, who did it."
            ),
            Self::Unreachable { at } => format!(
                "{name} could not be fetched at {at} from any member that was said to hold it. `tidefs members` \
                 shows who is away."
            ),
            Self::Deleted { at, by_pid } => format!(
                "{name} was deleted at {at}{}. If nobody should have: some clients delete a file after a \
                 failed read, their log says so.",
                by(by_pid)
            ),
            Self::Renamed { at, to } => format!("{name} was renamed to `{to}` at {at}. Look there."),
            Self::ScratchFull { at } => format!(
                "{name}, a slot file, was refused at {at}: scratch was full. Raise scratch.capacity, or free its disk; the \
                 daemon's log says which."
            ),
            Self::Quota { at, namespace, quota } => format!(
                "{name} was refused at {at}: namespace `{namespace}` was at its quota of {quota} and nothing \
                 in it could be evicted. Raise user.tidefs.quota, or unpin or close some of its files."
            ),
            Self::WriterDied { at, pid } => format!(
                "{name} was never whole: its writer, process {pid}, ended at {at} before it had closed or \
                 renamed it. Look at what ended that process."
            ),
            Self::BeingWritten { by_pid } => format!(
                "{name} is being written{} and stays hidden until its last writer closes or renames it. If \
                 that never comes, a process keeps it open.",
                by(by_pid)
            ),
            Self::Corrupt { at } => format!(
                "{name} was dropped at {at}: its bytes did not fit their checksum. Run `tidefs verify`; if \
                 more are corrupt, suspect the machine's memory."
            ),
            Self::UnknownHistoryTooOld { since } => format!(
                "{name} is not here, and why is not known: the daemon knows nothing from before its start at {since}, nor of \
                 what was in a directory that was removed. It may never have been written, or have left."
            ),
            Self::Other => format!("{name}: a verdict that this version of the tools does not know."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_tagged_in_snake_case() {
        let why =
            Why::new(KeyPath::from_bytes(b"a"), Verdict::Expired { at: Timestamp::from_unix_millis(1000) });
        let json = serde_json::to_value(&why).unwrap();
        assert_eq!(json["verdict"], serde_json::json!({"kind": "expired", "at": "1970-01-01T00:00:01.000Z"}));
        assert_eq!(serde_json::from_value::<Why>(json).unwrap(), why);
    }

    #[test]
    fn a_verdict_of_a_later_daemon_keeps_its_explanation() {
        let json = r#"{"path":"a","verdict":{"kind":"lent","to":"b"},"explanation":"it was lent"}"#;
        let why: Why = serde_json::from_str(json).unwrap();
        assert_eq!((why.verdict, why.explanation.as_str()), (Verdict::Other, "it was lent"));
    }

    #[test]
    fn an_explanation_names_the_key_the_time_and_who_did_it() {
        let verdict = Verdict::Deleted { at: Timestamp::from_unix_millis(0), by_pid: Some(42) };
        let text = verdict.explain(&KeyPath::from_bytes(b"ns/key"));
        assert!(
            text.contains("`ns/key`") && text.contains("1970-01-01") && text.contains("process 42"),
            "{text}"
        );
    }

    #[test]
    fn an_eviction_is_explained_with_what_helps_against_its_cause() {
        let explained = |cause, for_whom: Option<&str>| {
            let at = Timestamp::from_unix_millis(0);
            let for_whom = for_whom.map(str::to_owned);
            let verdict = Verdict::Evicted { at, for_whom, cause, reason: "a reason".to_owned() };
            verdict.explain(&KeyPath::from_bytes(b"ns/key"))
        };
        let ends = |text: &str, end: &str| assert!(text.ends_with(end), "{text}");
        let room = explained(EvictionCause::Room, Some("new"));
        assert!(
            room.contains("to make room for `new` (a reason). If") && room.contains("capacity"),
            "{room}"
        );
        ends(&explained(EvictionCause::Operator, Some("operator")), "Z (a reason).");
        let quota = explained(EvictionCause::Quota, None);
        assert!(quota.contains("user.tidefs.quota") && !quota.contains("capacity"), "{quota}");
        ends(&explained(EvictionCause::Disk, None), "`tidefs tier status` tells how the disks are.");
    }

    #[test]
    fn the_root_of_a_mount_has_a_name_in_an_explanation() {
        let text = Verdict::Present { tier: Tier::Other }.explain(&KeyPath::root());
        assert_eq!(text, "the mount's root is in the cache.");
    }
}
