//! Verification of checksums, told line by line while it goes on.

use serde::{Deserialize, Serialize};
use tidefs_engine::types::{ByteCount, ObjectCount};

use crate::{Event, KeyPath, Tier};

/// Largest number of corrupt keys that a summary names; further ones are counted.
pub const CORRUPT_LISTED_MAX: usize = 1000;

/// Body of [`crate::routes::VERIFY`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VerifyRequest {
    /// The object, or the directory with all below it. Absent: everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<KeyPath>,
    /// `ssd`: the records on disk, also of objects that are in memory too. Absent: what is in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// Most bytes to read a second, so that readers do not feel it. Absent: as fast as it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<ByteCount>,
}

/// How far a verification is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VerifyProgress {
    /// Objects read and compared.
    pub checked: ObjectCount,
    /// Objects passed by: not where they were looked for, gone, being written, or not to be read.
    pub passed_by: ObjectCount,
    /// Objects to check or to pass by, as counted at the start.
    pub total: ObjectCount,
    /// Bytes read.
    pub checked_bytes: ByteCount,
    /// Objects among them whose bytes do not fit their checksum.
    pub corrupt: ObjectCount,
}

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VerifySummary {
    /// Objects read and compared.
    pub checked: ObjectCount,
    /// Objects that went (evicted, replaced, deleted) before they were reached. Not read.
    pub gone: ObjectCount,
    /// Objects that are on disk and not in memory, when memory was verified. Not read.
    pub only_on_disk: ObjectCount,
    /// Objects that are in memory and not on disk, when the disks were verified. Not read.
    pub only_in_memory: ObjectCount,
    /// Objects that only other members of the cluster hold. Not read.
    pub only_elsewhere: ObjectCount,
    /// Objects that a program still has open to write, or has written again meanwhile. Not read.
    pub being_written: ObjectCount,
    /// Objects that memory did not give, or their disk failed or took too long with, or whose checksum cannot be read. Nothing is
    /// known of them.
    pub unreadable: ObjectCount,
    /// Bytes read.
    pub checked_bytes: ByteCount,
    /// Objects whose bytes do not fit their checksum. They are dropped from the cache: a failure is a miss.
    pub corrupt: ObjectCount,
    /// Their keys, the first [`CORRUPT_LISTED_MAX`].
    pub corrupt_paths: Vec<KeyPath>,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// One line of the answer. Progress may be left out when the reader is slow.
pub type VerifyEvent = Event<VerifyProgress, VerifySummary>;
