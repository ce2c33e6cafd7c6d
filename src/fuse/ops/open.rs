//! Opening and closing.
//!
//! Hot path: open, create, release.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::{
    Errno, FileHandle, FopenFlags, Generation, INodeNo, OpenAccMode, OpenFlags, ReplyCreate, ReplyEmpty,
    ReplyOpen, Request,
};

use super::{Dispatcher, caller, fail, is_reserved, reply_done};
use crate::datapath::{Caller, Datapath, Error, HandleId, Need, OpenOptions};
use crate::fuse::attributes::{Lifetimes, file_attr, ino};
use crate::fuse::control_files::ControlFiles;
use crate::fuse::fast_files;
use crate::fuse::kernel::Kernel;
use crate::fuse::overload::{at_leisure, or_refused};
use crate::fuse::passthrough;
use crate::namespace::Ino;
use crate::tier::scratch::Wait;

fn options(flags: i32) -> OpenOptions {
    let mode = OpenFlags(flags).acc_mode();
    // The kernel asks for the right to write, and believes the file empty, also where it is opened to read.
    let truncate = flags & libc::O_TRUNC != 0;
    OpenOptions {
        read: !matches!(mode, OpenAccMode::O_WRONLY),
        write: truncate || !matches!(mode, OpenAccMode::O_RDONLY),
        truncate,
        exclusive: flags & libc::O_EXCL != 0,
        cut_to: None,
        // So the kernel opens what a program asks for the flags of, by FS_IOC_GETFLAGS and the like, and looks up nothing when that
        // fails (`fuse_priv_ioctl_prepare`, fs/fuse/ioctl.c). An open(2) of 64 bits has O_LARGEFILE at least. One of a 32-bit program
        // without that, or of the kernel itself, looks the same: it may read the version that it looked up, as on a host alone.
        by_descriptor: flags == libc::O_RDONLY,
    }
}

pub(in crate::fuse) fn open(
    dispatcher: &Dispatcher,
    request: &Request,
    number: INodeNo,
    flags: OpenFlags,
    reply: ReplyOpen,
) {
    let Dispatcher { control, datapath, kernel, .. } = dispatcher;
    if ControlFiles::owns(number) {
        let handle = dispatcher.control_handles.fetch_add(1, Ordering::Relaxed);
        let write = options(flags.0).write;
        if number == fast_files::CONTROL {
            return dispatcher.fast.open_control(datapath, request, write, FileHandle(handle), reply);
        }
        if let Some(segment) = fast_files::segment_of(number) {
            let wanted = (segment, write);
            return dispatcher.fast.open_segment(datapath, request, wanted, FileHandle(handle), reply);
        }
        if write {
            return reply.error(Errno::EACCES);
        }
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH;
        return match control.open(number, handle, request.uid()) {
            Ok(()) => reply.opened(FileHandle(handle), flags),
            Err(errno) => reply.error(errno),
        };
    }
    let (caller, options) = (caller(request), options(flags.0));
    let mut reply = reply;
    let need = if options.write { Need::Whole } else { Need::Start };
    if datapath.is_long_to_open(ino(number), options) {
        let (datapath, kernel) = (Arc::clone(datapath), Arc::clone(kernel));
        return dispatcher.at_leisure("open", reply, move |reply| {
            let left = open_object(&datapath, &kernel, &caller, ino(number), options, reply);
            let Some(reply) = left else { return };
            // It left memory meanwhile.
            let waiting = Arc::clone(&datapath);
            let rest = move |is_back| {
                open_loaded(&datapath, &kernel, &caller, ino(number), options, is_back, reply);
            };
            waiting.loader().leave_for(ino(number), need, Box::new(rest));
        });
    }
    let is_readable = |number| need == Need::Start && datapath.is_arriving(number);
    if options.wants_nothing() || !datapath.must_load(ino(number)) || is_readable(ino(number)) {
        match open_object(datapath, kernel, &caller, ino(number), options, reply) {
            Some(left_again) => reply = left_again,
            None => return,
        }
    }
    if !options.write && datapath.is_faster_computed(ino(number)) {
        datapath.give_up_opening(&caller, ino(number));
        return reply.error(fail("open", &Error::NoObject));
    }
    let (datapath, kernel) = (Arc::clone(datapath), Arc::clone(kernel));
    dispatcher.with_bytes(ino(number), need, move |is_back| {
        open_loaded(&datapath, &kernel, &caller, ino(number), options, is_back, reply);
    });
}

