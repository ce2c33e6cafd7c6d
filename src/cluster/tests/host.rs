//! A host as the datapath is one: objects in memory, answers that are remembered, and the calls in the order in which the
//! datapath makes them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tidefs_engine::types::{BoxFuture, ByteCount, MemberId};
use tokio::sync::watch;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::cluster::shards::{KeyId, Shard};
use crate::cluster::*;

/// An object in the memory of a host.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) stamp: Stamp,
    pub(super) bytes: Arc<[u8]>,
    pub(super) is_directory: bool,
    /// A copy of what another host wrote.
    pub(super) is_soft: bool,
    /// How many hosts are to hold it.
    pub(super) replicas: u8,
}

impl Object {
    fn medium(&self) -> Medium {
        if self.is_soft { Medium::Soft } else { Medium::Memory }
    }

    fn facts(&self) -> Facts {
        if self.is_directory {
            return Facts::Directory(DirectoryFacts { mode: 0o755, uid: 0, gid: 0 });
        }
        Facts::File(FileFacts {
            size: ByteCount(self.bytes.len() as u64),
            mtime_ns: 0,
            mode: 0o644,
            uid: 0,
            gid: 0,
            checksum: Some(xxh3_64(&self.bytes)),
            replicas: self.replicas,
        })
    }
}

/// What a host remembers of answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Remembered {
    Absent,
    Present(Stamp),
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) objects: BTreeMap<Vec<u8>, Object>,
    pub(super) answers: BTreeMap<Vec<u8>, Remembered>,
    /// How often something was revoked: an answer that was asked for before is not remembered.
    revocations: u64,
    /// Lends nothing, as a host whose memory fails.
    pub(super) lends_nothing: bool,
    /// Never answers whether it lends, as a host whose disk hangs.
    pub(super) lends_never: bool,
    /// Lends bytes that are not those of the checksum.
    pub(super) lends_wrong_bytes: bool,
    /// How many hosts are to hold what was looked up.
    wanted: BTreeMap<Vec<u8>, u8>,
    /// Has no room for copies.
    pub(super) is_full: bool,
    /// Withdraws when this says so, as a busy host does.
    pub(super) withdraws_when: Option<watch::Receiver<bool>>,
    /// The member that it is, to fetch what it is asked to keep.
    cluster: Option<Cluster>,
}

/// Longest object that is sent in an answer.
const SENT_AT_ONCE: usize = 64 << 10;

/// What a host holds.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) state: Arc<Mutex<State>>,
}

impl Memory {
    /// It is that of this member now.
    pub(super) fn belongs_to(&self, cluster: &Cluster) {
        self.state.lock().cluster = Some(cluster.clone());
    }
}

fn cookie(name: &[u8]) -> u64 {
    u64::try_from(xxh3_128(name) >> 65).unwrap() + 1
}

