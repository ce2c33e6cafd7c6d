//! Names between hosts: those that stand for nothing, and those that appear.

use std::path::Path;
use std::time::Instant;

use super::Bench;
use crate::bench::error::Error;
use crate::bench::local::write_object;
use crate::bench::report::{Row, Target, Unit};
use crate::bench::statistics::Spread;

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
            Ok(percentile(&mut times, 0.5))
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
    let row = |case: &str, value: Option<Spread>, target: Option<Target>| Row {
        case: case.to_owned(),
        size: None,
        threads: 1,
        placement: None,
        unit: Unit::Microseconds,
        value,
        baseline: None,
        baseline_name: "",
        ratio: None,
        memcpy_ratio: None,
        target,
    };
    let at = |delays: &mut [f64], share| Some(Spread::single(percentile(delays, share)));
    Ok(vec![
        row("an absent name, asked for", Spread::of(&asked), None),
        row("an absent name, remembered", Spread::of(&remembered), Some(Target::AtMost(2.0))),
        row("seen on the other host after a publish, p50", at(&mut delays, 0.5), None),
        row("the same, p99", at(&mut delays, 0.99), Some(Target::AtMost(50_000.0))),
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

/// The value below which the part `share` of `values` lies; 0 without values.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "an index"
)]
fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_seen() {
        let mut values: Vec<f64> = (0..=200).rev().map(f64::from).collect();
        assert_eq!((percentile(&mut values, 0.5), percentile(&mut values, 0.99)), (100.0, 198.0));
        assert_eq!(percentile(&mut [], 0.5), 0.0);
    }

    #[test]
    fn a_name_that_stands_for_something_is_not_absent() {
        let folder = tempfile::tempdir().unwrap();
        assert!(absent(&folder.path().join("nothing")).unwrap() >= 0.0);
        assert!(absent(folder.path()).is_err());
    }
}
