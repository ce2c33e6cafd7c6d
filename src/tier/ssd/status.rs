//! What the tier shows of itself.

use std::sync::atomic::{AtomicU64, Ordering};

use tidefs_engine::types::ByteCount;

use super::device::Device;
use super::endurance::DayStatus;
use super::format::{BLOCK_BYTES, Uuid};
use super::identity::Unusable;
use super::reasons::{ByReason, DroppedFor, WrittenFor};
use super::zone::ZoneState;
use crate::telemetry::Distribution;

/// Counts of a pool since its start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) refused_queue: AtomicU64,
    pub(super) refused_rate: AtomicU64,
    pub(super) refused_day: AtomicU64,
    pub(super) refused_large: AtomicU64,
    pub(super) refused_disk: AtomicU64,
    pub(super) corrupt_records: AtomicU64,
    pub(super) dropped: ByReason<DroppedFor>,
    pub(super) reclaimed_zones: AtomicU64,
    pub(super) zone_waits: AtomicU64,
    pub(super) lost_removals: AtomicU64,
}

/// One place of the tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Directory or device.
    pub name: String,
    /// Why it is not used, or gets no more writes.
    pub trouble: Option<Unusable>,
    /// Its identity, when it is in use.
    pub uuid: Option<Uuid>,
    /// Bytes of all its zones.
    pub capacity: ByteCount,
    /// Real bytes that it occupied when its last zone was made.
    pub allocated: ByteCount,
    /// Bytes of a zone.
    pub zone_bytes: ByteCount,
    /// Zones without records.
    pub free_zones: u64,
    /// Zones with records.
    pub used_zones: u64,
    /// Zones that gave I/O errors, or were not read in time by the start.
    pub quarantined_zones: u64,
    /// Bytes that wait to be written.
    pub queued: ByteCount,
    /// Bytes a second that it has shown.
    pub write_rate: ByteCount,
    /// Bytes written, headers, footers and what was written again included.
    pub written: ByteCount,
    /// The same by reason ([`WrittenFor`]); nothing of a place that is not used.
    pub written_for: Vec<(&'static str, ByteCount)>,
    /// Data of the objects that it was given, without headers and padding.
    pub stored: ByteCount,
    /// Of what was written, that which was written again.
    pub reinserted: ByteCount,
    /// Bytes read.
    pub read: ByteCount,
    /// The same by reason ([`super::ReadFor`]); nothing of a place that is not used.
    pub read_for: Vec<(&'static str, ByteCount)>,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// How long loads took.
    pub read_times: Distribution,
    /// How long records took.
    pub write_times: Distribution,
    /// Its part of the budget of the day, when there is one.
    pub day: Option<DayStatus>,
}

/// Room of the tier at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SsdSpace {
    /// Bytes of all zones that can be used.
    pub capacity: ByteCount,
    /// Bytes of the records that can be loaded, at most [`Self::capacity`].
    pub used: ByteCount,
}

/// The tier at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SsdStatus {
    /// Objects that can be loaded.
    pub objects: u64,
    /// Memory of the index.
    pub index_bytes: ByteCount,
    /// Why threads do the I/O, when they do.
    pub io_fallback: Option<String>,
    /// All places.
    pub devices: Vec<DeviceStatus>,
    /// Objects not written because the disks had enough to do.
    pub refused_queue: u64,
    /// Objects not written because of the byte-rate budget.
    pub refused_rate: u64,
    /// Objects not written because of the budget of the day.
    pub refused_day: u64,
    /// Objects not written because they, or what is kept beside them, are too large.
    pub refused_large: u64,
    /// Objects not written because no disk takes any.
    pub refused_disk: u64,
    /// Records that did not match their checksum.
    pub corrupt_records: u64,
    /// Records that were given up, by reason ([`DroppedFor`]).
    pub dropped_for: Vec<(&'static str, u64)>,
    /// Zones taken back.
    pub reclaimed_zones: u64,
    /// Times that no zone was free in time.
    pub zone_waits: u64,
    /// Removals that could not be written.
    pub lost_removals: u64,
}

impl Counters {
    /// The counts, around what else is known.
    pub(super) fn status(&self, status: SsdStatus) -> SsdStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SsdStatus {
            refused_queue: get(&self.refused_queue),
            refused_rate: get(&self.refused_rate),
            refused_day: get(&self.refused_day),
            refused_large: get(&self.refused_large),
            refused_disk: get(&self.refused_disk),
            corrupt_records: get(&self.corrupt_records),
            dropped_for: self.dropped.by_reason(),
            reclaimed_zones: get(&self.reclaimed_zones),
            zone_waits: get(&self.zone_waits),
            lost_removals: get(&self.lost_removals),
            ..status
        }
    }
}

impl DeviceStatus {
    /// A place that is not used.
    #[must_use]
    pub fn unusable(name: &str, reason: &Unusable) -> Self {
        Self { name: name.to_owned(), trouble: Some(reason.clone()), ..Self::default() }
    }

    /// A disk in use. Asks it nothing: it may not answer, and those who look keep others waiting.
    pub(super) fn of(device: &Device, write_rate: ByteCount, day: Option<DayStatus>) -> Self {
        let zones = device.zones_in_capacity();
        let zone_bytes = ByteCount(u64::from(device.zone_blocks) * BLOCK_BYTES);
        let count =
            |wanted: &[ZoneState]| zones.iter().filter(|zone| wanted.contains(&zone.state)).count() as u64;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (written_for, read_for) =
            (device.work.written.bytes_by_reason(), device.work.read.bytes_by_reason());
        let sum = |parts: &[(&str, ByteCount)]| ByteCount(parts.iter().map(|(_, bytes)| bytes.get()).sum());
        Self {
            name: device.name.clone(),
            trouble: device.trouble(),
            uuid: Some(device.uuid),
            capacity: ByteCount(zones.len() as u64 * zone_bytes.get()),
            allocated: device.allocated(),
            zone_bytes,
            free_zones: count(&[ZoneState::Free, ZoneState::Absent]),
            used_zones: count(&[ZoneState::Open, ZoneState::Closed, ZoneState::Reclaiming]),
            quarantined_zones: count(&[ZoneState::Quarantined]),
            queued: ByteCount(device.queue.bytes()),
            write_rate,
            written: sum(&written_for),
            written_for,
            stored: ByteCount(get(&device.work.stored_bytes)),
            reinserted: ByteCount(device.work.written.of(WrittenFor::Again)),
            read: sum(&read_for),
            read_for,
            read_errors: get(&device.work.read_errors),
            write_errors: get(&device.work.write_errors),
            read_times: device.work.read_times.distribution(),
            write_times: device.work.write_times.distribution(),
            day,
        }
    }
}
