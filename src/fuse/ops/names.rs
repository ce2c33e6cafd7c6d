//! Names: looked up, made, moved and taken away.
//!
//! Hot path: look-up.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Errno, Generation, INodeNo, RenameFlags, ReplyEmpty, ReplyEntry, Request};

use super::{Dispatcher, caller, fail, is_reserved, reply_done};
use crate::datapath::{Error, Lookup, Stat};
use crate::fuse::attributes::{Lifetimes, absence, file_attr, ino};
use crate::fuse::control_files::{self, ControlFiles};
use crate::fuse::fast_files;
use crate::fuse::session::pin_this_thread;
use crate::fuse::waiter::Waiting;

pub(in crate::fuse) fn lookup(
    dispatcher: &Dispatcher,
    request: &Request,
    parent: INodeNo,
    name: &OsStr,
    reply: ReplyEntry,
) {
    pin_this_thread();
    let Dispatcher { control, datapath, lifetimes, waiter, .. } = dispatcher;
    if parent == fast_files::SEGMENTS {
        let number = fast_files::segment(name.as_bytes());
        let found = number.and_then(|number| fast_files::segment_attributes(control, datapath, number));
        return match found {
            // Its length changes with the object that it holds.
            Some(attributes) => reply.entry(&Duration::ZERO, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        };
    }
    if ControlFiles::owns(parent) {
        return match control.child(name.as_bytes()) {
            Some(number) => reply.entry(&Duration::MAX, &control.attributes(number), Generation(0)),
            None => reply.error(Errno::ENOENT),
        };
    }
    if parent == INodeNo::ROOT && name.as_bytes() == control_files::DIRECTORY {
        let attributes = control.attributes(ControlFiles::directory());
        return reply.entry(&lifetimes.settled, &attributes, Generation(0));
    }
    let caller = caller(request);
    match datapath.lookup(&caller, ino(parent), name.as_bytes(), true) {
        Ok(Lookup::Wait) => {
            let waiting = Waiting { caller, parent: ino(parent), name: name.as_bytes().into(), reply };
            if let Err(refused) = waiter.leave(waiting) {
                let outcome = datapath.lookup(&caller, refused.parent, &refused.name, false);
                reply_lookup(lifetimes, outcome, refused.reply);
            }
        }
        outcome => reply_lookup(lifetimes, outcome, reply),
    }
}

/// Answers a look-up.
pub(in crate::fuse) fn reply_lookup(
    lifetimes: &Lifetimes,
    outcome: Result<Lookup, Error>,
    reply: ReplyEntry,
) {
    match outcome {
        Ok(Lookup::Found { stat, cacheable }) => reply.entry_with_ttls(
            &lifetimes.attributes(&stat),
            &lifetimes.entry(cacheable),
            &file_attr(&stat),
            Generation(0),
        ),
        Ok(Lookup::Absent { cacheable: true }) if !lifetimes.absent.is_zero() => {
            reply.entry(&lifetimes.absent, &absence(), Generation(0));
        }
        Ok(Lookup::Absent { .. } | Lookup::Wait) => reply.error(Errno::ENOENT),
        Err(error) => reply.error(fail("lookup", &error)),
    }
}

fn reply_new_entry(
    lifetimes: &Lifetimes,
    outcome: Result<Stat, Error>,
    operation: &'static str,
    reply: ReplyEntry,
) {
    match outcome {
        Ok(stat) => reply.entry_with_ttls(
            &lifetimes.attributes(&stat),
            &lifetimes.entry(stat.is_settled),
            &file_attr(&stat),
            Generation(0),
        ),
        Err(error) => reply.error(fail(operation, &error)),
    }
}

/// `mode`: type and permissions, the umask taken off.
pub(in crate::fuse) fn mknod(
    dispatcher: &Dispatcher,
    request: &Request,
    parent: INodeNo,
    name: &OsStr,
    mode: u32,
    reply: ReplyEntry,
) {
    if ControlFiles::owns(parent) || mode & libc::S_IFMT != libc::S_IFREG {
        return reply.error(Errno::EPERM);
    }
    let made = dispatcher.datapath.make_file(&caller(request), ino(parent), name.as_bytes(), mode);
    reply_new_entry(&dispatcher.lifetimes, made, "mknod", reply);
}

/// `mode`: permissions, the umask taken off.
pub(in crate::fuse) fn mkdir(
    dispatcher: &Dispatcher,
    request: &Request,
    parent: INodeNo,
    name: &OsStr,
    mode: u32,
    reply: ReplyEntry,
) {
    if ControlFiles::owns(parent) || is_reserved(parent, name) {
        return reply.error(if is_reserved(parent, name) { Errno::EEXIST } else { Errno::EPERM });
    }
    let made = dispatcher.datapath.make_directory(&caller(request), ino(parent), name.as_bytes(), mode);
    reply_new_entry(&dispatcher.lifetimes, made, "mkdir", reply);
}

pub(in crate::fuse) fn unlink(
    dispatcher: &Dispatcher,
    request: &Request,
    parent: INodeNo,
    name: &OsStr,
    reply: ReplyEmpty,
) {
    if ControlFiles::owns(parent) {
        return reply.error(Errno::EPERM);
    }
    let outcome = dispatcher.datapath.unlink(&caller(request), ino(parent), name.as_bytes());
    reply_done(outcome, "unlink", reply);
}

pub(in crate::fuse) fn rmdir(dispatcher: &Dispatcher, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
    if ControlFiles::owns(parent) || is_reserved(parent, name) {
        return reply.error(Errno::EPERM);
    }
    reply_done(dispatcher.datapath.remove_directory(ino(parent), name.as_bytes()), "rmdir", reply);
}

pub(in crate::fuse) fn rename(
    dispatcher: &Dispatcher,
    request: &Request,
    (parent, name): (INodeNo, &OsStr),
    (new_parent, new_name): (INodeNo, &OsStr),
    flags: RenameFlags,
    reply: ReplyEmpty,
) {
    if ControlFiles::owns(parent) || ControlFiles::owns(new_parent) {
        return reply.error(Errno::EPERM);
    }
    if is_reserved(parent, name) || is_reserved(new_parent, new_name) {
        return reply.error(Errno::EPERM);
    }
    if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
        return reply.error(Errno::EINVAL);
    }
    let keeps = flags.contains(RenameFlags::RENAME_NOREPLACE);
    let (source, target) = ((ino(parent), name.as_bytes()), (ino(new_parent), new_name.as_bytes()));
    let caller = caller(request);
    let Some(away) = dispatcher.datapath.must_load_child(source.0, source.1) else {
        let outcome = dispatcher.datapath.rename(&caller, source, target, keeps);
        let durable = outcome.is_ok().then(|| dispatcher.datapath.must_persist_child(target.0, target.1));
        return match durable.flatten() {
            None => reply_done(outcome, "rename", reply),
            Some(number) => {
                let datapath = Arc::clone(&dispatcher.datapath);
                dispatcher.loader.leave(
                    number,
                    Box::new(move || {
                        // The object has its name whatever the disk says, which is counted and logged.
                        let _ = datapath.persist(number);
                        reply.ok();
                    }),
                );
            }
        };
    };
    // The name is part of an object's record: it is written anew once the object is in memory.
    let datapath = Arc::clone(&dispatcher.datapath);
    let (name, new_name) = (name.to_owned(), new_name.to_owned());
    dispatcher.with_object(away, move || {
        let source = (ino(parent), name.as_bytes());
        let target = (ino(new_parent), new_name.as_bytes());
        let outcome = datapath.rename(&caller, source, target, keeps);
        if let (Ok(()), Some(number)) = (&outcome, datapath.must_persist_child(target.0, target.1)) {
            let _ = datapath.persist(number);
        }
        reply_done(outcome, "rename", reply);
    });
}
