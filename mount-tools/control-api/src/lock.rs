//! Who serves a mount: the lock file that a daemon holds for its life.
//!
//! `flock` ends with its holder, however that ends, so a held lock means a live daemon and a free one a dead
//! daemon; the process id in the file is only trusted while the lock is held, and is that of the daemon's own pid
//! namespace: [`is_held_by`] tells whether it is the daemon's here, too.
//!
//! Invariants
//! - [`InstanceLock`] is on the file that stands at its path, not on one that was removed meanwhile.
//! - The record of an earlier daemon stays until the next one's is written, also where there is no room for that.
//! - A look ([`probe`]) holds the lock shared for an instant; [`InstanceLock::acquire`] therefore tries for
//!   [`ACQUIRE_PATIENCE`] before it believes in another holder.

use std::fs::{DirEntry, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::stat::{major, minor};

/// For how long a lock that others only look at may seem to be held.
pub const ACQUIRE_PATIENCE: Duration = Duration::from_millis(300);

const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The kernel's table of file locks (proc_locks(5)).
const LOCKS: &str = "/proc/locks";

/// What a lock file says about its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// It lives. In the instant between its lock and its writing the process id is that of the one before, or absent.
    Alive {
        /// Its process id.
        pid: Option<u32>,
    },
    /// There was one, and it is gone.
    Gone,
    /// There is no lock file: none ever ran here, or it cleaned up.
    NoRecord,
}

/// Looks whether a daemon holds the lock at `path`. Needs no right to write; changes nothing.
///
/// # Errors
/// The file is there and cannot be opened or read.
pub fn probe(path: &Path) -> io::Result<Daemon> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Daemon::NoRecord),
        file => file?,
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Daemon::Gone), // closing the file ends the shared lock
        Err(TryLockError::WouldBlock) => Ok(Daemon::Alive { pid: read_pid(&mut file)? }),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether the process with this number here is the daemon that holds the lock at `path`. Where that runs in a container, its own
/// number may be that of anybody here.
///
/// # Errors
/// The lock, or the kernel's table of locks, cannot be read, and nothing else tells.
pub fn is_held_by(path: &Path, pid: u32) -> io::Result<bool> {
    let lock = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        lock => lock?,
    };
    // The table names the process that took the lock, also where its files are not shown: it is another user's, or just ending.
    // Whoever was handed the lock, as by flock(1), has the file open.
    let table = std::fs::read_to_string(LOCKS);
    let is_in_table = table.as_ref().is_ok_and(|table| names_holder(table, pid, lock.dev(), lock.ino()));
    if is_in_table || has_open(pid, path, &lock) {
        return Ok(true);
    }
    table.map(|_| false)
}

/// Whether a process has the file at `path` open, as far as it is shown to this one.
fn has_open(pid: u32, path: &Path, file: &Metadata) -> bool {
    let is_it = |entry: DirEntry| {
        let link = entry.path();
        // By the name first: a look at a file of a disk that hangs would hang.
        let is_called_so = std::fs::read_link(&link).is_ok_and(|open| open.file_name() == path.file_name());
        let is_same = |open: Metadata| (open.dev(), open.ino()) == (file.dev(), file.ino());
        is_called_so && std::fs::metadata(&link).is_ok_and(is_same)
    };
    std::fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|open| open.flatten().any(is_it))
}

/// Whether a table of locks has `pid` as the holder of one on the inode `ino` of the device `dev`, as a daemon holds it.
fn names_holder(table: &str, pid: u32, dev: u64, ino: u64) -> bool {
    // The device, too: of two file systems in memory both have the inode. Where stat(2) tells of another one than the table
    // does (btrfs, overlayfs), no line is the lock's, and only who has the file open is known to hold it.
    let lock = format!("{:02x}:{:02x}:{ino}", major(dev), minor(dev));
    table.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Who waits for a lock has `->` in the place of its kind.
        let [_, "FLOCK", _, "WRITE", holder, file, ..] = words[..] else { return false };
        holder.parse::<u32>() == Ok(pid) && file == lock
    })
}

/// Why a lock was not got.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another daemon has it.
    #[error("process {} already serves this mount point", pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()))]
    Held {
        /// The other daemon.
        pid: Option<u32>,
    },
    /// The file cannot be made, locked or written.
    #[error("cannot lock {}: {source}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The lock of a live daemon. Free as soon as this is dropped or its process ends.
#[derive(Debug)]
pub struct InstanceLock {
    _file: File,
    had_predecessor: bool,
}

impl InstanceLock {
    /// Takes the lock at `path`, makes the file (mode 0600) if need be, and writes this process's id into it.
    ///
    /// # Errors
    /// [`LockError::Held`] if another process keeps it for longer than [`ACQUIRE_PATIENCE`].
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let io_error = |source| LockError::Io { path: path.to_owned(), source };
        let deadline = Instant::now() + ACQUIRE_PATIENCE;
        loop {
            let (mut file, created) = open_or_create(path).map_err(io_error)?;
            match file.try_lock() {
                Ok(()) if stands_at(&file, path).map_err(io_error)? => {
                    let had_predecessor = !created && read_pid(&mut file).map_err(io_error)?.is_some();
                    write_pid(&file).map_err(io_error)?;
                    return Ok(Self { _file: file, had_predecessor });
                }
                Ok(()) => {} // it was removed between open and lock: take the new one
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                    return Err(LockError::Held { pid: read_pid(&mut file).map_err(io_error)? });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(RETRY_INTERVAL),
                Err(TryLockError::Error(source)) => return Err(io_error(source)),
            }
        }
    }

    /// Whether a daemon held this lock before and left without cleaning up. A mount that is found at its mount point now is
    /// that daemon's, unless it answers ([`crate::answer`]).
    #[must_use]
    pub fn had_predecessor(&self) -> bool {
        self.had_predecessor
    }
}

