//! Decorators: a transport around a transport, with the same promises, which the suite checks on each of them.
//!
//! - [`throttle`] limits bytes per second;
//! - [`checksum`] compares both ends after each operation;
//! - [`record`] remembers what was done;
//! - [`fault`] delays, loses, fails and changes operations, decided by a seed.
//!
//! They nest: what one hands down, the next may change again. An operation keeps its batch through all of them.

pub mod checksum;
pub mod fault;
mod follow;
mod hold;
pub mod record;
pub mod throttle;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    BoxFuture, Capabilities, Endpoint, Exchange, Operation, Rail, Ticket, TicketSink, Transport,
    ZeroCopyStatus,
};
use crate::error::Error;
use crate::memory::Region;
use crate::types::{PeerId, RegionId};

/// What a decorator does with the transport below, and with each connection that it makes.
trait Wrap: Send + Sync + fmt::Debug {
    /// A connection to `peer` around `inner`.
    fn wrap(&self, peer: PeerId, inner: Arc<dyn Endpoint>) -> Arc<dyn Endpoint>;

    /// Connects the transport below.
    fn connect<'a>(
        &'a self,
        inner: &'a dyn Transport,
        peer: PeerId,
        exchange: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        inner.connect(peer, exchange)
    }

    /// Answers what `peer` asks, for the transport below or for this layer.
    fn answer(&self, inner: &dyn Transport, peer: PeerId, request: &[u8]) -> Result<Vec<u8>, Error> {
        inner.answer(peer, request)
    }

    /// The transport below has registered a region.
    fn registered(&self, _id: RegionId, _region: &Arc<Region>) {}

    /// The transport below is about to withdraw a region.
    fn withdrawn(&self, _id: RegionId) {}

    /// The link to `peer` is gone; the transport below knows.
    fn forget(&self, _peer: PeerId) {}

    /// The transport below was closed. Resolves when this layer touches no memory either.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A transport to which `wrap` adds something, and which is else the one below.
#[derive(Debug)]
struct Layer<W> {
    inner: Arc<dyn Transport>,
    wrap: W,
}

impl<W: Wrap> Transport for Layer<W> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn rails(&self) -> Vec<Rail> {
        self.inner.rails()
    }

    fn register(&self, id: RegionId, region: &Arc<Region>) -> Result<Vec<u8>, Error> {
        let key = self.inner.register(id, region)?;
        self.wrap.registered(id, region);
        Ok(key)
    }

    fn renewed_key(&self, id: RegionId, first: &[u8]) -> Option<Vec<u8>> {
        self.inner.renewed_key(id, first)
    }

    fn key_name(&self, key: &[u8]) -> &'static str {
        self.inner.key_name(key)
    }

    fn more_key_names(&self) -> &'static [&'static str] {
        self.inner.more_key_names()
    }

    fn unregister(&self, id: RegionId) -> BoxFuture<'_, ()> {
        self.wrap.withdrawn(id);
        self.inner.unregister(id)
    }

    fn unregister_unused(&self, id: RegionId) -> BoxFuture<'_, ()> {
        self.wrap.withdrawn(id);
        self.inner.unregister_unused(id)
    }

    fn connect<'a>(
        &'a self,
        peer: PeerId,
        exchange: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        Box::pin(async move {
            let inner = self.wrap.connect(&*self.inner, peer, exchange).await?;
            Ok(self.wrap.wrap(peer, inner))
        })
    }

    fn answer(&self, peer: PeerId, request: &[u8]) -> Result<Vec<u8>, Error> {
        self.wrap.answer(&*self.inner, peer, request)
    }

    fn zero_copy(&self, peer: PeerId) -> Option<ZeroCopyStatus> {
        self.inner.zero_copy(peer)
    }

    fn forget(&self, peer: PeerId) {
        self.inner.forget(peer);
        self.wrap.forget(peer);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.inner.close().await;
            self.wrap.close().await;
        })
    }
}

/// What ends the operations that a layer still has when it is closed. A connection that has failed is closed, too: then what
/// failed, so that they are tried again.
fn error_at_close(inner: &dyn Endpoint) -> Error {
    inner.state().error().unwrap_or(Error::Closed)
}

/// What happens when an operation ends below: it ends the ticket, now or later.
type Then = Box<dyn FnOnce(Ticket, Result<(), Error>) + Send>;

/// Stands between an operation below and the ticket above.
struct Relay(Mutex<Option<(Ticket, Then)>>);

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Relay(..)")
    }
}

impl TicketSink for Relay {
    fn completed(&self, _index: u32, result: Result<(), Error>) {
        let taken = self.0.lock().take();
        if let Some((ticket, then)) = taken {
            then(ticket, result);
        }
    }
}

/// Operations that are wrapped at once; what has no room below is unwrapped again.
const WRAPPED_MAX: usize = 64;

/// Whether the thread that posts does some of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poster {
    /// It does, once: see [`Endpoint::post`].
    Works,
    /// It does none: see [`Endpoint::hand_over`].
    HandsOver,
}

/// Posts to `inner`, with `then` of each operation called at its end. What `inner` has no room for is left in
/// `operations` as it was.
fn post_relayed(
    inner: &dyn Endpoint,
    operations: &mut VecDeque<Operation>,
    mut poster: Poster,
    mut then: impl FnMut(&Operation) -> Then,
) {
    while !operations.is_empty() {
        let mut relays = VecDeque::new();
        let mut wrapped = VecDeque::new();
        for operation in operations.drain(..operations.len().min(WRAPPED_MAX)) {
            let (operation, relay) = wrap(operation, &mut then);
            wrapped.push_back(operation);
            relays.push_back(relay);
        }
        match poster {
            Poster::Works => inner.post(&mut wrapped),
            Poster::HandsOver => inner.hand_over(&mut wrapped),
        }
        // In however many portions they go down, its share is one.
        poster = Poster::HandsOver;
        let is_full = !wrapped.is_empty();
        while let (Some(operation), Some(relay)) = (wrapped.pop_back(), relays.pop_back()) {
            let taken = relay.0.lock().take();
            if let Some((ticket, _)) = taken {
                operations.push_front(Operation { ticket, ..operation });
            }
        }
        if is_full {
            return;
        }
    }
}

fn wrap(operation: Operation, then: &mut impl FnMut(&Operation) -> Then) -> (Operation, Arc<Relay>) {
    let (batch, index) = (operation.ticket.batch(), operation.ticket.index());
    let then = then(&operation);
    let Operation { direction, local, remote, rail, deadline, ticket } = operation;
    let relay = Arc::new(Relay(Mutex::new(Some((ticket, then)))));
    let ticket = Ticket::new(Arc::clone(&relay) as Arc<dyn TicketSink>, batch, index);
    (Operation { direction, local, remote, rail, deadline, ticket }, relay)
}

#[cfg(test)]
mod tests;
