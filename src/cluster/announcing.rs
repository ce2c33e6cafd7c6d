//! Telling who serves a shard now what this member holds of it, at a bounded rate.
//!
//! Invariants
//! - A member is told that all was announced to it only when that is so, in the view that counts, and not while everything is planned
//!   again. What it was not told of is planned again.
//! - What is refused, as it was removed or replaced meanwhile, is withdrawn here, unless something is being published in its place.
//! - A copy that went while it was announced is said to be gone after that.
//!
//! Limits: [`PAGE`] things are under way at once, and no more in a second than the settings allow.
//! Threads: one task of the runtime for all of it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidefs_engine::types::MemberId;
use tokio::sync::Notify;

use super::batcher::Haste;
use super::catalog::wire::{Change, Outcome};
use super::copying::Wish;
use super::core::{Core, Seen};
use super::object::{Copy, Facts, FileFacts, Holder, Holding, Medium, Stamp};
use super::peers::Peer;
use super::shards::{KeyId, Owners, Shard};

/// Things that are announced together.
const PAGE: usize = 512;
/// A shard of which somebody knows something else than what is here is announced to it no more often than that.
const DOUBTED_EVERY: Duration = Duration::from_secs(10);

/// What is still to be announced, and to whom.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Held for a look-up.
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    shards: BTreeMap<MemberId, BTreeSet<Shard>>,
    /// To whom everything is to be announced again, which has not begun.
    anew: BTreeSet<MemberId>,
    /// The view in which a member was told last that all was announced to it.
    told: BTreeMap<MemberId, u64>,
    /// Whether everything was announced once since this member was started.
    was_done: bool,
    /// Something was sealed that who serves it now may not have heard of: an announcement tells of it, and copies of it may be wanting.
    is_unpublished: bool,
    /// When shards were planned last since a member knew something else than what is here.
    doubted: BTreeMap<(MemberId, Shard), Duration>,
}

/// What is to be announced now.
#[derive(Debug)]
struct Due {
    view: u64,
    members: Vec<MemberId>,
    wanted: BTreeMap<MemberId, BTreeSet<Shard>>,
    /// Who was not told in this view that all was announced to it.
    untold: Vec<MemberId>,
}

impl Plan {
    pub(super) fn add(&self, member: MemberId, shard: Shard) {
        self.state.lock().shards.entry(member).or_default().insert(shard);
    }

    pub(super) fn add_owners(&self, owners: Owners, shard: Shard) {
        self.add(owners.primary, shard);
        if let Some(backup) = owners.backup {
            self.add(backup, shard);
        }
    }

    /// Plans what a new view moves, and has that view count by `begin`: who looks at what is due sees both, or neither.
    pub(super) fn add_all(&self, moved: &BTreeMap<MemberId, Vec<Shard>>, begin: impl FnOnce()) {
        let mut state = self.state.lock();
        for (&member, shards) in moved {
            state.shards.entry(member).or_default().extend(shards);
        }
        begin();
    }

    /// Takes what is to be announced in the view that counts, `seen`. What was planned for who is not in it is dropped.
    fn take_due(
        &self,
        seen: impl FnOnce() -> Arc<Seen>,
        is_asked: impl Fn(MemberId) -> bool,
        is_suspect: impl Fn(MemberId) -> bool,
    ) -> Due {
        let mut state = self.state.lock();
        let state = &mut *state;
        let seen = seen();
        let view = seen.view.number;
        let all = seen.view.members().iter().map(|member| member.id);
        let members: Vec<MemberId> = all.filter(|&member| is_asked(member)).collect();
        state.shards.retain(|member, shards| members.contains(member) && !shards.is_empty());
        // Who is in it again by a later one is told again anyway.
        state.told.retain(|member, _| members.contains(member));
        let wanted: BTreeMap<MemberId, BTreeSet<Shard>> =
            state.shards.extract_if(.., |&member, _| !is_suspect(member)).collect();
        state.anew.retain(|member| state.shards.contains_key(member));
        let is_untold =
            |member: &MemberId| state.told.get(member).copied().unwrap_or(0) < view && !is_suspect(*member);
        let untold = members.iter().copied().filter(is_untold).collect();
        Due { view, members, wanted, untold }
    }

