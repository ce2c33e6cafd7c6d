//! Compares both ends after each operation: xxh3-64 of what is here and of what the peer has.
//!
//! For memory and fabrics that are not trusted. Both ends have this layer. An operation costs a message to the peer more,
//! and reads its bytes twice more; the peer computes on the thread that answers. Where the bytes are changed by somebody
//! else between the operation and the comparison, the operation is [`Error::Corrupt`], which is retried: so this is for
//! bytes that stay, as those of sealed objects do.
//!
//! An operation whose bytes are being compared has left the transport below, and still ends by its deadline, by a cancel
//! and by a close.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use super::follow::{Follow, Followed};
use super::{Layer, Then, Wrap, error_at_close};
use crate::error::Error;
use crate::memory::{MemorySlice, Region};
use crate::transport::{BatchId, BoxFuture, Endpoint, Exchange, Operation, Ticket, Transport, until};
use crate::types::{ByteCount, PeerId, RegionId};

/// First byte of a request that is for the transport below.
const BELOW: u8 = 0;
/// First byte of a request for a checksum.
const CHECKSUM: u8 = 1;

/// Where the messages go over which checksums are compared.
pub trait Exchanges: Send + Sync + fmt::Debug {
    /// The channel to this transport at `peer`, for as long as there is one.
    fn to(&self, peer: PeerId) -> Arc<dyn Exchange>;
}

/// `inner`, which at the other end has this layer too. Comparisons run on `runtime`.
#[must_use]
pub fn checksummed(
    inner: Arc<dyn Transport>,
    exchanges: Arc<dyn Exchanges>,
    runtime: &Handle,
) -> Arc<dyn Transport> {
    let (regions, endpoints) = (RwLock::default(), Mutex::default());
    Arc::new(Layer { inner, wrap: Checker { exchanges, runtime: runtime.clone(), regions, endpoints } })
}

/// A question, behind [`CHECKSUM`].
#[derive(Serialize, Deserialize)]
struct Question {
    region: RegionId,
    offset: u64,
    length: u64,
}

/// An answer: the checksum, or `None` for a region or a range that does not exist.
type Answer = Option<u64>;

#[derive(Debug)]
struct Checker {
    exchanges: Arc<dyn Exchanges>,
    runtime: Handle,
    /// What peers may ask about. Read while a checksum is computed, so that none is once a region is withdrawn, and those of
    /// several peers are at once.
    regions: RwLock<BTreeMap<RegionId, Arc<Region>>>,
    endpoints: Mutex<Vec<Weak<Followed<Comparer>>>>,
}

impl Checker {
    fn checksum(&self, question: &Question) -> Answer {
        let Question { region: id, offset, length } = *question;
        let regions = self.regions.read();
        let slice = MemorySlice::new(regions.get(&id)?, id, offset, ByteCount(length));
        slice.ok().map(|slice| slice.checksum())
    }
}

/// Marks what the transport below asks.
#[derive(Debug)]
struct Marked<'a>(&'a dyn Exchange);

impl Exchange for Marked<'_> {
    fn ask(&self, mut request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        request.insert(0, BELOW);
        self.0.ask(request)
    }
}

impl Wrap for Checker {
    fn wrap(&self, peer: PeerId, inner: Arc<dyn Endpoint>) -> Arc<dyn Endpoint> {
        let (exchange, runtime) = (self.exchanges.to(peer), self.runtime.clone());
        let follow = Comparer { exchange, runtime, comparing: Arc::default() };
        let endpoint = Arc::new(Followed { inner, follow });
        let mut endpoints = self.endpoints.lock();
        endpoints.retain(|endpoint| endpoint.strong_count() > 0);
        endpoints.push(Arc::downgrade(&endpoint));
        endpoint
    }

    fn connect<'a>(
        &'a self,
        inner: &'a dyn Transport,
        peer: PeerId,
        exchange: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        Box::pin(async move { inner.connect(peer, &Marked(exchange)).await })
    }

    fn answer(&self, inner: &dyn Transport, peer: PeerId, request: &[u8]) -> Result<Vec<u8>, Error> {
        match request {
            [BELOW, request @ ..] => inner.answer(peer, request),
            [CHECKSUM, question @ ..] => {
                let question = postcard::from_bytes(question);
                let question = question.map_err(|_| Error::protocol("a question that cannot be read"))?;
                let answer = postcard::to_allocvec(&self.checksum(&question));
                answer.map_err(|error| Error::protocol(error.to_string()))
            }
            _ => Err(Error::protocol("a request that is for no layer")),
        }
    }

    fn registered(&self, id: RegionId, region: &Arc<Region>) {
        self.regions.write().insert(id, Arc::clone(region));
    }

    fn withdrawn(&self, id: RegionId) {
        self.regions.write().remove(&id);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.regions.write().clear();
            let endpoints: Vec<_> = self.endpoints.lock().iter().filter_map(Weak::upgrade).collect();
            for endpoint in endpoints {
                endpoint.close().await;
            }
        })
    }
}

