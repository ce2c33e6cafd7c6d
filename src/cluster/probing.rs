//! Requests to other members, and those that do not answer one in time: such a member is not waited for any more, and is asked
//! whether it is there until it answers.
//!
//! Invariants
//! - A member is judged only by what it answers at once when it is well, for which it was given [`FAIR`] time, and by who notices
//!   the end of that within [`PUNCTUAL`]: who was held up itself asks once more.
//! - One question whether a member is there is open at a time, in a task of its own.
//! - A member that answers again is told what it is owed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_engine::error::Error;
use tidefs_engine::link::Channel;
use tidefs_engine::types::{Incarnation, MemberId, PeerId};

use super::catalog::wire::{AGREED, CATCH_UP, DRAIN, KEEP, LEND, LIST, Message, REVOKE, Revoke};
use super::core::Core;
use super::peers::{Link, Owed, Peer};

/// Who was given less time than this is not judged by it.
const FAIR: Duration = Duration::from_millis(500);
/// Who notices the end of a deadline later than this was held up.
const PUNCTUAL: Duration = Duration::from_millis(20);

/// Whether an answer on this channel comes at once from a member that is well. Others wait for a disk, for debts to third
/// members or for a coordinator, or list a large directory: who is late with those is asked whether it is there.
fn is_quick(channel: Channel) -> bool {
    ![LEND, KEEP, CATCH_UP, AGREED, LIST, DRAIN].contains(&channel)
}

impl Core {
    /// Asks a member, once it was connected for the first time. The request is on its way when the future was polled, if
    /// it is connected.
    pub(super) async fn call(
        self: &Arc<Self>,
        member: MemberId,
        channel: Channel,
        body: Vec<u8>,
        deadline: Instant,
    ) -> Result<Vec<u8>, Error> {
        let known = self.peers.lock().get(&member).map(|peer| (peer.descriptor.clone(), peer.link));
        let Some((descriptor, link)) = known else {
            let id = PeerId { member, incarnation: Incarnation(0) };
            return Err(Error::PeerGone { peer: id, cause: "never met".into() });
        };
        let peer = descriptor.id;
        if matches!(link, Link::Connecting(_)) {
            let patience = self.within(self.first_patience()).min(deadline);
            self.carrier.connect(descriptor, patience).await?;
            self.link_found(peer);
        }
        let patience = self.until(deadline);
        let result = self.carrier.call(peer, channel, body, deadline).await;
        match result {
            Err(Error::DeadlinePassed) if !is_quick(channel) && patience >= FAIR => {
                self.begin_to_probe(member, FAIR);
            }
            Err(Error::DeadlinePassed) => self.note_slow(member, patience, deadline),
            _ => {}
        }
        result
    }

    /// A member did not answer within `patience`, until `deadline`: it is not waited for until it does, unless that was too
    /// short to tell. When it is noticed late, this member itself was held up, and the answer may be waiting: then the other
    /// one is asked once more before it is judged.
    pub(super) fn note_slow(self: &Arc<Self>, member: MemberId, patience: Duration, deadline: Instant) {
        if patience < FAIR {
            return;
        }
        if self.since(deadline) > PUNCTUAL {
            self.begin_to_probe(member, FAIR);
            return;
        }
        let now = self.now();
        let is_news = match self.peers.lock().get_mut(&member) {
            Some(peer) if peer.link == Link::Up && !peer.is_slow => {
                peer.lose(now);
                peer.is_slow = true;
                true
            }
            _ => false,
        };
        if is_news {
            tracing::warn!(member = member.0, "a member does not answer in time");
            self.lose(member);
            self.probe_slow(member);
        }
    }

    /// Asks one that is slow, for as long as a connection may be silent: a member that was stopped finds the question as soon
    /// as it goes on. What it shows its programs may be old until it is told what it is owed.
    pub(super) fn probe_slow(self: &Arc<Self>, member: MemberId) {
        self.begin_to_probe(member, self.config.timings.silence);
    }

    /// Asks, unless an earlier question is still open.
    fn begin_to_probe(self: &Arc<Self>, member: MemberId, patience: Duration) {
        let is_asked = |peer: &mut Peer| std::mem::replace(&mut peer.is_probed, true);
        if self.peers.lock().get_mut(&member).is_some_and(|peer| !is_asked(peer)) {
            self.spawn(Arc::clone(self).probe(member, patience));
        }
    }

    /// Asks one that was slow, or seems so, whether it answers.
    async fn probe(self: Arc<Self>, member: MemberId, patience: Duration) {
        let deadline = self.within(patience);
        let body = Revoke { items: Vec::new() }.encode();
        let is_there = self.call(member, REVOKE, body, deadline).await.is_ok();
        let is_back = match self.peers.lock().get_mut(&member) {
            Some(peer) => {
                peer.is_probed = false;
                let is_back = is_there && std::mem::take(&mut peer.is_slow);
                if is_back {
                    peer.lost_at = None;
                    if std::mem::take(&mut peer.is_dropped) {
                        // What it held was forgotten though its connection stood: it announces again.
                        peer.owed = Owed::all();
                    }
                }
                is_back.then_some(peer.id)
            }
            None => None,
        };
        if let Some(peer) = is_back {
            self.regain(peer);
        }
    }
}