    /// Something in `shard` was not told to who serves it now, as a publish failed or they came since: it is announced, and its copies
    /// are looked for then.
    pub(super) fn add_unpublished(&self, owners: Owners, shard: Shard) {
        self.add_owners(owners, shard);
        self.state.lock().is_unpublished = true;
    }

    /// `member` speaks of copies that leave first, of which there are none here. They count already, which it did not hear of
    /// in order, or they are gone.
    pub(super) fn add_doubtful(&self, member: MemberId, shards: impl Iterator<Item = Shard>, now: Duration) {
        let mut state = self.state.lock();
        state.doubted.retain(|_, last| now.saturating_sub(*last) < DOUBTED_EVERY);
        for shard in shards {
            if let Entry::Vacant(entry) = state.doubted.entry((member, shard)) {
                entry.insert(now);
                state.shards.entry(member).or_default().insert(shard);
            }
        }
    }

    /// Everything in `shards` is to be announced to `member`, whatever it was told before.
    fn add_anew(&self, member: MemberId, shards: impl Iterator<Item = Shard>) {
        let mut state = self.state.lock();
        state.told.remove(&member);
        state.anew.insert(member);
        state.shards.entry(member).or_default().extend(shards);
    }

    fn is_anew(&self, member: MemberId) -> bool {
        self.state.lock().anew.contains(&member)
    }

    /// `member` was told in that view that all was announced to it. Returns whether that counts: not when everything was planned
    /// again meanwhile.
    fn note_told(&self, member: MemberId, view: u64) -> bool {
        let mut state = self.state.lock();
        let counts = !state.anew.contains(&member);
        if counts {
            state.told.insert(member, view);
        }
        counts
    }

    /// Has it looked at at once.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Whether everything was announced once, to all, since this member was started.
    pub(super) fn was_done(&self) -> bool {
        self.state.lock().was_done
    }

    /// Members of which it is known when they were told last.
    #[cfg(test)]
    pub(super) fn told(&self) -> usize {
        self.state.lock().told.len()
    }

    /// Shards that wait to be announced.
    pub(super) fn len(&self) -> usize {
        self.state.lock().shards.values().map(BTreeSet::len).sum()
    }
}

impl Core {
    /// Everything that `member` serves is to be announced to it again.
    pub(super) fn plan_all_of(&self, member: MemberId) {
        let seen = self.seen();
        self.plan.add_anew(member, seen.map.served_by(member));
        self.plan.wake();
    }

    /// Everything is to be announced to all again.
    pub(super) fn plan_everything(&self) {
        let members: Vec<MemberId> = self.seen().view.members().iter().map(|member| member.id).collect();
        members.into_iter().for_each(|member| self.plan_all_of(member));
    }

    /// Announces what is to be announced, for ever.
    pub(super) async fn announce_for_ever(self: Arc<Self>) {
        loop {
            let tick = self.config.timings.tick;
            let _ = tokio::time::timeout(tick, self.plan.wake.notified()).await;
            if self.seen().is_alone || self.has_left() {
                continue;
            }
            // What this member served others serve while it is out.
            let is_asked = |member: MemberId| member != self.me.member || !self.is_out();
            let due = self.plan.take_due(|| self.seen(), is_asked, |member| self.is_suspect(member));
            let Due { view, members, wanted, untold } = due;
            if wanted.is_empty() && untold.is_empty() {
                continue;
            }
            self.peers.lock().values_mut().for_each(Peer::begin_to_announce);
            let failed = self.announce(&wanted).await;
            // Who serves a shard no more refuses it for ever. Who is to serve it from a view on that does not count yet was
            // planned with that view.
            let now = self.seen();
            let failed: BTreeMap<MemberId, BTreeSet<Shard>> = failed
                .into_iter()
                .map(|(member, mut shards)| {
                    shards.retain(|&shard| now.map.is_served_by(shard, member));
                    (member, shards)
                })
                .filter(|(_, shards)| !shards.is_empty())
                .collect();
            if now.view.number != view {
                // Others serve some of it now: what was not told is planned again, and nobody is told that it is done.
                let mut state = self.plan.state.lock();
                for (member, shards) in failed {
                    state.shards.entry(member).or_default().extend(shards);
                }
                continue;
            }
            self.finish(&members, &untold, &wanted, failed, view).await;
        }
    }