/// Operations whose bytes are being compared.
#[derive(Debug, Default)]
struct Comparing {
    table: Mutex<Table>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct Table {
    running: BTreeMap<u64, (BatchId, Option<oneshot::Sender<Error>>)>,
    next: u64,
    /// What ends operations once the endpoint is closed.
    closed: Option<Error>,
}

impl Comparing {
    /// Ends those that `which` chooses with `error`.
    fn give_up(&self, which: impl Fn(BatchId) -> bool, error: &Error) {
        for (batch, give_up) in self.table.lock().running.values_mut() {
            if let Some(give_up) = give_up.take_if(|_| which(*batch)) {
                // It may just have ended by itself.
                let _ = give_up.send(error.clone());
            }
        }
    }

    /// An error once the endpoint is closed.
    fn begin(&self, batch: BatchId) -> Result<(u64, oneshot::Receiver<Error>), Error> {
        let (sender, receiver) = oneshot::channel();
        let mut table = self.table.lock();
        if let Some(error) = &table.closed {
            return Err(error.clone());
        }
        table.next += 1;
        let number = table.next;
        table.running.insert(number, (batch, Some(sender)));
        Ok((number, receiver))
    }

    fn end(&self, number: u64) {
        self.table.lock().running.remove(&number);
        self.ended.notify_waiters();
    }
}

/// Compares the operations of one connection.
#[derive(Debug)]
struct Comparer {
    exchange: Arc<dyn Exchange>,
    runtime: Handle,
    comparing: Arc<Comparing>,
}

/// One comparison.
#[derive(Debug)]
struct Comparison {
    local: MemorySlice,
    region: RegionId,
    offset: u64,
    deadline: Instant,
    exchange: Arc<dyn Exchange>,
}

impl Comparison {
    async fn compare(&self) -> Result<(), Error> {
        let question =
            Question { region: self.region, offset: self.offset, length: self.local.length() as u64 };
        let request = postcard::to_extend(&question, vec![CHECKSUM]);
        let request = request.map_err(|error| Error::protocol(error.to_string()))?;
        let answer = self.exchange.ask(request).await?;
        let answer: Answer =
            postcard::from_bytes(&answer).map_err(|error| Error::protocol(error.to_string()))?;
        let there = answer.ok_or(Error::NoSuchRegion { region: self.region })?;
        let here = self.local.checksum();
        if here == there { Ok(()) } else { Err(Error::Corrupt { found: here, wanted: there }) }
    }

    /// Compares until the deadline, or until it is given up.
    async fn run(&self, give_up: oneshot::Receiver<Error>) -> Result<(), Error> {
        tokio::select! {
            result = self.compare() => result,
            given_up = give_up => Err(given_up.unwrap_or(Error::Closed)),
            () = tokio::time::sleep_until(self.deadline.into()) => Err(Error::DeadlinePassed),
        }
    }
}

impl Follow for Comparer {
    /// Compares when the operation has been done below.
    fn follow(&self, operation: &Operation) -> Then {
        let comparison = Comparison {
            local: operation.local.clone(),
            region: operation.remote.region,
            offset: operation.remote.offset,
            deadline: operation.deadline,
            exchange: Arc::clone(&self.exchange),
        };
        let (comparing, runtime) = (Arc::clone(&self.comparing), self.runtime.clone());
        Box::new(move |ticket: Ticket, result| {
            if result.is_err() {
                drop(comparison);
                return ticket.complete(result);
            }
            let (number, give_up) = match comparing.begin(ticket.batch()) {
                Ok(begun) => begun,
                Err(error) => {
                    drop(comparison);
                    return ticket.complete(Err(error));
                }
            };
            runtime.spawn(async move {
                let result = comparison.run(give_up).await;
                // The memory is let go before the ticket ends.
                drop(comparison);
                ticket.complete(result);
                comparing.end(number);
            });
        })
    }

    fn cancelled(&self, batch: BatchId) {
        self.comparing.give_up(|running| running == batch, &Error::Cancelled);
    }

    fn close<'a>(&'a self, inner: &'a dyn Endpoint) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let error = error_at_close(inner);
            let error = self.comparing.table.lock().closed.get_or_insert(error).clone();
            inner.close().await;
            self.comparing.give_up(|_| true, &error);
            until(&self.comparing.ended, || self.comparing.table.lock().running.is_empty()).await;
        })
    }
}
