//! The calls that C programs take from inline functions of the headers: each goes through a table of the object.
//!
//! All return what the function returned: 0 or a count, or a negated error number. A function that the provider does
//! not have answers `-FI_ENOSYS`.
//!
//! # Safety of every function here
//! Pointers to objects come from the same library and are not closed yet; other pointers are valid for what the manual
//! page of the call says, for as long as it says. Objects of one domain are used by one thread at a time.

#![expect(clippy::missing_safety_doc, reason = "the module page states it once for all")]
#![expect(clippy::too_many_arguments, reason = "the signatures are libfabric's")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use libc::ssize_t;

use crate::constants::{FI_ENABLE, FI_ENOSYS, FI_GETWAIT};
use crate::data::{fi_addr_t, fi_av_attr, fi_cq_attr, fi_cq_err_entry, fi_mr_attr, fi_msg_rma};
use crate::objects::{fid, fid_av, fid_cq, fid_domain, fid_ep, fid_fabric, fid_mr};
use crate::{attributes::fi_info, operations};

const MISSING: c_int = -FI_ENOSYS;

/// Calls an entry of a table, or answers that the provider does not have it.
macro_rules! through {
    ($object:ident.$($table:ident).+, $entry:ident($($argument:expr),*)) => {{
        // SAFETY: the object that the caller passed is live, so its tables are; an entry of 1.17 lies inside each.
        let entry = unsafe { (*$object).$($table).+.as_ref() }.and_then(|table| table.$entry);
        match entry {
            // SAFETY: the caller keeps what the manual page of this call demands of its arguments.
            Some(function) => unsafe { function($($argument),*) },
            None => MISSING as _,
        }
    }};
}

/// fi_close(3).
pub unsafe fn fi_close(object: *mut fid) -> c_int {
    through!(object.ops, close(object))
}

/// fi_control(3) with the command `FI_ENABLE`, for endpoints and memory regions.
pub unsafe fn fi_enable(object: *mut fid) -> c_int {
    through!(object.ops, control(object, FI_ENABLE, ptr::null_mut()))
}

/// fi_control(3) with the command `FI_GETWAIT`: stores the descriptor of a queue that was opened with `FI_WAIT_FD`.
pub unsafe fn fi_getwait_fd(object: *mut fid, descriptor: &mut c_int) -> c_int {
    through!(object.ops, control(object, FI_GETWAIT, ptr::from_mut(descriptor).cast()))
}

/// fi_ep_bind(3), fi_mr_bind(3).
pub unsafe fn fi_bind(object: *mut fid, to: *mut fid, flags: u64) -> c_int {
    through!(object.ops, bind(object, to, flags))
}

/// fi_domain(3).
pub unsafe fn fi_domain(fabric: *mut fid_fabric, info: *mut fi_info, domain: &mut *mut fid_domain) -> c_int {
    through!(fabric.ops, domain(fabric, info, domain, ptr::null_mut()))
}

/// fi_trywait(3) for one queue.
pub unsafe fn fi_trywait(fabric: *mut fid_fabric, mut queue: *mut fid) -> c_int {
    through!(fabric.ops, trywait(fabric, &raw mut queue, 1))
}

/// fi_av_open(3).
pub unsafe fn fi_av_open(domain: *mut fid_domain, attr: &mut fi_av_attr, av: &mut *mut fid_av) -> c_int {
    through!(domain.ops, av_open(domain, attr, av, ptr::null_mut()))
}

/// fi_cq_open(3).
pub unsafe fn fi_cq_open(domain: *mut fid_domain, attr: &mut fi_cq_attr, cq: &mut *mut fid_cq) -> c_int {
    through!(domain.ops, cq_open(domain, attr, cq, ptr::null_mut()))
}

/// fi_endpoint(3).
pub unsafe fn fi_endpoint(domain: *mut fid_domain, info: *mut fi_info, ep: &mut *mut fid_ep) -> c_int {
    through!(domain.ops, endpoint(domain, info, ep, ptr::null_mut()))
}

