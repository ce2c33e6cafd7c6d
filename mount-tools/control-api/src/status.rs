//! The state of one daemon at a glance.

use serde::{Deserialize, Serialize};
use tidefs_engine::types::{ByteCount, ObjectCount};

use crate::{ClusterStatus, SsdStatus, Timestamp};

/// Answer of [`crate::routes::STATUS`], and content of `.tidefs/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// [`crate::API_VERSION`] of the daemon.
    pub api_version: u32,
    /// Version of the daemon.
    pub version: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// When the daemon started.
    pub started_at: Timestamp,
    /// For how long it runs.
    pub uptime_s: u64,
    /// Bytes that it may hold.
    pub capacity: ByteCount,
    /// Bytes that it holds: whole pages, of sealed and unsealed files and of what is deleted but still open.
    pub used: ByteCount,
    /// `capacity - used`.
    pub free: ByteCount,
    /// Sealed objects.
    pub objects: ObjectCount,
    /// Their bytes.
    pub sealed_bytes: ByteCount,
    /// Files that are being written.
    pub unsealed_files: u64,
    /// Bytes of all files that are unfinished, in whole pages: being written, waiting for their rename, or written on after
    /// their seal. Quotas count them beside what is sealed.
    pub unsealed_bytes: ByteCount,
    /// Small objects.
    pub packed: PackedStatus,
    /// Files that are rewritten in place.
    pub scratch: ScratchStatus,
    /// The SSD tier; absent when there is none.
    pub ssd: Option<SsdStatus>,
    /// The cluster; absent when the host is alone.
    pub cluster: Option<ClusterStatus>,
    /// Why the host has not joined its cluster yet, and serves alone; absent when it has, or has none.
    pub cluster_waits_for: Option<String>,
    /// Who left to make room.
    pub eviction: EvictionStatus,
    /// The edge to the kernel.
    pub fuse: FuseStatus,
    /// The memory that holds the bytes.
    pub memory: MemoryStatus,
    /// What was asked since the start.
    pub counters: Counters,
    /// One entry for each top-level directory.
    pub namespaces: Vec<NamespaceStatus>,
    /// What an operator should know: slower than it could be, nearly full of pins, and so on.
    pub warnings: Vec<String>,
}

/// Small objects, which share segments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PackedStatus {
    /// Objects in shared segments.
    pub objects: ObjectCount,
    /// Their bytes.
    pub bytes: ByteCount,
    /// Shared segments.
    pub segments: u64,
    /// Bytes of memory that the shared segments take.
    pub segment_bytes: ByteCount,
}

/// Files that are rewritten in place and never sealed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScratchStatus {
    /// Scratch files, unlinked ones that are open included.
    pub files: u64,
    /// Bytes that they take.
    pub bytes: ByteCount,
    /// Bytes that they may take; absent if there is no limit of their own.
    pub capacity: Option<ByteCount>,
}

/// Who left to make room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvictionStatus {
    /// Policy of namespaces that name none.
    pub policy: String,
    /// Objects evicted since the start.
    pub evicted_objects: ObjectCount,
    /// Their bytes.
    pub evicted_bytes: ByteCount,
    /// Memory of the orders of eviction, in the daemon's heap.
    pub order_bytes: ByteCount,
}

/// The edge to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FuseStatus {
    /// Whether the kernel serves the bytes by itself.
    pub passthrough: bool,
    /// Why not, if it does not.
    pub passthrough_reason: Option<String>,
    /// Threads that answer the kernel.
    pub threads: u32,
    /// Version of the protocol that was agreed, for example `7.45`.
    pub kernel_abi: String,
    /// Names of the protocol features that were agreed.
    pub flags: Vec<String>,
}

/// The memory that holds the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStatus {
    /// Size of the pages that were really got; huge ones make reads faster. `None` when that is not known, as after a start
    /// on memory that was full.
    pub page_size: Option<ByteCount>,
    /// Whether the memory is a mount of its own, which survives the daemon.
    pub private_mount: bool,
    /// Free memory that is touched and held ahead of objects, beside what they use: where the first touch is slow, as in a
    /// virtual machine.
    pub prefaulted: ByteCount,
    /// Of the memory in use, what holds nothing and waits for the next object: it goes before any object is evicted.
    pub waiting: ByteCount,
    /// What belongs to objects that were evicted, replaced or deleted, and that programs have open or may have mapped: it is free
    /// when they let go. What left within the last second may be among it.
    pub held: ByteCount,
    /// What is worse than it could be, and why.
    pub warnings: Vec<String>,
}

/// What was asked since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Opens of objects to read.
    pub hits: u64,
    /// Look-ups that found nothing.
    pub misses: u64,
    /// Files that programs opened, to read or to write, with those that they created.
    pub opens: u64,
    /// Files created.
    pub creates: u64,
}

impl Counters {
    /// Hits among hits and misses, 0 to 1; absent before the first of either.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people; 53 bits are plenty")]
    pub fn hit_ratio(&self) -> Option<f64> {
        let lookups = self.hits.saturating_add(self.misses);
        (lookups > 0).then(|| self.hits as f64 / lookups as f64)
    }
}

/// One top-level directory: the unit of policy and quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceStatus {
    /// Its name, escaped as in [`crate::KeyPath`].
    pub name: String,
    /// Bytes of its sealed objects.
    pub bytes: ByteCount,
    /// Bytes of its unfinished files, which its quota counts too; see [`Status::unsealed_bytes`].
    pub unsealed_bytes: ByteCount,
    /// Objects that it holds.
    pub objects: ObjectCount,
    /// Bytes that it may hold at most.
    pub quota: Option<ByteCount>,
    /// Bytes below which others do not evict from it.
    pub floor: Option<ByteCount>,
    /// Its eviction policy.
    pub policy: String,
    /// Objects evicted from it since the start.
    pub evicted: ObjectCount,
    /// Opens of objects below it to read.
    pub hits: u64,
    /// Look-ups below it that found nothing.
    pub misses: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_an_older_or_later_daemon_is_read() {
        let status: Status =
            serde_json::from_str(r#"{"pid":7,"fuse":{"threads":2},"weather":"fine"}"#).unwrap();
        assert_eq!((status.pid, status.fuse.threads, status.capacity), (7, 2, ByteCount::ZERO));
    }

    #[test]
    fn a_hit_ratio_needs_a_lookup() {
        assert_eq!(Counters::default().hit_ratio(), None);
        assert_eq!(Counters { hits: 3, misses: 1, ..Counters::default() }.hit_ratio(), Some(0.75));
    }
}
