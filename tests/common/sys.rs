//! Thin wrappers of system calls that neither the standard library nor nix offers in the form a test needs: each
//! takes plain values and gives the errno.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

/// The errno of a standard-library error.
#[track_caller]
pub(crate) fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or_else(|| panic!("not an operating system error: {error}")))
}

/// The errno with which `result` failed; fails the test when it succeeded.
#[track_caller]
pub(crate) fn failure<T>(result: io::Result<T>, what: &str) -> Errno {
    match result {
        Ok(_) => panic!("{what} succeeded"),
        Err(error) => errno(&error),
    }
}

/// `path` as the kernel takes it.
pub(crate) fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("a path without NUL")
}

/// open(2) with any flags; new files get mode 0644.
pub(crate) fn open_file(path: &Path, flags: i32) -> Result<OwnedFd, Errno> {
    open(path, OFlag::from_bits_retain(flags) | OFlag::O_CLOEXEC, Mode::from_bits_retain(0o644))
}

/// setxattr(2).
pub(crate) fn set_xattr(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    let (path, name) = (c_path(path), CString::new(name).expect("a name without NUL"));
    // SAFETY: both strings are NUL-terminated and `value` is valid for its length during the call.
    let result =
        unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    Errno::result(result).map(drop)
}

/// getxattr(2), whole.
pub(crate) fn get_xattr(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let (path, name) = (c_path(path), CString::new(name).expect("a name without NUL"));
    let mut value = vec![0_u8; 64 * 1024];
    // SAFETY: both strings are NUL-terminated and `value` is writable for the length that is passed.
    let length =
        unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(usize::try_from(Errno::result(length)?).expect("a length is not negative"));
    Ok(value)
}

/// The checksum of a file that its last writer has closed: the daemon hears of a close a moment after close(2) returned, and
/// until then the file has a writer.
#[track_caller]
pub(crate) fn checksum_of(path: &Path) -> String {
    let has_one = || get_xattr(path, "user.tidefs.checksum").is_ok();
    assert!(super::wait::until(super::wait::HANG, has_one), "no checksum of {}", path.display());
    get_xattr_text(path, "user.tidefs.checksum")
}

/// getxattr(2) with a value that must be text.
#[track_caller]
pub(crate) fn get_xattr_text(path: &Path, name: &str) -> String {
    let value = get_xattr(path, name).unwrap_or_else(|error| panic!("{name} of {}: {error}", path.display()));
    String::from_utf8(value).expect("an attribute in UTF-8")
}

/// listxattr(2), as names.
pub(crate) fn list_xattr(path: &Path) -> Result<Vec<String>, Errno> {
    let path = c_path(path);
    let mut names = vec![0_u8; 64 * 1024];
    // SAFETY: the path is NUL-terminated and `names` is writable for the length that is passed.
    let length = unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    names.truncate(usize::try_from(Errno::result(length)?).expect("a length is not negative"));
    let texts = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(texts.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

/// removexattr(2).
pub(crate) fn remove_xattr(path: &Path, name: &str) -> Result<(), Errno> {
    let (path, name) = (c_path(path), CString::new(name).expect("a name without NUL"));
    // SAFETY: both strings are NUL-terminated.
    Errno::result(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }).map(drop)
}

/// What the ioctls of lsattr(1) and chattr(1) fail with, by their names (ioctl_iflags(2), linux/fs.h).
pub(crate) fn failures_of_flags(file: &impl AsRawFd) -> [(&'static str, Option<Errno>); 3] {
    // _IOR('X', 31, struct fsxattr), which libc does not have.
    const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801C_581F;
    let requests = [
        ("FS_IOC_GETFLAGS", libc::FS_IOC_GETFLAGS),
        ("FS_IOC_SETFLAGS", libc::FS_IOC_SETFLAGS),
        ("FS_IOC_FSGETXATTR", FS_IOC_FSGETXATTR),
    ];
    requests.map(|(name, request)| {
        let mut flags = [0_u64; 8];
        // SAFETY: the kernel reads or writes a number there, or a structure of 28 bytes.
        let outcome = unsafe { libc::ioctl(file.as_raw_fd(), request, flags.as_mut_ptr()) };
        (name, Errno::result(outcome).err())
    })
}

/// renameat2(2) with flags (`RENAME_NOREPLACE`, `RENAME_EXCHANGE`).
pub(crate) fn rename_with(from: &Path, to: &Path, flags: u32) -> Result<(), Errno> {
    let (from, to) = (c_path(from), c_path(to));
    // SAFETY: both strings are NUL-terminated.
    let result =
        unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) };
    Errno::result(result).map(drop)
}

