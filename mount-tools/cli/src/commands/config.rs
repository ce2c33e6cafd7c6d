//! `tidefs config show`.

use serde_json::{Value, json};
use tidefs_control_api::{ConfigEntry, ConfigOrigin, routes};

use crate::args::ConfigShowArgs;
use crate::error::CliError;
use crate::locate;
use crate::output::{Column, Output, table};

pub(crate) fn show(args: &ConfigShowArgs, output: Output) -> Result<(), CliError> {
    let client = locate::connect(&args.of.select())?;
    let mut value = client.get(routes::CONFIG, &())?;
    let raw: Vec<Value> = client.read(value["entries"].take())?;
    let mut shown = Vec::new();
    let mut entries: Vec<ConfigEntry> = Vec::new();
    for value in raw {
        let entry: ConfigEntry = client.read(value.clone())?;
        if args.effective || entry.origin != ConfigOrigin::Default {
            shown.push(value);
            entries.push(entry);
        }
    }
    output.result(&json!({ "entries": shown }), || human(&entries))?;
    if entries.is_empty() {
        output.note("nobody set anything; --effective shows the defaults");
    }
    Ok(())
}

fn human(entries: &[ConfigEntry]) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let rows =
        entries.iter().map(|entry| vec![entry.key.clone(), entry.value.clone(), entry.origin.to_string()]);
    table(&[Column::Left("SETTING"), Column::Left("VALUE"), Column::Left("FROM")], rows)
}
