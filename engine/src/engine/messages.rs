//! What peers ask: the engine's own questions are answered here, all others by who embeds the engine.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use super::Inner;
use super::descriptor::{Bytes, Describe, Described, Exchanged};
use crate::error::Error;
use crate::link::{Answer, Channel, Link, LinkEvents};
use crate::types::PeerId;

/// Asks for descriptions of regions.
pub(super) const DESCRIBE: Channel = Channel(0);
/// Carries the exchange of a transport's two ends.
pub(super) const EXCHANGE: Channel = Channel(1);
/// Notifications of finished batches arrive on this channel, see [`crate::request::Batch::notify`].
pub const TRANSFER_DONE: Channel = Channel(2);
/// The first channel that belongs to who embeds the engine; those below are the engine's own.
pub const FIRST_FREE_CHANNEL: Channel = Channel(16);

/// Regions that are described in one answer.
const DESCRIBED_MAX: usize = 4096;

/// Takes messages of peers, on channels from [`FIRST_FREE_CHANNEL`] up. Called from the runtime's threads; must not block.
pub trait Messages: Send + Sync + fmt::Debug {
    /// `peer` asks.
    fn request(&self, peer: PeerId, channel: Channel, body: Vec<u8>) -> Answer;

    /// `peer` tells, also on [`TRANSFER_DONE`].
    fn notified(&self, peer: PeerId, channel: Channel, body: Vec<u8>);

    /// A proved connection to `peer` stands.
    fn connected(&self, peer: PeerId) {
        let _ = peer;
    }

    /// The connection to `peer` is gone, and everything that was under way on it has ended or will in a moment.
    fn disconnected(&self, peer: PeerId, cause: &Error) {
        let _ = (peer, cause);
    }
}

/// Refuses every request and ignores every notification.
#[derive(Debug)]
pub struct NoMessages;

impl Messages for NoMessages {
    fn request(&self, _: PeerId, channel: Channel, _: Vec<u8>) -> Answer {
        Answer::Now(Err(format!("nobody answers on channel {}", channel.0)))
    }

    fn notified(&self, _: PeerId, _: Channel, _: Vec<u8>) {}
}

/// The engine's ear on its links.
#[derive(Debug)]
pub(super) struct Events {
    /// Set when the engine stands; what arrives before is refused.
    engine: Arc<OnceLock<Weak<Inner>>>,
    messages: Arc<dyn Messages>,
}

impl Events {
    pub(super) fn new(engine: Arc<OnceLock<Weak<Inner>>>, messages: Arc<dyn Messages>) -> Self {
        Self { engine, messages }
    }

    fn engine(&self) -> Option<Arc<Inner>> {
        self.engine.get()?.upgrade()
    }
}

impl LinkEvents for Events {
    fn connected(&self, link: &Arc<Link>) {
        if let Some(engine) = self.engine() {
            engine.bury_predecessors(link.peer());
            engine.begin_link(link);
        }
        self.messages.connected(link.peer());
    }

    fn disconnected(&self, peer: PeerId, cause: &Error) {
        if let Some(engine) = self.engine() {
            engine.lose(peer);
        }
        self.messages.disconnected(peer, cause);
    }

    fn request(&self, link: &Arc<Link>, channel: Channel, body: Vec<u8>) -> Answer {
        if channel >= FIRST_FREE_CHANNEL {
            return self.messages.request(link.peer(), channel, body);
        }
        let Some(engine) = self.engine() else {
            return Answer::Now(Err("the engine is starting".to_owned()));
        };
        let answer = match channel {
            DESCRIBE => engine.answer_describe(&body),
            EXCHANGE => engine.answer_exchange(link.peer(), &body),
            _ => Err(Error::protocol(format!("no request goes to channel {}", channel.0))),
        };
        Answer::Now(answer.map_err(|error| error.to_string()))
    }

    fn notified(&self, link: &Arc<Link>, channel: Channel, body: Vec<u8>) {
        if channel >= FIRST_FREE_CHANNEL || channel == TRANSFER_DONE {
            self.messages.notified(link.peer(), channel, body);
        }
    }
}

impl Inner {
    fn answer_describe(&self, body: &[u8]) -> Result<Vec<u8>, Error> {
        let Describe { regions } = Describe::from_bytes(body)?;
        if regions.len() > DESCRIBED_MAX {
            return Err(Error::protocol(format!(
                "{} regions in one question, {DESCRIBED_MAX} are allowed",
                regions.len()
            )));
        }
        let regions = regions.into_iter().map(|id| self.regions.describe(&self.transports, id)).collect();
        Ok(Described { regions }.to_bytes())
    }

    fn answer_exchange(&self, peer: PeerId, body: &[u8]) -> Result<Vec<u8>, Error> {
        let Exchanged { transport, request } = Exchanged::from_bytes(body)?;
        let found = self.transports.iter().find(|offered| offered.name() == transport);
        let found = found.ok_or_else(|| Error::Refused {
            cause: format!("this engine does not offer transport `{transport}`").into(),
        })?;
        found.answer(peer, &request)
    }
}
