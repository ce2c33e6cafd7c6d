//! Connections that arrive: they prove themselves in bounded number and time, or are dropped.
//!
//! While there are as many as may be, the oldest gives way after a part of its time, so that those who say nothing keep nobody
//! out for long. Not at once, nor all together: after an outage many come at one time who prove themselves in turn.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::handshake::{Identity, Verdict};
use super::links::Admission;
use super::stream::Stream;
use super::unproven::{Place, Unproven};
use super::{Links, greet, socket};
use crate::error::Error;

/// Pause after the kernel refused to hand out a connection, for example for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// The part of its time that a connection has for its proof at least, when all places are taken: enough for the few round trips
/// of it between continents, and on a host that is busy with all of them, as then they leave one by one.
const CROWDED_PART: u32 = 5;

/// Starts to accept from `listeners`.
pub(super) fn start(links: &Arc<Links>, listeners: Vec<TcpListener>) {
    let time = links.config.proof_timeout / CROWDED_PART;
    let unproven = Arc::new(Unproven::new(links.config.unproven_max, time));
    for listener in listeners {
        let (weak, unproven) = (Weak::clone(&links.weak), Arc::clone(&unproven));
        links.spawn(accept(weak, listener, unproven, links.closing.subscribe()));
    }
}

async fn accept(
    links: Weak<Links>,
    listener: TcpListener,
    unproven: Arc<Unproven>,
    mut closing: watch::Receiver<bool>,
) {
    loop {
        let next = async {
            // Before the accept: what is not accepted costs this process nothing.
            let room = unproven.room().await;
            (room, listener.accept().await)
        };
        let (room, accepted) = tokio::select! {
            next = next => next,
            _ = closing.wait_for(|closing| *closing) => return,
        };
        let (Some(links), Some(room)) = (links.upgrade(), room) else { return };
        match accepted {
            Ok((socket, _)) => {
                let (arrived, place) = (Arc::clone(&links), unproven.take(room));
                links.spawn(async move { arrive(arrived, socket, place).await });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                drop(links);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Hears a connection out, and logs why it was dropped.
async fn arrive(links: Arc<Links>, socket: TcpStream, mut place: Place) {
    let remote = socket.peer_addr();
    let mut closing = links.closing.subscribe();
    let proved = tokio::time::timeout(links.config.proof_timeout, prove(&links, socket));
    let proved = tokio::select! {
        proved = proved => proved.unwrap_or(Err(Error::DeadlinePassed)),
        () = place.sent_away() => Err(Error::Busy { what: "the list of connections that have proved nothing yet" }),
        _ = closing.wait_for(|closing| *closing) => return,
    };
    drop(place);
    let outcome = match proved {
        Ok((stream, identity)) => {
            tokio::select! {
                outcome = settle(&links, stream, identity) => outcome,
                _ = closing.wait_for(|closing| *closing) => return,
            }
        }
        Err(error) => Err(error),
    };
    if let Err(error) = outcome {
        let remote = remote.map_or_else(|_| "unknown".to_owned(), |remote| remote.to_string());
        tracing::debug!(peer = remote, %error, "a connection was dropped");
    }
}

async fn prove(links: &Links, socket: TcpStream) -> Result<(Stream, Identity), Error> {
    let system = |error: std::io::Error| Error::system("accept", &error);
    socket::prepare(&socket, links.config.silence_max).map_err(system)?;
    let stream = match &links.encryption {
        Some(encryption) => {
            Stream::encrypted(socket, encryption.accepted().map_err(system)?).await.map_err(system)?
        }
        None => Stream::plain(socket),
    };
    let identity = greet::receive(&stream, &links.prover, &links.identity(None)).await?;
    Ok((stream, identity))
}

/// Makes of a proved connection what it wants to be.
async fn settle(links: &Arc<Links>, stream: Stream, identity: Identity) -> Result<(), Error> {
    let system = |error: std::io::Error| Error::system("answer", &error);
    if let Some(token) = &identity.token {
        let Some(adopter) = links.adopter_of(identity.peer, token) else {
            return greet::answer(&stream, Verdict::UnknownToken).await.map_err(system);
        };
        greet::answer(&stream, Verdict::Welcome).await.map_err(system)?;
        adopter.adopt(identity.peer, token, stream);
        return Ok(());
    }
    let mut stream = Some(stream);
    loop {
        // Who dialled may have another connection by now, which this one must not take the place of.
        if stream.as_ref().is_some_and(Stream::has_ended) {
            return Err(Error::protocol("it was given up by who dialled"));
        }
        match links.admit(&mut stream, &identity)? {
            Admission::Taken(link) => {
                links.run(&link);
                return Ok(());
            }
            Admission::After(link) => link.give_way().await,
            Admission::Refused(verdict) => {
                if let Some(stream) = &stream {
                    greet::answer(stream, verdict).await.map_err(system)?;
                }
                return Ok(());
            }
        }
    }
}
