//! A host as the datapath is one: what it holds, answers that are remembered, and the calls in the order in which the datapath
//! makes them.

use std::sync::Arc;
use std::time::Instant;

use tidefs_engine::types::ByteCount;

use super::memory::{Memory, Object, Remembered};
use crate::cluster::shards::KeyId;
use crate::cluster::*;

/// What a look-up says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Absent,
    Here(Stamp),
    Elsewhere(Stamp, Vec<Copy>, u64),
    Unknown,
}

impl Seen {
    pub(super) fn is_present(&self) -> bool {
        matches!(self, Self::Here(_) | Self::Elsewhere(..))
    }
}

/// A member with what it holds.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) cluster: Cluster,
    pub(super) memory: Arc<Memory>,
}

impl Host {
    /// Writes a version, as a seal does: here first, then for everyone.
    pub(super) async fn write(
        &self,
        path: &str,
        bytes: &[u8],
        at: Stamp,
        deadline: Instant,
    ) -> Result<Published, ClusterError> {
        self.put(
            path,
            Object { stamp: at, bytes: bytes.into(), is_directory: false, is_soft: false, replicas: 1 },
            deadline,
        )
        .await
    }

    /// The same, and `replicas` hosts are to hold it.
    pub(super) async fn write_copies(
        &self,
        path: &str,
        bytes: &[u8],
        at: Stamp,
        replicas: u8,
        deadline: Instant,
    ) -> Result<Published, ClusterError> {
        let object = Object { stamp: at, bytes: bytes.into(), is_directory: false, is_soft: false, replicas };
        let published = self.put(path, object, deadline).await?;
        let (size, head) = (ByteCount(bytes.len() as u64), KeyId::of(path.as_bytes()));
        self.cluster.wish(Wish { path: path.into(), stamp: published.stamp, size, replicas, head });
        Ok(published)
    }

    pub(super) async fn make_directory(
        &self,
        path: &str,
        deadline: Instant,
    ) -> Result<Published, ClusterError> {
        self.put(
            path,
            Object { stamp: Stamp(0), bytes: Arc::new([]), is_directory: true, is_soft: false, replicas: 1 },
            deadline,
        )
        .await
    }

    async fn put(&self, path: &str, object: Object, deadline: Instant) -> Result<Published, ClusterError> {
        let (key, facts, at) = (path.as_bytes().to_vec(), object.facts(), object.stamp);
        let _under_way = {
            let mut state = self.memory.state.lock();
            state.objects.insert(key.clone(), object);
            state.answers.remove(&key);
            self.cluster.about_to_publish(&key)
        };
        let published = self.cluster.publish(key.clone(), at, facts, deadline).await?;
        let mut state = self.memory.state.lock();
        let is_it = |object: &&mut Object| object.stamp == at && !object.is_directory;
        if let Some(object) = state.objects.get_mut(&key).filter(is_it) {
            object.stamp = published.stamp;
        }
        Ok(published)
    }

    /// Looks a name up: here, in what is remembered, and then in the catalog.
    pub(super) async fn look_up(&self, path: &str, deadline: Instant) -> Seen {
        let asked_at = {
            let state = self.memory.state.lock();
            if let Some(object) = state.objects.get(path.as_bytes()) {
                return Seen::Here(object.stamp);
            }
            if let Some(Remembered::Absent) = state.answers.get(path.as_bytes()) {
                return Seen::Absent;
            }
            state.revocations
        };
        let mut found = self.cluster.find(vec![path.as_bytes().to_vec()], deadline).await;
        let mut state = self.memory.state.lock();
        let is_current = state.revocations == asked_at;
        let mut remember = |answer| {
            if is_current {
                state.answers.insert(path.as_bytes().to_vec(), answer);
            }
        };
        match found.pop().unwrap() {
            Found::Absent { is_watched } => {
                if is_watched {
                    remember(Remembered::Absent);
                }
                Seen::Absent
            }
            Found::Present { stamp, facts, copies } => {
                remember(Remembered::Present(stamp));
                let (size, replicas) = match facts {
                    Facts::File(file) => (file.size.get(), file.replicas),
                    Facts::Directory(_) => (0, 1),
                };
                state.wanted.insert(path.as_bytes().to_vec(), replicas);
                Seen::Elsewhere(stamp, copies, size)
            }
            Found::Unknown => Seen::Unknown,
        }
    }

