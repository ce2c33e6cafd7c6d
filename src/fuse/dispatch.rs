//! The trait of the session loop: each request goes to its operation in `ops`. What needs no thought is answered here.

use std::ffi::OsStr;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileHandle, Filesystem, INodeNo, IoctlFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};

use super::attributes::{Lifetimes, ino};
use super::control_files::ControlFiles;
use super::fast_files::FastFiles;
use super::follow::Follower;
use super::handshake::Handshake;
use super::kernel::Kernel;
use super::ops;
use super::overload::{Refuse, at_leisure};
use super::waiter::Waiter;
use crate::datapath::{Datapath, Need, News};
use crate::namespace::Ino;

/// Handles of control files are numbers from here on, so that none is one of an object: the kernel hands on what it is given.
pub(super) const CONTROL_HANDLES: u64 = 1 << 63;

/// The filesystem as the session loop calls it.
#[derive(Debug)]
pub(super) struct Dispatcher {
    pub(super) datapath: Arc<Datapath>,
    pub(super) kernel: Arc<Kernel>,
    pub(super) control: Arc<ControlFiles>,
    pub(super) fast: FastFiles,
    pub(super) waiter: Waiter,
    pub(super) follower: Follower,
    pub(super) lifetimes: Lifetimes,
    pub(super) max_background: u16,
    pub(super) wants_passthrough: bool,
    pub(super) wants_page_cache: Option<bool>,
    pub(super) handshake: Arc<OnceLock<Handshake>>,
    pub(super) control_handles: AtomicU64,
}

impl Dispatcher {
    /// Does a request that needs the bytes of an object: at once when they are in memory, which is nearly always, else when
    /// they are back, or cannot be had, which it is told. Those of a file that becomes a slot file are had when it is one.
    pub(super) fn with_object<R: Refuse>(
        &self,
        number: Ino,
        operation: &'static str,
        reply: R,
        rest: impl FnOnce(R, bool) + Send + 'static,
    ) {
        if self.datapath.is_moving(number) {
            return self.at_leisure(operation, reply, move |reply| rest(reply, true));
        }
        self.with_bytes(number, Need::Whole, move |is_back| rest(reply, is_back));
    }

    /// The same for a request that may need no more than the start of the object, while the rest comes.
    pub(super) fn with_bytes(&self, number: Ino, need: Need, rest: impl FnOnce(bool) + Send + 'static) {
        if self.datapath.must_load(number) {
            self.datapath.loader().leave_for(number, need, Box::new(rest));
            self.datapath.prefetch_successors(number);
        } else {
            rest(true);
        }
    }

    /// Does a request that may take long, as one that goes through all below a directory does, off the threads that answer the
    /// kernel. It is refused when too many wait for that.
    pub(super) fn at_leisure<R: Refuse>(
        &self,
        operation: &'static str,
        reply: R,
        rest: impl FnOnce(R) + Send + 'static,
    ) {
        at_leisure(&self.datapath, operation, reply, rest);
    }

    /// Does the rest of a request when the other members know what it changed: at once where there are none.
    pub(super) fn after_telling(&self, news: News, rest: impl FnOnce() + Send + 'static) {
        after_telling(&self.datapath, news, rest);
    }
}

/// As [`Dispatcher::after_telling`], for what is done off the session threads.
pub(super) fn after_telling(datapath: &Arc<Datapath>, news: News, rest: impl FnOnce() + Send + 'static) {
    match datapath.cluster() {
        _ if news.is_empty() => rest(),
        Some(side) => {
            let datapath = Arc::clone(datapath);
            side.runtime().spawn(async move {
                datapath.tell(news).await;
                rest();
            });
        }
        None => {
            datapath.remember_news(news);
            rest();
        }
    }
}

impl Filesystem for Dispatcher {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Of what other members hold a listing knows the names alone.
        let lists_attributes = !self.datapath.is_in_cluster();
        let (wants_passthrough, wants_page_cache) = (self.wants_passthrough, self.wants_page_cache);
        let handshake = Handshake::negotiate(
            config,
            self.max_background,
            wants_passthrough,
            wants_page_cache,
            lists_attributes,
        );
        // Set once: a session shakes hands once.
        let _ = self.handshake.set(handshake);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        ops::names::lookup(self, request, parent, name, reply);
    }

    fn forget(&self, _request: &Request, number: INodeNo, count: u64) {
        if !ControlFiles::owns(number) {
            self.datapath.forget(ino(number), count);
        }
    }

    fn getattr(&self, request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        ops::attributes::getattr(self, request, number, reply);
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
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = ops::attributes::change_of((mode, uid, gid, size), (atime, mtime), handle);
        ops::attributes::setattr(self, request, number, &change, reply);
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
        ops::names::mknod(self, request, parent, name, mode & !umask, reply);
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
        ops::names::mkdir(self, request, parent, name, mode & !umask, reply);
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
        ops::names::unlink(self, request, parent, name, reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        ops::names::rmdir(self, parent, name, reply);
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
        ops::names::rename(self, request, (parent, name), (new_parent, new_name), flags, reply);
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        ops::open::open(self, request, number, flags, reply);
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
        ops::open::create(self, request, (parent, name), mode & !umask, flags, reply);
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
        ops::io::read(self, number, handle, offset, size, reply);
    }

    fn write(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        ops::io::write(self, number, handle, offset, data, reply);
    }

    fn flush(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        ops::open::flush(self, request, number, handle, reply);
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
        ops::open::release(self, number, handle, reply);
    }

    fn fsync(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        ops::open::fsync(self, number, handle, reply);
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
        reply: ReplyDirectory,
    ) {
        ops::listing::readdir(self, request, number, offset, reply);
    }

    fn readdirplus(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        ops::listing::readdirplus(self, request, number, offset, reply);
    }

    fn statfs(&self, _request: &Request, number: INodeNo, reply: ReplyStatfs) {
        ops::attributes::statfs(self, number, reply);
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        ops::xattrs::getxattr(self, number, name, size, reply);
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        ops::xattrs::listxattr(self, number, size, reply);
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        ops::xattrs::setxattr(self, request, number, (name, value), flags, reply);
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        ops::xattrs::removexattr(self, request, number, name, reply);
    }

    fn access(&self, _request: &Request, _number: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // Never asked: the mount has default_permissions.
        reply.ok();
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        ops::io::fallocate(self, request, (number, handle), (offset, length), mode, reply);
    }

    fn ioctl(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        if number != super::fast_files::CONTROL {
            return reply.error(Errno::ENOTTY);
        }
        let room = usize::try_from(out_size).unwrap_or(0);
        super::ioctl::ioctl(self, request, handle, command, data, room, reply);
    }
}
