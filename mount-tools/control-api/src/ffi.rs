//! The one unsafe call of this crate: a child that asks a mount, and can be left when it hangs.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use nix::errno::Errno;
use nix::unistd::{ForkResult, Pid, fork};

/// Starts a child that asks what is mounted on `path` for its space, as user and group `owner` if given. It exits with 0, or
/// with the errno that it met.
///
/// # Errors
/// There can be no further process.
pub(crate) fn ask_in_child(path: &CStr, owner: Option<(u32, u32)>) -> nix::Result<Pid> {
    // SAFETY: the child calls nothing but raw system calls and `_exit`, which are async-signal-safe (signal-safety(7)), on
    // memory that it has a copy of, so it does not matter what other threads held when it was made.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => ask(path, owner),
    }
}

/// Asks and exits. The descriptors of the parent are closed first: the child may outlive it, and would keep its locks held.
fn ask(path: &CStr, owner: Option<(u32, u32)>) -> ! {
    let mut space = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `path` ends with a zero, `space` has room for a statfs, and nothing here uses a descriptor afterwards. The raw
    // calls change the ids of this thread, which is the only one of the child. That they fail leaves the question to whoever
    // asks now.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0_u32, u32::MAX, 0_u32);
        if let Some((user, group)) = owner {
            libc::syscall(libc::SYS_setresgid, group, group, group);
            libc::syscall(libc::SYS_setresuid, user, user, user);
        }
        let status = libc::statfs(path.as_ptr(), space.as_mut_ptr());
        libc::_exit(if status == 0 { 0 } else { Errno::last_raw() })
    }
}