/// Lets the process `pid` open no descriptor with this number or above. Returns where it was let until now.
#[track_caller]
pub(crate) fn limit_files(pid: Pid, limit: u64) -> u64 {
    set_limit(pid, libc::RLIMIT_NOFILE, limit)
}

/// Lets the process `pid` make no file longer than this. Returns how long it was let until now.
#[track_caller]
pub(crate) fn limit_file_size(pid: Pid, limit: u64) -> u64 {
    set_limit(pid, libc::RLIMIT_FSIZE, limit)
}

/// Gives a process another soft limit. Returns the one before.
#[track_caller]
fn set_limit(pid: Pid, resource: libc::__rlimit_resource_t, limit: u64) -> u64 {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: no new limit is given, and `before` is writable.
    let told = unsafe { libc::prlimit(pid.as_raw(), resource, ptr::null(), &raw mut before) };
    Errno::result(told).expect("the limit of a process of ours");
    let after = libc::rlimit { rlim_cur: limit, ..before };
    // SAFETY: `after` is readable, and the old limit is not asked for.
    let set = unsafe { libc::prlimit(pid.as_raw(), resource, &raw const after, ptr::null_mut()) };
    Errno::result(set).expect("a limit no higher than it may be");
    before.rlim_cur
}

/// A mapping of a file, unmapped when dropped. Its bytes are read and written by copies, because other processes
/// may change them at any time.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: *mut libc::c_void,
    length: usize,
}

// SAFETY: the mapping is process-wide memory that only `self` unmaps; its bytes are touched by volatile-like copies
// through raw pointers, never by references.
unsafe impl Send for Mapping {}

impl Mapping {
    /// mmap(2) of the first `length` bytes with this protection and these flags.
    pub(crate) fn new(
        file: &impl AsRawFd,
        length: usize,
        protection: i32,
        flags: i32,
    ) -> Result<Self, Errno> {
        // SAFETY: a fresh mapping at an address of the kernel's choice; nothing else refers to it.
        let address = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(Self { address, length }) }
    }

    /// A shared mapping for reading.
    pub(crate) fn shared(file: &impl AsRawFd, length: usize) -> Result<Self, Errno> {
        Self::new(file, length, libc::PROT_READ, libc::MAP_SHARED)
    }

    /// A shared mapping for reading and writing.
    pub(crate) fn shared_writable(file: &impl AsRawFd, length: usize) -> Result<Self, Errno> {
        Self::new(file, length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)
    }

    /// A private mapping, as safetensors makes it: writable copies of what the file holds.
    pub(crate) fn private(file: &impl AsRawFd, length: usize) -> Result<Self, Errno> {
        Self::new(file, length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE)
    }

    /// Copies the bytes of a range out of the mapping.
    pub(crate) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length, "the range is inside the mapping");
        let mut bytes = vec![0_u8; length];
        // SAFETY: the range lies in the live mapping (asserted) and `bytes` is fresh memory of that length.
        unsafe {
            ptr::copy_nonoverlapping(self.address.cast::<u8>().add(offset), bytes.as_mut_ptr(), length)
        };
        bytes
    }

    /// All bytes of the mapping.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.read(0, self.length)
    }

    /// Copies `bytes` into the mapping, which was made writable.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length, "the range is inside the mapping");
        // SAFETY: the range lies in the live writable mapping (asserted); `bytes` cannot overlap memory of our own.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.address.cast::<u8>().add(offset), bytes.len());
        }
    }

    /// mprotect(2) of the whole mapping.
    pub(crate) fn protect(&self, protection: i32) -> Result<(), Errno> {
        // SAFETY: the range is exactly the live mapping, to which no reference exists.
        Errno::result(unsafe { libc::mprotect(self.address, self.length, protection) }).map(drop)
    }

    /// msync(2) of the whole mapping.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        // SAFETY: the range is exactly the live mapping.
        Errno::result(unsafe { libc::msync(self.address, self.length, libc::MS_SYNC) }).map(drop)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the mapping made by `new`, which nobody uses after this.
        unsafe { libc::munmap(self.address, self.length) };
    }
}