/// Opens an object that was brought back into memory, or could not be.
fn open_loaded(
    datapath: &Datapath,
    kernel: &Kernel,
    caller: &Caller,
    number: Ino,
    options: OpenOptions,
    is_back: bool,
    reply: ReplyOpen,
) {
    let open = |reply| open_object(datapath, kernel, caller, number, options, reply);
    let Some(left_again) = open(reply) else { return };
    // While it arrives, this may be the thread that waits for it.
    let may_wait = is_back && !datapath.is_arriving(number);
    let is_back = may_wait && datapath.promote(number).is_ok();
    if let Some(reply) = if is_back { open(left_again) } else { Some(left_again) } {
        datapath.give_up_opening(caller, number);
        reply.error(fail("open", &Error::NoObject));
    }
}

/// Opens an object that was in memory a moment ago. Gives the reply back when it left memory meanwhile.
fn open_object(
    datapath: &Datapath,
    kernel: &Kernel,
    caller: &Caller,
    number: Ino,
    options: OpenOptions,
    reply: ReplyOpen,
) -> Option<ReplyOpen> {
    let opened = datapath.open(caller, number, options);
    let answered = opened.and_then(|opened| {
        passthrough::answer(datapath, kernel, &reply, &opened).map(|answer| (opened, answer))
    });
    match answered {
        Ok((opened, answer)) => {
            let handle = FileHandle(opened.handle.0);
            match answer.backing {
                Some(backing) => reply.opened_passthrough(handle, answer.flags, &backing),
                None => reply.opened(handle, answer.flags),
            }
        }
        Err(Error::NoObject) if datapath.must_load(number) => return Some(reply),
        Err(error) => reply.error(fail("open", &error)),
    }
    None
}

/// `mode`: permissions, the umask taken off.
pub(in crate::fuse) fn create(
    dispatcher: &Dispatcher,
    request: &Request,
    (parent, name): (INodeNo, &OsStr),
    mode: u32,
    flags: i32,
    reply: ReplyCreate,
) {
    if ControlFiles::owns(parent) || is_reserved(parent, name) {
        return reply.error(Errno::EPERM);
    }
    let Dispatcher { datapath, kernel, lifetimes, .. } = dispatcher;
    let is_long = datapath.is_long_to_create(ino(parent), name.as_bytes(), options(flags));
    let wanted = Wanted { caller: caller(request), parent: ino(parent), name: name.into(), mode, flags };
    let (datapath, kernel, lifetimes) = (Arc::clone(datapath), Arc::clone(kernel), *lifetimes);
    if is_long {
        let wait = datapath.slot_file_wait();
        let rest = move |reply| create_or_load(datapath, kernel, lifetimes, wanted, wait, reply);
        dispatcher.at_leisure("create", reply, rest);
    } else {
        create_or_load(datapath, kernel, lifetimes, wanted, Wait::NotHere, reply);
    }
}

/// What create(2) asks for.
struct Wanted {
    caller: Caller,
    parent: Ino,
    name: OsString,
    mode: u32,
    flags: i32,
}

/// Makes a file, or opens what stands there, when that is in memory.
fn create_or_load(
    datapath: Arc<Datapath>,
    kernel: Arc<Kernel>,
    lifetimes: Lifetimes,
    wanted: Wanted,
    wait: Wait,
    reply: ReplyCreate,
) {
    let reply = match create_file(&datapath, &kernel, lifetimes, &wanted, wait, reply) {
        Ok(()) => return,
        Err((Lacks::Bytes, reply)) => reply,
        Err((Lacks::Room, reply)) => {
            // Files there are to be slot files since a moment ago.
            let (waiting, wait) = (Arc::clone(&datapath), datapath.slot_file_wait());
            let rest = move |reply| create_or_load(datapath, kernel, lifetimes, wanted, wait, reply);
            return at_leisure(&waiting, "create", reply, rest);
        }
    };
    // Something became known under that name since the kernel looked, and is not in memory.
    let Some(number) = datapath.must_load_child(wanted.parent, wanted.name.as_bytes()) else {
        return reply.error(fail("create", &Error::NoObject));
    };
    let (waiting, wait) = (Arc::clone(&datapath), datapath.slot_file_wait());
    let rest = move |_| {
        if let Err((_, reply)) = create_file(&datapath, &kernel, lifetimes, &wanted, wait, reply) {
            reply.error(fail("create", &Error::NoObject));
        }
    };
    waiting.loader().leave(number, Box::new(rest));
    waiting.prefetch_successors(number);
}

