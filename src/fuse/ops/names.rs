//! Names: looked up, made, moved and taken away.
//!
//! Hot path: look-up.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Errno, Generation, INodeNo, RenameFlags, ReplyEmpty, ReplyEntry, Request};

use super::{Dispatcher, caller, fail, is_reserved, reply_done};
use crate::datapath::{Caller, Datapath, Error, Lookup, News, OpenOptions, Pace, Patience, Stat};
use crate::fuse::attributes::{Lifetimes, absence, file_attr, ino};
use crate::fuse::begin::begin;
use crate::fuse::control_files::{self, ControlFiles};
use crate::fuse::dispatch::after_telling;
use crate::fuse::fast_files;
use crate::fuse::overload::Refuse;
use crate::fuse::session::pin_this_thread;
use crate::fuse::waiter::{Waiter, Waiting};
use crate::namespace::{Ino, Name};
use crate::tier::scratch::Wait;

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
            // It may be given up at any time; its attributes are those of all segments, and whoever opens it would ask for them.
            Some(attributes) => {
                reply.entry_with_ttls(&Duration::MAX, &Duration::ZERO, &attributes, Generation(0));
            }
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
    let pending = Pending {
        datapath: Arc::clone(datapath),
        lifetimes: *lifetimes,
        caller: caller(request),
        parent: ino(parent),
        name: name.as_bytes().into(),
        reply,
    };
    match pending.look(Patience::All) {
        Ok(Lookup::Long) => {
            let waiter = waiter.clone();
            dispatcher.at_leisure("lookup", pending, move |pending| {
                let outcome = pending.look(Patience::Members);
                pending.reply_or_go_on(&waiter, outcome);
            });
        }
        outcome => pending.reply_or_go_on(waiter, outcome),
    }
}

/// A look-up with its reply.
struct Pending {
    datapath: Arc<Datapath>,
    lifetimes: Lifetimes,
    caller: Caller,
    parent: Ino,
    name: Box<[u8]>,
    reply: ReplyEntry,
}

impl Refuse for Pending {
    fn refuse(self, errno: Errno) {
        self.reply.error(errno);
    }
}

impl Pending {
    fn look(&self, patience: Patience) -> Result<Lookup, Error> {
        self.datapath.lookup(&self.caller, self.parent, &self.name, patience)
    }

    /// Answers with `outcome`, or leaves the look-up to wait for what it says.
    fn reply_or_go_on(self, waiter: &Waiter, outcome: Result<Lookup, Error>) {
        match outcome {
            Ok(Lookup::Ask) => ask(waiter, self),
            Ok(Lookup::Name) => read_name(waiter, self),
            outcome => self.reply_or_wait(waiter, outcome),
        }
    }

    /// Answers with `outcome`, or leaves the look-up to wait for a writer's close.
    fn reply_or_wait(self, waiter: &Waiter, outcome: Result<Lookup, Error>) {
        match outcome {
            Ok(Lookup::Wait) => waiter.leave(Box::new(Left { pending: self, waiter: waiter.clone() })),
            outcome => reply_lookup(&self.lifetimes, outcome, self.reply),
        }
    }
}

/// A look-up that waits for a close, and may have to ask others when that brings nothing.
struct Left {
    pending: Pending,
    waiter: Waiter,
}

impl Waiting for Left {
    fn try_again(self: Box<Self>, is_late: bool) -> Option<Box<dyn Waiting>> {
        match self.pending.look(if is_late { Patience::None } else { Patience::Members }) {
            Ok(Lookup::Wait) => Some(self),
            outcome => {
                let Self { pending, waiter } = *self;
                pending.reply_or_go_on(&waiter, outcome);
                None
            }
        }
    }
}

/// Answers a look-up when the other members have said what they hold.
fn ask(waiter: &Waiter, pending: Pending) {
    let waiter = waiter.clone();
    let Some(runtime) = pending.datapath.cluster().map(|side| side.runtime().clone()) else {
        return pending.reply.error(Errno::ENOENT);
    };
    begin(&runtime, async move {
        // A name that cannot be is looked up in vain.
        let name = Name::new(&pending.name).ok().map(|name| (pending.parent, name));
        pending.datapath.ask(name.into_iter().collect()).await;
        let outcome = pending.look(Patience::Writers);
        pending.reply_or_wait(&waiter, outcome);
    });
}

/// Answers a look-up when what a disk holds under the name was read.
fn read_name(waiter: &Waiter, pending: Pending) {
    let (datapath, waiter) = (Arc::clone(&pending.datapath), waiter.clone());
    datapath.leave_job(Box::new(move |pace| {
        if pace == Pace::AtLeisure {
            pending.datapath.name_one(pending.parent, &pending.name);
        }
        let outcome = pending.look(Patience::Writers);
        pending.reply_or_wait(&waiter, outcome);
    }));
}

