//! The peers that a NIC knows: where they are reached, and who would go there.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use super::super::NAME;
use super::super::endpoint::Connection;
use super::super::nic::ffi::Failure;
use super::Domain;
use crate::error::Error;
use crate::types::PeerId;

/// A peer's address in the vector.
pub(super) struct Known {
    slot: u64,
    holders: HashSet<PeerId>,
}

impl Domain {
    pub(super) fn insert(
        &mut self,
        peer: PeerId,
        address: Vec<u8>,
        connection: Option<Arc<Connection>>,
    ) -> Result<u64, Error> {
        let to_error = |failure: Failure| Error::transport(NAME, failure.to_string());
        // Who asks for this was told of an endpoint that is closed since.
        if self.port.is_none() {
            self.open_port().map_err(to_error)?;
        }
        let own = self.name.lock().len();
        if address.len() != own {
            return Err(Error::protocol(format!("an address of {} bytes, ours has {own}", address.len())));
        }
        let known = match self.known.get_mut(&address) {
            Some(known) => known,
            None => {
                // Just opened, if it was not open.
                let port = self.port.as_mut().ok_or(Error::Closed)?;
                let slot = port.insert(&address).map_err(to_error)?;
                self.known.entry(address).or_insert(Known { slot, holders: HashSet::new() })
            }
        };
        known.holders.insert(peer);
        let slot = known.slot;
        self.has_met_peers = true;
        self.connections.retain(|connection| connection.strong_count() > 0);
        self.connections.extend(connection.as_ref().map(Arc::downgrade));
        Ok(slot)
    }

    /// Forgets the addresses of `peer` but for these. Where it had others, its operations go to an endpoint that is closed.
    pub(super) fn keep(&mut self, peer: PeerId, addresses: &[Vec<u8>]) {
        let mut has_had_others = false;
        for (_, known) in self.known.iter_mut().filter(|(address, _)| !addresses.contains(address)) {
            has_had_others |= known.holders.remove(&peer);
        }
        if has_had_others {
            self.leave(peer, &Error::transport(NAME, "the peer has opened its endpoint again"));
        }
    }

    pub(super) fn forget(&mut self, peer: PeerId) {
        self.leave(peer, &Error::PeerGone { peer, cause: "its link is closed".into() });
        self.known.values_mut().for_each(|known| {
            known.holders.remove(&peer);
        });
    }

    /// Ends the connections to `peer`, and their operations.
    fn leave(&mut self, peer: PeerId, error: &Error) {
        for connection in self.connections.iter().filter_map(Weak::upgrade) {
            if connection.peer == peer {
                connection.fail(error);
            }
        }
        self.give_up(error, |job| job.counted.connection.peer == peer);
    }

    /// Takes addresses out of the vector that nobody holds, and no operation in flight uses.
    pub(super) fn forget_addresses(&mut self) {
        let in_use: HashSet<u64> = self.flights.iter().flatten().map(|flight| flight.job.peer).collect();
        let Some(port) = self.port.as_mut() else { return };
        self.known.retain(|_, known| {
            let is_kept = !known.holders.is_empty() || in_use.contains(&known.slot);
            if !is_kept {
                port.remove(known.slot);
                self.heard.remove(&known.slot);
                self.blocked.remove(&known.slot);
                self.refusing.remove(&known.slot);
            }
            is_kept
        });
    }
}
