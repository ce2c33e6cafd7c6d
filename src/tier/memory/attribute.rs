//! Extended attributes of segment files: the one place where the tier calls what no wrapper here offers.
//!
//! One attribute per file holds its record. `user.` attributes work on tmpfs since Linux 6.6; `trusted.` ones
//! work before, for a daemon with `CAP_SYS_ADMIN`. Which one is used is probed once, when the tier opens.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::record::RECORD_BYTES_MAX;

/// Names of the attribute, the preferred one first.
const NAMES: [&CStr; 2] = [c"user.tidefs.record", c"trusted.tidefs.record"];

/// The attribute that holds records on one tmpfs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attribute {
    name: &'static CStr,
}

impl Attribute {
    /// Finds the first name that `file`, a throw-away file on the tmpfs, accepts.
    ///
    /// # Errors
    /// What the kernel said to the last name when it accepts none.
    pub(super) fn probe(file: &File) -> io::Result<Self> {
        let mut refusal = io::Error::from(io::ErrorKind::Unsupported);
        for name in NAMES {
            let attribute = Self { name };
            match attribute.set(file, b"probe") {
                Ok(()) => return Ok(attribute),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    /// The name as text.
    pub(super) fn name(self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    /// Sets the attribute, replacing an earlier value in one step.
    pub(super) fn set(self, file: &File, value: &[u8]) -> io::Result<()> {
        // SAFETY: the name is NUL-terminated and static; `value` is valid for its length during the call, which
        // only reads it. "The value pointed to by value is size bytes long" (fsetxattr(2)).
        let status = unsafe {
            libc::fsetxattr(file.as_raw_fd(), self.name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
        };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Removes the attribute; that it was not there is fine.
    pub(super) fn remove(self, file: &File) -> io::Result<()> {
        // SAFETY: the name is NUL-terminated and static.
        let status = unsafe { libc::fremovexattr(file.as_raw_fd(), self.name.as_ptr()) };
        removed(status)
    }

    /// The same of the file at `path`, without opening it.
    pub(super) fn remove_at(self, path: &CStr) -> io::Result<()> {
        // SAFETY: both strings are NUL-terminated and outlive the call.
        let status = unsafe { libc::lremovexattr(path.as_ptr(), self.name.as_ptr()) };
        removed(status)
    }

    /// Reads the attribute of an open file; `None` when it has none.
    pub(super) fn get(self, file: &File) -> io::Result<Option<AttributeValue>> {
        let mut value = AttributeValue::default();
        // SAFETY: the name is NUL-terminated and static; `value.bytes` is writable for the length that is passed.
        let length = unsafe {
            libc::fgetxattr(
                file.as_raw_fd(),
                self.name.as_ptr(),
                value.bytes.as_mut_ptr().cast(),
                value.bytes.len(),
            )
        };
        value.filled(length)
    }

    /// Reads the attribute of the file at `path`, without opening it; `None` when it has none.
    pub(super) fn get_at(self, path: &CStr) -> io::Result<Option<AttributeValue>> {
        let mut value = AttributeValue::default();
        // SAFETY: both strings are NUL-terminated and outlive the call; `value.bytes` is writable for the length
        // that is passed.
        let length = unsafe {
            libc::lgetxattr(
                path.as_ptr(),
                self.name.as_ptr(),
                value.bytes.as_mut_ptr().cast(),
                value.bytes.len(),
            )
        };
        value.filled(length)
    }
}

/// Takes the result of a removexattr call.
fn removed(status: libc::c_int) -> io::Result<()> {
    if status == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENODATA) => Ok(()),
        error => Err(error),
    }
}

/// A value read, in place, so that listing 100,000 files allocates nothing per file here.
#[derive(Debug)]
pub(super) struct AttributeValue {
    bytes: [u8; RECORD_BYTES_MAX],
    length: usize,
}

impl Default for AttributeValue {
    fn default() -> Self {
        Self { bytes: [0; RECORD_BYTES_MAX], length: 0 }
    }
}

impl AttributeValue {
    /// The bytes of the value.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Takes the result of a getxattr call. A value longer than any record is `ERANGE`.
    fn filled(mut self, length: isize) -> io::Result<Option<Self>> {
        match usize::try_from(length) {
            Ok(length) => {
                self.length = length;
                Ok(Some(self))
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ENODATA) => Ok(None),
                error => Err(error),
            },
        }
    }
}
