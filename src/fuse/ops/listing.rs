//! Directories, piece by piece.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus, Request};

use super::{Dispatcher, caller, fail};
use crate::datapath::{Datapath, Error, Listed, Page, Paged};
use crate::fuse::attributes::{Lifetimes, file_attr, ino, kind_of};
use crate::fuse::control_files::ControlFiles;
use crate::fuse::fast_files;
use crate::fuse::waiter::Waiting;
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

/// Where the entries of a part of a directory go.
enum Reply {
    /// READDIR.
    Plain(ReplyDirectory),
    /// READDIRPLUS.
    Plus(ReplyDirectoryPlus),
}

/// A part of a directory with its reply, to which no entry was added yet.
struct Pending {
    datapath: Arc<Datapath>,
    lifetimes: Lifetimes,
    page: Page,
    reply: Reply,
}

impl Reply {
    /// Adds an entry. Returns whether it was taken.
    fn add(&mut self, lifetimes: &Lifetimes, entry: &Listed) -> bool {
        let (number, position) = (INodeNo(entry.stat.ino.0), entry.cookie.0);
        let name = OsStr::from_bytes(entry.name.as_bytes());
        !match self {
            Self::Plain(reply) => reply.add(number, position, kind_of(entry.stat.kind), name),
            Self::Plus(reply) => {
                // One lifetime serves the name and the attributes.
                let ttl = lifetimes.attributes(&entry.stat).min(lifetimes.entry(entry.cacheable));
                reply.add(number, position, name, &ttl, &file_attr(&entry.stat), Generation(0))
            }
        }
    }

    /// Adds a directory or control file that the kernel keeps no reference to. Returns whether it was taken.
    fn add_fixed(
        &mut self,
        control: &ControlFiles,
        number: INodeNo,
        position: u64,
        kind: FileType,
        name: &str,
    ) -> bool {
        let name = OsStr::new(name);
        !match self {
            Self::Plain(reply) => reply.add(number, position, kind, name),
            Self::Plus(reply) => {
                let attributes = FileAttr { kind, ..control.attributes(number) };
                reply.add(number, position, name, &Duration::ZERO, &attributes, Generation(0))
            }
        }
    }

    fn done(self, outcome: Result<(), Error>) {
        match (self, outcome) {
            (Self::Plain(reply), Ok(())) => reply.ok(),
            (Self::Plus(reply), Ok(())) => reply.ok(),
            (Self::Plain(reply), Err(error)) => reply.error(fail("readdir", &error)),
            (Self::Plus(reply), Err(error)) => reply.error(fail("readdirplus", &error)),
        }
    }
}

impl Pending {
    /// Answers, unless the first entry is a file whose close has to be waited for. Entries never wait for one behind them: the
    /// kernel would be told later what it may believe of them, and earlier that it must not.
    fn answer(mut self) -> Option<Self> {
        let mut is_empty = true;
        let listed = self.datapath.list(&self.page, |entry| {
            let is_taken = self.reply.add(&self.lifetimes, entry);
            is_empty &= !is_taken;
            is_taken
        });
        match listed {
            Ok(Paged::Wait) if is_empty => return Some(self),
            Ok(Paged::Done | Paged::Wait) => self.reply.done(Ok(())),
            Err(error) => self.reply.done(Err(error)),
        }
        None
    }
}

impl Waiting for Pending {
    fn try_again(mut self: Box<Self>, is_late: bool) -> Option<Box<dyn Waiting>> {
        self.page.asked_at_ms = self.page.asked_at_ms.filter(|_| !is_late);
        self.answer().map(|pending| Box::new(pending) as Box<dyn Waiting>)
    }
}

/// Lists a directory from `offset` on.
fn list(dispatcher: &Dispatcher, request: &Request, directory: INodeNo, offset: u64, mut reply: Reply) {
    let Dispatcher { datapath, control, lifetimes, waiter, .. } = dispatcher;
    if directory == fast_files::SEGMENTS {
        return reply.done(Ok(())); // reached by number
    }
    if ControlFiles::owns(directory) {
        for ((number, name), position) in
            control.children().zip(1..).filter(|(_, position)| *position > offset)
        {
            if !reply.add_fixed(control, number, position, FileType::RegularFile, name) {
                break;
            }
        }
        return reply.done(Ok(()));
    }
    let parent = match datapath.parent(ino(directory)) {
        Ok(parent) => INodeNo(parent.0),
        Err(error) => return reply.done(Err(error)),
    };
    let dots = [(directory, POSITION_SELF, "."), (parent, POSITION_PARENT, "..")];
    for (number, position, name) in dots.into_iter().filter(|(_, position, _)| *position > offset) {
        if !reply.add_fixed(control, number, position, FileType::Directory, name) {
            return reply.done(Ok(()));
        }
    }
    let holds = matches!(reply, Reply::Plus(_));
    let page = Page {
        caller: caller(request),
        directory: ino(directory),
        after: Cookie(offset.max(POSITION_PARENT)),
        holds,
        asked_at_ms: Some(datapath.now_ms()),
    };
    let pending = Pending { datapath: Arc::clone(datapath), lifetimes: *lifetimes, page, reply };
    if let Some(pending) = pending.answer() {
        datapath.telemetry().hidden_waits.increment();
        waiter.leave(Box::new(pending));
    }
}

pub(in crate::fuse) fn readdir(
    dispatcher: &Dispatcher,
    request: &Request,
    number: INodeNo,
    offset: u64,
    reply: ReplyDirectory,
) {
    if dispatcher.datapath.cluster().is_some() && !ControlFiles::owns(number) {
        return list_with_members(dispatcher, request, number, offset, reply);
    }
    list(dispatcher, request, number, offset, Reply::Plain(reply));
}

pub(in crate::fuse) fn readdirplus(
    dispatcher: &Dispatcher,
    request: &Request,
    number: INodeNo,
    offset: u64,
    reply: ReplyDirectoryPlus,
) {
    list(dispatcher, request, number, offset, Reply::Plus(reply));
}
