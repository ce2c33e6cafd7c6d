//! The one unsafe call of the tools: a child that leads a session of its own.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Makes the child of `command` leader of a new session, so that it has no terminal and outlives ours.
pub(crate) fn in_own_session(command: &mut Command) {
    let become_leader = || nix::unistd::setsid().map(drop).map_err(io::Error::from);
    // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are sound: setsid(2) is
    // one (signal-safety(7)), and turning its errno into `io::Error` allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(become_leader);
    }
}