/// fi_mr_regattr(3).
pub unsafe fn fi_mr_regattr(
    domain: *mut fid_domain,
    attr: &fi_mr_attr,
    flags: u64,
    mr: &mut *mut fid_mr,
) -> c_int {
    through!(domain.mr, regattr(domain.cast(), attr, flags, mr))
}

/// fi_mr_desc(3): the word that goes with local memory.
pub unsafe fn fi_mr_desc(mr: *mut fid_mr) -> *mut c_void {
    // SAFETY: see the module page.
    unsafe { (*mr).mem_desc }
}

/// fi_mr_key(3): what a peer names the memory by. Valid once the region is enabled.
pub unsafe fn fi_mr_key(mr: *mut fid_mr) -> u64 {
    // SAFETY: see the module page.
    unsafe { (*mr).key }
}

/// fi_av_insert(3) for one address. Returns the number of addresses inserted.
pub unsafe fn fi_av_insert(av: *mut fid_av, address: *const c_void, slot: &mut fi_addr_t) -> c_int {
    through!(av.ops, insert(av, address, 1, slot, 0, ptr::null_mut()))
}

/// fi_av_remove(3) for one address.
pub unsafe fn fi_av_remove(av: *mut fid_av, mut slot: fi_addr_t) -> c_int {
    through!(av.ops, remove(av, &raw mut slot, 1, 0))
}

/// fi_getname(3).
pub unsafe fn fi_getname(ep: *mut fid_ep, address: *mut c_void, length: &mut usize) -> c_int {
    through!(ep.cm, getname(ep.cast(), address, length))
}

/// fi_getopt(3) at the level of the endpoint.
pub unsafe fn fi_getopt(ep: *mut fid_ep, name: c_int, value: *mut c_void, length: &mut usize) -> c_int {
    let level = crate::constants::FI_OPT_ENDPOINT;
    through!(ep.ops, getopt(ep.cast(), level, name, value, length))
}

/// fi_setopt(3) at the level of the endpoint.
pub unsafe fn fi_setopt(ep: *mut fid_ep, name: c_int, value: *const c_void, length: usize) -> c_int {
    let level = crate::constants::FI_OPT_ENDPOINT;
    through!(ep.ops, setopt(ep.cast(), level, name, value, length))
}

/// fi_read(3).
pub unsafe fn fi_read(
    ep: *mut fid_ep,
    target: *mut c_void,
    length: usize,
    desc: *mut c_void,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    through!(ep.rma, read(ep, target, length, desc, peer, address, key, context))
}

/// fi_writemsg(3).
pub unsafe fn fi_writemsg(ep: *mut fid_ep, message: &fi_msg_rma, flags: u64) -> ssize_t {
    through!(ep.rma, writemsg(ep, message, flags))
}

/// fi_cq_read(3). `entries` has room for `count` entries of the queue's format.
pub unsafe fn fi_cq_read(cq: *mut fid_cq, entries: *mut c_void, count: usize) -> ssize_t {
    through!(cq.ops, read(cq, entries, count))
}

/// fi_cq_readerr(3).
pub unsafe fn fi_cq_readerr(cq: *mut fid_cq, entry: &mut fi_cq_err_entry) -> ssize_t {
    through!(cq.ops, readerr(cq, entry, 0))
}

/// fi_cq_strerror(3). Null when the provider has no words.
pub unsafe fn fi_cq_strerror(
    cq: *mut fid_cq,
    code: c_int,
    detail: *const c_void,
    text: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: see the module page.
    let entry = unsafe { (*cq).ops.as_ref() }.and_then(|table: &operations::fi_ops_cq| table.strerror);
    match entry {
        // SAFETY: see the module page.
        Some(function) => unsafe { function(cq, code, detail, text, length) },
        None => ptr::null(),
    }
}
