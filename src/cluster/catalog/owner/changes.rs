//! What becomes of a change that a member asks for: a version published or announced, a name removed, a copy taken or let go of.
//!
//! Invariants
//! - Who decides about a key puts its changes in order; the other owner takes only what members announce, or let go of.
//! - Who is told of a change is returned with it, and so is whether the other owner has to know.

use std::time::Duration;

use tidefs_engine::types::{MemberId, PeerId};

use super::super::entry::{Entry, Slot};
use super::super::table::Put;
use super::super::wire::{Change, Outcome, Revocation};
use super::{Owner, Role};
use crate::cluster::object::Stamp;
use crate::cluster::shards::KeyId;

/// What a change did, and who has to know.
#[derive(Debug, PartialEq, Eq)]
pub struct Effects {
    /// What became of it.
    pub outcome: Outcome,
    /// What members have to be told, this one too.
    pub tell: Vec<(MemberId, Revocation)>,
    /// The other owner, which has to know the key's new state; with the version of which the last copy went, if one did.
    pub replicate: Option<(MemberId, KeyId, Stamp)>,
    /// Whether a publish replaced bytes of another host's version by different ones.
    pub is_conflict: bool,
    /// Whether it was a publish of what another host had published already, of which its own host had no copy.
    pub is_collapsed: bool,
}

impl Effects {
    fn only(outcome: Outcome) -> Self {
        Self { outcome, tell: Vec::new(), replicate: None, is_conflict: false, is_collapsed: false }
    }
}

