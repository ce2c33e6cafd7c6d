//! What the library offers, and a NIC opened from an offer: all that is unsafe about both.
//!
//! Invariants
//! - An object is closed once, after everything that was opened from it: each holds what it came from.
//! - Structures of the library are allocated and freed by the library alone, which knows how long they are.
//!
//! Threads: offers are plain data; everything of one NIC is used by the one thread that owns it (`FI_THREAD_DOMAIN`).

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use libfabric_sys as fi;
use libfabric_sys::{Library, call};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::super::registration::ffi::Registration;
use super::super::select::{Facts, Wish};
use crate::memory::{Access, Region};

/// A call that failed: which, and what the library or the provider said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Failure {
    pub(in super::super) call: &'static str,
    /// Positive error number.
    pub(in super::super) code: i32,
    pub(in super::super) text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.call, self.text, self.code)
    }
}

pub(in super::super) fn check(library: Library, call: &'static str, status: i32) -> Result<(), Failure> {
    if status >= 0 {
        return Ok(());
    }
    Err(Failure { call, code: -status, text: library.describe(-status) })
}

pub(in super::super) fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, so a C string of an offer or of the library, which the caller's object keeps alive.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// One way to one network that the library offers.
pub(in super::super) struct Offer {
    library: Library,
    info: *mut fi::fi_info,
}

// SAFETY: the list belongs to this value alone, and the library's functions for lists may be called from any thread.
unsafe impl Send for Offer {}
// SAFETY: a shared reference only reads plain data.
unsafe impl Sync for Offer {}

impl Drop for Offer {
    fn drop(&mut self) {
        // SAFETY: the list came from this library, and nothing else points to it.
        unsafe { self.library.free_info(self.info) };
    }
}

impl Offer {
    /// All offers that fit `wish`, in the library's order.
    pub(in super::super) fn all(library: Library, wish: &Wish) -> Result<Vec<Self>, Failure> {
        let hints = Self { library, info: library.allocate_info() };
        if hints.info.is_null() {
            return Err(Failure { call: "fi_allocinfo", code: fi::FI_ENOMEM, text: "no memory".to_owned() });
        }
        // SAFETY: the library made the structure with all attributes, and `hints` owns it.
        unsafe { hints.ask(wish) };
        let node = wish.source.and_then(|address| CString::new(address.to_string()).ok());
        let flags = if node.is_some() { fi::FI_SOURCE | fi::FI_NUMERICHOST } else { 0 };
        let mut list = ptr::null_mut();
        // SAFETY: the hints come from this library; their one string was made by strdup(3).
        let status = unsafe { library.get_info(wish.api, node.as_deref(), flags, hints.info, &mut list) };
        check(library, "fi_getinfo", status)?;
        let list = Self { library, info: list };
        let mut found = Vec::new();
        let mut next = list.info.cast_const();
        while !next.is_null() {
            // SAFETY: an element of the list that `list` owns.
            let copy = Self { library, info: unsafe { library.duplicate_info(next) } };
            if !copy.info.is_null() {
                found.push(copy);
            }
            // SAFETY: as above.
            next = unsafe { (*next).next };
        }
        Ok(found)
    }

    /// Writes what is wished into the hints.
    ///
    /// # Safety
    /// `self.info` was made by fi_allocinfo(3) and holds no strings yet.
    unsafe fn ask(&self, wish: &Wish) {
        // SAFETY: the caller keeps it: the structure and its attributes are valid and belong to `self`.
        unsafe {
            let info = &mut *self.info;
            info.caps = fi::FI_RMA | fi::FI_READ | fi::FI_WRITE | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
            info.mode = fi::FI_CONTEXT | fi::FI_CONTEXT2;
            (*info.ep_attr).type_ = fi::FI_EP_RDM;
            (*info.tx_attr).op_flags = wish.write_flags;
            let domain = &mut *info.domain_attr;
            domain.threading = fi::FI_THREAD_DOMAIN;
            domain.mr_mode = fi::FI_MR_LOCAL
                | fi::FI_MR_VIRT_ADDR
                | fi::FI_MR_ALLOCATED
                | fi::FI_MR_PROV_KEY
                | fi::FI_MR_ENDPOINT;
            if let Some(name) = wish.provider.as_ref().and_then(|name| CString::new(name.as_str()).ok()) {
                (*info.fabric_attr).prov_name = libc::strdup(name.as_ptr());
            }
        }
    }

