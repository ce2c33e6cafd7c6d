//! Reads a TOML file into occurrences: which key stands on which line with which value.
//!
//! The parser recovers, so a file with three mistakes is reported with three problems. Values are handed on as
//! text, because a setting's own reader knows better than TOML what `1777` or `8GiB` means.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Cause, Problem};
use super::merge::{Occurrence, Written};
use super::patterns::SEPARATOR;
use super::sources::{ConfigFile, Origin};

/// Reads `file`. Keys are not checked here, only what TOML itself can say.
pub(super) fn read_file(file: &ConfigFile, problems: &mut Vec<Problem>) -> Vec<Occurrence> {
    let whole_file = |cause| Problem {
        key: String::new(),
        value: None,
        origin: Origin::File { path: file.path.clone(), line: None },
        cause,
    };
    let text = match &file.text {
        Ok(text) => text,
        Err(reason) => {
            problems.push(whole_file(Cause::UnreadableFile { reason: reason.clone() }));
            return Vec::new();
        }
    };
    let lines = Lines { path: &file.path, text };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let mut problem = whole_file(Cause::Syntax { reason: error.message().to_owned() });
        if let Some(span) = error.span() {
            problem.origin = lines.origin(span.start);
        }
        problems.push(problem);
    }
    let mut occurrences = Vec::new();
    collect("", table.get_ref(), &lines, &mut occurrences);
    occurrences
}

/// Finds the line of a position in the file.
struct Lines<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Lines<'_> {
    fn origin(&self, offset: usize) -> Origin {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Origin::File { path: self.path.to_owned(), line: Some(line) }
    }
}

/// Adds each leaf below `table`. An empty table counts as a leaf, so that a misspelt section is seen.
fn collect(prefix: &str, table: &DeTable<'_>, lines: &Lines<'_>, occurrences: &mut Vec<Occurrence>) {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        let name =
            if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => collect(&name, inner, lines, occurrences),
            leaf => occurrences.push(Occurrence {
                origin: lines.origin(key.span().start),
                written: written(leaf),
                key: name,
            }),
        }
    }
}

fn written(value: &DeValue<'_>) -> Written {
    match value {
        DeValue::Table(_) => Written::Section,
        DeValue::Array(items) => {
            let texts: Option<Vec<String>> = items.iter().map(Spanned::get_ref).map(scalar).collect();
            match texts {
                // An item with the separator in it would fall apart later; no pattern may have it.
                Some(texts) if texts.iter().all(|text| !text.is_empty() && !text.contains(SEPARATOR)) => {
                    Written::List(texts)
                }
                _ => Written::Nested,
            }
        }
        single => scalar(single).map_or(Written::Nested, Written::Text),
    }
}

/// The text of a value that has no parts.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(switch) => Some(switch.to_string()),
        DeValue::Datetime(time) => Some(time.to_string()),
        DeValue::Array(_) | DeValue::Table(_) => None,
    }
}
