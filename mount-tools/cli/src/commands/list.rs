//! `tidefs list`.

use std::time::SystemTime;

use serde_json::{Value, json};
use tidefs_control_api::{KeyPath, List, ListEntry, ListQuery, Pin, routes};

use crate::args::ListArgs;
use crate::error::CliError;
use crate::locate;
use crate::output::{Column, Output, age, grouped, table};

pub(crate) fn run(args: &ListArgs, output: Output) -> Result<(), CliError> {
    let (client, path) = match &args.path {
        Some(path) => locate::connect_to(&args.select, path)?,
        None => (locate::connect(&args.select)?, KeyPath::root()),
    };
    let wanted = if args.all { u64::MAX } else { args.limit };
    let mut query = ListQuery { path, sort: args.sort.into(), ..ListQuery::default() };
    let mut raw: Vec<Value> = Vec::new();
    let mut entries: Vec<ListEntry> = Vec::new();
    let total = loop {
        let left = wanted - as_count(entries.len());
        query.limit = Some(u32::try_from(left).unwrap_or(u32::MAX).min(ListQuery::LIMIT_MAX));
        let mut value = client.get(routes::LIST, &query)?;
        let page: List = client.read(value.clone())?;
        if let Some(Value::Array(page)) = value.get_mut("entries").map(Value::take) {
            raw.extend(page);
        }
        let empty = page.entries.is_empty();
        entries.extend(page.entries);
        query.cursor = page.next_cursor;
        if query.cursor.is_none() || empty || as_count(entries.len()) >= wanted {
            break page.total.0;
        }
    };
    let value = json!({ "entries": raw, "total": total, "next_cursor": query.cursor });
    output.result(&value, || human(&entries, SystemTime::now()))?;
    let shown = as_count(entries.len());
    if query.cursor.is_some() {
        output.note(&format!("{} of {} objects; --all lists the others too", grouped(shown), grouped(total)));
    }
    Ok(())
}

fn as_count(length: usize) -> u64 {
    u64::try_from(length).expect("a length fits 64 bits")
}

fn human(entries: &[ListEntry], now: SystemTime) -> String {
    let rows = entries.iter().map(|entry| {
        let pin = if entry.pin == Pin::None { "-".to_owned() } else { entry.pin.to_string() };
        vec![
            entry.size.to_string(),
            entry.tier.to_string(),
            grouped(entry.hits),
            entry.last_used.map_or_else(|| "-".to_owned(), |time| age(time, now)),
            entry.sealed_at.map_or_else(|| "-".to_owned(), |time| age(time, now)),
            pin,
            entry.path.to_string(),
        ]
    });
    table(
        &[
            Column::Right("SIZE"),
            Column::Left("TIER"),
            Column::Right("HITS"),
            Column::Right("USED"),
            Column::Right("AGE"),
            Column::Left("PIN"),
            Column::Left("PATH"),
        ],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tidefs_control_api::{Tier, Timestamp};
    use tidefs_engine::types::ByteCount;

    #[test]
    fn a_name_can_neither_break_a_line_nor_steer_the_terminal() {
        let entry = ListEntry {
            path: KeyPath::from_bytes(b"ns/a\x1b[2J\nb"),
            size: ByteCount::kib(64),
            tier: Tier::Packed,
            hits: 12_345,
            last_used: Some(Timestamp::from_unix_millis(59_000)),
            pin: Pin::Hard,
            ..ListEntry::default()
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
        let expected = "    SIZE  TIER      HITS  USED  AGE  PIN   PATH\n\
                        64.0 KiB  packed  12,345    1s    -  hard  ns/a\\x1b[2J\\x0ab\n";
        assert_eq!(human(&[entry], now), expected);
    }
}
