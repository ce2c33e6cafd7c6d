//! A real mount: process 0 is this one, the others are processes of their own.
//!
//! What a peer cannot be asked for is done by process 0; see [`for_mount`].

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use tidefs_engine::types::ByteCount;

use super::common::Mode;
use super::common::mount::Mount;
use super::common::peer::{Handle, Peer};
use super::common::sys::{errno, open_file, rename_with};
use super::operation::Op;
use super::system::{Books, Change, Facts, Open, PROCESSES, Reason, Space, System, Token};

/// Capacity of the mount: more than the steps can fill, since nobody tells here what was evicted.
pub(crate) const CAPACITY: ByteCount = ByteCount::mib(128);

#[derive(Debug)]
enum Opened {
    Own(File),
    Peer(Handle),
}

/// A mount and the processes that use it.
#[derive(Debug)]
pub(crate) struct Mounted {
    peers: Vec<Peer>,
    handles: HashMap<Token, Opened>,
    next: Token,
    mount: Mount,
}

fn io<T>(outcome: std::io::Result<T>) -> Result<T, Errno> {
    outcome.map_err(|error| errno(&error))
}

impl Mounted {
    /// A fresh mount.
    pub(crate) fn new(mode: Mode) -> Self {
        let capacity = format!("capacity={}", CAPACITY.get());
        let mount = Mount::start(&mode.options(&[&capacity, "on_stop=keep"]));
        let peers = (1..PROCESSES).map(|_| Peer::spawn()).collect();
        Self { peers, handles: HashMap::new(), next: 1, mount }
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.mount.path().to_owned() } else { self.mount.join(path) }
    }

    fn note(&mut self, opened: Opened) -> Token {
        self.next += 1;
        self.handles.insert(self.next, opened);
        self.next
    }
}

fn flags(options: Open) -> i32 {
    let mut flags = match (options.read, options.write) {
        (true, true) => libc::O_RDWR,
        (false, true) => libc::O_WRONLY,
        _ => libc::O_RDONLY,
    };
    for (is_set, flag) in [
        (options.create, libc::O_CREAT),
        (options.exclusive, libc::O_EXCL),
        (options.truncate, libc::O_TRUNC),
    ] {
        flags |= if is_set { flag } else { 0 };
    }
    flags
}

fn own(path: &Path, options: Open) -> Result<OwnedFd, Errno> {
    open_file(path, flags(options))
}

impl System for Mounted {
    fn open(&mut self, who: usize, path: &str, options: Open) -> Result<Token, Errno> {
        let full = self.path(path);
        let opened = match who {
            0 => Opened::Own(File::from(own(&full, options)?)),
            _ => Opened::Peer(self.peers[who - 1].open(&full, flags(options))?),
        };
        Ok(self.note(opened))
    }

    fn inode(&mut self, path: &str) -> Option<u64> {
        fs::symlink_metadata(self.path(path)).ok().map(|facts| facts.ino())
    }

    fn close(&mut self, who: usize, token: Token) {
        let opened = self.handles.remove(&token).expect("an open handle");
        match opened {
            Opened::Own(file) => drop(file),
            Opened::Peer(handle) => {
                let told = self.peers[who - 1].close(handle);
                // What finds no room is dropped.
                assert!(matches!(told, Ok(()) | Err(Errno::ENOSPC | Errno::EDQUOT)), "{told:?}");
            }
        }
    }

    fn flush(&mut self, who: usize, token: Token) {
        match &self.handles[&token] {
            Opened::Own(file) => drop(file.try_clone().expect("dup")),
            Opened::Peer(handle) => self.peers[who - 1].close_duplicate(*handle).expect("dup"),
        }
    }

    fn write(&mut self, who: usize, token: Token, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        match &self.handles[&token] {
            Opened::Own(file) => io(file.write_all_at(bytes, offset)),
            Opened::Peer(handle) => self.peers[who - 1].write_at(*handle, offset, bytes),
        }
    }

    fn read(&mut self, who: usize, token: Token, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        match &self.handles[&token] {
            Opened::Own(file) => {
                let mut bytes = vec![0xa5; length];
                let mut filled = 0;
                while filled < length {
                    match io(file.read_at(&mut bytes[filled..], offset + filled as u64))? {
                        0 => break,
                        count => filled += count,
                    }
                }
                bytes.truncate(filled);
                Ok(bytes)
            }
            Opened::Peer(handle) => self.peers[who - 1].read_at(*handle, offset, length),
        }
    }

    fn resize(&mut self, who: usize, token: Token, change: Change) -> Result<(), Errno> {
        let number = |value: u64| i64::try_from(value).expect("a small number");
        match (&self.handles[&token], change) {
            (Opened::Own(file), Change::Set(length)) => io(file.set_len(length)),
            (Opened::Own(file), Change::Allocate { offset, length, keep_size }) => {
                let flags =
                    if keep_size { FallocateFlags::FALLOC_FL_KEEP_SIZE } else { FallocateFlags::empty() };
                fallocate(file, flags, number(offset), number(length))
            }
            (Opened::Own(file), Change::Punch { offset, length }) => {
                let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                fallocate(file, flags, number(offset), number(length))
            }
            (Opened::Peer(handle), Change::Set(length)) => self.peers[who - 1].truncate(*handle, length),
            (Opened::Peer(_), other) => panic!("a peer cannot do {other:?}"),
        }
    }

