//! How two ends learn each other's addresses before the first operation.
//!
//! Invariants
//! - Whoever is told that the peer is ready is known there: to each rail that may get operations of ours.
//! - Rail `i` of this host talks to rail `i` of the peer, modulo their number. Where one of the two shares regions out among its
//!   rails, each rail talks to every rail: a byte may be at one alone.
//! - A rail whose endpoint is not open talks to none, and one whose partner is not open to another, as long as there is one. The
//!   connection is made again after [`PARTIAL_MAX`]: by then it may be open.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::endpoint::{Connection, FabricEndpoint, Memories, Slots};
use super::progress::Command;
use super::wire::{Greeting, is_open};
use super::{Fabric, NAME, NOT_OPEN, unavailable};
use crate::error::Error;
use crate::transport::Exchange;
use crate::types::PeerId;

/// How often a peer is asked whether it knows our addresses, and the pause between.
const GREETINGS_MAX: usize = 200;
const GREETING_PAUSE: Duration = Duration::from_millis(5);
/// How long a connection is used that was made without a rail. To make it again costs what is under way on it, for nothing where
/// a NIC does not come back.
const PARTIAL_MAX: Duration = Duration::from_secs(300);

/// What a peer told us of itself, and the answers of the NICs that were to learn it.
pub(super) struct Acquaintance {
    addresses: Vec<Vec<u8>>,
    is_divided: bool,
    own: Vec<Vec<u8>>,
    pending: Vec<oneshot::Receiver<Result<u64, Error>>>,
}

/// Which of our rails talks to which of the peer's: one each, so that no rail of ours goes without.
fn pairs(own: usize, theirs: usize, all: bool) -> Vec<(usize, usize)> {
    if all {
        return (0..own).flat_map(|rail| (0..theirs).map(move |other| (rail, other))).collect();
    }
    (0..own).map(|rail| (rail, rail % theirs)).collect()
}

/// The same for what is open at these addresses.
fn open_pairs(own: &[Vec<u8>], theirs: &[Vec<u8>], all: bool) -> Vec<(usize, usize)> {
    let open = |addresses: &[Vec<u8>]| -> Vec<usize> {
        (0..addresses.len()).filter(|&rail| is_open(&addresses[rail])).collect()
    };
    let (own, open_theirs) = (open(own), open(theirs));
    if all {
        return own.iter().flat_map(|&rail| open_theirs.iter().map(move |&other| (rail, other))).collect();
    }
    let partner = |rail: usize| {
        let usual = rail % theirs.len().max(1);
        let is_there = open_theirs.contains(&usual);
        if is_there { Some(usual) } else { open_theirs.get(rail % open_theirs.len().max(1)).copied() }
    };
    own.into_iter().filter_map(|rail| Some((rail, partner(rail)?))).collect()
}

impl Fabric {
    fn own_addresses(&self) -> Vec<Vec<u8>> {
        self.nics.iter().map(|nic| nic.name.lock().clone()).collect()
    }

    /// Whether regions of this end may be shared out.
    fn is_divided(&self) -> bool {
        self.pages.is_some()
    }

    /// Asks the NIC of each pair to learn the address of the peer's rail that it talks to, and all to forget what the peer had
    /// before.
    fn introduce(
        &self,
        peer: PeerId,
        addresses: &[Vec<u8>],
        pairs: &[(usize, usize)],
        connection: Option<&Arc<Connection>>,
    ) -> Vec<oneshot::Receiver<Result<u64, Error>>> {
        let all: Arc<[Vec<u8>]> = addresses.into();
        self.nics.iter().for_each(|nic| nic.progress.send(Command::Keep(peer, Arc::clone(&all))));
        let insert = |&(rail, other): &(usize, usize)| {
            let (reply, answer) = oneshot::channel();
            let command = Command::Insert(peer, addresses[other].clone(), connection.cloned(), reply);
            self.nics[rail].progress.send(command);
            answer
        };
        pairs.iter().map(insert).collect()
    }

    fn check_greeting(&self, greeting: &Greeting) -> Result<(), Error> {
        if greeting.provider == self.provider {
            return Ok(());
        }
        let looked_for = format!("provider {} at the peer, as here", self.provider);
        Err(unavailable(looked_for, format!("it uses {}", greeting.provider)))
    }

    /// Tells the peer `addresses`, which are ours, until it knows them. Returns what it told us.
    async fn greet(&self, addresses: &[Vec<u8>], exchange: &dyn Exchange) -> Result<Greeting, Error> {
        let (provider, addresses) = (self.provider.clone(), addresses.to_vec());
        let own = Greeting { is_ready: true, is_divided: self.is_divided(), provider, addresses };
        for _ in 0..GREETINGS_MAX {
            let reply = Greeting::decode(&exchange.ask(own.encode()).await?)?;
            self.check_greeting(&reply)?;
            if reply.is_ready {
                return Ok(reply);
            }
            tokio::time::sleep(GREETING_PAUSE).await;
        }
        Err(Error::transport(NAME, "the peer's NICs do not take our addresses"))
    }

