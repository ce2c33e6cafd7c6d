//! The figures of `bench transfer` as a table and as JSON.

use comfy_table::CellAlignment;
use serde::Serialize;
use tidefs_engine::types::ByteCount;

use crate::bench::machine::Machine;
use crate::bench::report::{Target, plain_table, short_size, trimmed};
use crate::bench::statistics::Spread;

/// One case.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) transport: String,
    pub(super) case: String,
    pub(super) size: Option<ByteCount>,
    pub(super) depth: usize,
    pub(super) gigabytes_per_second: Option<Spread>,
    pub(super) baseline_name: &'static str,
    pub(super) baseline: Option<Spread>,
    /// Engine to baseline, within each round.
    pub(super) ratio: Option<Spread>,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) cpu_seconds_per_gigabyte: Option<Spread>,
    pub(super) target: Option<Target>,
}

impl Row {
    /// Whether it has a target value and misses it. Here all are about the ratio.
    fn is_missed(&self) -> bool {
        match self.target {
            None => false,
            Some(Target::RatioAtLeast(least) | Target::AtLeast(least)) => {
                self.ratio.is_none_or(|ratio| ratio.median < least)
            }
            Some(Target::RatioAtMost(most) | Target::AtMost(most)) => {
                self.ratio.is_none_or(|ratio| ratio.median > most)
            }
        }
    }

    fn cells(&self) -> Vec<String> {
        let figure = |spread: Option<Spread>| {
            spread.map_or_else(|| "-".to_owned(), |spread| format!("{:.2}", spread.median))
        };
        let ratio =
            |Spread { median, minimum, maximum, .. }| format!("{median:.2} ({minimum:.2}..{maximum:.2})");
        vec![
            self.transport.clone(),
            self.case.clone(),
            self.size.map_or_else(|| "-".to_owned(), short_size),
            self.depth.to_string(),
            figure(self.gigabytes_per_second),
            format!("{} {}", self.baseline_name, figure(self.baseline)),
            self.ratio.map_or_else(|| "-".to_owned(), ratio),
            format!("{:.1}", self.p50_us),
            format!("{:.1}", self.p99_us),
            figure(self.cpu_seconds_per_gigabyte),
            match self.target {
                None => String::new(),
                Some(Target::RatioAtLeast(least) | Target::AtLeast(least)) => format!(">= {least:.2}"),
                Some(Target::RatioAtMost(most) | Target::AtMost(most)) => format!("<= {most:.2}"),
            },
            match (self.target.is_some(), self.is_missed()) {
                (false, _) => String::new(),
                (true, false) => "PASS".to_owned(),
                (true, true) => "below".to_owned(),
            },
        ]
    }
}

/// A whole run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) rounds: usize,
    pub(super) rows: Vec<Row>,
}

impl Report {
    /// How many rows miss their target value.
    pub(super) fn missed(&self) -> usize {
        self.rows.iter().filter(|row| row.is_missed()).count()
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let header = [
            "transport",
            "case",
            "size",
            "depth",
            "GB/s",
            "baseline",
            "ratio (min..max)",
            "p50 us",
            "p99 us",
            "cpu s/GB",
            "target",
            "",
        ];
        let mut table = plain_table(&header);
        for column in [2, 3, 4, 5, 7, 8, 9] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self.rows.iter().for_each(|row| {
            table.add_row(row.cells());
        });
        let asked = self.rows.iter().filter(|row| row.target.is_some()).count();
        format!(
            "{}\nengine and baseline in the same rounds, contents verified; median of {} rounds\n\n{}\n\n{} of {asked} \
             targets reached\n",
            self.machine.line(),
            self.rounds,
            trimmed(&table),
            asked - self.missed(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ratio: f64, target: Option<Target>) -> Row {
        Row {
            transport: "tcp".to_owned(),
            case: "read".to_owned(),
            size: Some(ByteCount::mib(1)),
            depth: 16,
            gigabytes_per_second: Some(Spread::single(4.2)),
            baseline_name: "sockets",
            baseline: Some(Spread::single(4.0)),
            ratio: Some(Spread::single(ratio)),
            p50_us: 10.0,
            p99_us: 20.0,
            cpu_seconds_per_gigabyte: None,
            target,
        }
    }

    #[test]
    fn a_ratio_of_rates_must_be_large_and_one_of_times_small() {
        assert!(!row(0.9, Some(Target::RatioAtLeast(0.9))).is_missed());
        assert!(row(0.89, Some(Target::RatioAtLeast(0.9))).is_missed());
        assert!(!row(1.5, Some(Target::AtMost(1.5))).is_missed());
        assert!(row(1.6, Some(Target::AtMost(1.5))).is_missed());
        assert!(!row(0.0, None).is_missed());
    }

    #[test]
    fn the_table_has_each_row_and_counts_the_targets() {
        let rows = vec![row(1.0, Some(Target::RatioAtLeast(0.9))), row(0.5, Some(Target::RatioAtLeast(0.9)))];
        let text = Report { machine: Machine::here(), rounds: 3, rows }.text();
        assert_eq!(text.matches("1MiB").count(), 2, "{text}");
        assert!(text.contains("1 of 2 targets reached") && text.contains("sockets 4.00"), "{text}");
    }
}
