//! What becomes of a change that a member asks for: a version published or announced, a name removed, a copy taken or let go of.
//!
//! Invariants
//! - Who decides about a key puts its changes in order; the other owner takes only what members announce, or let go of.
//! - Who is told of a change is returned with it, and so is whether the other owner has to know.

use std::time::Duration;

use tidefs_engine::types::{MemberId, PeerId};

use super::super::entry::Slot;
use super::super::table::Put;
use super::super::wire::{Change, Outcome, Revocation};
use super::{Owner, Role};
use crate::cluster::object::{Medium, Stamp};
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

/// Who asks for a change, and of what.
#[derive(Clone, Copy)]
struct Asked<'a> {
    from: PeerId,
    slot: Slot,
    key: KeyId,
    path: &'a [u8],
    now: Duration,
}

/// Whether who is that to a shard takes such a change. What a member holds is taken from it by both owners, whoever decides.
fn takes(role: Role, change: &Change) -> bool {
    match role {
        Role::Primary | Role::Acting => true,
        Role::Backup | Role::Behind => matches!(change, Change::Announce { .. } | Change::LetGo { .. }),
        Role::None => false,
    }
}

impl Owner {
    /// Does what `from` asks for.
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
        let slot = self.slots.of(from).filter(|_| takes(role, change));
        let Some(slot) = slot else { return Effects::only(Outcome::Moved) };
        let asked = Asked { from, slot, key, path, now };
        self.note_left(key, slot, change);
        let is_news = self.is_news(asked, change);
        let mut effects = match self.apply(asked, change) {
            Ok(effects) => effects,
            Err(unchanged) => return Effects::only(unchanged),
        };
        effects.tell.extend(self.tell_unknown_holders(from, change, effects.outcome));
        if !matches!(role, Role::Primary | Role::Acting) {
            return effects;
        }
        if matches!(change, Change::Hold { .. } | Change::LetGo { .. }) {
            let heir = self.heir(key);
            effects.tell.extend(heir.map(|member| (member, Revocation::Inherit { keys: vec![key.0] })));
        }
        if is_news && let Outcome::Done { stamp } = effects.outcome {
            effects.replicate = self.speak(key).map(|other| (other, key, stamp));
        }
        effects
    }

    /// Whether the other owner has to know of it once it is done. Asked before: it is known to both afterwards.
    fn is_news(&self, Asked { slot, key, .. }: Asked<'_>, change: &Change) -> bool {
        if !matches!(change, Change::Announce { .. }) {
            return true;
        }
        // What the other owner is to have heard of long ago it may have lost by a word of this one.
        let may_be_lost = self.incomplete.get(&key.shard()).is_none_or(|spoken| spoken.contains(key));
        may_be_lost && self.table.get(key).is_some_and(|entry| !entry.copies.contains(slot))
    }

    /// Does it in the table. `Err` when that changes nothing: nobody has to know then.
    fn apply(&mut self, asked: Asked<'_>, change: &Change) -> Result<Effects, Outcome> {
        let Asked { from, slot, key, now, .. } = asked;
        match change {
            Change::Publish { number, proposed, facts, .. } => {
                let seen = self.seen.entry(from).or_default();
                *seen = (*seen).max(*number);
                let was_held = self.is_held_by(key, from.member);
                let put = self.table.publish(key, slot, *proposed, *facts);
                let is_collapsed = matches!(put, Put::Collapsed { .. }) && !was_held;
                let is_conflict = matches!(&put, Put::Replaced { holders, .. } if !holders.is_empty());
                Ok(Effects { is_collapsed, is_conflict, ..self.put_effects(asked, put) })
            }
            Change::Announce { stamp, facts, medium, contact_age_ms, .. } => {
                let claimed = now.checked_sub(Duration::from_millis(*contact_age_ms));
                let contact = self.contact(from.member, claimed);
                let put = self.table.announce(key, slot, *stamp, *facts, *medium, contact);
                Ok(self.put_effects(asked, put))
            }
            Change::RemoveThrough { through, .. } if self.table.latest(key) > Some(*through) => {
                Err(Outcome::Done { stamp: *through })
            }
            Change::Remove { at, .. } | Change::RemoveThrough { through: at, .. } => {
                Ok(self.remove(asked, *at))
            }
            Change::Hold { stamp, medium, .. } => self.hold(asked, *stamp, *medium),
            Change::LetGo { stamp, .. } => self.let_go(asked, *stamp),
            Change::Announced { .. } => Err(Outcome::Done { stamp: Stamp(0) }),
        }
    }

    fn remove(&mut self, Asked { slot, key, path, now, .. }: Asked<'_>, at: Stamp) -> Effects {
        let removal = self.table.remove(key, slot, at, now);
        let tell = self.revoke(key, Some(path), removal.through, &removal.holders, Some(slot));
        // Until the remover is answered its programs may still find what it removed: a later change tells it.
        self.watches.add(key, path, slot);
        Effects { tell, ..Effects::only(Outcome::Done { stamp: removal.through }) }
    }

    fn hold(
        &mut self,
        Asked { slot, key, .. }: Asked<'_>,
        stamp: Stamp,
        medium: Medium,
    ) -> Result<Effects, Outcome> {
        if self.table.hold(key, slot, stamp, medium) {
            return Ok(Effects::only(Outcome::Done { stamp }));
        }
        let is_known = self.table.get(key).is_some_and(|entry| entry.copies.contains(slot));
        // What is not valid, or what nobody knows of, is to be announced: that decides which of the two it is.
        Err(if is_known { Outcome::Done { stamp } } else { Outcome::Refused { through: stamp } })
    }

    fn let_go(
        &mut self,
        Asked { slot, key, path, now, .. }: Asked<'_>,
        stamp: Stamp,
    ) -> Result<Effects, Outcome> {
        let done = Outcome::Done { stamp };
        let Some(last) = self.table.let_go(key, slot, stamp).ok_or(done)? else {
            return Ok(Effects::only(done));
        };
        if !self.away.is_empty() {
            self.table.note_end(key, last, now);
        }
        // Who let go may have asked since, and been told of its own copy.
        let tell = self.revoke(key, Some(path), last, &[], None);
        Ok(Effects { tell, ..Effects::only(Outcome::Done { stamp: last }) })
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

    fn put_effects(&mut self, Asked { slot, key, path, .. }: Asked<'_>, put: Put) -> Effects {
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
