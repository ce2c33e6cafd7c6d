//! Extended attributes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{Errno, INodeNo, ReplyEmpty, ReplyXattr, Request};

use super::{Dispatcher, fail, reply_done};
use crate::datapath::{CLOSE_WAIT, Datapath, Error, Presence};
use crate::fuse::attributes::ino;
use crate::fuse::control_files::ControlFiles;

const CHECKSUM: &[u8] = b"user.tidefs.checksum";

/// Answers with a value, its size when that is asked for, or ERANGE when it does not fit.
fn reply_value(outcome: Result<Vec<u8>, Error>, size: u32, reply: ReplyXattr) {
    match outcome {
        Ok(value) => {
            let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
            match size {
                0 => reply.size(length),
                _ if length > size => reply.error(Errno::ERANGE),
                _ => reply.data(&value),
            }
        }
        Err(error) => reply.error(fail("xattr", &error)),
    }
}

pub(in crate::fuse) fn getxattr(
    dispatcher: &Dispatcher,
    number: INodeNo,
    name: &OsStr,
    size: u32,
    reply: ReplyXattr,
) {
    if ControlFiles::owns(number) || !name.as_bytes().starts_with(b"user.") {
        return reply.error(Errno::from_i32(libc::ENODATA));
    }
    if name.as_bytes() != CHECKSUM {
        let value = dispatcher.datapath.get_attribute(ino(number), name.as_bytes());
        return reply_value(value, size, reply);
    }
    // It is of the whole object: taken off the session threads, and not before the close of who wrote it.
    let (datapath, number) = (Arc::clone(&dispatcher.datapath), ino(number));
    let name = name.to_owned();
    dispatcher.at_leisure("getxattr", reply, move |reply| {
        datapath.wait_until_closed(number, CLOSE_WAIT);
        reply_value(datapath.get_attribute(number, name.as_bytes()), size, reply);
    });
}

pub(in crate::fuse) fn listxattr(dispatcher: &Dispatcher, number: INodeNo, size: u32, reply: ReplyXattr) {
    let names = if ControlFiles::owns(number) {
        Ok(Vec::new())
    } else {
        dispatcher.datapath.list_attributes(ino(number))
    };
    reply_value(names, size, reply);
}

pub(in crate::fuse) fn setxattr(
    dispatcher: &Dispatcher,
    request: &Request,
    number: INodeNo,
    (name, value): (&OsStr, &[u8]),
    flags: i32,
    reply: ReplyEmpty,
) {
    if !may_change(dispatcher, request, number, name) {
        return reply.error(Errno::EPERM);
    }
    let only = match (flags & libc::XATTR_CREATE != 0, flags & libc::XATTR_REPLACE != 0) {
        (true, true) => Some(Presence::Neither),
        (true, false) => Some(Presence::Absent),
        (false, true) => Some(Presence::Present),
        (false, false) => None,
    };
    let datapath = Arc::clone(&dispatcher.datapath);
    let (name, value) = (name.to_owned(), value.to_vec());
    if is_of_all_below(&datapath, number, &name) {
        if datapath.is_in_cluster() {
            return agree(datapath, number, name, Some(value), only, "setxattr", reply);
        }
        return dispatcher.at_leisure("setxattr", reply, move |reply| {
            let outcome = datapath.set_attribute(ino(number), name.as_bytes(), &value, only);
            reply_done(outcome, "setxattr", reply);
        });
    }
    dispatcher.with_object(ino(number), "setxattr", reply, move |reply, _| {
        let outcome = datapath.set_attribute(ino(number), name.as_bytes(), &value, only);
        reply_done(outcome, "setxattr", reply);
    });
}

/// Whether it is a policy of a directory: a change of it goes through all that is below, and members of a cluster agree on it.
fn is_of_all_below(datapath: &Datapath, number: INodeNo, name: &OsStr) -> bool {
    Datapath::is_policy(name.as_bytes()) && datapath.is_directory(ino(number))
}

/// Sets, or removes, a policy of a directory on all members of the cluster.
fn agree(
    datapath: Arc<Datapath>,
    number: INodeNo,
    name: OsString,
    value: Option<Vec<u8>>,
    only: Option<Presence>,
    operation: &'static str,
    reply: ReplyEmpty,
) {
    let Some(runtime) = datapath.cluster().map(|side| side.runtime().clone()) else {
        // It is to be a member, and is none yet.
        return reply_done(Err(Error::NotAgreed), operation, reply);
    };
    runtime.spawn(async move {
        let asked = datapath.agree_on_attribute(ino(number), name.as_bytes(), value.as_deref(), only);
        reply_done(asked.await, operation, reply);
    });
}

/// Whether the caller may set, or remove, that attribute there.
fn may_change(dispatcher: &Dispatcher, request: &Request, number: INodeNo, name: &OsStr) -> bool {
    !ControlFiles::owns(number)
        && dispatcher.datapath.may_change_attribute(request.uid(), ino(number), name.as_bytes())
}

pub(in crate::fuse) fn removexattr(
    dispatcher: &Dispatcher,
    request: &Request,
    number: INodeNo,
    name: &OsStr,
    reply: ReplyEmpty,
) {
    if !may_change(dispatcher, request, number, name) {
        return reply.error(Errno::EPERM);
    }
    let (datapath, name) = (Arc::clone(&dispatcher.datapath), name.to_owned());
    if is_of_all_below(&datapath, number, &name) {
        if datapath.is_in_cluster() {
            return agree(datapath, number, name, None, None, "removexattr", reply);
        }
        return dispatcher.at_leisure("removexattr", reply, move |reply| {
            reply_done(datapath.remove_attribute(ino(number), name.as_bytes()), "removexattr", reply);
        });
    }
    dispatcher.with_object(ino(number), "removexattr", reply, move |reply, _| {
        reply_done(datapath.remove_attribute(ino(number), name.as_bytes()), "removexattr", reply);
    });
}
