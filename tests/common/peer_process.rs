//! The other side of a [`super::peer::Peer`]: what the other process is asked, and how it does it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Gid, Pid, Uid};
use serde::{Deserialize, Serialize};

use super::pattern;
use super::sys::Mapping;

/// What a peer can be asked to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Become { user: u32, group: u32 },
    Umask { mask: u32 },
    Stat { path: PathBuf },
    Access { path: PathBuf, mode: i32 },
    List { path: PathBuf },
    Read { path: PathBuf },
    Write { path: PathBuf, seed: u64, length: usize },
    Publish { path: PathBuf, seed: u64, length: usize },
    Open { path: PathBuf, flags: i32, mode: u32 },
    Close { handle: u32 },
    ReadAt { handle: u32, offset: u64, length: usize },
    WriteAt { handle: u32, offset: u64, bytes: Vec<u8> },
    Map { handle: u32, length: usize, writable: bool },
    MapRead { map: u32, offset: usize, length: usize },
    MapWrite { map: u32, offset: usize, bytes: Vec<u8> },
    Unmap { map: u32 },
    Truncate { handle: u32, length: u64 },
    CloseDuplicate { handle: u32 },
    Flock { handle: u32, operation: i32 },
    RecordLock { handle: u32, kind: i32 },
    Mkdir { path: PathBuf, mode: u32 },
    Rename { from: PathBuf, to: PathBuf },
    Unlink { path: PathBuf },
    Rmdir { path: PathBuf },
    Chmod { path: PathBuf, mode: u32 },
    Chown { path: PathBuf, user: u32, group: u32 },
    SetXattr { path: PathBuf, name: String, value: Vec<u8> },
    Fork,
    Reap { child: i32 },
}

/// What a peer answers; an error is an errno.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    Number(i64),
    Facts(Facts),
    Bytes(Vec<u8>),
    Names(Vec<String>),
}

/// What another process sees of a file by stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// `st_ino`.
    pub(crate) inode: u64,
    /// `st_size`.
    pub(crate) size: u64,
    /// `st_mode`.
    pub(crate) mode: u32,
    /// `st_uid`.
    pub(crate) user: u32,
    /// `st_gid`.
    pub(crate) group: u32,
    /// `st_nlink`.
    pub(crate) links: u64,
}

/// Writes one record.
pub(super) fn send<T: Serialize>(socket: &mut UnixStream, record: &T) -> io::Result<()> {
    let record = postcard::to_allocvec(record).map_err(io::Error::other)?;
    let length = u32::try_from(record.len()).map_err(io::Error::other)?;
    socket.write_all(&length.to_le_bytes())?;
    socket.write_all(&record)
}

/// Reads one record; `None` when the other side is gone.
pub(super) fn receive<T: for<'a> Deserialize<'a>>(socket: &mut UnixStream) -> io::Result<Option<T>> {
    let mut length = [0_u8; 4];
    match socket.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut record = vec![0_u8; usize::try_from(u32::from_le_bytes(length)).map_err(io::Error::other)?];
    socket.read_exact(&mut record)?;
    postcard::from_bytes(&record).map(Some).map_err(io::Error::other)
}

/// What a peer holds between requests.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    files: HashMap<u32, File>,
    maps: HashMap<u32, Mapping>,
    children: HashMap<i32, OwnedFd>,
    next: u32,
}

