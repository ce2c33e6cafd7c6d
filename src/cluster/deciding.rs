//! Changes that this member decides about: put in order, and answered when everyone who has to know does.
//!
//! Invariants
//! - Who has to hear of changes of a key hears of them in the order in which they were decided: who waits for one waits for
//!   those before it.
//! - All that is waited for ends: a member answers, or is lost, or is owed it.
//!
//! Limits: [`SLICE`] changes are put in order under one hold of the lock. One that is not settled by the deadline of who asks is
//! answered as [`Outcome::Late`]; telling goes on. Names that are watched no more, for lack of room, are told of together where the
//! same members watched them: who changes one of them waits until those have heard of all.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_engine::engine::Answer;
use tidefs_engine::types::{MemberId, PeerId};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout_at;

use super::batcher::Haste;
use super::catalog::wire::{Change, Changes, Message, Outcome, Results, Revocation};
use super::changing::is_note;
use super::core::Core;
use super::peers::Dirty;
use super::shards::KeyId;

/// Changes that are put in order under one hold of the lock.
const SLICE: usize = 128;

/// What a change waits for before it is settled.
#[derive(Debug)]
pub(super) enum Wait {
    /// A member's answer; that the channel ends without one means that the member is owed it.
    Told(oneshot::Receiver<()>),
    /// That others have forgotten what was answered before this member answered.
    Takeover(watch::Receiver<bool>),
    /// That everyone who has to hear of a change, and of those of its key before it, has.
    Settled(watch::Receiver<bool>),
}

impl Wait {
    async fn over(self) {
        match self {
            Self::Told(receiver) => drop(receiver.await),
            Self::Takeover(mut receiver) | Self::Settled(mut receiver) => {
                drop(receiver.wait_for(|is_over| *is_over).await);
            }
        }
    }
}

/// For each key the last change that somebody is still being told of.
#[derive(Debug, Default)]
pub(super) struct Unsettled(HashMap<KeyId, watch::Receiver<bool>>);