    /// Tells members that all was announced to them.
    async fn finish(
        self: &Arc<Self>,
        members: &[MemberId],
        untold: &[MemberId],
        wanted: &BTreeMap<MemberId, BTreeSet<Shard>>,
        failed: BTreeMap<MemberId, BTreeSet<Shard>>,
        view: u64,
    ) {
        for &member in members {
            let is_due = untold.contains(&member) || wanted.contains_key(&member);
            // Who asks for everything once more is told when that was announced.
            if failed.contains_key(&member) || !is_due || self.plan.is_anew(member) {
                continue;
            }
            let told = self.change_at(member, Change::Announced { view }, self.in_background()).await;
            if matches!(told, Ok(Outcome::Done { .. }))
                && self.plan.note_told(member, view)
                && let Some(peer) = self.peers.lock().get_mut(&member)
            {
                peer.was_announced();
            }
        }
        let mut state = self.plan.state.lock();
        let is_first = failed.is_empty() && !state.was_done;
        state.was_done |= is_first;
        for (member, shards) in failed {
            state.shards.entry(member).or_default().extend(shards);
        }
        if state.shards.is_empty() && std::mem::take(&mut state.is_unpublished) {
            self.copying.walk();
        }
        drop(state);
        let refused = self.counters.refused.get();
        if is_first && refused > 0 {
            tracing::warn!(
                refused,
                minutes = self.config.timings.tombstones.as_secs() / 60,
                "some of what this member kept was dropped: it was removed or replaced meanwhile, or no other holds it and this \
                 member was away for longer than it is remembered what was removed"
            );
        }
    }

    /// Announces all that is held of these shards. Returns what was not told.
    async fn announce(
        self: &Arc<Self>,
        wanted: &BTreeMap<MemberId, BTreeSet<Shard>>,
    ) -> BTreeMap<MemberId, BTreeSet<Shard>> {
        let mut failed: BTreeMap<MemberId, BTreeSet<Shard>> = BTreeMap::new();
        let Some(holder) = self.holder.upgrade().filter(|_| !wanted.is_empty()) else { return failed };
        let all: BTreeSet<Shard> = wanted.values().flatten().copied().collect();
        let mut after = 0;
        loop {
            let (page, next) = holder.holdings(&|shard| all.contains(&shard), after, PAGE);
            let count = page.len() as u64;
            self.announce_page(&holder, wanted, page, &mut failed).await;
            let Some(next) = next.filter(|&next| next != after) else { return failed };
            after = next;
            let rate = self.config.limits.announced_per_second.max(1);
            tokio::time::sleep(Duration::from_micros(count * 1_000_000 / rate)).await;
        }
    }

