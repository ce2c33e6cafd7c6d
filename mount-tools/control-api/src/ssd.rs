//! The SSD tier of one daemon.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidefs_engine::types::{ByteCount, ObjectCount};

use crate::display::display_as_in_json;

/// What the SSD tier holds and how it works.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SsdStatus {
    /// Records that can be loaded: objects, some of which are in memory too, and directories.
    pub records: ObjectCount,
    /// How far a start is that gives the objects on disk their names back, until it is through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub naming: Option<NamingProgress>,
    /// Memory of the index, in the daemon's heap.
    pub index_bytes: ByteCount,
    /// Why threads do the I/O instead of io_uring, when they do.
    pub io_fallback: Option<String>,
    /// Objects dropped at eviction because the disks had enough to do.
    pub refused_queue: u64,
    /// Objects dropped at eviction because of the budget of bytes a second.
    pub refused_rate: u64,
    /// Objects dropped at eviction because the budget of the day would be passed.
    pub refused_day: u64,
    /// Objects dropped at eviction because they are too large, or no disk takes any.
    pub refused_other: u64,
    /// Records that did not match their checksum; each was a miss.
    pub corrupt_records: u64,
    /// Records that were given up.
    pub dropped_objects: u64,
    /// The same by reason: `room`, when their zone was taken back, `error`, `disk`, when theirs was emptied or taken out, and
    /// `capacity`, when that became smaller.
    pub dropped_for: BTreeMap<String, u64>,
    /// Zones taken back.
    pub reclaimed_zones: u64,
    /// Times that no zone was free in time.
    pub zone_waits: u64,
    /// Removals that could not be written: such keys may come back after a power cut.
    pub lost_removals: u64,
    /// One entry for each directory or device.
    pub devices: Vec<SsdDeviceStatus>,
}

/// Names that were given back since the start. An object without its name is found when it is looked up, but not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamingProgress {
    /// Objects that have their names.
    pub named: ObjectCount,
    /// Objects that were on disk at the start.
    pub objects: ObjectCount,
}

/// How a directory or device of the SSD tier is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskState {
    /// It is in order.
    Ready,
    /// It does not exist.
    Missing,
    /// It belongs to somebody else.
    Foreign,
    /// It cannot be written.
    ReadOnly,
    /// It works, smaller than configured.
    Full,
    /// It failed writes and gets no more; what it holds is read.
    Failing,
    /// It works when it answers in time.
    Slow,
    /// It is being emptied.
    Leaving,
    /// It works without the zones that gave errors.
    Damaged,
    /// A state that this version does not know.
    #[default]
    #[serde(other)]
    Other,
}

display_as_in_json! {
    DiskState {
        Ready => "ready", Missing => "missing", Foreign => "foreign", ReadOnly => "read_only", Full => "full",
        Failing => "failing", Slow => "slow", Leaving => "leaving", Damaged => "damaged", Other => "other",
    }
}

/// One directory or device of the SSD tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SsdDeviceStatus {
    /// Its path.
    pub path: String,
    /// How it is.
    pub state: DiskState,
    /// What is wrong and what to do, unless it is ready.
    pub trouble: Option<String>,
    /// Its identity, from its superblock.
    pub uuid: Option<String>,
    /// Bytes that it may hold.
    pub capacity: ByteCount,
    /// Real bytes that it takes on its filesystem.
    pub allocated: ByteCount,
    /// Bytes of a zone.
    pub zone_bytes: ByteCount,
    /// Zones without records.
    pub free_zones: u64,
    /// Zones with records.
    pub used_zones: u64,
    /// Zones given up after an I/O error.
    pub quarantined_zones: u64,
    /// Bytes that wait to be written.
    pub queued: ByteCount,
    /// Bytes a second that it has shown when it writes.
    pub write_rate: ByteCount,
    /// Bytes written since the start, headers and what was written again included.
    pub written: ByteCount,
    /// The same by reason: `objects`, `again`, `removals`, and `structures`, which are headers and footers.
    pub written_for: BTreeMap<String, ByteCount>,
    /// Of the objects that were written, their bytes without headers and padding.
    pub stored: ByteCount,
    /// Of what was written, that which was written again: its zone was taken back, or another disk emptied.
    pub reinserted: ByteCount,
    /// Bytes read since the start.
    pub read: ByteCount,
    /// The same by reason: `use`, `ahead` of it, `check`, `again`, and `structures`.
    pub read_for: BTreeMap<String, ByteCount>,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Its part of the budget of bytes a day, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day: Option<DayBudget>,
}

impl SsdDeviceStatus {
    /// Bytes written for each byte that was stored; `None` before the first.
    #[must_use]
    pub fn write_amplification(&self) -> Option<f64> {
        (self.stored > ByteCount::ZERO).then(|| self.written.get() as f64 / self.stored.get() as f64)
    }
}

/// Bytes a day of one disk. Days are counted from the daemon's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DayBudget {
    /// Bytes that may be written in a day.
    pub budget: ByteCount,
    /// Bytes written in this day.
    pub written: ByteCount,
    /// What it will be at the end of the day, at the present rate.
    pub projected: ByteCount,
    /// Whether less is admitted because of that.
    pub tight: bool,
}
