//! Numbers of the C interface: capabilities, modes, flags, classes, commands, options and errors.
//!
//! The documentation of each is the manual page named at its group.

/// A version as libfabric packs it.
#[must_use]
pub const fn version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

macro_rules! constants {
    ($($type:ty, $doc:literal { $($name:ident = $value:expr;)* })*) => {
        $($(#[doc = $doc] pub const $name: $type = $value;)*)*

        /// Every constant above as C would print it in 64 bits, for the comparison with the headers.
        #[doc(hidden)]
        pub const ALL: &[(&str, i128)] = &[$($((stringify!($name), $name as i128),)*)*];
    };
}

constants! {
    u64, "Capability or operation flag, see fi_getinfo(3) and fi_endpoint(3)." {
        FI_MSG = 1 << 1;
        FI_RMA = 1 << 2;
        FI_READ = 1 << 8;
        FI_WRITE = 1 << 9;
        FI_RECV = 1 << 10;
        FI_SEND = 1 << 11;
        FI_TRANSMIT = FI_SEND;
        FI_REMOTE_READ = 1 << 12;
        FI_REMOTE_WRITE = 1 << 13;
        FI_REMOTE_CQ_DATA = 1 << 17;
        FI_MORE = 1 << 18;
        FI_FENCE = 1 << 21;
        FI_COMPLETION = 1 << 24;
        FI_INJECT = 1 << 25;
        FI_INJECT_COMPLETE = 1 << 26;
        FI_TRANSMIT_COMPLETE = 1 << 27;
        FI_DELIVERY_COMPLETE = 1 << 28;
        FI_HMEM = 1 << 47;
        FI_LOCAL_COMM = 1 << 51;
        FI_REMOTE_COMM = 1 << 52;
        FI_PROV_ATTR_ONLY = 1 << 54;
        FI_NUMERICHOST = 1 << 55;
        FI_RMA_EVENT = 1 << 56;
        FI_SOURCE = 1 << 57;
    }
    u64, "Mode that a provider asks of the application, see fi_getinfo(3)." {
        FI_CONTEXT = 1 << 59;
        FI_MSG_PREFIX = 1 << 58;
        FI_RX_CQ_DATA = 1 << 56;
        FI_CONTEXT2 = 1 << 52;
    }
    i32, "Mode of memory registration, see fi_mr(3)." {
        FI_MR_UNSPEC = 0;
        FI_MR_LOCAL = 1 << 2;
        FI_MR_RAW = 1 << 3;
        FI_MR_VIRT_ADDR = 1 << 4;
        FI_MR_ALLOCATED = 1 << 5;
        FI_MR_PROV_KEY = 1 << 6;
        FI_MR_RMA_EVENT = 1 << 8;
        FI_MR_ENDPOINT = 1 << 9;
        FI_MR_HMEM = 1 << 10;
    }
    u32, "A choice of an attribute, see fi_endpoint(3), fi_domain(3), fi_av(3), fi_cq(3) and fi_mr(3)." {
        FI_EP_UNSPEC = 0;
        FI_EP_MSG = 1;
        FI_EP_DGRAM = 2;
        FI_EP_RDM = 3;
        FI_THREAD_UNSPEC = 0;
        FI_THREAD_SAFE = 1;
        FI_THREAD_DOMAIN = 3;
        FI_THREAD_COMPLETION = 4;
        FI_PROGRESS_UNSPEC = 0;
        FI_PROGRESS_AUTO = 1;
        FI_PROGRESS_MANUAL = 2;
        FI_RM_UNSPEC = 0;
        FI_RM_DISABLED = 1;
        FI_RM_ENABLED = 2;
        FI_AV_UNSPEC = 0;
        FI_AV_MAP = 1;
        FI_AV_TABLE = 2;
        FI_CQ_FORMAT_UNSPEC = 0;
        FI_CQ_FORMAT_CONTEXT = 1;
        FI_CQ_FORMAT_MSG = 2;
        FI_CQ_FORMAT_DATA = 3;
        FI_WAIT_NONE = 0;
        FI_WAIT_UNSPEC = 1;
        FI_WAIT_FD = 3;
        FI_HMEM_SYSTEM = 0;
        FI_FORMAT_UNSPEC = 0;
        FI_SOCKADDR_IN = 2;
        FI_SOCKADDR_IN6 = 3;
        FI_SOCKADDR_IB = 4;
        FI_ADDR_STR = 9;
        FI_ADDR_EFA = 12;
        FI_BUS_PCI = 1;
        FI_PROTO_UNSPEC = 0;
        FI_TC_UNSPEC = 0;
    }
    usize, "Class of an object, in its `fid`." {
        FI_CLASS_FABRIC = 1;
        FI_CLASS_DOMAIN = 2;
        FI_CLASS_EP = 3;
        FI_CLASS_AV = 11;
        FI_CLASS_MR = 12;
        FI_CLASS_CQ = 14;
    }
    i32, "Command of fi_control(3)." {
        FI_GETWAIT = 5;
        FI_ENABLE = 6;
    }
    i32, "Level or name of an option, see fi_endpoint(3). Those from `FI_OPT_SHARED_MEMORY_PERMITTED` on are younger than 1.17; an older library refuses them." {
        FI_OPT_ENDPOINT = 0;
        FI_OPT_CUDA_API_PERMITTED = 10;
        FI_OPT_SHARED_MEMORY_PERMITTED = 11;
        FI_OPT_MAX_MSG_SIZE = 12;
        FI_OPT_MAX_RMA_SIZE = 14;
    }
    i32, "Error number, see fi_errno(3). Calls return it negated; those below 256 are the system's." {
        FI_ENOENT = libc::ENOENT;
        FI_EIO = libc::EIO;
        FI_EAGAIN = libc::EAGAIN;
        FI_ENOMEM = libc::ENOMEM;
        FI_EACCES = libc::EACCES;
        FI_EBUSY = libc::EBUSY;
        FI_ENODEV = libc::ENODEV;
        FI_EINVAL = libc::EINVAL;
        FI_ENOSYS = libc::ENOSYS;
        FI_ENODATA = libc::ENODATA;
        FI_EMSGSIZE = libc::EMSGSIZE;
        FI_ENOPROTOOPT = libc::ENOPROTOOPT;
        FI_EOPNOTSUPP = libc::EOPNOTSUPP;
        FI_EHOSTUNREACH = libc::EHOSTUNREACH;
        FI_ECANCELED = libc::ECANCELED;
        FI_EKEYREJECTED = libc::EKEYREJECTED;
        FI_EOTHER = 256;
        FI_ETOOSMALL = 257;
        FI_EOPBADSTATE = 258;
        FI_EAVAIL = 259;
        FI_EBADFLAGS = 260;
        FI_ENOCQ = 263;
        FI_ETRUNC = 265;
        FI_ENOKEY = 266;
        FI_ENOAV = 267;
        FI_EOVERRUN = 268;
        FI_ENORX = 269;
    }
}

/// An address that stands for none, see fi_av(3).
pub const FI_ADDR_UNSPEC: u64 = u64::MAX;
/// A key that does not exist, see fi_mr(3).
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;
