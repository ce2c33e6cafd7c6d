//! Names between hosts: those that stand for nothing, and those that appear.

use std::path::Path;
use std::time::Instant;

use super::Bench;
use crate::bench::error::Error;
use crate::bench::local::write_object;
use crate::bench::report::{Row, Target, Unit};
use crate::bench::statistics::{Spread, percentile};

/// Steps of the progress bar.
pub(super) const STEPS: usize = 2;
/// Names that stand for nothing, in a round.
const ABSENT: usize = 1000;
/// Objects that are published while the other host waits for them.
const PUBLISHED: usize = 200;
/// How long one may take to be seen, before it counts as lost.
const SEEN_S: f64 = 10.0;

/// Measures names and returns the rows.
///
/// # Errors
/// What a host says, and a name that is never seen.
pub(super) fn measure(bench: &Bench) -> Result<Vec<Row>, Error> {
    let (mut asked, mut remembered) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds {
        let paths: Vec<_> =
            (0..ABSENT).map(|number| bench.there.join(format!("absent-{round}-{number}"))).collect();
        let probe = || -> Result<f64, Error> {
            let mut times = paths.iter().map(|path| absent(path)).collect::<Result<Vec<_>, _>>()?;
            times.sort_unstable_by(f64::total_cmp);
            Ok(percentile(&times, 0.5))
        };
        asked.push(probe()?);
        remembered.push(probe()?);
    }
    bench.progress.inc(1);
    let mut delays = Vec::with_capacity(PUBLISHED);
    for number in 0..PUBLISHED {
        // The kernel and the host of the reader believe that there is nothing, and are told otherwise.
        let (name, path) = (format!("seen-{number}"), bench.there.join(format!("seen-{number}")));
        absent(&path)?;
        write_object(&bench.here.join(&name), &bench.here.join(format!("{name}.tmp")), &[7; 4096])?;
        let published = Instant::now();
        while !path.exists() {
            if published.elapsed().as_secs_f64() > SEEN_S {
                return Err(Error::Invalid(format!("{} is not seen after {SEEN_S} s", path.display())));
            }
        }
        delays.push(published.elapsed().as_secs_f64() * 1e6);
    }
    bench.progress.inc(1);
    let row = |case, value, target| Row::plain(case, None, Unit::Microseconds, value, target);
    delays.sort_unstable_by(f64::total_cmp);
    let at = |share| Some(Spread::single(percentile(&delays, share)));
    Ok(vec![
        row("an absent name, asked for", Spread::of(&asked), None),
        row("an absent name, remembered", Spread::of(&remembered), Some(Target::AtMost(2.0))),
        row("seen on the other host after a publish, p50", at(0.5), None),
        row("the same, p99", at(0.99), Some(Target::AtMost(50_000.0))),
    ])
}

/// Microseconds of a look-up of a name that stands for nothing.
fn absent(path: &Path) -> Result<f64, Error> {
    let started = Instant::now();
    let exists = path.exists();
    let elapsed = started.elapsed().as_secs_f64() * 1e6;
    if exists {
        return Err(Error::Invalid(format!("{} is there already", path.display())));
    }
    Ok(elapsed)
}
