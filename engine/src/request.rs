//! What is asked of the engine: ranges, requests and batches.

use std::time::Instant;

use crate::queue::Priority;
use crate::transport::Direction;
use crate::types::{ByteCount, PeerId, RegionId};

/// A place in a region of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPlace {
    /// What [`crate::engine::Engine::register`] returned.
    pub region: RegionId,
    /// Start in bytes.
    pub offset: u64,
}

/// A place in a region of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePlace {
    /// Whose memory.
    pub peer: PeerId,
    /// What that process's engine registered it as.
    pub region: RegionId,
    /// Start in bytes.
    pub offset: u64,
}

/// One range to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which way.
    pub direction: Direction,
    /// Here.
    pub local: LocalPlace,
    /// There.
    pub remote: RemotePlace,
    /// How much.
    pub length: ByteCount,
}

/// Ranges that are submitted together, to one peer or to many.
#[derive(Clone, Debug)]
pub struct Batch {
    /// What to move. Ranges that are written must not overlap: what arrives last stays.
    pub requests: Vec<Request>,
    /// When what has not ended is given up.
    pub deadline: Instant,
    /// Which goes first where there is no room for all.
    pub priority: Priority,
    /// Sent to every peer of the batch when all of it has succeeded, as a notification on the engine's reserved channel;
    /// at most 64 KiB. The batch ends when all have said that they have it. The requests to a peer that has not, by the
    /// deadline or the end of its link, end with the reason, though their bytes were moved: it may know of them or not.
    pub notify: Option<Vec<u8>>,
}

impl Batch {
    /// `requests` at the usual priority, without notification.
    #[must_use]
    pub fn new(requests: Vec<Request>, deadline: Instant) -> Self {
        Self { requests, deadline, priority: Priority::default(), notify: None }
    }
}
