//! The tables of functions through which objects are used. Each starts with its length in bytes, `size`: entries
//! behind it do not exist in that provider.
//!
//! An entry may also be null. Entries that tidefs does not call stand as [`Unused`], which keeps their place.

#![expect(missing_docs, reason = "the names are libfabric's; the manual page of each call explains it")]

use std::ffi::{c_char, c_int, c_void};

use libc::{iovec, ssize_t};

use crate::attributes::fi_info;
use crate::data::{fi_addr_t, fi_av_attr, fi_cq_attr, fi_cq_err_entry, fi_mr_attr, fi_msg_rma};
use crate::objects::{fid, fid_av, fid_cq, fid_domain, fid_ep, fid_fabric, fid_mr};

/// The place of a function that tidefs does not call.
pub type Unused = Option<unsafe extern "C" fn()>;

macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name {
            pub size: usize,
            $(pub $field: $type,)*
        }

        impl $name {
            /// A table of this length whose entries are all null, for a provider to fill in.
            pub const EMPTY: Self = Self { size: size_of::<Self>(), $($field: None,)* };
        }
    };
}

table! {
    /// What every object can do.
    fi_ops {
        close: Option<unsafe extern "C" fn(fid: *mut fid) -> c_int>,
        bind: Option<unsafe extern "C" fn(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int>,
        control: Option<unsafe extern "C" fn(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int>,
        ops_open: Unused,
        tostr: Unused,
        ops_set: Unused,
    }
}

table! {
    /// What a fabric can do.
    fi_ops_fabric {
        domain: Option<unsafe extern "C" fn(
            fabric: *mut fid_fabric, info: *mut fi_info, domain: *mut *mut fid_domain, context: *mut c_void,
        ) -> c_int>,
        passive_ep: Unused,
        eq_open: Unused,
        wait_open: Unused,
        trywait: Option<unsafe extern "C" fn(
            fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int,
        ) -> c_int>,
        domain2: Unused,
    }
}

table! {
    /// What a domain can do.
    fi_ops_domain {
        av_open: Option<unsafe extern "C" fn(
            domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av, context: *mut c_void,
        ) -> c_int>,
        cq_open: Option<unsafe extern "C" fn(
            domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq, context: *mut c_void,
        ) -> c_int>,
        endpoint: Option<unsafe extern "C" fn(
            domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int>,
        scalable_ep: Unused,
        cntr_open: Unused,
        poll_open: Unused,
        stx_ctx: Unused,
        srx_ctx: Unused,
        query_atomic: Unused,
        query_collective: Unused,
        endpoint2: Unused,
    }
}

table! {
    /// How a domain registers memory.
    fi_ops_mr {
        reg: Option<unsafe extern "C" fn(
            fid: *mut fid, buf: *const c_void, len: usize, access: u64, offset: u64, requested_key: u64,
            flags: u64, mr: *mut *mut fid_mr, context: *mut c_void,
        ) -> c_int>,
        regv: Unused,
        regattr: Option<unsafe extern "C" fn(
            fid: *mut fid, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr,
        ) -> c_int>,
    }
}

table! {
    /// What an address vector can do.
    fi_ops_av {
        insert: Option<unsafe extern "C" fn(
            av: *mut fid_av, addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t, flags: u64,
            context: *mut c_void,
        ) -> c_int>,
        insertsvc: Unused,
        insertsym: Unused,
        remove: Option<unsafe extern "C" fn(
            av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64,
        ) -> c_int>,
        lookup: Unused,
        straddr: Option<unsafe extern "C" fn(
            av: *mut fid_av, addr: *const c_void, buf: *mut c_char, len: *mut usize,
        ) -> *const c_char>,
        av_set: Unused,
    }
}

table! {
    /// What a completion queue can do.
    fi_ops_cq {
        read: Option<unsafe extern "C" fn(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> ssize_t>,
        readfrom: Unused,
        readerr: Option<unsafe extern "C" fn(
            cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64,
        ) -> ssize_t>,
        sread: Unused,
        sreadfrom: Unused,
        signal: Unused,
        strerror: Option<unsafe extern "C" fn(
            cq: *mut fid_cq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
        ) -> *const c_char>,
    }
}

table! {
    /// What an endpoint can do beside moving data.
    fi_ops_ep {
        cancel: Unused,
        getopt: Option<unsafe extern "C" fn(
            fid: *mut fid, level: c_int, name: c_int, value: *mut c_void, length: *mut usize,
        ) -> c_int>,
        setopt: Option<unsafe extern "C" fn(
            fid: *mut fid, level: c_int, name: c_int, value: *const c_void, length: usize,
        ) -> c_int>,
        tx_ctx: Unused,
        rx_ctx: Unused,
        rx_size_left: Unused,
        tx_size_left: Unused,
    }
}

table! {
    /// Names of endpoints, and connections.
    fi_ops_cm {
        setname: Unused,
        getname: Option<unsafe extern "C" fn(fid: *mut fid, addr: *mut c_void, length: *mut usize) -> c_int>,
        getpeer: Unused,
        connect: Unused,
        listen: Unused,
        accept: Unused,
        reject: Unused,
        shutdown: Unused,
        join: Unused,
    }
}

table! {
    /// Two-sided messages.
    fi_ops_msg {
        recv: Unused,
        recvv: Unused,
        recvmsg: Unused,
        send: Unused,
        sendv: Unused,
        sendmsg: Unused,
        inject: Unused,
        senddata: Unused,
        injectdata: Unused,
    }
}

table! {
    /// One-sided reads and writes.
    fi_ops_rma {
        read: Option<unsafe extern "C" fn(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, addr: u64,
            key: u64, context: *mut c_void,
        ) -> ssize_t>,
        readv: Option<unsafe extern "C" fn(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
            addr: u64, key: u64, context: *mut c_void,
        ) -> ssize_t>,
        readmsg: Option<unsafe extern "C" fn(
            ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64,
        ) -> ssize_t>,
        write: Option<unsafe extern "C" fn(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, addr: u64,
            key: u64, context: *mut c_void,
        ) -> ssize_t>,
        writev: Option<unsafe extern "C" fn(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
            addr: u64, key: u64, context: *mut c_void,
        ) -> ssize_t>,
        writemsg: Option<unsafe extern "C" fn(
            ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64,
        ) -> ssize_t>,
        inject: Unused,
        writedata: Unused,
        injectdata: Unused,
    }
}
