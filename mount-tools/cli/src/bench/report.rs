//! The rows a bench ends with, as a table for people and as JSON for programs.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use tidefs_engine::types::ByteCount;

use super::affinity::Placement;
use super::error::Error;
use super::machine::Machine;
use super::statistics::{Spread, paired_ratios};
use crate::output::write_out;

/// What a figure is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// 10^9 bytes a second.
    GigabytesPerSecond,
    /// Microseconds for one operation.
    Microseconds,
    /// Seconds for the whole.
    Seconds,
    /// Bytes.
    Bytes,
    /// Keys a second.
    KeysPerSecond,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::GigabytesPerSecond => format!("{value:.2} GB/s"),
            Self::Microseconds => format!("{value:.2} us"),
            Self::Seconds => format!("{value:.2} s"),
            Self::Bytes => format!("{value:.0} B"),
            Self::KeysPerSecond => format!("{:.2} M/s", value / 1e6),
        }
    }
}

/// What a row must reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    /// The median of the ratios is at least this.
    RatioAtLeast(f64),
    /// The median of the ratios is at most this.
    RatioAtMost(f64),
    /// The median of the figure is at most this, in the unit of the row.
    AtMost(f64),
    /// The median of the figure is at least this, in the unit of the row.
    AtLeast(f64),
}

/// Whether a row reaches its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// It does.
    Pass,
    /// It does not.
    Below,
    /// It has none.
    NoTarget,
}

/// One measured figure and what it is compared with.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// What was done.
    pub(crate) case: String,
    /// Size of the objects.
    pub(crate) size: Option<ByteCount>,
    /// Client threads.
    pub(crate) threads: usize,
    /// Where threads ran, `None` where it does not matter.
    pub(crate) placement: Option<Placement>,
    /// Unit of `value` and `baseline`.
    pub(crate) unit: Unit,
    /// The figure of the mount, or `None` when the mount does not tell it.
    pub(crate) value: Option<Spread>,
    /// The same on the baseline.
    pub(crate) baseline: Option<Spread>,
    /// Name of the baseline.
    pub(crate) baseline_name: &'static str,
    /// Mount to baseline, taken in each round; above 1 the mount is faster.
    pub(crate) ratio: Option<Spread>,
    /// Mount to memcpy, taken in each round.
    pub(crate) memcpy_ratio: Option<Spread>,
    /// What it must reach.
    pub(crate) target: Option<Target>,
}

impl Row {
    /// A figure that is compared with nothing.
    pub(crate) fn plain(
        case: impl Into<String>,
        size: Option<ByteCount>,
        unit: Unit,
        value: Option<Spread>,
        target: Option<Target>,
    ) -> Self {
        Self {
            case: case.into(),
            size,
            threads: 1,
            placement: None,
            unit,
            value,
            baseline: None,
            baseline_name: "",
            ratio: None,
            memcpy_ratio: None,
            target,
        }
    }

    /// Gigabytes a second of the mount and of a baseline, sampled in the same rounds.
    pub(crate) fn rates(
        case: &str,
        size: ByteCount,
        [value, baseline]: [&[f64]; 2],
        baseline_name: &'static str,
        target: Option<Target>,
    ) -> Self {
        Self {
            baseline: Spread::of(baseline),
            baseline_name,
            ratio: Spread::of(&paired_ratios(value, baseline)),
            ..Self::plain(case, Some(size), Unit::GigabytesPerSecond, Spread::of(value), target)
        }
    }

    /// Whether the row reaches its target. A figure that is missing does not.
    pub(crate) fn verdict(&self) -> Verdict {
        let reached = match self.target {
            None => return Verdict::NoTarget,
            Some(Target::RatioAtLeast(least)) => self.ratio.is_some_and(|ratio| ratio.median >= least),
            Some(Target::RatioAtMost(most)) => self.ratio.is_some_and(|ratio| ratio.median <= most),
            Some(Target::AtMost(most)) => self.value.is_some_and(|value| value.median <= most),
            Some(Target::AtLeast(least)) => self.value.is_some_and(|value| value.median >= least),
        };
        if reached { Verdict::Pass } else { Verdict::Below }
    }

