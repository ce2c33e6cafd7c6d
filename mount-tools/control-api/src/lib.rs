//! What the daemon `tidefsd` and the tools on its host share.
//!
//! Three things: the types that travel over the admin socket (HTTP over a unix socket, root only), the ioctls of the fast
//! path ([`ioctl`]), and how the state of one mount is found on the host ([`instance`], [`lock`], [`mounts`], [`socket`])
//! without asking the mount itself, which may be dead or hang.
//!
//! Compatibility
//! - [`API_VERSION`] is the first part of each route. A change that an old reader would misread makes a new one.
//! - Readers ignore fields that they do not know, and take the default for one that is missing.
//! - The daemon refuses query keys and request fields that it does not know: a typing error is not a wish.

pub mod cluster;
pub mod config;
pub mod disks;
pub mod error;
pub mod instance;
pub mod ioctl;
pub mod key_path;
pub mod lock;
pub mod mounts;
pub mod object;
pub mod routes;
pub mod socket;
pub mod ssd;
pub mod status;
pub mod timestamp;
pub mod verify;
pub mod why;

pub use cluster::{CatalogStatus, ClusterStatus, CopyPlace, MemberStatus, Where};
pub use config::{ConfigEntry, ConfigOrigin, EffectiveConfig};
pub use disks::{
    AddDiskRequest, DisksChanged, DrainDiskRequest, DrainEvent, DrainProgress, RemoveDiskRequest,
};
pub use error::{ApiError, ErrorBody, ErrorCode};
pub use key_path::KeyPath;
pub use object::{
    ChecksumHex, EvictRequest, EvictTarget, Evicted, List, ListEntry, ListQuery, ObjectKind, ObjectStat,
    PathQuery, Pin, PinRequest, Pinned, SkipReason, Skipped, SortOrder, Tier,
};
pub use ssd::{DayBudget, NamingProgress, SsdDeviceStatus, SsdStatus};
pub use status::{
    Counters, EvictionStatus, FuseStatus, MemoryStatus, NamespaceStatus, PackedStatus, ScratchStatus, Status,
};
pub use timestamp::Timestamp;
pub use verify::{VerifyEvent, VerifyProgress, VerifyRequest, VerifySummary};
pub use why::{Verdict, Why};

/// Version of the admin API, the number in `/v1/...`.
pub const API_VERSION: u32 = 1;
