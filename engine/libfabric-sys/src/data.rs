//! Structures that an application passes in or gets back: contexts, queue entries, attributes of what it opens.
//!
//! See fi_av(3), fi_cq(3), fi_mr(3), fi_rma(3) and fi_domain(3).

#![expect(missing_docs, reason = "the names are libfabric's; the module page names the manual pages")]
#![expect(non_camel_case_types, reason = "the C names")]

use std::ffi::{c_char, c_void};

use libc::iovec;

/// An address as an address vector knows it.
pub type fi_addr_t = u64;

/// Memory that the provider uses while an operation is in flight, under [`crate::FI_CONTEXT2`].
#[repr(C)]
#[derive(Debug)]
pub struct fi_context2 {
    pub internal: [*mut c_void; 8],
}

/// How an address vector is opened.
#[repr(C)]
#[derive(Debug)]
pub struct fi_av_attr {
    pub type_: u32,
    pub rx_ctx_bits: i32,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

/// How a completion queue is opened.
#[repr(C)]
#[derive(Debug)]
pub struct fi_cq_attr {
    pub size: usize,
    pub flags: u64,
    pub format: u32,
    pub wait_obj: u32,
    pub signaling_vector: i32,
    pub wait_cond: u32,
    pub wait_set: *mut c_void,
}

/// A completion, in the format [`crate::FI_CQ_FORMAT_DATA`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cq_data_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
}

/// A failed operation. `reserved` is room for what later versions append (`src_addr` in 1.20).
#[repr(C)]
#[derive(Debug)]
pub struct fi_cq_err_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: i32,
    pub prov_errno: i32,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
    pub reserved: [u64; 8],
}

/// Memory to register. `device` is a union in C, of 8 bytes. `reserved` is room for what later versions append.
#[repr(C)]
#[derive(Debug)]
pub struct fi_mr_attr {
    pub mr_iov: *const iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: u32,
    pub device: u64,
    pub reserved: [u64; 8],
}

/// A range of a peer's memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_rma_iov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

/// A one-sided operation with everything that may be said about it.
#[repr(C)]
#[derive(Debug)]
pub struct fi_msg_rma {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub rma_iov: *const fi_rma_iov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

macro_rules! zeroed {
    ($($type:ty),*) => {
        $(impl Default for $type {
            /// All zero, which is libfabric's word for "no wish".
            fn default() -> Self {
                // SAFETY: the structure holds integers and pointers only, for which zero is a value.
                unsafe { std::mem::zeroed() }
            }
        })*
    };
}

zeroed!(fi_context2, fi_av_attr, fi_cq_attr, fi_cq_data_entry, fi_cq_err_entry, fi_mr_attr, fi_msg_rma);
