//! Finding names: the primary of each shard is asked, then the backup; one message for all names of a member.
//!
//! Invariants
//! - That a name stands for nothing is remembered only if the primary said so, and nothing about its shard was revoked since it
//!   was asked.
//! - What was removed here is not found, also when those who decide have not heard of that yet.
//!
//! Limits: a primary is waited for half of the time at most, so that its backup has the other half. [`SLICE`] names are answered
//! under one hold of the lock.
//! Threads: who asks asks on its own thread; what peers ask is answered on those of the runtime.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_engine::types::{MemberId, PeerId};

use super::catalog::owner::{Owner, Surplus};
use super::catalog::wire::{Answered, Answers, FIND, Find, ITEMS_MAX, MESSAGE_BYTES, Message, is_told_of};
use super::changing::AGAIN;
use super::core::Core;
use super::object::{Facts, Found, Stamp};
use super::shards::{KeyId, Shard};

/// Names that are answered under one hold of the lock.
const SLICE: usize = 256;

/// A part of a question: names of it by their place, for one member.
type Part = (MemberId, Vec<usize>);

/// Names that are asked for.
struct Question {
    paths: Vec<Vec<u8>>,
    /// Of each name, which takes a hash.
    shards: Vec<Shard>,
    /// Whether the answers may be remembered, and who asks is told when they change.
    is_watched: bool,
}

impl Question {
    fn new(paths: Vec<Vec<u8>>, is_watched: bool) -> Self {
        let shards = paths.iter().map(|path| KeyId::of(path).shard()).collect();
        Self { paths, shards, is_watched }
    }

    /// Does `work` with what a member is asked of it, chosen under `view`. The names are lent for that: to copy one costs about
    /// as much as to look it up.
    fn with_part<T>(&mut self, places: &[usize], view: u64, work: impl FnOnce(&Find) -> T) -> T {
        let view = if self.is_watched { view } else { Find::UNWATCHED };
        let paths = places.iter().map(|&at| std::mem::take(&mut self.paths[at])).collect();
        let find = Find { view, paths };
        let result = work(&find);
        for (&at, path) in places.iter().zip(find.paths) {
            self.paths[at] = path;
        }
        result
    }
}

impl Core {
    /// Answers what a peer asks.
    pub(super) fn answer_find(self: &Arc<Self>, asker: PeerId, find: &Find) -> Answers {
        if self.has_yet_to_hear_of(asker) {
            let answers = vec![Answered::Incomplete; find.paths.len()];
            return Answers { view: self.seen().view.number, answers };
        }
        let is_watched = find.view != Find::UNWATCHED;
        let mut answers = Vec::with_capacity(find.paths.len());
        for paths in find.paths.chunks(SLICE) {
            let mut owner = self.owner.lock();
            if is_watched {
                answers.extend(paths.iter().map(|path| owner.find(asker, path)));
                self.drop_watches(&mut owner);
            } else {
                answers.extend(paths.iter().map(|path| owner.look_at(KeyId::of(path))));
            }
        }
        let moved = answers.iter().filter(|answer| **answer == Answered::Moved).count();
        self.counters.moved.add(moved as u64);
        Answers { view: self.seen().view.number, answers }
    }

    /// Tells who watches names beyond the limit that they changed, as many as one slice can have added. Nobody waits for that now;
    /// who changes one of them later does.
    pub(super) fn drop_watches(self: &Arc<Self>, owner: &mut Owner) {
        for Surplus { keys, tell } in owner.drop_surplus(SLICE) {
            let told: usize = tell.iter().map(|(_, revocations)| revocations.len()).sum();
            self.counters.watches_dropped.add(told as u64);
            self.tell_together(keys, tell);
        }
    }

    /// Nothing counts any more that was answered about `shards`, or is being asked: who answered is lost, or others do from now on.
    pub(super) fn forget_answers(&self, shards: &[Shard]) {
        if shards.is_empty() {
            return;
        }
        shards.iter().for_each(|&shard| self.note_revocation(shard));
        if let Some(holder) = self.holder.upgrade() {
            holder.forget_answers(shards);
        }
    }

    /// This member has left: nothing that it was answered counts any more, as it is told of no change.
    pub(super) fn forget_all_answers(&self) {
        if let Some(holder) = self.holder.upgrade() {
            holder.forget_answers(&Shard::all().collect::<Vec<_>>());
        }
    }

