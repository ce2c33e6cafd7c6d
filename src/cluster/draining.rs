//! Draining: what only this member holds is copied to others, the hottest first, so that it leaves with nothing lost.
//!
//! Invariants
//! - While it drains, this member keeps no copies for others, and its own do not count, nor do those of others that drain.
//! - What the catalog does not know of, or knows an earlier version of, is announced first: what others hold of it is not enough.
//! - It [leaves](super::leaving) only when a whole walk found nothing left to copy, and after each wait to leave it walks again.
//!   When its time is over before, or nobody takes what is left, it stays a member, and a later drain begins with what is left.
//! - A start of a member that was draining goes on with that, until the time that it was given.
//!
//! Limits: one drain at a time; another one only gives it another time. Who looks how far it is waits for no disk.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidefs_engine::engine::Answer;
use tidefs_engine::types::{BoxFuture, ByteCount, MemberId, PeerId};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::catalog::wire::{DRAIN, Drain, DrainOrder, DrainPhase, DrainReport, Kept, Message};
use super::copying::{Copied, Made, Wish};
use super::core::Core;
use super::drain_file::Unfinished;
use super::error::ClusterError;
use super::gone::Gone;
use super::object::{Facts, Holding, Stamp};
use super::shards::{KeyId, replica_target};

/// Objects that are copied at once.
const AT_ONCE: usize = 8;
/// How often what was published meanwhile is copied before a walk, while that is much.
const NOTED_ROUNDS: usize = 10;
/// Walks in a row after which no less is left than after those before, before it is given up.
const FRUITLESS_MAX: u32 = 10;
/// Part of what a walk looked at that it may have had to have copied and be the last one all the same.
const FEW: u64 = 100;
/// Pause between two walks of which the first left something.
pub(super) const PAUSE: Duration = Duration::from_millis(500);
/// How far the drain of this member is.
#[derive(Debug, Default)]
pub(super) struct Draining {
    /// Held for a look: who asks for a name has one.
    state: Mutex<State>,
    /// Held while the file is written, so that it says what began or ended last. Taken before the state.
    pub(super) keeping: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    report: DrainReport,
    /// When it is given up, by the time since this member began.
    until: Option<Duration>,
    /// Others that drained, too, when the last walk began.
    others: BTreeSet<MemberId>,
    /// How often it was told to stop: whoever begins meanwhile begins nothing.
    stops: u64,
}

impl Draining {
    pub(super) fn note_left(&self) {
        self.state.lock().report.phase = DrainPhase::Left;
    }
}

/// Whether something of which that became is still to be copied.
fn is_left(copied: Copied) -> bool {
    matches!(copied, Copied::NotNow | Copied::Short | Copied::Absent)
}

/// Those of `members` that do not say, as they were `asked`, that they stay.
async fn but_those_that_stay(
    mut members: BTreeSet<MemberId>,
    mut asked: JoinSet<Option<MemberId>>,
) -> BTreeSet<MemberId> {
    while let Some(answer) = asked.join_next().await {
        // One that panicked is logged by its thread, and has said nothing.
        if let Ok(Some(member)) = answer {
            members.remove(&member);
        }
    }
    members
}

/// What one walk did.
#[derive(Debug, Default)]
struct Walk {
    looked_at: u64,
    copied: u64,
    left: u64,
}

