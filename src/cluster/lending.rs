//! Lending bytes to readers on other members.
//!
//! Invariants
//! - What is lent stays as it is until its loan has ended and no peer touches it any more: the region is withdrawn first,
//!   and the holder's hold dropped then.
//! - A loan ends when the reader gives it back, when the reader's connection ends, or when its time is over.
//!
//! Threads: those of the runtime, which carry all else between members: where to register memory may take long, one that may
//! block, [`REGISTERING_MAX`] of these at most. A further loan waits for one of them, on no thread, for a while, and is refused then.
//! Limits: [`LOANS_MAX`] loans at once, or half of `vm.max_map_count`, as each is a mapping; beyond, the object is not lent, and the reader goes elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidefs_engine::engine::{Answer, Engine, TransportName};
use tidefs_engine::memory::{Access, Region};
use tidefs_engine::types::{ByteCount, PeerId, RegionId};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::batcher::Haste;
use super::catalog::wire::{Change, INLINE_MAX, Lend, Lending, Message, Release};
use super::core::Core;
use super::object::{Hold, LentBytes, Unlent};
use super::peers::Link;

/// Loans at once, where the kernel allows so many.
const LOANS_MAX: usize = 65_536;
/// Loans that are being registered at once where that may take long, on a thread each: an eighth of the threads that tokio has for
/// what waits, 512. Withdrawals, which others wait for, need some, too.
pub(super) const REGISTERING_MAX: usize = 64;
/// Mappings of a process that the kernel allows where it does not say.
///
/// # Source
/// Documentation/admin-guide/sysctl/vm.rst, `max_map_count`.
const MAPPINGS: usize = 65_530;

/// Loans at once where a process may have so many mappings: each is one, and half of them are for everything else.
fn loans_max(mappings: usize) -> usize {
    LOANS_MAX.min(mappings / 2)
}

/// Whether to register memory may take long: a NIC pins its pages, on a thread that may have an endpoint to open first.
pub(super) fn registers_slowly(engine: &Engine) -> bool {
    engine.descriptor().transports.iter().any(|name| name == TransportName::Libfabric.as_str())
}

/// How many mappings the kernel allows.
fn mappings() -> usize {
    let said = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    said.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(MAPPINGS)
}

/// A registered region that is lent; withdrawn when the last loan of it ends.
#[derive(Debug)]
struct LentRegion {
    engine: Engine,
    runtime: Handle,
    id: RegionId,
    /// Whether the reader has said that it is done with it.
    is_given_back: bool,
    /// What keeps the bytes as they are; dropped when no peer touches them any more.
    hold: Option<Hold>,
}

impl Drop for LentRegion {
    fn drop(&mut self) {
        let (engine, id, hold) = (self.engine.clone(), self.id, self.hold.take());
        let is_given_back = self.is_given_back;
        self.runtime.spawn(async move {
            if is_given_back {
                engine.unregister_unused(id).await;
            } else {
                engine.unregister(id).await;
            }
            drop(hold);
        });
    }
}

#[derive(Debug)]
struct Loan {
    reader: PeerId,
    until: Duration,
    region: LentRegion,
}

/// What is lent now.
#[derive(Debug)]
pub(super) struct Loans {
    next: AtomicU64,
    max: usize,
    /// Held for a look-up; loans are dropped outside.
    loans: Mutex<BTreeMap<u64, Loan>>,
    /// A loan that is registered slowly has one of these until its thread is done with it, whether or not somebody still waits
    /// for that.
    registering: Arc<Semaphore>,
}

impl Default for Loans {
    fn default() -> Self {
        Self {
            next: AtomicU64::new(0),
            max: loans_max(mappings()),
            loans: Mutex::default(),
            registering: Arc::new(Semaphore::new(REGISTERING_MAX)),
        }
    }
}

impl Loans {
    pub(super) fn len(&self) -> usize {
        self.loans.lock().len()
    }

    pub(super) fn clear(&self) {
        drop(std::mem::take(&mut *self.loans.lock()));
    }
}

impl Core {
    pub(super) fn answer_lend(self: &Arc<Self>, reader: PeerId, lend: Lend) -> Answer {
        let core = Arc::clone(self);
        Answer::Later(Box::pin(async move {
            let lending = core.lend(reader, lend).await?;
            Ok(lending.encode())
        }))
    }

    async fn lend(self: &Arc<Self>, reader: PeerId, lend: Lend) -> Result<Lending, String> {
        let Some(holder) = self.holder.upgrade() else { return Ok(Lending::NotHeld) };
        let lent = match holder.lend(lend.path.clone(), lend.stamp).await {
            Ok(lent) => lent,
            Err(Unlent::NotNow) => return Err("it cannot be read now".to_owned()),
            Err(Unlent::Gone) => {
                // The catalog is wrong about this member, unless it knows already.
                self.note(Change::LetGo { path: lend.path, stamp: lend.stamp }, Haste::Now);
                return Ok(Lending::NotHeld);
            }
        };
        let checksum = lent.checksum;
        let (lending, length) = match lent.bytes {
            LentBytes::Inline(bytes) if bytes.len() > INLINE_MAX => {
                return Err(format!("{} bytes are too many for one answer", bytes.len()));
            }
            LentBytes::Inline(bytes) => {
                let length = bytes.len() as u64;
                (Lending::Inline { bytes, checksum }, length)
            }
            LentBytes::Segment(file, length) => {
                let (for_ms, hold) = (lend.for_ms, lent.hold);
                let lending = if self.registers_slowly {
                    let place = self.place_to_register().await?;
                    let core = Arc::clone(self);
                    let lending = self.runtime.spawn_blocking(move || {
                        let lending = core.lend_region(reader, for_ms, hold, file, length, checksum);
                        drop(place);
                        lending
                    });
                    lending.await.map_err(|error| error.to_string())?
                } else {
                    self.lend_region(reader, for_ms, hold, file, length, checksum)
                };
                (lending?, length.get())
            }
        };
        self.counters.lent.increment();
        self.counters.lent_bytes.add(length);
        Ok(lending)
    }

