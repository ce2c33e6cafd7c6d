//! What can go wrong. That something is not in the cache is no error.

use std::io;

use tidefs_control_api::ioctl::Status;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system or the daemon refused.
    #[error("{operation}: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// What was said.
        #[source]
        source: io::Error,
    },
    /// A key that no file can have: empty, with a NUL, or with `.` or `..` in it.
    #[error("a key must be a path below the cache without `.`, `..`, empty parts and zero bytes")]
    BadKey,
    /// More bytes than the object was created for.
    #[error("{length} bytes do not fit into an object created for {size}")]
    TooLong {
        /// How many.
        length: usize,
        /// How many fit.
        size: usize,
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
    pub(crate) fn io(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, source }
    }

    /// What a status that is a failure comes to, as the file calls would say it.
    pub(crate) fn of(operation: &'static str, status: Status) -> Self {
        let number = match status {
            Status::Denied => libc::EACCES,
            Status::NoRoom => libc::ENOSPC,
            Status::OverQuota => libc::EDQUOT,
            Status::Absent => libc::ENOENT,
            Status::TooMany => libc::EMFILE,
            Status::Invalid => libc::EINVAL,
            _ => libc::EIO,
        };
        Self::Io { operation, source: io::Error::from_raw_os_error(number) }
    }

    /// The number of the operating system, for callers that speak in those.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::BadKey | Self::TooLong { .. } => libc::EINVAL,
            Self::BadReply => libc::EPROTO,
            #[cfg(feature = "cuda")]
            Self::Cuda(crate::CudaError::NoDriver | crate::CudaError::NoSymbol { .. }) => libc::ENOSYS,
            #[cfg(feature = "cuda")]
            Self::Cuda(crate::CudaError::Refused { .. }) => libc::ENODEV,
        }
    }
}
