//! Many small objects on disk: what each costs in memory, and how long a start takes that finds them.

use std::time::Duration;

use tidefs_engine::types::ByteCount;

use super::subject::objects_of;
use super::{Bench, SMALL};
use crate::bench::error::Error;
use crate::bench::report::{Row, Target, Unit};
use crate::bench::statistics::Spread;

/// Seconds in which a start is to know a million objects.
const START_S: f64 = 10.0;
const MILLION: u64 = 1_000_000;

impl Bench {
    /// Memory of the index, and of the daemon as a whole, for each of many small objects on disk.
    pub(super) fn measure_memory(&mut self, count: u32) -> Result<[Row; 2], Error> {
        self.progress.set_message("memory of small objects");
        let (_, bytes) = objects_of(SMALL, SMALL)?;
        let objects = usize::try_from(count).expect("a count of objects fits an address");
        let before = (self.subject.ssd()?, self.subject.anonymous_memory()?, self.subject.lost()?);
        let paths = self.subject.write("small", objects, bytes, &mut self.source)?;
        self.subject.evict(ByteCount(u64::from(count) * SMALL.get()))?;
        self.check_nothing_lost(before.2)?;
        let ssd = self.subject.ssd()?;
        let records = ssd.records.0.saturating_sub(before.0.records.0);
        if records < u64::from(count) {
            return Err(Error::Invalid(format!("{records} of {count} small objects are on disk")));
        }
        let grown = self.subject.anonymous_memory()?.saturating_sub(before.1);
        // The restart finds them.
        drop(paths);
        let row = |case, value, target| {
            Row::plain(case, Some(SMALL), Unit::Bytes, Some(Spread::single(value)), target)
        };
        let index = ssd.index_bytes.get() as f64 / ssd.records.0.max(1) as f64;
        let all = grown.get() as f64 / f64::from(count);
        Ok([
            row("index memory of an object on disk", index, Some(Target::AtMost(100.0))),
            row("memory of the daemon for each, with its name", all, None),
        ])
    }

    /// How long a start takes that finds all objects on disk and none in memory: until it serves, and until all have their
    /// names.
    pub(super) fn measure_restart(self) -> Result<[Row; 2], Error> {
        let Self { subject, launch, progress, .. } = self;
        progress.set_message("restart");
        let records = subject.ssd()?.records.0;
        let (subject, taken) = subject.restart(&launch.binary, launch.capacity, &launch.options)?;
        let named = taken + subject.wait_for_names()?;
        let found = subject.ssd()?.records.0;
        if found < records {
            return Err(Error::Invalid(format!("{found} of {records} objects were found on disk")));
        }
        progress.finish_and_clear();
        let row = |case, taken: Duration, target| {
            let seconds = Some(Spread::single(taken.as_secs_f64()));
            Row::plain(case, Some(SMALL), Unit::Seconds, seconds, target)
        };
        let target = (found >= MILLION).then_some(Target::AtMost(START_S));
        Ok([
            row(format!("start that finds {found} objects on disk, until it serves"), taken, None),
            row("the same, until all have their names".to_owned(), named, target),
        ])
    }
}
