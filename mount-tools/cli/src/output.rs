//! Where results go: tables for people, one JSON document for programs.

use std::fmt;
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, SystemTime};

use comfy_table::{CellAlignment, ColumnConstraint, Table, Width, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tidefs_control_api::Timestamp;

use crate::error::CliError;

/// The form that the caller asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    /// JSON or text.
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether programs read this.
    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Writes a result: `value` for programs, or the text of `human` for people.
    pub(crate) fn result(self, value: &Value, human: impl FnOnce() -> String) -> Result<(), CliError> {
        let mut text = if self.json {
            serde_json::to_string_pretty(value).expect("a JSON value has a JSON form")
        } else {
            human()
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        write_out(text.as_bytes()).map(drop)
    }

    /// Tells a failure: on stderr for people, as the one JSON document on stdout for programs.
    pub(crate) fn error(self, error: &CliError) {
        if self.json {
            let text = format!("{:#}\n", json!({ "error": error.json() }));
            // With stdout gone there is nowhere left to tell; the exit code still does.
            let _ = write_out(text.as_bytes());
        } else {
            tell(format_args!("tidefs: {error}"));
        }
    }

    /// A bar for people, drawn on stderr if that is a terminal. `template` is one of indicatif.
    pub(crate) fn progress_bar(self, template: &str) -> ProgressBar {
        if self.json {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template(template);
        ProgressBar::new(0).with_style(style.expect("the template is a constant and well formed"))
    }

    /// Tells people what happens on the way.
    pub(crate) fn note(self, text: &str) {
        if !self.json {
            tell(format_args!("tidefs: {text}"));
        }
    }
}

/// Writes a line to stderr. Where that cannot be written nobody is left to tell; the exit code still does.
pub(crate) fn tell(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Writes to stdout. A reader that has seen enough (`| head`) is no failure: `Break` says that nobody reads on.
pub(crate) fn write_out(bytes: &[u8]) -> Result<ControlFlow<()>, CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(CliError::system("cannot write the result", &error)),
    }
}

/// A path in a document for programs, which is UTF-8: what of it is not stands there as U+FFFD, as in the status of a daemon.
pub(crate) fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Alignment of a column.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Column {
    /// Text.
    Left(&'static str),
    /// Numbers.
    Right(&'static str),
}

/// A table without rules, as `ls -l` and `df` look.
pub(crate) fn table(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    LongTable::new(columns).part(rows)
}

/// Such a table that is written part by part, each at least as wide as those before it.
#[derive(Debug)]
pub(crate) struct LongTable<'a> {
    columns: &'a [Column],
    /// Of the parts so far; none before the first, which has the header.
    widths: Vec<u16>,
}

impl<'a> LongTable<'a> {
    pub(crate) fn new(columns: &'a [Column]) -> Self {
        Self { columns, widths: Vec::new() }
    }

    /// The next rows.
    pub(crate) fn part(&mut self, rows: impl IntoIterator<Item = Vec<String>>) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if self.widths.is_empty() {
            table.set_header(self.columns.iter().map(|column| match column {
                Column::Left(name) | Column::Right(name) => *name,
            }));
        }
        for row in rows {
            table.add_row(row);
        }
        let last = self.columns.len().saturating_sub(1);
        for (index, column) in self.columns.iter().enumerate() {
            let Some(settings) = table.column_mut(index) else { continue };
            let padding = if index == last { 0 } else { 2 };
            settings.set_padding((0, padding));
            if let Some(width) = self.widths.get(index) {
                settings.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width + padding)));
            }
            if let Column::Right(_) = column {
                settings.set_cell_alignment(CellAlignment::Right);
            }
        }
        let before = std::mem::replace(&mut self.widths, table.column_max_content_widths());
        for (width, before) in self.widths.iter_mut().zip(before) {
            *width = before.max(*width);
        }
        table.trim_fmt() + "\n"
    }
}

/// Lines of `name  value`, the values in one column. Pairs without a value are left out.
pub(crate) fn facts(facts: &[(&str, Option<String>)]) -> String {
    let width =
        facts.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, Option<String>)| {
        value.as_ref().map(|value| format!("{name:width$}  {value}\n"))
    };
    facts.iter().filter_map(line).collect()
}

/// A number with its thousands apart: `12,345`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A length of time for people: at most its two largest units.
pub(crate) fn duration(duration: Duration) -> String {
    let text = humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string();
    let mut parts = text.split(' ');
    match (parts.next(), parts.next()) {
        (Some(first), Some(second)) => format!("{first} {second}"),
        _ => text,
    }
}

/// How long ago `time` was, for people.
pub(crate) fn age(time: Timestamp, now: SystemTime) -> String {
    duration(time.age_at(now))
}

/// `part` of `whole` in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    match u128::from(part).saturating_mul(100).checked_div(u128::from(whole)) {
        Some(percent) => format!("{percent} %"),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }

    #[test]
    fn durations_show_their_two_largest_units() {
        assert_eq!(duration(Duration::from_millis(900)), "0s");
        assert_eq!(duration(Duration::from_secs(3 * 3600 + 12 * 60 + 5)), "3h 12m");
    }

    #[test]
    fn a_share_of_nothing_is_a_dash() {
        assert_eq!((percent(1, 3), percent(0, 0)), ("33 %".to_owned(), "-".to_owned()));
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_blanks() {
        let rows = [vec!["7".to_owned(), "a".to_owned()], vec!["12345".to_owned(), "long name".to_owned()]];
        let text = table(&[Column::Right("SIZE"), Column::Left("NAME")], rows);
        assert_eq!(text, " SIZE  NAME\n    7  a\n12345  long name\n");
    }
    #[test]
    fn parts_of_a_long_table_have_one_header_and_keep_their_columns() {
        let row = |size: &str, name: &str| vec![size.to_owned(), name.to_owned(), "x".to_owned()];
        let columns = [Column::Right("SIZE"), Column::Left("NAME"), Column::Left("PIN")];
        let mut table = LongTable::new(&columns);
        let parts = [[row("7", "a long name")], [row("12345", "b")], [row("1", "c")]];
        let text: String = parts.map(|rows| table.part(rows)).concat();
        assert_eq!(
            text,
            "SIZE  NAME         PIN\n   7  a long name  x\n12345  b            x\n    1  c            x\n"
        );
    }
}
