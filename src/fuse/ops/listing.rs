//! Directories, piece by piece.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use fuser::{FileAttr, FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus, Request};

use super::{Dispatcher, caller, fail};
use crate::datapath::{Error, Listed};
use crate::fuse::attributes::{absence, file_attr, ino, kind_of};
use crate::fuse::control_files::ControlFiles;
use crate::namespace::Cookie;

/// Directory positions of `.` and `..`; entries come after.
const POSITION_SELF: u64 = 1;
const POSITION_PARENT: u64 = 2;

/// Names of one page of a listing that all members take part in.
const PAGE_OF_MEMBERS: usize = 1024;

/// Lists a directory that other members may have names in, off the session threads. `add` gets inode number, cookie, kind
/// and name, and returns true when the reply is full; `done` ends it.
fn list_with_members<R: Send + 'static>(
    dispatcher: &Dispatcher,
    request: &Request,
    directory: INodeNo,
    offset: u64,
    mut reply: R,
    add: impl Fn(&mut R, INodeNo, u64, FileType, &OsStr) -> bool + Send + 'static,
    done: impl FnOnce(R, Result<(), Error>) + Send + 'static,
) {
    let datapath = Arc::clone(&dispatcher.datapath);
    let caller = caller(request);
    let Some(runtime) = datapath.cluster().map(|side| side.runtime().clone()) else { return };
    runtime.spawn(async move {
        let parent = match datapath.parent(ino(directory)) {
            Ok(parent) => INodeNo(parent.0),
            Err(error) => return done(reply, Err(error)),
        };
        let dots = [(POSITION_SELF, directory, "."), (POSITION_PARENT, parent, "..")];
        for (position, number, name) in dots.into_iter().filter(|(position, ..)| *position > offset) {
            if add(&mut reply, number, position, FileType::Directory, OsStr::new(name)) {
                return done(reply, Ok(()));
            }
        }
        let from = offset.max(POSITION_PARENT);
        let listed = datapath.list_everywhere(&caller, ino(directory), from, PAGE_OF_MEMBERS).await;
        let listed = match listed {
            Ok(listed) => listed,
            Err(error) => return done(reply, Err(error)),
        };
        for entry in listed {
            let kind = if entry.is_directory { FileType::Directory } else { FileType::RegularFile };
            let number = INodeNo(entry.cookie);
            if add(&mut reply, number, entry.cookie, kind, OsStr::from_bytes(&entry.name)) {
                break;
            }
        }
        done(reply, Ok(()));
    });
}

/// Lists a directory through `add`, which returns true when the reply is full.
fn list(
    dispatcher: &Dispatcher,
    request: &Request,
    directory: INodeNo,
    offset: u64,
    holds: bool,
    mut add: impl FnMut(INodeNo, u64, &OsStr, FileType, Option<&Listed>) -> bool,
) -> Result<(), Error> {
    if ControlFiles::owns(directory) {
        let files = dispatcher.control.children().zip(1..).filter(|(_, position)| *position > offset);
        for ((number, name), position) in files {
            if add(number, position, OsStr::new(name), FileType::RegularFile, None) {
                break;
            }
        }
        return Ok(());
    }
    let parent = dispatcher.datapath.parent(ino(directory))?;
    if offset < POSITION_SELF && add(directory, POSITION_SELF, OsStr::new("."), FileType::Directory, None) {
        return Ok(());
    }
    if offset < POSITION_PARENT
        && add(INodeNo(parent.0), POSITION_PARENT, OsStr::new(".."), FileType::Directory, None)
    {
        return Ok(());
    }
    let from = Cookie(offset.max(POSITION_PARENT));
    dispatcher.datapath.list(&caller(request), ino(directory), from, holds, |entry| {
        let number = INodeNo(entry.stat.ino.0);
        let name = OsStr::from_bytes(entry.name.as_bytes());
        !add(number, entry.cookie.0, name, kind_of(entry.stat.kind), Some(entry))
    })
}

pub(in crate::fuse) fn readdir(
    dispatcher: &Dispatcher,
    request: &Request,
    number: INodeNo,
    offset: u64,
    mut reply: ReplyDirectory,
) {
    if dispatcher.datapath.cluster().is_some() && !ControlFiles::owns(number) {
        let add = |reply: &mut ReplyDirectory, child, cookie, kind, name: &OsStr| {
            reply.add(child, cookie, kind, name)
        };
        return list_with_members(
            dispatcher,
            request,
            number,
            offset,
            reply,
            add,
            |reply, listed| match listed {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(fail("readdir", &error)),
            },
        );
    }
    let listed = list(dispatcher, request, number, offset, false, |child, cookie, name, kind, _| {
        reply.add(child, cookie, kind, name)
    });
    match listed {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(fail("readdir", &error)),
    }
}

pub(in crate::fuse) fn readdirplus(
    dispatcher: &Dispatcher,
    request: &Request,
    number: INodeNo,
    offset: u64,
    mut reply: ReplyDirectoryPlus,
) {
    if dispatcher.datapath.cluster().is_some() && !ControlFiles::owns(number) {
        // No inode number in the attributes: the kernel takes the name alone, and looks it up when it is used.
        let add = |reply: &mut ReplyDirectoryPlus, child, cookie, kind, name: &OsStr| {
            let attributes = FileAttr { kind, ..absence() };
            reply.add(child, cookie, name, &Duration::ZERO, &attributes, Generation(0))
        };
        return list_with_members(
            dispatcher,
            request,
            number,
            offset,
            reply,
            add,
            |reply, listed| match listed {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(fail("readdirplus", &error)),
            },
        );
    }
    let listed = list(dispatcher, request, number, offset, true, |child, cookie, name, _, entry| {
        let (attributes, ttl) = match entry {
            Some(entry) => {
                // One lifetime serves the name and the attributes.
                let lifetimes = &dispatcher.lifetimes;
                let ttl = lifetimes.attributes(&entry.stat).min(lifetimes.entry(entry.cacheable));
                (file_attr(&entry.stat), ttl)
            }
            // The kernel takes no reference for `.` and `..`; control files have no count to keep.
            None => (dispatcher.control.attributes(child), Duration::ZERO),
        };
        reply.add(child, cookie, name, &ttl, &attributes, Generation(0))
    });
    match listed {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(fail("readdirplus", &error)),
    }
}
