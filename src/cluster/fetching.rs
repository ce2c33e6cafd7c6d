//! Reading the bytes of an object from a member that holds it: the best source first, the others when that fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_engine::engine::RegionDescriptor;
use tidefs_engine::memory::{Access, MemorySlice, PageKind, Region};
use tidefs_engine::request::{Batch, LocalPlace, RemotePlace, Request};
use tidefs_engine::transport::Direction;
use tidefs_engine::types::{ByteCount, MemberId, PeerId, RegionId};
use xxhash_rust::xxh3::xxh3_64;

use super::catalog::wire::{LEND, Lend, Lending, Message, RELEASE, Release};
use super::core::Core;
use super::error::ClusterError;
use super::node::Wanted;
use super::object::Copy;

/// Weight of the latest measurement in a peer's rate.
const RATE_GAIN: f64 = 0.25;
/// Above this a checksum is taken on a thread that may block.
const CHECKSUM_INLINE: u64 = 1 << 20;

/// Where the bytes go.
#[derive(Clone, Debug)]
enum Target {
    Bytes,
    Region(Arc<Region>, RegionId),
}

/// Ends a loan when it is dropped, without waiting.
struct Borrowed {
    core: Arc<Core>,
    owner: PeerId,
    loan: u64,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.core.carrier.notify(self.owner, RELEASE, Release { loans: vec![self.loan] }.encode());
        if let Some(peer) = self.core.peers.lock().get_mut(&self.owner.member) {
            peer.reads_under_way = peer.reads_under_way.saturating_sub(1);
        }
    }
}

/// Withdraws a region of this process when it is dropped.
struct Registered {
    core: Arc<Core>,
    id: RegionId,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some(engine) = self.core.engine.clone() else { return };
        let id = self.id;
        self.core.runtime.spawn(async move { engine.unregister(id).await });
    }
}

