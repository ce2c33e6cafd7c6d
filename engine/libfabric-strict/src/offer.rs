//! What the provider offers: two NICs like EFA's direct path, to those who accept its modes.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use libfabric_sys as fi;

use crate::world::{BYTES_MAX, TX_SIZE, world};

/// Bytes behind each structure: a later library copies as many as its own, longer, structure has.
const ROOM: usize = 512;

const MR_MODE: i32 = fi::FI_MR_LOCAL | fi::FI_MR_VIRT_ADDR | fi::FI_MR_ALLOCATED | fi::FI_MR_PROV_KEY;
/// The modes of what is opened now.
fn mr_mode() -> i32 {
    if world().is_bound { MR_MODE | fi::FI_MR_ENDPOINT } else { MR_MODE }
}

const CAPS: u64 = fi::FI_RMA | fi::FI_READ | fi::FI_WRITE | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;

/// A zeroed structure that the library frees with free(3).
unsafe fn zeroed<T>() -> *mut T {
    // SAFETY: calloc(3) takes any size; all structures here are plain data, for which zero is a value.
    unsafe { libc::calloc(1, size_of::<T>() + ROOM).cast() }
}

unsafe fn text(text: &CStr) -> *mut c_char {
    // SAFETY: strdup(3) of a C string.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// Whether the hints accept what this provider asks.
unsafe fn fits(hints: *const fi::fi_info) -> bool {
    // SAFETY: the library passes null or valid hints; each attribute is null or valid.
    unsafe {
        let Some(hints) = hints.as_ref() else { return false };
        let domain = hints.domain_attr.as_ref();
        let endpoint = hints.ep_attr.as_ref();
        let sender = hints.tx_attr.as_ref();
        hints.mode & fi::FI_CONTEXT2 != 0
            && hints.caps & !(CAPS | fi::FI_LOCAL_COMM | fi::FI_REMOTE_COMM) == 0
            && domain.is_some_and(|domain| domain.mr_mode & mr_mode() == mr_mode())
            && endpoint.is_some_and(|endpoint| matches!(endpoint.type_, fi::FI_EP_UNSPEC | fi::FI_EP_RDM))
            && sender.is_none_or(|sender| sender.op_flags & fi::FI_DELIVERY_COMPLETE == 0)
    }
}

unsafe fn nic(name: &CStr, next: *mut fi::fi_info) -> *mut fi::fi_info {
    let tx_size = world().announced.unwrap_or(TX_SIZE);
    // SAFETY: every structure is allocated here, zeroed, and freed by the library.
    unsafe {
        let info: *mut fi::fi_info = zeroed();
        let sender: *mut fi::fi_tx_attr = zeroed();
        let receiver: *mut fi::fi_rx_attr = zeroed();
        let endpoint: *mut fi::fi_ep_attr = zeroed();
        let domain: *mut fi::fi_domain_attr = zeroed();
        let fabric: *mut fi::fi_fabric_attr = zeroed();
        (*sender).caps = CAPS;
        (*sender).op_flags = fi::FI_TRANSMIT_COMPLETE;
        (*sender).size = tx_size;
        (*sender).iov_limit = 1;
        (*sender).rma_iov_limit = 1;
        (*receiver).caps = CAPS;
        (*receiver).size = tx_size;
        (*receiver).iov_limit = 1;
        (*endpoint).type_ = fi::FI_EP_RDM;
        (*endpoint).max_msg_size = BYTES_MAX;
        (*endpoint).tx_ctx_cnt = 1;
        (*endpoint).rx_ctx_cnt = 1;
        (*domain).name = text(name);
        (*domain).threading = fi::FI_THREAD_DOMAIN;
        (*domain).control_progress = fi::FI_PROGRESS_AUTO;
        (*domain).data_progress = fi::FI_PROGRESS_AUTO;
        (*domain).resource_mgmt = fi::FI_RM_ENABLED;
        (*domain).av_type = fi::FI_AV_TABLE;
        (*domain).mr_mode = mr_mode();
        (*domain).mr_key_size = 4;
        (*domain).cq_data_size = 4;
        (*domain).mr_iov_limit = 1;
        (*fabric).name = text(c"strict-direct");
        (*fabric).prov_version = libfabric_sys::version(117, 0);
        (*info).next = next;
        (*info).caps = CAPS;
        (*info).mode = fi::FI_CONTEXT2;
        (*info).addr_format = fi::FI_ADDR_EFA;
        (*info).tx_attr = sender;
        (*info).rx_attr = receiver;
        (*info).ep_attr = endpoint;
        (*info).domain_attr = domain;
        (*info).fabric_attr = fabric;
        info
    }
}

/// fi_getinfo(3).
pub(crate) unsafe extern "C" fn getinfo(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const fi::fi_info,
    offers: *mut *mut fi::fi_info,
) -> c_int {
    // SAFETY: the library passes valid hints and a place for the answer.
    unsafe {
        if !fits(hints) {
            return -fi::FI_ENODATA;
        }
        *offers = nic(c"strict0", nic(c"strict1", ptr::null_mut()));
    }
    0
}
