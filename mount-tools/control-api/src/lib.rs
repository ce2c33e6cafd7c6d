//! What the daemon `tidefsd` and the tools on its host share.
//!
//! Three things: the ioctls of the fast path ([`ioctl`]), the types that travel over the admin socket (HTTP over a unix
//! socket, root only), and how the state of one mount is found on the host ([`instance`], [`lock`], [`log`], [`mounts`],
//! [`socket`]) without asking the mount itself, which may be dead or hang; only who takes one away does ([`answer`]).
//! Beside them, how mount options are put together ([`mount_options`]), and how the commands are written that messages tell people
//! to type ([`shell`]).
//!
//! All but the ioctls is there with the feature `admin`, which is on by default; a client library does without.
//!
//! Compatibility
//! - [`API_VERSION`] is the first part of each route. A change that an old reader would misread makes a new one.
//! - Readers ignore fields that they do not know, and take the default for one that is missing.
//! - The daemon refuses query keys and request fields that it does not know: a typing error is not a wish.

// The fast path.
pub mod ioctl;

// How the state of a mount is found without asking it, and how a mount is asked all the same.
#[cfg(feature = "admin")]
pub mod answer;
#[cfg(feature = "admin")]
mod ffi;
#[cfg(feature = "admin")]
pub mod instance;
#[cfg(feature = "admin")]
pub mod lock;
#[cfg(feature = "admin")]
pub mod log;
#[cfg(feature = "admin")]
pub mod mounts;
#[cfg(feature = "admin")]
pub mod socket;

// What travels over the admin socket: routes, refusals, answers line by line, keys and times as text.
#[cfg(feature = "admin")]
mod display;
#[cfg(feature = "admin")]
pub mod error;
#[cfg(feature = "admin")]
pub mod event;
#[cfg(feature = "admin")]
pub mod key_path;
#[cfg(feature = "admin")]
pub mod routes;
#[cfg(feature = "admin")]
pub mod timestamp;

// Its types, for each subject.
#[cfg(feature = "admin")]
pub mod cluster;
#[cfg(feature = "admin")]
pub mod config;
#[cfg(feature = "admin")]
pub mod disks;
#[cfg(feature = "admin")]
pub mod drain;
#[cfg(feature = "admin")]
pub mod object;
#[cfg(feature = "admin")]
pub mod ssd;
#[cfg(feature = "admin")]
pub mod status;
#[cfg(feature = "admin")]
pub mod verify;
#[cfg(feature = "admin")]
pub mod why;

// Mount options, and commands in messages.
#[cfg(feature = "admin")]
pub mod mount_options;
#[cfg(feature = "admin")]
pub mod shell;

#[cfg(feature = "admin")]
pub use cluster::{
    CatalogStatus, ClusterStatus, CopyMedium, CopyPlace, MemberLink, MemberStatus, Where, WhereKind,
};
#[cfg(feature = "admin")]
pub use config::{ConfigEntry, ConfigOrigin, EffectiveConfig};
#[cfg(feature = "admin")]
pub use disks::{
    AddDiskRequest, DisksChanged, DrainDiskRequest, DrainEvent, DrainProgress, RemoveDiskRequest,
};
#[cfg(feature = "admin")]
pub use drain::{DrainOrder, DrainPhase, DrainRequest, DrainStatus};
#[cfg(feature = "admin")]
pub use error::{ApiError, ErrorBody, ErrorCode};
#[cfg(feature = "admin")]
pub use event::Event;
#[cfg(feature = "admin")]
pub use key_path::KeyPath;
#[cfg(feature = "admin")]
pub use object::{
    ChecksumHex, EvictEvent, EvictProgress, EvictRequest, EvictTarget, Evicted, ListEntry, ListEvent,
    ListPart, ListQuery, ListSummary, ObjectKind, ObjectStat, PathQuery, Pin, PinRequest, Pinned, SkipReason,
    Skipped, SortOrder, Tier,
};
#[cfg(feature = "admin")]
pub use ssd::{DayBudget, DiskState, NamingProgress, SsdDeviceStatus, SsdStatus};
#[cfg(feature = "admin")]
pub use status::{
    Counters, EvictionStatus, FuseStatus, MemoryStatus, NamespaceStatus, PackedStatus, ScratchStatus, Status,
};
#[cfg(feature = "admin")]
pub use timestamp::Timestamp;
#[cfg(feature = "admin")]
pub use verify::{VerifyEvent, VerifyProgress, VerifyRequest, VerifySummary};
#[cfg(feature = "admin")]
pub use why::{EvictionCause, Verdict, Why};

/// Version of the admin API, the number in `/v1/...`.
pub const API_VERSION: u32 = 1;