    fn cells(&self) -> Vec<String> {
        let figure = |spread: Option<Spread>| {
            spread.map_or_else(|| "-".to_owned(), |spread| self.unit.show(spread.median))
        };
        let ratio = |spread: Option<Spread>| {
            spread.map_or_else(
                || "-".to_owned(),
                |Spread { median, minimum, maximum, .. }| format!("{median:.2} ({minimum:.2}..{maximum:.2})"),
            )
        };
        let baseline = self.baseline.map_or_else(
            || "-".to_owned(),
            |spread| format!("{} {}", self.baseline_name, self.unit.show(spread.median)),
        );
        vec![
            self.case.clone(),
            self.size.map_or_else(|| "-".to_owned(), short_size),
            self.threads.to_string(),
            figure(self.value),
            baseline,
            ratio(self.ratio),
            self.memcpy_ratio.map_or_else(|| "-".to_owned(), |spread| format!("{:.2}", spread.median)),
            match self.target {
                None => "-".to_owned(),
                Some(Target::RatioAtLeast(least)) => format!(">= {least:.2}"),
                Some(Target::RatioAtMost(most)) => format!("<= {most:.2}"),
                Some(Target::AtMost(most)) => format!("<= {}", self.unit.show(most)),
                Some(Target::AtLeast(least)) => format!(">= {}", self.unit.show(least)),
            },
            match self.verdict() {
                Verdict::Pass => "PASS".to_owned(),
                Verdict::Below => "below".to_owned(),
                Verdict::NoTarget => String::new(),
            },
        ]
    }
}

/// `64KiB` rather than `64.0 KiB`: sizes of a bench are whole.
pub(crate) fn short_size(size: ByteCount) -> String {
    let bytes = size.get();
    match (bytes % (1 << 20), bytes % (1 << 10)) {
        (0, _) => format!("{}MiB", bytes >> 20),
        (_, 0) => format!("{}KiB", bytes >> 10),
        _ => format!("{bytes}B"),
    }
}

/// A whole run of `bench local`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// What it ran on.
    pub(crate) machine: Machine,
    /// What was compared with what.
    pub(crate) subject: String,
    /// Rounds of each case.
    pub(crate) rounds: usize,
    /// The figures.
    pub(crate) rows: Vec<Row>,
    /// What a reader must know beside the figures, for example cases that were left out.
    pub(crate) notes: Vec<String>,
}

impl Report {
    /// The tables for people, one for each placement.
    pub(crate) fn tables(&self) -> String {
        let tables: String = [
            ("daemon and client on as many CPUs as client threads", Some(Placement::Pinned)),
            ("daemon and client free to move", Some(Placement::Free)),
            ("as a whole", None),
        ]
        .into_iter()
        .filter_map(|(title, placement)| Some(format!("{title}\n{}\n\n", self.table_of(placement)?)))
        .collect();
        let notes: String = self.notes.iter().map(|note| format!("note: {note}\n")).collect();
        let asked = self.rows.iter().filter(|row| row.target.is_some()).count();
        let reached = asked - self.missed();
        let Self { machine, subject, rounds, .. } = self;
        format!(
            "{}\n{subject}; median of {rounds} rounds\n\n{tables}{reached} of {asked} targets reached\n{notes}",
            machine.line()
        )
    }

    fn table_of(&self, placement: Option<Placement>) -> Option<String> {
        let mut table = plain_table(&[
            "case",
            "size",
            "threads",
            "mount",
            "baseline",
            "ratio (min..max)",
            "of memcpy",
            "target",
            "",
        ]);
        for column in [1, 2, 3, 4, 6, 7] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut rows = self.rows.iter().filter(|row| row.placement == placement).peekable();
        rows.peek()?;
        rows.for_each(|row| {
            table.add_row(row.cells());
        });
        Some(trimmed(&table))
    }

    /// How many rows miss their target.
    pub(crate) fn missed(&self) -> usize {
        self.rows.iter().filter(|row| row.verdict() == Verdict::Below).count()
    }
}

/// A table without lines, two blanks between columns.
pub(crate) fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec());
    table
}

/// The text of `table` without blanks at the ends of lines.
pub(crate) fn trimmed(table: &Table) -> String {
    table.to_string().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Where the result goes, for all benches.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ResultArgs {
    /// Print the result as one JSON document instead of tables; with FILE, print the tables and write it there
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = STDOUT, value_hint = ValueHint::FilePath)]
    json: Option<PathBuf>,
}

