//! Removals that an earlier start of this member decided and kept ([`super::removals_file`]), told to those who serve their shards
//! now: this one may serve them no more, and who serves them with it may have heard of none.
//!
//! Invariants
//! - A removal is told until all who serve its shard know it, or it is as old as removals are remembered.
//! - One that not all of them know when this member stops is kept for its next start.
//!
//! Limits: as many as that file holds. They are gone through when they are set, and when somebody is there who was not: not with
//! each tick while one of those who are to know is away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidefs_engine::types::{MemberId, PeerId};

use super::core::{Core, Seen};
use super::object::Stamp;
use super::peers::Peer;
use super::shards::KeyId;

/// What was removed, through which version, and when, as far as is known here.
pub(super) type Removal = (KeyId, Stamp, Duration);

/// Removals that are still to be told.
#[derive(Debug, Default)]
pub(super) struct Recalled {
    /// Held for a copy of it, or a look at all.
    removals: Mutex<Vec<Removal>>,
}

impl Recalled {
    pub(super) fn set(&self, removals: Vec<Removal>) {
        *self.removals.lock() = removals;
    }

    pub(super) fn all(&self) -> Vec<Removal> {
        self.removals.lock().clone()
    }

    /// Drops those of which that is not so. Returns whether any are left.
    fn retain(&self, is_left: impl Fn(&Removal) -> bool) -> bool {
        let mut removals = self.removals.lock();
        removals.retain(is_left);
        !removals.is_empty()
    }
}

/// The latest start of each of some members.
type Starts = BTreeMap<MemberId, PeerId>;

/// How far that is.
#[derive(Debug, Default)]
struct Telling {
    /// Who has heard of which key.
    known: BTreeSet<(PeerId, KeyId)>,
    /// In which view, and who was there, when all of them had heard all that is for them.
    heard: Option<(u64, Starts)>,
}

impl Core {
    /// Tells those who serve their shards of all of them, for as long as that takes.
    pub(super) async fn tell_recalled(self: Arc<Self>) {
        let mut telling = Telling::default();
        while self.tell_recalled_once(&mut telling).await && !self.has_left() {
            tokio::time::sleep(self.config.timings.tick).await;
        }
    }

    /// Returns whether some are still to be told.
    async fn tell_recalled_once(self: &Arc<Self>, telling: &mut Telling) -> bool {
        let (now, retention) = (self.now(), self.config.timings.tombstones);
        if !self.recalled.retain(|&(.., at)| now.saturating_sub(at) < retention) {
            return false;
        }
        let seen = self.seen();
        // Who is alone is heard by nobody, and whoever comes may serve them in its place.
        if seen.is_alone || self.is_out() {
            return true;
        }
        let there = self.starts(Peer::is_there);
        let round = Some((seen.map.view, there.clone()));
        if telling.heard == round {
            return true;
        }
        let mut untold: BTreeMap<PeerId, Vec<Removal>> = BTreeMap::new();
        for removal in self.recalled.all() {
            let starts = self.others_who_serve(&seen, removal.0).filter_map(|member| there.get(&member));
            for &start in starts.filter(|&&start| !telling.known.contains(&(start, removal.0))) {
                untold.entry(start).or_default().push(removal);
            }
        }
        let mut have_heard = true;
        for (start, removals) in untold {
            let is_told = self.push_removals(start.member, &removals).await;
            // Another start of it may have heard only a part.
            if is_told && self.peer_id(start.member) == Some(start) {
                telling.known.extend(removals.into_iter().map(|(key, ..)| (start, key)));
            } else {
                have_heard = false;
            }
        }
        telling.heard = round.filter(|_| have_heard);
        let met = self.starts(|_| true);
        let knows = |member: MemberId, key: KeyId| {
            met.get(&member).is_some_and(|&start| telling.known.contains(&(start, key)))
        };
        self.recalled.retain(|&(key, ..)| !self.others_who_serve(&seen, key).all(|member| knows(member, key)))
    }

    /// The latest start of each member of which that is so.
    fn starts(&self, is_wanted: impl Fn(&Peer) -> bool) -> Starts {
        let peers = self.peers.lock();
        peers.values().filter(|peer| is_wanted(peer)).map(|peer| (peer.id.member, peer.id)).collect()
    }

    /// Who serves the shard of `key`, but this member.
    fn others_who_serve(&self, seen: &Seen, key: KeyId) -> impl Iterator<Item = MemberId> + use<> {
        let me = self.me.member;
        let owners = seen.map.owners(key.shard());
        let both = owners.into_iter().flat_map(|owners| [Some(owners.primary), owners.backup]);
        both.flatten().filter(move |&member| member != me)
    }
}
