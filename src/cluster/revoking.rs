//! Telling members that what they were answered, or hold, is not true any more; and being told.
//!
//! Invariants
//! - From the moment at which a revocation arrives no answer is remembered that was asked for before.
//! - It is answered when nobody here finds any of it. What is published here and comes after it stays.
//! - Who cannot be told at once is owed it, and told later ([`super::watching`]).
//!
//! Threads: tasks of the runtime.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidefs_engine::engine::Answer;
use tidefs_engine::types::{MemberId, PeerId};
use tokio::sync::oneshot;

use super::batcher::{Haste, Item};
use super::catalog::wire::{Change, Done, ITEMS_MAX, MESSAGE_BYTES, Message, REVOKE, Revocation, Revoke};
use super::core::Core;
use super::object::Holder;
use super::peers::{Peer, Queues};
use super::shards::{KeyId, Shard};

/// So many views are not made while a member does not hear of them: views are numbered by what etcd changed since it was made.
const VIEWS_AHEAD_MAX: u64 = 1 << 40;

impl Core {
    /// Tells a member, or this one. The channel gets a message when nobody there finds it any more, and ends without when
    /// the member is lost and is owed it. `None` when it is lost already.
    pub(super) fn tell(
        self: &Arc<Self>,
        member: MemberId,
        revocation: Revocation,
    ) -> Option<oneshot::Receiver<()>> {
        self.counters.revocations.increment();
        if member == self.me.member {
            let (done, receiver) = oneshot::channel();
            let core = Arc::clone(self);
            self.spawn(async move {
                core.revoke_here(core.me, vec![revocation]).await;
                let _ = done.send(());
            });
            return Some(receiver);
        }
        let (told, is_owed) =
            self.tell_or_owe(member, revocation, Haste::Now, |peer| (&peer.revocations, &mut peer.owed));
        self.counters.owed.add(u64::from(is_owed));
        told
    }

