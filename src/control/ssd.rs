//! The SSD tier as operators see it: in `status`, in `tidefs tier status`, and as metrics of each disk.

use std::fmt::Write as _;

use tidefs_control_api::{SsdDeviceStatus, SsdStatus};
use tidefs_engine::types::ObjectCount;

use crate::tier::ssd::{self, SsdTier, Unusable};

fn state(trouble: Option<&Unusable>) -> &'static str {
    match trouble {
        None => "ready",
        Some(Unusable::Missing) => "missing",
        Some(Unusable::Foreign(_)) => "foreign",
        Some(Unusable::ReadOnly) => "read_only",
        Some(Unusable::Full) => "full",
        Some(Unusable::Failing(_)) => "failing",
    }
}

fn device(device: ssd::DeviceStatus) -> SsdDeviceStatus {
    SsdDeviceStatus {
        state: state(device.trouble.as_ref()).to_owned(),
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
        reinserted: device.reinserted,
        read: device.read,
        read_errors: device.read_errors,
        write_errors: device.write_errors,
    }
}

/// The tier's status, as the admin socket tells it.
pub(super) fn status(tier: &SsdTier) -> SsdStatus {
    let status = tier.status();
    SsdStatus {
        records: ObjectCount(status.objects),
        index_bytes: status.index_bytes,
        io_fallback: status.io_fallback,
        refused_queue: status.refused_queue,
        refused_rate: status.refused_rate,
        refused_other: status.refused_other,
        corrupt_records: status.corrupt_records,
        dropped_objects: status.dropped_objects,
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

/// The tier's metrics in Prometheus text format.
pub(super) fn metrics(status: &SsdStatus) -> String {
    let mut text = String::new();
    let mut one = |name: &str, kind: &str, help: &str, values: &[(String, u64)]| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let whole = |value: u64| vec![(String::new(), value)];
    one("tidefs_ssd_records", "gauge", "Records that can be loaded.", &whole(status.records.0));
    one("tidefs_ssd_index_bytes", "gauge", "Heap bytes of the index.", &whole(status.index_bytes.get()));
    let fallback = u64::from(status.io_fallback.is_some());
    one(
        "tidefs_ssd_io_fallback",
        "gauge",
        "1 while threads do the I/O instead of io_uring.",
        &whole(fallback),
    );
    let refused =
        [("queue", status.refused_queue), ("rate", status.refused_rate), ("other", status.refused_other)];
    let refused = refused.map(|(reason, value)| (format!("{{reason=\"{reason}\"}}"), value));
    one("tidefs_ssd_refused_total", "counter", "Objects that budgets kept from the disks.", &refused);
    one(
        "tidefs_ssd_corrupt_total",
        "counter",
        "Records that did not match their checksum.",
        &whole(status.corrupt_records),
    );
    one(
        "tidefs_ssd_dropped_total",
        "counter",
        "Objects dropped with their zone.",
        &whole(status.dropped_objects),
    );
    one("tidefs_ssd_reclaimed_zones_total", "counter", "Zones taken back.", &whole(status.reclaimed_zones));
    one(
        "tidefs_ssd_lost_removals_total",
        "counter",
        "Removals that could not be written.",
        &whole(status.lost_removals),
    );
    let by_device = |value: fn(&SsdDeviceStatus) -> u64| -> Vec<(String, u64)> {
        let labels = |path: &str| {
            let path = path.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{{device=\"{path}\"}}")
        };
        status.devices.iter().map(|device| (labels(&device.path), value(device))).collect()
    };
    let ready = by_device(|device| u64::from(device.trouble.is_none()));
    one("tidefs_ssd_ready", "gauge", "1 while the disk is in order.", &ready);
    one(
        "tidefs_ssd_capacity_bytes",
        "gauge",
        "Bytes that the disk may hold.",
        &by_device(|device| device.capacity.get()),
    );
    one(
        "tidefs_ssd_allocated_bytes",
        "gauge",
        "Real bytes on the disk.",
        &by_device(|device| device.allocated.get()),
    );
    one(
        "tidefs_ssd_queued_bytes",
        "gauge",
        "Bytes that wait to be written.",
        &by_device(|device| device.queued.get()),
    );
    one(
        "tidefs_ssd_written_bytes_total",
        "counter",
        "Bytes written.",
        &by_device(|device| device.written.get()),
    );
    one(
        "tidefs_ssd_reinserted_bytes_total",
        "counter",
        "Bytes written again by reclaim.",
        &by_device(|device| device.reinserted.get()),
    );
    one("tidefs_ssd_read_bytes_total", "counter", "Bytes read.", &by_device(|device| device.read.get()));
    one("tidefs_ssd_read_errors_total", "counter", "Failed reads.", &by_device(|device| device.read_errors));
    one(
        "tidefs_ssd_write_errors_total",
        "counter",
        "Failed writes.",
        &by_device(|device| device.write_errors),
    );
    text
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
        let text = metrics(&SsdStatus { devices: vec![SsdDeviceStatus::default()], ..SsdStatus::default() });
        let expected: Vec<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '))
            .map(|(name, help)| format!("| `{name}` | {help} |"))
            .collect();
        assert_eq!(written, expected);
        assert!(text.contains("tidefs_ssd_read_bytes_total{device=\"\"} 0\n"));
    }

    #[test]
    fn a_disk_in_trouble_is_a_warning_that_names_it() {
        let device = SsdDeviceStatus {
            path: "/mnt/a".to_owned(),
            state: "missing".to_owned(),
            trouble: Some("it does not exist".to_owned()),
            ..SsdDeviceStatus::default()
        };
        let status = SsdStatus { devices: vec![device, SsdDeviceStatus::default()], ..SsdStatus::default() };
        assert_eq!(warnings(&status), ["SSD tier, /mnt/a is missing: it does not exist"]);
    }
}
