//! A disk that does what it is told to: fails, is full, is read-only, or holds reads or writes until it is let go.
//!
//! It is a FUSE filesystem of this process with the one file of the SSD tier in it, kept in a sparse file beside it. The
//! daemon meets it as it meets any directory on a bad disk; nothing is built into the daemon for it.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::wait::HANG;

/// The tier's file, which is there from the beginning, empty.
const LOG: (INodeNo, &str) = (INodeNo(2), "tidefs.ssd");
const TTL: Duration = Duration::ZERO;
const REQUESTS_MAX: u16 = 4096;

/// What is wrong with a disk. Nothing at first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Reads that touch these bytes say EIO.
    pub(crate) bad: Range<u64>,
    /// Reads say this.
    pub(crate) read_error: Option<i32>,
    /// Writes, flushes and allocations say this.
    pub(crate) write_error: Option<i32>,
    /// Bytes that can be allocated; zero for any number.
    pub(crate) room: u64,
    /// Reads wait until this is false.
    pub(crate) holds_reads: bool,
    /// Writes wait until this is false.
    pub(crate) holds_writes: bool,
    /// A read of what was read before, no less and no more, waits until this is false.
    pub(crate) holds_repeated_reads: bool,
}

#[derive(Debug, Default)]
struct Control {
    faults: Mutex<Faults>,
    changed: Condvar,
    /// Reads and writes that wait now.
    held: AtomicUsize,
    /// Offsets and lengths that were read since the last change of the faults.
    read: Mutex<HashSet<(u64, u64)>>,
}

impl Control {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().expect("no thread of the disk panics")
    }

    /// What a read or write meets: a pause, then perhaps an error.
    fn meet(&self, offset: u64, length: u64, is_read: bool) -> Result<(), Errno> {
        let is_repeated =
            is_read && !self.read.lock().expect("no thread of the disk panics").insert((offset, length));
        let faults = self.faults();
        let is_held = |faults: &mut Faults| {
            let is_held = if is_read { faults.holds_reads } else { faults.holds_writes };
            is_held || (is_repeated && faults.holds_repeated_reads)
        };
        self.held.fetch_add(1, Ordering::Relaxed);
        let waited = self.changed.wait_timeout_while(faults, HANG, is_held);
        self.held.fetch_sub(1, Ordering::Relaxed);
        let faults = waited.expect("no thread of the disk panics").0.clone();
        let is_bad = is_read && offset < faults.bad.end && offset + length > faults.bad.start;
        let error = if is_read { faults.read_error } else { faults.write_error };
        match error.or(is_bad.then_some(libc::EIO)) {
            Some(errno) => Err(Errno::from_i32(errno)),
            None => Ok(()),
        }
    }
}

/// A mounted disk.
#[derive(Debug)]
pub(crate) struct FaultyDisk {
    point: PathBuf,
    control: Arc<Control>,
    session: Option<BackgroundSession>,
    _base: tempfile::TempDir,
}

impl FaultyDisk {
    /// A sound disk.
    pub(crate) fn new() -> Self {
        let base =
            tempfile::Builder::new().prefix("tidefs-disk").tempdir_in("/var/tmp").expect("a directory");
        let point = base.path().join("disk");
        std::fs::create_dir(&point).expect("a mount point");
        let content = base.path().join("content");
        let content = File::options().read(true).write(true).create_new(true).open(content).expect("a file");
        let control = Arc::new(Control::default());
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0,max_read=131072", device.as_raw_fd());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("tidefs-test-disk"), &point, Some("fuse.disk"), flags, Some(data.as_str()))
            .expect("mount of the disk");
        let served = Served { control: Arc::clone(&control), content: Arc::new(content) };
        let mut config = Config::default();
        config.n_threads = Some(2);
        config.clone_fd = true;
        let session = Session::from_fd(served, OwnedFd::from(device), SessionACL::Owner, config);
        let session = session.and_then(Session::spawn).expect("the disk is served");
        Self { point, control, session: Some(session), _base: base }
    }

    /// The directory for `ssd.dirs`.
    pub(crate) fn path(&self) -> &Path {
        &self.point
    }

