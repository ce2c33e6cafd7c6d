//! Memory that is registered with a NIC: all that is unsafe about it.
//!
//! Invariants
//! - What is registered is mapped.
//! - Who waits until it is withdrawn is told after the library has closed it: where that refuses, it is tried again, by the
//!   owner of the endpoint ([`Nic::take_stuck`]).
//!
//! Threads: used by the one thread that owns the NIC (`FI_THREAD_DOMAIN`).

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libfabric_sys as fi;
use libfabric_sys::call;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::super::nic::ffi::{Failure, Nic, Withdrawn, check};
use super::super::port::ffi::Port;
use super::super::registered::Portion;
use super::super::shares::Share;
use crate::memory::{Access, Region};

/// Memory that the NIC may touch. Its drop withdraws it, and with that everybody's right to it.
pub(in super::super) struct Registration {
    /// Null once it is withdrawn.
    mr: AtomicPtr<fi::fid_mr>,
    key: u64,
    region: Option<Arc<Region>>,
    /// Pages that are taken until it is closed.
    share: Option<Arc<Share>>,
    nic: Arc<Nic>,
    /// Whether peers may have operations under way when it is withdrawn.
    is_in_use: AtomicBool,
    /// Dropped last: whoever waits for these learns that the memory is safe.
    withdrawn: Mutex<Vec<Arc<oneshot::Sender<()>>>>,
}

// SAFETY: used by the thread that owns the domain, see the module page.
unsafe impl Send for Registration {}
// SAFETY: as for Send.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers the bytes `range` of the region of `portion` under `wanted_key`, which is unique in the domain; the provider may
    /// choose another.
    ///
    /// # Panics
    /// When the range leaves the region.
    pub(in super::super) fn new(
        port: &Port,
        portion: &Portion,
        range: Range<u64>,
        wanted_key: u64,
    ) -> Result<Self, Failure> {
        let region = &portion.region;
        let nic = &port.nic;
        let library = nic.library();
        assert!(range.start <= range.end && range.end <= region.length().get(), "{range:?} of {region:?}");
        let as_usize = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let iov = libc::iovec {
            iov_base: region.base().wrapping_add(as_usize(range.start)).cast(),
            iov_len: as_usize(range.end - range.start),
        };
        let local = if region.is_writable() { fi::FI_READ | fi::FI_WRITE } else { fi::FI_WRITE };
        let remote = match region.access() {
            Access::Read => fi::FI_REMOTE_READ,
            Access::ReadWrite => fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE,
        };
        let attr = fi::fi_mr_attr {
            mr_iov: &raw const iov,
            iov_count: 1,
            access: local | remote,
            requested_key: wanted_key,
            iface: fi::FI_HMEM_SYSTEM,
            ..Default::default()
        };
        let mut mr = ptr::null_mut();
        // SAFETY: the domain is open; `iov` lives through the call and names memory that `region` keeps mapped: the range
        // was checked.
        let status = unsafe { call::fi_mr_regattr(nic.domain, &attr, 0, &mut mr) };
        check(library, "fi_mr_regattr", status)?;
        let mut registration = Self {
            mr: AtomicPtr::new(mr),
            key: fi::FI_KEY_NOTAVAIL,
            region: Some(Arc::clone(region)),
            share: portion.share.clone(),
            nic: Arc::clone(nic),
            is_in_use: AtomicBool::new(false),
            withdrawn: Mutex::default(),
        };
        if nic.binds_memory() {
            // SAFETY: both objects are open and of one domain.
            let status = unsafe { call::fi_bind(mr.cast(), port.ep.cast(), 0) };
            check(library, "fi_mr_bind", status)?;
            // SAFETY: as above.
            let status = unsafe { call::fi_enable(mr.cast()) };
            check(library, "fi_mr_enable", status)?;
        }
        // SAFETY: the region of memory is registered, bound and enabled: only now its key is valid.
        registration.key = unsafe { call::fi_mr_key(mr) };
        Ok(registration)
    }

    /// What a peer names the memory by.
    pub(in super::super) fn key(&self) -> u64 {
        self.key
    }

    /// `sender` is let go when nobody can touch the memory through this registration any more. `is_in_use`: peers may
    /// have operations under way in it.
    pub(in super::super) fn notify_withdrawn(&self, sender: Arc<oneshot::Sender<()>>, is_in_use: bool) {
        self.is_in_use.store(is_in_use, Ordering::Relaxed);
        self.withdrawn.lock().push(sender);
    }

    /// What the provider knows it by at this end; null once it is withdrawn.
    pub(in super::super) fn descriptor(&self) -> *mut c_void {
        let mr = self.mr.load(Ordering::Relaxed);
        if mr.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: not withdrawn, so open.
        unsafe { call::fi_mr_desc(mr) }
    }

    /// Takes everybody's right to the memory, which stays mapped until `self` drops. Where memory is bound to the
    /// endpoint, that is closed only after this. Returns whether it is done.
    pub(in super::super) fn withdraw(&self) -> bool {
        let mr = self.mr.swap(ptr::null_mut(), Ordering::Relaxed);
        if mr.is_null() {
            return true;
        }
        // SAFETY: registered by `new`, and closed once: a failed attempt puts it back. Operations that use it hold
        // `self`, and end with the endpoint, which is closed next.
        let status = unsafe { call::fi_close(mr.cast()) };
        if status != 0 {
            tracing::debug!(error = %self.nic.library().describe(-status), "memory stays registered for now");
            self.mr.store(mr, Ordering::Relaxed);
        }
        status == 0
    }
}

impl Registration {
    /// Leaves it registered, and mapped, for ever. Who waits is told that it is over.
    pub(in super::super) fn abandon(mut self) {
        tracing::warn!("memory stays registered, and mapped");
        self.withdrawn.get_mut().clear();
        std::mem::forget(self);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.withdraw() {
            self.nic.keep_stuck(Self {
                mr: AtomicPtr::new(std::mem::replace(self.mr.get_mut(), ptr::null_mut())),
                key: self.key,
                region: self.region.take(),
                share: self.share.take(),
                nic: Arc::clone(&self.nic),
                is_in_use: AtomicBool::new(*self.is_in_use.get_mut()),
                withdrawn: Mutex::new(std::mem::take(self.withdrawn.get_mut())),
            });
        } else if let Some(region) = self.region.take()
            && *self.is_in_use.get_mut()
            && self.nic.is_emulated(region.access())
        {
            let (region, waiting) = (Some(region), std::mem::take(self.withdrawn.get_mut()));
            self.nic.keep(Withdrawn { region, waiting });
        }
    }
}
