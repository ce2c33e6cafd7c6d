//! What the two owners of a shard tell each other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidefs_engine::types::MemberId;

use super::super::entry::{Entry, Slot};
use super::super::table::{Adopted, State};
use super::super::wire::{Known, Replicate, Revocation};
use super::{Learned, Owner, Role};
use crate::cluster::object::{Copy, Stamp};
use crate::cluster::shards::{KeyId, Shard};

impl Owner {
    /// What the other owner of its shard is to be told of a key now.
    #[must_use]
    pub fn known(&self, key: KeyId, gone: Stamp, now: Duration) -> Known {
        match self.table.state(key, gone) {
            State::Gone(stamp) => Known::Gone { stamp },
            State::Removed(stamp, at) => {
                let age = now.saturating_sub(at).as_millis();
                Known::Removed { stamp, age_ms: u64::try_from(age).unwrap_or(u64::MAX) }
            }
            State::Present(entry) => {
                Known::Present { stamp: entry.stamp(), facts: entry.facts(), copies: self.copies(&entry) }
            }
        }
    }

    /// Whether it says anything that nothing is known here of a key in `shard`.
    #[must_use]
    pub fn knows_all_of(&self, shard: Shard) -> bool {
        self.role(shard) != Role::None && !self.is_incomplete(shard)
    }

    /// Takes the word of `from`, another owner of the same shards, about some of its keys. The rest of that word is for
    /// [`Self::learn_rest`] to take when all keys are.
    pub fn learn(
        &mut self,
        from: MemberId,
        word: &Replicate,
        keys: &[(u128, Known)],
        now: Duration,
    ) -> Learned {
        let mut learned = Learned::default();
        // Holders of what has ended that were answered about it, too, with the shards of that; and who announces all that it has,
        // once for all keys.
        let mut answered: BTreeMap<MemberId, BTreeSet<u16>> = BTreeMap::new();
        let mut announcing = BTreeSet::new();
        for (key, known) in keys {
            let key = KeyId(*key);
            let is_mine = self.has_to_know(key.shard(), word.view);
            let Some(owners) = self.map.owners(key.shard()).filter(|_| is_mine) else {
                learned.is_stranger = true;
                continue;
            };
            let is_decided = word.is_decided && owners.primary == from;
            let state = self.state_told(key, known, (word, is_decided), now);
            // That no copy is left counts whoever says so. Who has one of which that one has not heard says that again.
            let is_end = matches!((known, &state), (Known::Gone { .. }, State::Gone(_)));
            let holders = if is_end && !is_decided { self.holders(key) } else { Vec::new() };
            let adopted = self.table.adopt(key, state, is_decided || is_end, now);
            let Adopted { changed, losers, is_ours_later } = adopted;
            let is_anyone_away = !self.away.is_empty() || !word.away_ms.is_empty();
            if let Known::Gone { stamp } = known
                && is_anyone_away
            {
                self.table.note_end(key, *stamp, now);
            }
            if let Some(through) = changed {
                for (member, revocation) in self.revoke(key, None, through, &losers, None) {
                    if holders.contains(&member) {
                        answered.entry(member).or_default().insert(key.shard().number());
                    } else {
                        learned.tell.push((member, revocation));
                    }
                }
                announcing.extend(holders);
            } else if !losers.is_empty() {
                let members = losers.iter().filter_map(|&slot| self.slots.peer(slot));
                announcing.extend(members.map(|peer| peer.member));
            }
            if is_ours_later {
                learned.ours_later.push(key);
            } else if let Some(stamp) = self.ended_here(key, known) {
                learned.ended.push((key.0, Known::Gone { stamp }));
            }
        }
        learned.tell.extend(announcing.into_iter().map(|member| (member, Revocation::AnnounceAgain)));
        // What such a holder has it keeps, and announces; what it was answered may be all that it knows of the name.
        let forget = |shards: BTreeSet<u16>| Revocation::Forget { shards: Vec::from_iter(shards), view: 0 };
        learned.tell.extend(answered.into_iter().map(|(member, shards)| (member, forget(shards))));
        learned
    }

