//! Moving what another member lent into memory of this host, and comparing its checksum while the rest arrives.
//!
//! An object is read in parts, each of which is hashed when all before it are: the bytes are still in the processor's cache,
//! and the last part is all that is hashed after the last byte came. What one source gave stays when it fails: the next one
//! goes on from there.
//!
//! What a program waits for goes first, then what one will wait for, then what is kept for others. These have a part of a
//! connection that programs keep full, too ([`Priority`]): else no copy would ever be made. Parts that are asked for go by who
//! waits then, so that few are under way of what nobody waits for.
//!
//! Limits: [`PARTS_MAX`] parts under way, [`PARTS_AHEAD`] of what no program waits for yet, and [`PARTS_TO_KEEP`] of what is for
//! others.
//! Threads: whoever waits for the bytes, which is no thread of the runtime.

use std::collections::VecDeque;
use std::hash::Hasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use tidefs_engine::engine::Engine;
use tidefs_engine::memory::{Access, MemorySlice, PageKind, Region};
use tidefs_engine::queue::{Priority, TransferHandle};
use tidefs_engine::request::{Batch, LocalPlace, RemotePlace, Request};
use tidefs_engine::transport::Direction;
use tidefs_engine::types::{ByteCount, RegionId};
use twox_hash::XxHash3_64;

use super::copying::AT_ONCE;
use super::core::Core;
use super::error::ClusterError;
use super::fetching::{Arrival, LentRegion, Whole};

/// Bytes of a part: long enough that a request for each costs little, short enough to be in the cache when it is hashed.
const PART: u64 = 512 << 10;
/// Parts under way at once: 32 MiB keep a link of 100 Gbit/s busy for 2.6 ms.
const PARTS_MAX: usize = 64;
/// The same of an object that no program waits for yet.
const PARTS_AHEAD: usize = PARTS_MAX / 4;
/// The same of an object that is to be kept for others: all copies that are made at once are before a program's parts no
/// longer than one object that another program reads.
const PARTS_TO_KEEP: usize = PARTS_MAX / AT_ONCE;
const _: () = assert!(PARTS_TO_KEEP > 1, "the next part comes while one is hashed");

/// A region that is registered until this is dropped.
#[derive(Debug)]
pub(super) struct Registered {
    core: Arc<Core>,
    id: RegionId,
}

impl Registered {
    pub(super) fn new(core: &Arc<Core>, region: &Arc<Region>) -> Result<Self, ClusterError> {
        let id = core.engine()?.register(region)?;
        Ok(Self { core: Arc::clone(core), id })
    }

    pub(super) fn id(&self) -> RegionId {
        self.id
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some(engine) = self.core.engine.clone() else { return };
        let id = self.id;
        // No peer was told of it.
        self.core.runtime.spawn(async move { engine.unregister_unused(id).await });
    }
}

/// Why an object is read from another member; the later ones are more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Another member wants a copy to be here.
    Keeping,
    /// A program of this host will wait for it.
    Ahead,
    /// Somebody waits for it.
    Reading,
}

/// Why an object is read, for as long as it is: by then somebody may have come who waits for it. The least urgent by default.
#[derive(Clone, Debug, Default)]
pub struct SharedPurpose(Arc<AtomicU8>);

impl SharedPurpose {
    /// The first one.
    #[must_use]
    pub fn new(purpose: Purpose) -> Self {
        Self(Arc::new(AtomicU8::new(purpose as u8)))
    }

    /// Somebody wants it for this, too.
    pub fn raise(&self, purpose: Purpose) {
        self.0.fetch_max(purpose as u8, Ordering::Relaxed);
    }

    /// The most urgent one.
    #[must_use]
    pub fn get(&self) -> Purpose {
        let purpose = self.0.load(Ordering::Relaxed);
        let is_this = |one: &Purpose| *one as u8 == purpose;
        [Purpose::Keeping, Purpose::Ahead].into_iter().find(is_this).unwrap_or(Purpose::Reading)
    }
}

impl Purpose {
    /// How many parts are under way at once.
    fn parts_max(self) -> usize {
        match self {
            Self::Reading => PARTS_MAX,
            Self::Ahead => PARTS_AHEAD,
            Self::Keeping => PARTS_TO_KEEP,
        }
    }

    /// What it goes before on its connection.
    fn priority(self) -> Priority {
        match self {
            Self::Reading => Priority::Urgent,
            Self::Ahead => Priority::Normal,
            Self::Keeping => Priority::Background,
        }
    }
}

/// How long what is read may take, and why it is read.
#[derive(Clone, Debug)]
pub(super) struct Times {
    pub(super) purpose: SharedPurpose,
    /// Any part that was asked for.
    pub(super) patience: Duration,
    /// All of it.
    pub(super) deadline: Instant,
}

/// What has come of an object.
#[derive(Default)]
pub(super) struct Pulled {
    /// Of all bytes that are there.
    hasher: XxHash3_64,
    bytes: u64,
}

