//! Changes of the catalog: sent to whoever decides about their key, where they are put in order ([`super::deciding`]).
//!
//! Invariants
//! - Nothing is sent, or decided, about a path that is [too long](is_told_of) for a message.
//! - A removal that may be done already takes nothing away that was published since, whoever is sent it once more. Only that of a
//!   directory of which nobody says the version is sent as it was, and takes whatever has its name by then: that version may be
//!   later than the clock of who removes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_engine::types::MemberId;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::batcher::{Haste, Item};
use super::catalog::wire::{CHANGE, Change, Changes, Message, Outcome, Results, is_told_of};
use super::core::Core;
use super::error::ClusterError;
use super::object::Medium;
use super::shards::KeyId;

/// Pause before who decides, or those who are settling who does, are asked again.
pub(super) const AGAIN: Duration = Duration::from_millis(20);

/// A change on its way to who decides.
#[derive(Debug)]
pub(super) struct Sent {
    change: Change,
    /// How long somebody waits for it.
    deadline: Instant,
}

impl Item for Sent {
    fn weight(&self) -> usize {
        64 + self.change.path().map_or(0, <[u8]>::len)
    }
}

/// Why a member has not said what became of a change.
#[derive(Debug)]
pub(super) struct Unanswered {
    reason: String,
    /// It may be done all the same.
    was_sent: bool,
}

/// Whether nobody waits for what becomes of it.
pub(super) fn is_note(change: &Change) -> bool {
    matches!(change, Change::Hold { .. } | Change::LetGo { .. })
}

/// What a change is when it is sent after its time: its caller has gone on, and others may have, too. What was published since
/// then stays. `contact_age_ms`: as in an announcement.
fn late(change: Change, contact_age_ms: u64) -> Change {
    match change {
        Change::Publish { path, proposed: stamp, facts, .. } => {
            Change::Announce { path, stamp, facts, medium: Medium::Memory, contact_age_ms }
        }
        change => again(change),
    }
}

/// What a change is when it is sent again and may be done already: others may have gone on since.
pub(super) fn again(change: Change) -> Change {
    match change {
        Change::Remove { path, at } => Change::RemoveThrough { path, through: at },
        change => change,
    }
}

/// What becomes of a change of a name of which no member is told: it is so.
fn outcome_of_untold(change: &Change) -> Option<Outcome> {
    let (path, stamp) = match change {
        Change::Publish { path, proposed: stamp, .. }
        | Change::Remove { path, at: stamp }
        | Change::RemoveThrough { path, through: stamp }
        | Change::Hold { path, stamp, .. }
        | Change::LetGo { path, stamp }
        | Change::Announce { path, stamp, .. } => (path, *stamp),
        Change::Announced { .. } => return None,
    };
    (!is_told_of(path)).then_some(Outcome::Done { stamp })
}

impl Core {
    /// Sends changes to a member; nothing when it does not answer.
    pub(super) async fn send_changes(
        self: Arc<Self>,
        member: MemberId,
        sent: Vec<Sent>,
    ) -> Option<Vec<Outcome>> {
        let (deadline, count) = (self.in_background(), sent.len());
        let left: Vec<Duration> = sent.iter().map(|sent| self.until(sent.deadline)).collect();
        // Whoever waits the shortest decides how long the member waits for others; whose time is over does not wait.
        let wait = left.iter().copied().filter(|left| !left.is_zero()).min().unwrap_or_default();
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let contact_age_ms = self.contact_age_ms(member);
        let in_time = |(sent, left): (Sent, Duration)| match left.is_zero() {
            true => late(sent.change, contact_age_ms),
            false => sent.change,
        };
        let changes = sent.into_iter().zip(left).map(in_time).collect();
        let message = Changes { view: self.seen().view.number, wait_ms, changes };
        // Of others the sender hears.
        let is_note = |change: &&Change| is_note(change);
        self.counters.change_messages.increment();
        let Ok(answer) = self.call(member, CHANGE, message.encode(), deadline).await else {
            message.changes.iter().filter(is_note).for_each(|change| self.note_again(change));
            return None;
        };
        let results = match Results::decode(&answer) {
            Ok(results) => results,
            Err(error) => {
                tracing::warn!(member = member.0, %error, "an answer is refused");
                message.changes.iter().filter(is_note).for_each(|change| self.note_again(change));
                return None;
            }
        };
        for (change, outcome) in message.changes.iter().zip(&results.outcomes) {
            if is_note(&change) && matches!(outcome, Outcome::Moved | Outcome::Refused { .. }) {
                self.note_again(change);
            }
        }
        (results.outcomes.len() == count).then_some(results.outcomes)
    }

    /// Who decides is not sure to know of what is held at `path`.
    pub(super) fn announce_what_is_held(&self, path: &[u8]) {
        let shard = KeyId::of(path).shard();
        if let Some(owners) = self.seen().map.owners(shard) {
            self.plan.add_owners(owners, shard);
        }
    }

    /// Queues a change for a member. Publishes get their number here, in the order in which they leave. What is noted of a name
    /// leaves after what is being published there.
    fn push_change(
        &self,
        member: MemberId,
        mut change: Change,
        deadline: Instant,
        haste: Haste,
    ) -> Option<oneshot::Receiver<Outcome>> {
        let peers = self.peers.lock();
        let peer = peers.get(&member)?;
        let mut publishing = self.publishing.lock();
        publishing.give_number(&mut change);
        let is_apart = is_note(&change) && !change.path().is_some_and(|path| publishing.is_under_way(path));
        let batcher = if is_apart { &peer.notes } else { &peer.changes };
        let receiver = batcher.push(Sent { change, deadline }, haste);
        if receiver.is_none() {
            self.counters.queue_overflows.increment();
        }
        receiver
    }

