//! Who serves what, who is lost, and of whom this owner still has to learn what there is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidefs_engine::types::{MemberId, PeerId};

use super::super::entry::Slot;
use super::Owner;
use crate::cluster::catalog::wire::{Change, Outcome, Revocation};
use crate::cluster::object::{Facts, Stamp};
use crate::cluster::shards::{KeyId, Shard, ShardMap};

/// Members that are not expected any more, and would not be believed.
const DISBELIEVED_MAX: usize = 65_536;

impl Owner {
    /// Who serves what from now on. Shards in `gained` are new to this member: it learns what there is from `awaited`, and
    /// from whoever served them. What it serves no more is forgotten by [`Self::forget_unserved`].
    pub fn set_map(&mut self, map: Arc<ShardMap>, gained: &[Shard], awaited: BTreeSet<MemberId>) {
        if !gained.is_empty() {
            self.awaited_view = map.view;
            self.awaited = awaited;
            // Who heard of the view earlier may have told all before this member asked.
            let announced = &self.announced;
            self.awaited.retain(|member| announced.get(member).is_none_or(|&view| view < map.view));
        }
        for &shard in gained {
            self.incomplete.entry(shard).or_default();
            self.left.begin(shard);
        }
        self.slots.set_view(map.view);
        self.own_left.forget_all();
        self.map = map;
        self.check_awaited();
    }

    /// What is told of a change to all members while this one may not know who holds earlier versions of the name: each takes
    /// from what it holds what is not valid any more.
    pub(super) fn tell_unknown_holders(
        &self,
        from: PeerId,
        change: &Change,
        outcome: Outcome,
    ) -> Vec<(MemberId, Revocation)> {
        let Outcome::Done { stamp } = outcome else { return Vec::new() };
        let (path, through) = match change {
            Change::Publish { path, facts: Facts::File(_), .. } => (path, Stamp(stamp.0.saturating_sub(1))),
            Change::Remove { path, .. } | Change::RemoveThrough { path, .. } => (path, stamp),
            _ => return Vec::new(),
        };
        if !self.is_incomplete(KeyId::of(path).shard()) {
            return Vec::new();
        }
        let withdraw = |peer: PeerId| {
            let seen = self.seen.get(&peer).copied().unwrap_or(0);
            (peer.member, Revocation::Withdraw { path: path.clone(), through, seen })
        };
        self.slots.latest().filter(|peer| peer.member != from.member).map(withdraw).collect()
    }

    /// `from` has announced all that it holds, under that view. Returns whether it counts: not when it is forgotten, or when a
    /// later start of it is known.
    pub(super) fn announced(&mut self, from: PeerId, view: u64) -> bool {
        // Who holds nothing may be heard of with this for the first time.
        if self.slots.of(from).is_none() {
            return false;
        }
        self.announced.insert(from.member, view);
        self.note_back(from.member);
        if view >= self.awaited_view {
            self.awaited.remove(&from.member);
            self.check_awaited();
        }
        if self.slots.has_earlier(from) {
            self.settled.insert(from.member);
        }
        true
    }

    /// Numbers under which copies are to be dropped: of earlier starts of members of which the latest has announced what it
    /// holds, and of who left before it was met.
    pub fn take_stale(&mut self) -> Vec<Slot> {
        let settled = std::mem::take(&mut self.settled);
        let latest = settled.into_iter().filter_map(|member| {
            let slot = self.slots.of_member(member)?;
            self.slots.peer(slot)
        });
        let latest: Vec<PeerId> = latest.collect();
        let mut stale = self.slots.forget_strangers();
        stale.extend(latest.into_iter().flat_map(|peer| self.slots.forget_earlier(peer)));
        stale
    }

    /// `member` was lost at `now`. Who is lost again before it has heard of all that happened while it was away was last in touch
    /// before that.
    pub fn note_contact(&mut self, member: MemberId, now: Duration) {
        if !self.disbelieved.contains(&member) {
            let first = *self.away.entry(member).or_insert(now);
            self.contacts.insert(member, first);
        }
    }

    /// When `member` had last heard of all that was removed; it says `claimed`. Who was lost here may not have noticed that:
    /// until it has told what it holds, no later time is believed than that at which it was lost.
    pub(super) fn contact(&self, member: MemberId, claimed: Option<Duration>) -> Option<Duration> {
        let known = self.contacts.get(&member).copied();
        if self.disbelieved.contains(&member) {
            return known;
        }
        let latest = claimed.max(known);
        self.away.get(&member).map_or(latest, |&lost_at| latest.min(Some(lost_at)))
    }

