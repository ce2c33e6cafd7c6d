//! What carries messages to other members: the engine, or in tests a network that is made up.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use tidefs_engine::engine::{Answer, Engine, Messages, PeerDescriptor};
use tidefs_engine::error::Error;
use tidefs_engine::link::Channel;
use tidefs_engine::types::{BoxFuture, PeerId};

use super::core::Core;

/// Carries messages. A request is on its way once its future was polled, in the order of that.
pub(super) trait Carrier: Send + Sync + fmt::Debug {
    /// Asks a peer.
    fn call(
        &self,
        peer: PeerId,
        channel: Channel,
        body: Vec<u8>,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<Vec<u8>, Error>>;

    /// Tells a peer, if it is connected.
    fn notify(&self, peer: PeerId, channel: Channel, body: Vec<u8>);

    /// Makes the connection, if there is none.
    fn connect(&self, peer: PeerDescriptor, deadline: Instant) -> BoxFuture<'static, Result<(), Error>>;

    /// Whether there is a connection to the peer. One that has ended is none before anybody is told of its end.
    fn is_connected(&self, peer: PeerId) -> bool;

    /// Keeps nothing of a peer, and of its earlier starts, that is not connected and to which nothing is under way.
    fn forget(&self, peer: PeerId) {
        let _ = peer;
    }

    /// Ends all connections.
    fn close(&self) -> BoxFuture<'static, ()>;
}

impl Carrier for Engine {
    fn call(
        &self,
        peer: PeerId,
        channel: Channel,
        body: Vec<u8>,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<Vec<u8>, Error>> {
        let engine = self.clone();
        Box::pin(async move { Engine::call(&engine, peer, channel, body, deadline).await })
    }

    fn notify(&self, peer: PeerId, channel: Channel, body: Vec<u8>) {
        if let Err(error) = Engine::notify(self, peer, channel, body) {
            tracing::debug!(%peer, %error, "a peer is not told");
        }
    }

    fn connect(&self, peer: PeerDescriptor, deadline: Instant) -> BoxFuture<'static, Result<(), Error>> {
        let engine = self.clone();
        Box::pin(async move { Engine::connect(&engine, &peer, deadline).await })
    }

    fn is_connected(&self, peer: PeerId) -> bool {
        Engine::is_connected(self, peer)
    }

    fn forget(&self, peer: PeerId) {
        Engine::forget(self, peer);
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let engine = self.clone();
        Box::pin(async move { Engine::close(&engine).await })
    }
}

/// What hears of peers, before the member stands and after it is gone.
#[derive(Debug, Default)]
pub(super) struct Ear(pub(super) OnceLock<Weak<Core>>);

impl Ear {
    fn core(&self) -> Option<Arc<Core>> {
        self.0.get()?.upgrade()
    }
}

impl Messages for Ear {
    fn request(&self, peer: PeerId, channel: Channel, body: Vec<u8>) -> Answer {
        match self.core() {
            Some(core) => core.serve(peer, channel, &body),
            None => Answer::Now(Err("this member does not take part yet".to_owned())),
        }
    }

    fn notified(&self, peer: PeerId, channel: Channel, body: Vec<u8>) {
        if let Some(core) = self.core() {
            core.hear(peer, channel, &body);
        }
    }

    fn connected(&self, peer: PeerId) {
        if let Some(core) = self.core() {
            core.link_up(peer);
        }
    }

    fn disconnected(&self, peer: PeerId, cause: &Error) {
        if let Some(core) = self.core() {
            core.link_down(peer, cause);
        }
    }
}
