//! `tidefs list`.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::Value;
use tidefs_control_api::{KeyPath, ListEntry, ListPart, ListQuery, ListSummary, Pin, routes};

use crate::args::ListArgs;
use crate::error::CliError;
use crate::locate;
use crate::output::{Column, LongTable, Output, age, grouped, write_out};

/// Rows of the table that are laid out and written together.
const ROWS: usize = 1000;

const COLUMNS: [Column; 7] = [
    Column::Right("SIZE"),
    Column::Left("TIER"),
    Column::Right("HITS"),
    Column::Right("USED"),
    Column::Right("AGE"),
    Column::Left("PIN"),
    Column::Left("PATH"),
];

/// Writes the list while it comes. Ends with success when its reader has seen enough.
pub(crate) fn run(args: &ListArgs, output: Output) -> Result<ExitCode, CliError> {
    let (client, path) = match &args.path {
        Some(path) => locate::connect_to(&args.select, path, args.spelling)?,
        None => (locate::connect(&args.select)?, KeyPath::root()),
    };
    let query = ListQuery { path, sort: args.sort.into(), limit: (!args.all).then_some(args.limit) };
    let mut listing = Listing::new(output);
    let mut unwritten = None;
    let listed = client.get_parts(routes::LIST, &query, |part: ListPart, value| {
        let written = listing.add(part, value);
        written.unwrap_or_else(|error| {
            unwritten = Some(error);
            ControlFlow::Break(())
        })
    });
    if let Some(error) = unwritten {
        return Err(error);
    }
    let summary: ListSummary = match listed {
        Ok(Some((summary, _))) => summary,
        Ok(None) => return Ok(ExitCode::SUCCESS),
        Err(error) => return listing.fail(error),
    };
    let told = listing.told;
    listing.end(summary)?;
    if !args.all && told < summary.total.0 {
        let (told, total) = (grouped(told), grouped(summary.total.0));
        output.note(&format!("{told} of {total} objects; --all lists the others too"));
    }
    Ok(ExitCode::SUCCESS)
}

/// A list on its way out: one table, or one JSON document.
struct Listing {
    output: Output,
    told: u64,
    table: LongTable<'static>,
    rows: Vec<ListEntry>,
    now: SystemTime,
}

impl Listing {
    fn new(output: Output) -> Self {
        let table = LongTable::new(&COLUMNS);
        Self { output, told: 0, table, rows: Vec::new(), now: SystemTime::now() }
    }

    /// `Break`: nobody reads on.
    fn add(&mut self, part: ListPart, value: Value) -> Result<ControlFlow<()>, CliError> {
        if self.output.is_json() {
            let text: String =
                entries_of(value).iter().map(|entry| self.opened() + &entry.to_string()).collect();
            return write_out(text.as_bytes());
        }
        self.told += u64::try_from(part.entries.len()).expect("a length fits 64 bits");
        self.rows.extend(part.entries);
        if self.rows.len() < ROWS { Ok(ControlFlow::Continue(())) } else { self.write_rows() }
    }

    /// What stands before the next entry of the document.
    fn opened(&mut self) -> String {
        self.told += 1;
        let text = if self.told == 1 { "{\n  \"entries\": [\n    " } else { ",\n    " };
        text.to_owned()
    }

    fn write_rows(&mut self) -> Result<ControlFlow<()>, CliError> {
        let now = self.now;
        let text = self.table.part(self.rows.drain(..).map(|entry| row(&entry, now)));
        write_out(text.as_bytes())
    }

    fn end(mut self, summary: ListSummary) -> Result<(), CliError> {
        if !self.output.is_json() {
            let is_whole = self.rows.is_empty() && self.told > 0;
            return if is_whole { Ok(()) } else { self.write_rows().map(drop) };
        }
        self.close(&format!("\"total\": {}", summary.total.0))
    }

    /// Tells that the rest does not come. A document that was begun is closed, and has the failure in it.
    fn fail(mut self, error: CliError) -> Result<ExitCode, CliError> {
        if self.told == 0 {
            return Err(error);
        }
        if !self.output.is_json() {
            let _ = self.write_rows()?;
            return Err(error);
        }
        self.close(&format!("\"error\": {}", error.json()))?;
        Ok(error.exit.into())
    }

    fn close(&self, last: &str) -> Result<(), CliError> {
        let entries = if self.told == 0 { "{\n  \"entries\": [" } else { "\n  " };
        write_out(format!("{entries}],\n  {last}\n}}\n").as_bytes()).map(drop)
    }
}

/// The entries of a part as they came, with what this version does not know.
fn entries_of(mut part: Value) -> Vec<Value> {
    match part.get_mut("entries").map(Value::take) {
        Some(Value::Array(entries)) => entries,
        _ => Vec::new(),
    }
}

fn row(entry: &ListEntry, now: SystemTime) -> Vec<String> {
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
        assert_eq!(LongTable::new(&COLUMNS).part([row(&entry, now)]), expected);
    }
}