    /// Has the NICs that are open learn the addresses of the peer's rails that they talk to. One that does not is left out, as
    /// long as another does.
    async fn learn(
        &self,
        own: &[Vec<u8>],
        greeting: &Greeting,
        connection: &Arc<Connection>,
    ) -> Result<Slots, Error> {
        let all = self.is_divided() || greeting.is_divided;
        let theirs = &greeting.addresses;
        let open = open_pairs(own, theirs, all);
        let answers = self.introduce(connection.peer, theirs, &open, Some(connection));
        let none = vec![None; theirs.len()];
        let mut rails: Slots =
            self.nics.iter().map(|nic| (Arc::clone(&nic.progress), none.clone())).collect();
        let mut refusal = Error::transport(NAME, NOT_OPEN);
        for ((rail, other), answer) in open.into_iter().zip(answers) {
            match answer.await.unwrap_or(Err(Error::Closed)) {
                Ok(slot) => rails[rail].1[other] = Some(slot),
                Err(error) => refusal = error,
            }
        }
        if rails.iter().all(|(_, slots)| slots.iter().all(Option::is_none)) {
            return Err(refusal);
        }
        let mut wanted = pairs(own.len(), theirs.len(), all).into_iter();
        if let Some((rail, other)) = wanted.find(|&(rail, other)| rails[rail].1[other].is_none()) {
            let peer = connection.peer;
            tracing::warn!(%peer, rail, other, "connected without a NIC that is not open, here or at the peer");
            connection.lacks(rail, Instant::now() + PARTIAL_MAX);
        }
        Ok(rails)
    }

    /// Connects to `peer`: both ends know each other's addresses afterwards.
    pub(super) async fn meet(&self, peer: PeerId, exchange: &dyn Exchange) -> Result<FabricEndpoint, Error> {
        let mut own = self.own_addresses();
        let (greeting, connection, rails) = loop {
            let greeting = self.greet(&own, exchange).await?;
            let connection = Arc::new(Connection::new(peer, self.nics.len()));
            let rails = self.learn(&own, &greeting, &connection).await?;
            // An endpoint that was opened again meanwhile has another address than the peer knows; one that is
            // opened again from now on fails the connection.
            let now = self.own_addresses();
            if now == own {
                break (greeting, connection, rails);
            }
            own = now;
        };
        let peer_rails = greeting.addresses.len();
        let memories = Memories {
            registration_bytes_max: self.registration_bytes_max,
            divided: self.pages.is_some().then(|| Arc::clone(&self.divided)),
        };
        Ok(FabricEndpoint::new(connection, rails, peer_rails, self.capabilities.operations_max, memories))
    }

    /// Answers a peer that connects: ready when all NICs that are open know the addresses that it may use.
    pub(super) fn answer_greeting(&self, peer: PeerId, request: &[u8]) -> Result<Vec<u8>, Error> {
        let greeting = Greeting::decode(request)?;
        self.check_greeting(&greeting)?;
        let Greeting { addresses, is_divided, .. } = greeting;
        let own = self.own_addresses();
        let mut acquaintances = self.acquaintances.lock();
        let is_known = acquaintances.get(&peer).is_some_and(|known| {
            known.addresses == addresses && known.is_divided == is_divided && known.own == own
        });
        if !is_known {
            let all = self.is_divided() || is_divided;
            // Each of our NICs posts to one rail of the peer, and each rail of the peer posts to one of our NICs.
            let mut pairs = open_pairs(&own, &addresses, all);
            pairs.extend(open_pairs(&addresses, &own, all).into_iter().map(|(other, rail)| (rail, other)));
            pairs.sort_unstable();
            pairs.dedup();
            if pairs.is_empty() {
                return Err(Error::transport(NAME, NOT_OPEN));
            }
            let pending = self.introduce(peer, &addresses, &pairs, None);
            acquaintances.insert(peer, Acquaintance { addresses, is_divided, own: own.clone(), pending });
        }
        let mut refused = None;
        if let Some(known) = acquaintances.get_mut(&peer) {
            known.pending.retain_mut(|answer| match answer.try_recv() {
                Ok(Ok(_)) => false,
                Ok(Err(error)) => {
                    refused = Some(error);
                    false
                }
                Err(oneshot::error::TryRecvError::Empty) => true,
                Err(oneshot::error::TryRecvError::Closed) => {
                    refused = Some(Error::Closed);
                    false
                }
            });
        }
        if let Some(error) = refused {
            acquaintances.remove(&peer);
            return Err(error);
        }
        let is_ready = acquaintances.get(&peer).is_some_and(|known| known.pending.is_empty());
        let (provider, is_divided) = (self.provider.clone(), self.is_divided());
        Ok(Greeting { is_ready, is_divided, provider, addresses: own }.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addresses(open: &[bool]) -> Vec<Vec<u8>> {
        open.iter().map(|&is_open| vec![0, u8::from(is_open)]).collect()
    }

    #[test]
    fn a_rail_that_is_not_open_talks_to_none_and_its_partner_to_another() {
        let pairs = |own: &[bool], theirs: &[bool], all| open_pairs(&addresses(own), &addresses(theirs), all);
        let (open, closed) = (true, false);
        assert_eq!(pairs(&[open, closed], &[open, open], false), [(0, 0)]);
        assert_eq!(pairs(&[open, open], &[open, closed], false), [(0, 0), (1, 0)]);
        assert_eq!(pairs(&[open], &[closed, open], false), [(0, 1)]);
        assert_eq!(pairs(&[closed, open], &[open, closed], true), [(1, 0)]);
        assert_eq!(pairs(&[closed], &[open], false), []);
        assert_eq!(pairs(&[open], &[closed, closed], true), []);
    }

    proptest! {
        #[test]
        fn rails_that_are_all_open_talk_as_they_always_did(own in 1_usize..8, theirs in 1_usize..8, all: bool) {
            let open = |rails| addresses(&vec![true; rails]);
            prop_assert_eq!(open_pairs(&open(own), &open(theirs), all), pairs(own, theirs, all));
        }
    }
}