impl Pulled {
    /// How many bytes are there.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The parts of one object that are under way, in order.
struct Parts<'a> {
    engine: &'a Engine,
    lent: &'a LentRegion,
    local: RegionId,
    length: u64,
    times: Times,
    next: u64,
    under_way: VecDeque<(u64, u64, TransferHandle)>,
}

impl Parts<'_> {
    fn submit(&mut self) {
        let purpose = self.times.purpose.get();
        while self.under_way.len() < purpose.parts_max() && self.next < self.length {
            let (offset, length) = (self.next, PART.min(self.length - self.next));
            let remote = RemotePlace { peer: self.lent.owner(), region: self.lent.remote.id, offset };
            let request = Request {
                direction: Direction::Read,
                local: LocalPlace { region: self.local, offset },
                remote,
                length: ByteCount(length),
            };
            let deadline = self.times.deadline.min(Instant::now() + self.times.patience);
            let priority = purpose.priority();
            let handle = self.engine.submit(Batch { priority, ..Batch::new(vec![request], deadline) });
            self.under_way.push_back((offset, length, handle));
            self.next += length;
        }
    }

    /// Waits for the next part in order, and says where it is; `None` when there is none.
    fn next(&mut self) -> Result<Option<(u64, u64)>, ClusterError> {
        self.submit();
        let Some((offset, length, handle)) = self.under_way.pop_front() else { return Ok(None) };
        handle.wait().into_result()?;
        self.submit();
        Ok(Some((offset, length)))
    }
}

impl Drop for Parts<'_> {
    /// Nothing writes to the region when this is gone.
    fn drop(&mut self) {
        self.under_way.iter().for_each(|(_, _, handle)| handle.cancel());
        for (_, _, handle) in self.under_way.drain(..) {
            // It was given up: how it ends does not matter.
            let _ = handle.wait();
        }
    }
}

impl Core {
    pub(super) fn engine(&self) -> Result<&Engine, ClusterError> {
        self.engine.as_ref().ok_or(ClusterError::Closed)
    }

    /// Reads what is lent into the start of a region, from what was `pulled` on, and compares its checksum. Waits.
    pub(super) fn pull(
        &self,
        lent: &LentRegion,
        (target, local): (&Arc<Region>, RegionId),
        length: ByteCount,
        times: Times,
        pulled: &mut Pulled,
        arrival: &dyn Arrival,
    ) -> Result<(), ClusterError> {
        let engine = self.engine()?;
        let (began, from) = (self.now(), pulled.bytes);
        engine.import(lent.owner(), lent.remote.clone());
        let under_way = VecDeque::new();
        let mut parts = Parts { engine, lent, local, length: length.get(), times, next: from, under_way };
        let mut arrived = began;
        while let Some((offset, part)) = parts.next()? {
            arrived = self.now();
            let there = MemorySlice::new(target, local, offset, ByteCount(part))?;
            // SAFETY: the part is there whole, and nobody else was told of the region: who reads it while it arrives does not write.
            unsafe { there.hash_into(&mut pulled.hasher) };
            pulled.bytes = offset + part;
            arrival.arrived(ByteCount(pulled.bytes));
        }
        let moved = ByteCount(length.get().saturating_sub(from));
        self.note_rate(lent.owner().member, moved, arrived.saturating_sub(began));
        self.check(lent.checksum, pulled.hasher.finish())
    }

    /// Reads what is lent into memory of its own. Waits.
    pub(super) fn pull_bytes(
        self: &Arc<Self>,
        lent: &LentRegion,
        length: ByteCount,
        times: Times,
    ) -> Result<Vec<u8>, ClusterError> {
        let out_of_memory = |error: std::io::Error| {
            ClusterError::from(tidefs_engine::error::Error::system("memory for an object", &error))
        };
        let pages = ByteCount(length.get().max(1)).round_up_to_pages();
        let region = Region::anonymous(pages, PageKind::Base, Access::Read).map_err(out_of_memory)?;
        let region = Arc::new(region);
        let registered = Registered::new(self, &region)?;
        let target = (&region, registered.id());
        self.pull(lent, target, length, times, &mut Pulled::default(), &Whole)?;
        let mut bytes = vec![0; usize::try_from(length.get()).unwrap_or(0)];
        region.read_at(0, &mut bytes);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_goes_before_who_will_and_both_before_copies_for_others() {
        let [reading, ahead, keeping] =
            [Purpose::Reading, Purpose::Ahead, Purpose::Keeping].map(Purpose::priority);
        assert!(reading > ahead && ahead > keeping, "{reading:?} {ahead:?} {keeping:?}");
    }

    #[test]
    fn what_is_read_for_several_is_read_for_the_most_urgent_of_them() {
        let (keeping, ahead, reading) = (Purpose::Keeping, Purpose::Ahead, Purpose::Reading);
        let shared = SharedPurpose::new(keeping);
        let seen = shared.clone();
        for (raised, most) in
            [(keeping, keeping), (ahead, ahead), (keeping, ahead), (reading, reading), (ahead, reading)]
        {
            shared.raise(raised);
            assert_eq!(seen.get(), most, "after {raised:?}");
        }
    }
}