    /// Waits until one more loan may be registered on a thread of its own.
    async fn place_to_register(&self) -> Result<OwnedSemaphorePermit, String> {
        let places = Arc::clone(&self.loans.registering);
        match timeout(self.config.timings.background, places.acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) | Err(_) => {
                self.counters.loans_refused.increment();
                tracing::debug!("an object is not lent: NICs take too long to register what is lent already");
                Err(format!("{REGISTERING_MAX} objects are being registered already"))
            }
        }
    }

    fn lend_region(
        &self,
        reader: PeerId,
        for_ms: u32,
        hold: Hold,
        file: Arc<std::fs::File>,
        length: ByteCount,
        checksum: u64,
    ) -> Result<Lending, String> {
        let Some(engine) = &self.engine else { return Err("no engine moves bytes here".to_owned()) };
        let max = self.loans.max;
        if self.loans.len() >= max {
            self.counters.loans_refused.increment();
            tracing::debug!(max, "an object is not lent: too many are; vm.max_map_count allows more");
            return Err(format!("{max} objects are lent already"));
        }
        let region = Region::of_file(file, length, Access::Read).map_err(|error| error.to_string())?;
        let id = engine.register(&Arc::new(region)).map_err(|error| error.to_string())?;
        let (engine, runtime) = (engine.clone(), self.runtime.clone());
        let region = LentRegion { engine, runtime, id, is_given_back: false, hold: Some(hold) };
        let Some(descriptor) = region.engine.describe(id) else {
            return Err("the region is gone".to_owned());
        };
        let loan = self.loans.next.fetch_add(1, Ordering::Relaxed) + 1;
        let time = Duration::from_millis(u64::from(for_ms)).min(self.config.timings.loan);
        let until = self.now() + time + self.config.timings.tick;
        let replaced = self.loans.loans.lock().insert(loan, Loan { reader, until, region });
        drop(replaced);
        if self.is_gone(reader) {
            // Its connection ended meanwhile: nobody gives this back.
            self.drop_loans_of(reader);
            return Err(format!("the connection to {reader} has ended"));
        }
        Ok(Lending::Region { loan, length: length.get(), checksum, region: descriptor.encode() })
    }

    /// Whether the connection to `reader` has ended, or a later start of it was met.
    pub(super) fn is_gone(&self, reader: PeerId) -> bool {
        let (peers, gone) = (self.peers.lock(), self.gone.lock());
        let has_ended = peers.get(&reader.member).is_some_and(|peer| {
            let is_later = peer.id.incarnation > reader.incarnation;
            is_later || (peer.id == reader && matches!(peer.link, Link::Down(_)))
        });
        has_ended || gone.get(&reader.member).is_some_and(|gone| gone.id().incarnation >= reader.incarnation)
    }

    /// The reader gives back what it was lent.
    pub(super) fn take_back(&self, reader: PeerId, release: &Release) {
        let mut ended = Vec::new();
        let mut loans = self.loans.loans.lock();
        for loan in &release.loans {
            if loans.get(loan).is_some_and(|known| known.reader == reader) {
                ended.extend(loans.remove(loan));
            }
        }
        drop(loans);
        // Its operations have ended before it says so.
        ended.iter_mut().for_each(|loan: &mut Loan| loan.region.is_given_back = true);
        drop(ended);
    }

    /// The connection of a reader has ended.
    pub(super) fn drop_loans_of(&self, reader: PeerId) {
        drop(self.end_loans(|loan| loan.reader == reader));
    }

    /// Ends loans whose time is over.
    pub(super) fn expire_loans(&self, now: Duration) {
        let ended = self.end_loans(|loan| loan.until < now);
        if !ended.is_empty() {
            tracing::warn!(count = ended.len(), "readers kept what they were lent for too long");
            self.counters.loans_expired.add(ended.len() as u64);
        }
    }

    fn end_loans(&self, is_over: impl Fn(&Loan) -> bool) -> Vec<Loan> {
        let mut loans = self.loans.loans.lock();
        let over: Vec<u64> =
            loans.iter().filter(|(_, loan)| is_over(loan)).map(|(&number, _)| number).collect();
        over.iter().filter_map(|number| loans.remove(number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_lent_than_leaves_half_of_all_mappings_to_others() {
        assert_eq!([65_530, 262_144, 1000].map(loans_max), [32_765, LOANS_MAX, 500]);
        assert!(Loans::default().max > 0);
    }
}
