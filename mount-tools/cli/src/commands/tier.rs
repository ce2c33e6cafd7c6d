//! `tidefs tier status`.

use tidefs_control_api::{DayBudget, NamingProgress, SsdDeviceStatus, SsdStatus, Status, routes};

use super::disks::TierStatusArgs;
use crate::error::CliError;
use crate::locate;
use crate::output::{Column, Output, facts, grouped, percent, table};

pub(crate) fn status(args: &TierStatusArgs, output: Output) -> Result<(), CliError> {
    let client = locate::connect(&args.select)?;
    let value = client.get(routes::STATUS, &())?;
    let status: Status = client.read(value.clone())?;
    let tiers = serde_json::json!({
        "memory": { "capacity": status.capacity, "used": status.used, "objects": status.objects },
        "ssd": value.get("ssd"),
    });
    output.result(&tiers, || human(&status))
}

fn human(status: &Status) -> String {
    let memory = format!(
        "{} of {} used ({}), {} objects",
        status.used,
        status.capacity,
        percent(status.used.get(), status.capacity.get()),
        grouped(status.objects.0)
    );
    let mut text = facts(&[
        ("memory", Some(memory)),
        (
            "ssd",
            Some(
                status
                    .ssd
                    .as_ref()
                    .map_or_else(|| "none; `tidefs tier add DIR` gives it a disk".to_owned(), ssd),
            ),
        ),
    ]);
    if let Some(tier) = &status.ssd {
        text += "\n";
        text += &devices(tier);
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
        "{} records, {} for the index; {} objects refused, {} dropped, {} damaged{naming}",
        grouped(tier.records.0),
        tier.index_bytes,
        grouped(refused),
        grouped(tier.dropped_objects),
        grouped(tier.corrupt_records)
    )
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
            device.state.clone(),
            device.capacity.to_string(),
            device.allocated.to_string(),
            format!("{}/{}", device.used_zones, device.used_zones + device.free_zones),
            device.queued.to_string(),
            device.written.to_string(),
            device.reinserted.to_string(),
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
            Column::Right("READ"),
            Column::Right("ERRORS"),
        ],
        rows,
    )
}
