//! `tidefs tier status`.

use std::collections::BTreeMap;

use tidefs_control_api::{DayBudget, NamingProgress, SsdDeviceStatus, SsdStatus, Status, routes};
use tidefs_engine::types::ByteCount;

use crate::args::StatusArgs;
use crate::error::CliError;
use crate::locate;
use crate::output::{Column, Output, facts, grouped, percent, table};

pub(crate) fn status(args: &StatusArgs, output: Output) -> Result<(), CliError> {
    let select = args.of.select();
    let client = locate::connect(&select)?;
    let value = client.get(routes::STATUS, &())?;
    let status: Status = client.read(value.clone())?;
    let tiers = serde_json::json!({
        "memory": { "capacity": status.capacity, "used": status.used, "objects": status.objects },
        "ssd": value.get("ssd"),
    });
    output.result(&tiers, || human(&status, &locate::same_daemon(&select)))
}

/// `same_daemon`: options by which another command asks the same one.
fn human(status: &Status, same_daemon: &str) -> String {
    let memory = format!(
        "{} of {} used ({}), {} objects",
        status.used,
        status.capacity,
        percent(status.used.get(), status.capacity.get()),
        grouped(status.objects.0)
    );
    let none = || format!("none; `tidefs tier add DIR{same_daemon}` gives it a disk");
    let mut text =
        facts(&[("memory", Some(memory)), ("ssd", Some(status.ssd.as_ref().map_or_else(none, ssd)))]);
    if let Some(tier) = &status.ssd {
        text += "\n";
        text += &devices(tier);
        text.extend(tier.devices.iter().filter_map(bytes_by_reason));
        text.extend(tier.devices.iter().filter_map(day));
    }
    text
}

/// The tier in one line.
pub(super) fn ssd(tier: &SsdStatus) -> String {
    let refused = tier.refused_queue + tier.refused_rate + tier.refused_day + tier.refused_other;
    let naming = tier.naming.map_or_else(String::new, |naming| {
        let NamingProgress { named, objects } = naming;
        format!("; {} of {} names are back", grouped(named.0), grouped(objects.0))
    });
    format!(
        "{} records, {} for the index; {} objects refused, {} dropped{}, {} damaged{naming}",
        grouped(tier.records.0),
        tier.index_bytes,
        grouped(refused),
        grouped(tier.dropped_objects),
        dropped_for(&tier.dropped_for),
        grouped(tier.corrupt_records)
    )
}

/// Why records were given up, in brackets; nothing when none was.
fn dropped_for(by_reason: &BTreeMap<String, u64>) -> String {
    let some = by_reason.iter().filter(|(_, count)| **count > 0);
    let list: Vec<String> = some.map(|(reason, count)| format!("{reason} {}", grouped(*count))).collect();
    if list.is_empty() { String::new() } else { format!(" ({})", list.join(", ")) }
}

/// What the bytes of a disk were written and read for, in one line.
fn bytes_by_reason(device: &SsdDeviceStatus) -> Option<String> {
    let list = |by_reason: &BTreeMap<String, ByteCount>| {
        let some = by_reason.iter().filter(|(_, bytes)| **bytes > ByteCount::ZERO);
        some.map(|(reason, bytes)| format!("{reason} {bytes}")).collect::<Vec<_>>().join(", ")
    };
    let (written, read) = (list(&device.written_for), list(&device.read_for));
    let told = [("written", written), ("read", read)].into_iter().filter(|(_, list)| !list.is_empty());
    let told: Vec<String> = told.map(|(what, list)| format!("{what} for {list}")).collect();
    (!told.is_empty()).then(|| format!("{}: {}\n", device.path, told.join("; ")))
}

/// What a disk wrote of its budget of the day, in one line.
fn day(device: &SsdDeviceStatus) -> Option<String> {
    let DayBudget { budget, written, projected, tight } = device.day?;
    let held_back = if tight { ": less is admitted" } else { "" };
    let path = &device.path;
    Some(format!(
        "{path}: {written} of {budget} written today, {projected} by its end at this rate{held_back}\n"
    ))
}

fn devices(tier: &SsdStatus) -> String {
    let rows = tier.devices.iter().map(|device| {
        vec![
            device.path.clone(),
            device.state.to_string(),
            device.capacity.to_string(),
            device.allocated.to_string(),
            format!("{}/{}", device.used_zones, device.used_zones + device.free_zones),
            device.queued.to_string(),
            device.written.to_string(),
            device.reinserted.to_string(),
            device.write_amplification().map_or_else(|| "-".to_owned(), |factor| format!("{factor:.2}")),
            device.read.to_string(),
            grouped(device.read_errors + device.write_errors),
        ]
    });
    table(
        &[
            Column::Left("DISK"),
            Column::Left("STATE"),
            Column::Right("CAPACITY"),
            Column::Right("ON DISK"),
            Column::Right("ZONES"),
            Column::Right("QUEUED"),
            Column::Right("WRITTEN"),
            Column::Right("AGAIN"),
            Column::Right("W-AMP"),
            Column::Right("READ"),
            Column::Right("ERRORS"),
        ],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_told_with_what_its_bytes_were_for() {
        let bytes = |reason: &str, bytes| (reason.to_owned(), bytes);
        let device = SsdDeviceStatus {
            path: "/mnt/a".to_owned(),
            written: ByteCount::mib(15),
            stored: ByteCount::mib(10),
            written_for: [bytes("objects", ByteCount::mib(12)), bytes("again", ByteCount::mib(3))].into(),
            read_for: [bytes("use", ByteCount::mib(1)), bytes("ahead", ByteCount::ZERO)].into(),
            ..SsdDeviceStatus::default()
        };
        let line = bytes_by_reason(&device);
        let expected = "/mnt/a: written for again 3.0 MiB, objects 12.0 MiB; read for use 1.0 MiB\n";
        assert_eq!(line.as_deref(), Some(expected));
        assert_eq!(bytes_by_reason(&SsdDeviceStatus::default()), None);
        let table = devices(&SsdStatus { devices: vec![device], ..SsdStatus::default() });
        assert!(table.contains("W-AMP") && table.contains(" 1.50 "), "{table}");
    }
}