    fn can_allocate(&self, who: usize) -> bool {
        who == 0
    }

    fn truncate(&mut self, _who: usize, path: &str, length: u64) -> Result<(), Errno> {
        nix::unistd::truncate(&self.path(path), i64::try_from(length).expect("a small length"))
    }

    fn rename(&mut self, who: usize, from: &str, to: &str, keep: bool) -> Result<(), Errno> {
        let (source, target) = (self.path(from), self.path(to));
        match who {
            0 => rename_with(&source, &target, if keep { libc::RENAME_NOREPLACE } else { 0 }),
            _ => self.peers[who - 1].rename(&source, &target),
        }
    }

    fn unlink(&mut self, who: usize, path: &str) -> Result<(), Errno> {
        let path = self.path(path);
        if who == 0 { io(fs::remove_file(path)) } else { self.peers[who - 1].unlink(&path) }
    }

    fn mkdir(&mut self, who: usize, path: &str) -> Result<(), Errno> {
        let path = self.path(path);
        if who == 0 { io(fs::create_dir(path)) } else { self.peers[who - 1].mkdir(&path, 0o755) }
    }

    fn rmdir(&mut self, who: usize, path: &str) -> Result<(), Errno> {
        let path = self.path(path);
        if who == 0 { io(fs::remove_dir(path)) } else { self.peers[who - 1].rmdir(&path) }
    }

    fn stat(&mut self, who: usize, path: &str) -> Result<Facts, Errno> {
        let path = self.path(path);
        if who == 0 {
            let facts = io(fs::symlink_metadata(path))?;
            return Ok(Facts {
                is_directory: facts.is_dir(),
                size: facts.len(),
                mode: facts.mode() & 0o7777,
                mtime_ns: Some(facts.mtime() * 1_000_000_000 + facts.mtime_nsec()),
            });
        }
        let facts = self.peers[who - 1].stat(&path)?;
        Ok(Facts {
            is_directory: facts.mode & libc::S_IFMT == libc::S_IFDIR,
            size: facts.size,
            mode: facts.mode & 0o7777,
            mtime_ns: None,
        })
    }

    fn list(&mut self, who: usize, path: &str) -> Result<Vec<String>, Errno> {
        let path = self.path(path);
        if who == 0 {
            let mut names = Vec::new();
            for entry in io(fs::read_dir(path))? {
                names.push(io(entry)?.file_name().to_string_lossy().into_owned());
            }
            names.sort();
            return Ok(names);
        }
        self.peers[who - 1].list(&path)
    }

    fn chmod(&mut self, who: usize, path: &str, mode: u32) -> Result<(), Errno> {
        let path = self.path(path);
        match who {
            0 => io(fs::set_permissions(path, fs::Permissions::from_mode(mode))),
            _ => self.peers[who - 1].chmod(&path, mode),
        }
    }

    fn utimens(&mut self, _who: usize, path: &str, mtime_ns: i64) -> Result<(), Errno> {
        let time = TimeSpec::new(mtime_ns / 1_000_000_000, mtime_ns % 1_000_000_000);
        let directory = File::open("/").expect("the root opens");
        utimensat(&directory, &self.path(path), &time, &time, UtimensatFlags::FollowSymlink)
    }

    fn policy(&mut self, _who: usize, path: &str, key: &str, value: Option<&str>) -> Result<(), Errno> {
        panic!("no policies on a mount: {key} of {path} to {value:?}")
    }

    fn drop_caches(&mut self) {
        // Inodes and names, of the whole machine: what the kernel does under pressure.
        fs::write("/proc/sys/vm/drop_caches", "2").expect("root may drop caches");
    }

    fn advance(&mut self, _by: Duration, _expires: bool) {}

    fn restart(&mut self) {
        // The daemon first, or the closes would seal what is open.
        self.mount.kill9();
        for (_, opened) in self.handles.drain() {
            drop(opened);
        }
        // Descriptors of peers go with their processes.
        self.peers = (1..PROCESSES).map(|_| Peer::spawn()).collect();
        self.mount.start_daemon();
    }

    fn space(&mut self, _path: &str) -> Space {
        let usage = self.mount.usage();
        Space { capacity: usage.capacity, free: usage.available }
    }

    fn now_ns(&self) -> i64 {
        0
    }

    fn reason(&self, _path: &str) -> Option<Reason> {
        None
    }

    fn books(&self) -> Option<Books> {
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Before the daemon stops, which waits for them.
        self.handles.clear();
        self.peers.clear();
    }
}

/// The same step, done by process 0 when peers cannot be asked for it.
pub(crate) fn for_mount(op: &Op) -> Op {
    let mut op = op.clone();
    match &mut op {
        Op::Truncate { who, .. } | Op::Utimens { who, .. } | Op::Rename { who, keep: true, .. } => *who = 0,
        _ => {}
    }
    op
}
