//! The one system call that has no safe wrapper.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

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
