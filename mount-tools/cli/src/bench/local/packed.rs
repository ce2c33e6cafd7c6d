//! Many small objects: what each costs the daemon beyond its bytes, and how long listing and probing them takes, and a
//! restart.
//!
//! The memory is the growth of the daemon's anonymous pages; the bytes of objects are shared memory and not in
//! it. What the kernel keeps for a cached name is the kernel's and not in it either.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::stat::stat;
use tidefs_engine::types::{ByteCount, PAGE};

use super::object::write_object;
use super::{NAMESPACE, progress_bar};
use crate::bench::daemon::{self, Daemon};
use crate::bench::error::Error;
use crate::bench::machine;
use crate::bench::mount::make_directory;
use crate::bench::report::{Row, Target, Unit};
use crate::bench::statistics::{Spread, median_of};

/// Bytes of an object: one page, well below the size from which an object has a file of its own.
const SIZE: ByteCount = PAGE;
/// Room beyond the objects, so that none is evicted: headroom of the writers and slack of the packing.
const SLACK: ByteCount = ByteCount::mib(512);
/// Threads that write.
const WRITERS: usize = 4;
/// Times the names are listed.
const LISTINGS: usize = 3;
/// Names that are probed for the time of a stat.
const PROBES: usize = 20_000;
/// Objects between two steps of the progress bar.
const STEP: u64 = 1_000;

/// Writes `count` objects into a daemon of its own and returns the rows.
///
/// # Errors
/// When the machine has too little memory, or the mount does not list exactly what was written.
pub(super) fn measure(binary: &Path, options: &[String], count: u64) -> Result<Vec<Row>, Error> {
    let bytes = ByteCount(count * SIZE.get());
    let capacity = ByteCount(bytes.get() + bytes.get() / 8).saturating_add(SLACK);
    let available = machine::meminfo("MemAvailable");
    // Beside the objects: about 1.3 KB of the kernel and of the daemon for each name.
    let needed = capacity.saturating_add(ByteCount(count * 1_500));
    if available < needed {
        let advice = "give a smaller --packed-objects";
        return Err(Error::Memory { what: "the packed part", needed, available, advice });
    }
    let keep: Vec<_> = options.iter().cloned().chain(["on_stop=keep".to_owned()]).collect();
    let daemon = Daemon::start(binary, capacity, &keep)?;
    let directory = make_directory(daemon.mount(), NAMESPACE)?;
    let before = daemon::anonymous_memory(daemon.pid())?;
    let started = Instant::now();
    write_all(&directory, count)?;
    let written = started.elapsed();
    let after = daemon::anonymous_memory(daemon.pid())?;
    let growth = after.saturating_sub(before).get() as f64 / count as f64;
    let listings = (0..LISTINGS).map(|_| list(&directory, count)).collect::<Result<Vec<_>, Error>>()?;
    let probe = probe(&directory, count)?;
    let (daemon, restart) = daemon.restart(binary, capacity, options)?;
    let restarted = daemon::anonymous_memory(daemon.pid())?;
    // The kernel knows none of the names now.
    let cold = list(&directory, count)?;
    let plain = |case: String, unit, value, target| Row::plain(case, Some(SIZE), unit, value, target);
    let per_object = written.as_secs_f64() * 1e6 / count as f64;
    let mut rows = vec![
        plain(
            format!("packed: memory of the daemon for each of {count}"),
            Unit::Bytes,
            Some(Spread::single(growth)),
            Some(Target::AtMost(200.0)),
        ),
        plain(
            format!("packed: list {count} names"),
            Unit::Seconds,
            Spread::of(&listings),
            (count >= 1_000_000).then_some(Target::AtMost(5.0)),
        ),
        plain(
            format!("packed: list {count} names after the restart"),
            Unit::Seconds,
            Some(Spread::single(cold)),
            (count >= 1_000_000).then_some(Target::AtMost(5.0)),
        ),
        plain("packed: stat, random names".to_owned(), Unit::Microseconds, Some(Spread::single(probe)), None),
        plain(
            format!("packed: restart with {count}"),
            Unit::Seconds,
            Some(Spread::single(restart.as_secs_f64())),
            None,
        ),
        plain(
            "packed: memory for each after the restart".to_owned(),
            Unit::Bytes,
            Some(Spread::single(restarted.saturating_sub(before).get() as f64 / count as f64)),
            Some(Target::AtMost(200.0)),
        ),
    ];
    let create = plain(
        "packed: create an object".to_owned(),
        Unit::Microseconds,
        Some(Spread::single(per_object)),
        None,
    );
    rows.push(Row { threads: WRITERS, ..create });
    Ok(rows)
}

fn name(index: u64) -> String {
    // Names as long as those of real clients: a hash in hexadecimal.
    format!("{:032x}", u128::from(index).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn write_all(directory: &Path, count: u64) -> Result<(), Error> {
    let progress = progress_bar(count);
    progress.set_message("packed objects");
    let outcome = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let progress = &progress;
                scope.spawn(move || {
                    let temporary = directory.join(format!("writer-{writer}.tmp"));
                    let mut bytes = [0x5a_u8; 4096];
                    for index in (writer as u64..count).step_by(WRITERS) {
                        bytes[..8].copy_from_slice(&index.to_le_bytes());
                        write_object(&directory.join(name(index)), &temporary, &bytes)?;
                        if index % STEP == 0 {
                            progress.inc(STEP);
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("a writer does not panic"))
    });
    progress.finish_and_clear();
    outcome
}

/// Seconds to list all names.
fn list(directory: &Path, count: u64) -> Result<f64, Error> {
    let start = Instant::now();
    let mut listed = 0;
    for entry in fs::read_dir(directory).map_err(Error::file("list", directory))? {
        entry.map_err(Error::file("list", directory))?;
        listed += 1;
    }
    let taken: Duration = start.elapsed();
    if listed != count {
        let shown = directory.display();
        return Err(Error::Invalid(format!("{shown} lists {listed} names, {count} objects were written")));
    }
    Ok(taken.as_secs_f64())
}

/// Microseconds of a stat, median over names all over the directory.
fn probe(directory: &Path, count: u64) -> Result<f64, Error> {
    let mut taken = Vec::with_capacity(PROBES);
    for index in 0..PROBES as u64 {
        // A stride that is odd and prime visits names far apart.
        let path = directory.join(name(index.wrapping_mul(7_919_777) % count));
        let start = Instant::now();
        stat(&path).map_err(std::io::Error::from).map_err(Error::file("stat", &path))?;
        taken.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(median_of(&mut taken) as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_is_written_once_and_listed() {
        let directory = tempfile::TempDir::new().unwrap();
        write_all(directory.path(), 103).unwrap();
        assert!(list(directory.path(), 103).is_ok());
        assert!(list(directory.path(), 104).is_err());
        assert!(probe(directory.path(), 103).is_ok());
    }
}