    /// What the offer says, as plain data.
    pub(in super::super) fn facts(&self) -> Facts {
        // SAFETY: the list belongs to `self`; offers of fi_getinfo(3) have all attributes but `nic`, which may be null.
        unsafe {
            let info = &*self.info;
            let (domain, fabric) = (&*info.domain_attr, &*info.fabric_attr);
            let nic = info.nic.as_ref();
            let link = nic.and_then(|nic| nic.link_attr.as_ref());
            let bus = nic.and_then(|nic| nic.bus_attr.as_ref()).filter(|bus| bus.bus_type == fi::FI_BUS_PCI);
            let source = info.src_addr.cast::<u8>();
            Facts {
                provider: text_of(fabric.prov_name),
                fabric: text_of(fabric.name),
                domain: text_of(domain.name),
                address_format: info.addr_format,
                source: if source.is_null() {
                    Vec::new()
                } else {
                    std::slice::from_raw_parts(source, info.src_addrlen).to_vec()
                },
                mr_mode: domain.mr_mode,
                key_bytes: domain.mr_key_size,
                tx_size: (*info.tx_attr).size,
                message_bytes_max: (*info.ep_attr).max_msg_size as u64,
                is_target_progress_manual: domain.data_progress == fi::FI_PROGRESS_MANUAL,
                bytes_per_second: link.map_or(0, |link| link.speed as u64 / 8),
                pci: bus.map(|bus| {
                    let pci = bus.pci;
                    format!(
                        "{:04x}:{:02x}:{:02x}.{:x}",
                        pci.domain_id, pci.bus_id, pci.device_id, pci.function_id
                    )
                }),
            }
        }
    }
}

/// Memory that was withdrawn while peers might have operations under way in it, and who waits until they have not.
#[expect(dead_code, reason = "held for its drop")]
pub(in super::super) struct Withdrawn {
    pub(in super::super) region: Option<Arc<Region>>,
    /// Dropped, which says it, after the endpoint was closed over which they go.
    pub(in super::super) waiting: Vec<Arc<oneshot::Sender<()>>>,
}

/// A NIC, opened: the fabric and the domain of an offer.
pub(in super::super) struct Nic {
    offer: Offer,
    mr_mode: i32,
    /// Of memory that peers may only read, and of memory that they may write.
    is_emulated: [bool; 2],
    /// What the owner of the endpoint has not seen yet. Held for moments, by one thread.
    withdrawn: Mutex<Vec<Withdrawn>>,
    /// What the library did not close when nobody here needed it any more. As above; they hold the NIC in turn.
    stuck: Mutex<Vec<Registration>>,
    pub(in super::super) fabric: *mut fi::fid_fabric,
    pub(in super::super) domain: *mut fi::fid_domain,
}

// SAFETY: the objects may be used from any thread, by one at a time; the owning thread is the only one that calls.
unsafe impl Send for Nic {}
// SAFETY: as for Send: references are shared among objects of one thread only.
unsafe impl Sync for Nic {}

impl Nic {
    pub(in super::super) fn open(offer: Offer) -> Result<Arc<Self>, Failure> {
        let library = offer.library;
        let facts = offer.facts();
        let mut nic = Self {
            offer,
            mr_mode: facts.mr_mode,
            is_emulated: [Access::Read, Access::ReadWrite].map(|access| facts.is_emulated(access)),
            withdrawn: Mutex::default(),
            stuck: Mutex::default(),
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
        };
        // SAFETY: the attributes belong to the offer, which `nic` owns.
        let status = unsafe { library.fabric((*nic.offer.info).fabric_attr, &mut nic.fabric) };
        check(library, "fi_fabric", status)?;
        // SAFETY: the fabric was just opened, from the same offer.
        let status = unsafe { call::fi_domain(nic.fabric, nic.offer.info, &mut nic.domain) };
        check(library, "fi_domain", status)?;
        Ok(Arc::new(nic))
    }

    pub(in super::super) fn facts(&self) -> Facts {
        self.offer.facts()
    }

    pub(in super::super) fn library(&self) -> Library {
        self.offer.library
    }

    /// Whether memory is registered with the endpoint, so that it must be registered again with each new one.
    pub(in super::super) fn binds_memory(&self) -> bool {
        self.mr_mode & fi::FI_MR_ENDPOINT != 0
    }

    /// See [`Facts::is_emulated`].
    pub(in super::super) fn is_emulated(&self, access: Access) -> bool {
        self.is_emulated[usize::from(access == Access::ReadWrite)]
    }

    /// Keeps memory that was withdrawn for the owner of the endpoint.
    pub(in super::super) fn keep(&self, withdrawn: Withdrawn) {
        self.withdrawn.lock().push(withdrawn);
    }

    /// What was kept since the last call.
    pub(in super::super) fn take_withdrawn(&self) -> Vec<Withdrawn> {
        std::mem::take(&mut *self.withdrawn.lock())
    }

    /// Keeps memory that the library did not close.
    pub(in super::super) fn keep_stuck(&self, registration: Registration) {
        self.stuck.lock().push(registration);
    }

    /// Whether there is such memory.
    pub(in super::super) fn has_stuck(&self) -> bool {
        !self.stuck.lock().is_empty()
    }

    /// Such memory, of which each tries again to be closed when it is dropped.
    pub(in super::super) fn take_stuck(&self) -> Vec<Registration> {
        std::mem::take(&mut *self.stuck.lock())
    }

    /// The offer that the NIC was opened from, for what is opened from it in turn.
    pub(in super::super) fn info(&self) -> *mut fi::fi_info {
        self.offer.info
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once, the domain first; all that came from the domain held this value.
        unsafe {
            if !self.domain.is_null() {
                call::fi_close(self.domain.cast());
            }
            if !self.fabric.is_null() {
                call::fi_close(self.fabric.cast());
            }
        }
    }
}