    /// What `word` says of a key, as this owner counts members and times, and with the copies that only this one can know of.
    fn state_told(
        &mut self,
        key: KeyId,
        known: &Known,
        (word, is_decided): (&Replicate, bool),
        now: Duration,
    ) -> State {
        match known {
            Known::Gone { stamp } => self.left_of(key, word, *stamp),
            Known::Removed { stamp, age_ms } => {
                State::Removed(*stamp, now.saturating_sub(Duration::from_millis(*age_ms)))
            }
            Known::Present { stamp, facts, copies } => {
                let mut entry = Entry::new(*stamp, *facts);
                for Copy { member, medium } in copies {
                    // Who said here that it has none has none, whatever another heard before.
                    if let Some(slot) = self.slots.hear_of(*member, word.view)
                        && (is_decided || !self.has_left(key, (*member, slot), *stamp))
                    {
                        entry.copies.put(slot, *medium);
                    }
                }
                self.keep_copies_of_away(key, word, &mut entry);
                if entry.copies.is_empty() { State::Gone(*stamp) } else { State::Present(entry) }
            }
        }
    }

    /// Whether that member has said here that it let go of that version, and not since that it has one.
    fn has_left(&self, key: KeyId, (member, slot): (MemberId, Slot), stamp: Stamp) -> bool {
        self.left.contains(key, slot, stamp) || (member == self.me && self.has_own_left(key, stamp))
    }

    /// The version that stands for another owner with a copy of this member alone, which has let go of that; nothing stands here.
    fn ended_here(&self, key: KeyId, known: &Known) -> Option<Stamp> {
        let Known::Present { stamp, copies, .. } = known else { return None };
        let is_own = matches!(copies.as_slice(), [copy] if copy.member == self.me);
        (is_own && self.has_own_left(key, *stamp) && self.table.get(key).is_none()).then_some(*stamp)
    }

    /// Who holds a version that stands, as far as is known here.
    fn holders(&self, key: KeyId) -> Vec<MemberId> {
        let copies = self.table.get(key).into_iter().flat_map(|entry| entry.copies.iter());
        copies.filter_map(|(slot, _)| Some(self.slots.peer(slot)?.member)).collect()
    }

    /// What is left of a version of which the other owner knows no copy.
    fn left_of(&self, key: KeyId, word: &Replicate, stamp: Stamp) -> State {
        let ours = self.table.get(key).filter(|ours| ours.stamp() == stamp);
        let left = ours.map(|ours| {
            let mut left = Entry::new(stamp, ours.facts());
            self.keep_copies_of_away(key, word, &mut left);
            left
        });
        left.filter(|left| !left.copies.is_empty()).map_or(State::Gone(stamp), State::Present)
    }

    /// Who is away from the other owner tells this one alone what it holds.
    fn keep_copies_of_away(&self, key: KeyId, word: &Replicate, theirs: &mut Entry) {
        let is_same = |ours: &&Entry| ours.stamp() == theirs.stamp() || ours.is_made_anew_as(theirs);
        let Some(ours) = self.table.get(key).filter(is_same) else { return };
        for (slot, medium) in ours.copies.iter() {
            let member = self.slots.peer(slot).map(|peer| peer.member);
            let is_away = word.away_ms.iter().any(|&(away, _)| Some(away) == member);
            if is_away && !theirs.copies.contains(slot) {
                theirs.copies.put(slot, medium);
            }
        }
    }

    /// Takes what a word of `from` says beside its keys. Returns whether it knows all now of the shards of which it is told so;
    /// if not it is to be told once more.
    pub fn learn_rest(&mut self, from: MemberId, word: &Replicate, now: Duration) -> bool {
        let mut knows_all = true;
        for shard in word.complete.iter().filter_map(|&number| Shard::with_number(number)) {
            if !self.has_to_know(shard, word.view) || !self.is_told_whole(shard, from) {
                knows_all = false;
                continue;
            }
            self.incomplete.remove(&shard);
            self.left.end(shard);
        }
        for &(member, age) in &word.away_ms {
            // Whoever has told this owner what it holds is not away; and of who was away for too long that is known.
            if !self.announced.contains_key(&member) && !self.disbelieved.contains(&member) {
                let lost_at = now.saturating_sub(Duration::from_millis(age));
                self.away.entry(member).or_insert(lost_at);
                self.contacts.entry(member).or_insert(lost_at);
            }
        }
        if let Some(age) = word.horizon_age_ms {
            self.table.tombstones_mut().raise_horizon(now.saturating_sub(Duration::from_millis(age)));
        }
        knows_all
    }
}
