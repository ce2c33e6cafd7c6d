//! How two ends learn each other's addresses before the first operation.
//!
//! Invariants
//! - Whoever is told that the peer is ready is known there: to each rail that may get operations of ours.
//! - Rail `i` of this host talks to rail `i` of the peer, modulo their number. Where one of the two shares regions out among its
//!   rails, each rail talks to every rail: a byte may be at one alone.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::endpoint::{Connection, FabricEndpoint, Memories};
use super::progress::Command;
use super::wire::Greeting;
use super::{Fabric, NAME, unavailable};
use crate::error::Error;
use crate::transport::Exchange;
use crate::types::PeerId;

/// How often a peer is asked whether it knows our addresses, and the pause between.
const GREETINGS_MAX: usize = 200;
const GREETING_PAUSE: Duration = Duration::from_millis(5);

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

    /// Connects to `peer`: both ends know each other's addresses afterwards.
    pub(super) async fn meet(&self, peer: PeerId, exchange: &dyn Exchange) -> Result<FabricEndpoint, Error> {
        let mut own = self.own_addresses();
        let (greeting, connection, rails) = loop {
            let greeting = self.greet(&own, exchange).await?;
            let connection = Arc::new(Connection::new(peer, self.nics.len()));
            let all = self.is_divided() || greeting.is_divided;
            let pairs = pairs(self.nics.len(), greeting.addresses.len(), all);
            let answers = self.introduce(peer, &greeting.addresses, &pairs, Some(&connection));
            let none = vec![None; greeting.addresses.len()];
            let mut rails: Vec<_> =
                self.nics.iter().map(|nic| (Arc::clone(&nic.progress), none.clone())).collect();
            for ((rail, other), answer) in pairs.into_iter().zip(answers) {
                rails[rail].1[other] = Some(answer.await.unwrap_or(Err(Error::Closed))?);
            }
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

    /// Answers a peer that connects: ready when all NICs know the addresses that it may use.
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
            let (ours, theirs) = (self.nics.len(), addresses.len());
            let mut pairs = pairs(ours, theirs, all);
            pairs.extend((ours..theirs).filter(|_| !all).map(|other| (other % ours, other)));
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
