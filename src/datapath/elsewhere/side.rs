//! This daemon's place in its cluster: it has one, is to have one, or is alone.
//!
//! Invariant: what is removed while this host is to be a member and is none yet is told to the others when it is, or by a later
//! start.
//!
//! Limits: [`REMOVED_ALONE_MAX`] such removals; further ones are told to nobody, counted in `catalog_failures`, and warned of
//! once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidefs_engine::types::ByteCount;
use tokio::runtime::Handle;

use super::super::Datapath;
use super::{shown, turns};
use crate::cluster::{Cluster, Stamp};

/// Removals that are kept until this host is a member, at most.
const REMOVED_ALONE_MAX: usize = 65_536;

/// What this host removes while it is to be a member and is none yet.
#[derive(Debug, Default)]
pub(super) struct Solitude {
    /// Name, and up to which version.
    removed: Vec<(Vec<u8>, Stamp)>,
    /// It was said that there is more than is kept, of which there is no less until this host is a member.
    has_warned: bool,
}

impl Solitude {
    /// Returns `false` when there are too many.
    fn add(&mut self, path: Vec<u8>, through: Stamp) -> bool {
        let is_room = self.removed.len() < REMOVED_ALONE_MAX;
        if is_room {
            self.removed.push((path, through));
        }
        is_room
    }

    /// Whether it is to be warned of one that is told to nobody.
    fn warns(&mut self) -> bool {
        !std::mem::replace(&mut self.has_warned, true)
    }
}

/// This daemon's place in its cluster.
#[derive(Debug)]
pub struct ClusterSide {
    pub(super) cluster: Arc<Cluster>,
    pub(super) runtime: Handle,
    /// How long a look-up, a publication or a removal waits for other members.
    patience: Duration,
    /// How long a fetch of up to `fetch_whole_max` bytes may take.
    pub(super) fetch_limit: Duration,
    /// Larger objects are read while they arrive.
    pub(super) fetch_whole_max: ByteCount,
    /// Reads after which a soft copy stays longer than those that were read less.
    soft_after: u16,
    shown_max: usize,
    pub(super) turns: turns::Turns,
}

impl ClusterSide {
    /// A side that waits `patience` for messages and `fetch_limit` for bytes.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, runtime: Handle, patience: Duration, fetch_limit: Duration) -> Self {
        let fetch_whole_max = ByteCount(u64::MAX);
        Self {
            cluster,
            runtime,
            patience,
            fetch_limit,
            fetch_whole_max,
            soft_after: 2,
            shown_max: shown::SHOWN_MAX,
            turns: turns::Turns::default(),
        }
    }

    /// The same, where larger objects are read while they arrive.
    #[must_use]
    pub fn with_fetch_whole_max(self, fetch_whole_max: ByteCount) -> Self {
        Self { fetch_whole_max, ..self }
    }

    /// The same, where a fetched copy outlives those that were read less once it was read `reads` times.
    #[must_use]
    pub fn with_soft_after(self, reads: u16) -> Self {
        Self { soft_after: reads, ..self }
    }

    /// The same, where `count` objects of others are shown beside those that the kernel knows.
    #[must_use]
    pub fn with_shown_max(self, count: usize) -> Self {
        Self { shown_max: count, ..self }
    }

    /// The member itself.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// Where what waits for peers runs.
    #[must_use]
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }
}

impl Datapath {
    /// Says that the daemon is to be a member of a cluster. Until it is, names that are not here are misses, and nobody
    /// remembers that they are absent. Before it is mounted.
    pub fn expect_cluster(self: &Arc<Self>) {
        self.know_itself();
        self.expects_cluster.store(true, Ordering::Relaxed);
        self.lock().elsewhere.solitude = Some(Solitude::default());
    }

    /// There is no cluster: what was fetched from one in an earlier life counts as what was written here.
    pub fn expect_no_cluster(&self) {
        self.lock().harden_all();
    }

    /// Makes the daemon a member of a cluster, once, before or after it is mounted.
    pub fn attach_cluster(self: &Arc<Self>, side: ClusterSide) {
        self.know_itself();
        self.expects_cluster.store(true, Ordering::Relaxed);
        let (cluster, soft_after, shown_max) = (Arc::clone(&side.cluster), side.soft_after, side.shown_max);
        // A second attach would be a bug of the composition root; the first one stays in force.
        if self.cluster.set(side).is_err() {
            return;
        }
        let removed_alone = {
            let mut state = self.lock();
            state.elsewhere.cluster = Some(Arc::clone(&cluster));
            state.elsewhere.soft_after = soft_after;
            state.elsewhere.shown.max = shown_max;
            state.elsewhere.solitude.take().unwrap_or_default()
        };
        for (path, through) in removed_alone.removed {
            cluster.remove_later(path, through);
        }
        self.agree_on_the_rest();
        // What was sealed while it joined may have been passed over, and nobody was asked for copies of it.
        cluster.announce_again();
        cluster.check_copies();
        self.forget_names_in_kernel();
    }

    /// Whether the daemon is a member of a cluster, or is to be.
    #[must_use]
    pub fn is_in_cluster(&self) -> bool {
        self.expects_cluster.load(Ordering::Relaxed)
    }

    /// Has the other members told, without anybody waiting for it, that a name is removed; when there is somebody to tell.
    pub(in crate::datapath) fn remove_later(&self, path: Vec<u8>, through: Stamp) {
        let mut state = self.lock();
        if let Some(solitude) = &mut state.elsewhere.solitude {
            if solitude.add(path, through) {
                return;
            }
            let warns = solitude.warns();
            drop(state);
            self.telemetry.catalog_failures.increment();
            if warns {
                tracing::warn!(
                    "{REMOVED_ALONE_MAX} names were removed since the start; one more is not told to the cluster later"
                );
            }
            return;
        }
        drop(state);
        if let Some(side) = self.cluster.get() {
            side.cluster.remove_later(path, through);
        }
    }

    /// What was removed since the start, while this host is no member yet: it is told by nobody else from now on.
    #[must_use]
    pub fn take_removed_alone(&self) -> Vec<(Vec<u8>, Stamp)> {
        self.lock().elsewhere.solitude.as_mut().map(std::mem::take).unwrap_or_default().removed
    }

    /// The cluster that this daemon is a member of, if it is.
    #[must_use]
    pub fn cluster(&self) -> Option<&ClusterSide> {
        self.cluster.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_removed_alone_is_bounded_and_warned_of_once() {
        let mut solitude = Solitude::default();
        assert!((0..REMOVED_ALONE_MAX).all(|number| solitude.add(number.to_be_bytes().to_vec(), Stamp(1))));
        assert!(!solitude.add(b"one more".to_vec(), Stamp(1)));
        assert_eq!([(); 3].map(|()| solitude.warns()), [true, false, false]);
        assert_eq!(solitude.removed.len(), REMOVED_ALONE_MAX);
    }
}