/// What `--json` is without a file.
const STDOUT: &str = "-";

impl ResultArgs {
    /// Whether programs read stdout.
    pub(crate) fn is_for_programs(&self) -> bool {
        self.json.as_deref() == Some(Path::new(STDOUT))
    }

    /// Prints `report`, as it is or by its `tables`, and writes it to the file that was asked for.
    ///
    /// # Errors
    /// When that cannot be written.
    pub(crate) fn publish(
        &self,
        report: &impl Serialize,
        tables: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        let json = || {
            let text = serde_json::to_string_pretty(report);
            text.expect("a report has string keys and finite numbers only") + "\n"
        };
        let text = if self.is_for_programs() { json() } else { tables() };
        // A reader who has seen enough still wants the file.
        let _ = write_out(text.as_bytes()).map_err(|error| Error::Invalid(error.to_string()))?;
        match &self.json {
            Some(path) if !self.is_for_programs() => {
                fs::write(path, json()).map_err(Error::file("write", path))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn row(ratio: Option<f64>, value: Option<f64>, target: Option<Target>) -> Row {
        Row {
            case: "read".to_owned(),
            size: Some(ByteCount::mib(1)),
            threads: 1,
            placement: Some(Placement::Pinned),
            unit: Unit::Microseconds,
            value: value.map(Spread::single),
            baseline: None,
            baseline_name: "tmpfs",
            ratio: ratio.map(Spread::single),
            memcpy_ratio: None,
            target,
        }
    }

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        result: ResultArgs,
    }

    #[test]
    fn a_result_without_a_file_is_for_programs_and_a_file_gets_it_beside_the_tables() {
        let parse = |line: &str| Line::try_parse_from(line.split(' ')).unwrap().result;
        for (line, is_for_programs) in
            [("x", false), ("x --json", true), ("x --json -", true), ("x --json result.json", false)]
        {
            assert_eq!(parse(line).is_for_programs(), is_for_programs, "{line}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result");
        let to_a_file = parse(&format!("x --json {}", path.display()));
        to_a_file.publish(&[7], || "seven".to_owned()).unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "[\n  7\n]\n");
        parse("x --json").publish(&[7], || unreachable!("no tables for programs")).unwrap();
    }

    #[test]
    fn a_row_passes_at_its_target_and_not_below_it() {
        let target = Some(Target::RatioAtLeast(0.95));
        assert_eq!(row(Some(0.95), None, target).verdict(), Verdict::Pass);
        assert_eq!(row(Some(0.949), None, target).verdict(), Verdict::Below);
        assert_eq!(row(None, Some(20.0), Some(Target::AtMost(20.0))).verdict(), Verdict::Pass);
        assert_eq!(row(None, Some(20.1), Some(Target::AtMost(20.0))).verdict(), Verdict::Below);
        assert_eq!(row(Some(2.0), None, Some(Target::RatioAtMost(2.0))).verdict(), Verdict::Pass);
        assert_eq!(row(Some(2.1), None, Some(Target::RatioAtMost(2.0))).verdict(), Verdict::Below);
        assert_eq!(row(Some(0.1), None, None).verdict(), Verdict::NoTarget);
    }

    #[test]
    fn a_figure_that_the_mount_does_not_tell_misses_its_target() {
        assert_eq!(row(None, None, Some(Target::AtMost(0.0))).verdict(), Verdict::Below);
    }

    #[test]
    fn the_table_has_a_line_for_each_row_and_counts_the_targets() {
        let rows = vec![
            row(Some(1.0), Some(1.0), Some(Target::RatioAtLeast(0.9))),
            row(Some(0.5), Some(2.0), Some(Target::RatioAtLeast(0.9))),
            row(None, None, None),
        ];
        let notes = vec!["left out".to_owned()];
        let machine = Machine::here();
        let table = Report { machine, subject: "a and b".to_owned(), rounds: 7, rows, notes }.tables();
        assert_eq!(table.matches("1MiB").count(), 3, "{table}");
        assert!(table.contains("1 of 2 targets reached") && table.contains("note: left out"), "{table}");
    }
}
