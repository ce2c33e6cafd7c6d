//! Scratch space for tests, and files whose last close takes its time, as that of one in many pieces does on a disk.

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tidefs_engine::types::ByteCount;

use super::{Scratch, ScratchError, ScratchFile, Wait};

impl Scratch {
    pub(crate) fn create(self: &Arc<Self>) -> Result<ScratchFile, ScratchError> {
        self.create_within(Wait::Patiently)
    }
}

impl ScratchFile {
    pub(super) fn write_at(&self, data: &[u8], offset: u64) -> Result<(), ScratchError> {
        self.write_within(data, offset, Wait::Patiently)
    }

    pub(super) fn grow(&self, offset: u64, length: ByteCount, keep_size: bool) -> Result<(), ScratchError> {
        self.grow_within(offset, length, keep_size, Wait::Patiently)
    }
}

/// Space for 1 MiB, in which nobody waits for longer than `patience`, and where it is.
pub(super) fn space(patience: Duration) -> (tempfile::TempDir, Arc<Scratch>) {
    let directory = tempfile::tempdir().unwrap();
    let mut space = Scratch::new(vec![directory.path().to_path_buf()], true, ByteCount::mib(1));
    Arc::get_mut(&mut space).unwrap().patience = patience;
    (directory, space)
}

/// Has `space` hold as many files as it may, of which one is being closed until the other end of the connection is dropped.
pub(crate) fn without_a_place(space: &Arc<Scratch>) -> TcpStream {
    let (file, peer) = slow_to_close(space, ByteCount::ZERO);
    let rest = space.files.max() - space.files.taken();
    space.files.try_claim(rest).unwrap().settle(0, rest);
    drop(file);
    peer
}

/// A file of `space` that counts for `charged` bytes, and whose last close takes until what stands in the connection is read, or
/// its other end is dropped: it waits for its peer to take what was sent, as that of a file waits for a disk.
pub(crate) fn slow_to_close(space: &Arc<Scratch>, charged: ByteCount) -> (ScratchFile, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    let linger = libc::linger { l_onoff: 1, l_linger: 30 };
    nix::sys::socket::setsockopt(&sender, nix::sys::socket::sockopt::Linger, &linger).unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[1; 65536]).is_ok() {}
    let place = space.files.try_claim(1).unwrap();
    let file = space.count(place, File::from(OwnedFd::from(sender)), 0);
    space.bytes.try_claim(charged.get()).unwrap().settle(0, charged.get());
    *file.charged.lock() = charged.get();
    (file, peer)
}
