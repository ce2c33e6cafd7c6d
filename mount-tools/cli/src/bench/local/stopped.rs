//! Reads of open objects while the daemon is stopped: the proof that the kernel alone serves them.
//!
//! Invariants
//! - The daemon runs again: when the guard is dropped, when a signal ends the bench, and after [`STOPPED_MAX`] in any
//!   case, so that a call that did need the daemon ends in an error here and not in a hang. Only SIGKILL leaves it stopped.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidefs_engine::types::ByteCount;

use super::object::{self, ObjectSet};
use super::throughput::buffers_for;
use super::worker::{Buffers, Work, Worker, timed};
use super::{Bench, Shape};
use crate::bench::cleanup::Change;
use crate::bench::error::Error;
use crate::bench::ffi::ReadMapping;
use crate::bench::report::{Row, Target};

/// How long the daemon is stopped at most. A sample takes some tens of milliseconds.
const STOPPED_MAX: Duration = Duration::from_secs(10);
/// Objects that are read.
const OBJECTS: usize = 128;
/// Their size.
const SIZE: usize = 1 << 20;

/// A stopped process that goes on when this is dropped, when a signal ends the bench, or when it was stopped for too long.
struct Stopped {
    _change: Change,
    /// Dropping the sender ends the watchdog.
    _watchdog: mpsc::Sender<()>,
}

impl Stopped {
    fn stop(pid: Pid) -> Result<Self, Error> {
        let (sender, watchdog) = mpsc::channel::<()>();
        let change = Change::make(|| kill(pid, Signal::SIGSTOP), move || go_on(pid))
            .map_err(Error::system(format!("stop process {pid}")))?;
        thread::spawn(move || {
            if watchdog.recv_timeout(STOPPED_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("tidefs bench: a read waited for the stopped daemon, which goes on now");
                go_on(pid);
            }
        });
        Ok(Self { _change: change, _watchdog: sender })
    }
}

/// Has a stopped process go on. One that runs does not notice.
fn go_on(pid: Pid) {
    let _ = kill(pid, Signal::SIGCONT);
}

/// Reads open files and mappings while `daemon` is stopped, and returns a row for each.
///
/// # Errors
/// What an operation says.
pub(super) fn measure(bench: &Bench, shape: Shape, daemon: Pid) -> Result<Vec<Row>, Error> {
    let mut buffers = buffers_for(1, ByteCount(SIZE as u64))?;
    let source = &mut buffers[0].source;
    let on_mount = ObjectSet::write(bench.mount, OBJECTS, SIZE, source)?;
    let on_baseline = ObjectSet::write(bench.baseline, OBJECTS, SIZE, source)?;
    let rows = [("read(2), daemon stopped", false), ("copy out of a mapping, daemon stopped", true)]
        .into_iter()
        .map(|(name, mapped)| {
            let mut workers = [reader(&on_mount, mapped)?, reader(&on_baseline, mapped)?];
            one_case(bench, shape, daemon, name, &mut workers, &mut buffers)
        })
        .collect::<Result<Vec<_>, Error>>()?;
    on_mount.remove()?;
    on_baseline.remove()?;
    Ok(rows)
}

fn one_case(
    bench: &Bench,
    shape: Shape,
    daemon: Pid,
    name: &str,
    [on_mount, on_baseline]: &mut [Worker; 2],
    buffers: &mut [Buffers],
) -> Result<Row, Error> {
    let operations = usize::try_from(bench.sample.get()).map_or(1, |bytes| bytes / SIZE);
    let mut sample = |worker: &mut Worker| {
        let seconds = timed(std::slice::from_mut(worker), buffers, operations, None)?;
        Ok::<_, Error>((operations * SIZE) as f64 / seconds / 1e9)
    };
    let (mut mount, mut baseline) = (Vec::new(), Vec::new());
    for round in 0..=bench.rounds {
        let stopped = if round == 0 { None } else { Some(Stopped::stop(daemon)?) };
        let reached = sample(on_mount)?;
        drop(stopped);
        let compared = sample(on_baseline)?;
        if round > 0 {
            mount.push(reached);
            baseline.push(compared);
        }
    }
    let target = Some(Target::RatioAtLeast(0.95));
    let row = Row::rates(name, ByteCount(SIZE as u64), [&mount, &baseline], "tmpfs", target);
    Ok(Row { placement: Some(shape.placement), ..row })
}

fn reader(objects: &ObjectSet, mapped: bool) -> Result<Worker, Error> {
    let opened = objects.paths.iter().map(|path| Ok((path.clone(), object::open(path, 0)?)));
    let files = opened.collect::<Result<Vec<_>, Error>>()?;
    if !mapped {
        return Ok(Worker::new(Work::Read(files), SIZE));
    }
    let map = |(path, file)| {
        let path: std::path::PathBuf = path;
        let mapping = ReadMapping::new(&file, SIZE).map_err(Error::file("map", &path))?;
        Ok((Arc::new(mapping), 0))
    };
    Ok(Worker::new(Work::Copy(files.into_iter().map(map).collect::<Result<_, Error>>()?), SIZE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_of(pid: Pid) -> char {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        text.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }

    #[test]
    fn a_stopped_process_goes_on_when_the_guard_is_dropped() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let stopped = Stopped::stop(pid).unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(5);
        while state_of(pid) != 'T' {
            assert!(std::time::Instant::now() < until, "the process is not stopped");
        }
        drop(stopped);
        while state_of(pid) == 'T' {
            assert!(std::time::Instant::now() < until, "the process does not go on");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