    async fn announce_page(
        self: &Arc<Self>,
        holder: &Arc<dyn Holder>,
        wanted: &BTreeMap<MemberId, BTreeSet<Shard>>,
        page: Vec<Holding>,
        failed: &mut BTreeMap<MemberId, BTreeSet<Shard>>,
    ) {
        let deadline = self.in_background();
        let mut under_way = Vec::new();
        for holding in page {
            let shard = KeyId::of(&holding.path).shard();
            if self.publishing.lock().is_later(&holding.path, 0) {
                // Its publish tells more than this would; one that tells nobody is not later than anything.
                continue;
            }
            for (&member, _) in wanted.iter().filter(|(_, shards)| shards.contains(&shard)) {
                let Holding { path, stamp, facts, medium } = holding.clone();
                let contact_age_ms = self.contact_age_ms(member);
                let change = Change::Announce { path: path.clone(), stamp, facts, medium, contact_age_ms };
                let core = Arc::clone(self);
                let told = tokio::spawn(async move { core.change_at(member, change, deadline).await });
                under_way.push((member, path, stamp, matches!(facts, Facts::Directory(_)), told));
            }
        }
        self.counters.announced.add(under_way.len() as u64);
        let mut refused: BTreeMap<Vec<u8>, Stamp> = BTreeMap::new();
        let mut gone = Vec::new();
        for (member, path, stamp, is_directory, told) in under_way {
            match told.await {
                Ok(Ok(Outcome::Refused { .. })) => {
                    // The same of both owners.
                    refused.insert(path, stamp);
                }
                Ok(Ok(Outcome::Done { .. } | Outcome::Late { .. })) => {
                    if is_directory {
                        holder.was_announced(&path);
                    }
                    if self.went_away(&**holder, &path, stamp) {
                        gone.push((member, path, stamp));
                    }
                }
                Ok(Ok(Outcome::Moved) | Err(_)) | Err(_) => {
                    failed.entry(member).or_default().insert(KeyId::of(&path).shard());
                }
            }
        }
        self.tell_gone(holder, gone).await;
        self.counters.refused.add(refused.len() as u64);
        for (path, announced) in refused {
            self.note_revocation(KeyId::of(&path).shard());
            if self.publishing.lock().is_under_way(&path) {
                // That decides what stands there. If it fails, this is looked at once more.
                self.announce_what_is_held(&path);
                continue;
            }
            // What is known there is later than what was announced, but not than what was sealed here since.
            holder.withdraw(path, announced).await;
        }
    }

    /// Whether this member has no copy of that version any more, and is publishing nothing that takes its place.
    fn went_away(&self, holder: &dyn Holder, path: &[u8], stamp: Stamp) -> bool {
        !holder.holds(path, stamp) && !self.publishing.lock().is_under_way(path)
    }

    /// Tells members of copies that went while they were announced: that they went may have been said before, and
    /// to the other owner alone.
    async fn tell_gone(self: &Arc<Self>, holder: &Arc<dyn Holder>, gone: Vec<(MemberId, Vec<u8>, Stamp)>) {
        let deadline = self.in_background();
        let mut under_way = Vec::new();
        for (member, path, stamp) in gone {
            let (core, change) = (Arc::clone(self), Change::LetGo { path: path.clone(), stamp });
            let told = tokio::spawn(async move { core.change_at(member, change, deadline).await });
            under_way.push((path, stamp, told));
        }
        for (path, stamp, told) in under_way {
            let is_told = matches!(told.await, Ok(Ok(Outcome::Done { .. } | Outcome::Late { .. })));
            if holder.holds(&path, stamp) {
                // It came back meanwhile, and may have been said to be here before it was taken back.
                self.announce_what_is_held(&path);
            } else if !is_told {
                self.note_again(&Change::LetGo { path, stamp });
            }
        }
    }

