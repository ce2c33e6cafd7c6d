//! A member of the cluster, as the datapath sees it: finds names, publishes and removes them, reads bytes of others.
//!
//! Calls that are asynchronous do their work in a task of the runtime that the member was started with, so they may be awaited
//! from anywhere, and dropping their future gives up the answer, not the work. [`Cluster::find`] may, too, but works in its
//! caller; [`Cluster::settle`] only waits. Threads of their own use [`Cluster::wait`].
//!
//! What a caller remembers of an answer must not outlive a revocation that overtakes it: it notes what [`appeared`],
//! [`withdraw`] and [`forget_answers`] say while a question is under way, and forgets the answer then.
//!
//! [`appeared`]: super::Holder::appeared
//! [`withdraw`]: super::Holder::withdraw
//! [`forget_answers`]: super::Holder::forget_answers

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_engine::engine::Engine;
use tidefs_engine::types::{ByteCount, MemberId};

use super::agreeing::Unapplied;
use super::batcher::Haste;
use super::catalog::wire::{Change, DrainOrder, DrainReport, is_told_of};
use super::coordinator::{NamespaceChange, Reachability};
use super::copying::Wish;
use super::core::Core;
use super::error::ClusterError;
use super::fetching::Fetch;
use super::object::{Copy, Facts, Found, Listing, Medium, Stamp};
use super::publishing::PublishGuard;
use super::removing::Removal;
use super::shards::KeyId;
use super::status::{ClusterStatus, Counters};

/// How often a member looks whether it is announced.
const SETTLE_PAUSE: Duration = Duration::from_millis(2);

/// This daemon as a member. Cheap to clone; all clones are one member.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub(super) core: Arc<Core>,
}

/// What became of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The version that it is.
    pub stamp: Stamp,
    /// Whether everyone who had to know has answered. If not, some member did not answer in time; it is told later.
    pub is_settled: bool,
}

/// The bytes of an object that are asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Name.
    pub path: Vec<u8>,
    /// Which version.
    pub stamp: Stamp,
    /// Its length.
    pub size: ByteCount,
    /// Who holds it, as [`Found::Present`] said.
    pub copies: Vec<Copy>,
}