impl Core {
    /// The sources, the best first: those that are there before those that are lost, memory before SSD, idle ones before
    /// busy ones, fast ones before slow ones.
    pub(super) fn rank(&self, copies: &[Copy]) -> Vec<MemberId> {
        let me = self.me.member;
        let mut ranked: Vec<(bool, u8, usize, u64, MemberId)> = copies
            .iter()
            .filter(|copy| copy.member != me)
            .map(|copy| (self.is_suspect(copy.member), copy.medium.distance(), 0, 0, copy.member))
            .collect();
        let peers = self.peers.lock();
        for (_, _, under_way, slowness, member) in &mut ranked {
            if let Some(peer) = peers.get(member) {
                *under_way = peer.reads_under_way;
                // What was never measured is tried before what is known to be slow.
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a rate in MB/s fits, and is not negative"
                )]
                let rate = (peer.read_rate / 1e6) as u64;
                *slowness = if rate == 0 { 0 } else { u64::MAX - rate };
            }
        }
        drop(peers);
        ranked.sort_unstable();
        ranked.into_iter().map(|(.., member)| member).collect()
    }

    pub(super) async fn fetch_bytes(
        self: &Arc<Self>,
        wanted: Wanted,
        deadline: Instant,
    ) -> Result<(Vec<u8>, u64), ClusterError> {
        let (bytes, checksum) = self.fetch(&wanted, &Target::Bytes, deadline).await?;
        Ok((bytes, checksum))
    }

    pub(super) async fn fetch_into(
        self: &Arc<Self>,
        wanted: Wanted,
        region: Arc<Region>,
        deadline: Instant,
    ) -> Result<u64, ClusterError> {
        if wanted.size > region.length() {
            return Err(ClusterError::OtherLength { found: wanted.size, wanted: region.length() });
        }
        let engine = self.engine.as_ref().ok_or(ClusterError::Closed)?;
        let id = engine.register(&region)?;
        let registered = Registered { core: Arc::clone(self), id };
        let result = self.fetch(&wanted, &Target::Region(region, id), deadline).await;
        drop(registered);
        result.map(|(_, checksum)| checksum)
    }

    async fn fetch(
        self: &Arc<Self>,
        wanted: &Wanted,
        target: &Target,
        deadline: Instant,
    ) -> Result<(Vec<u8>, u64), ClusterError> {
        let sources = self.rank(&wanted.copies);
        let mut reason = "no other member holds it".to_owned();
        let mut asked = 0;
        for (at, &member) in sources.iter().enumerate() {
            let left = self.until(deadline);
            if left.is_zero() {
                break;
            }
            let Some(peer) = self.peer_id(member) else { continue };
            asked += 1;
            // A source that hangs must leave time for another one.
            let share = if at + 1 < sources.len() { left / 2 } else { left };
            match self.fetch_from(peer, wanted, target, self.within(share)).await {
                Ok(fetched) => {
                    self.counters.fetches.increment();
                    self.counters.fetched_bytes.add(wanted.size.get());
                    return Ok(fetched);
                }
                Err(error) => {
                    tracing::debug!(%peer, %error, "a source did not give the bytes");
                    self.counters.fetch_retries.increment();
                    reason = error.to_string();
                }
            }
        }
        self.counters.fetch_failures.increment();
        Err(ClusterError::NoSource { asked, reason })
    }

    async fn fetch_from(
        self: &Arc<Self>,
        peer: PeerId,
        wanted: &Wanted,
        target: &Target,
        deadline: Instant,
    ) -> Result<(Vec<u8>, u64), ClusterError> {
        let for_ms = u32::try_from(self.until(deadline).as_millis()).unwrap_or(u32::MAX);
        let lend = Lend { path: wanted.path.clone(), stamp: wanted.stamp, for_ms };
        let answer = self.call(peer.member, LEND, lend.encode(), deadline).await?;
        match Lending::decode(&answer)? {
            Lending::NotHeld => {
                Err(ClusterError::NoSource { asked: 1, reason: "not held any more".to_owned() })
            }
            Lending::Inline { bytes, checksum } => {
                self.check_length(ByteCount(bytes.len() as u64), wanted)?;
                self.check(checksum, xxh3_64(&bytes))?;
                match target {
                    Target::Bytes => Ok((bytes, checksum)),
                    Target::Region(region, _) if region.write_at(0, &bytes) => Ok((Vec::new(), checksum)),
                    Target::Region(region, _) => {
                        Err(ClusterError::OtherLength { found: wanted.size, wanted: region.length() })
                    }
                }
            }
            Lending::Region { loan, length, checksum, region } => {
                if let Some(peer) = self.peers.lock().get_mut(&peer.member) {
                    peer.reads_under_way += 1;
                }
                let borrowed = Borrowed { core: Arc::clone(self), owner: peer, loan };
                self.check_length(ByteCount(length), wanted)?;
                let remote = RegionDescriptor::decode(&region)?;
                let read = match target {
                    Target::Region(local, id) => {
                        self.pull(peer, remote, local, *id, wanted.size, checksum, deadline).await?;
                        Vec::new()
                    }
                    Target::Bytes => self.pull_bytes(peer, remote, wanted.size, checksum, deadline).await?,
                };
                drop(borrowed);
                Ok((read, checksum))
            }
        }
    }

    fn check_length(&self, found: ByteCount, wanted: &Wanted) -> Result<(), ClusterError> {
        if found == wanted.size {
            Ok(())
        } else {
            Err(ClusterError::OtherLength { found, wanted: wanted.size })
        }
    }

    fn check(&self, wanted: u64, found: u64) -> Result<(), ClusterError> {
        if wanted == found {
            return Ok(());
        }
        self.counters.corrupt.increment();
        Err(tidefs_engine::error::Error::Corrupt { found, wanted }.into())
    }

    async fn pull_bytes(
        self: &Arc<Self>,
        peer: PeerId,
        remote: RegionDescriptor,
        length: ByteCount,
        checksum: u64,
        deadline: Instant,
    ) -> Result<Vec<u8>, ClusterError> {
        let out_of_memory = |error: std::io::Error| {
            ClusterError::from(tidefs_engine::error::Error::system("memory for an object", &error))
        };
        let pages = ByteCount(length.get().max(1)).round_up_to_pages();
        let region = Region::anonymous(pages, PageKind::Base, Access::Read).map_err(out_of_memory)?;
        let region = Arc::new(region);
        let engine = self.engine.as_ref().ok_or(ClusterError::Closed)?;
        let registered = Registered { core: Arc::clone(self), id: engine.register(&region)? };
        self.pull(peer, remote, &region, registered.id, length, checksum, deadline).await?;
        let mut bytes = vec![0; usize::try_from(length.get()).unwrap_or(0)];
        region.read_at(0, &mut bytes);
        Ok(bytes)
    }

    /// Reads from a peer's region into the start of one of ours, and compares the checksum.
    #[expect(clippy::too_many_arguments, reason = "both ends of one transfer")]
    async fn pull(
        self: &Arc<Self>,
        peer: PeerId,
        remote: RegionDescriptor,
        local: &Arc<Region>,
        id: RegionId,
        length: ByteCount,
        checksum: u64,
        deadline: Instant,
    ) -> Result<(), ClusterError> {
        let engine = self.engine.as_ref().ok_or(ClusterError::Closed)?;
        let began = self.now();
        let request = Request {
            direction: Direction::Read,
            local: LocalPlace { region: id, offset: 0 },
            remote: RemotePlace { peer, region: remote.id, offset: 0 },
            length,
        };
        engine.import(peer, remote);
        engine.submit(Batch::new(vec![request], deadline)).await.into_result()?;
        self.note_rate(peer.member, length, self.now().saturating_sub(began));
        let slice = MemorySlice::new(local, id, 0, length)?;
        let found = if length.get() <= CHECKSUM_INLINE {
            slice.checksum()
        } else {
            let taken = self.runtime.spawn_blocking(move || slice.checksum()).await;
            taken.map_err(|_| ClusterError::Closed)?
        };
        self.check(checksum, found)
    }

    fn note_rate(&self, member: MemberId, length: ByteCount, time: Duration) {
        // Short transfers measure round trips.
        if length < ByteCount::kib(256) {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = length.get() as f64 / time.as_secs_f64().max(1e-6);
        if let Some(peer) = self.peers.lock().get_mut(&member) {
            let old = peer.read_rate;
            peer.read_rate = if old == 0.0 { rate } else { old + RATE_GAIN * (rate - old) };
        }
    }
}
