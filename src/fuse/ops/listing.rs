//! Directories, piece by piece.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Errno, FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus, Request};

use super::{Dispatcher, caller, fail};
use crate::datapath::{Error, Listed};
use crate::fuse::attributes::{file_attr, ino, kind_of};
use crate::fuse::control_files::ControlFiles;
use crate::fuse::fast_files;
use crate::namespace::Cookie;

/// Directory positions of `.` and `..`; entries come after.
const POSITION_SELF: u64 = 1;
const POSITION_PARENT: u64 = 2;

/// Names of one page of a listing that all members take part in.
const PAGE_OF_MEMBERS: usize = 1024;

/// Lists a directory that other members may have names in, off the session threads.
fn list_with_members(
    dispatcher: &Dispatcher,
    request: &Request,
    directory: INodeNo,
    offset: u64,
    mut reply: ReplyDirectory,
) {
    let datapath = Arc::clone(&dispatcher.datapath);
    let caller = caller(request);
    let Some(runtime) = datapath.cluster().map(|side| side.runtime().clone()) else {
        return reply.error(Errno::EIO);
    };
    runtime.spawn(async move {
        let number = ino(directory);
        let from = offset.max(POSITION_PARENT);
        let listed = datapath.list_everywhere(&caller, number, from, PAGE_OF_MEMBERS).await;
        let (parent, listed) = match datapath.parent(number).and_then(|parent| Ok((parent, listed?))) {
            Ok(listed) => listed,
            Err(error) => return reply.error(fail("readdir", &error)),
        };
        let dots = [(POSITION_SELF, directory, "."), (POSITION_PARENT, INodeNo(parent.0), "..")];
        let dots = dots.into_iter().filter(|(position, ..)| *position > offset);
        let mut is_full = false;
        for (position, number, name) in dots {
            is_full = is_full || reply.add(number, position, FileType::Directory, OsStr::new(name));
        }
        for entry in listed {
            let kind = if entry.is_directory { FileType::Directory } else { FileType::RegularFile };
            // The number that it will have is not known before it is looked up; the kernel wants any but zero.
            let number = INodeNo(entry.cookie);
            is_full = is_full || reply.add(number, entry.cookie, kind, OsStr::from_bytes(&entry.name));
        }
        reply.ok();
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
    if directory == fast_files::SEGMENTS {
        return Ok(()); // reached by number
    }
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
        return list_with_members(dispatcher, request, number, offset, reply);
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
