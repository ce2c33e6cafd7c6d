//! What a host of a test holds, and what it does with that for others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use tidefs_engine::types::{BoxFuture, ByteCount, MemberId};
use tokio::sync::watch;
use twox_hash::{XxHash3_64, XxHash3_128};

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
    pub(super) fn facts(&self) -> Facts {
        if self.is_directory {
            return Facts::Directory(DirectoryFacts { mode: 0o755, uid: 0, gid: 0 });
        }
        Facts::File(FileFacts {
            size: ByteCount(self.bytes.len() as u64),
            mtime_ns: 0,
            mode: 0o644,
            uid: 0,
            gid: 0,
            checksum: Some(XxHash3_64::oneshot(&self.bytes)),
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
    pub(super) revocations: u64,
    /// Lends nothing, as a host whose memory fails.
    pub(super) lends_nothing: bool,
    /// Never answers whether it lends, as a host whose disk hangs.
    pub(super) lends_never: bool,
    /// Lends bytes that are not those of the checksum.
    pub(super) lends_wrong_bytes: bool,
    /// How many hosts are to hold what was looked up.
    pub(super) wanted: BTreeMap<Vec<u8>, u8>,
    /// Names of what is on a disk of the host.
    pub(super) on_ssd: BTreeSet<Vec<u8>>,
    /// Of what went there or came back, and was not told.
    pub(super) moved: BTreeSet<Vec<u8>>,
    /// Has no room for copies.
    pub(super) is_full: bool,
    /// Withdraws when this says so, as a busy host does.
    pub(super) withdraws_when: Option<watch::Receiver<bool>>,
    /// A name that is evicted, as for room, when it was just listed to be announced.
    pub(super) leaves_when_announced: Option<Vec<u8>>,
    /// How often somebody began to go through all that is held.
    pub(super) walks: u64,
    /// The member that it is, to fetch what it is asked to keep.
    cluster: Option<Cluster>,
}

impl State {
    fn holding(&self, path: &[u8]) -> Option<Holding> {
        let object = self.objects.get(path)?;
        let medium = match object.is_soft {
            _ if self.on_ssd.contains(path) => Medium::Ssd,
            true => Medium::Soft,
            false => Medium::Memory,
        };
        Some(Holding { path: path.to_vec(), stamp: object.stamp, facts: object.facts(), medium })
    }
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
    u64::try_from(XxHash3_128::oneshot(name) >> 65).unwrap() + 1
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
                LentBytes::Inline(object.bytes.to_vec())
            } else {
                LentBytes::Segment(memfd(&object.bytes), ByteCount(object.bytes.len() as u64))
            },
            checksum: XxHash3_64::oneshot(&object.bytes),
        });
        if let Some(lent) = lent.as_mut().filter(|_| state.lends_wrong_bytes) {
            lent.checksum ^= 1;
        }
        // Another version that is held may be the one, and not know yet which stamp the catalog gave it.
        let is_held = state.objects.contains_key(&path);
        Box::pin(std::future::ready(lent.ok_or(if is_held { Unlent::NotNow } else { Unlent::Gone })))
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
                if let Some(cluster) = state.cluster.as_ref() {
                    cluster.hold(&path, stamp, Medium::Memory);
                }
                return Box::pin(std::future::ready(Ok(ByteCount::ZERO)));
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
        (state.objects.keys().map(|path| XxHash3_64::oneshot(path)).collect(), ByteCount(bytes))
    }

    fn holding_at(&self, place: u64) -> Option<Holding> {
        let state = self.state.lock();
        // Where it lies stays the same while others come and go.
        let path = state.objects.keys().find(|path| XxHash3_64::oneshot(path) == place)?;
        state.holding(path).filter(|holding| holding.medium.is_hard())
    }

    fn tell_moved(&self, max: usize) -> usize {
        let mut state = self.state.lock();
        let paths: Vec<Vec<u8>> = state.moved.iter().take(max).cloned().collect();
        for path in &paths {
            state.moved.remove(path);
            if let (Some(cluster), Some(holding)) = (&state.cluster, state.holding(path)) {
                cluster.hold(path, holding.stamp, holding.medium);
            }
        }
        paths.len()
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

    fn was_announced(&self, _path: &[u8]) {}

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
        let mut state = self.state.lock();
        let start = usize::try_from(after).unwrap();
        let page: Vec<Holding> = state
            .objects
            .keys()
            .skip(start)
            .take(max)
            .filter(|path| is_wanted(KeyId::of(path).shard()))
            .filter_map(|path| state.holding(path))
            .collect();
        let next = start + max;
        let next = (next < state.objects.len()).then_some(next as u64);
        // Who looks for missing copies wants to hear of all.
        let is_walk = (0..64).filter_map(Shard::with_number).all(is_wanted);
        state.walks += u64::from(is_walk && after == 0);
        let is_listed = |path: &mut Vec<u8>| !is_walk && page.iter().any(|holding| holding.path == *path);
        if let Some(path) = state.leaves_when_announced.take_if(is_listed)
            && let (Some(object), Some(cluster)) = (state.objects.remove(&path), &state.cluster)
        {
            cluster.let_go(&path, object.stamp);
        }
        (page, next)
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
