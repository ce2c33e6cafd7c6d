//! Ways to move bytes between registered regions of two processes.
//!
//! A [`Transport`] is one way (sockets, shared memory, a fabric); an [`Endpoint`] is its connection to one peer. The
//! engine cuts transfers into [`Operation`]s and posts them; each ends exactly once through its [`Ticket`].
//!
//! Invariants, which `conformance` checks on every implementation and decorator
//! - A ticket is completed exactly once, and only when nothing can touch the operation's local memory any more.
//! - A write completes when its bytes are in the target's memory, not when they left this host.
//! - An operation ends soon after its deadline, after [`Endpoint::cancel`], and after the death of its peer.
//! - Operations may complete in any order.
//! - Nothing here panics on what a peer sends.
//!
//! The two ends of a transport need to exchange a few bytes before they are connected (an address, a key, a queue
//! pair's number). They do it over the engine's own authenticated connection to the peer, the *link*, through
//! [`Exchange`]: so nothing is granted to a peer that has proved nothing.

mod completion;
#[cfg(test)]
mod conformance;
pub mod layer;
pub mod libfabric;
mod operation;
mod rate;
pub mod shm;
pub mod sim;
pub mod tcp;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::memory::Region;
use crate::types::{ByteCount, NumaNode, PeerId, RailId, RegionId};

pub use crate::types::BoxFuture;
pub use completion::{Completion, Progress};
pub(crate) use completion::{processors, until};
pub use operation::{BatchId, Direction, Operation, RemoteSlice, Ticket, TicketSink};
pub use rate::Rate;

/// Longest key of a region, see [`Transport::register`]: hundreds are described in one message.
pub const KEY_BYTES_MAX: usize = 2048;

/// What a transport can do, as data for the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Longest operation that it takes; a connection may take less ([`Endpoint::operation_bytes_max`]).
    pub operation_bytes_max: ByteCount,
    /// Length below which cutting costs more than it gains.
    pub slice_bytes: ByteCount,
    /// Operations that one endpoint holds at once; more are left in the caller's queue.
    pub operations_max: usize,
    /// Whether it reaches peers of this host only.
    pub is_local: bool,
    /// Whether the peer's processor takes part in each operation.
    pub needs_target_cpu: bool,
    /// Whether local memory of an operation must be registered with it, too.
    pub needs_local_registration: bool,
}

/// A NIC, or a path that is used like one.
#[derive(Clone, Debug, PartialEq)]
pub struct Rail {
    /// Its number on this host, from 0.
    pub id: RailId,
    /// Device name, for people: `mlx5_0`, `eth0`, `loopback`.
    pub name: String,
    /// NUMA node that it hangs on, where known.
    pub numa: Option<NumaNode>,
    /// PCIe links between it and the root complex of its node, where known.
    pub pci_links: Option<u32>,
    /// Rate that the device claims, in bytes per second; 0 where unknown.
    pub nominal_bytes_per_second: u64,
}

/// What one rail of an endpoint is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailLoad {
    /// Which rail.
    pub rail: RailId,
    /// Operations posted and not complete.
    pub operations: usize,
    /// Bytes of those operations.
    pub bytes: u64,
    /// Operations that it takes beside them, of this connection or another, as far as is known.
    pub credits: usize,
}

/// How many connections of a transport to one peer send payload without a copy in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZeroCopyStatus {
    /// They do.
    pub on: usize,
    /// They do not: by the configuration, or because the kernel copied all the same.
    pub off: usize,
    /// It is not known yet whether it pays.
    pub untried: usize,
}

/// Whether an endpoint carries operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointState {
    /// It does.
    Ready,
    /// It failed and takes nothing more; a new one must be made.
    Failed(Error),
    /// It was closed here.
    Closed,
}

impl EndpointState {
    /// What operations end with that it does not carry; `None` while it carries them.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        match self {
            Self::Ready => None,
            Self::Failed(error) => Some(error.clone()),
            Self::Closed => Some(Error::Closed),
        }
    }
}

/// The two-sided channel over which the ends of a transport agree before they are connected.
pub trait Exchange: Send + Sync + fmt::Debug {
    /// Hands `request` to [`Transport::answer`] of the same transport at the peer, and returns what that said.
    ///
    /// # Errors
    /// [`Error::Refused`] with the peer's words; [`Error::PeerGone`], [`Error::DeadlinePassed`].
    fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>>;
}

/// One way to move bytes. Made by the transport's own `open`, which says [`Error::Unavailable`] where it cannot be.
pub trait Transport: Send + Sync + fmt::Debug {
    /// Short name: `tcp`, `shm`, `libfabric`.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// The rails of this host that it uses; at least one.
    fn rails(&self) -> Vec<Rail>;