    /// As [`Self::tell`], of several in one go: this member does them one after the other, as others do those of a message. All
    /// channels have ended, or got a message, when nobody there finds any of it, or the member is lost and is owed it.
    pub(super) fn tell_several(
        self: &Arc<Self>,
        member: MemberId,
        revocations: Vec<Revocation>,
    ) -> Vec<oneshot::Receiver<()>> {
        self.counters.revocations.add(revocations.len() as u64);
        if member == self.me.member {
            let (end, receiver) = oneshot::channel::<()>();
            let core = Arc::clone(self);
            self.spawn(async move {
                core.revoke_here(core.me, revocations).await;
                drop(end);
            });
            return vec![receiver];
        }
        let patience = self.first_patience();
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&member) else { return Vec::new() };
        let is_suspect = peer.is_suspect(self.now(), patience);
        let (queued, rest) =
            if is_suspect { (None, revocations) } else { peer.revocations.push_all(revocations, Haste::Now) };
        let mut ends = Vec::from_iter(queued);
        if rest.is_empty() {
            return ends;
        }
        self.counters.owed.add(rest.len() as u64);
        let overflows = if is_suspect { 0 } else { rest.len() };
        self.counters.queue_overflows.add(overflows as u64);
        peer.owed.add_all(rest, self.config.limits.queued);
        if !is_suspect {
            ends.push(peer.owed.wait());
            drop(peers);
            self.spawn(Arc::clone(self).settle_up(member));
        }
        ends
    }

    /// Tells another member something of one kind (`queues`: those of it). What cannot be told at once it is owed: whether that
    /// is so is returned, too. The channel is as that of [`Self::tell`].
    pub(super) fn tell_or_owe<T: Item + Clone>(
        self: &Arc<Self>,
        member: MemberId,
        item: T,
        haste: Haste,
        queues: fn(&mut Peer) -> Queues<'_, T>,
    ) -> (Option<oneshot::Receiver<()>>, bool) {
        let patience = self.first_patience();
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&member) else { return (None, false) };
        let is_suspect = peer.is_suspect(self.now(), patience);
        let (queue, owed) = queues(peer);
        if !is_suspect {
            if let Some(receiver) = queue.push(item.clone(), haste) {
                return (Some(receiver), false);
            }
            self.counters.queue_overflows.increment();
        }
        owed.add(item, self.config.limits.queued);
        let told = (!is_suspect).then(|| owed.wait());
        drop(peers);
        if told.is_some() {
            self.spawn(Arc::clone(self).settle_up(member));
        }
        (told, true)
    }

    /// Sends revocations to a member, which is owed them when it does not answer.
    pub(super) async fn send_revocations(
        self: Arc<Self>,
        member: MemberId,
        items: Vec<Revocation>,
    ) -> Option<Vec<()>> {
        let count = items.len() as u64;
        let told = self.send_owed(member, items).await;
        if told.is_none() {
            self.counters.owed.add(count);
        }
        told
    }

    /// The same of those that a member is owed already.
    pub(super) async fn send_owed(
        self: &Arc<Self>,
        member: MemberId,
        items: Vec<Revocation>,
    ) -> Option<Vec<()>> {
        let count = items.len();
        let body = Revoke { items: items.clone() }.encode();
        let result = self.call(member, REVOKE, body, self.in_background()).await;
        if result.is_ok_and(|body| Done::decode(&body).is_ok()) {
            return Some(vec![(); count]);
        }
        if let Some(peer) = self.peers.lock().get_mut(&member) {
            peer.owed.add_all(items, self.config.limits.queued);
        }
        None
    }

    pub(super) fn answer_revoke(self: &Arc<Self>, from: PeerId, revoke: Revoke) -> Answer {
        let core = Arc::clone(self);
        // The moments pass at once, so that no answer that came before is remembered from here on.
        self.note_moments(&revoke.items);
        Answer::Later(Box::pin(async move {
            core.revoke_here(from, revoke.items).await;
            Ok(Done {}.encode())
        }))
    }

    fn note_moments(&self, items: &[Revocation]) {
        for item in items {
            match item {
                Revocation::Forget { shards, view } => {
                    self.note_claim(shards, *view);
                    numbered(shards).for_each(|shard| self.note_revocation(shard));
                }
                _ => {
                    if let Some(path) = item.path() {
                        self.note_revocation(KeyId::of(path).shard());
                    }
                }
            }
        }
    }

    /// Somebody answers for `shards` in that view, which counts here from now on, also when it has not come yet.
    fn note_claim(&self, shards: &[u16], view: u64) {
        let seen = self.seen().view.number;
        if view.saturating_sub(seen) > VIEWS_AHEAD_MAX {
            self.counters.views_refused.increment();
            tracing::warn!(
                view,
                seen,
                "a member speaks of a view that there cannot be; it is not waited for"
            );
        } else if self.needed_view.fetch_max(view, Ordering::AcqRel) < view {
            self.note_move();
        }
        if view > seen && view - seen <= VIEWS_AHEAD_MAX {
            self.owner.lock().note_claim(numbered(shards), view);
        }
    }

    /// Copies of this member that were to leave first are the ones to rely on now.
    fn inherit(self: &Arc<Self>, from: MemberId, holder: &dyn Holder, keys: &[u128]) {
        let keys: Vec<KeyId> = keys.iter().copied().map(KeyId).collect();
        let inherited = holder.inherit(&keys);
        self.counters.inherited.add(inherited.len() as u64);
        let known: HashSet<KeyId> = inherited.iter().map(|(path, ..)| KeyId::of(path)).collect();
        let doubtful = keys.into_iter().filter(|key| !known.contains(key)).map(KeyId::shard);
        self.plan.add_doubtful(from, doubtful, self.now());
        for (path, stamp, medium) in inherited {
            self.note(Change::Hold { path, stamp, medium }, Haste::Soon);
        }
    }

    /// Does what `from` revokes. When it resolves nobody here finds any of it.
    pub(super) async fn revoke_here(self: &Arc<Self>, from: PeerId, items: Vec<Revocation>) {
        self.note_moments(&items);
        let Some(holder) = self.holder.upgrade() else { return };
        let mut appeared = Vec::new();
        let mut withdrawn: BTreeMap<Vec<u8>, super::object::Stamp> = BTreeMap::new();
        for item in items {
            match item {
                Revocation::Appeared { path } => appeared.push(path),
                Revocation::Withdraw { path, through, seen } => {
                    let (is_later, is_under_way) = {
                        let publishing = self.publishing.lock();
                        (publishing.is_later(&path, seen), publishing.is_under_way(&path))
                    };
                    if is_under_way {
                        // Until it is answered its name may still stand, to the kernel, for what it replaces.
                        appeared.push(path.clone());
                    }
                    // What is published here right now and comes after that stays.
                    if !is_later {
                        let known = withdrawn.entry(path).or_default();
                        *known = through.max(*known);
                    }
                }
                Revocation::Forget { shards, .. } => {
                    holder.forget_answers(&numbered(&shards).collect::<Vec<_>>());
                }
                Revocation::AnnounceAgain => self.plan_all_of(from.member),
                Revocation::Inherit { keys } => self.inherit(from.member, &*holder, &keys),
            }
        }
        if !appeared.is_empty() {
            holder.appeared(&appeared);
        }
        self.counters.withdrawals.add(withdrawn.len() as u64);
        let all: Vec<_> =
            withdrawn.into_iter().map(|(path, through)| holder.withdraw(path, through)).collect();
        for future in all {
            future.await;
        }
    }
}

/// `items` as they travel: a message is no longer than one that the batcher makes.
pub(super) fn messages_of(items: Vec<Revocation>) -> Vec<Vec<Revocation>> {
    let mut messages: Vec<Vec<Revocation>> = Vec::new();
    let mut bytes = 0;
    for item in items {
        bytes += item.weight();
        match messages.last_mut().filter(|message| message.len() < ITEMS_MAX && bytes <= MESSAGE_BYTES) {
            Some(message) => message.push(item),
            None => {
                bytes = item.weight();
                messages.push(vec![item]);
            }
        }
    }
    messages
}

fn numbered(shards: &[u16]) -> impl Iterator<Item = Shard> {
    shards.iter().filter_map(|&number| Shard::with_number(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::catalog::wire::PATH_MAX;

    #[test]
    fn what_is_owed_fits_the_frames_in_which_it_is_told() {
        let long = |number: usize| Revocation::Appeared { path: format!("{number:04096}").into_bytes() };
        let short = |number: usize| Revocation::Appeared { path: number.to_string().into_bytes() };
        let inherit = Revocation::Inherit { keys: vec![7; 1 << 10] };
        let items: Vec<Revocation> =
            (0..2000).map(long).chain((0..20_000).map(short)).chain([inherit]).collect();
        let messages = messages_of(items.clone());
        assert_eq!(messages.concat(), items);
        for items in messages {
            let bytes = Revoke { items }.encode().len();
            assert!(bytes <= MESSAGE_BYTES + (PATH_MAX << 1), "{bytes}");
        }
        assert!(messages_of(Vec::new()).is_empty());
    }
}
