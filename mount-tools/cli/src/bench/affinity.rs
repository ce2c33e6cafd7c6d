//! Which CPUs the daemon and the client run on.
//!
//! Waking a thread on another CPU costs tens of microseconds in a virtual machine, more than most operations
//! do. *Pinned* takes that out: with one client thread, the client and every thread of the daemon share one
//! CPU; with n, client thread i has CPU i and the daemon has those n. *Free* leaves it to the scheduler.

use std::fs;
use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;

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

/// Threads of daemons that were moved, and where they come back to when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct PinnedDaemons {
    before: Vec<(Pid, CpuSet)>,
}

impl PinnedDaemons {
    /// Lets every thread of the processes `daemons` run on `cpus` only.
    ///
    /// # Errors
    /// When the threads of a daemon cannot be listed or moved.
    pub(crate) fn pin(daemons: &[Pid], cpus: &[usize]) -> Result<Self, Error> {
        let mut pinned = Self::default();
        for daemon in daemons {
            let action = || Error::system::<io::Error>(format!("pin the threads of process {daemon}"));
            for entry in fs::read_dir(format!("/proc/{daemon}/task")).map_err(action())? {
                let name = entry.map_err(action())?.file_name();
                let Some(thread) = name.to_str().and_then(|name| name.parse().ok()).map(Pid::from_raw) else {
                    continue;
                };
                let before = sched_getaffinity(thread).map_err(io::Error::from).map_err(action())?;
                place(thread, cpus).map_err(action())?;
                pinned.before.push((thread, before));
            }
        }
        Ok(pinned)
    }
}

impl Drop for PinnedDaemons {
    fn drop(&mut self) {
        for (thread, before) in &self.before {
            // A thread that is gone needs no CPU.
            let _ = sched_setaffinity(*thread, before);
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
}