impl Unsettled {
    /// How many keys it is.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Says, when it is dropped, that everyone who had to hear of a change of these keys has, or is owed it.
struct Settling {
    core: Arc<Core>,
    keys: Box<[KeyId]>,
    over: watch::Sender<bool>,
}

impl Drop for Settling {
    fn drop(&mut self) {
        self.over.send_replace(true);
        let own = self.over.subscribe();
        let mut unsettled = self.core.unsettled.lock();
        for key in &self.keys {
            if unsettled.0.get(key).is_some_and(|last| last.same_channel(&own)) {
                unsettled.0.remove(key);
            }
        }
    }
}

/// A change that was put in order.
pub(super) struct Applied {
    pub(super) outcome: Outcome,
    /// Of a note only that the other owner knows.
    waits: Vec<Wait>,
}

/// Whether it changes what everyone finds, and does not only say what is held.
fn is_decided(change: &Change) -> bool {
    matches!(change, Change::Publish { .. } | Change::Remove { .. } | Change::RemoveThrough { .. })
}

impl Core {
    /// Waits until all is settled, but not beyond `deadline`.
    pub(super) async fn settle(waits: Vec<Wait>, deadline: Instant) -> bool {
        for wait in waits {
            if timeout_at(deadline.into(), wait.over()).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Puts changes in order, as far as this member decides, and begins to tell who has to know.
    pub(super) fn apply(self: &Arc<Self>, from: PeerId, changes: &[Change]) -> Vec<Applied> {
        let now = self.now();
        let mut applied = Vec::with_capacity(changes.len());
        for changes in changes.chunks(SLICE) {
            let mut owner = self.owner.lock();
            let decides = !self.has_yet_to_hear_of(from);
            for change in changes {
                let is_early = match change {
                    // What it has announced is forgotten, or not all.
                    Change::Announced { .. } => self.has_yet_to_tell_all(from),
                    change => is_decided(change) && !decides,
                };
                if is_early {
                    applied.push(Applied { outcome: Outcome::Moved, waits: Vec::new() });
                    continue;
                }
                let effects = if from == self.me && matches!(change, Change::Publish { .. }) {
                    // Numbered in the order in which they are decided.
                    let mut change = change.clone();
                    self.publishing.lock().give_number(&mut change);
                    owner.change(from, &change, now)
                } else {
                    owner.change(from, change, now)
                };
                if matches!((change, effects.outcome), (Change::Announced { .. }, Outcome::Done { .. })) {
                    self.note_all_announced(from);
                }
                let (key, is_note) = (change.path().map(KeyId::of), is_note(change));
                let told = key.and_then(|key| self.tell_in_order(key, effects.tell));
                // Of a note all hear, too, and who changes its key later waits for that; whoever noted it does not.
                let mut waits: Vec<Wait> = told.filter(|_| !is_note).into_iter().collect();
                if let Some((other, key, gone)) = effects.replicate {
                    // What others say has been gathered by them.
                    let haste = if from == self.me && is_note { Haste::Soon } else { Haste::Now };
                    // Whoever noted it says so again if this member is lost before the other owner knows.
                    waits.extend(self.replicate(other, Dirty { key, gone }, haste).map(Wait::Told));
                }
                if effects.outcome == Outcome::Moved {
                    self.counters.moved.increment();
                } else if let Some(key) = key.filter(|_| !is_note) {
                    let takeovers = self.takeovers.lock();
                    let over = takeovers.iter().filter(|takeover| takeover.shards.contains(&key.shard()));
                    waits.extend(over.map(|takeover| Wait::Takeover(takeover.is_over.clone())));
                }
                self.counters.conflicts.add(u64::from(effects.is_conflict));
                self.counters.collapsed.add(u64::from(effects.is_collapsed));
                applied.push(Applied { outcome: effects.outcome, waits });
            }
            self.drop_watches(&mut owner);
        }
        applied
    }

    /// Whether a start of a member is still to be told everything, and announces all that it holds after that. Called while the owner
    /// is held.
    fn has_yet_to_tell_all(&self, to: PeerId) -> bool {
        self.peers.lock().get(&to.member).is_some_and(|peer| peer.id == to && peer.has_yet_to_hear_all())
    }

    /// A start of a member has announced all that it holds. Called while the owner is held.
    fn note_all_announced(&self, from: PeerId) {
        if let Some(peer) = self.peers.lock().get_mut(&from.member).filter(|peer| peer.id == from) {
            (peer.is_new_start, peer.is_announcing) = (false, false);
        }
    }

    /// Tells members of a change of a key, after those before it: who was told of an earlier one is not told again, so what is
    /// returned is over when both are. That does not depend on who waits for it. Called while the owner is held, which orders
    /// the changes. `None` when nobody has to hear of anything.
    pub(super) fn tell_in_order(
        self: &Arc<Self>,
        key: KeyId,
        tell: Vec<(MemberId, Revocation)>,
    ) -> Option<Wait> {
        let told = tell.into_iter().filter_map(|(member, revocation)| self.tell(member, revocation));
        let waits = told.map(Wait::Told).collect();
        self.begin_to_settle(&[key], waits).map(Wait::Settled)
    }

    /// Tells each of some members of a change of each of `keys`, as [`Self::tell_in_order`] does, but in one go: none of the keys
    /// is settled before all were told of, and one of which somebody still hears from before when that is over, too. Called while
    /// the owner is held.
    pub(super) fn tell_together(self: &Arc<Self>, keys: Vec<KeyId>, tell: Vec<(MemberId, Vec<Revocation>)>) {
        let told = tell.into_iter().flat_map(|(member, revocations)| self.tell_several(member, revocations));
        let waits = told.map(Wait::Told).collect();
        // Who waits for one of them is not to wait for who still hears of an earlier change of another one.
        let (open, settled): (Vec<KeyId>, Vec<KeyId>) = {
            let unsettled = self.unsettled.lock();
            keys.into_iter().partition(|key| unsettled.0.contains_key(key))
        };
        let Some(together) = self.begin_to_settle(&settled, waits) else { return };
        for key in open {
            self.begin_to_settle(&[key], vec![Wait::Settled(together.clone())]);
        }
    }

    /// Has `keys` be settled when `waits` are over, and what is waited for already before one of them is. `None` when nothing is.
    fn begin_to_settle(
        self: &Arc<Self>,
        keys: &[KeyId],
        mut waits: Vec<Wait>,
    ) -> Option<watch::Receiver<bool>> {
        let mut unsettled = self.unsettled.lock();
        let before = keys.iter().filter_map(|key| unsettled.0.get(key).cloned());
        waits.extend(before.map(Wait::Settled));
        if waits.is_empty() {
            return None;
        }
        let (over, receiver) = watch::channel(false);
        unsettled.0.extend(keys.iter().map(|&key| (key, receiver.clone())));
        drop(unsettled);
        let settling = Settling { core: Arc::clone(self), keys: keys.into(), over };
        self.spawn(async move {
            // Each of them ends: a member answers, or is lost, or is owed it.
            for wait in waits {
                wait.over().await;
            }
            drop(settling);
        });
        Some(receiver)
    }

    async fn outcomes(applied: Vec<Applied>, deadline: Instant) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(applied.len());
        for Applied { outcome, waits } in applied {
            let is_settled = Self::settle(waits, deadline).await;
            outcomes.push(match outcome {
                Outcome::Done { stamp } if !is_settled => Outcome::Late { stamp },
                outcome => outcome,
            });
        }
        outcomes
    }

    pub(super) fn answer_changes(self: &Arc<Self>, from: PeerId, changes: &Changes) -> Answer {
        let applied = self.apply(from, &changes.changes);
        // A part of the time is for the way back.
        let wait = Duration::from_millis(u64::from(changes.wait_ms)) * 9 / 10;
        let deadline = self.within(wait.min(self.config.timings.background));
        let core = Arc::clone(self);
        Answer::Later(Box::pin(async move {
            let outcomes = Self::outcomes(applied, deadline).await;
            Ok(Results { view: core.seen().view.number, outcomes }.encode())
        }))
    }

    /// Applies a change here.
    pub(super) async fn change_here(self: &Arc<Self>, change: Change, deadline: Instant) -> Outcome {
        let applied = self.apply(self.me, &[change]);
        let outcomes = Self::outcomes(applied, deadline).await;
        outcomes.first().copied().unwrap_or(Outcome::Moved)
    }
}
