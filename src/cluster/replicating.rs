//! Keeping the two owners of a shard alike, and handing shards over.
//!
//! Invariants
//! - What the other owner cannot be told it is owed; where that is too much, all of the shards that both serve.
//! - A shard is said to be handed over whole only by who knows all of it, and is tried again until the member has it, serves it no
//!   more, or is gone.
//!
//! Limits: [`KEYS`] keys in one message, read under one hold of the lock.
//! Threads: tasks of the runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidefs_engine::engine::Answer;
use tidefs_engine::types::{MemberId, PeerId};
use tokio::sync::oneshot;

use super::batcher::Haste;
use super::catalog::wire::{CATCH_UP, Done, Known, Message, REPLICATE, Replicate};
use super::core::Core;
use super::deciding::Wait;
use super::object::Stamp;
use super::peers::Dirty;
use super::recalling::Removal;
use super::shards::{KeyId, Shard};

/// Keys in one message: each is looked at, sent and learned while nobody else is served.
const KEYS: usize = 256;
/// Shards that are handed over together.
const SHARDS_AT_ONCE: usize = 16;
/// Pause before a member that did not take what was handed over is told again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

impl Core {
    /// Has the other owner of a key know its new state. As [`Core::tell`].
    pub(super) fn replicate(
        self: &Arc<Self>,
        other: MemberId,
        dirty: Dirty,
        haste: Haste,
    ) -> Option<oneshot::Receiver<()>> {
        self.tell_or_owe(other, dirty, haste, |peer| (&peer.dirty, &mut peer.debts)).0
    }

    fn word(&self, keys: &[(KeyId, Stamp)], is_decided: bool) -> Replicate {
        let now = self.now();
        let mut known = Vec::with_capacity(keys.len());
        let (mut view, mut horizon_age_ms, mut away_ms) = (self.seen().view.number, None, Vec::new());
        for keys in keys.chunks(KEYS) {
            let owner = self.owner.lock();
            // It may know members already that are not seen yet.
            view = owner.map().view;
            known.extend(keys.iter().map(|&(key, gone)| {
                let is_certain = is_decided || owner.knows_all_of(key.shard());
                (key.0, owner.known(key, if is_certain { gone } else { Stamp(0) }, now))
            }));
            horizon_age_ms = owner.horizon_age_ms(now);
            away_ms = owner.away_ms(now);
        }
        Replicate { view, is_decided, keys: known, complete: Vec::new(), horizon_age_ms, away_ms }
    }

    async fn send_word(self: &Arc<Self>, member: MemberId, word: &Replicate) -> bool {
        let result = self.call(member, REPLICATE, word.encode(), self.in_background()).await;
        result.is_ok_and(|body| Done::decode(&body).is_ok())
    }

    /// Sends what changed to the other owner, to which it is a debt when that does not answer.
    pub(super) async fn send_dirty(self: Arc<Self>, member: MemberId, items: Vec<Dirty>) -> Option<Vec<()>> {
        let keys: BTreeMap<KeyId, Stamp> = items.iter().map(|dirty| (dirty.key, dirty.gone)).collect();
        let word = self.word(&Vec::from_iter(keys), true);
        if self.send_word(member, &word).await {
            return Some(vec![(); items.len()]);
        }
        if let Some(peer) = self.peers.lock().get_mut(&member) {
            peer.debts.add_all(items, self.config.limits.queued);
        }
        None
    }

