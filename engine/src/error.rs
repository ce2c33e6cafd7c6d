//! What can go wrong with a transfer or a message, named for the situation.
//!
//! Values are small and `Clone`: one cause is reported to every operation that it ends.

use std::io;
use std::sync::Arc;

use crate::types::{ByteCount, PeerId, RegionId};

/// Why an operation, a message or a connection did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The time that the caller gave is used up.
    #[error("the deadline has passed")]
    DeadlinePassed,
    /// The caller gave it up.
    #[error("cancelled")]
    Cancelled,
    /// The process at the other end does not answer, was closed, or is another incarnation now.
    #[error("peer {peer} is gone: {cause}")]
    PeerGone {
        /// Who was meant.
        peer: PeerId,
        /// How that was noticed.
        cause: Arc<str>,
    },
    /// Nobody answers at any address of the peer.
    #[error(
        "no connection to {address}: {cause}; check that the peer runs and that the address is reachable"
    )]
    Unreachable {
        /// Addresses that were tried.
        address: Arc<str>,
        /// What the last of them said.
        cause: Arc<str>,
    },
    /// The two ends do not share the cluster key, or one of them shows none.
    #[error(
        "{peer_address} did not prove that it belongs to this cluster: {cause}; check the cluster key of both"
    )]
    Unproven {
        /// Address of the other end.
        peer_address: Arc<str>,
        /// Which proof failed.
        cause: Arc<str>,
    },
    /// The two ends share no version of the protocol.
    #[error("the peer speaks protocol versions {theirs}, this engine {ours}; upgrade the older of the two")]
    VersionMismatch {
        /// Lowest and highest version of the other end.
        theirs: Arc<str>,
        /// Lowest and highest version of this end.
        ours: Arc<str>,
    },
    /// The peer sent what the protocol does not allow.
    #[error("the peer breaks the protocol: {cause}")]
    Protocol {
        /// The rule that was broken.
        cause: Arc<str>,
    },
    /// No such region is registered, or not any more.
    #[error("region {region} is not registered")]
    NoSuchRegion {
        /// Which one was asked for.
        region: RegionId,
    },
    /// A range leaves its region.
    #[error("{length} at offset {offset} leaves region {region}, which has {region_length}")]
    OutOfRange {
        /// Which region.
        region: RegionId,
        /// Start of the range in bytes.
        offset: u64,
        /// Length of the range.
        length: ByteCount,
        /// Length of the region.
        region_length: ByteCount,
    },
    /// A write to a region that peers may only read.
    #[error("region {region} may only be read")]
    ReadOnly {
        /// Which region.
        region: RegionId,
    },
    /// A transport cannot be used on this host.
    #[error("transport `{transport}` is not available: looked for {looked_for}: {cause}")]
    Unavailable {
        /// Name of the transport.
        transport: &'static str,
        /// Library, symbol, device or file, and where it was looked for.
        looked_for: Arc<str>,
        /// What was found instead.
        cause: Arc<str>,
    },
    /// A transport or rail failed under the operation; another may carry it.
    #[error("transport `{transport}` failed: {cause}")]
    TransportFailed {
        /// Name of the transport.
        transport: &'static str,
        /// What the hardware, the library or the kernel said.
        cause: Arc<str>,
    },
    /// The NICs of a transport translate too few pages for one more region.
    #[error(
        "transport `{transport}` has no room for a region of {need} pages of {page_bytes} bytes: its NICs have {left} of \
         {budget} left; use larger pages (hugetlb), register less at a time, or let each NIC translate more"
    )]
    OverBudget {
        /// Name of the transport.
        transport: &'static str,
        /// Pages of the region.
        need: u64,
        /// Pages that all NICs together have left.
        left: u64,
        /// Pages of all NICs together.
        budget: u64,
        /// Size of a page of the region in bytes.
        page_bytes: u64,
    },
    /// What arrived is not what was sent.
    #[error("the bytes that arrived have checksum {found:016x}, those that were sent {wanted:016x}")]
    Corrupt {
        /// xxh3-64 of what arrived.
        found: u64,
        /// xxh3-64 of what was sent.
        wanted: u64,
    },
    /// A message or batch is larger than the engine takes.
    #[error("{what} has {length}, the limit is {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its length.
        length: ByteCount,
        /// The largest that is taken.
        limit: ByteCount,
    },
    /// A bounded queue is full.
    #[error("{what} is full; try again when something in it has ended")]
    Busy {
        /// Which queue.
        what: &'static str,
    },
    /// The peer's handler refused the request.
    #[error("the peer refuses: {cause}")]
    Refused {
        /// Its words.
        cause: Arc<str>,
    },
    /// The operating system refused.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What it said.
        cause: Arc<str>,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {cause}; {remedy}")]
    CannotListen {
        /// Where.
        address: Arc<str>,
        /// What the operating system said.
        cause: Arc<str>,
        /// What that means, and what helps.
        remedy: Arc<str>,
        /// Whether no interface of this host has it, which may change by itself while a host starts.
        is_absent: bool,
    },
    /// The engine is being closed.
    #[error("the engine is closed")]
    Closed,
}

impl Error {
    /// A refusal of the operating system.
    #[must_use]
    pub fn system(what: &'static str, error: &io::Error) -> Self {
        Self::System { what, cause: error.to_string().into() }
    }

    /// A broken rule of the protocol.
    #[must_use]
    pub fn protocol(cause: impl Into<Arc<str>>) -> Self {
        Self::Protocol { cause: cause.into() }
    }

    /// A transport that failed under an operation.
    #[must_use]
    pub fn transport(transport: &'static str, cause: impl Into<Arc<str>>) -> Self {
        Self::TransportFailed { transport, cause: cause.into() }
    }

    /// Whether the same operation may succeed on another rail or transport, or a moment later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::TransportFailed { .. }
            | Self::Corrupt { .. }
            | Self::Busy { .. }
            | Self::System { .. }
            | Self::CannotListen { .. }
            | Self::Protocol { .. } => true,
            Self::DeadlinePassed
            | Self::Cancelled
            | Self::PeerGone { .. }
            | Self::Unreachable { .. }
            | Self::Unproven { .. }
            | Self::VersionMismatch { .. }
            | Self::NoSuchRegion { .. }
            | Self::OverBudget { .. }
            | Self::OutOfRange { .. }
            | Self::ReadOnly { .. }
            | Self::Unavailable { .. }
            | Self::TooLarge { .. }
            | Self::Refused { .. }
            | Self::Closed => false,
        }
    }
}