impl Core {
    /// Whether this member takes no copies any more.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.draining.state.lock().report.phase, DrainPhase::Copying | DrainPhase::Left)
    }

    /// Whether it has left, or a later start of it is there in its place.
    pub(super) fn has_left(&self) -> bool {
        let is_superseded = self.successor.get().is_some();
        is_superseded || self.draining.state.lock().report.phase == DrainPhase::Left
    }

    /// Whether `member` said that it leaves, and was not started again since.
    fn said_farewell(&self, member: MemberId) -> bool {
        let (peers, gone) = (self.peers.lock(), self.gone.lock());
        let is_peer = peers.get(&member).is_some_and(|peer| peer.has_left);
        is_peer || gone.get(&member).is_some_and(Gone::has_left)
    }

    /// Whether what `member` holds goes with it, as far as this member, which drains itself, has heard.
    pub(super) fn drains_too(&self, member: MemberId) -> bool {
        self.draining.state.lock().others.contains(&member)
    }

    /// The others that drain, or that do not say whether they do.
    async fn others_that_drain(self: &Arc<Self>) -> BTreeSet<MemberId> {
        let (mut others, mut asked) = (BTreeSet::new(), JoinSet::new());
        for PeerId { member, .. } in self.others() {
            let core = Arc::clone(self);
            others.insert(member);
            asked.spawn(async move {
                let report = core.drain(member, DrainOrder::Ask).await;
                let stays = report
                    .is_ok_and(|report| !matches!(report.phase, DrainPhase::Copying | DrainPhase::Left));
                stays.then_some(member)
            });
        }
        but_those_that_stay(others, asked).await
    }

    pub(super) fn drain_report(&self) -> DrainReport {
        self.draining.state.lock().report.clone()
    }

    pub(super) fn answer_drain(self: &Arc<Self>, drain: Drain) -> Answer {
        let core = Arc::clone(self);
        Answer::Later(Box::pin(
            async move { core.drain_here(drain.order).await.map(|report| report.encode()) },
        ))
    }

    /// Has `member` drain itself, or tells how far it is.
    pub(super) async fn drain(
        self: &Arc<Self>,
        member: MemberId,
        order: DrainOrder,
    ) -> Result<DrainReport, ClusterError> {
        if member == self.me.member {
            return self.drain_here(order).await.map_err(ClusterError::Refused);
        }
        let body = Drain { order }.encode();
        match self.call(member, DRAIN, body, self.in_background()).await {
            Ok(answer) => Ok(DrainReport::decode(&answer)?),
            // It said that it leaves, and may be gone for good by now.
            Err(_) if self.said_farewell(member) => {
                Ok(DrainReport { phase: DrainPhase::Left, ..DrainReport::default() })
            }
            Err(tidefs_engine::error::Error::Refused { cause }) => {
                Err(ClusterError::Refused(cause.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn drain_here(self: &Arc<Self>, order: DrainOrder) -> Result<DrainReport, String> {
        match order {
            DrainOrder::Ask => {}
            DrainOrder::Stop => {
                let mut state = self.draining.state.lock();
                state.stops += 1;
                if state.report.phase == DrainPhase::Copying {
                    state.until = Some(Duration::ZERO);
                }
            }
            DrainOrder::Begin { within_ms } => {
                // Whoever asked may be gone when the disk answers.
                let begun = self.runtime.spawn(self.begin_to_drain(within_ms)).await;
                begun.unwrap_or_else(|error| Err(error.to_string()))?;
            }
        }
        Ok(self.drain_report())
    }

    /// Drains from now on, or has the drain that is under way another time, unless it is told to stop before. The file says so
    /// first.
    fn begin_to_drain(self: &Arc<Self>, within_ms: Option<u64>) -> BoxFuture<'static, Result<(), String>> {
        let (core, stops) = (Arc::clone(self), self.draining.state.lock().stops);
        Box::pin(async move {
            let _keeping = core.draining.keeping.lock().await;
            if core.drain_report().phase == DrainPhase::Left {
                return Ok(());
            }
            if !core.seen().view.members().iter().any(|member| member.id != core.me.member) {
                return Err("no other member is there to take what this one holds; \
                            add one, or stop the daemon, which keeps what it has with on_stop=keep"
                    .to_owned());
            }
            if core.draining.state.lock().stops != stops {
                // Another one may have begun since then, which the file is of.
                return Ok(());
            }
            let unfinished = Unfinished::within(within_ms);
            core.keep_drain(move |file| unfinished.store(Some(file))).await;
            // The end of one that is under way has the file forgotten.
            if !core.begin_unless_stopped(within_ms, stops)
                && core.drain_report().phase != DrainPhase::Copying
            {
                core.keep_drain(|file| Unfinished::forget(Some(file))).await;
            }
            Ok(())
        })
    }

    /// Begins what the file says by now, unless it was told to stop since the time when it had been that so many times. Returns
    /// whether it was not.
    fn begin_unless_stopped(self: &Arc<Self>, within_ms: Option<u64>, stops: u64) -> bool {
        let until = within_ms.map(|within| self.now() + Duration::from_millis(within));
        let mut state = self.draining.state.lock();
        if state.stops != stops {
            return false;
        }
        match state.report.phase {
            // Meanwhile. Its end has the file forgotten.
            DrainPhase::Left => {}
            DrainPhase::Copying => state.until = until,
            DrainPhase::Idle | DrainPhase::Late | DrainPhase::Stuck => {
                state.until = until;
                state.report = DrainReport { phase: DrainPhase::Copying, ..DrainReport::default() };
                self.spawn(Arc::clone(self).drain_until_left());
            }
        }
        true
    }

    /// Has the file of the drain changed, if there is one, on a thread that may wait.
    async fn keep_drain(&self, change: impl FnOnce(&Path) + Send + 'static) {
        let Some(file) = self.config.drain_file.clone() else { return };
        if let Err(error) = self.runtime.spawn_blocking(move || change(&file)).await {
            tracing::warn!(%error, "whether this member drains was not kept for its next start");
        }
    }

    /// Goes on with the drain that an earlier start of this member had begun. It keeps nothing for others from now on, and
    /// copies as soon as the members are there and know what it holds.
    pub(super) fn resume_drain(self: &Arc<Self>) {
        let Some(unfinished) = Unfinished::load(self.config.drain_file.as_deref()) else { return };
        tracing::warn!("this member was draining when it ended, and goes on; `tidefs drain --stop` keeps it");
        let mut state = self.draining.state.lock();
        state.until = unfinished.left().map(|left| self.now() + left);
        state.report = DrainReport { phase: DrainPhase::Copying, ..DrainReport::default() };
        drop(state);
        let core = Arc::clone(self);
        self.spawn(async move {
            while !core.is_out_of_time() && (core.others().is_empty() || !core.plan.was_done()) {
                tokio::time::sleep(core.config.timings.tick).await;
            }
            core.drain_until_left().await;
        });
    }

    async fn drain_until_left(self: Arc<Self>) {
        tracing::info!("this member drains");
        self.parting.begin();
        let (mut fruitless, mut fewest) = (0, u64::MAX);
        let end = loop {
            // What was published since the last walk is nothing that the next one finds to be missing.
            self.drain_most_noted().await;
            let Some(walk) = self.drain_walk().await else { break DrainPhase::Late };
            if walk.left == 0 && walk.copied <= walk.looked_at / FEW {
                (fruitless, fewest) = (0, u64::MAX);
                if self.leave_after_walk().await {
                    break DrainPhase::Left;
                }
                // What is written here or evicted elsewhere meanwhile is found by another walk.
                if !self.wait_to_leave().await {
                    break DrainPhase::Late;
                }
                continue;
            }
            // Copies that push out those made before are no progress.
            let todo = walk.left + walk.copied;
            fruitless = if todo < fewest { 0 } else { fruitless + 1 };
            fewest = fewest.min(todo);
            if fruitless == FRUITLESS_MAX {
                break DrainPhase::Stuck;
            }
            if walk.left > 0 {
                tokio::time::sleep(PAUSE).await;
            }
        };
        self.parting.end();
        let left = {
            let mut state = self.draining.state.lock();
            state.report.phase = end;
            state.others.clear();
            state.report.objects_left
        };
        let keeping = self.draining.keeping.lock().await;
        // Unless another one has begun.
        if self.drain_report().phase != DrainPhase::Copying {
            self.keep_drain(|file| Unfinished::forget(Some(file))).await;
        }
        drop(keeping);
        if end == DrainPhase::Left {
            tracing::info!("the drain of this member has ended: it has left");
        } else {
            tracing::warn!(
                phase = ?end,
                left,
                "the drain of this member has ended before it could leave, and it stays with what it holds; the next drain goes on"
            );
        }
    }

    /// As [`Self::drain_noted`], until little is published meanwhile. Returns whether others hold what was noted.
    pub(super) async fn drain_most_noted(self: &Arc<Self>) -> bool {
        for _ in 0..NOTED_ROUNDS {
            match self.drain_noted().await {
                None => return false,
                Some(count) if count <= AT_ONCE => break,
                Some(_) => {}
            }
        }
        true
    }

    /// Has enough other members hold what was published since that was asked last. Returns how much that was, `None` when they
    /// do not hold it.
    pub(super) async fn drain_noted(self: &Arc<Self>) -> Option<usize> {
        let noted = self.parting.take()?;
        let count = noted.len();
        let (mut noted, mut under_way) = (noted.into_iter(), JoinSet::new());
        loop {
            for holding in noted.by_ref().take(AT_ONCE - under_way.len()) {
                let core = Arc::clone(self);
                under_way.spawn(async move { core.drain_one(holding).await.0 });
            }
            match under_way.join_next().await {
                None => return Some(count),
                Some(Ok(copied)) if !is_left(copied) && !self.is_out_of_time() => {}
                // The next walk finds those that are given up with it.
                Some(_) => return None,
            }
        }
    }

    pub(super) fn is_out_of_time(&self) -> bool {
        self.draining.state.lock().until.is_some_and(|until| self.now() >= until)
    }

    /// Walks through all that is here, the hottest first. `None` when the time is over.
    async fn drain_walk(self: &Arc<Self>) -> Option<Walk> {
        let holder = self.holder.upgrade()?;
        // Whoever begins after this asks this member in turn.
        let others = self.others_that_drain().await;
        self.draining.state.lock().others = others;
        let (places, bytes) = holder.hottest();
        {
            let report = &mut self.draining.state.lock().report;
            // What is written meanwhile comes on top.
            report.objects = report.objects.max(places.len() as u64);
            report.bytes = report.bytes.max(bytes.get());
            report.objects_left = places.len() as u64;
            report.bytes_left = bytes.get();
        }
        // Also when there is nothing to walk through.
        if self.is_out_of_time() {
            return None;
        }
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let walk = Arc::new(Mutex::new(Walk::default()));
        let mut under_way = JoinSet::new();
        for place in places {
            if self.is_out_of_time() {
                under_way.shutdown().await;
                return None;
            }
            while under_way.try_join_next().is_some() {}
            if self.parting.is_filling() && self.drain_noted().await.is_none() {
                walk.lock().left += 1;
            }
            let Some(holding) = holder.holding_at(place) else {
                self.note_drained(ByteCount::ZERO);
                continue;
            };
            let turn = Arc::clone(&turns).acquire_owned().await.ok()?;
            let (core, walk) = (Arc::clone(self), Arc::clone(&walk));
            under_way.spawn(async move {
                let size = match holding.facts {
                    Facts::File(facts) => facts.size,
                    Facts::Directory(_) => ByteCount::ZERO,
                };
                let (copied, made) = core.drain_one(holding).await;
                let mut walk = walk.lock();
                walk.looked_at += 1;
                walk.copied += u64::from(made.copies);
                if is_left(copied) {
                    walk.left += 1;
                } else {
                    core.note_drained(size);
                }
                drop(turn);
            });
        }
        while under_way.join_next().await.is_some() {}
        Some(std::mem::take(&mut *walk.lock()))
    }

    fn note_drained(&self, size: ByteCount) {
        let report = &mut self.draining.state.lock().report;
        report.objects_left = report.objects_left.saturating_sub(1);
        report.bytes_left = report.bytes_left.saturating_sub(size.get());
    }

    /// Has enough other members hold one thing. Returns how many copies that took.
    async fn drain_one(self: &Arc<Self>, holding: Holding) -> (Copied, Made) {
        let Holding { path, stamp, facts, .. } = holding;
        let Some(holder) = self.holder.upgrade() else { return (Copied::NotNow, Made::default()) };
        match facts {
            Facts::Directory(_) => (self.drain_directory(path).await, Made::default()),
            Facts::File(facts) => {
                let (head, replicas) = (holder.head(&path), facts.replicas.max(1));
                let wish = Wish { path, stamp, size: facts.size, replicas, head };
                let copied = self.copy(&wish, false).await;
                if copied.0 == Copied::Absent {
                    // The next walk finds it there, or not here any more.
                    self.announce_what_is_held(&wish.path);
                    self.plan.wake();
                }
                copied
            }
        }
    }

    /// Has another member know a directory.
    async fn drain_directory(self: &Arc<Self>, path: Vec<u8>) -> Copied {
        let view = self.seen().view.clone();
        let (mut refusing, head) = (BTreeSet::new(), KeyId::of(&path));
        // The stamp of every directory.
        let wish = Wish { path, stamp: Stamp(0), size: ByteCount::ZERO, replicas: 1, head };
        loop {
            let is_candidate =
                |member| member != self.me.member && !refusing.contains(&member) && !self.is_suspect(member);
            let Some(target) = replica_target(&view, head, &[], is_candidate) else { return Copied::NotNow };
            match self.ask_to_keep(target, &wish).await {
                Kept::Done | Kept::Gone => return Copied::Enough,
                Kept::NotNow | Kept::Leaving => drop(refusing.insert(target)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_question_that_panics_ends_no_drain_and_its_member_counts_as_one_that_drains() {
        let ask = |stays: Option<u64>, has_bug: bool| async move {
            assert!(!has_bug, "the bug that this test is about");
            stays.map(MemberId)
        };
        let mut asked = JoinSet::new();
        for (stays, has_bug) in [(None, true), (Some(2), false), (None, false)] {
            asked.spawn(ask(stays, has_bug));
        }
        let members = BTreeSet::from([1, 2, 3].map(MemberId));
        assert_eq!(but_those_that_stay(members, asked).await, BTreeSet::from([1, 3].map(MemberId)));
    }
}
