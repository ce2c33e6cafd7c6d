//! What can go wrong. That something is not in the cache is no error.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use tidefs_control_api::ioctl::Status;

/// Characters of a key that a message shows.
const SHOWN_MAX: usize = 255;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system or the daemon refused.
    #[error("{operation}{}: {source}{}", Of(path.as_deref()), advice(source))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The file of the object that it was tried with, if it was one object.
        path: Option<PathBuf>,
        /// What was said.
        #[source]
        source: io::Error,
    },
    /// A key that no file can have: empty, with a NUL, or with `.` or `..` in it.
    #[error(
        "{key:?} is no key: a key is a path below the cache without `.`, `..`, empty parts and zero bytes"
    )]
    BadKey {
        /// The key, or how it begins.
        key: String,
    },
    /// More bytes than the object was created for.
    #[error("{length} bytes do not fit into {}, which was created for {size}", path.display())]
    TooLong {
        /// The file of the object.
        path: PathBuf,
        /// How many.
        length: usize,
        /// How many fit.
        size: usize,
    },
    /// Bytes that were made ready, which stay as they are.
    #[error("bytes {start} to {end} of {} were made ready, and are not written again", path.display())]
    Ready {
        /// The file of the object.
        path: PathBuf,
        /// Where those begin.
        start: usize,
        /// Where they end.
        end: usize,
    },
    /// The daemon's answer makes no sense.
    #[error("the answer of the daemon is shorter than it says, or of another version")]
    BadReply,
    /// A GPU cannot be used.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] crate::CudaError),
}

impl Error {
    /// Of what has to do with no object, or with many.
    pub(crate) fn io(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, path: None, source }
    }

    /// Of the object whose file is at `path`.
    pub(crate) fn at(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, path: Some(path.to_owned()), source }
    }

    pub(crate) fn of(operation: &'static str, path: &Path, status: Status) -> Self {
        Self::at(operation, path)(Self::number(status))
    }

    /// What a status that is a failure comes to, as the file calls would say it.
    pub(crate) fn number(status: Status) -> io::Error {
        io::Error::from_raw_os_error(match status {
            Status::Denied => libc::EACCES,
            Status::NoRoom => libc::ENOSPC,
            Status::OverQuota => libc::EDQUOT,
            Status::Absent => libc::ENOENT,
            Status::TooMany => libc::EMFILE,
            Status::Invalid => libc::EINVAL,
            _ => libc::EIO,
        })
    }

    /// No file has a key that is longer than a request.
    pub(crate) fn too_long_for_a_request() -> Self {
        Self::io("a request of the fast path")(io::Error::from_raw_os_error(libc::ENAMETOOLONG))
    }

    pub(crate) fn bad_key(key: &[u8]) -> Self {
        Self::BadKey { key: String::from_utf8_lossy(key).chars().take(SHOWN_MAX).collect() }
    }

    /// What was said, to be told of one object more.
    pub(crate) fn to_io(&self) -> io::Error {
        let number = match self {
            Self::Io { source, .. } => source.raw_os_error(),
            _ => Some(self.errno()),
        };
        number.map_or_else(|| io::Error::other(self.to_string()), io::Error::from_raw_os_error)
    }

    /// The number of the operating system, for callers that speak in those.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::BadKey { .. } | Self::TooLong { .. } | Self::Ready { .. } => libc::EINVAL,
            Self::BadReply => libc::EPROTO,
            #[cfg(feature = "cuda")]
            Self::Cuda(crate::CudaError::NoDriver | crate::CudaError::NoSymbol { .. }) => libc::ENOSYS,
            #[cfg(feature = "cuda")]
            Self::Cuda(crate::CudaError::Refused { .. }) => libc::ENODEV,
        }
    }
}

/// Which object an operation was for, in a message.
struct Of<'p>(Option<&'p Path>);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |path| write!(f, " at {}", path.display()))
    }
}

/// What there is to do about it, behind what the operating system says.
fn advice(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOSPC) => "; release views and writers, unpin objects, or give the cache more memory",
        Some(libc::EDQUOT) => {
            "; release views and writers, unpin objects, or raise the quota of its directory"
        }
        Some(libc::EMFILE) => "; seal or drop writers, release views, or raise the limit of open files",
        Some(libc::EACCES | libc::EPERM) => {
            "; see the owner and the mode of it and of the directories above it"
        }
        Some(libc::ENOTCONN | libc::ECONNABORTED) => "; try again once the daemon serves the mount again",
        Some(libc::ENAMETOOLONG) => {
            "; the path of a key's file has up to 4095 bytes, and 255 between two slashes"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_object_and_says_what_to_do() {
        let error = Error::of("create an object", Path::new("/mnt/kv/a"), Status::NoRoom);
        let message = error.to_string();
        assert!(message.starts_with("create an object at /mnt/kv/a: "), "{message}");
        assert!(
            message.ends_with("; release views and writers, unpin objects, or give the cache more memory")
        );
        assert_eq!(error.errno(), libc::ENOSPC);
        let long = Error::bad_key(&[b'x'; 100_000]).to_string();
        assert!(long.starts_with("\"xxx") && long.len() < 1000, "{long}");
    }
}