/// Memory aligned to a page, as O_DIRECT asks for it.
#[derive(Debug)]
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// `length` zero bytes.
    pub(crate) fn zeroed(length: usize) -> Self {
        let memory = vec![0_u8; length + 4096];
        let start = memory.as_ptr().align_offset(4096);
        Self { memory, start, length }
    }

    /// A copy of `bytes`.
    pub(crate) fn from(bytes: &[u8]) -> Self {
        let mut aligned = Self::zeroed(bytes.len());
        aligned.as_mut().copy_from_slice(bytes);
        aligned
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }
}

impl AsMut<[u8]> for Aligned {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

/// The names of a directory by raw getdents64 with a buffer of `buffer_bytes`, in the order of the kernel and with
/// `.` and `..`.
pub(crate) fn raw_names(directory: &OwnedFd, buffer_bytes: usize) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    while let Some(batch) = raw_batch(directory, buffer_bytes)? {
        names.extend(batch.into_iter().map(|entry| entry.name));
    }
    Ok(names)
}

/// One entry of a directory as getdents64 gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawEntry {
    /// Inode number.
    pub(crate) inode: u64,
    /// The position after this entry, for lseek.
    pub(crate) cookie: i64,
    /// `DT_REG`, `DT_DIR`, ...
    pub(crate) kind: u8,
    /// Its name.
    pub(crate) name: Vec<u8>,
}

/// The next entries that fit a buffer of `buffer_bytes`; `None` at the end of the directory.
pub(crate) fn raw_batch(directory: &OwnedFd, buffer_bytes: usize) -> Result<Option<Vec<RawEntry>>, Errno> {
    let mut buffer = vec![0_u8; buffer_bytes];
    // SAFETY: the buffer is writable for the length that is passed.
    let length = unsafe {
        libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), buffer.as_mut_ptr(), buffer.len())
    };
    let length = usize::try_from(Errno::result(length)?).expect("a length is not negative");
    if length == 0 {
        return Ok(None);
    }
    // Layout of struct linux_dirent64: ino u64, off i64, reclen u16, type u8, name NUL-terminated.
    let (mut entries, mut rest) = (Vec::new(), &buffer[..length]);
    while !rest.is_empty() {
        let record = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
        let name = CStr::from_bytes_until_nul(&rest[19..record]).expect("a name ends with NUL").to_bytes();
        entries.push(RawEntry {
            inode: u64::from_ne_bytes(rest[..8].try_into().expect("eight bytes")),
            cookie: i64::from_ne_bytes(rest[8..16].try_into().expect("eight bytes")),
            kind: rest[18],
            name: name.to_vec(),
        });
        rest = &rest[record..];
    }
    Ok(Some(entries))
}

/// The names in a directory, sorted, without `.` and `..`.
pub(crate) fn sorted_names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a readable directory");
    let mut names: Vec<String> = entries
        .map(|entry| OsStr::to_string_lossy(&entry.expect("a readable entry").file_name()).into_owned())
        .collect();
    names.sort();
    names
}
