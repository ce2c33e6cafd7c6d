//! One method per kernel request: decode, call the datapath, reply.
//!
//! Hot path: look-up, getattr, open, release. They take the datapath's one lock once or twice and make no copy.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use tidefs_engine::types::{ByteCount, PAGE};

use super::attributes::{Lifetimes, absence, file_attr, ino, kind_of};
use super::control_files::{self, ControlFiles};
use super::errno::errno;
use super::kernel::Kernel;
use super::passthrough;
use super::session::{Handshake, pin_this_thread};
use super::waiter::{Waiter, Waiting};
use crate::datapath::{
    AttributeChange, Caller, Datapath, Error, HandleId, Listed, Lookup, OpenOptions, Opened, Presence,
    SizeChange, Stat,
};
use crate::namespace::{Cookie, NAME_LENGTH_MAX, ThreadId, nanos_of};

/// Largest request of a read or write that the daemon serves itself.
pub(super) const REQUEST_MAX: u32 = 1 << 20;

/// Directory positions of `.` and `..`; entries come after.
const POSITION_SELF: u64 = 1;
const POSITION_PARENT: u64 = 2;

thread_local! {
    /// Reads that the daemon serves land here before they go to the kernel.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The filesystem as the session loop calls it.
#[derive(Debug)]
pub(super) struct Dispatcher {
    pub(super) datapath: Arc<Datapath>,
    pub(super) kernel: Arc<Kernel>,
    pub(super) control: Arc<ControlFiles>,
    pub(super) waiter: Waiter,
    pub(super) lifetimes: Lifetimes,
    pub(super) max_background: u16,
    pub(super) wants_passthrough: bool,
    pub(super) handshake: Arc<OnceLock<Handshake>>,
    pub(super) control_handles: AtomicU64,
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), thread: ThreadId(request.pid()) }
}

fn options(flags: i32) -> OpenOptions {
    let mode = OpenFlags(flags).acc_mode();
    let write = !matches!(mode, OpenAccMode::O_RDONLY);
    OpenOptions {
        read: !matches!(mode, OpenAccMode::O_WRONLY),
        write,
        truncate: write && flags & libc::O_TRUNC != 0,
        exclusive: flags & libc::O_EXCL != 0,
    }
}

/// Whether a name belongs to the control files.
fn is_reserved(parent: INodeNo, name: &OsStr) -> bool {
    parent == INodeNo::ROOT && name.as_bytes() == control_files::DIRECTORY
}

fn fail(operation: &'static str, error: &Error) -> Errno {
    match error {
        Error::Io { .. } => tracing::error!(operation, %error, "a request failed"),
        Error::NothingEvictable { .. } | Error::OverQuota { .. } | Error::TooLarge { .. } => {
            tracing::warn!(operation, %error, "a request was refused");
        }
        _ => tracing::debug!(operation, %error, "a request was answered with an error"),
    }
    errno(error)
}

