//! Directories, piece by piece.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus, Request};

use super::{Dispatcher, caller, fail};
use crate::datapath::{Error, Listed};
use crate::fuse::attributes::{file_attr, ino, kind_of};
use crate::fuse::control_files::ControlFiles;
use crate::fuse::fast_files;
use crate::namespace::Cookie;

/// Directory positions of `.` and `..`; entries come after.
const POSITION_SELF: u64 = 1;
const POSITION_PARENT: u64 = 2;

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