impl Owner {
    /// Does what `from` asks for, which was last in touch at `contact`.
    pub fn change(&mut self, from: PeerId, change: &Change, now: Duration) -> Effects {
        let Some(path) = change.path() else {
            if let Change::Announced { view } = change
                && !self.announced(from, *view)
            {
                return Effects::only(Outcome::Moved);
            }
            return Effects::only(Outcome::Done { stamp: Stamp(0) });
        };
        let key = KeyId::of(path);
        if from.member == self.me {
            self.note_own(key, change);
        }
        let role = self.role(key.shard());
        // What a member holds is taken from it by both owners, whoever decides.
        let is_announcement = matches!(change, Change::Announce { .. } | Change::LetGo { .. });
        let may = match role {
            Role::Primary | Role::Acting => true,
            Role::Backup | Role::Behind => is_announcement,
            Role::None => false,
        };
        let Some(slot) = self.slots.of(from).filter(|_| may) else { return Effects::only(Outcome::Moved) };
        match change {
            Change::LetGo { stamp, .. } => self.left.note(key, slot, *stamp),
            Change::Publish { .. } | Change::Announce { .. } | Change::Hold { .. } => {
                self.left.take_back(key, slot);
            }
            _ => {}
        }
        let mut is_news = !matches!(change, Change::Announce { .. });
        let mut effects = match change {
            Change::Publish { number, proposed, facts, .. } => {
                let seen = self.seen.entry(from).or_default();
                *seen = (*seen).max(*number);
                let was_held = self.is_held_by(key, from.member);
                let put = self.table.publish(key, slot, *proposed, *facts);
                let is_collapsed = matches!(put, Put::Collapsed { .. }) && !was_held;
                let is_conflict = matches!(&put, Put::Replaced { holders, .. } if !holders.is_empty());
                Effects { is_collapsed, is_conflict, ..self.put_effects(key, path, slot, put) }
            }
            Change::Announce { stamp, facts, medium, contact_age_ms, .. } => {
                let claimed = now.checked_sub(Duration::from_millis(*contact_age_ms));
                let contact = claimed.max(self.contacts.get(&from.member).copied());
                let is_held = |entry: &Entry| entry.copies.contains(slot);
                // What the other owner is to have heard of long ago it may have lost by a word of this one.
                let may_be_lost = self.incomplete.get(&key.shard()).is_none_or(|spoken| spoken.contains(key));
                is_news = may_be_lost && self.table.get(key).is_some_and(|entry| !is_held(entry));
                let put = self.table.announce(key, slot, *stamp, *facts, *medium, contact);
                self.put_effects(key, path, slot, put)
            }
            Change::RemoveThrough { through, .. } if self.table.latest(key) > Some(*through) => {
                return Effects::only(Outcome::Done { stamp: *through });
            }
            Change::Remove { at, .. } | Change::RemoveThrough { through: at, .. } => {
                let removal = self.table.remove(key, slot, *at, now);
                let tell = self.revoke(key, Some(path), removal.through, &removal.holders, Some(slot));
                // Until the remover is answered its programs may still find what it removed: a later change tells it.
                self.watches.add(key, path, slot);
                Effects { tell, ..Effects::only(Outcome::Done { stamp: removal.through }) }
            }
            Change::Hold { stamp, medium, .. } => {
                if !self.table.hold(key, slot, *stamp, *medium) {
                    let is_known = self.table.get(key).is_some_and(|entry| entry.copies.contains(slot));
                    // What is not valid, or what nobody knows of, is to be announced: that decides which of the two it is.
                    let refused = Outcome::Refused { through: *stamp };
                    return Effects::only(if is_known { Outcome::Done { stamp: *stamp } } else { refused });
                }
                Effects::only(Outcome::Done { stamp: *stamp })
            }
            Change::LetGo { stamp, .. } => match self.table.let_go(key, slot, *stamp) {
                None => return Effects::only(Outcome::Done { stamp: *stamp }),
                Some(None) => Effects::only(Outcome::Done { stamp: *stamp }),
                Some(Some(last)) => {
                    if !self.away.is_empty() {
                        self.table.note_end(key, last, now);
                    }
                    // Who let go may have asked since, and been told of its own copy.
                    let tell = self.revoke(key, Some(path), last, &[], None);
                    Effects { tell, ..Effects::only(Outcome::Done { stamp: last }) }
                }
            },
            Change::Announced { .. } => return Effects::only(Outcome::Done { stamp: Stamp(0) }),
        };
        effects.tell.extend(self.tell_unknown_holders(from, change, effects.outcome));
        if matches!(role, Role::Primary | Role::Acting)
            && matches!(change, Change::Hold { .. } | Change::LetGo { .. })
        {
            effects
                .tell
                .extend(self.heir(key).map(|member| (member, Revocation::Inherit { keys: vec![key.0] })));
        }
        if matches!(role, Role::Primary | Role::Acting) && is_news {
            let Outcome::Done { stamp } = effects.outcome else { return effects };
            effects.replicate = self.speak(key).map(|other| (other, key, stamp));
        }
        effects
    }

    /// Whether a start of `member` is known to have a copy.
    fn is_held_by(&self, key: KeyId, member: MemberId) -> bool {
        let is_its = |slot: Slot| self.slots.peer(slot).is_some_and(|peer| peer.member == member);
        self.table.get(key).is_some_and(|entry| entry.copies.iter().any(|(slot, _)| is_its(slot)))
    }

    /// The other owner of a key, which is told of it what this one knows.
    fn speak(&mut self, key: KeyId) -> Option<MemberId> {
        let other = self.other_owner(key.shard())?;
        if let Some(spoken) = self.incomplete.get_mut(&key.shard()) {
            spoken.add(key);
        }
        Some(other)
    }

    fn put_effects(&mut self, key: KeyId, path: &[u8], slot: Slot, put: Put) -> Effects {
        match put {
            Put::Collapsed { stamp } => Effects::only(Outcome::Done { stamp }),
            Put::Appeared { stamp } => {
                let tell = self.revoke(key, Some(path), Stamp(0), &[], Some(slot));
                Effects { tell, ..Effects::only(Outcome::Done { stamp }) }
            }
            Put::Replaced { stamp, through, holders } => {
                let tell = self.revoke(key, Some(path), through, &holders, Some(slot));
                Effects { tell, ..Effects::only(Outcome::Done { stamp }) }
            }
            Put::Refused { through } => Effects::only(Outcome::Refused { through }),
        }
    }
}
