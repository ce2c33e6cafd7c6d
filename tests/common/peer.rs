//! Another process, which does what the test asks: the only honest witness of what others see of a file.
//!
//! It is the test binary again, started to run [`a_peer_answers`] alone with one end of a socket as its standard
//! input. Requests and replies are length-prefixed postcard records; an answer that takes longer than
//! [`HANG`] fails the test instead of hanging it.
//!
//! A peer starts no process unless [`Peer::fork`] says so, so closing its descriptor really is the last close.

use std::env;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::unistd::Pid;

pub(crate) use super::peer_process::Facts;
use super::peer_process::{Holdings, Reply, Request, receive, send};
use super::wait::HANG;

/// Tells the test binary that it is a peer.
const MARK: &str = "TIDEFS_TEST_PEER";

/// A descriptor that a peer holds open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle(u32);

/// A mapping that a peer holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerMap(u32);

/// Another process under the test's control; it ends with the value.
#[derive(Debug)]
pub(crate) struct Peer {
    process: Child,
    socket: UnixStream,
}

impl Peer {
    /// Starts another process.
    pub(crate) fn spawn() -> Self {
        let (socket, theirs) = UnixStream::pair().expect("a socket pair");
        socket.set_read_timeout(Some(HANG)).expect("a timeout");
        socket.set_write_timeout(Some(HANG)).expect("a timeout");
        let program = env::current_exe().expect("the test binary knows its path");
        let test =
            format!("{}::a_peer_answers", module_path!().split_once("::").expect("a path in a crate").1);
        let process = Command::new(program)
            .args(["--exact", &test, "--test-threads=1", "--nocapture"])
            .env(MARK, "1")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .expect("the test binary starts again");
        Self { process, socket }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.id()).expect("a pid is an i32"))
    }

    /// Kills it, as a writer may die, and waits until it is gone.
    pub(crate) fn kill9(mut self) {
        self.process.kill().expect("a peer can be killed");
        self.process.wait().expect("a killed peer is reaped");
    }

    /// Becomes another user for good, without supplementary groups.
    pub(crate) fn become_user(&mut self, user: u32, group: u32) {
        self.done(&Request::Become { user, group }).expect("root may become anyone");
    }

    /// umask(2).
    pub(crate) fn set_umask(&mut self, mask: u32) {
        self.done(&Request::Umask { mask }).expect("it does not fail");
    }

    /// stat(2).
    pub(crate) fn stat(&mut self, path: &Path) -> Result<Facts, Errno> {
        match self.ask(&Request::Stat { path: path.into() })? {
            Reply::Facts(facts) => Ok(facts),
            other => panic!("a peer answered {other:?}"),
        }
    }

    /// access(2).
    pub(crate) fn access(&mut self, path: &Path, mode: i32) -> Result<(), Errno> {
        self.done(&Request::Access { path: path.into(), mode })
    }

    /// The sorted names in a directory.
    pub(crate) fn list(&mut self, path: &Path) -> Result<Vec<String>, Errno> {
        match self.ask(&Request::List { path: path.into() })? {
            Reply::Names(names) => Ok(names),
            other => panic!("a peer answered {other:?}"),
        }
    }

    /// All bytes of a file.
    pub(crate) fn read(&mut self, path: &Path) -> Result<Vec<u8>, Errno> {
        self.bytes(&Request::Read { path: path.into() })
    }

    /// Writes [`pattern::object`] straight to `path` (create, truncate, write, close).
    pub(crate) fn write(&mut self, path: &Path, seed: u64, length: usize) -> Result<(), Errno> {
        self.done(&Request::Write { path: path.into(), seed, length })
    }

    /// Publishes [`pattern::object`] at `path` by a temporary name beside it and a rename.
    pub(crate) fn publish(&mut self, path: &Path, seed: u64, length: usize) -> Result<(), Errno> {
        self.done(&Request::Publish { path: path.into(), seed, length })
    }

    /// open(2) with any flags; a new file gets mode 0644.
    pub(crate) fn open(&mut self, path: &Path, flags: i32) -> Result<Handle, Errno> {
        self.open_with_mode(path, flags, 0o644)
    }

    /// open(2) with any flags and mode.
    pub(crate) fn open_with_mode(&mut self, path: &Path, flags: i32, mode: u32) -> Result<Handle, Errno> {
        let handle = self.number(&Request::Open { path: path.into(), flags, mode })?;
        Ok(Handle(u32::try_from(handle).expect("a handle is a small number")))
    }

    /// close(2).
    pub(crate) fn close(&mut self, handle: Handle) -> Result<(), Errno> {
        self.done(&Request::Close { handle: handle.0 })
    }

    /// pread(2) until `length` bytes or the end of the file.
    pub(crate) fn read_at(&mut self, handle: Handle, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        self.bytes(&Request::ReadAt { handle: handle.0, offset, length })
    }

    /// pwrite(2) of all bytes.
    pub(crate) fn write_at(&mut self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.done(&Request::WriteAt { handle: handle.0, offset, bytes: bytes.to_vec() })
    }

    /// mmap(2), shared.
    pub(crate) fn map(&mut self, handle: Handle, length: usize, writable: bool) -> Result<PeerMap, Errno> {
        let map = self.number(&Request::Map { handle: handle.0, length, writable })?;
        Ok(PeerMap(u32::try_from(map).expect("a map is a small number")))
    }

    /// Bytes of a mapping.
    pub(crate) fn map_read(&mut self, map: PeerMap, offset: usize, length: usize) -> Vec<u8> {
        self.bytes(&Request::MapRead { map: map.0, offset, length }).expect("memory can be read")
    }

    /// Stores into a mapping.
    pub(crate) fn map_write(&mut self, map: PeerMap, offset: usize, bytes: &[u8]) {
        let request = Request::MapWrite { map: map.0, offset, bytes: bytes.to_vec() };
        self.done(&request).expect("memory can be written");
    }

    /// munmap(2).
    pub(crate) fn unmap(&mut self, map: PeerMap) {
        self.done(&Request::Unmap { map: map.0 }).expect("a mapping can be removed");
    }

    /// ftruncate(2).
    pub(crate) fn truncate(&mut self, handle: Handle, length: u64) -> Result<(), Errno> {
        self.done(&Request::Truncate { handle: handle.0, length })
    }

    /// Closes a duplicate of a descriptor.
    pub(crate) fn close_duplicate(&mut self, handle: Handle) -> Result<(), Errno> {
        self.done(&Request::CloseDuplicate { handle: handle.0 })
    }

    /// flock(2).
    pub(crate) fn flock(&mut self, handle: Handle, operation: i32) -> Result<(), Errno> {
        self.done(&Request::Flock { handle: handle.0, operation })
    }

    /// fcntl(`F_SETLK`) of the whole file: `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub(crate) fn record_lock(&mut self, handle: Handle, kind: i32) -> Result<(), Errno> {
        self.done(&Request::RecordLock { handle: handle.0, kind })
    }

    /// mkdir(2).
    pub(crate) fn mkdir(&mut self, path: &Path, mode: u32) -> Result<(), Errno> {
        self.done(&Request::Mkdir { path: path.into(), mode })
    }

    /// rename(2).
    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> Result<(), Errno> {
        self.done(&Request::Rename { from: from.into(), to: to.into() })
    }

    /// unlink(2).
    pub(crate) fn unlink(&mut self, path: &Path) -> Result<(), Errno> {
        self.done(&Request::Unlink { path: path.into() })
    }

    /// rmdir(2).
    pub(crate) fn rmdir(&mut self, path: &Path) -> Result<(), Errno> {
        self.done(&Request::Rmdir { path: path.into() })
    }

    /// chmod(2).
    pub(crate) fn chmod(&mut self, path: &Path, mode: u32) -> Result<(), Errno> {
        self.done(&Request::Chmod { path: path.into(), mode })
    }

    /// chown(2).
    pub(crate) fn chown(&mut self, path: &Path, user: u32, group: u32) -> Result<(), Errno> {
        self.done(&Request::Chown { path: path.into(), user, group })
    }

    /// setxattr(2).
    pub(crate) fn set_xattr(&mut self, path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
        self.done(&Request::SetXattr { path: path.into(), name: name.into(), value: value.to_vec() })
    }

    /// Forks a child that inherits every descriptor and mapping and sleeps; returns its process id.
    pub(crate) fn fork(&mut self) -> Pid {
        let child = self.number(&Request::Fork).expect("a peer can fork");
        Pid::from_raw(i32::try_from(child).expect("a pid is an i32"))
    }

    /// Lets a child of [`Peer::fork`] exit with 0, its descriptors still open, and waits until it is gone.
    pub(crate) fn end_child(&mut self, child: Pid) {
        self.done(&Request::Reap { child: child.as_raw() }).expect("a child can be reaped");
    }

    fn done(&mut self, request: &Request) -> Result<(), Errno> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            other => panic!("a peer answered {other:?}"),
        }
    }

    fn number(&mut self, request: &Request) -> Result<i64, Errno> {
        match self.ask(request)? {
            Reply::Number(number) => Ok(number),
            other => panic!("a peer answered {other:?}"),
        }
    }

    fn bytes(&mut self, request: &Request) -> Result<Vec<u8>, Errno> {
        match self.ask(request)? {
            Reply::Bytes(bytes) => Ok(bytes),
            other => panic!("a peer answered {other:?}"),
        }
    }

    #[track_caller]
    fn ask(&mut self, request: &Request) -> Result<Reply, Errno> {
        send(&mut self.socket, request).unwrap_or_else(|error| panic!("a peer took no {request:?}: {error}"));
        let reply: Result<Reply, i32> = receive(&mut self.socket)
            .unwrap_or_else(|error| panic!("a peer hangs or died at {request:?}: {error}"))
            .unwrap_or_else(|| panic!("a peer died at {request:?}"));
        reply.map_err(Errno::from_raw)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The peer process itself; as a test of its own, it shows that a peer is another process and gives errnos.
#[test]
fn a_peer_answers() {
    if env::var_os(MARK).is_some() {
        // SAFETY: descriptor 0 is the socket that `Peer::spawn` passed, and nothing else in this process uses it.
        let mut socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
        let mut holdings = Holdings::default();
        while let Ok(Some(request)) = receive::<Request>(&mut socket) {
            let reply =
                holdings.perform(request).map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL));
            send(&mut socket, &reply).expect("the test takes the reply");
        }
        std::process::exit(0);
    }
    let mut peer = Peer::spawn();
    assert_eq!(peer.stat(Path::new("/")).expect("the root exists").mode & libc::S_IFMT, libc::S_IFDIR);
    assert_eq!(peer.stat(Path::new("/no such name")), Err(Errno::ENOENT));
    assert_ne!(peer.pid(), nix::unistd::getpid());
}