    pub(super) fn answer_replicate(self: &Arc<Self>, from: PeerId, word: &Replicate) -> Answer {
        let now = self.now();
        let (mut waits, mut ended, mut is_stranger) = (Vec::new(), Vec::new(), false);
        for keys in word.keys.chunks(KEYS) {
            let learned = self.owner.lock().learn(from.member, word, keys, now);
            is_stranger |= learned.is_stranger;
            let told =
                learned.tell.into_iter().filter_map(|(member, revocation)| self.tell(member, revocation));
            waits.extend(told.map(Wait::Told));
            ended.extend(learned.ended);
            if !learned.ours_later.is_empty()
                && let Some(peer) = self.peers.lock().get_mut(&from.member)
            {
                let later = learned.ours_later.into_iter().map(|key| Dirty { key, gone: Stamp(0) });
                peer.debts.add_all(later, self.config.limits.queued);
            }
        }
        self.tell_ended(from.member, ended);
        is_stranger |= !self.owner.lock().learn_rest(from.member, word, now);
        let deadline = self.within(self.config.timings.background / 2);
        let view = self.seen().view.number;
        Answer::Later(Box::pin(async move {
            Self::settle(waits, deadline).await;
            // One of the two does not know the latest view, or has just heard of it: it is told again, by then to whom it
            // concerns.
            if is_stranger {
                return Err(format!(
                    "this member does not serve all of these keys in view {view}, or is to hear them again"
                ));
            }
            Ok(Done {}.encode())
        }))
    }

    /// Has another owner know of copies of this member which it names, and which are gone: this one was told by itself that it let
    /// go of them, and had nothing to pass on. Who does not hear of it names them until somebody asks for them.
    fn tell_ended(self: &Arc<Self>, other: MemberId, keys: Vec<(u128, Known)>) {
        if keys.is_empty() {
            return;
        }
        let away_ms = self.owner.lock().away_ms(self.now());
        let word = Replicate { keys, away_ms, ..self.word(&[], false) };
        let core = Arc::clone(self);
        self.spawn(async move {
            core.send_word(other, &word).await;
        });
    }

    /// Shards that this member and `other` serve together.
    fn shared_with(&self, other: MemberId) -> Vec<Shard> {
        let map = Arc::clone(&self.seen().map);
        let are_both = |shard: &Shard| {
            map.owners(*shard).is_some_and(|owners| {
                [Some(owners.primary), owners.backup] == [Some(self.me.member), Some(other)]
                    || [Some(owners.primary), owners.backup] == [Some(other), Some(self.me.member)]
            })
        };
        Shard::all().filter(are_both).collect()
    }

    /// Tells the other owner what it has missed. Returns whether it knows all of it.
    pub(super) async fn pay_debts(self: &Arc<Self>, member: MemberId) -> bool {
        let paying = self.peers.lock().get(&member).map(|peer| Arc::clone(&peer.paying));
        let Some(paying) = paying else { return false };
        // Never closed.
        let Ok(_turn) = paying.acquire().await else { return false };
        loop {
            let debts = match self.peers.lock().get_mut(&member) {
                Some(peer) if !peer.debts.is_empty() => peer.debts.take(),
                Some(_) => return true,
                None => return false,
            };
            // Others serve some of it by now, and learn it from whoever served it.
            let map = Arc::clone(&self.seen().map);
            let is_served = |dirty: &&Dirty| map.is_served_by(dirty.key.shard(), member);
            let owed = debts.items.iter().filter(is_served);
            let mut keys: Vec<(KeyId, Stamp)> = owed.map(|dirty| (dirty.key, dirty.gone)).collect();
            if debts.is_all {
                let shared = self.shared_with(member);
                keys.extend(self.keys_of(&shared, &self.removed_keys_of(&shared)));
            }
            if !self.push_keys(member, &keys).await {
                if let Some(peer) = self.peers.lock().get_mut(&member) {
                    peer.debts.is_all |= debts.is_all;
                    peer.debts.add_all(debts.items, self.config.limits.queued);
                }
                return false;
            }
            debts.settle();
        }
    }

    fn removed_keys_of(&self, shards: &[Shard]) -> Vec<KeyId> {
        let wanted: BTreeSet<Shard> = shards.iter().copied().collect();
        self.owner.lock().removed_keys(|shard| wanted.contains(&shard))
    }