    /// Reads a name: nothing when it is not there, or nobody gives it.
    pub(super) async fn read(&self, path: &str, deadline: Instant) -> Option<Vec<u8>> {
        self.fetch(path, deadline, false).await
    }

    /// The same, and what was fetched stays as a copy that leaves first.
    pub(super) async fn read_and_keep(&self, path: &str, deadline: Instant) -> Option<Vec<u8>> {
        self.fetch(path, deadline, true).await
    }

    async fn fetch(&self, path: &str, deadline: Instant, keeps: bool) -> Option<Vec<u8>> {
        let asked_at = self.memory.state.lock().revocations;
        match self.look_up(path, deadline).await {
            Seen::Here(_) => {
                let state = self.memory.state.lock();
                state.objects.get(path.as_bytes()).map(|object| object.bytes.to_vec())
            }
            Seen::Elsewhere(stamp, copies, size) => {
                let wanted = Wanted { path: path.into(), stamp, size: ByteCount(size), copies };
                let (bytes, _) = self.cluster.fetch_bytes(wanted, deadline).await.ok()?;
                if keeps {
                    self.keep_softly(path, stamp, &bytes, asked_at);
                }
                Some(bytes)
            }
            Seen::Absent | Seen::Unknown => None,
        }
    }

    /// Keeps what was fetched, as a copy that leaves first, unless something changed since it was asked for.
    fn keep_softly(&self, path: &str, stamp: Stamp, bytes: &[u8], asked_at: u64) {
        let mut state = self.memory.state.lock();
        if state.revocations == asked_at && !state.objects.contains_key(path.as_bytes()) {
            let replicas = state.wanted.get(path.as_bytes()).copied().unwrap_or(1);
            let object = Object { stamp, bytes: bytes.into(), is_directory: false, is_soft: true, replicas };
            state.objects.insert(path.into(), object);
            state.answers.remove(path.as_bytes());
            self.cluster.hold(path.as_bytes(), stamp, Medium::Soft);
        }
    }

    pub(super) async fn unlink(&self, path: &str, at: Stamp, deadline: Instant) -> Result<(), ClusterError> {
        {
            let mut state = self.memory.state.lock();
            state.objects.remove(path.as_bytes());
            state.answers.remove(path.as_bytes());
        }
        let path = path.as_bytes().to_vec();
        let removal = Removal { path, through: at, is_directory: false, spares_later: false };
        self.cluster.core.remove(removal, deadline).await
    }

    /// Evicts an object, as for room.
    pub(super) fn evict(&self, path: &str) {
        let evicted = self.memory.state.lock().objects.remove(path.as_bytes());
        if let Some(object) = evicted {
            self.cluster.let_go(path.as_bytes(), object.stamp);
        }
    }

    /// An object leaves memory for a disk, or comes back.
    pub(super) fn move_to_ssd(&self, path: &str, is_on_ssd: bool) {
        let mut state = self.memory.state.lock();
        let path = path.as_bytes().to_vec();
        state.moved.insert(path.clone());
        if is_on_ssd {
            state.on_ssd.insert(path)
        } else {
            state.on_ssd.remove(&path)
        };
    }

    /// Whether its process was killed: what its programs were doing then has failed, as far as they can tell.
    pub(super) fn is_dead(&self) -> bool {
        self.cluster.core.is_closed.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(super) fn remembers(&self, path: &str) -> Option<Remembered> {
        self.memory.state.lock().answers.get(path.as_bytes()).cloned()
    }
}
