//! Objects that another host holds: opened, read and closed, by one reader and by many.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidefs_engine::types::{ByteCount, PAGE};

use super::Bench;
use crate::bench::buffer::Rotating;
use crate::bench::error::Error;
use crate::bench::local::write_object;
use crate::bench::report::{Row, Target, Unit};
use crate::bench::statistics::Spread;

/// Rounds that are not counted: connections are made, and all of the memory is touched for the first time.
pub(super) const WARM_UP: usize = 3;
/// Objects of one reader in a round.
const ALONE: std::ops::RangeInclusive<u64> = 4..=64;
/// What many readers read is at most this large each: all of them are there at once.
const CROWD_SIZE_MAX: ByteCount = ByteCount::mib(4);
/// From when an object is published until it is read: its host takes its checksum meanwhile, as it does of all it holds.
const REST: Duration = Duration::from_millis(400);
/// Messages whose round trip is measured in a round.
const MESSAGES: usize = 200;

/// Bytes of the objects that are there at once.
pub(super) fn bytes_at_once(size: ByteCount, sample: ByteCount, readers: usize) -> ByteCount {
    ByteCount(size.get() * (alone_of(size, sample) + crowd_of(size, sample, readers)) as u64)
}

fn alone_of(size: ByteCount, sample: ByteCount) -> usize {
    let count = (sample.get() / 2 / size.get().max(1)).clamp(*ALONE.start(), *ALONE.end());
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Objects that many readers read in a round; none when they are too large.
fn crowd_of(size: ByteCount, sample: ByteCount, readers: usize) -> usize {
    if size > CROWD_SIZE_MAX {
        return 0;
    }
    let count = (sample.get() / 2 / size.get().max(1)).clamp(1, 512);
    usize::try_from(count).unwrap_or(usize::MAX).max(readers)
}

/// What the rounds gave.
#[derive(Default)]
struct Reached {
    alone: Vec<f64>,
    engine_alone: Vec<f64>,
    crowd: Vec<f64>,
    engine_crowd: Vec<f64>,
    /// Microseconds from the look-up until the file is open, beyond the engine's transfer.
    beyond: Vec<f64>,
    round_trips: Vec<f64>,
}

/// Measures objects of `size` and returns the rows.
///
/// # Errors
/// What a host or the engine says, and bytes that are not those that were written.
pub(super) fn measure(bench: &Bench, size: ByteCount) -> Result<Vec<Row>, Error> {
    let bytes = usize::try_from(size.get()).ok().filter(|_| size > ByteCount::ZERO);
    let bytes = bytes
        .filter(|_| size.get().is_multiple_of(PAGE.get()))
        .ok_or_else(|| Error::Argument(format!("--sizes: {size} is not a multiple of {PAGE}")))?;
    let mut source = Rotating::new(size)?;
    let mut target = Rotating::new(size)?;
    let (alone, crowd) = (alone_of(size, bench.sample), crowd_of(size, bench.sample, bench.readers));
    let depth = crowd.min(bench.readers);
    let mut reached = Reached::default();
    for round in 0..WARM_UP + bench.rounds {
        let names: Vec<_> = (0..alone + crowd).map(|number| format!("{size}-{round}-{number}")).collect();
        let written = source.next(bytes);
        for name in &names {
            write_object(&bench.here.join(name), &bench.here.join(format!("{name}.tmp")), written)?;
        }
        thread::sleep(REST);
        let paths: Vec<_> = names.iter().map(|name| bench.there.join(name)).collect();
        let (mut seconds, mut opens) = (0.0, Vec::with_capacity(alone));
        for path in &paths[..alone] {
            let target = target.next(bytes);
            let (open_s, all_s) = read_cold(path, target)?;
            seconds += all_s;
            opens.push(open_s * 1e6);
            compare(path, target, written)?;
        }
        let rate = (alone * bytes) as f64 / seconds;
        let engine_alone = bench.engine.read(size, 1, alone as u64)?;
        let crowd_rates = if crowd > 0 {
            let rate = (crowd * bytes) as f64 / read_crowd(&paths[alone..], written, depth)?;
            Some((rate, bench.engine.read(size, depth, crowd as u64)?))
        } else {
            None
        };
        let round_trip = bench.engine.round_trip(MESSAGES)?;
        // Else the next round fills the hosts, and what is new and was never read may be what leaves.
        for name in &names {
            let path = bench.here.join(name);
            fs::remove_file(&path).map_err(Error::file("remove", &path))?;
        }
        bench.progress.inc(1);
        if round < WARM_UP {
            continue;
        }
        reached.alone.push(rate / 1e9);
        reached.engine_alone.push(engine_alone / 1e9);
        if let Some((rate, engine)) = crowd_rates {
            reached.crowd.push(rate / 1e9);
            reached.engine_crowd.push(engine / 1e9);
        }
        let open_us = Spread::of(&opens).map_or(0.0, |spread| spread.median);
        reached.beyond.push((open_us - bytes as f64 / engine_alone * 1e6).max(0.0));
        reached.round_trips.push(round_trip);
    }
    Ok(reached.rows(size, depth))
}

impl Reached {
    fn rows(&self, size: ByteCount, depth: usize) -> Vec<Row> {
        let is_judged = size >= ByteCount::mib(4);
        let row = |case: &str, threads, figures, target: Target| Row {
            threads,
            ..Row::rates(case, size, figures, "engine", is_judged.then_some(target))
        };
        let mut rows = vec![row(
            "cold open + read + close",
            1,
            [&self.alone, &self.engine_alone],
            Target::RatioAtLeast(0.8),
        )];
        if !self.crowd.is_empty() {
            let values: [&[f64]; 2] = [&self.crowd, &self.engine_crowd];
            rows.push(row("the same by many", depth, values, Target::RatioAtLeast(0.85)));
        }
        rows.push(Row {
            unit: Unit::Microseconds,
            baseline_name: "round trip",
            ..row(
                "cold open beyond the transfer",
                1,
                [&self.beyond, &self.round_trips],
                Target::RatioAtMost(2.0),
            )
        });
        rows
    }
}

/// Opens, reads and closes an object that is not here. Returns the seconds until it was open, and all.
fn read_cold(path: &Path, target: &mut [u8]) -> Result<(f64, f64), Error> {
    let started = Instant::now();
    let file = File::open(path).map_err(Error::file("open", path))?;
    let opened = started.elapsed();
    let moved = file.read_at(target, 0).map_err(Error::file("read", path))?;
    drop(file);
    let all = started.elapsed();
    if moved != target.len() {
        return Err(Error::Short { path: path.to_owned(), moved, expected: target.len() });
    }
    Ok((opened.as_secs_f64(), all.as_secs_f64()))
}

fn compare(path: &Path, found: &[u8], written: &[u8]) -> Result<(), Error> {
    if found == written {
        return Ok(());
    }
    let offset = found.iter().zip(written).position(|(one, other)| one != other).unwrap_or(found.len());
    Err(Error::WrongBytes { path: path.to_owned(), offset })
}

/// Reads each object once, `depth` at a time. Returns the seconds until the last was read.
fn read_crowd(paths: &[PathBuf], written: &[u8], depth: usize) -> Result<f64, Error> {
    let (next, barrier) = (AtomicUsize::new(0), Barrier::new(depth));
    let work = |mut target: Vec<u8>| -> Result<(Instant, Instant), Error> {
        barrier.wait();
        let started = Instant::now();
        let mut last = None;
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            read_cold(path, &mut target)?;
            last = Some(path);
        }
        let ended = Instant::now();
        last.map_or(Ok(()), |path| compare(path, &target, written))?;
        Ok((started, ended))
    };
    thread::scope(|scope| {
        // Memory that was touched before.
        let readers: Vec<_> = (0..depth).map(|_| vec![1; written.len()]).collect();
        let readers: Vec<_> = readers.into_iter().map(|target| scope.spawn(|| work(target))).collect();
        let mut whole: Option<(Instant, Instant)> = None;
        for reader in readers {
            let (started, ended) = reader.join().expect("a reader does not panic")?;
            whole =
                Some(whole.map_or((started, ended), |(first, last)| (first.min(started), last.max(ended))));
        }
        Ok(whole.map_or(0.0, |(first, last)| last.saturating_duration_since(first).as_secs_f64()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reader_has_an_object_and_large_ones_have_one_reader() {
        let sample = ByteCount::mib(128);
        assert_eq!(crowd_of(ByteCount::mib(4), sample, 32), 32);
        assert_eq!(crowd_of(ByteCount::kib(64), sample, 32), 512);
        assert_eq!(crowd_of(ByteCount::mib(32), sample, 32), 0);
        assert_eq!((alone_of(ByteCount::mib(32), sample), alone_of(ByteCount::kib(64), sample)), (4, 64));
    }

    #[test]
    fn a_wrong_byte_is_an_error_that_says_where() {
        let wrong = compare(Path::new("/a"), b"axc", b"abc");
        assert!(matches!(wrong, Err(Error::WrongBytes { offset: 1, .. })), "{wrong:?}");
    }

    #[test]
    fn many_read_every_object_once() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..20).map(|number| folder.path().join(number.to_string())).collect();
        paths.iter().for_each(|path| std::fs::write(path, b"abc").unwrap());
        assert!(read_crowd(&paths, b"abc", 4).unwrap() > 0.0);
        std::fs::write(&paths[7], b"ab").unwrap();
        let short = read_crowd(&paths, b"abc", 4);
        assert!(matches!(short, Err(Error::Short { moved: 2, .. })), "{short:?}");
    }
}
