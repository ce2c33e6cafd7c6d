//! The system calls that have no safe wrapper.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidefs_control_api::ioctl::{Command, request_number};

/// Makes a request on a control file; the reply comes into `payload`, in place of the request.
///
/// # Errors
/// What ioctl(2) says.
pub(crate) fn request(control: &File, command: Command, payload: &mut [u8]) -> io::Result<()> {
    let number = libc::Ioctl::from(request_number(command, payload.len()));
    // SAFETY: the number says that the kernel reads and writes `payload.len()` bytes at the pointer (_IOWR), which is what
    // `payload` has and nobody else touches; the descriptor lives as long as `control`.
    let outcome = unsafe { libc::ioctl(control.as_raw_fd(), number, payload.as_mut_ptr()) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Opens a file of a directory to be read, and to be written if that is asked for.
///
/// # Errors
/// What openat(2) says.
pub(crate) fn open_below(directory: &File, name: &CStr, is_writable: bool) -> io::Result<File> {
    let flags = libc::O_CLOEXEC | if is_writable { libc::O_RDWR } else { libc::O_RDONLY };
    loop {
        // SAFETY: the name ends with a NUL, and the call keeps nothing of it; the descriptor lives as long as `directory`.
        let descriptor = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags) };
        if descriptor >= 0 {
            // SAFETY: it is open, and nobody else knows it yet.
            return Ok(unsafe { File::from_raw_fd(descriptor) });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Closes a file that was written, of which it may be said only then that it found no room.
///
/// # Errors
/// What close(2) says.
pub(crate) fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is the file's, which gives it up here: nobody else uses or closes it.
    let outcome = unsafe { libc::close(file.into_raw_fd()) };
    let error = io::Error::last_os_error();
    // Closed all the same.
    if outcome == 0 || error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

/// Sets an attribute of a file.
///
/// # Errors
/// What setxattr(2) says.
pub(crate) fn set_attribute(path: &Path, name: &CStr, value: &[u8]) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: path and name end with a NUL, the value has so many bytes, and the call keeps none of them.
    let outcome =
        unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Signals that tell a thread of a fault of its own: nobody else can take them.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Calls `start` with all signals blocked but [`FAULTS`]; threads that it starts inherit that. A program that blocks a signal in its
/// own threads, to wait for it (sigwait(3), signalfd(2)), would lose it to any thread that does not.
pub(crate) fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set may be written.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: that wrote it, and does not fail on a set.
    let mut blocked = unsafe { all.assume_init() };
    for fault in FAULTS {
        // SAFETY: the set is one, and may be written.
        unsafe { libc::sigdelset(&raw mut blocked, fault) };
    }
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first set is one, and the second may be written.
    let outcome = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, before.as_mut_ptr()) };
    let started = start();
    if outcome == 0 {
        // SAFETY: the call that succeeded wrote the set, and nothing is to be written now.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    started
}

/// Forks between the process that began to count and this one, or more by some factor: see [`count_forks`].
static FORKS: AtomicU64 = AtomicU64::new(0);
/// Forks of this process and of those above it, each up to the fork that led to this one; the same holds.
static CHILDREN: AtomicU64 = AtomicU64::new(0);

/// Whether they are counted.
static ARE_COUNTED: AtomicBool = AtomicBool::new(false);

/// Has forks counted from now on, if they are not yet.
///
/// # Errors
/// What pthread_atfork(3) says.
pub(crate) fn count_forks() -> io::Result<()> {
    extern "C" fn count() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    extern "C" fn count_child() {
        CHILDREN.fetch_add(1, Ordering::Relaxed);
    }
    // No lock: another thread of the parent may have held it at a fork, and the child would wait for ever. Where two threads begin
    // together each fork counts twice, which changes nothing: of counts it is asked alone whether they are the same.
    if !ARE_COUNTED.load(Ordering::Acquire) {
        // SAFETY: in the child of a program with threads the handler does one atomic addition, which is async-signal-safe, and so
        // does the one before the fork; the C library forgets both when this code is unloaded.
        let outcome = unsafe { libc::pthread_atfork(Some(count_child), None, Some(count)) };
        if outcome != 0 {
            return Err(io::Error::from_raw_os_error(outcome));
        }
        ARE_COUNTED.store(true, Ordering::Release);
    }
    Ok(())
}

/// Forks that were counted: as many as in another process, if that is this one.
pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Forks that were begun: as many as before, if this process had no child since.
pub(crate) fn children() -> u64 {
    CHILDREN.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_started_with_signals_blocked_takes_none_but_of_its_own_faults() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            u64::from_str_radix(mask.trim(), 16).unwrap()
        };
        let before = blocked();
        let inherited = with_signals_blocked(|| std::thread::spawn(blocked)).join().unwrap();
        let is_blocked = |signal: libc::c_int| inherited & (1 << (signal - 1)) != 0;
        assert!([libc::SIGTERM, libc::SIGINT, libc::SIGALRM, libc::SIGUSR1].into_iter().all(is_blocked));
        assert!(!FAULTS.into_iter().any(is_blocked), "{inherited:x}");
        assert_eq!(blocked(), before, "who started it takes what it took");
    }

    #[test]
    fn a_child_waits_for_no_thread_of_its_parent_that_opens_a_cache() {
        // As of a fork while another thread is in its first `count_forks`.
        ARE_COUNTED.store(false, Ordering::Release);
        // SAFETY: the child does what the C library does under its own locks, which a fork leaves free; should it wait all the same, a
        // signal ends it.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it takes a number.
            unsafe { libc::alarm(20) };
            let status = i32::from(count_forks().is_err());
            // SAFETY: it takes a number.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: the status may be written.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
    }

    #[test]
    fn a_child_knows_that_it_is_one() {
        count_forks().unwrap();
        // As two threads do that begin together.
        ARE_COUNTED.store(false, Ordering::Release);
        count_forks().unwrap();
        let (before, had) = (forks(), children());
        // SAFETY: the child ends at once, by an async-signal-safe call.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = i32::from(forks() != before);
            // SAFETY: it takes a number.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: the status may be written.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 1));
        assert_eq!(forks(), before);
        assert_ne!(children(), had, "its parent knows that it has one");
    }
}
