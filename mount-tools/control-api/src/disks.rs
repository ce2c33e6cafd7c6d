//! Disks of the SSD tier that are added, emptied and removed while the daemon runs.

use serde::{Deserialize, Serialize};
use tidefs_engine::types::{ByteCount, ObjectCount};

use crate::Event;

/// Body of [`crate::routes::TIER_ADD`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AddDiskRequest {
    /// A directory, or a block device, as an absolute path.
    pub path: String,
    /// Most bytes of real blocks. Absent: as much as the largest of the others may hold, at most three quarters of what is free;
    /// of the first one `ssd.capacity`, or three quarters of what is free where that is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ByteCount>,
}

/// Body of [`crate::routes::TIER_REMOVE`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoveDiskRequest {
    /// Its path, as status shows it.
    pub path: String,
    /// Whether the objects on it are given up.
    pub force: bool,
}

/// Body of [`crate::routes::TIER_DRAIN`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DrainDiskRequest {
    /// Its path, as status shows it.
    pub path: String,
    /// Most bytes to move a second. Absent: as fast as it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<ByteCount>,
}

/// The answer to a change of the disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DisksChanged {
    /// What a disk that was added may hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ByteCount>,
    /// The disks in use now.
    pub disks: Vec<String>,
    /// Whether the configuration names the same ones. If not, the change lasts until the machine restarts.
    pub as_configured: bool,
    /// The setting that makes it last.
    pub setting: String,
}

/// How far a disk is emptied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainProgress {
    /// Objects that were written to other disks.
    pub moved: ObjectCount,
    /// Their bytes.
    pub moved_bytes: ByteCount,
    /// Objects that are in memory too, and were given up on the disk.
    pub in_memory: ObjectCount,
    /// Objects that are damaged, or too large for the other disks: misses from now on.
    pub lost: ObjectCount,
    /// Objects that are still on it.
    pub left: ObjectCount,
}

/// One line of the answer to [`crate::routes::TIER_DRAIN`]. Progress may be left out when the reader is slow.
pub type DrainEvent = Event<DrainProgress, DrainProgress>;