fn memfd(bytes: &[u8]) -> Arc<File> {
    let descriptor: OwnedFd =
        nix::sys::memfd::memfd_create(c"object", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
    let mut file = File::from(descriptor);
    file.write_all(bytes).unwrap();
    Arc::new(file)
}

impl Holder for Memory {
    fn lend(&self, path: Vec<u8>, stamp: Stamp) -> BoxFuture<'static, Result<Lent, Unlent>> {
        let state = self.state.lock();
        if state.lends_never {
            return Box::pin(std::future::pending());
        }
        if state.lends_nothing {
            return Box::pin(std::future::ready(Err(Unlent::NotNow)));
        }
        let object = state.objects.get(&path).filter(|object| object.stamp == stamp);
        let mut lent = object.map(|object| Lent {
            hold: Box::new(()),
            bytes: if object.bytes.len() <= SENT_AT_ONCE {
                LentBytes::Inline(Arc::clone(&object.bytes))
            } else {
                LentBytes::Segment(memfd(&object.bytes), ByteCount(object.bytes.len() as u64))
            },
            checksum: xxh3_64(&object.bytes),
        });
        if let Some(lent) = lent.as_mut().filter(|_| state.lends_wrong_bytes) {
            lent.checksum ^= 1;
        }
        Box::pin(std::future::ready(lent.ok_or(Unlent::Gone)))
    }

    fn withdraw(&self, path: Vec<u8>, through: Stamp) -> BoxFuture<'static, ()> {
        let memory = Arc::clone(&self.state);
        let held = memory.lock().withdraws_when.clone();
        let withdraw = move || {
            let mut state = memory.lock();
            if state.objects.get(&path).is_some_and(|object| object.stamp <= through) {
                state.objects.remove(&path);
            }
            state.answers.remove(&path);
            state.revocations += 1;
        };
        let Some(mut held) = held else {
            withdraw();
            return Box::pin(std::future::ready(()));
        };
        Box::pin(async move {
            // Who would say so is gone: nothing holds it any more.
            drop(held.wait_for(|may| *may).await);
            withdraw();
        })
    }

    fn keep(
        &self,
        path: Vec<u8>,
        stamp: Stamp,
        replicas: u8,
        _head: KeyId,
        from: MemberId,
    ) -> BoxFuture<'static, Result<ByteCount, Unkept>> {
        let (cluster, asked_at) = {
            let mut state = self.state.lock();
            if let Some(object) = state.objects.get_mut(&path).filter(|object| object.stamp == stamp) {
                (object.is_soft, object.replicas) = (false, replicas);
                let size = ByteCount(object.bytes.len() as u64);
                if let Some(cluster) = state.cluster.as_ref() {
                    cluster.hold(&path, stamp, Medium::Memory);
                }
                return Box::pin(std::future::ready(Ok(size)));
            }
            if state.is_full || state.objects.contains_key(&path) {
                return Box::pin(std::future::ready(Err(Unkept::NotNow)));
            }
            (state.cluster.clone(), state.revocations)
        };
        let memory = Arc::clone(&self.state);
        Box::pin(async move {
            let cluster = cluster.ok_or(Unkept::NotNow)?;
            let deadline = tokio::time::Instant::now().into_std() + std::time::Duration::from_secs(2);
            let found = cluster.find(vec![path.clone()], deadline).await.pop();
            let Some(Found::Present { stamp: found, facts: Facts::File(facts), .. }) = found else {
                return Err(Unkept::Gone);
            };
            if found != stamp {
                return Err(Unkept::Gone);
            }
            let copies = vec![Copy { member: from, medium: Medium::Memory }];
            let wanted = Wanted { path: path.clone(), stamp, size: facts.size, copies };
            let (bytes, _) = cluster.fetch_bytes(wanted, deadline).await.map_err(|_| Unkept::NotNow)?;
            let mut state = memory.lock();
            if state.revocations != asked_at || state.objects.contains_key(&path) {
                return Err(Unkept::NotNow);
            }
            let object = Object { stamp, bytes: bytes.into(), is_directory: false, is_soft: false, replicas };
            state.objects.insert(path.clone(), object);
            state.answers.remove(&path);
            cluster.hold(&path, stamp, Medium::Memory);
            Ok(facts.size)
        })
    }

    fn holds(&self, path: &[u8], stamp: Stamp) -> bool {
        self.state.lock().objects.get(path).is_some_and(|object| object.stamp == stamp)
    }

    fn head(&self, path: &[u8]) -> KeyId {
        KeyId::of(path)
    }

    fn hottest(&self) -> (Vec<u64>, ByteCount) {
        let state = self.state.lock();
        let bytes = state.objects.values().map(|object| object.bytes.len() as u64).sum();
        ((0..state.objects.len() as u64).collect(), ByteCount(bytes))
    }

    fn holding_at(&self, place: u64) -> Option<Holding> {
        let state = self.state.lock();
        let (path, object) = state.objects.iter().nth(usize::try_from(place).unwrap())?;
        let holding = Holding {
            path: path.clone(),
            stamp: object.stamp,
            facts: object.facts(),
            medium: object.medium(),
        };
        Some(holding).filter(|holding| holding.medium.is_hard())
    }

    fn inherit(&self, keys: &[KeyId]) -> Vec<(Vec<u8>, Stamp, Medium)> {
        let mut state = self.state.lock();
        let mut inherited = Vec::new();
        for (path, object) in &mut state.objects {
            if keys.contains(&KeyId::of(path)) && std::mem::take(&mut object.is_soft) {
                inherited.push((path.clone(), object.stamp, Medium::Memory));
            }
        }
        inherited
    }

    fn appeared(&self, paths: &[Vec<u8>]) {
        let mut state = self.state.lock();
        state.revocations += 1;
        for path in paths {
            state.answers.remove(path);
        }
    }

    fn forget_answers(&self, shards: &[Shard]) {
        let shards: std::collections::BTreeSet<Shard> = shards.iter().copied().collect();
        let mut state = self.state.lock();
        state.revocations += 1;
        state.answers.retain(|path, _| !shards.contains(&KeyId::of(path).shard()));
    }

    fn holdings(
        &self,
        is_wanted: &dyn Fn(Shard) -> bool,
        after: u64,
        max: usize,
    ) -> (Vec<Holding>, Option<u64>) {
        let state = self.state.lock();
        let start = usize::try_from(after).unwrap();
        let page: Vec<Holding> = state
            .objects
            .iter()
            .skip(start)
            .take(max)
            .filter(|(path, _)| is_wanted(KeyId::of(path).shard()))
            .map(|(path, object)| Holding {
                path: path.clone(),
                stamp: object.stamp,
                facts: object.facts(),
                medium: object.medium(),
            })
            .collect();
        let next = start + max;
        (page, (next < state.objects.len()).then_some(next as u64))
    }

    fn agreed(&self, _: &crate::cluster::coordinator::Namespaces) {}

    fn list(&self, directory: &[u8], after: u64, max: usize) -> Vec<ListedName> {
        let state = self.state.lock();
        let mut names: Vec<ListedName> = state
            .objects
            .iter()
            .filter_map(|(path, object)| {
                let name = path.strip_prefix(directory)?.strip_prefix(b"/")?.to_vec();
                Some(ListedName { cookie: cookie(&name), name, is_directory: object.is_directory })
            })
            .filter(|listed| listed.cookie > after && !listed.name.contains(&b'/'))
            .collect();
        names.sort_by_key(|listed| listed.cookie);
        names.truncate(max);
        names
    }
}

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
        {
            let mut state = self.memory.state.lock();
            state.objects.insert(key.clone(), object);
            state.answers.remove(&key);
        }
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
        self.cluster.core.remove(path.as_bytes().to_vec(), at, deadline).await
    }

    /// Evicts an object, as for room.
    pub(super) fn evict(&self, path: &str) {
        let evicted = self.memory.state.lock().objects.remove(path.as_bytes());
        if let Some(object) = evicted {
            self.cluster.let_go(path.as_bytes(), object.stamp);
        }
    }

    /// Whether its process was killed: what its programs were doing then has failed, as far as they can tell.
    pub(super) fn is_dead(&self) -> bool {
        self.cluster.core.is_closed.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(super) fn remembers(&self, path: &str) -> Option<Remembered> {
        self.memory.state.lock().answers.get(path.as_bytes()).cloned()
    }
}
