//! What each request of the kernel comes to: decode, call the datapath, reply. One file for each group of requests;
//! `dispatch` holds the trait of the session loop and calls these.

pub(super) mod attributes;
pub(super) mod io;
pub(super) mod listing;
pub(super) mod names;
pub(super) mod open;
pub(super) mod xattrs;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, INodeNo, ReplyEmpty, Request};

use super::control_files;
use super::dispatch::Dispatcher;
use super::errno::errno;
use crate::datapath::{Caller, Error};
use crate::namespace::ThreadId;

pub(super) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), thread: ThreadId(request.pid()) }
}

/// Whether a name belongs to the control files.
fn is_reserved(parent: INodeNo, name: &OsStr) -> bool {
    parent == INodeNo::ROOT && name.as_bytes() == control_files::DIRECTORY
}

/// The kernel's number for an error, which is logged here, where it is handled.
pub(super) fn fail(operation: &'static str, error: &Error) -> Errno {
    match error {
        Error::Io { .. } => tracing::error!(operation, %error, "a request failed"),
        Error::NothingEvictable { .. }
        | Error::ScratchFull(_)
        | Error::OverQuota { .. }
        | Error::TooLarge { .. } => {
            tracing::warn!(operation, %error, "a request was refused");
        }
        _ => tracing::debug!(operation, %error, "a request was answered with an error"),
    }
    errno(error)
}

/// Answers a request that has no other result than whether it was done.
fn reply_done(outcome: Result<(), Error>, operation: &'static str, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(fail(operation, &error)),
    }
}