    /// `member` is not expected any more. Where it was away for too long it stays disbelieved: if it comes and is lost at once, that
    /// moment is no contact.
    pub fn forget_member(&mut self, member: MemberId) {
        self.contacts.remove(&member);
        self.away.remove(&member);
        while self.disbelieved.len() > DISBELIEVED_MAX {
            self.disbelieved.pop_first();
        }
        self.announced.remove(&member);
        self.suspects.remove(&member);
        self.behind.remove(&member);
        self.slots.forget_for_ever(member);
        self.give_up_on(member);
    }

    /// Members that this one has not met (`is_met`), and of which other owners said that they had lost them, are not expected any
    /// more when that is so long ago (`is_over`).
    pub fn forget_unmet(&mut self, is_met: impl Fn(MemberId) -> bool, is_over: impl Fn(Duration) -> bool) {
        let is_old = |&(member, lost_at): &(&MemberId, &Duration)| {
            is_over(*lost_at) && self.disbelieved.contains(member) && !is_met(*member)
        };
        let unmet: Vec<MemberId> = self.contacts.iter().filter(is_old).map(|(&member, _)| member).collect();
        unmet.into_iter().for_each(|member| self.forget_member(member));
    }

    /// When `member` was in touch for the last time, as far as it is believed.
    #[cfg(test)]
    pub(crate) fn contact_of(&self, member: MemberId) -> Option<Duration> {
        self.contacts.get(&member).copied()
    }

    /// Facts and numbers of members other than this one that are kept, but for who is disbelieved.
    #[cfg(test)]
    pub(crate) fn kept_of_others(&self) -> usize {
        let is_other = |member: &&MemberId| **member != self.me;
        let times = self.contacts.keys().chain(self.away.keys()).chain(self.announced.keys());
        let sets = self.suspects.iter().chain(&self.awaited).chain(&self.settled).chain(self.behind.keys());
        let starts = self.seen.keys().map(|peer| &peer.member);
        times.chain(sets).chain(starts).filter(is_other).count() + self.slots.kept_of_others(self.me)
    }

    /// `member` was told all that changed while it was lost.
    pub fn note_back(&mut self, member: MemberId) {
        self.away.remove(&member);
        self.disbelieved.remove(&member);
    }

    /// Who is away, and for how long.
    #[must_use]
    pub fn away_ms(&self, now: Duration) -> Vec<(MemberId, u64)> {
        let age = |lost: Duration| u64::try_from(now.saturating_sub(lost).as_millis()).unwrap_or(u64::MAX);
        self.away.iter().map(|(&member, &lost)| (member, age(lost))).collect()
    }

    fn check_awaited(&mut self) {
        if self.awaited.is_empty() {
            self.incomplete.clear();
        }
    }

    /// `member` is not waited for any more.
    pub fn give_up_on(&mut self, member: MemberId) {
        if self.awaited.remove(&member) {
            self.check_awaited();
        }
    }

    /// Forgets what stands in `shard` when only others serve it now.
    pub fn forget_unserved(&mut self, shard: Shard) {
        if !self.map.is_served_by(shard, self.me) {
            self.table.forget_shard(shard);
            self.incomplete.remove(&shard);
            self.left.end(shard);
        }
    }

    /// Forgets removals, and who watches what, in all shards that only others serve now. It costs a look at all of them.
    pub fn forget_unserved_names(&mut self) {
        let (map, me) = (&self.map, self.me);
        let is_kept = |key: KeyId| map.is_served_by(key.shard(), me);
        self.table.tombstones_mut().retain(is_kept);
        self.table.ends_mut().retain(is_kept);
        self.watches.retain(is_kept);
    }

    /// Whether `member` is held for lost.
    pub fn set_suspect(&mut self, member: MemberId, is_suspect: bool) {
        if is_suspect {
            self.suspects.insert(member);
        } else {
            self.suspects.remove(&member);
        }
    }

    /// That backup may have decided without this member. Returns the number of this time.
    pub fn fall_behind(&mut self, backup: MemberId) -> u64 {
        self.falls += 1;
        self.left.forget_all();
        self.behind.insert(backup, self.falls);
        self.falls
    }

    /// All is learned that the backup had decided by that time; not what it may have decided since it was noticed again.
    pub fn catch_up(&mut self, backup: MemberId, fall: u64) {
        if self.behind.get(&backup) == Some(&fall) {
            self.behind.remove(&backup);
        }
    }

    /// Who serves what, as this catalog goes by.
    #[must_use]
    pub fn map(&self) -> &Arc<ShardMap> {
        &self.map
    }

    /// Whether it may not know everything of that shard.
    #[must_use]
    pub fn is_incomplete(&self, shard: Shard) -> bool {
        self.incomplete.contains_key(&shard)
    }
}
