//! Who may connect: peers that were granted a token over the link, and come with it in time.
//!
//! Invariants
//! - A token lets one connection in, of the peer that it was granted to.
//! - What was granted to a peer is found by who takes it back: as a token, or as a guest of the [`Owner`].
//!
//! Limits: [`TOKENS_MAX`] tokens that wait for their connection, after which nobody is granted one; [`TOKENS_OF_PEER_MAX`] of one
//! peer, whose oldest goes then; [`TOKEN_LIFE`] for a connection to come, and to show its token.
//!
//! Threads: one task of the runtime accepts, and one greets and serves each connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::grants::Owner;
use super::socket::{Listener, Socket};
use super::wire::Token;
use crate::error::Error;
use crate::link::fill_random;
use crate::types::PeerId;

/// Connections that were granted over the link and did not come yet: to all peers, and to one, whose oldest goes then.
const TOKENS_MAX: usize = 1024;
const TOKENS_OF_PEER_MAX: usize = 4;
/// Time in which a granted connection has to come, and in which it has to show its token.
const TOKEN_LIFE: Duration = Duration::from_secs(10);

/// What connections of peers and the transport itself need.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) owner: Owner,
    /// Tokens that were granted, to whom and when.
    pub(super) tokens: Mutex<HashMap<Token, (PeerId, Instant)>>,
}

impl Shared {
    /// Takes connections until it is aborted.
    pub(super) async fn accept(self: Arc<Self>, listener: Listener) {
        loop {
            match listener.accept().await {
                Ok(socket) => drop(tokio::spawn(Arc::clone(&self).greet(socket))),
                Err(error) => {
                    tracing::warn!(%error, "shm: a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn greet(self: Arc<Self>, socket: Socket) {
        let mut token = Token::default();
        let first = tokio::time::timeout(TOKEN_LIFE, socket.receive(&mut token)).await;
        let is_whole = matches!(first, Ok(Ok((count, None))) if count == token.len());
        let granted = self.tokens.lock().get(&token).copied();
        let granted =
            granted.filter(|(_, since)| is_whole && since.elapsed() < TOKEN_LIFE).map(|(peer, _)| peer);
        let Some(peer) = granted else {
            tracing::warn!("shm: a connection without a valid token was closed");
            return;
        };
        let served = match Owner::invite(peer) {
            Ok((guest, orders)) => {
                {
                    // Who takes back what was granted to a peer finds the token or the guest.
                    let mut tokens = self.tokens.lock();
                    if tokens.remove(&token).is_none() {
                        return;
                    }
                    self.owner.admit(&guest);
                }
                self.owner.serve(guest, orders, socket).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::debug!(%peer, %error, "shm: a connection has ended");
        }
    }

    /// A token by which `peer` may come. The oldest of too many that it was granted and did not use is taken back.
    ///
    /// # Errors
    /// [`Error::Busy`] when too many are granted to all peers.
    pub(super) fn grant_token(&self, peer: PeerId) -> Result<Token, Error> {
        let mut token = Token::default();
        fill_random(&mut token)?;
        let mut tokens = self.tokens.lock();
        tokens.retain(|_, (_, granted)| granted.elapsed() < TOKEN_LIFE);
        let of_peer = tokens.iter().filter(|(_, (granted, _))| *granted == peer);
        let of_peer: Vec<(Instant, Token)> = of_peer.map(|(token, (_, since))| (*since, *token)).collect();
        if of_peer.len() >= TOKENS_OF_PEER_MAX
            && let Some((_, oldest)) = of_peer.iter().min()
        {
            tokens.remove(oldest);
        }
        if tokens.len() >= TOKENS_MAX {
            return Err(Error::Busy { what: "the list of granted shm connections" });
        }
        tokens.insert(token, (peer, Instant::now()));
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::super::{Question, ShmConfig, ShmTransport, VERSION};
    use super::*;
    use crate::transport::Transport;
    use crate::transport::conformance::peer;

    #[tokio::test]
    async fn a_peer_that_asks_without_end_keeps_no_other_from_being_granted_a_connection() {
        let transport = ShmTransport::open(ShmConfig { copy_threads: 1 }, &Handle::current()).unwrap();
        let question = Question { version: VERSION, boot_id: transport.boot_id };
        let question = postcard::to_allocvec(&question).unwrap();
        for _ in 0..=TOKENS_MAX {
            transport.answer(peer(1), &question).unwrap();
        }
        transport.answer(peer(2), &question).unwrap();
        assert_eq!(transport.shared.tokens.lock().len(), TOKENS_OF_PEER_MAX + 1);
    }
}
