//! Regions that peers may name, and who is using them.
//!
//! A connection that serves an operation holds a [`Lease`]. Withdrawing a region takes it from the table and, where there
//! are leases, wakes the connections, which let go of its memory at once, and waits for the last of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;
use tokio::sync::Notify;

use super::frame::{Header, Kind, Reason};
use crate::error::Error;
use crate::memory::{Access, MemorySlice, Region};
use crate::transport::until;
use crate::types::{ByteCount, RegionId};

/// All registered regions.
#[derive(Debug, Default)]
pub(super) struct Registry {
    /// Read for each operation of a peer, written when a region comes or goes.
    regions: RwLock<HashMap<RegionId, Arc<Registration>>>,
    next: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Registration {
    region: Arc<Region>,
    /// Never used twice, so that what was told about an earlier registration of the same id is not taken for this.
    number: u64,
    is_withdrawn: AtomicBool,
    leases: AtomicUsize,
    idle: Notify,
}

/// The right to touch the memory of a region until it is asked back.
#[derive(Debug)]
pub(super) struct Lease(Arc<Registration>);

impl Lease {
    fn new(registration: &Arc<Registration>) -> Self {
        registration.leases.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(registration))
    }

    /// Whether somebody waits for it to be let go.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.0.is_withdrawn.load(Ordering::Acquire)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.0.leases.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

impl Registration {
    /// Whether nobody has a lease. Of one that is withdrawn that stays so.
    pub(super) fn is_idle(&self) -> bool {
        self.leases.load(Ordering::Acquire) == 0
    }

    /// Resolves when nobody has a lease. Called when it is withdrawn, so nobody gets one any more.
    pub(super) async fn wait_idle(&self) {
        until(&self.idle, || self.is_idle()).await;
    }
}

impl Registry {
    /// Takes a region; returns what tells this registration from others.
    pub(super) fn register(&self, id: RegionId, region: &Arc<Region>) -> Result<u64, Error> {
        let mut regions = self.regions.write();
        if regions.contains_key(&id) {
            return Err(Error::transport(super::NAME, format!("region {id} is registered already")));
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let registration = Registration {
            region: Arc::clone(region),
            number,
            is_withdrawn: AtomicBool::new(false),
            leases: AtomicUsize::new(0),
            idle: Notify::new(),
        };
        regions.insert(id, Arc::new(registration));
        Ok(number)
    }

    /// Takes a region from the table. Leases are still out until [`Registration::wait_idle`].
    pub(super) fn withdraw(&self, id: RegionId) -> Option<Arc<Registration>> {
        let registration = self.regions.write().remove(&id)?;
        registration.is_withdrawn.store(true, Ordering::Release);
        Some(registration)
    }

    /// The memory that a request means, with the right to touch it.
    ///
    /// # Errors
    /// Why not, and what is said beside the reason.
    pub(super) fn lease(&self, request: &Header) -> Result<(MemorySlice, Lease), (Reason, u64)> {
        let lease = {
            let regions = self.regions.read();
            let registration = regions.get(&request.region);
            let registration = registration.filter(|found| found.number == request.registration);
            Lease::new(registration.ok_or((Reason::NoSuchRegion, 0))?)
        };
        let region = &lease.0.region;
        let is_allowed = region.access() == Access::ReadWrite && region.is_writable();
        if request.kind == Kind::Write && !is_allowed {
            return Err((Reason::ReadOnly, 0));
        }
        let slice = MemorySlice::new(region, request.region, request.offset, ByteCount(request.length));
        match slice {
            Ok(slice) => Ok((slice, lease)),
            Err(_) => Err((Reason::OutOfRange, region.length().get())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::header;
    use super::*;
    use crate::memory::PageKind;

    #[test]
    fn what_is_withdrawn_is_idle_when_its_last_lease_is_back_and_gives_no_other() {
        let registry = Registry::default();
        let region = Region::anonymous(ByteCount(4096), PageKind::Base, Access::ReadWrite).unwrap();
        let id = RegionId(7);
        let number = registry.register(id, &Arc::new(region)).unwrap();
        let request = Header { region: id, registration: number, ..header(Kind::Read, 4096) };
        let (_, lease) = registry.lease(&request).unwrap();
        assert!(!lease.is_withdrawn());
        let withdrawn = registry.withdraw(id).unwrap();
        assert!(lease.is_withdrawn() && !withdrawn.is_idle());
        assert_eq!(registry.lease(&request).unwrap_err().0, Reason::NoSuchRegion);
        drop(lease);
        assert!(withdrawn.is_idle() && registry.withdraw(id).is_none());
    }
}
