//! Speaks to each member in the newest version that both know: what leaves is put into that version here, at one place, so
//! that the rest of a member writes its own version alone.
//!
//! A member that shares no version is told nothing, with a warning: the hosts between the two are to be upgraded first.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLock;
use tidefs_engine::engine::{Answer, PeerDescriptor};
use tidefs_engine::error::Error;
use tidefs_engine::link::Channel;
use tidefs_engine::types::{BoxFuture, MemberId, PeerId};

use super::carrier::Carrier;
use super::catalog::wire::older;
use super::member::{ProtocolRange, View};

/// A carrier that speaks to each member in its version.
pub(super) struct Speaking {
    carrier: Arc<dyn Carrier>,
    ours: ProtocolRange,
    /// What those speak that speak something else. Read for each message.
    others: RwLock<BTreeMap<MemberId, ProtocolRange>>,
}

impl fmt::Debug for Speaking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Speaking").field("others", &self.others.read()).finish_non_exhaustive()
    }
}

impl Speaking {
    pub(super) fn new(carrier: Arc<dyn Carrier>, ours: ProtocolRange) -> Self {
        Self { carrier, ours, others: RwLock::default() }
    }

    /// Members of which it is known what they speak.
    #[cfg(test)]
    pub(super) fn others(&self) -> usize {
        self.others.read().len()
    }

    /// Takes note of what the members speak. Who left is spoken to as before.
    pub(super) fn meet(&self, view: &View) {
        let mut others = self.others.write();
        for member in view.members() {
            let before = if member.protocol == self.ours {
                others.remove(&member.id)
            } else {
                others.insert(member.id, member.protocol)
            };
            if self.ours.common(member.protocol).is_none() && before != Some(member.protocol) {
                tracing::warn!(
                    member = %member.id,
                    name = member.name,
                    theirs = %member.protocol,
                    ours = %self.ours,
                    "a member shares no version of the protocol with this one and is told nothing: upgrade the older"
                );
            }
        }
    }

    /// The bytes for `peer`.
    fn put(&self, peer: PeerId, channel: Channel, body: Vec<u8>) -> Result<Vec<u8>, Error> {
        let theirs = self.others.read().get(&peer.member).copied().unwrap_or(self.ours);
        let Some(version) = self.ours.common(theirs) else {
            let text = |range: ProtocolRange| range.to_string().into();
            return Err(Error::VersionMismatch { theirs: text(theirs), ours: text(self.ours) });
        };
        let version = u8::try_from(version).unwrap_or(u8::MAX);
        older::request(channel, body, version)
            .map_err(|error| Error::Refused { cause: error.to_string().into() })
    }

    pub(super) fn call(
        &self,
        peer: PeerId,
        channel: Channel,
        body: Vec<u8>,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<Vec<u8>, Error>> {
        match self.put(peer, channel, body) {
            Ok(body) => self.carrier.call(peer, channel, body, deadline),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    pub(super) fn notify(&self, peer: PeerId, channel: Channel, body: Vec<u8>) {
        match self.put(peer, channel, body) {
            Ok(body) => self.carrier.notify(peer, channel, body),
            Err(error) => tracing::debug!(%peer, channel = channel.0, %error, "a peer is not told"),
        }
    }

    pub(super) fn connect(
        &self,
        peer: PeerDescriptor,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<(), Error>> {
        self.carrier.connect(peer, deadline)
    }

    pub(super) fn is_connected(&self, peer: PeerId) -> bool {
        self.carrier.is_connected(peer)
    }

    /// Nothing is under way to `peer`, and it is not expected back.
    pub(super) fn let_go(&self, peer: PeerId) {
        self.carrier.forget(peer);
    }

    /// It is spoken to as any other when it is met again.
    pub(super) fn forget(&self, peer: PeerId) {
        self.others.write().remove(&peer.member);
        self.carrier.forget(peer);
    }

    pub(super) fn close(&self) -> BoxFuture<'static, ()> {
        self.carrier.close()
    }

    /// Whether `body` is in a version that this member reads; else why not, for who sent it.
    pub(super) fn admit(&self, body: &[u8]) -> Result<(), String> {
        let Some(&version) = body.first() else { return Ok(()) };
        let ours = self.ours;
        let is_ours = (ours.oldest..=ours.newest).contains(&u16::from(version));
        if is_ours { Ok(()) } else { Err(format!("version {version}, this member reads versions {ours}")) }
    }
}

/// `answer` in the version in which it was asked for.
pub(super) fn answer_in(version: u8, channel: Channel, answer: Answer) -> Answer {
    let put = move |body: Result<Vec<u8>, String>| {
        body.and_then(|body| older::answer(channel, body, version).map_err(|error| error.to_string()))
    };
    match answer {
        Answer::Now(body) => Answer::Now(put(body)),
        Answer::Later(body) => Answer::Later(Box::pin(async move { put(body.await) })),
    }
}
