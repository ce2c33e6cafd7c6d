//! The SSD tier as operators see it: in `status`, in `tidefs tier status`, and as metrics of each disk.

use std::collections::BTreeMap;

use tidefs_control_api::{DayBudget, DiskState, NamingProgress, SsdDeviceStatus, SsdStatus};
use tidefs_engine::types::{ByteCount, ObjectCount};

use crate::telemetry::{Family, Value};
use crate::tier::ssd::{self, SsdTier, Unusable};

fn state(trouble: Option<&Unusable>) -> DiskState {
    match trouble {
        None => DiskState::Ready,
        Some(Unusable::Missing | Unusable::Unmounted(_)) => DiskState::Missing,
        Some(Unusable::Foreign(_)) => DiskState::Foreign,
        Some(Unusable::ReadOnly) => DiskState::ReadOnly,
        Some(Unusable::Full) => DiskState::Full,
        Some(Unusable::Failing(_)) => DiskState::Failing,
        Some(Unusable::Slow) => DiskState::Slow,
        Some(Unusable::Leaving) => DiskState::Leaving,
        Some(Unusable::Damaged(_)) => DiskState::Damaged,
    }
}

fn by_name(bytes: Vec<(&'static str, ByteCount)>) -> BTreeMap<String, ByteCount> {
    bytes.into_iter().map(|(reason, bytes)| (reason.to_owned(), bytes)).collect()
}

fn device(device: ssd::DeviceStatus) -> SsdDeviceStatus {
    SsdDeviceStatus {
        state: state(device.trouble.as_ref()),
        trouble: device.trouble.map(|trouble| trouble.to_string()),
        path: device.name,
        uuid: device.uuid.map(|uuid| uuid.to_string()),
        capacity: device.capacity,
        allocated: device.allocated,
        zone_bytes: device.zone_bytes,
        free_zones: device.free_zones,
        used_zones: device.used_zones,
        quarantined_zones: device.quarantined_zones,
        queued: device.queued,
        write_rate: device.write_rate,
        written: device.written,
        written_for: by_name(device.written_for),
        stored: device.stored,
        reinserted: device.reinserted,
        read: device.read,
        read_for: by_name(device.read_for),
        read_errors: device.read_errors,
        write_errors: device.write_errors,
        day: device.day.map(|day| DayBudget {
            budget: day.budget,
            written: day.written,
            projected: day.projected,
            tight: day.is_tight,
        }),
    }
}

/// The tier's status, as the admin socket tells it.
pub(super) fn status(tier: &SsdTier, naming: Option<(ObjectCount, ObjectCount)>) -> SsdStatus {
    let status = tier.status();
    SsdStatus {
        naming: naming.map(|(named, objects)| NamingProgress { named, objects }),
        records: ObjectCount(status.objects),
        index_bytes: status.index_bytes,
        io_fallback: status.io_fallback,
        refused_queue: status.refused_queue,
        refused_rate: status.refused_rate,
        refused_day: status.refused_day,
        refused_other: status.refused_large + status.refused_disk,
        corrupt_records: status.corrupt_records,
        dropped_objects: status.dropped_for.iter().map(|(_, count)| count).sum(),
        dropped_for: status
            .dropped_for
            .iter()
            .map(|(reason, count)| ((*reason).to_owned(), *count))
            .collect(),
        reclaimed_zones: status.reclaimed_zones,
        zone_waits: status.zone_waits,
        lost_removals: status.lost_removals,
        devices: status.devices.into_iter().map(device).collect(),
    }
}

/// What an operator should know.
pub(super) fn warnings(status: &SsdStatus) -> Vec<String> {
    let mut warnings: Vec<String> = status
        .devices
        .iter()
        .filter_map(|device| {
            let trouble = device.trouble.as_ref()?;
            Some(format!("SSD tier, {} is {}: {trouble}", device.path, device.state))
        })
        .collect();
    warnings.extend(status.io_fallback.iter().map(|why| format!("SSD tier, slower: {why}")));
    if status.lost_removals > 0 {
        warnings.push(format!("SSD tier: {} removals could not be written", status.lost_removals));
    }
    warnings
}

/// Name, help and value of a metric of each disk.
type OfDevice = (&'static str, &'static str, fn(&ssd::DeviceStatus) -> Value);

/// What is told of each disk.
const OF_DEVICES: [OfDevice; 13] = [
    ("tidefs_ssd_ready", "1 while the disk is in order.", |device| {
        Value::Gauge(u64::from(device.trouble.is_none()))
    }),
    ("tidefs_ssd_capacity_bytes", "Bytes that the disk may hold.", |device| {
        Value::Gauge(device.capacity.get())
    }),
    ("tidefs_ssd_allocated_bytes", "Real bytes on the disk, as of when its last zone was made.", |device| {
        Value::Gauge(device.allocated.get())
    }),
    ("tidefs_ssd_queued_bytes", "Bytes that wait to be written.", |device| Value::Gauge(device.queued.get())),
    ("tidefs_ssd_written_bytes_total", "Bytes written.", |device| Value::Counter(device.written.get())),
    (
        "tidefs_ssd_stored_bytes_total",
        "Bytes of the objects that were written, without headers and padding: bytes written, divided by these, are the write \
         amplification.",
        |device| Value::Counter(device.stored.get()),
    ),
    (
        "tidefs_ssd_reinserted_bytes_total",
        "Bytes written again, by reclaim or from a disk that is emptied.",
        |device| Value::Counter(device.reinserted.get()),
    ),
    ("tidefs_ssd_read_bytes_total", "Bytes read.", |device| Value::Counter(device.read.get())),
    ("tidefs_ssd_read_errors_total", "Failed reads.", |device| Value::Counter(device.read_errors)),
    ("tidefs_ssd_write_errors_total", "Failed writes.", |device| Value::Counter(device.write_errors)),
    ("tidefs_ssd_read_seconds", "Time from a load's first request to its last answer.", |device| {
        Value::Histogram(device.read_times.clone())
    }),
    ("tidefs_ssd_write_seconds", "Time from a record's first request to its last answer.", |device| {
        Value::Histogram(device.write_times.clone())
    }),
    (
        "tidefs_ssd_quarantined_zones",
        "Zones that are not used: they gave an I/O error, or were not read in time by the start.",
        |device| Value::Gauge(device.quarantined_zones),
    ),
];

/// Name, help and values of a metric of each disk and reason.
type ByReason = (&'static str, &'static str, fn(&ssd::DeviceStatus) -> &[(&'static str, ByteCount)]);

/// What is told of each disk by reason.
const BY_REASON: [ByReason; 2] = [
    (
        "tidefs_ssd_written_by_reason_bytes_total",
        "Bytes written for `objects`, `again` by reclaim or from a disk that is emptied, for `removals`, and for `structures`: \
         headers and footers.",
        |device| &device.written_for,
    ),
    (
        "tidefs_ssd_read_by_reason_bytes_total",
        "Bytes read for `use`, `ahead` of it, to `check` them, to write them `again`, and for `structures`, of a start for the \
         most part.",
        |device| &device.read_for,
    ),
];

/// The tier's metrics.
pub(super) fn metrics(status: &ssd::SsdStatus) -> Vec<Family> {
    let refused = [
        ("queue", status.refused_queue),
        ("rate", status.refused_rate),
        ("day", status.refused_day),
        ("too_large", status.refused_large),
        ("no_disk", status.refused_disk),
    ];
    let counter = |(reason, value): (&str, u64)| (reason.to_owned(), Value::Counter(value));
    let refused = refused.map(counter);
    let dropped = status.dropped_for.iter().copied().map(counter);
    let mut families = vec![
        Family::gauge("tidefs_ssd_records", "Records that can be loaded.", status.objects),
        Family::gauge("tidefs_ssd_index_bytes", "Heap bytes of the index.", status.index_bytes.get()),
        Family::gauge(
            "tidefs_ssd_io_fallback",
            "1 while threads do the I/O instead of io_uring.",
            u64::from(status.io_fallback.is_some()),
        ),
        Family::labelled(
            "tidefs_ssd_refused_total",
            "Objects that were to leave memory, or to be durable, and were not written: the disks had enough to do (`queue`), a \
             budget was used up (`rate`, `day`), or they are `too_large`, or there is `no_disk` that takes any.",
            "reason",
            refused,
        ),
        Family::counter(
            "tidefs_ssd_corrupt_total",
            "Records that did not match their checksum.",
            status.corrupt_records,
        ),
        Family::labelled(
            "tidefs_ssd_dropped_total",
            "Records that were given up: for the `room` of their zone, for an `error` of it, as their `disk` was emptied or \
             taken out, or as its `capacity` became smaller.",
            "reason",
            dropped,
        ),
        Family::counter("tidefs_ssd_reclaimed_zones_total", "Zones taken back.", status.reclaimed_zones),
        Family::counter(
            "tidefs_ssd_zone_waits_total",
            "Times that no zone was free in time. What was to be written was lost, but for removals and pinned objects.",
            status.zone_waits,
        ),
        Family::counter(
            "tidefs_ssd_lost_removals_total",
            "Removals that could not be written.",
            status.lost_removals,
        ),
    ];
    families.extend(OF_DEVICES.map(|(name, help, value)| {
        let values = status.devices.iter().map(|device| (device.name.clone(), value(device)));
        Family::labelled(name, help, "device", values)
    }));
    families.extend(BY_REASON.map(|(name, help, by_reason)| {
        let of = |device: &ssd::DeviceStatus| {
            let labels = |reason: &str| vec![("device", device.name.clone()), ("reason", reason.to_owned())];
            let by_reason = by_reason(device).iter();
            by_reason.map(|(reason, bytes)| (labels(reason), Value::Counter(bytes.get()))).collect::<Vec<_>>()
        };
        Family { name, help, series: status.devices.iter().flat_map(of).collect() }
    }));
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_md_has_a_row_for_each_metric_of_the_tier_and_no_other() {
        let document = include_str!("../../docs/METRICS.md");
        let (_, table) = document.split_once("## SSD tier").unwrap();
        let (table, _) = table.split_once("\n## ").unwrap();
        let written: Vec<&str> = table.lines().filter(|line| line.starts_with("| `tidefs_")).collect();
        let devices = vec![ssd::DeviceStatus::unusable("/mnt/a", &Unusable::Missing)];
        let families = metrics(&ssd::SsdStatus { devices, ..ssd::SsdStatus::default() });
        let expected: Vec<String> =
            families.iter().map(|family| format!("| `{}` | {} |", family.name, family.help)).collect();
        assert_eq!(written, expected);
        let text = crate::telemetry::render(families).unwrap();
        assert!(text.contains("tidefs_ssd_read_bytes_total{device=\"/mnt/a\"} 0\n"), "{text}");
    }

    #[test]
    fn a_disk_in_trouble_is_a_warning_that_names_it() {
        let device = SsdDeviceStatus {
            path: "/mnt/a".to_owned(),
            state: DiskState::Missing,
            trouble: Some("it does not exist".to_owned()),
            ..SsdDeviceStatus::default()
        };
        let status = SsdStatus { devices: vec![device, SsdDeviceStatus::default()], ..SsdStatus::default() };
        assert_eq!(warnings(&status), ["SSD tier, /mnt/a is missing: it does not exist"]);
    }
}
