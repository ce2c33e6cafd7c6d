//! One piece of a transfer, and the ticket that ends it exactly once.
//!
//! The type keeps the promise: a [`Ticket`] is consumed by its completion, and one that is dropped instead completes
//! with an error. So an operation cannot end twice, and cannot be forgotten.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::error::Error;
use crate::memory::MemorySlice;
use crate::types::{RailId, RegionId};

/// Which way the bytes go, as seen by who submits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer's memory into ours.
    Read,
    /// From our memory into the peer's.
    Write,
}

/// One submission, unique in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(u64);

impl BatchId {
    /// An id that was never given before.
    #[must_use]
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A range of a region of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    /// What the peer registered it as.
    pub region: RegionId,
    /// What the peer's transport said about it, see [`super::Transport::register`].
    pub key: Arc<[u8]>,
    /// Start in bytes from the start of the region.
    pub offset: u64,
}

/// One read or write of at most the transport's longest operation.
#[derive(Debug)]
pub struct Operation {
    /// Which way.
    pub direction: Direction,
    /// Memory of this process: target of a read, source of a write. Its length is the operation's.
    pub local: MemorySlice,
    /// Where at the peer.
    pub remote: RemoteSlice,
    /// Rail that the plan chose.
    pub rail: RailId,
    /// When it is given up.
    pub deadline: Instant,
    /// Its end.
    pub ticket: Ticket,
}

impl Operation {
    /// Ends the operation.
    pub fn complete(self, result: Result<(), Error>) {
        let Self { local, ticket, .. } = self;
        // The memory is let go first: who waits for the ticket may unregister the region at once.
        drop(local);
        ticket.complete(result);
    }
}

/// Where completions go: the queue that made the tickets.
pub trait TicketSink: Send + Sync + fmt::Debug {
    /// The operation with this index has ended. Called once for each ticket, from any thread; does not block.
    fn completed(&self, index: u32, result: Result<(), Error>);
}

/// The right, and the duty, to end one operation.
#[derive(Debug)]
pub struct Ticket {
    sink: Option<Arc<dyn TicketSink>>,
    batch: BatchId,
    index: u32,
}

impl Ticket {
    /// A ticket for the operation `index` of `batch`.
    #[must_use]
    pub fn new(sink: Arc<dyn TicketSink>, batch: BatchId, index: u32) -> Self {
        Self { sink: Some(sink), batch, index }
    }

    /// Which submission it belongs to.
    #[must_use]
    pub fn batch(&self) -> BatchId {
        self.batch
    }

    /// Number within the submission.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Ends the operation.
    pub fn complete(mut self, result: Result<(), Error>) {
        if let Some(sink) = self.sink.take() {
            sink.completed(self.index, result);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            sink.completed(self.index, Err(Error::Closed));
        }
    }
}

#[cfg(test)]
pub(in crate::transport) mod testing {
    use super::*;
    use parking_lot::Mutex;

    /// Remembers which operations ended, and how.
    #[derive(Debug, Default)]
    pub(in crate::transport) struct Seen(pub(in crate::transport) Mutex<Vec<(u32, Result<(), Error>)>>);

    impl TicketSink for Seen {
        fn completed(&self, index: u32, result: Result<(), Error>) {
            self.0.lock().push((index, result));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Seen;
    use super::*;

    #[test]
    fn a_ticket_ends_once_whether_it_is_completed_or_dropped() {
        let seen = Arc::new(Seen::default());
        let ticket = |index| Ticket::new(Arc::clone(&seen) as Arc<dyn TicketSink>, BatchId::next(), index);
        ticket(1).complete(Ok(()));
        drop(ticket(2));
        ticket(3).complete(Err(Error::Cancelled));
        assert_eq!(*seen.0.lock(), [(1, Ok(())), (2, Err(Error::Closed)), (3, Err(Error::Cancelled))]);
    }
}