impl Holdings {
    pub(super) fn perform(&mut self, request: Request) -> io::Result<Reply> {
        match request {
            Request::Become { user, group } => {
                nix::unistd::setgroups(&[])?;
                let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
                nix::unistd::setresgid(group, group, group)?;
                nix::unistd::setresuid(user, user, user)?;
            }
            Request::Umask { mask } => {
                nix::sys::stat::umask(Mode::from_bits_retain(mask));
            }
            Request::Stat { path } => return fs::metadata(path).map(|facts| Reply::Facts(facts_of(&facts))),
            Request::Access { path, mode } => {
                nix::unistd::access(&path, nix::unistd::AccessFlags::from_bits_retain(mode))?;
            }
            Request::List { path } => {
                let names =
                    fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
                let mut names = names.collect::<io::Result<Vec<_>>>()?;
                names.sort();
                return Ok(Reply::Names(names));
            }
            Request::Read { path } => return fs::read(path).map(Reply::Bytes),
            Request::Write { path, seed, length } => fs::write(path, pattern::object(seed, length))?,
            Request::Publish { path, seed, length } => {
                let mut temporary = path.clone().into_os_string();
                temporary.push(format!(".{}.tmp", std::process::id()));
                fs::write(&temporary, pattern::object(seed, length))?;
                fs::rename(&temporary, path)?;
            }
            Request::Open { path, flags, mode } => {
                let (flags, mode) = (OFlag::from_bits_retain(flags), Mode::from_bits_retain(mode));
                let file = nix::fcntl::open(&path, flags | OFlag::O_CLOEXEC, mode)?;
                self.next += 1;
                self.files.insert(self.next, File::from(file));
                return Ok(Reply::Number(self.next.into()));
            }
            Request::Close { handle } => {
                let file = self.files.remove(&handle).expect("the handle is open");
                nix::unistd::close(OwnedFd::from(file))?;
            }
            Request::ReadAt { handle, offset, length } => {
                return read_at(&self.files[&handle], offset, length).map(Reply::Bytes);
            }
            Request::WriteAt { handle, offset, bytes } => self.files[&handle].write_all_at(&bytes, offset)?,
            Request::Map { handle, length, writable } => {
                let file = &self.files[&handle];
                let map = if writable {
                    Mapping::shared_writable(file, length)
                } else {
                    Mapping::shared(file, length)
                };
                self.next += 1;
                self.maps.insert(self.next, map?);
                return Ok(Reply::Number(self.next.into()));
            }
            Request::MapRead { map, offset, length } => {
                return Ok(Reply::Bytes(self.maps[&map].read(offset, length)));
            }
            Request::MapWrite { map, offset, bytes } => self.maps[&map].write(offset, &bytes),
            Request::Unmap { map } => drop(self.maps.remove(&map)),
            Request::CloseDuplicate { handle } => drop(self.files[&handle].try_clone()?),
            Request::Truncate { handle, length } => self.files[&handle].set_len(length)?,
            Request::Flock { handle, operation } => flock(&self.files[&handle], operation)?,
            Request::RecordLock { handle, kind } => record_lock(&self.files[&handle], kind)?,
            Request::Mkdir { path, mode } => nix::unistd::mkdir(&path, Mode::from_bits_retain(mode))?,
            Request::Rename { from, to } => fs::rename(from, to)?,
            Request::Unlink { path } => fs::remove_file(path)?,
            Request::Rmdir { path } => fs::remove_dir(path)?,
            Request::Chmod { path, mode } => fs::set_permissions(path, fs::Permissions::from_mode(mode))?,
            Request::Chown { path, user, group } => std::os::unix::fs::chown(path, Some(user), Some(group))?,
            Request::SetXattr { path, name, value } => super::sys::set_xattr(&path, &name, &value)?,
            Request::Fork => {
                let (child, leash) = fork_sleeper()?;
                self.children.insert(child.as_raw(), leash);
                return Ok(Reply::Number(child.as_raw().into()));
            }
            Request::Reap { child } => {
                drop(self.children.remove(&child));
                waitpid(Pid::from_raw(child), None)?;
            }
        }
        Ok(Reply::Done)
    }
}

fn facts_of(metadata: &fs::Metadata) -> Facts {
    Facts {
        inode: metadata.ino(),
        size: metadata.size(),
        mode: metadata.mode(),
        user: metadata.uid(),
        group: metadata.gid(),
        links: metadata.nlink(),
    }
}

/// Reads until `length` bytes or the end of the file.
fn read_at(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0_u8; length];
    let mut filled = 0;
    while filled < length {
        let at = offset + u64::try_from(filled).map_err(io::Error::other)?;
        match file.read_at(&mut bytes[filled..], at)? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// flock(2) on a borrowed descriptor.
fn flock(file: &File, operation: i32) -> io::Result<()> {
    // SAFETY: a system call on a descriptor that `file` keeps open.
    Errno::result(unsafe { libc::flock(file.as_raw_fd(), operation) })?;
    Ok(())
}

/// fcntl(`F_SETLK`) of the whole file.
fn record_lock(file: &File, kind: i32) -> io::Result<()> {
    // SAFETY: an all-zero `struct flock` is valid: the whole file, relative to its start.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind.try_into().expect("a small constant");
    nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_SETLK(&lock))?;
    Ok(())
}

/// Forks a child that sleeps until the other end of a pipe is closed and then exits with 0; returns that end.
fn fork_sleeper() -> io::Result<(Pid, OwnedFd)> {
    let (ours, theirs) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    // SAFETY: the child makes async-signal-safe calls only (close, read, _exit) and never returns.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok((child, theirs)),
        ForkResult::Child => {
            drop(theirs);
            let _ = nix::unistd::read(&ours, &mut [0_u8]);
            // SAFETY: ends the process without running anything of the parent's.
            unsafe { libc::_exit(0) }
        }
    }
}