impl Cluster {
    /// Runs `work` in a task of the runtime, so that it may be awaited from anywhere and goes on when it is not.
    async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        self.core.runtime.spawn(work).await.ok()
    }

    /// Waits on a thread that is not the runtime's.
    ///
    /// # Panics
    /// On a thread of a runtime, as [`Handle::block_on`](tokio::runtime::Handle::block_on).
    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        self.core.runtime.block_on(future)
    }

    /// Who this member is.
    #[must_use]
    pub fn me(&self) -> MemberId {
        self.core.me.member
    }

    /// What stands under each of these names elsewhere: one message for each member that serves one of their shards.
    /// Names that nobody can be asked for by then are [`Found::Unknown`]. Never fails.
    ///
    /// What it asks first is sent by the thread that polls it first, which need not be the runtime's.
    ///
    /// # Cancellation
    /// Dropping the future gives up the question, too: who was asked may answer, and nobody else is asked.
    pub async fn find(&self, paths: Vec<Vec<u8>>, deadline: Instant) -> Vec<Found> {
        let mut finding = Box::pin(self.core.find(paths, deadline));
        poll_fn(|context| {
            let _entered = self.core.runtime.enter();
            finding.as_mut().poll(context)
        })
        .await
    }

    /// Says that what stands at `path` here is about to be published: until the answer is dropped it is not withdrawn by what
    /// was decided before. Held across [`publish`](Self::publish), and until the caller has noted the stamp that it gets.
    #[must_use]
    pub fn about_to_publish(&self, path: &[u8]) -> PublishGuard {
        self.core.about_to_publish(path)
    }

    /// Whether this member is publishing something at `path`.
    #[must_use]
    pub fn is_publishing(&self, path: &[u8]) -> bool {
        self.core.publishing.lock().is_under_way(path)
    }

    /// The version of a file that is to be published at `path`: `proposed`, or later, where something was removed there of which
    /// nobody who decides has heard yet.
    #[must_use]
    pub fn above_removed(&self, path: &[u8], proposed: Stamp) -> Stamp {
        self.core.unheard.above(path, proposed)
    }

    /// Makes what this member holds at `path` the version that everyone finds. When it resolves, the key's owners know it,
    /// nobody is answered the version before it any more, and nobody remembers that there was nothing.
    ///
    /// The holder may be asked to lend it, with the stamp that it gets, before this resolves. Of what has a path of more than
    /// [`PATH_MAX`](super::PATH_MAX) bytes nobody is told.
    ///
    /// # Errors
    /// [`ClusterError::NobodyReached`]: nobody who serves the key was reached. The caller keeps what it has; it is
    /// announced when somebody is reached, with the stamp that it has there: [`Cluster::above_removed`], of a file.
    /// # Cancellation
    /// It goes on.
    pub async fn publish(
        &self,
        path: Vec<u8>,
        proposed: Stamp,
        facts: Facts,
        deadline: Instant,
    ) -> Result<Published, ClusterError> {
        if !is_told_of(&path) {
            return Ok(Published { stamp: proposed, is_settled: true });
        }
        let core = Arc::clone(&self.core);
        let work = async move { core.publish_unless_leaving(path, proposed, facts, deadline).await };
        let (stamp, is_settled) = self.run(work).await.unwrap_or(Err(ClusterError::Closed))?;
        Ok(Published { stamp, is_settled })
    }

    /// Removes what has a name everywhere. When it resolves nobody finds it any more, and who comes back with a copy
    /// later is told to drop it. The caller has removed what it holds itself.
    ///
    /// # Errors
    /// As [`Cluster::publish`]; copies on other members live on until somebody who serves the key is reached. That is tried
    /// as long as this member lives, and nothing of it is found here meanwhile.
    /// # Cancellation
    /// It goes on.
    pub async fn remove(&self, removal: Removal, deadline: Instant) -> Result<(), ClusterError> {
        let core = Arc::clone(&self.core);
        let work = async move { core.remove(removal, deadline).await };
        self.run(work).await.unwrap_or(Err(ClusterError::Closed))
    }

    /// As [`Cluster::remove`], in the background.
    pub fn remove_later(&self, path: Vec<u8>, through: Stamp) {
        self.core.remove_later(path, through);
    }

    /// Waits until what is agreed on about directories holds here, all that this member held when it joined is announced, and
    /// what is not valid any more withdrawn. Returns whether that happened before the deadline.
    pub async fn settle(&self, deadline: Instant) -> bool {
        if !self.core.has_applied(0, deadline).await {
            return false;
        }
        while !self.core.seen().is_alone && !self.core.plan.was_done() {
            if self.core.until(deadline).is_zero() {
                return false;
            }
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
        true
    }

    /// Announces all that this member holds to everyone who serves it, again.
    pub fn announce_again(&self) {
        self.core.plan_everything();
    }

    /// The number of the view that this member goes by: as long as it is the same, the same members serve each name.
    #[must_use]
    pub fn view(&self) -> u64 {
        self.core.seen().view.number
    }

    /// Has what this member holds at `path` announced to those who serve it, and copies made of it that its policy wants, in the
    /// background.
    pub fn announce(&self, path: &[u8]) {
        let seen = self.core.seen();
        // Who is alone announces all that it holds to who joins.
        if !seen.is_alone {
            self.core.announce_unpublished(&seen, KeyId::of(path).shard());
            self.core.plan.wake();
        }
    }

    /// This member has no copy of that version any more. Told in the background.
    pub fn let_go(&self, path: &[u8], stamp: Stamp) {
        self.core.note(Change::LetGo { path: path.to_vec(), stamp }, Haste::Soon);
    }

    /// This member has a copy of that version, or has it in another place now. Told in the background, and as a rule
    /// before what is dropped from here on of what was fetched is given back.
    pub fn hold(&self, path: &[u8], stamp: Stamp, medium: Medium) {
        self.core.note(Change::Hold { path: path.to_vec(), stamp, medium }, Haste::Soon);
    }

    /// Reads a small object (up to [`super::catalog::wire::INLINE_MAX`] in one message) from who holds it: its bytes and
    /// their checksum, which was compared.
    ///
    /// # Errors
    /// [`ClusterError::NoSource`]: to the reader it does not exist.
    pub async fn fetch_bytes(
        &self,
        wanted: Wanted,
        deadline: Instant,
    ) -> Result<(Vec<u8>, u64), ClusterError> {
        let core = Arc::clone(&self.core);
        let work = async move { core.fetch_bytes(wanted, deadline).await };
        self.run(work).await.unwrap_or(Err(ClusterError::Closed))
    }

    /// Whether any of those who hold copies is not lost.
    #[must_use]
    pub fn is_any_there(&self, copies: &[Copy]) -> bool {
        copies.iter().any(|copy| !self.core.is_suspect(copy.member))
    }

    /// The member that is asked first for one of these copies. `None` when no other member has one.
    #[must_use]
    pub fn first_source(&self, copies: &[Copy]) -> Option<MemberId> {
        self.core.first_source(copies)
    }

    /// Begins to read an object from who holds it: the best source is asked for it at once, while the caller makes room. A
    /// source that answers nothing for `patience` is left for the next one. Not for threads of the runtime.
    #[must_use]
    pub fn fetch(&self, wanted: Wanted, patience: Duration, deadline: Instant) -> Fetch {
        Fetch::begin(&self.core, wanted, patience, deadline)
    }

    /// Up to `max` names of a directory on all members, in the order of cookies, from beyond `after` on, and
    /// who did not answer in time.
    pub async fn list(&self, directory: Vec<u8>, after: u64, max: usize, deadline: Instant) -> Listing {
        let core = Arc::clone(&self.core);
        let work = async move { core.list(directory, after, max, deadline).await };
        self.run(work).await.unwrap_or_default()
    }

    /// Whether the coordinator can be reached now.
    #[must_use]
    pub fn reaches_coordinator(&self) -> bool {
        matches!(self.core.coordinator.reachability(), Reachability::Reached)
    }

    /// Changes what all members agree on about the directory at `path`. When it resolves they go by it, but for those that
    /// are returned.
    ///
    /// # Errors
    /// [`ClusterError::Coordinator`] when it was not reached before the deadline: nothing has changed then, but what was on its
    /// way, as to a disk of the keeper that takes too long, may still come into force.
    /// # Cancellation
    /// It goes on.
    pub async fn agree(
        &self,
        path: Vec<u8>,
        change: NamespaceChange,
        deadline: Instant,
    ) -> Result<Unapplied, ClusterError> {
        let core = Arc::clone(&self.core);
        let work = async move { core.agree(&path, change, deadline).await };
        self.run(work).await.unwrap_or(Err(ClusterError::Closed))
    }

    /// Forgets what the members agree on about the directory at `path`.
    ///
    /// # Errors
    /// As [`Cluster::agree`].
    ///
    /// # Cancellation
    /// As [`Cluster::agree`].
    pub async fn disagree(&self, path: Vec<u8>, deadline: Instant) -> Result<Unapplied, ClusterError> {
        let core = Arc::clone(&self.core);
        let work = async move { core.disagree(&path, deadline).await };
        self.run(work).await.unwrap_or(Err(ClusterError::Closed))
    }

    /// Whether something is agreed on about the directory at `path` now, also where this member has not heard of it. `false`
    /// where the coordinator does not say that: a keeper of an earlier build.
    ///
    /// # Errors
    /// [`ClusterError::Coordinator`] when it was not reached before the deadline.
    ///
    /// # Cancellation
    /// As [`Cluster::agree`].
    pub async fn has_record(&self, path: Vec<u8>, deadline: Instant) -> Result<bool, ClusterError> {
        let core = Arc::clone(&self.core);
        let work = async move { core.has_record(&path, deadline).await };
        self.run(work).await.unwrap_or(Err(ClusterError::Closed))
    }

    /// What operators call the members of the view. Looks at no table.
    #[must_use]
    pub fn names(&self) -> BTreeMap<MemberId, String> {
        self.core.names()
    }

    /// What operators are shown.
    #[must_use]
    pub fn status(&self) -> ClusterStatus {
        self.core.status()
    }

    /// What was counted since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// The engine that carries bytes and messages.
    #[must_use]
    pub fn engine(&self) -> Option<&Engine> {
        self.core.engine.as_ref()
    }

    /// Keeps what only this member knows to be removed, for its next start. Before it [leaves](Self::leave), which may take a while;
    /// what is removed meanwhile is kept by that.
    pub fn keep_removals(&self) {
        self.core.keep_removals();
    }

    /// Tells everyone that this member goes, and takes it out of the view. What it holds is not found any more, and it decides
    /// nothing more; what only it knows to be removed by then is kept for its next start.
    ///
    /// # Errors
    /// [`ClusterError::Coordinator`] when the coordinator is away; the registration then ends with its lease.
    pub async fn leave(&self, deadline: Instant) -> Result<(), ClusterError> {
        let core = Arc::clone(&self.core);
        self.run(async move { core.leave_for_good(deadline).await })
            .await
            .unwrap_or(Err(ClusterError::Closed))
    }

    /// Has copies of an object that is published made on other members. Nobody waits for that.
    pub fn wish(&self, wish: Wish) {
        if is_told_of(&wish.path) {
            self.core.wish(wish);
        }
    }

    /// Looks at all that is held here, and has missing copies made.
    pub fn check_copies(&self) {
        self.core.copying.walk();
    }

    /// This member and all others that it has met and not forgotten.
    #[must_use]
    pub fn met(&self) -> Vec<MemberId> {
        let (peers, gone) = (self.core.peers.lock(), self.core.gone.lock());
        peers.keys().chain(gone.keys()).copied().chain([self.core.me.member]).collect()
    }

    /// Has `member` leave with nothing lost, or tells how far that is.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] when there is nobody to take what it holds; [`ClusterError::Engine`] when it is not
    /// reached.
    pub async fn drain(&self, member: MemberId, order: DrainOrder) -> Result<DrainReport, ClusterError> {
        let core = Arc::clone(&self.core);
        let work = async move { core.drain(member, order).await };
        self.run(work).await.unwrap_or(Err(ClusterError::Closed))
    }

    /// Ends all tasks and connections. Idempotent.
    pub async fn close(&self) {
        let core = Arc::clone(&self.core);
        self.run(async move { core.close().await }).await;
    }
}
