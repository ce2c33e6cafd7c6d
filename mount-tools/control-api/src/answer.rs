//! Whether a tidefs mount is served, asked of the mount itself.
//!
//! A lock tells of the daemon that keeps its state beside it, and of no other: a mount of another state directory looks dead
//! where a start failed before. So whoever takes a mount away asks it first. One whose daemon is gone says so at once, and one
//! whose daemon is only stopped says nothing, which is why a child asks: it can be left, whatever it waits for.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, geteuid};

use crate::ffi;
use crate::mounts::Mount;

/// How long a mount may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the child is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// What a mount says when it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Its daemon is gone: the kernel says so, and nobody will ever answer.
    Gone,
    /// Its daemon answered, or could not be asked by this user.
    Served,
    /// Nothing within the patience for it, or an error that says nothing of its daemon.
    Unknown,
}

impl Mount {
    /// Asks the daemon of this mount, which waits for it for some seconds at most.
    #[must_use]
    pub fn ask(&self) -> Answer {
        let Ok(path) = CString::new(self.mount_point.as_os_str().as_bytes()) else { return Answer::Unknown };
        // The kernel asks no daemon for a user that may not see its mount, and root may not see each.
        let owner = self.user_id.zip(self.group_id).filter(|_| geteuid().is_root());
        match ffi::ask_in_child(&path, owner) {
            Ok(child) => wait_for(child, Instant::now() + PATIENCE),
            Err(_) => Answer::Unknown,
        }
    }
}

/// What `child` found, or nothing if it takes until `deadline`; it is ended then.
fn wait_for(child: Pid, deadline: Instant) -> Answer {
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) if Instant::now() < deadline => thread::sleep(LOOK_INTERVAL),
            Ok(WaitStatus::StillAlive) => {
                // One that cannot be killed, since its question was read already, ends with the answer.
                let _ = kill(child, Signal::SIGKILL);
                return Answer::Unknown;
            }
            Ok(WaitStatus::Exited(_, 0)) => return Answer::Served,
            // The second is the word for who had asked already when the daemon went.
            Ok(WaitStatus::Exited(_, errno)) => match Errno::from_raw(errno) {
                Errno::ENOTCONN | Errno::ECONNABORTED => return Answer::Gone,
                _ => return Answer::Unknown,
            },
            Err(Errno::EINTR) => {}
            _ => return Answer::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn mount_at(path: &Path) -> Mount {
        Mount {
            mount_point: path.to_owned(),
            fstype: crate::mounts::FSTYPE.to_owned(),
            source: "tidefs".into(),
            user_id: None,
            group_id: None,
        }
    }

    #[test]
    fn what_answers_is_served_and_what_is_not_there_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(mount_at(dir.path()).ask(), Answer::Served);
        assert_eq!(mount_at(&dir.path().join("absent")).ask(), Answer::Unknown);
        assert_eq!(mount_at(Path::new("/a\0b")).ask(), Answer::Unknown);
    }
}
