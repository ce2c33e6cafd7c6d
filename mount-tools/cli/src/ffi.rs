//! What a child of the tools does between fork and exec: it leads a session of its own, and leaves what its starter has open.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::libc;

/// Makes the child of `command` leader of a new session, so that it has no terminal and outlives ours, with nothing open but its
/// standard input, output and error: else it would hold a lock of flock(1), or a file of another mount, for its whole life.
///
/// Before Linux 5.11 it keeps what is open all the same.
pub(crate) fn in_own_session(command: &mut Command) {
    let set_apart = || {
        close_at_exec();
        nix::unistd::setsid().map(drop).map_err(io::Error::from)
    };
    // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are sound: setsid(2) is
    // one (signal-safety(7)), close_range(2) is a bare system call, and turning an errno into `io::Error` allocates nothing and
    // takes no lock.
    unsafe {
        command.pre_exec(set_apart);
    }
}

/// Has every descriptor of this process from 3 on closed by its next exec, and not before: by one of them the standard library
/// learns whether exec works.
fn close_at_exec() {
    // SAFETY: close_range(2) takes no pointers, and with this flag it closes nothing that is in use. An error changes nothing.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}