/// Answers a look-up.
pub(super) fn reply_lookup(lifetimes: &Lifetimes, outcome: Result<Lookup, Error>, reply: ReplyEntry) {
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

impl Dispatcher {
    fn reply_attr(&self, outcome: Result<Stat, Error>, operation: &'static str, reply: ReplyAttr) {
        match outcome {
            Ok(stat) => reply.attr(&self.lifetimes.attributes(&stat), &file_attr(&stat)),
            Err(error) => reply.error(fail(operation, &error)),
        }
    }

    fn reply_new_entry(&self, outcome: Result<Stat, Error>, operation: &'static str, reply: ReplyEntry) {
        match outcome {
            Ok(stat) => reply.entry_with_ttls(
                &self.lifetimes.attributes(&stat),
                &self.lifetimes.entry(stat.is_settled),
                &file_attr(&stat),
                Generation(0),
            ),
            Err(error) => reply.error(fail(operation, &error)),
        }
    }

    fn change_of(
        (mode, uid, gid, size): (Option<u32>, Option<u32>, Option<u32>, Option<u64>),
        (atime, mtime): (Option<TimeOrNow>, Option<TimeOrNow>),
    ) -> AttributeChange {
        let nanos = |time: TimeOrNow| match time {
            TimeOrNow::SpecificTime(time) => nanos_of(time),
            TimeOrNow::Now => nanos_of(SystemTime::now()),
        };
        AttributeChange {
            mode,
            uid,
            gid,
            size: size.map(ByteCount),
            atime_ns: atime.map(nanos),
            mtime_ns: mtime.map(nanos),
        }
    }

    /// Lists a directory through `add`, which returns true when the reply is full.
    fn list(
        &self,
        request: &Request,
        directory: INodeNo,
        offset: u64,
        holds: bool,
        mut add: impl FnMut(INodeNo, u64, &OsStr, FileType, Option<&Listed>) -> bool,
    ) -> Result<(), Error> {
        if ControlFiles::owns(directory) {
            let files = self.control.children().zip(1..).filter(|(_, position)| *position > offset);
            for ((number, name), position) in files {
                if add(number, position, OsStr::new(name), FileType::RegularFile, None) {
                    break;
                }
            }
            return Ok(());
        }
        let parent = self.datapath.parent(ino(directory))?;
        if offset < POSITION_SELF && add(directory, POSITION_SELF, OsStr::new("."), FileType::Directory, None)
        {
            return Ok(());
        }
        if offset < POSITION_PARENT
            && add(INodeNo(parent.0), POSITION_PARENT, OsStr::new(".."), FileType::Directory, None)
        {
            return Ok(());
        }
        let from = Cookie(offset.max(POSITION_PARENT));
        self.datapath.list(&caller(request), ino(directory), from, holds, |entry| {
            let number = INodeNo(entry.stat.ino.0);
            let name = OsStr::from_bytes(entry.name.as_bytes());
            !add(number, entry.cookie.0, name, kind_of(entry.stat.kind), Some(entry))
        })
    }

    fn answer_xattr(outcome: Result<Vec<u8>, Error>, size: u32, reply: ReplyXattr) {
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

    fn reply_opened(&self, opened: Result<Opened, Error>, reply: ReplyOpen) {
        let answered = opened.and_then(|opened| {
            passthrough::answer(&self.datapath, &self.kernel, &reply, &opened).map(|answer| (opened, answer))
        });
        match answered {
            Ok((opened, answer)) => {
                let handle = FileHandle(opened.handle.0);
                match answer.backing {
                    Some(backing) => reply.opened_passthrough(handle, answer.flags, &backing),
                    None => reply.opened(handle, answer.flags),
                }
            }
            Err(error) => reply.error(fail("open", &error)),
        }
    }
}

impl Filesystem for Dispatcher {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let handshake = Handshake::negotiate(config, self.max_background, self.wants_passthrough);
        // Set once: a session shakes hands once.
        let _ = self.handshake.set(handshake);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        pin_this_thread();
        if ControlFiles::owns(parent) {
            return match self.control.child(name.as_bytes()) {
                Some(number) => reply.entry(&Duration::MAX, &self.control.attributes(number), Generation(0)),
                None => reply.error(Errno::ENOENT),
            };
        }
        if parent == INodeNo::ROOT && name.as_bytes() == control_files::DIRECTORY {
            let attributes = self.control.attributes(ControlFiles::directory());
            return reply.entry(&self.lifetimes.settled, &attributes, Generation(0));
        }
        let caller = caller(request);
        match self.datapath.lookup(&caller, ino(parent), name.as_bytes(), true) {
            Ok(Lookup::Wait) => {
                let waiting = Waiting { caller, parent: ino(parent), name: name.as_bytes().into(), reply };
                if let Err(refused) = self.waiter.leave(waiting) {
                    let outcome = self.datapath.lookup(&caller, refused.parent, &refused.name, false);
                    reply_lookup(&self.lifetimes, outcome, refused.reply);
                }
            }
            outcome => reply_lookup(&self.lifetimes, outcome, reply),
        }
    }

    fn forget(&self, _request: &Request, number: INodeNo, count: u64) {
        if !ControlFiles::owns(number) {
            self.datapath.forget(ino(number), count);
        }
    }

    fn getattr(&self, request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        if ControlFiles::owns(number) {
            return reply.attr(&self.lifetimes.settled, &self.control.attributes(number));
        }
        self.reply_attr(self.datapath.getattr_by_name(&caller(request), ino(number)), "getattr", reply);
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if ControlFiles::owns(number) {
            return reply.error(Errno::EPERM);
        }
        let change = Self::change_of((mode, uid, gid, size), (atime, mtime));
        self.reply_attr(self.datapath.setattr(&caller(request), ino(number), &change), "setattr", reply);
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        if ControlFiles::owns(parent) || mode & libc::S_IFMT != libc::S_IFREG {
            return reply.error(Errno::EPERM);
        }
        let made = self.datapath.make_file(&caller(request), ino(parent), name.as_bytes(), mode & !umask);
        self.reply_new_entry(made, "mknod", reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        if ControlFiles::owns(parent) || is_reserved(parent, name) {
            return reply.error(if is_reserved(parent, name) { Errno::EEXIST } else { Errno::EPERM });
        }
        let made =
            self.datapath.make_directory(&caller(request), ino(parent), name.as_bytes(), mode & !umask);
        self.reply_new_entry(made, "mkdir", reply);
    }

    fn symlink(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _target: &std::path::Path,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EPERM);
    }

    fn link(&self, _request: &Request, _ino: INodeNo, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if ControlFiles::owns(parent) {
            return reply.error(Errno::EPERM);
        }
        match self.datapath.unlink(&caller(request), ino(parent), name.as_bytes()) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(fail("unlink", &error)),
        }
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if ControlFiles::owns(parent) || is_reserved(parent, name) {
            return reply.error(Errno::EPERM);
        }
        match self.datapath.remove_directory(ino(parent), name.as_bytes()) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(fail("rmdir", &error)),
        }
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
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
        match self.datapath.rename(&caller(request), source, target, keeps) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(fail("rename", &error)),
        }
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if ControlFiles::owns(number) {
            if options(flags.0).write {
                return reply.error(Errno::EACCES);
            }
            let handle = self.control_handles.fetch_add(1, Ordering::Relaxed);
            return if self.control.open(number, handle) {
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH);
            } else {
                reply.error(Errno::EISDIR);
            };
        }
        self.reply_opened(self.datapath.open(&caller(request), ino(number), options(flags.0)), reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        if ControlFiles::owns(parent) || is_reserved(parent, name) {
            return reply.error(Errno::EPERM);
        }
        let options = options(flags);
        let created =
            self.datapath.create(&caller(request), ino(parent), name.as_bytes(), mode & !umask, options);
        let answered = created.and_then(|(stat, opened)| {
            passthrough::answer(&self.datapath, &self.kernel, &reply, &opened)
                .map(|answer| (stat, opened, answer))
        });
        match answered {
            Ok((stat, opened, answer)) => {
                let (attributes, handle) = (file_attr(&stat), FileHandle(opened.handle.0));
                let (ttl, generation) = (Duration::ZERO, Generation(0));
                match answer.backing {
                    Some(backing) => {
                        reply.created_passthrough(
                            &ttl,
                            &attributes,
                            generation,
                            handle,
                            answer.flags,
                            &backing,
                        );
                    }
                    None => reply.created(&ttl, &attributes, generation, handle, answer.flags),
                }
            }
            Err(error) => reply.error(fail("create", &error)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = usize::try_from(size).unwrap_or(0);
        if ControlFiles::owns(number) {
            return reply.data(&self.control.read(handle.0, offset, length));
        }
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < length {
                buffer.resize(length, 0);
            }
            match self.datapath.read(HandleId(handle.0), offset, &mut buffer[..length]) {
                Ok(count) => reply.data(&buffer[..count]),
                Err(error) => reply.error(fail("read", &error)),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.datapath.write(HandleId(handle.0), offset, data) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(error) => reply.error(fail("write", &error)),
        }
    }

    fn flush(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        if ControlFiles::owns(number) {
            return reply.ok();
        }
        match self.datapath.flush(&caller(request), HandleId(handle.0)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(fail("flush", &error)),
        }
    }

    fn release(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if ControlFiles::owns(number) {
            self.control.release(handle.0);
        } else {
            self.datapath.release(HandleId(handle.0));
        }
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        // The memory tier has nothing more durable to offer than what a write already did.
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.list(request, number, offset, false, |child, cookie, name, kind, _| {
            reply.add(child, cookie, kind, name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(fail("readdir", &error)),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.list(request, number, offset, true, |child, cookie, name, _, entry| {
            let (attributes, ttl) = match entry {
                Some(entry) => {
                    // One lifetime serves the name and the attributes.
                    let lifetimes = &self.lifetimes;
                    let ttl = lifetimes.attributes(&entry.stat).min(lifetimes.entry(entry.cacheable));
                    (file_attr(&entry.stat), ttl)
                }
                // The kernel takes no reference for `.` and `..`; control files have no count to keep.
                None => (self.control.attributes(child), Duration::ZERO),
            };
            reply.add(child, cookie, name, &ttl, &attributes, Generation(0))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(fail("readdirplus", &error)),
        }
    }

    fn statfs(&self, _request: &Request, number: INodeNo, reply: ReplyStatfs) {
        match self.datapath.statfs(ino(number)) {
            Ok(space) => {
                let blocks = space.capacity.get() / PAGE.get();
                let free = space.free.get() / PAGE.get();
                let page = u32::try_from(PAGE.get()).unwrap_or(4096);
                let name_length = u32::try_from(NAME_LENGTH_MAX).unwrap_or(255);
                // A node costs no page of its own, so as many more can be made as there are free pages.
                reply.statfs(blocks, free, free, space.nodes + free, free, page, name_length, page);
            }
            Err(error) => reply.error(fail("statfs", &error)),
        }
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if ControlFiles::owns(number) || !name.as_bytes().starts_with(b"user.") {
            return reply.error(Errno::from_i32(libc::ENODATA));
        }
        Self::answer_xattr(self.datapath.get_attribute(ino(number), name.as_bytes()), size, reply);
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let names = if ControlFiles::owns(number) {
            Ok(Vec::new())
        } else {
            self.datapath.list_attributes(ino(number))
        };
        Self::answer_xattr(names, size, reply);
    }

    fn setxattr(
        &self,
        _request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if ControlFiles::owns(number) {
            return reply.error(Errno::EPERM);
        }
        let only = match flags {
            libc::XATTR_CREATE => Some(Presence::Absent),
            libc::XATTR_REPLACE => Some(Presence::Present),
            _ => None,
        };
        match self.datapath.set_attribute(ino(number), name.as_bytes(), value, only) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(fail("setxattr", &error)),
        }
    }

    fn removexattr(&self, _request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if ControlFiles::owns(number) {
            return reply.error(Errno::EPERM);
        }
        match self.datapath.remove_attribute(ino(number), name.as_bytes()) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(fail("removexattr", &error)),
        }
    }

    fn access(&self, _request: &Request, _number: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // Never asked: the mount has default_permissions.
        reply.ok();
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (offset, length) = (ByteCount(offset), ByteCount(length));
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let change = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => SizeChange::Allocate { offset, length, keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => SizeChange::Punch { offset, length },
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        match self.datapath.change_size(&caller(request), ino(number), change) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(fail("fallocate", &error)),
        }
    }

    fn ioctl(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}

/// Flags asked for where the kernel offers them.
pub(super) const WANTED: [InitFlags; 6] = [
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_DO_READDIRPLUS.union(InitFlags::FUSE_READDIRPLUS_AUTO),
    // Without it the kernel asks for a security attribute before each write.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
];
