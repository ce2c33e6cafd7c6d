//! The one table from errors to the kernel's numbers. `docs/SEMANTICS.md` § Errors shows the same.

use fuser::Errno;

use crate::datapath::Error;

/// The number that the caller's system call fails with.
pub(super) fn errno(error: &Error) -> Errno {
    match error {
        Error::NoObject => Errno::ENOENT,           // a miss: the caller recomputes
        Error::Stale => Errno::ESTALE, // the kernel looks the name up again, once: programs seldom see it
        Error::Exists => Errno::EEXIST, // the name is taken, be it by a hidden file
        Error::NotDirectory => Errno::ENOTDIR, // a directory was needed
        Error::IsDirectory => Errno::EISDIR, // a file was needed
        Error::NotEmpty => Errno::ENOTEMPTY, // the directory has entries, be they hidden
        Error::NameTooLong => Errno::ENAMETOOLONG, // more than 255 bytes
        Error::TooDeep => Errno::ENAMETOOLONG, // more levels than a path can name
        Error::Invalid(_) => Errno::EINVAL, // an argument means nothing
        Error::Unsupported(_) => Errno::EOPNOTSUPP, // the cache does not do this
        Error::NotPermitted(_) => Errno::EPERM, // the cache never allows this
        Error::Denied => Errno::EACCES, // owner, group and mode of a hidden file do not allow it
        Error::OverQuota { .. } => Errno::EDQUOT, // the directory's quota is full of open or pinned objects
        Error::NothingEvictable { .. } => Errno::ENOSPC, // everything left is open, pinned or within a floor
        Error::ScratchFull(_) => Errno::ENOSPC, // the disk of slot files, or its share, is full
        Error::AttributesFull => Errno::ENOSPC, // one file has as many attributes as it may
        Error::TooLarge { .. } => Errno::EFBIG, // larger than the cache can ever hold
        Error::TooLong => Errno::EFBIG, // longer than a file of the scratch disk, or of the daemon, can be
        Error::OtherPlace => Errno::from_i32(libc::EXDEV), // a directory of a cluster is renamed
        Error::NotAgreed => Errno::from_i32(libc::ETIMEDOUT), // the coordinator is away: policy, owner and mode of directories cannot change
        Error::AgreementsFull => Errno::ENOSPC, // as many directories of a cluster have a policy, owner or mode as may
        Error::Unanswered => Errno::EBUSY, // a host that may hold something in the directory does not answer
        Error::Overloaded => Errno::EAGAIN, // too many requests wait for a thread that may wait
        Error::NoAttribute => Errno::from_i32(libc::ENODATA), // the attribute is not set
        Error::BadHandle => Errno::EBADF,  // not an open handle
        Error::Io { .. } => Errno::EIO,    // the operating system refused; the log says what
    }
}
