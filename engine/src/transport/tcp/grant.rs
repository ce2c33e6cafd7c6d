//! What the two ends of the transport tell each other over the link before there are data connections, and what this
//! end has granted.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::serve::Served;
use crate::error::Error;
use crate::link::{Token, fill_random};
use crate::types::PeerId;

/// Version of what is said here and on data connections.
pub(super) const VERSION: u8 = 1;

/// Asks for the right to make data connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) version: u8,
    pub(super) connections: u8,
}

/// Gives it, until the link ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Grant {
    pub(super) version: u8,
    pub(super) connections: u8,
    pub(super) operation_bytes_max: u64,
    pub(super) token: Token,
    /// Where the granting engine listens.
    pub(super) addresses: Vec<SocketAddr>,
}

pub(super) fn encode(message: &impl Serialize) -> Result<Vec<u8>, Error> {
    postcard::to_allocvec(message).map_err(|error| Error::protocol(error.to_string()))
}

/// Reads one message and nothing else.
pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Error> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(Error::protocol("a message about data connections is too long")),
        Err(error) => {
            Err(Error::protocol(format!("a message about data connections does not parse: {error}")))
        }
    }
}

/// Grants that one peer may hold: one is in use, others are of endpoints that it closed or that fail.
const GRANTS_MAX: usize = 4;

/// The grants to all peers, oldest first, and the connections that came of them.
#[derive(Debug, Default)]
pub(super) struct Grants(HashMap<PeerId, Vec<Given>>);

#[derive(Debug)]
struct Given {
    token: Token,
    connections_max: usize,
    served: Vec<Arc<Served>>,
}

impl Given {
    /// Takes as long for a wrong token.
    fn is(&self, token: &Token) -> bool {
        let difference = self.token.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(difference) == 0
    }

    fn is_used(&self) -> bool {
        self.served.iter().any(|served| !served.is_over())
    }

    fn end(self) {
        self.served.iter().for_each(|served| served.end());
    }
}

impl Grants {
    /// Grants `connections` to `peer`. Of too many grants, the oldest ends, rather one that is not used.
    pub(super) fn give(&mut self, peer: PeerId, connections: usize) -> Result<Token, Error> {
        let mut token = Token::default();
        fill_random(&mut token)?;
        let given = self.0.entry(peer).or_default();
        if given.len() >= GRANTS_MAX {
            let oldest = given.iter().position(|given| !given.is_used()).unwrap_or(0);
            given.remove(oldest).end();
        }
        // While a failed connection is not noticed here yet, its successor is there already.
        given.push(Given { token, connections_max: connections * 2, served: Vec::new() });
        Ok(token)
    }

    /// Whether `peer` has a grant with this token.
    pub(super) fn holds(&self, peer: PeerId, token: &Token) -> bool {
        self.0.get(&peer).is_some_and(|given| given.iter().any(|given| given.is(token)))
    }

    /// Keeps a connection that `make` makes, if it is still granted.
    ///
    /// # Errors
    /// What `make` says.
    pub(super) fn add(
        &mut self,
        peer: PeerId,
        token: &Token,
        make: impl FnOnce() -> io::Result<Arc<Served>>,
    ) -> io::Result<()> {
        let of_peer = self.0.get_mut(&peer);
        let Some(given) = of_peer.and_then(|given| given.iter_mut().find(|given| given.is(token))) else {
            return Ok(());
        };
        given.served.retain(|served| !served.is_over());
        if given.served.len() < given.connections_max {
            given.served.push(make()?);
        }
        Ok(())
    }

    /// Ends what was granted to `peer`.
    pub(super) fn take_back(&mut self, peer: PeerId) {
        self.0.remove(&peer).into_iter().flatten().for_each(Given::end);
    }

    /// Ends everything.
    pub(super) fn take_back_all(&mut self) {
        self.0.drain().flat_map(|(_, given)| given).for_each(Given::end);
    }

    /// The connections of `peer`.
    pub(super) fn served_of(&self, peer: PeerId) -> Vec<Arc<Served>> {
        let given = self.0.get(&peer).into_iter().flatten();
        given.flat_map(|given| given.served.iter().cloned()).collect()
    }

    /// All connections.
    pub(super) fn served(&self) -> Vec<Arc<Served>> {
        let given = self.0.values().flatten();
        given.flat_map(|given| given.served.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Incarnation, MemberId};
    use proptest::prelude::*;

    fn peer(member: u64) -> PeerId {
        PeerId { member: MemberId(member), incarnation: Incarnation(1) }
    }

    #[test]
    fn a_token_is_good_for_its_peer_until_it_is_taken_back_or_too_old() {
        let mut grants = Grants::default();
        let first = grants.give(peer(1), 4).unwrap();
        assert!(grants.holds(peer(1), &first));
        assert!(!grants.holds(peer(2), &first));
        for _ in 1..GRANTS_MAX {
            grants.give(peer(1), 4).unwrap();
        }
        assert!(grants.holds(peer(1), &first));
        let last = grants.give(peer(1), 4).unwrap();
        assert!(!grants.holds(peer(1), &first));
        assert!(grants.holds(peer(1), &last));
        grants.take_back(peer(1));
        assert!(!grants.holds(peer(1), &last));
    }

    #[test]
    fn a_grant_of_version_1_is_these_bytes() {
        let grant = Grant {
            version: 1,
            connections: 4,
            operation_bytes_max: 300,
            token: [7; 32],
            addresses: vec!["127.0.0.1:7000".parse().unwrap()],
        };
        let mut golden = vec![1, 4, 0xac, 2];
        golden.extend([7; 32]);
        golden.extend([1, 0, 127, 0, 0, 1, 0xd8, 0x36]);
        assert_eq!(encode(&grant).unwrap(), golden);
        assert_eq!(decode::<Grant>(&golden), Ok(grant));
        assert_eq!(encode(&Ask { version: 1, connections: 4 }).unwrap(), [1, 4]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
            let _ = decode::<Ask>(&bytes);
            let _ = decode::<Grant>(&bytes);
        }
    }
}
