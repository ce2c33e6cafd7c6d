//! Limits of the process that a daemon starts with and has no use for: raised as far as it may, and told of where it may not.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal};
use tidefs_engine::types::ByteCount;

/// Raises them. Called once, before there are files.
pub(super) fn raise() {
    raise_descriptors();
    outlive_long_files();
    raise_file_size();
}

/// One descriptor per open file: as many as the system allows.
fn raise_descriptors() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(soft, hard, %error, "the limit of open files could not be raised");
    }
}

/// What would make a file longer than the limit fails, and does not end the daemon: the signal that comes with it does nothing.
/// It is not ignored, which programs that are started from here would inherit.
fn outlive_long_files() {
    let action = SigAction::new(SigHandler::Handler(pass_by), SaFlags::SA_RESTART, SigSet::empty());
    if let Err(error) = crate::ffi::install(Signal::SIGXFSZ, &action) {
        tracing::warn!(%error, "a limit on the length of files (`ulimit -f`) ends the daemon when it is met");
    }
}

extern "C" fn pass_by(_signal: i32) {}

/// Files as long as the system allows: what clients write, and the disks of the tier, are files of this process.
fn raise_file_size() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_FSIZE) else { return };
    if soft == RLIM_INFINITY {
        return;
    }
    let raise = |limit| setrlimit(Resource::RLIMIT_FSIZE, limit, limit).map(|()| limit);
    // Root may raise the hard limit, too.
    let limit = raise(RLIM_INFINITY).or_else(|_| raise(hard)).unwrap_or(soft);
    if limit != RLIM_INFINITY {
        tracing::warn!(
            limit = %ByteCount(limit),
            "the daemon may make no file longer than this: longer ones are refused (EFBIG), and a disk of the SSD tier holds no \
             more; start it with `ulimit -f unlimited`, in its unit LimitFSIZE=infinity"
        );
    }
}