    /// Keys of `shards` that stand for something, or are among those that were `removed`, which are in order.
    fn keys_of(&self, shards: &[Shard], removed: &[KeyId]) -> Vec<(KeyId, Stamp)> {
        let mut keys: Vec<KeyId> = Vec::new();
        for &shard in shards {
            keys.extend(self.owner.lock().keys(shard));
            // Keys are ordered by their shards first.
            let first = removed.partition_point(|key| key.shard() < shard);
            keys.extend(removed[first..].iter().take_while(|key| key.shard() == shard));
        }
        keys.into_iter().map(|key| (key, Stamp(0))).collect()
    }

    async fn push_keys(self: &Arc<Self>, member: MemberId, keys: &[(KeyId, Stamp)]) -> bool {
        for part in keys.chunks(KEYS) {
            let word = self.word(part, false);
            if !self.send_word(member, &word).await {
                return false;
            }
        }
        true
    }

    /// Has a member know of removals, whoever decided them. Returns whether it does.
    pub(super) async fn push_removals(self: &Arc<Self>, member: MemberId, removals: &[Removal]) -> bool {
        let now = self.now();
        for part in removals.chunks(KEYS) {
            let known = |&(key, stamp, at): &Removal| {
                let age = now.saturating_sub(at).as_millis();
                (key.0, Known::Removed { stamp, age_ms: u64::try_from(age).unwrap_or(u64::MAX) })
            };
            let word = Replicate { keys: part.iter().map(known).collect(), ..self.word(&[], false) };
            if !self.send_word(member, &word).await {
                return false;
            }
        }
        true
    }

    pub(super) fn answer_catch_up(self: &Arc<Self>, from: PeerId) -> Answer {
        let core = Arc::clone(self);
        Answer::Later(Box::pin(async move {
            if core.pay_debts(from.member).await {
                Ok(Done {}.encode())
            } else {
                Err("not all of it was told".to_owned())
            }
        }))
    }

    /// Learns what a backup decided meanwhile, and answers for their shards again. While it is lost there is nobody who
    /// could have decided anything that counts: it will tell when it is back. `fall`: of
    /// [`super::catalog::owner::Owner::fall_behind`]; what was asked for before a later one does not tell what was decided
    /// since.
    pub(super) async fn catch_up(self: Arc<Self>, backup: MemberId, fall: u64) {
        loop {
            let deadline = self.in_background();
            let result = self.call(backup, CATCH_UP, Done {}.encode(), deadline).await;
            if result.is_ok_and(|body| Done::decode(&body).is_ok()) || self.is_suspect(backup) {
                break;
            }
            tokio::time::sleep(self.config.timings.tick).await;
        }
        self.owner.lock().catch_up(backup, fall);
    }

    /// Hands what is known of `shards` over to a member that serves them from now on.
    pub(super) async fn hand_over(self: Arc<Self>, member: MemberId, shards: Vec<Shard>) {
        let start = self.peer_id(member);
        let removed = self.removed_keys_of(&shards);
        for part in shards.chunks(SHARDS_AT_ONCE) {
            let mut part = part.to_vec();
            // Who was passed over wants all of it once more.
            let mut pause = Duration::ZERO;
            // Until it knows, or is gone: another start of it learns from whoever serves the shards then.
            while start.is_some() && self.peer_id(member) == start && self.is_registered(member) {
                let map = Arc::clone(&self.seen().map);
                // By a later view others may serve some of it.
                part.retain(|&shard| map.is_served_by(shard, member));
                let complete: Vec<u16> = {
                    let owner = self.owner.lock();
                    let whole = part.iter().filter(|&&shard| !owner.is_incomplete(shard));
                    whole.map(|shard| shard.number()).collect()
                };
                let is_told = self.push_keys(member, &self.keys_of(&part, &removed)).await && {
                    let last = Replicate { complete, ..self.word(&[], false) };
                    self.send_word(member, &last).await
                };
                if is_told {
                    break;
                }
                // It may hear of the view a moment later.
                tokio::time::sleep(pause).await;
                pause = (pause * 2).max(FIRST_PAUSE).min(self.config.timings.tick);
            }
        }
    }
}