/// Answers a look-up.
fn reply_lookup(lifetimes: &Lifetimes, outcome: Result<Lookup, Error>, reply: ReplyEntry) {
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
        Ok(Lookup::Absent { .. } | Lookup::Wait | Lookup::Ask | Lookup::Name | Lookup::Long) => {
            reply.error(Errno::ENOENT);
        }
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
    let (datapath, lifetimes) = (Arc::clone(&dispatcher.datapath), dispatcher.lifetimes);
    let (caller, parent, name) = (caller(request), ino(parent), name.as_bytes().to_vec());
    if !datapath.is_long_to_create(parent, &name, OpenOptions::default()) {
        match datapath.make_file_within(&caller, parent, &name, mode, Wait::NotHere) {
            // Files there are to be slot files since a moment ago.
            Err(error) if datapath.is_worth_waiting(&error) => {}
            made => return reply_new_entry(&lifetimes, made, "mknod", reply),
        }
    }
    let wait = datapath.slot_file_wait();
    dispatcher.at_leisure("mknod", reply, move |reply| {
        let made = datapath.make_file_within(&caller, parent, &name, mode, wait);
        reply_new_entry(&lifetimes, made, "mknod", reply);
    });
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
    let news = match &made {
        Ok(_) => dispatcher.datapath.news_of(ino(parent), name.as_bytes()),
        Err(_) => News::default(),
    };
    let lifetimes = dispatcher.lifetimes;
    dispatcher.after_telling(news, move || reply_new_entry(&lifetimes, made, "mkdir", reply));
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
    let datapath = Arc::clone(&dispatcher.datapath);
    let news = datapath.news_of_removal(ino(parent), name.as_bytes());
    match datapath.unlink_name(&caller(request), ino(parent), name.as_bytes()) {
        Ok(left) if left.is_empty() => after_telling(&datapath, news, move || reply.ok()),
        Ok(left) => {
            let wait = datapath.slot_file_wait();
            dispatcher.datapath.leave_job(Box::new(move |pace| {
                // The name is gone either way.
                if pace == Pace::AtLeisure {
                    datapath.move_unlinked(left, wait);
                }
                after_telling(&datapath, news, move || reply.ok());
            }));
        }
        Err(error) => reply.error(fail("unlink", &error)),
    }
}

pub(in crate::fuse) fn rmdir(dispatcher: &Dispatcher, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
    if ControlFiles::owns(parent) || is_reserved(parent, name) {
        return reply.error(Errno::EPERM);
    }
    let datapath = Arc::clone(&dispatcher.datapath);
    let (parent, name) = (ino(parent), name.as_bytes().to_vec());
    if !datapath.may_hold_unnamed(parent, &name) {
        return remove_directory(datapath, parent, name, reply);
    }
    let waiting = Arc::clone(&datapath);
    datapath.leave_job(Box::new(move |pace| {
        if pace == Pace::AtLeisure {
            waiting.wait_for_names();
        }
        if waiting.may_hold_unnamed(parent, &name) {
            return reply_done(Err(Error::NotEmpty), "rmdir", reply);
        }
        remove_directory(waiting, parent, name, reply);
    }));
}

/// Removes a directory of which all names on this host are known.
fn remove_directory(datapath: Arc<Datapath>, parent: Ino, name: Vec<u8>, reply: ReplyEmpty) {
    let Some(runtime) = datapath.cluster().map(|side| side.runtime().clone()) else {
        return reply_done(datapath.remove_directory_alone(parent, &name), "rmdir", reply);
    };
    runtime.spawn(async move {
        reply_done(datapath.remove_directory_everywhere(parent, &name).await, "rmdir", reply);
    });
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
    let caller = caller(request);
    let datapath = Arc::clone(&dispatcher.datapath);
    let source = (ino(parent), name.as_bytes().to_vec());
    let target = (ino(new_parent), new_name.as_bytes().to_vec());
    // The name is part of an object's record: it is written anew once the object is in memory.
    let away = datapath.must_load_child(source.0, &source.1);
    let is_directory = datapath.is_directory_child(source.0, &source.1);
    let rest = move |reply| rename_here(&datapath, &caller, source, target, keeps, reply);
    match away {
        // What is below may be under another policy there.
        None if is_directory => dispatcher.at_leisure("rename", reply, rest),
        None => rest(reply),
        Some(away) => dispatcher.with_object(away, "rename", reply, move |reply, _| rest(reply)),
    }
}

/// Renames what is in memory, and answers when every member knows and, where that is asked for, the disk has it.
fn rename_here(
    datapath: &Arc<Datapath>,
    caller: &Caller,
    source: (Ino, Vec<u8>),
    target: (Ino, Vec<u8>),
    keeps: bool,
    reply: ReplyEmpty,
) {
    let renamed = datapath.rename_for_members(caller, (source.0, &source.1), (target.0, &target.1), keeps);
    let left = match renamed {
        Ok(left) => left,
        Err(error) => return reply.error(fail("rename", &error)),
    };
    let news = datapath.news_of(target.0, &target.1).and(left);
    match datapath.must_persist_child(target.0, &target.1) {
        None => after_telling(datapath, news, move || reply.ok()),
        Some(number) => {
            let (waiting, end) = (Arc::clone(datapath), datapath.end_of_persist());
            datapath.leave_durable_job(Box::new(move |pace| {
                waiting.persist_named(number, end, pace);
                after_telling(&waiting, news, move || reply.ok());
            }));
        }
    }
}