    /// Makes `region` reachable for connected peers as `id`. Returns what a peer needs to name it: at most
    /// [`KEY_BYTES_MAX`], which travel with the region's description. An id is registered once at a time.
    ///
    /// # Errors
    /// [`Error::System`] or [`Error::TransportFailed`] when the memory cannot be registered.
    fn register(&self, id: RegionId, region: &Arc<Region>) -> Result<Vec<u8>, Error>;

    /// What a peer needs to name `id` now, where that is not for ever the `first` that [`Self::register`] returned.
    fn renewed_key(&self, id: RegionId, first: &[u8]) -> Option<Vec<u8>> {
        let _ = (id, first);
        None
    }

    /// Name under which `key`, which it made, travels with a region's description. Another than [`Self::name`] where
    /// engines of before would not understand the key: for them, the region is not within reach of this transport.
    fn key_name(&self, key: &[u8]) -> &'static str {
        let _ = key;
        self.name()
    }

    /// Further names of [`Self::key_name`] under which it understands keys of peers, beside its own.
    fn more_key_names(&self) -> &'static [&'static str] {
        &[]
    }

    /// Withdraws `id`: operations of peers on it end with [`Error::NoSuchRegion`] as soon as that is done. By the time it
    /// returns it is done, or ordered from the thread that does it, whether the future is polled or not. Resolves when it is
    /// done and no operation of a peer touches its memory any more. Unknown ids are ignored.
    fn unregister(&self, id: RegionId) -> BoxFuture<'_, ()>;

    /// As [`Self::unregister`], of a region that no peer uses: none was told of it, or each has said that it is done with
    /// it. Costs nobody anything where to make sure of that would.
    fn unregister_unused(&self, id: RegionId) -> BoxFuture<'_, ()> {
        self.unregister(id)
    }

    /// Connects to `peer`, whose engine offers this transport too. Called once at a time for each peer and link: what comes of a
    /// call from before the link was lost is closed.
    ///
    /// # Errors
    /// [`Error::TransportFailed`], [`Error::PeerGone`], or what `exchange` says. [`Error::Unavailable`] when this
    /// transport cannot reach that peer at all (another host, for shared memory): it is not tried again.
    /// # Cancellation
    /// Dropping the future leaves nothing behind at this end; the other notices by the closed connection.
    fn connect<'a>(
        &'a self,
        peer: PeerId,
        exchange: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>>;

    /// Answers what `peer`, which has proved itself, asks in its `connect`. Does not block.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a request that makes no sense; any error is sent back in words.
    fn answer(&self, peer: PeerId, request: &[u8]) -> Result<Vec<u8>, Error>;

    /// How connections to and from `peer` send; `None` where a transport has no such choice.
    fn zero_copy(&self, peer: PeerId) -> Option<ZeroCopyStatus> {
        let _ = peer;
        None
    }

    /// The link to `peer` is gone: everything that was granted to it is taken back, and its operations end.
    fn forget(&self, peer: PeerId);

    /// Ends everything. Resolves when no operation can touch memory any more. Idempotent.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// The connection of a transport to one peer.
pub trait Endpoint: Send + Sync + fmt::Debug {
    /// Takes operations from the front of `operations` while there is room, and starts them. What is left in the queue
    /// was not touched. A failed endpoint takes each and completes it with its error. Does not block.
    fn post(&self, operations: &mut VecDeque<Operation>);

    /// As [`Self::post`], for a caller whose thread has done its share of the work: none of it is done there.
    fn hand_over(&self, operations: &mut VecDeque<Operation>) {
        self.post(operations);
    }

    /// Gives up all operations of `batch`: each completes with [`Error::Cancelled`], unless it ended first, as soon as
    /// its memory is safe.
    fn cancel(&self, batch: BatchId);

    /// Whether it carries operations.
    fn state(&self) -> EndpointState;

    /// The rail because of which a failed endpoint has failed, where it was one.
    fn failed_rail(&self) -> Option<RailId> {
        None
    }

    /// The work on the operations of `batch`, which are posted, for a thread that blocks until they end. `None` where
    /// there is nothing that such a thread could do.
    fn progress(&self, batch: BatchId) -> Option<Arc<dyn Progress>> {
        let _ = batch;
        None
    }

    /// Longest operation that this connection takes, where that is less than its transport takes: the peer takes no longer.
    fn operation_bytes_max(&self) -> ByteCount {
        ByteCount(u64::MAX)
    }

    /// What each of its rails is doing.
    fn load(&self) -> Vec<RailLoad>;

    /// Ends all operations and takes no more. Resolves when none can touch memory any more. Idempotent.
    fn close(&self) -> BoxFuture<'_, ()>;
}