    /// What stands under `path`, for who remembers none of it. Nobody watches the name for that: who walks through all that it
    /// holds would push out what programs were answered.
    pub(super) async fn look_at(self: &Arc<Self>, path: &[u8], deadline: Instant) -> Found {
        self.ask(vec![path.to_vec()], false, deadline).await.pop().unwrap_or(Found::Unknown)
    }

    /// Which directory stands under `path`, as those count who decide: for who removes it. Zero where there is none; `None` where
    /// nobody says that, as no member of a build without it does.
    pub(super) async fn directory_version(self: &Arc<Self>, path: &[u8], deadline: Instant) -> Option<Stamp> {
        match self.look_at(path, deadline).await {
            Found::Present { stamp, facts: Facts::Directory(_), .. } => {
                Some(stamp).filter(|&stamp| stamp > Stamp(0))
            }
            Found::Present { .. } | Found::Absent { .. } => Some(Stamp(0)),
            Found::Unknown => None,
        }
    }

    pub(super) async fn find(self: &Arc<Self>, paths: Vec<Vec<u8>>, deadline: Instant) -> Vec<Found> {
        self.ask(paths, true, deadline).await
    }

    /// `is_watched`: as in [`Question`].
    async fn ask(self: &Arc<Self>, paths: Vec<Vec<u8>>, is_watched: bool, deadline: Instant) -> Vec<Found> {
        let count = paths.len();
        self.counters.finds.add(count as u64);
        if self.has_left() {
            // Nobody would tell it when that changes.
            return vec![Found::Absent { is_watched: false }; count];
        }
        if self.seen().is_alone {
            return vec![Found::Absent { is_watched }; count];
        }
        let mut question = Question::new(paths, is_watched);
        let asked_at: Vec<u64> = question.shards.iter().map(|&shard| self.revocations(shard)).collect();
        let (mut open, untold): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|&at| is_told_of(&question.paths[at]));
        let mut found: Vec<Option<Answered>> = vec![None; count];
        untold.into_iter().for_each(|at| found[at] = Some(Answered::Absent { is_watched: false }));
        loop {
            self.ask_owners(&mut question, &mut open, &mut found, deadline).await;
            // Who serves them now is about to learn what stands there.
            let may_learn = !open.is_empty() && self.is_settling() && self.until(deadline) > AGAIN * 2;
            if !may_learn {
                break;
            }
            tokio::time::sleep(AGAIN).await;
        }
        let (may_remember, has_unheard) = (self.may_remember(), self.unheard.len() > 0);
        let asked = question.paths.iter().zip(question.shards).zip(asked_at);
        found
            .into_iter()
            .zip(asked)
            .map(|(answer, ((path, shard), asked_at))| {
                let is_current = || self.revocations(shard) == asked_at;
                match answer {
                    // Removed here, and those who decide have not heard of it yet.
                    Some(Answered::Present { stamp, .. })
                        if has_unheard && self.unheard.covers(path, stamp) =>
                    {
                        Found::Absent { is_watched: false }
                    }
                    Some(Answered::Present { stamp, facts, copies }) => {
                        Found::Present { stamp, facts, copies }
                    }
                    Some(Answered::Absent { is_watched }) => {
                        Found::Absent { is_watched: is_watched && may_remember && is_current() }
                    }
                    Some(Answered::Moved | Answered::Incomplete) | None => {
                        self.counters.unknown.increment();
                        Found::Unknown
                    }
                }
            })
            .collect()
    }

    /// Asks the primary of each name in `open`, then its backup, then who is the primary meanwhile. Leaves those that nobody
    /// could answer.
    async fn ask_owners(
        self: &Arc<Self>,
        question: &mut Question,
        open: &mut Vec<usize>,
        found: &mut [Option<Answered>],
        deadline: Instant,
    ) {
        for is_backup in [false, true, false] {
            let parts = self.parts(question, open, is_backup);
            if parts.is_empty() || self.until(deadline).is_zero() {
                continue;
            }
            // What the first does not answer, another one has to have time for.
            let wait = self.until(deadline);
            let wait = if is_backup { wait } else { wait / 2 };
            self.ask_parts(question, parts, wait, found).await;
            if is_backup {
                // A backup is lost more easily than it is missed: nothing that was asked now is remembered.
                open.iter().for_each(|&at| self.note_revocation(question.shards[at]));
            }
            open.retain(|&at| !is_final(found[at].as_ref()));
            if open.is_empty() {
                break;
            }
        }
    }

    /// Which member is asked for which of the names in `open`.
    fn parts(&self, question: &Question, open: &[usize], is_backup: bool) -> Vec<Part> {
        let seen = self.seen();
        let mut parts: BTreeMap<MemberId, Vec<usize>> = BTreeMap::new();
        for &at in open {
            let Some(owners) = seen.map.owners(question.shards[at]) else { continue };
            let member = if is_backup { owners.backup } else { Some(owners.primary) };
            if let Some(member) = member {
                parts.entry(member).or_default().push(at);
            }
        }
        parts.retain(|&member, _| !self.is_suspect(member));
        let mut cut = Vec::with_capacity(parts.len());
        for (member, places) in parts {
            let (mut part, mut bytes) = (Vec::new(), 0);
            for at in places {
                bytes += question.paths[at].len() + 4;
                if part.len() == ITEMS_MAX || (bytes > MESSAGE_BYTES && !part.is_empty()) {
                    cut.push((member, std::mem::take(&mut part)));
                    bytes = question.paths[at].len() + 4;
                }
                part.push(at);
            }
            cut.push((member, part));
        }
        cut
    }

    /// Asks all members at once, and takes what comes in time.
    async fn ask_parts(
        self: &Arc<Self>,
        question: &mut Question,
        parts: Vec<Part>,
        wait: Duration,
        found: &mut [Option<Answered>],
    ) {
        let deadline = self.within(wait);
        let view = self.seen().view.number;
        let (own, mut others): (Vec<Part>, Vec<Part>) =
            parts.into_iter().partition(|&(member, _)| member == self.me.member);
        let last = others.pop();
        let mut asked = tokio::task::JoinSet::new();
        for (member, places) in others {
            let body = question.with_part(&places, view, Find::encode);
            let asking = Arc::clone(self).ask_member(member, body, deadline);
            asked.spawn_on(async move { (places, asking.await) }, &self.runtime);
        }
        // The last one, most often the only one, is asked by this task itself: no other thread has to wake for that.
        let last = last.map(|(member, places)| {
            let body = question.with_part(&places, view, Find::encode);
            (places, Arc::clone(self).ask_member(member, body, deadline))
        });
        let last = async {
            let (places, asking) = last?;
            Some((places, asking.await?))
        };
        // Looked up here while the others do.
        let own = async {
            let answer = |(_, places): Part| {
                let answers = question.with_part(&places, view, |find| self.answer_find(self.me, find));
                (places, answers)
            };
            own.into_iter().map(answer).collect::<Vec<_>>()
        };
        let (last, own) = tokio::join!(last, own);
        own.into_iter().chain(last).for_each(|(places, answers)| note(found, &places, answers));
        while let Some(ended) = asked.join_next().await {
            if let Ok((places, Some(answers))) = ended {
                note(found, &places, answers);
            }
        }
    }

    /// What a member says of names that it serves; `None` when it does not answer in time, or nothing that can be read.
    async fn ask_member(
        self: Arc<Self>,
        member: MemberId,
        body: Vec<u8>,
        deadline: Instant,
    ) -> Option<Answers> {
        self.counters.find_messages.increment();
        let body = self.call(member, FIND, body, deadline).await.ok()?;
        match Answers::decode(&body) {
            Ok(answers) => Some(answers),
            Err(error) => {
                tracing::warn!(member = member.0, %error, "an answer is refused");
                None
            }
        }
    }

    /// Whether a member is in the view.
    pub(super) fn is_registered(&self, member: MemberId) -> bool {
        self.peers.lock().get(&member).is_some_and(|peer| peer.is_registered)
    }

    /// The latest start of a member.
    pub(super) fn peer_id(&self, member: MemberId) -> Option<PeerId> {
        self.peers.lock().get(&member).map(|peer| peer.id)
    }
}

fn is_final(answer: Option<&Answered>) -> bool {
    matches!(answer, Some(Answered::Absent { .. } | Answered::Present { .. }))
}

fn note(found: &mut [Option<Answered>], places: &[usize], answers: Answers) {
    if answers.answers.len() != places.len() {
        return;
    }
    for (&at, answer) in places.iter().zip(answers.answers) {
        // A primary that does not know everything yet is less than a backup that says "absent", which is not remembered.
        found[at] = Some(answer);
    }
}
