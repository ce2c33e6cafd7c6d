//! Members that are gone: what is kept of them, so that one that comes back misses nothing, and for how long.
//!
//! Invariants
//! - A member is a peer, with queues and tasks, or gone, never both: one passes into the other under the lock of the peers.
//! - A peer goes when it is out of the view and what it held is forgotten, and only while nothing of it is under way: no
//!   message, no read, nobody who settles with it. So nothing that was begun with it can overtake what is told to the peer
//!   that stands for the member when it is back.
//! - Who is gone is owed everything.
//!
//! Limits: some hundred bytes for each, for as long as removals are remembered and a while; then nothing is known of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidefs_engine::engine::PeerDescriptor;
use tidefs_engine::types::{MemberId, PeerId};

use super::core::Core;
use super::peers::{Link, Owed, Peer, Peers};

/// What is kept of a member that is gone.
#[derive(Debug)]
pub(super) struct Gone {
    descriptor: PeerDescriptor,
    lost_at: Duration,
    has_left: bool,
    unheard_since: Option<Duration>,
}

impl Gone {
    /// Its latest start.
    pub(super) fn id(&self) -> PeerId {
        self.descriptor.id
    }

    /// It said that it leaves.
    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }
}

/// All that are gone and not forgotten.
pub(super) type AllGone = BTreeMap<MemberId, Gone>;

impl Peer {
    /// Whether nothing is left of it that is worth more than what is kept of who is gone.
    fn lets_go(&self) -> bool {
        let is_away = !self.is_registered && self.is_dropped && self.link != Link::Up;
        let is_idle = !self.is_settling && !self.is_probed && self.reads_under_way == 0;
        // Whoever tells it something holds the peers.
        is_away
            && is_idle
            && self.paying.available_permits() == 1
            && self.revocations.is_idle()
            && self.dirty.is_idle()
            && self.changes.is_idle()
            && self.notes.is_idle()
    }

    /// Its queues take nothing any more.
    fn close(&self) {
        self.revocations.close();
        self.dirty.close();
        self.changes.close();
        self.notes.close();
    }
}

impl Core {
    /// Has peers go that are not expected back, and forgets who has been gone for so long that nothing about it counts any more.
    pub(super) fn let_members_go(&self, now: Duration) {
        let mut went = Vec::new();
        {
            let mut peers = self.peers.lock();
            let mut gone = self.gone.lock();
            for (member, peer) in peers.extract_if(.., |_, peer| peer.lets_go()) {
                peer.close();
                let Peer { descriptor, lost_at, has_left, unheard_since, .. } = peer;
                went.push(descriptor.id);
                let lost_at = lost_at.unwrap_or(now);
                gone.insert(member, Gone { descriptor, lost_at, has_left, unheard_since });
            }
        }
        went.into_iter().for_each(|peer| self.carrier.let_go(peer));
        // Longer than removals are remembered: then it is not believed anyway.
        let time = self.config.timings.tombstones + self.config.timings.grace;
        let is_over = |lost_at: Duration| now.saturating_sub(lost_at) > time;
        let mut owner = self.owner.lock();
        // Held until it is forgotten: it may be met again at once.
        let (peers, mut gone) = (self.peers.lock(), self.gone.lock());
        for (member, gone) in gone.extract_if(.., |_, gone| is_over(gone.lost_at)) {
            owner.forget_member(member);
            self.carrier.forget(gone.id());
        }
        let is_met = |member: MemberId| {
            member == self.me.member || peers.contains_key(&member) || gone.contains_key(&member)
        };
        owner.forget_unmet(is_met, is_over);
    }

    /// Has a member be a peer again that is gone, as it was when it went, if `is_it`.
    pub(super) fn bring_back(
        self: &Arc<Self>,
        peers: &mut Peers,
        member: MemberId,
        is_it: impl FnOnce(&Gone) -> bool,
    ) {
        let mut all = self.gone.lock();
        let Some(gone) = all.get(&member).filter(|gone| is_it(gone)) else { return };
        let (lost_at, has_left, unheard_since) = (gone.lost_at, gone.has_left, gone.unheard_since);
        let peer = Peer {
            is_registered: false,
            link: Link::Down(lost_at),
            lost_at: Some(lost_at),
            is_dropped: true,
            has_left,
            unheard_since,
            owed: Owed::all(),
            ..self.meet(&gone.descriptor)
        };
        peers.insert(member, peer);
        all.remove(&member);
    }
}
