//! How a submission begins: its local ranges are found and checked, and each request is posted at once where the way to its peer
//! is open and its region known. A task for each peer opens the way for the rest.
//!
//! Limit: a notification is no longer than [`NOTIFY_BYTES_MAX`]; nothing is moved for a batch with a longer one.
//!
//! Threads: all of it on the caller's, which never waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Inner;
use super::flight::{Canceller, Flight, Resolved};
use super::peer::{Peer, RemoteRegion};
use crate::error::Error;
use crate::queue::{Lane, Transfer, TransferHandle};
use crate::request::Batch;
use crate::transport::{BatchId, Direction, Operation};
use crate::types::{ByteCount, PeerId};

/// Longest notification that a batch carries.
const NOTIFY_BYTES_MAX: usize = 64 << 10;

impl Inner {
    /// Begins what the batch asks for.
    pub(super) fn submit(self: &Arc<Self>, batch: Batch) -> TransferHandle {
        let Batch { requests, deadline, priority, notify } = batch;
        let id = BatchId::next();
        let too_long =
            notify.as_ref().filter(|bytes| bytes.len() > NOTIFY_BYTES_MAX).map(|bytes| Error::TooLarge {
                what: "the notification of a batch",
                length: ByteCount(bytes.len() as u64),
                limit: ByteCount(NOTIFY_BYTES_MAX as u64),
            });
        let follow_up = Some(self.when_done(&requests, deadline, notify));
        let transfer = Transfer::new(id, requests.iter().map(|_| 1), follow_up);
        let mut resolved = Vec::with_capacity(requests.len());
        for (entry, request) in requests.into_iter().enumerate() {
            let stores = request.direction == Direction::Read;
            let local = match &too_long {
                Some(error) => Err(error.clone()),
                None if self.is_closed.load(Ordering::Acquire) => Err(Error::Closed),
                None => {
                    self.regions.slice(request.local.region, request.local.offset, request.length, stores)
                }
            };
            match local {
                Ok((local, holders)) => {
                    resolved.push(Resolved {
                        direction: request.direction,
                        local,
                        holders,
                        remote: request.remote,
                        entry,
                    });
                }
                Err(error) => {
                    transfer.slices_ended(entry, 1, Err(error));
                }
            }
        }
        let flight = Flight::new(self, Arc::clone(&transfer), deadline, priority, resolved);
        let canceller = Canceller::new(self, &flight);
        if !flight.requests().is_empty() {
            self.deadlines.add(&flight);
            self.start(&flight);
        }
        TransferHandle::new(transfer, Some(Arc::new(canceller)))
    }

    /// Whether `transport`, by its place, can carry `request` from or to `region`.
    pub(super) fn is_usable(&self, transport: usize, request: &Resolved, region: &RemoteRegion) -> bool {
        region.is_on(self.names[transport])
            && (!self.local_registrars.has(transport) || request.holders.has(transport))
    }

    /// Posts what can be posted at once, and opens the way for the rest in a task for each peer.
    fn start(self: &Arc<Self>, flight: &Arc<Flight>) {
        let mut ready: Vec<(Arc<Lane>, Vec<Operation>)> = Vec::new();
        let mut waiting: HashMap<PeerId, Vec<usize>> = HashMap::new();
        let mut last: Option<(PeerId, Arc<Peer>)> = None;
        for (index, request) in flight.requests().iter().enumerate() {
            let id = request.remote.peer;
            let peer = match &last {
                Some((same, peer)) if *same == id => Arc::clone(peer),
                _ => last.insert((id, self.peer(id))).1.clone(),
            };
            let known = peer.region(request.remote.region);
            let open = known.and_then(|region| {
                let is_usable = |transport| self.is_usable(transport, request, &region);
                Some((peer.ready_way(is_usable)?, region))
            });
            match open {
                Some((way, region)) => {
                    let operations = flight.launch(self, index, &way, &region);
                    match ready.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &way.lane)) {
                        Some((_, list)) => list.extend(operations),
                        None => ready.push((way.lane, operations)),
                    }
                }
                None => waiting.entry(id).or_default().push(index),
            }
        }
        for (lane, operations) in ready {
            flight.push(&lane, operations);
        }
        for (peer, indices) in waiting {
            let (engine, flight) = (Arc::clone(self), Arc::clone(flight));
            self.runtime.spawn(async move { engine.open_and_post(&flight, peer, indices).await });
        }
    }
}
