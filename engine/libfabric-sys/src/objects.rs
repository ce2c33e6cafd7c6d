//! The objects of libfabric. Each starts with a [`fid`], which holds its class and the table of what all can do.
//!
//! A provider allocates them; applications hold pointers and go through the tables. See fi_arch(7).

#![expect(missing_docs, reason = "the names are libfabric's; the module page names the manual page")]

use std::ffi::{c_char, c_int, c_void};

use crate::attributes::{fi_fabric_attr, fi_info};
use crate::operations::{
    fi_ops, fi_ops_av, fi_ops_cm, fi_ops_cq, fi_ops_domain, fi_ops_ep, fi_ops_fabric, fi_ops_mr, fi_ops_msg,
    fi_ops_rma,
};

/// What every object starts with.
#[repr(C)]
#[derive(Debug)]
pub struct fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *mut fi_ops,
}

/// A fabric: a network.
#[repr(C)]
#[derive(Debug)]
pub struct fid_fabric {
    pub fid: fid,
    pub ops: *mut fi_ops_fabric,
    pub api_version: u32,
}

/// A domain: a NIC.
#[repr(C)]
#[derive(Debug)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *mut fi_ops_domain,
    pub mr: *mut fi_ops_mr,
}

/// An address vector.
#[repr(C)]
#[derive(Debug)]
pub struct fid_av {
    pub fid: fid,
    pub ops: *mut fi_ops_av,
}

/// A completion queue.
#[repr(C)]
#[derive(Debug)]
pub struct fid_cq {
    pub fid: fid,
    pub ops: *mut fi_ops_cq,
}

/// A registered range of memory.
#[repr(C)]
#[derive(Debug)]
pub struct fid_mr {
    pub fid: fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// An endpoint. `tagged`, `atomic` and `collective` are tables that tidefs does not use.
#[repr(C)]
#[derive(Debug)]
pub struct fid_ep {
    pub fid: fid,
    pub ops: *mut fi_ops_ep,
    pub cm: *mut fi_ops_cm,
    pub msg: *mut fi_ops_msg,
    pub rma: *mut fi_ops_rma,
    pub tagged: *mut c_void,
    pub atomic: *mut c_void,
    pub collective: *mut c_void,
}

/// What a provider that is loaded from a file returns from its one entry point, `fi_prov_ini`. See fi_provider(3).
#[repr(C)]
#[derive(Debug)]
pub struct fi_provider {
    pub version: u32,
    pub fi_version: u32,
    /// For the library: `struct fi_context`.
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
    pub getinfo: Option<
        unsafe extern "C" fn(
            version: u32,
            node: *const c_char,
            service: *const c_char,
            flags: u64,
            hints: *const fi_info,
            info: *mut *mut fi_info,
        ) -> c_int,
    >,
    pub fabric: Option<
        unsafe extern "C" fn(
            attr: *mut fi_fabric_attr,
            fabric: *mut *mut fid_fabric,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub cleanup: Option<unsafe extern "C" fn()>,
}
