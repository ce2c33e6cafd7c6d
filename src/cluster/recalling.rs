//! Removals that an earlier start of this member decided and kept ([`super::removals_file`]), told to those who serve their shards
//! now: this one may serve them no more, and who serves them with it may have heard of none.
//!
//! Invariants
//! - A removal is told until all who serve its shard know it, or it is as old as removals are remembered.
//! - One that not all of them know when this member stops is kept for its next start.
//!
//! Limits: as many as that file holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidefs_engine::types::{MemberId, PeerId};

use super::core::{Core, Seen};
use super::object::Stamp;
use super::shards::KeyId;

/// What was removed, through which version, and when, as far as is known here.
pub(super) type Removal = (KeyId, Stamp, Duration);

/// Removals that are still to be told.
#[derive(Debug, Default)]
pub(super) struct Recalled {
    /// Held for a copy of it.
    removals: Mutex<Vec<Removal>>,
}

impl Recalled {
    pub(super) fn set(&self, removals: Vec<Removal>) {
        *self.removals.lock() = removals;
    }

    pub(super) fn all(&self) -> Vec<Removal> {
        self.removals.lock().clone()
    }
}

impl Core {
    /// Tells those who serve their shards of all of them, for as long as that takes.
    pub(super) async fn tell_recalled(self: Arc<Self>) {
        let mut known = BTreeSet::new();
        loop {
            self.tell_recalled_once(&mut known).await;
            if self.recalled.all().is_empty() || self.has_left() {
                return;
            }
            tokio::time::sleep(self.config.timings.tick).await;
        }
    }

    /// `known`: who has heard of which key.
    async fn tell_recalled_once(self: &Arc<Self>, known: &mut BTreeSet<(PeerId, KeyId)>) {
        let (now, retention) = (self.now(), self.config.timings.tombstones);
        let mut left = self.recalled.all();
        left.retain(|&(.., at)| now.saturating_sub(at) < retention);
        let seen = self.seen();
        // Who is alone is heard by nobody, and whoever comes may serve them in its place.
        if !seen.is_alone && !self.is_out() {
            let mut untold: BTreeMap<PeerId, Vec<Removal>> = BTreeMap::new();
            for &removal in &left {
                let starts =
                    self.others_who_serve(&seen, removal.0).filter_map(|member| self.peer_id(member));
                for start in starts.filter(|&start| !known.contains(&(start, removal.0))) {
                    untold.entry(start).or_default().push(removal);
                }
            }
            for (start, removals) in untold {
                let is_told = self.push_removals(start.member, &removals).await;
                // Another start of it may have heard only a part.
                if is_told && self.peer_id(start.member) == Some(start) {
                    known.extend(removals.into_iter().map(|(key, ..)| (start, key)));
                }
            }
            let knows = |member, key| self.peer_id(member).is_some_and(|start| known.contains(&(start, key)));
            left.retain(|&(key, ..)| !self.others_who_serve(&seen, key).all(|member| knows(member, key)));
        }
        self.recalled.set(left);
    }

    /// Who serves the shard of `key`, but this member.
    fn others_who_serve(&self, seen: &Seen, key: KeyId) -> impl Iterator<Item = MemberId> + use<> {
        let me = self.me.member;
        let owners = seen.map.owners(key.shard());
        let both = owners.into_iter().flat_map(|owners| [Some(owners.primary), owners.backup]);
        both.flatten().filter(move |&member| member != me)
    }
}