    /// Has one member do a change.
    pub(super) async fn change_at(
        self: &Arc<Self>,
        member: MemberId,
        change: Change,
        deadline: Instant,
    ) -> Result<Outcome, Unanswered> {
        if let Some(outcome) = outcome_of_untold(&change) {
            return Ok(outcome);
        }
        if member == self.me.member {
            return Ok(self.change_here(change, deadline).await);
        }
        let unsent = |reason: String| Unanswered { reason, was_sent: false };
        if self.is_suspect(member) {
            return Err(unsent(format!("member {member} is lost")));
        }
        let patience = self.until(deadline);
        if patience.is_zero() {
            // In a message with others it would have all of them answered at once.
            return Err(unsent("there is no time left".to_owned()));
        }
        let receiver = self
            .push_change(member, change, deadline, Haste::Now)
            .ok_or_else(|| unsent("too much waits for the member already".to_owned()))?;
        let unanswered = |reason| Unanswered { reason, was_sent: true };
        match timeout_at(deadline.into(), receiver).await {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(_)) => Err(unanswered(format!("member {member:x} did not answer", member = member.0))),
            Err(_) => {
                self.note_slow(member, patience, deadline);
                Err(unanswered(format!("member {member:x} did not answer in time", member = member.0)))
            }
        }
    }

    /// Has whoever decides do a change.
    pub(super) async fn change(
        self: &Arc<Self>,
        change: Change,
        deadline: Instant,
    ) -> Result<Outcome, ClusterError> {
        self.change_while(change, again, deadline, || true).await
    }

    /// As [`Core::change`]; nobody is asked any more once it is not wanted, and what may be done already is sent as `again` says.
    pub(super) async fn change_while(
        self: &Arc<Self>,
        mut change: Change,
        again: fn(Change) -> Change,
        deadline: Instant,
        is_wanted: impl Fn() -> bool + Send,
    ) -> Result<Outcome, ClusterError> {
        let key = change.path().map(KeyId::of).filter(|_| !self.has_left());
        let Some(key) = key else { return Err(ClusterError::Closed) };
        let mut reason = "no member serves it".to_owned();
        loop {
            let Some(owners) = self.seen().map.owners(key.shard()) else {
                return Err(ClusterError::NobodyReached { reason });
            };
            let mut is_anyone_there = false;
            for member in std::iter::once(owners.primary).chain(owners.backup) {
                if !is_wanted() {
                    return Err(ClusterError::NobodyReached {
                        reason: "it is not wanted any more".to_owned(),
                    });
                }
                match self.change_at(member, change.clone(), deadline).await {
                    Ok(Outcome::Moved) => {
                        is_anyone_there = true;
                        reason = "those who serve it do not agree yet on who decides".to_owned();
                    }
                    Ok(outcome) => return Ok(outcome),
                    Err(unanswered) => {
                        reason = unanswered.reason;
                        if unanswered.was_sent {
                            change = again(change);
                        }
                    }
                }
            }
            if !is_anyone_there || self.until(deadline) <= AGAIN {
                return Err(ClusterError::NobodyReached { reason });
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Who is told of what nobody waits for: the primary, or its backup while it is lost.
    pub(super) fn whom_to_note(&self, key: KeyId) -> Option<MemberId> {
        let owners = self.seen().map.owners(key.shard())?;
        let is_known = |&member: &MemberId| {
            if member == self.me.member { !self.is_out() } else { !self.is_suspect(member) }
        };
        std::iter::once(owners.primary).chain(owners.backup).find(is_known)
    }

    /// Queues what nobody waits for, for whoever decides.
    pub(super) fn note(self: &Arc<Self>, change: Change, haste: Haste) {
        let seen = self.seen();
        if seen.is_alone || self.has_left() || outcome_of_untold(&change).is_some() {
            return;
        }
        let Some(key) = change.path().map(KeyId::of) else { return };
        let Some(owners) = seen.map.owners(key.shard()) else { return };
        let Some(member) = self.whom_to_note(key) else { return self.note_again(&change) };
        if member != owners.primary {
            self.note_again_to_primary(&change, member);
        }
        if member == self.me.member {
            // Who changes the key later waits until all are told of this, whether somebody does now or not.
            let applied = self.apply(self.me, std::slice::from_ref(&change));
            if applied.iter().any(|applied| !matches!(applied.outcome, Outcome::Done { .. })) {
                self.note_again(&change);
            }
        } else if self.push_change(member, change.clone(), self.in_background(), haste).is_none() {
            self.note_again(&change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::object::{DirectoryFacts, Facts, Stamp};

    #[test]
    fn a_removal_that_is_sent_after_its_time_leaves_what_came_since() {
        let path = b"kv/a".to_vec();
        let removal = Change::Remove { path: path.clone(), at: Stamp(7) };
        assert_eq!(late(removal, 0), Change::RemoveThrough { path: path.clone(), through: Stamp(7) });
        let note = Change::LetGo { path, stamp: Stamp(7) };
        assert_eq!(late(note.clone(), 0), note);
    }

    #[test]
    fn a_publish_that_is_sent_after_its_time_says_what_is_held_and_stands_above_nothing() {
        let (path, stamp) = (b"kv/a".to_vec(), Stamp(7));
        let facts = Facts::Directory(DirectoryFacts { mode: 0o755, uid: 0, gid: 0 });
        let publish = Change::Publish { number: 3, path: path.clone(), proposed: stamp, facts };
        let medium = Medium::Memory;
        assert_eq!(late(publish, 9), Change::Announce { path, stamp, facts, medium, contact_age_ms: 9 });
    }
}