    /// From now on the disk does what `change` says; what it was asked before does not count as repeated.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Faults)) {
        let mut faults = self.control.faults();
        self.control.read.lock().expect("no thread of the disk panics").clear();
        change(&mut faults);
        drop(faults);
        self.control.changed.notify_all();
    }

    /// Reads and writes that the disk has not answered.
    pub(crate) fn held(&self) -> usize {
        self.control.held.load(Ordering::Relaxed)
    }
}

impl Drop for FaultyDisk {
    fn drop(&mut self) {
        self.set(|faults| *faults = Faults::default());
        let _ = umount2(&self.point, MntFlags::MNT_DETACH | MntFlags::MNT_FORCE);
        if let Some(session) = self.session.take() {
            let _ = session.join();
        }
    }
}

#[derive(Debug)]
struct Served {
    control: Arc<Control>,
    content: Arc<File>,
}

impl Served {
    fn log_attributes(&self) -> Result<FileAttr, Errno> {
        let metadata = self.content.metadata().map_err(errno)?;
        let mut attributes = attributes(LOG.0, FileType::RegularFile);
        attributes.size = metadata.len();
        attributes.blocks = metadata.blocks();
        Ok(attributes)
    }

    fn attributes_of(&self, number: INodeNo) -> Result<FileAttr, Errno> {
        if number == LOG.0 {
            self.log_attributes()
        } else {
            Ok(attributes(INodeNo::ROOT, FileType::Directory))
        }
    }
}

fn attributes(ino: INodeNo, kind: FileType) -> FileAttr {
    let is_file = kind == FileType::RegularFile;
    let time = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm: if is_file { 0o600 } else { 0o700 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the error is of no use afterwards")]
fn errno(error: io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

impl Filesystem for Served {
    /// Whoever submits a request by io_uring goes on, as with a disk: without these the kernel has them wait for the answer, or
    /// for there to be fewer requests.
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |_| io::Error::from(io::ErrorKind::Unsupported);
        config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).map_err(refused)?;
        config.set_max_background(REQUESTS_MAX).map(drop).map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.log_attributes() {
            Ok(attributes) if name == LOG.1 => reply.entry(&TTL, &attributes, Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes_of(number) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let cut = size.map_or(Ok(()), |size| self.content.set_len(size).map_err(errno));
        match cut.and_then(|()| self.attributes_of(number)) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.control.faults().write_error == Some(libc::EROFS) {
            return reply.error(Errno::EROFS);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (control, content) = (Arc::clone(&self.control), Arc::clone(&self.content));
        // A thread of its own: one that is held holds nobody else.
        thread::spawn(move || {
            let mut bytes = vec![0; size as usize];
            let length = control
                .meet(offset, size.into(), true)
                .and_then(|()| content.read_at(&mut bytes, offset).map_err(errno));
            match length {
                Ok(length) => reply.data(&bytes[..length]),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (control, content) = (Arc::clone(&self.control), Arc::clone(&self.content));
        let data = data.to_vec();
        thread::spawn(move || {
            let written = control
                .meet(offset, data.len() as u64, false)
                .and_then(|()| content.write_all_at(&data, offset).map_err(errno));
            match written {
                Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn fsync(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        match self.control.faults().write_error {
            Some(errno) => reply.error(Errno::from_i32(errno)),
            None => reply.ok(),
        }
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 20, 1 << 20, 1 << 20, 0, 0, 4096, 255, 4096);
    }

    fn fallocate(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (room, error) = {
            let faults = self.control.faults();
            (faults.room, faults.write_error)
        };
        let end = offset.saturating_add(length);
        let outcome = match error {
            Some(error) => Err(Errno::from_i32(error)),
            None if room > 0 && end > room => Err(Errno::ENOSPC),
            None => {
                let as_offset = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
                let mode = FallocateFlags::from_bits_truncate(mode);
                fallocate(&*self.content, mode, as_offset(offset), as_offset(length))
                    .map_err(|error| Errno::from_i32(error as i32))
            }
        };
        match outcome {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }
}