/// What a create is to wait for.
enum Lacks {
    /// What stands there is not in memory.
    Bytes,
    /// A slot file finds no place, and others may give theirs back.
    Room,
}

/// Makes a file, or opens what stands there. Gives the reply back when that is to wait.
fn create_file(
    datapath: &Datapath,
    kernel: &Kernel,
    lifetimes: Lifetimes,
    wanted: &Wanted,
    wait: Wait,
    reply: ReplyCreate,
) -> Result<(), (Lacks, ReplyCreate)> {
    let Wanted { caller, parent, name, mode, flags } = wanted;
    let created = datapath.create_within(caller, *parent, name.as_bytes(), *mode, options(*flags), wait);
    let answered = created.and_then(|(stat, opened)| {
        let answer = passthrough::answer(datapath, kernel, &reply, &opened);
        // With an error the kernel gets no inode.
        let answer = answer.inspect_err(|_| datapath.forget(stat.ino, 1))?;
        Ok((stat, opened, answer))
    });
    match answered {
        Ok((stat, opened, answer)) => {
            let (attributes, handle) = (file_attr(&stat), FileHandle(opened.handle.0));
            // One time for the name and the attributes. Of a file that is written the kernel knows the size, and asks for
            // the other attributes that change.
            let (ttl, generation) = (lifetimes.entry(opened.is_cacheable), Generation(0));
            match answer.backing {
                Some(backing) => {
                    reply.created_passthrough(&ttl, &attributes, generation, handle, answer.flags, &backing);
                }
                None => reply.created(&ttl, &attributes, generation, handle, answer.flags),
            }
        }
        Err(Error::NoObject) => return Err((Lacks::Bytes, reply)),
        Err(error) if wait == Wait::NotHere && datapath.is_worth_waiting(&error) => {
            return Err((Lacks::Room, reply));
        }
        Err(error) => reply.error(fail("create", &error)),
    }
    Ok(())
}

pub(in crate::fuse) fn flush(
    dispatcher: &Dispatcher,
    request: &Request,
    number: INodeNo,
    handle: FileHandle,
    reply: ReplyEmpty,
) {
    if ControlFiles::owns(number) {
        return reply.ok();
    }
    let (caller, handle) = (caller(request), HandleId(handle.0));
    match dispatcher.datapath.flush(&caller, handle) {
        Ok(()) => {
            let news = dispatcher.datapath.news_of_close(&caller, handle);
            dispatcher.after_telling(news, move || reply.ok());
        }
        Err(error) => reply.error(fail("flush", &error)),
    }
}

pub(in crate::fuse) fn release(
    dispatcher: &Dispatcher,
    number: INodeNo,
    handle: FileHandle,
    reply: ReplyEmpty,
) {
    if ControlFiles::owns(number) {
        if number == fast_files::CONTROL || fast_files::segment_of(number).is_some() {
            dispatcher.fast.release(&dispatcher.datapath, number, handle);
        } else {
            dispatcher.control.release(handle.0);
        }
    } else if dispatcher.datapath.is_long_to_release(HandleId(handle.0)) {
        let datapath = Arc::clone(&dispatcher.datapath);
        // It is not to be refused, and its program has gone on.
        dispatcher.datapath.leave_job(Box::new(move |_| datapath.release(HandleId(handle.0))));
    } else {
        dispatcher.datapath.release(HandleId(handle.0));
    }
    reply.ok();
}

/// Memory has nothing more durable to offer than what a write already did; a disk may, of what is sealed.
pub(in crate::fuse) fn fsync(
    dispatcher: &Dispatcher,
    number: INodeNo,
    handle: FileHandle,
    reply: ReplyEmpty,
) {
    let durable = (!ControlFiles::owns(number))
        .then(|| dispatcher.datapath.must_persist_handle(HandleId(handle.0)))
        .flatten();
    let Some(object) = durable else { return reply.ok() };
    let datapath = Arc::clone(&dispatcher.datapath);
    // One that arrives from elsewhere goes to no disk before it is here.
    dispatcher.with_object(object, "fsync", reply, move |reply, _| {
        let (waiting, end) = (Arc::clone(&datapath), datapath.end_of_persist());
        let rest = move |reply| reply_done(waiting.persist(object, end), "fsync", reply);
        datapath.leave_durable_job(or_refused("fsync", reply, rest));
    });
}
