//! The daemon as a process: started in a namespace of its own, and ended by force.

use std::fs::{self, File};
use std::path::Path;
use std::process::Child;

use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use super::mount::wait_for;
use super::wait::HANG;

/// What `work` starts is the first process of a pid namespace of its own. It starts no thread, which the kernel refuses.
pub(super) fn in_own_pid_namespace<T>(work: impl FnOnce() -> T) -> T {
    let ours = File::open("/proc/thread-self/ns/pid").expect("the namespace of this thread");
    unshare(CloneFlags::CLONE_NEWPID).expect("root may make pid namespaces");
    let done = work();
    // What this thread starts from now on is seen by all again.
    setns(ours, CloneFlags::CLONE_NEWPID).expect("a thread may go back to its own namespace");
    done
}

/// Kills a daemon and waits for its end. What its threads do, if that takes an abort of its connection to the kernel.
///
/// A thread of a daemon that waits in the kernel for a lock that one of its own clients holds cannot be killed, and
/// keeps the connection open; a forced unmount aborts the connection, and all wake up.
pub(super) fn end_by_force(child: &mut Child, point: &Path) -> Option<String> {
    let _ = child.kill();
    if wait_for(child, HANG).is_some() {
        return None;
    }
    let left = threads_left(child.id());
    let _ = umount2(point, MntFlags::MNT_FORCE);
    let _ = wait_for(child, HANG);
    Some(left)
}

/// The threads that a process still has, and where each of them waits in the kernel.
fn threads_left(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let described = tasks.map(|task| {
        let fact = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let state =
            fact("status").lines().find(|line| line.starts_with("State:")).unwrap_or_default().to_owned();
        format!("\n{} {state} in {}\n{}", fact("comm").trim(), fact("wchan"), fact("stack"))
    });
    described.collect()
}
