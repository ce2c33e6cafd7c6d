//! `tidefs status`.

use std::fmt::Write as _;
use std::time::Duration;

use tidefs_control_api::{Status, routes};
use tidefs_engine::types::ByteCount;

use crate::args::StatusArgs;
use crate::error::CliError;
use crate::locate;
use crate::output::{Column, Output, duration, facts, grouped, percent, table};

pub(crate) fn run(args: &StatusArgs, output: Output) -> Result<(), CliError> {
    let client = locate::connect(&args.of.select())?;
    let value = client.get(routes::STATUS, &())?;
    let status: Status = client.read(value.clone())?;
    output.result(&value, || human(&status))
}

fn human(status: &Status) -> String {
    let mut text = format!(
        "tidefs {} on {}, process {}, up {}\n\n",
        status.version,
        status.mount_point,
        status.pid,
        duration(Duration::from_secs(status.uptime_s))
    );
    text += &facts(&[
        ("memory", Some(memory(status))),
        ("objects", Some(objects(status))),
        ("scratch", (status.scratch.files > 0).then(|| scratch(status))),
        ("ssd", status.ssd.as_ref().map(super::tier::ssd)),
        ("lookups", Some(lookups(status))),
        ("evicted", Some(evicted(status))),
        ("reads", Some(reads(status))),
        ("pages", Some(pages(status))),
    ]);
    if !status.namespaces.is_empty() {
        text += "\n";
        text += &namespaces(status);
    }
    // Those of the memory are among those of the daemon.
    let others = status.memory.warnings.iter().filter(|warning| !status.warnings.contains(warning));
    for warning in status.warnings.iter().chain(others) {
        write!(text, "\nwarning: {warning}").expect("writing to a String cannot fail");
    }
    text
}

fn memory(status: &Status) -> String {
    let share = percent(status.used.get(), status.capacity.get());
    let mut text = format!("{} of {} used ({share}), {} free", status.used, status.capacity, status.free);
    for (bytes, what) in [
        (status.memory.waiting, "hold nothing and wait for the next objects"),
        (status.memory.held, "are of objects that are gone, and that programs have open or mapped"),
    ] {
        if bytes > ByteCount::ZERO {
            write!(text, "; {bytes} of it {what}").expect("writing to a String cannot fail");
        }
    }
    text
}

fn objects(status: &Status) -> String {
    let mut text = format!("{} sealed, {}", grouped(status.objects.0), status.sealed_bytes);
    if status.packed.objects.0 > 0 {
        let packed = &status.packed;
        write!(
            text,
            "; {} of them packed, {} in {}",
            grouped(packed.objects.0),
            packed.bytes,
            packed.segment_bytes
        )
        .expect("writing to a String cannot fail");
    }
    if status.unsealed_files > 0 {
        write!(text, "; {} being written", grouped(status.unsealed_files))
            .expect("writing to a String cannot fail");
    }
    if status.unsealed_bytes > ByteCount::ZERO {
        write!(text, "; {} unsealed", status.unsealed_bytes).expect("writing to a String cannot fail");
    }
    text
}

fn scratch(status: &Status) -> String {
    let limit = status.scratch.capacity.map_or_else(String::new, |capacity| format!(" of {capacity}"));
    format!("{} files, {}{limit}", grouped(status.scratch.files), status.scratch.bytes)
}

fn lookups(status: &Status) -> String {
    let counters = &status.counters;
    let ratio =
        counters.hit_ratio().map_or_else(String::new, |ratio| format!(" ({:.1} % hit)", ratio * 100.0));
    format!(
        "{} hits, {} misses{ratio}; {} opens, {} creates",
        grouped(counters.hits),
        grouped(counters.misses),
        grouped(counters.opens),
        grouped(counters.creates)
    )
}

fn evicted(status: &Status) -> String {
    let eviction = &status.eviction;
    format!(
        "{} objects, {}; policy {}, {} for its order",
        grouped(eviction.evicted_objects.0),
        eviction.evicted_bytes,
        eviction.policy,
        eviction.order_bytes
    )
}

fn reads(status: &Status) -> String {
    let fuse = &status.fuse;
    let served = match (&fuse.passthrough, &fuse.passthrough_reason) {
        (true, _) => "served by the kernel (passthrough)".to_owned(),
        (false, Some(reason)) => format!("served by the daemon, slower: {reason}"),
        (false, None) => "served by the daemon, slower".to_owned(),
    };
    format!("{served}; {} threads, FUSE {}", fuse.threads, fuse.kernel_abi)
}

fn pages(status: &Status) -> String {
    let kept = if status.memory.private_mount { "survive the daemon" } else { "are lost with the daemon" };
    let size = status.memory.page_size.map_or_else(|| "size unknown".to_owned(), |size| size.to_string());
    let held = match status.memory.prefaulted {
        ByteCount::ZERO => String::new(),
        held => format!("; {held} free and held ready"),
    };
    format!("{size}; objects {kept}{held}")
}

fn namespaces(status: &Status) -> String {
    let size = |bytes: Option<ByteCount>| bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
    let rows = status.namespaces.iter().map(|namespace| {
        vec![
            namespace.name.clone(),
            namespace.bytes.to_string(),
            namespace.unsealed_bytes.to_string(),
            grouped(namespace.objects.0),
            size(namespace.quota),
            size(namespace.floor),
            namespace.policy.clone(),
            grouped(namespace.evicted.0),
            percent(namespace.hits, namespace.hits.saturating_add(namespace.misses)),
        ]
    });
    table(
        &[
            Column::Left("NAMESPACE"),
            Column::Right("BYTES"),
            Column::Right("UNSEALED"),
            Column::Right("OBJECTS"),
            Column::Right("QUOTA"),
            Column::Right("FLOOR"),
            Column::Left("POLICY"),
            Column::Right("EVICTED"),
            Column::Right("HIT"),
        ],
        rows,
    )
}
