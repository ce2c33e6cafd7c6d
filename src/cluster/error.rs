//! Why the cluster did not do what a member asked of it.

use thiserror::Error;
use tidefs_engine::types::ByteCount;

use super::coordinator::CoordinatorError;

/// Why it was not done. To who asks for bytes all of these are one thing: a miss.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// The coordinator does not let this daemon take part.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// The engine does not start, or does not reach a peer.
    #[error(transparent)]
    Engine(#[from] tidefs_engine::error::Error),
    /// Nobody who serves the key's shard answered in time.
    #[error("nobody who serves this key answered in time ({reason}); it is told to them when they are back")]
    NobodyReached {
        /// What the last attempt failed with.
        reason: String,
    },
    /// No member that was named gave the bytes.
    #[error("none of {asked} sources gave the bytes; the last one: {reason}")]
    NoSource {
        /// How many were asked.
        asked: usize,
        /// What the last of them failed with.
        reason: String,
    },
    /// What a source has is not as long as what was asked for.
    #[error("the source has {found}, asked for were {wanted}")]
    OtherLength {
        /// Length at the source.
        found: ByteCount,
        /// Length that was asked for.
        wanted: ByteCount,
    },
    /// A peer sent what the protocol does not allow.
    #[error("a message of a peer is refused: {0}")]
    Message(#[from] super::catalog::wire::WireError),
    /// It is not done, and why.
    #[error("{0}")]
    Refused(String),
    /// The deadline passed first.
    #[error("the deadline has passed")]
    DeadlinePassed,
    /// This member has left.
    #[error("this member has left the cluster")]
    Closed,
}

impl ClusterError {
    /// Whether bytes were not what their checksum says.
    #[must_use]
    pub fn is_corruption(&self) -> bool {
        matches!(self, Self::Engine(tidefs_engine::error::Error::Corrupt { .. }))
    }

    /// Whether the same may succeed a moment later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NobodyReached { .. } | Self::NoSource { .. } | Self::DeadlinePassed => true,
            Self::Engine(error) => error.is_retryable(),
            Self::Coordinator(_)
            | Self::OtherLength { .. }
            | Self::Message(_)
            | Self::Refused(_)
            | Self::Closed => false,
        }
    }
}