    /// Has others know how many copies there are to be of what is here, where the catalog knows it to be.
    pub(super) fn announce_wish(self: &Arc<Self>, wish: &Wish, facts: FileFacts, copies: &[Copy]) {
        let Some(holder) = self.holder.upgrade() else { return };
        let (path, stamp) = (wish.path.clone(), wish.stamp);
        if !holder.holds(&path, stamp) {
            return;
        }
        let own = copies.iter().find(|copy| copy.member == self.me.member);
        // What leaves first is not wished for more than once: if it was such a copy, it is none now.
        let medium = own.map(|copy| copy.medium).filter(|medium| medium.is_hard()).unwrap_or(Medium::Memory);
        let owners = self.seen().map.owners(KeyId::of(&path).shard());
        let contact_age_ms = owners.map_or(u64::MAX, |owners| self.contact_age_ms(owners.primary));
        let facts = Facts::File(FileFacts { replicas: wish.replicas, ..facts });
        self.note(Change::Announce { path, stamp, facts, medium, contact_age_ms }, Haste::Now);
        if self.went_away(&*holder, &wish.path, stamp) {
            // It may have been let go of in between, and that said first.
            self.note(Change::LetGo { path: wish.path.clone(), stamp }, Haste::Soon);
        }
    }

    /// How long ago this member was last certain to hear of all that `member` decides.
    pub(super) fn contact_age_ms(&self, member: MemberId) -> u64 {
        if !self.plan.was_done() {
            return u64::MAX;
        }
        let since = self.peers.lock().get(&member).and_then(|peer| peer.unheard_since);
        since.map_or(0, |since| {
            u64::try_from(self.now().saturating_sub(since).as_millis()).unwrap_or(u64::MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::cluster::member::View;
    use crate::cluster::member::testing::member;
    use crate::cluster::shards::ShardMap;

    /// That view, of as many members.
    fn seen(number: u64) -> Arc<Seen> {
        let view = View::new(number, (1..=number).map(|id| member(id, 8)).collect());
        let map = Arc::new(ShardMap::new(&view));
        Arc::new(Seen { view, map, is_alone: false })
    }

    #[test]
    fn who_asks_for_everything_while_it_is_told_of_a_part_is_not_told_that_this_was_all() {
        let (plan, other) = (Plan::default(), MemberId(2));
        let take_due = |lost: Option<MemberId>| plan.take_due(|| seen(2), |_| true, |id| Some(id) == lost);
        let is_told = |due: &Due| !due.untold.contains(&other);
        assert!(!plan.is_anew(other) && plan.note_told(other, 2) && is_told(&take_due(None)));
        plan.add(other, Shard::with_number(7).unwrap());
        assert!(take_due(None).wanted.contains_key(&other));
        plan.add_anew(other, Shard::all());
        assert!(plan.is_anew(other) && !plan.note_told(other, 2));
        // Nor while it is lost.
        assert!(take_due(Some(other)).wanted.is_empty() && plan.is_anew(other));
        let due = take_due(None);
        assert!(due.wanted[&other].len() > 1 && !is_told(&due));
        assert!(!plan.is_anew(other) && plan.note_told(other, 2) && is_told(&take_due(None)));
        // Of who serves nothing there is nothing to wait for.
        plan.add_anew(other, std::iter::empty());
        assert!(plan.is_anew(other) && !is_told(&take_due(None)) && !plan.is_anew(other));
    }

    #[test]
    fn what_is_planned_with_a_view_is_not_dropped_by_who_looks_before_that_view_counts() {
        let (plan, counts, is_planned) = (Plan::default(), Mutex::new(seen(1)), Notify::new());
        let shard = Shard::with_number(7).unwrap();
        let due = thread::scope(|scope| {
            scope.spawn(|| {
                plan.add_all(&BTreeMap::from([(MemberId(2), vec![shard])]), || {
                    is_planned.notify_one();
                    thread::sleep(Duration::from_millis(50));
                    *counts.lock() = seen(2);
                });
            });
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(is_planned.notified());
            plan.take_due(|| Arc::clone(&counts.lock()), |_| true, |_| false)
        });
        assert_eq!((due.view, due.untold), (2, vec![MemberId(1), MemberId(2)]));
        assert_eq!(due.wanted, BTreeMap::from([(MemberId(2), BTreeSet::from([shard]))]));
    }
}
