//! Hot path: microseconds of the calls that move no bytes.
//!
//! Each call is timed by itself and the median is taken; what reading the clock takes is measured beside it and
//! subtracted.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::stat::stat;
use nix::unistd::{AccessFlags, access};
use tidefs_engine::types::ByteCount;

use super::object::{self, ObjectSet};
use super::{Bench, Shape};
use crate::bench::buffer::Rotating;
use crate::bench::error::Error;
use crate::bench::report::{Row, Target, Unit};
use crate::bench::statistics::{Spread, median_of, paired_ratios};

/// Calls of each kind in a round.
const CALLS: usize = 2_000;
/// Names that are asked for in turn.
const NAMES: usize = 64;
/// Objects behind the names: above the size that is packed.
const SIZE: usize = 64 << 10;

/// A call and how fast it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    OpenClose,
    CachedStat,
    CachedStatx,
    CachedAbsence,
    FirstAbsence,
}

impl Call {
    const ALL: [Self; 5] =
        [Self::OpenClose, Self::CachedStat, Self::CachedStatx, Self::CachedAbsence, Self::FirstAbsence];

    fn name(self) -> &'static str {
        match self {
            Self::OpenClose => "open + close",
            Self::CachedStat => "stat, cached",
            Self::CachedStatx => "statx of all fields, cached",
            Self::CachedAbsence => "access of an absent name, cached",
            Self::FirstAbsence => "access of an absent name, first time",
        }
    }

    fn target(self) -> Option<Target> {
        match self {
            Self::OpenClose => Some(Target::AtMost(20.0)),
            Self::CachedStat => Some(Target::AtMost(1.5)),
            Self::CachedAbsence => Some(Target::AtMost(1.0)),
            Self::CachedStatx | Self::FirstAbsence => None,
        }
    }
}

/// Measures every call and returns its rows.
///
/// # Errors
/// What a call says that should have succeeded.
pub(super) fn measure(bench: &Bench, shape: Shape) -> Result<Vec<Row>, Error> {
    let mut source = Rotating::new(ByteCount(SIZE as u64))?;
    let sets = [bench.mount, bench.baseline]
        .map(|directory| ObjectSet::write(directory, NAMES, SIZE, &mut source).map(|set| (directory, set)));
    let [mount, baseline] = sets;
    let sides = [mount?, baseline?];
    let mut medians = [const { [const { Vec::new() }; 2] }; Call::ALL.len()];
    // Round 0 makes the kernel know the names.
    for round in 0..=bench.rounds {
        for (call, medians) in Call::ALL.iter().zip(&mut medians) {
            for turn in 0..sides.len() {
                let side = (round + turn) % sides.len();
                let (directory, set) = &sides[side];
                let median = median_microseconds(*call, directory, &set.paths, bench.next_name())?;
                if round > 0 {
                    medians[side].push(median);
                }
            }
        }
    }
    for (_, set) in sides {
        set.remove()?;
    }
    let rows = Call::ALL.iter().zip(&medians).map(|(call, [mount, baseline])| Row {
        case: call.name().to_owned(),
        size: None,
        threads: shape.threads,
        placement: Some(shape.placement),
        unit: Unit::Microseconds,
        value: Spread::of(mount),
        baseline: Spread::of(baseline),
        baseline_name: "tmpfs",
        // Inverted, so that above 1 the mount is faster, as in the rows of bytes a second.
        ratio: Spread::of(&paired_ratios(baseline, mount)),
        memcpy_ratio: None,
        target: call.target(),
    });
    Ok(rows.collect())
}

fn median_microseconds(call: Call, directory: &Path, paths: &[PathBuf], unique: u64) -> Result<f64, Error> {
    let absent: Vec<_> = match call {
        Call::CachedAbsence => (0..NAMES).map(|index| directory.join(format!("absent-{index}"))).collect(),
        Call::FirstAbsence => {
            (0..CALLS).map(|index| directory.join(format!("absent-{unique}-{index}"))).collect()
        }
        _ => Vec::new(),
    };
    let names = if absent.is_empty() { paths } else { &absent };
    let mut clock = Vec::with_capacity(CALLS);
    let mut taken = Vec::with_capacity(CALLS);
    for index in 0..CALLS {
        let path = &names[index % names.len()];
        let start = Instant::now();
        perform(call, path)?;
        let end = Instant::now();
        taken.push(nanoseconds(start, end));
        clock.push(nanoseconds(end, Instant::now()));
    }
    let nanoseconds = median_of(&mut taken).saturating_sub(median_of(&mut clock));
    Ok(nanoseconds as f64 / 1e3)
}

fn nanoseconds(start: Instant, end: Instant) -> u64 {
    u64::try_from((end - start).as_nanos()).unwrap_or(u64::MAX)
}

fn perform(call: Call, path: &Path) -> Result<(), Error> {
    match call {
        Call::OpenClose => object::open(path, 0).map(drop),
        Call::CachedStat => {
            stat(path).map(drop).map_err(std::io::Error::from).map_err(Error::file("stat", path))
        }
        Call::CachedStatx => fs::metadata(path).map(drop).map_err(Error::file("statx", path)),
        Call::CachedAbsence | Call::FirstAbsence => match access(path, AccessFlags::F_OK) {
            Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(Error::file("probe", path)(errno.into())),
            Ok(()) => Err(Error::Invalid(format!("{} exists although nobody made it", path.display()))),
        },
    }
}
