//! How the transport over libfabric is opened.

use std::net::IpAddr;
use std::time::Duration;

use crate::types::ByteCount;

/// How the transport is opened.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// Provider to use, as `fi_info` names it: `efa`, `verbs;ofi_rxm`, `tcp;ofi_rxm`. Default: the first that drives
    /// hardware.
    pub provider: Option<String>,
    /// Only the NIC that has this address. Default: every NIC of the provider.
    pub address: Option<IpAddr>,
    /// Whether the threads spin while operations are in flight. Default: on hosts of more than two cores.
    pub may_spin: bool,
    /// How long an operation that was given up may take to end, before its NIC's endpoint is closed and opened again,
    /// which fails all others on it. Up to four times as long where a NIC has so much under way. Default: 2 s.
    pub settle: Duration,
    /// How long a peer may leave all operations to it without an end, or without a connection, before they are tried
    /// another way. Longer where a NIC has more under way than it carries in a quarter of that. Default: 1 s.
    pub silence: Duration,
    /// Longest registration. A longer region takes several side by side at each NIC, at most 16, and only peers that
    /// know of such regions reach it this way. For NICs that refuse long ones. Default: no limit, one for each region.
    pub registration_bytes_max: Option<ByteCount>,
    /// Pages that each NIC translates. A region that does not fit beside the others is shared out among the NICs, or at
    /// fewer of them, and only peers that know of such regions reach it this way; where all together have too few pages
    /// left, it is refused. For NICs that get slow, or refuse, beyond so many. Default: no limit.
    pub pages_max: Option<u64>,
}

impl Default for FabricConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            provider: None,
            address: None,
            may_spin: cores > 2,
            settle: Duration::from_secs(2),
            silence: Duration::from_secs(1),
            registration_bytes_max: None,
            pages_max: None,
        }
    }
}
