//! The system calls that have no safe wrapper.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

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
