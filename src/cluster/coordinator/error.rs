//! What a coordinator answers when it does not do what it was asked.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tidefs_engine::types::{Incarnation, MemberId};

use super::RECORDS_MAX;

/// Why the coordinator did not do it.
#[derive(Clone, Debug, Error)]
pub enum CoordinatorError {
    /// It cannot be reached, and what was asked changes what all agree on.
    #[error(
        "{what} waits for the coordinator, which was not reached for {} s ({reason}); reads and writes go on meanwhile",
        .away.as_secs()
    )]
    Away {
        /// What was asked.
        what: &'static str,
        /// For how long.
        away: Duration,
        /// What the last attempt failed with.
        reason: Arc<str>,
    },
    /// Another process started as the same member later.
    #[error(
        "member {member} was started again (start {latest}, this one is {ours}): if that is another daemon, set \
         cluster.member to another number on one of them, or give a cloned machine an /etc/machine-id of its own"
    )]
    Superseded {
        /// The member.
        member: MemberId,
        /// Our start of it.
        ours: Incarnation,
        /// The latest.
        latest: Incarnation,
    },
    /// Something is agreed on about as many directories as may be.
    #[error(
        "{RECORDS_MAX} directories, or fewer with long names, have a policy, owner or mode of their own already: rmdir of one that \
         is not needed makes room"
    )]
    TooMany,
    /// The coordinator refused, or holds something that is not ours.
    #[error("{what}: {reason}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// What it said.
        reason: Arc<str>,
    },
}

impl CoordinatorError {
    /// Whether it was only not reached: the same may succeed when it is.
    #[must_use]
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Away { .. })
    }
}
