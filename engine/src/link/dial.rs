//! Connections that are made from here: for links, which are kept, and for streams, which are handed out.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::handshake::{Identity, Token, Verdict};
use super::stream::Stream;
use super::{Link, Links, greet, socket};
use crate::error::Error;
use crate::types::PeerId;

/// How an attempt to make a link ended, once it has.
pub(super) type Dialled = Option<Result<Arc<Link>, Error>>;

/// How long the address before it is waited for before the next one is tried beside it (RFC 8305 says 250 ms).
const HEAD_START: Duration = Duration::from_millis(250);

/// Shortest and longest pause before a peer that says "duplicate" is dialled again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

impl Links {
    /// Dials until there is a link to `peer`, by either end.
    pub(super) async fn dial_link(&self, peer: PeerId, addresses: &[SocketAddr]) -> Result<Arc<Link>, Error> {
        let deadline = Instant::now() + self.config.connect_timeout;
        let mut pause = PAUSE.0;
        loop {
            if let Some(link) = self.registered(peer) {
                if link.is_up() {
                    return Ok(link);
                }
                link.wait_ended().await;
            }
            let (stream, identity, verdict) = self.dial_any(peer, addresses, None, deadline).await?;
            match verdict {
                Verdict::Welcome => return self.register(stream, &identity).await,
                Verdict::Duplicate if Instant::now() + pause < deadline => {
                    drop(stream);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                Verdict::Duplicate | Verdict::UnknownToken | Verdict::Unwanted => {
                    let cause = "it does not take the connection".into();
                    return Err(Error::PeerGone { peer, cause });
                }
            }
        }
    }

    /// Makes a stream of bytes to `peer`, which granted `token`. `addresses` are where it says that it listens.
    ///
    /// # Errors
    /// As [`Links::connect`], but that a peer whose link is up is not [`Error::PeerGone`] where another answers at an address
    /// of it; [`Error::Refused`] when the token is not valid any more.
    pub(crate) async fn dial_stream(
        &self,
        peer: PeerId,
        addresses: &[SocketAddr],
        token: Token,
        deadline: Instant,
    ) -> Result<Stream, Error> {
        let link = self.link(peer);
        let seen = link.as_ref().map(|link| link.remote());
        let mut candidates = socket::candidates(addresses, seen);
        // A link that was dialled shows an address that certainly leads there.
        if let Some(remote) = link.filter(|link| link.is_dialled()).and(seen) {
            candidates.retain(|address| *address != remote);
            candidates.insert(0, remote);
        }
        let dialled = self.dial_any(peer, &candidates, Some(token), deadline).await;
        let (stream, _, verdict) = dialled.map_err(|error| match error {
            // Addresses as that of a bridge are found on many hosts.
            Error::PeerGone { cause, .. } if self.link(peer).is_some() => {
                Error::Unreachable { address: peer.to_string().into(), cause }
            }
            other => other,
        })?;
        match verdict {
            Verdict::Welcome => Ok(stream),
            Verdict::UnknownToken => Err(Error::Refused { cause: "the grant was withdrawn".into() }),
            Verdict::Duplicate | Verdict::Unwanted => {
                Err(Error::PeerGone { peer, cause: "it does not take the connection".into() })
            }
        }
    }

    /// Tries the addresses in turn; one that does not answer holds up none that follow it. Only one is greeted at a time: a
    /// peer takes a second greeting for the end of the first. An error that says more than "nobody is there" is kept.
    async fn dial_any(
        &self,
        peer: PeerId,
        addresses: &[SocketAddr],
        token: Option<Token>,
        deadline: Instant,
    ) -> Result<(Stream, Identity, Verdict), Error> {
        let me = self.identity(token);
        let mut kept: Option<Error> = None;
        let mut calls = Calls::new(addresses);
        while let Some((address, called)) = calls.next(deadline).await {
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(calls.open() + 1).unwrap_or(u32::MAX);
            let error = match called {
                Ok(socket) => {
                    let greeting = tokio::time::timeout(share, self.greet(peer, address, socket, &me));
                    match greeting.await {
                        Ok(Ok(dialled)) => return Ok(dialled),
                        Ok(Err(error)) => error,
                        Err(_) => unreachable_by(address, &silent(share)),
                    }
                }
                Err(error) => unreachable_by(address, &error),
            };
            let says_more = !matches!(error, Error::Unreachable { .. });
            if says_more || kept.as_ref().is_none_or(|kept| matches!(kept, Error::Unreachable { .. })) {
                kept = Some(error);
            }
        }
        Err(kept.unwrap_or_else(|| Error::Unreachable {
            address: peer.to_string().into(),
            cause: "no address of it is known".into(),
        }))
    }

    /// Makes a stream of a socket that was just connected, and lets both ends prove themselves.
    async fn greet(
        &self,
        peer: PeerId,
        address: SocketAddr,
        socket: TcpStream,
        me: &Identity,
    ) -> Result<(Stream, Identity, Verdict), Error> {
        let unreachable = |error: io::Error| unreachable_by(address, &error);
        socket::prepare(&socket, self.config.silence_max).map_err(unreachable)?;
        let stream = match &self.encryption {
            Some(encryption) => {
                let session = encryption.dialled().map_err(unreachable)?;
                let unproven = |error: io::Error| Error::Unproven {
                    peer_address: address.to_string().into(),
                    cause: format!("no encryption: {error}").into(),
                };
                Stream::encrypted(socket, session).await.map_err(unproven)?
            }
            None => Stream::plain(socket),
        };
        let (identity, verdict) = greet::introduce(&stream, &self.prover, me, peer).await?;
        Ok((stream, identity, verdict))
    }
}

fn unreachable_by(address: SocketAddr, error: &io::Error) -> Error {
    Error::Unreachable { address: address.to_string().into(), cause: error.to_string().into() }
}

fn silent(waited: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} ms", waited.as_millis()))
}

/// Sockets on their way to addresses, the preferred ones ahead of the others.
#[derive(Debug)]
struct Calls {
    /// Those that were not begun.
    rest: VecDeque<SocketAddr>,
    /// Ended when this is dropped.
    under_way: JoinSet<(SocketAddr, io::Result<TcpStream>)>,
    next_at: Instant,
}

impl Calls {
    fn new(addresses: &[SocketAddr]) -> Self {
        let rest = addresses.iter().copied().collect();
        Self { rest, under_way: JoinSet::new(), next_at: Instant::now() }
    }

    /// Addresses of which [`Self::next`] has not said how it went.
    fn open(&self) -> usize {
        self.rest.len() + self.under_way.len()
    }

    /// How it went with the next address, in the order in which they answer. Those that have not by `deadline` have failed.
    async fn next(&mut self, deadline: Instant) -> Option<(SocketAddr, io::Result<TcpStream>)> {
        loop {
            let is_time = self.under_way.is_empty() || self.next_at <= Instant::now();
            if is_time && let Some(address) = self.rest.pop_front() {
                let now = Instant::now();
                let patience = deadline.saturating_duration_since(now);
                self.under_way.spawn(async move {
                    let called = tokio::time::timeout(patience, TcpStream::connect(address)).await;
                    (address, called.unwrap_or_else(|_| Err(silent(patience))))
                });
                self.next_at = now + HEAD_START;
            }
            tokio::select! {
                // Nothing here panics, and who drops the tasks asks no more.
                called = self.under_way.join_next() => return called?.ok(),
                () = tokio::time::sleep_until(self.next_at.into()), if !self.rest.is_empty() => {}
            }
        }
    }
}