fn open_or_create(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.open(path) {
        Ok(file) => Ok((file, false)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            options.create(true).open(path).map(|file| (file, true))
        }
        Err(error) => Err(error),
    }
}

fn stands_at(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(named) => Ok((held.dev(), held.ino()) == (named.dev(), named.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes this process's id over what stands there, and cuts the rest off then: a full file system has no room for anything
/// else, and what was cut first would be lost.
fn write_pid(file: &File) -> io::Result<()> {
    let line = format!("{}\n", std::process::id());
    file.write_all_at(line.as_bytes(), 0)?;
    file.set_len(line.len() as u64)
}

fn read_pid(file: &mut File) -> io::Result<Option<u32>> {
    let mut text = String::new();
    match file.take(32).read_to_string(&mut text) {
        // The first line: behind it may be what is left of a longer one.
        Ok(_) => Ok(text.lines().next().and_then(|line| line.trim().parse().ok())),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::makedev;

    use super::*;

    #[test]
    fn a_held_lock_names_its_holder_and_a_dropped_one_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(probe(&path).unwrap(), Daemon::NoRecord);
        let lock = InstanceLock::acquire(&path).unwrap();
        assert!(!lock.had_predecessor());
        assert_eq!(probe(&path).unwrap(), Daemon::Alive { pid: Some(std::process::id()) });
        drop(lock);
        assert_eq!(probe(&path).unwrap(), Daemon::Gone);
        assert!(InstanceLock::acquire(&path).unwrap().had_predecessor());
    }

    #[test]
    fn a_held_lock_is_that_of_its_holder_and_of_no_other_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let (this, other) = (std::process::id(), std::os::unix::process::parent_id());
        assert!(!is_held_by(&path, this).unwrap(), "there is none");
        let lock = InstanceLock::acquire(&path).unwrap();
        assert!(is_held_by(&path, this).unwrap());
        assert!(!is_held_by(&path, other).unwrap());
        drop(lock);
        assert!(!is_held_by(&path, this).unwrap());
    }

    #[test]
    fn a_table_of_locks_names_who_holds_one_and_not_who_waits_for_it_or_holds_one_of_another_device() {
        let table = "1: FLOCK  ADVISORY  WRITE 412 00:1a:77 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 413 00:1a:77 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 414 00:1a:77 0 EOF\n3: FLOCK  ADVISORY  READ  415 00:1a:77 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 416 00:1b:77 0 EOF\n5: FLOCK  ADVISORY  WRITE 417 103:1400:77 0 EOF\n";
        let holders = |dev: u64, ino: u64| -> Vec<u32> {
            (400..430).filter(|&pid| names_holder(table, pid, dev, ino)).collect()
        };
        assert_eq!(holders(makedev(0, 0x1a), 77), [412]);
        assert_eq!(holders(makedev(0, 0x1b), 77), [416]);
        assert_eq!(holders(makedev(0x103, 0x1400), 77), [417]);
        assert!(holders(makedev(0, 0x1a), 7).is_empty());
    }

    #[test]
    fn a_second_daemon_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let _lock = InstanceLock::acquire(&path).unwrap();
        let error = InstanceLock::acquire(&path).unwrap_err();
        assert!(matches!(error, LockError::Held { pid } if pid == Some(std::process::id())), "{error}");
    }

    #[test]
    fn a_lock_that_cannot_be_made_is_told_with_its_cause() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = InstanceLock::acquire(&file.path().join("lock")).unwrap_err().to_string();
        assert_eq!(error.matches("Not a directory").count(), 1, "{error}");
    }

    #[test]
    fn a_lock_that_others_only_look_at_is_got() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::fs::write(&path, "").unwrap();
        let look = File::open(&path).unwrap();
        look.try_lock_shared().unwrap();
        let getter = std::thread::spawn(move || InstanceLock::acquire(&path).map(drop));
        std::thread::sleep(Duration::from_millis(60));
        drop(look);
        getter.join().unwrap().unwrap();
    }

    #[test]
    fn what_cannot_be_written_leaves_the_record_of_the_daemon_before() {
        use nix::fcntl::{FcntlArg, SealFlag, fcntl};
        use nix::sys::memfd::{MFdFlags, memfd_create};
        use std::os::fd::AsRawFd as _;

        // A file that can be cut and not written stands in for one on a full file system.
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"lock", flags).unwrap());
        file.write_all_at(b"123456789\n", 0).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        assert!(matches!(InstanceLock::acquire(&path), Err(LockError::Io { .. })));
        assert_eq!(read_pid(&mut File::open(&path).unwrap()).unwrap(), Some(123_456_789));
    }

    #[test]
    fn a_process_id_is_read_though_the_rest_of_a_longer_one_is_still_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::fs::write(&path, "77\n3456\n").unwrap();
        assert_eq!(read_pid(&mut File::open(&path).unwrap()).unwrap(), Some(77));
        let lock = InstanceLock::acquire(&path).unwrap();
        assert!(lock.had_predecessor());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
    }

    #[test]
    fn garbage_in_a_lock_file_is_no_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::fs::write(&path, b"\xff\xfe not a pid").unwrap();
        let lock = InstanceLock::acquire(&path).unwrap();
        assert!(!lock.had_predecessor());
        assert_eq!(probe(&path).unwrap(), Daemon::Alive { pid: Some(std::process::id()) });
    }
}
