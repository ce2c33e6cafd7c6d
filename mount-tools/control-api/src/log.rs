//! The log of a daemon in the background: `log` in the folder of its mount, which is its standard error.
//!
//! Invariants
//! - Who writes to a log holds it locked (flock(2)), whatever its name is by now: the lock goes with the descriptor from the
//!   starter to the daemon, and ends with that. Standard error that somebody else made is not locked.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Where what was in `log` before it was begun anew stands: beside it.
#[must_use]
pub fn earlier_log(log: &Path) -> PathBuf {
    log.with_extension("1")
}

/// Where that of a start stands that was refused while another daemon wrote to `log`: beside it.
#[must_use]
pub fn refused_log(log: &Path) -> PathBuf {
    log.with_extension("refused")
}

/// An empty log at `path`, to be written at its end. It is locked for as long as somebody has it open by this descriptor, or one
/// that was made of it.
///
/// # Errors
/// Something stands there already, or it cannot be made or locked.
pub fn create_log(path: &Path) -> io::Result<File> {
    let log = OpenOptions::new().create_new(true).append(true).mode(0o600).open(path)?;
    // Who looks whether it has a writer holds it for a moment.
    log.lock()?;
    Ok(log)
}

/// Whether a daemon writes to `log`, or who starts one is about to give it away. Where there is none, nobody does.
///
/// # Errors
/// The file cannot be opened or locked.
pub fn has_writer(log: &Path) -> io::Result<bool> {
    let file = match File::open(log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false), // closing the file ends the shared lock
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_log_has_a_writer_by_any_name_until_its_last_descriptor_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert!(!has_writer(&path).unwrap(), "there is none");
        let log = create_log(&path).unwrap();
        assert!(create_log(&path).is_err(), "one stands there");
        let of_daemon = log.try_clone().unwrap();
        drop(log);
        let earlier = earlier_log(&path);
        fs::rename(&path, &earlier).unwrap();
        assert!(has_writer(&earlier).unwrap() && !has_writer(&path).unwrap());
        drop(of_daemon);
        assert!(!has_writer(&earlier).unwrap());
    }
}
