//! What the reference model is compared with: the daemon's logic without a kernel, or a real mount.
//!
//! Both are driven by paths and by processes, as programs drive a filesystem, and answer with errnos. A process is an
//! index; [`WATCHER`] never writes, so what it sees is what "everyone else" sees.

use std::time::Duration;

use nix::errno::Errno;

/// How many processes there are.
pub(crate) const PROCESSES: usize = 4;
/// The process that only looks.
pub(crate) const WATCHER: usize = PROCESSES - 1;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Open {
    /// May be read.
    pub(crate) read: bool,
    /// May be written.
    pub(crate) write: bool,
    /// `O_CREAT`.
    pub(crate) create: bool,
    /// `O_EXCL`.
    pub(crate) exclusive: bool,
    /// `O_TRUNC`.
    pub(crate) truncate: bool,
}

/// A change of length or pages through a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// ftruncate(2).
    Set(u64),
    /// fallocate(2).
    Allocate {
        /// Start.
        offset: u64,
        /// Length.
        length: u64,
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
    /// fallocate(2) that makes a hole.
    Punch {
        /// Start.
        offset: u64,
        /// Length.
        length: u64,
    },
}

/// What stat(2) says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Whether it is a directory.
    pub(crate) is_directory: bool,
    /// `st_size` of a file.
    pub(crate) size: u64,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Nanoseconds since 1970, where the system tells them.
    pub(crate) mtime_ns: Option<i64>,
}

/// Why something is not there, as the daemon tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Evicted for room or for a quota.
    Evicted,
    /// Its time to live passed.
    Expired,
    /// Any other, or none.
    Other,
}

/// What the daemon's books say, where they can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Books {
    /// Sealed objects.
    pub(crate) objects: u64,
    /// Their lengths together.
    pub(crate) sealed_bytes: u64,
    /// Files that are being written.
    pub(crate) unsealed: u64,
    /// Real bytes in use.
    pub(crate) used: u64,
    /// Objects evicted since the start.
    pub(crate) evictions: u64,
    /// Files dropped at their close for lack of room since the start.
    pub(crate) discarded: u64,
}

/// Space as statfs(2) shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    /// Most bytes.
    pub(crate) capacity: u64,
    /// Free bytes.
    pub(crate) free: u64,
}

/// An open file of a system.
pub(crate) type Token = u64;

/// A filesystem under test.
pub(crate) trait System {
    /// open(2).
    fn open(&mut self, who: usize, path: &str, options: Open) -> Result<Token, Errno>;
    /// The inode number that a process finds by a name which everybody sees.
    fn inode(&mut self, path: &str) -> Option<u64>;
    /// close(2).
    fn close(&mut self, who: usize, token: Token);
    /// close(2) of a duplicate.
    fn flush(&mut self, who: usize, token: Token);
    /// pwrite(2), whole.
    fn write(&mut self, who: usize, token: Token, offset: u64, bytes: &[u8]) -> Result<(), Errno>;
    /// pread(2) until `length` bytes or the end.
    fn read(&mut self, who: usize, token: Token, offset: u64, length: usize) -> Result<Vec<u8>, Errno>;
    /// ftruncate(2) and fallocate(2).
    fn resize(&mut self, who: usize, token: Token, change: Change) -> Result<(), Errno>;
    /// Whether the process can be asked for fallocate(2).
    fn can_allocate(&self, who: usize) -> bool;
    /// truncate(2).
    fn truncate(&mut self, who: usize, path: &str, length: u64) -> Result<(), Errno>;
    /// rename(2), with `keep` `RENAME_NOREPLACE`.
    fn rename(&mut self, who: usize, from: &str, to: &str, keep: bool) -> Result<(), Errno>;
    /// unlink(2).
    fn unlink(&mut self, who: usize, path: &str) -> Result<(), Errno>;
    /// mkdir(2).
    fn mkdir(&mut self, who: usize, path: &str) -> Result<(), Errno>;
    /// rmdir(2).
    fn rmdir(&mut self, who: usize, path: &str) -> Result<(), Errno>;
    /// stat(2).
    fn stat(&mut self, who: usize, path: &str) -> Result<Facts, Errno>;
    /// Sorted names in a directory.
    fn list(&mut self, who: usize, path: &str) -> Result<Vec<String>, Errno>;
    /// chmod(2).
    fn chmod(&mut self, who: usize, path: &str, mode: u32) -> Result<(), Errno>;
    /// utimensat(2) of the mtime.
    fn utimens(&mut self, who: usize, path: &str, mtime_ns: i64) -> Result<(), Errno>;
    /// setxattr(2) or removexattr(2) of `user.tidefs.<key>`.
    fn policy(&mut self, who: usize, path: &str, key: &str, value: Option<&str>) -> Result<(), Errno>;
    /// The kernel drops what it caches of files that are not open.
    fn drop_caches(&mut self);
    /// Moves the clock, and looks for what is past its time when `expires`.
    fn advance(&mut self, by: Duration, expires: bool);
    /// Kills the daemon without any clean-up and starts it again. All descriptors are gone.
    fn restart(&mut self);
    /// statfs(2).
    fn space(&mut self, path: &str) -> Space;
    /// Wall-clock nanoseconds with which times to live are counted.
    fn now_ns(&self) -> i64;
    /// Why a path is not there; `None` where the system cannot tell.
    fn reason(&self, path: &str) -> Option<Reason>;
    /// Checks the daemon's tables against each other, where they can be seen.
    fn check_tables(&self) {}
    /// The daemon's books, where they can be read.
    fn books(&self) -> Option<Books>;
}
