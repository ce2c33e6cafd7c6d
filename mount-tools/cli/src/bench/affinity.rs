//! Which CPUs the daemon and the client run on.
//!
//! Waking a thread on another CPU costs tens of microseconds in a virtual machine, more than most operations
//! do. *Pinned* takes that out: with one client thread, the client and every thread of the daemon share one
//! CPU; with n, client thread i has CPU i and the daemon has those n. *Free* leaves it to the scheduler.

use std::collections::HashMap;
use std::fs;
use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;

use super::cleanup::Change;
use super::error::Error;

/// Where threads may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Placement {
    /// Daemon and client share as many CPUs as the client has threads.
    Pinned,
    /// Every thread runs where the scheduler likes.
    Free,
}

/// The CPUs this process may use, smallest number first.
///
/// # Errors
/// What sched_getaffinity(2) says.
pub(crate) fn allowed_cpus() -> Result<Vec<usize>, Error> {
    let set = sched_getaffinity(Pid::from_raw(0)).map_err(Error::system("ask for the allowed CPUs"))?;
    Ok((0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect())
}

/// Lets the calling thread run on `cpus` only.
///
/// # Errors
/// What sched_setaffinity(2) says.
pub(crate) fn place_this_thread(cpus: &[usize]) -> Result<(), Error> {
    place(Pid::from_raw(0), cpus).map_err(Error::system("place a client thread"))
}

fn place(thread: Pid, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu)?;
    }
    Ok(sched_setaffinity(thread, &set)?)
}

/// Daemons whose threads were moved, and come back when this is dropped or a signal ends the bench.
#[derive(Debug, Default)]
pub(crate) struct PinnedDaemons {
    _changes: Vec<Change>,
}

impl PinnedDaemons {
    /// Lets every thread of the processes `daemons` run on `cpus` only.
    ///
    /// # Errors
    /// When the threads of a daemon cannot be listed or moved.
    pub(crate) fn pin(daemons: &[Pid], cpus: &[usize]) -> Result<Self, Error> {
        let pin = |daemon: &Pid| {
            pin_one(*daemon, cpus).map_err(Error::system(format!("pin the threads of process {daemon}")))
        };
        Ok(Self { _changes: daemons.iter().map(pin).collect::<Result<_, _>>()? })
    }
}

fn pin_one(daemon: Pid, cpus: &[usize]) -> io::Result<Change> {
    let mut before = HashMap::new();
    for thread in threads_of(daemon)? {
        before.insert(thread, sched_getaffinity(thread)?);
    }
    let threads: Vec<Pid> = before.keys().copied().collect();
    Change::make(
        || threads.into_iter().try_for_each(|thread| place(thread, cpus)),
        move || put_back(daemon, &before),
    )
}

fn threads_of(process: Pid) -> io::Result<Vec<Pid>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/task"))? {
        let name = entry?.file_name();
        threads.extend(name.to_str().and_then(|name| name.parse().ok()).map(Pid::from_raw));
    }
    Ok(threads)
}

/// Lets the threads that `daemon` has now run where it let them `before`.
fn put_back(daemon: Pid, before: &HashMap<Pid, CpuSet>) {
    for thread in threads_of(daemon).unwrap_or_default() {
        // One that was started meanwhile is where its maker was. It has the place of the first.
        if let Some(place) = before.get(&thread).or_else(|| before.get(&daemon)) {
            // A thread that is gone needs no CPU.
            let _ = sched_setaffinity(thread, place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_process_are_pinned_and_come_back() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let before = sched_getaffinity(pid).unwrap();
        let cpu = allowed_cpus().unwrap()[0];
        let pinned = PinnedDaemons::pin(&[pid], &[cpu]).unwrap();
        let mut one = CpuSet::new();
        one.set(cpu).unwrap();
        assert_eq!(sched_getaffinity(pid).unwrap(), one);
        drop(pinned);
        assert_eq!(sched_getaffinity(pid).unwrap(), before);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_thread_that_was_started_meanwhile_comes_back_too() {
        let (process, first) = (Pid::this(), sched_getaffinity(Pid::this()).unwrap());
        let cpu = allowed_cpus().unwrap()[0];
        let moved = std::thread::spawn(move || {
            place_this_thread(&[cpu]).unwrap();
            // Of the threads of this process the first alone was known.
            put_back(process, &HashMap::from([(process, first)]));
            sched_getaffinity(Pid::from_raw(0)).unwrap()
        });
        assert_eq!(moved.join().unwrap(), first);
    }
}
