//! Posts what had to wait: for the description of its region, for the way to its peer, or for another attempt.
//!
//! Invariants
//! - A request that waits is posted or refused; the latter at once when its flight is given up meanwhile.
//! - What goes by another way than the best is counted, whether it had to wait or not, and whatever keeps it from that one.
//!
//! Limits: a peer is asked for [`DESCRIBED_AT_ONCE`] regions in one message; more are asked for one message after the other.
//! Where its queue of questions is full, or it answers that it has too much to do, requests wait and ask again, until their
//! deadline at the longest.
//!
//! Threads: those of the runtime, one task for each peer of a submission, and for each slice that is tried again.

use std::sync::Arc;
use std::time::Instant;

use super::Inner;
use super::descriptor::{Bytes, Describe, Described, RegionDescriptor};
use super::flight::Flight;
use super::messages::DESCRIBE;
use super::outcome::{Attempts, pause_before};
use super::peer::{Opened, Peer, RemoteRegion};
use crate::error::Error;
use crate::queue::Lane;
use crate::transport::Operation;
use crate::types::{PeerId, RegionId};

/// Regions that are described in one message.
const DESCRIBED_AT_ONCE: usize = 256;

impl Inner {
    /// What `peer` says of its region; asked when it is not known.
    async fn remote_region(
        &self,
        peer: &Peer,
        id: RegionId,
        deadline: Instant,
    ) -> Result<Arc<RemoteRegion>, Error> {
        if let Some(region) = peer.region(id) {
            return Ok(region);
        }
        // Not looked up again: an operation that fails meanwhile has it forgotten.
        let described = self.describe_regions(peer, &[id], deadline).await?;
        described.into_iter().next().ok_or(Error::NoSuchRegion { region: id })
    }

    /// Asks `peer` for its regions `ids`, and takes note of those that it has, which are returned.
    async fn describe_regions(
        &self,
        peer: &Peer,
        ids: &[RegionId],
        deadline: Instant,
    ) -> Result<Vec<Arc<RemoteRegion>>, Error> {
        let link = self.link(peer, deadline).await?;
        let answer = link.call(DESCRIBE, Describe { regions: ids.to_vec() }.to_bytes(), deadline).await?;
        let described = Described::from_bytes(&answer)?;
        let asked = described.regions.into_iter().flatten().filter(|region| ids.contains(&region.id));
        let remember =
            |region: RegionDescriptor| peer.remember(region.id, RemoteRegion::new(region, &self.transports));
        Ok(asked.map(remember).collect())
    }

    /// Opens the way for the requests `indices` of `flight`, all to one peer, and posts them.
    pub(super) async fn open_and_post(
        self: &Arc<Self>,
        flight: &Arc<Flight>,
        peer: PeerId,
        indices: Vec<usize>,
    ) {
        let peer = self.peer(peer);
        let mut left = indices;
        let work = self.post_all(flight, &peer, &mut left);
        let result = tokio::select! {
            result = work => result,
            () = flight.given_up() => Err(Error::Cancelled),
        };
        if let Err(error) = result {
            left.into_iter().for_each(|index| flight.refuse(index, error.clone()));
        }
    }

    /// As [`Self::post_in_order`]. Where hundreds ask a peer for their regions at once, there is no room for all of their
    /// questions, here or there: there is in a moment, and a region may be known by then.
    async fn post_all(
        self: &Arc<Self>,
        flight: &Arc<Flight>,
        peer: &Arc<Peer>,
        left: &mut Vec<usize>,
    ) -> Result<(), Error> {
        let mut asked = Attempts::FIRST;
        loop {
            match self.post_in_order(flight, peer, left).await {
                Err(reason @ Error::Busy { .. }) if self.may_retry(&reason, asked, flight.deadline()) => {
                    asked = asked.again();
                }
                result => return result,
            }
            tokio::time::sleep(pause_before(asked.begun)).await;
        }
    }

    /// Takes each request out of `left` that was posted or refused. An error concerns those that are left.
    async fn post_in_order(
        self: &Arc<Self>,
        flight: &Arc<Flight>,
        peer: &Arc<Peer>,
        left: &mut Vec<usize>,
    ) -> Result<(), Error> {
        let deadline = flight.deadline();
        let region_of = |index: usize| flight.requests()[index].remote.region;
        let mut unknown: Vec<RegionId> =
            left.iter().map(|&index| region_of(index)).filter(|&id| peer.region(id).is_none()).collect();
        unknown.sort_unstable();
        unknown.dedup();
        for some in unknown.chunks(DESCRIBED_AT_ONCE) {
            self.describe_regions(peer, some, deadline).await?;
        }
        let mut ready: Vec<(Arc<Lane>, Vec<Operation>)> = Vec::new();
        let push = |lane: Arc<Lane>, operations| flight.push(&lane, operations);
        let mut result = Ok(());
        while let Some(&index) = left.last() {
            let launched = match self.remote_region(peer, region_of(index), deadline).await {
                Ok(region) => {
                    let request = &flight.requests()[index];
                    let usable = |transport| self.is_usable(transport, request, &region);
                    let open = peer.ready_way(usable);
                    let is_open = open.is_some();
                    if !is_open {
                        ready.drain(..).for_each(|(lane, operations)| push(lane, operations));
                    }
                    let way = match open {
                        Some(way) => Ok(way),
                        None => self.open_way(peer, usable, deadline).await,
                    };
                    way.map(|way| (flight.launch(self, index, &way, &region), way.lane, is_open))
                }
                Err(error @ Error::Busy { .. }) => {
                    result = Err(error);
                    break;
                }
                Err(error) => Err(error),
            };
            left.pop();
            match launched {
                Ok((operations, lane, _)) if operations.is_empty() => self.not_tried(peer.id, &lane),
                // By a way that is open and in no trouble, all go in one piece.
                Ok((operations, lane, true)) => {
                    match ready.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &lane)) {
                        Some((_, list)) => list.extend(operations),
                        None => ready.push((lane, operations)),
                    }
                }
                // At once: it may be the one that tries a way which was in trouble, and all others wait for its end.
                Ok((operations, lane, false)) => push(lane, operations),
                Err(error) => flight.refuse(index, error),
            }
        }
        ready.into_iter().for_each(|(lane, operations)| push(lane, operations));
        result
    }

    /// Posts a slice again that came back with an error.
    pub(super) async fn repost(self: &Arc<Self>, flight: &Arc<Flight>, piece: usize) -> Result<(), Error> {
        let request = &flight.requests()[flight.request_of(piece)];
        let peer = self.peer(request.remote.peer);
        let work = async {
            let region = self.remote_region(&peer, request.remote.region, flight.deadline()).await?;
            let usable = |transport| self.is_usable(transport, request, &region);
            let way = self.open_way(&peer, usable, flight.deadline()).await?;
            Ok((region, way))
        };
        let (region, way) = tokio::select! {
            found = work => found?,
            () = flight.given_up() => return Err(Error::Cancelled),
        };
        flight.push(&way.lane, flight.relaunch(self, piece, &way, &region));
        Ok(())
    }

    /// So many slices go by `way`.
    pub(super) fn count_fallen_back(&self, way: &Opened, slices: usize) {
        if way.is_second_best {
            self.metrics.slices_fallen_back_total.add(slices as u64);
        }
    }
}
