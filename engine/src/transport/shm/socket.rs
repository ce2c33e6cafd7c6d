//! The unix socket between two processes of a host: whole messages of fixed length, in order, with descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen,
    shutdown, socket, sockopt,
};
use tokio::io::unix::AsyncFd;

use super::ffi;
use super::message::{FRAME_BYTES, Frame};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

/// Where others connect: a name in the abstract namespace, which ends with the socket.
#[derive(Debug)]
pub(super) struct Listener {
    socket: AsyncFd<OwnedFd>,
}

impl Listener {
    /// Listens at `name`. Called inside a runtime.
    pub(super) fn bind(name: &[u8]) -> io::Result<Self> {
        let socket = new_socket()?;
        bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
        listen(&socket, Backlog::new(BACKLOG)?)?;
        Ok(Self { socket: ffi::watch(socket)? })
    }

    /// The next connection.
    pub(super) async fn accept(&self) -> io::Result<Socket> {
        loop {
            let mut ready = self.socket.readable().await?;
            let accepted =
                ready.try_io(|listener| ffi::accept(listener.get_ref().as_fd()).map_err(io::Error::from));
            if let Ok(accepted) = accepted {
                return Socket::new(accepted?);
            }
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Socket {
    socket: AsyncFd<OwnedFd>,
}

impl Socket {
    fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: ffi::watch(socket)? })
    }

    /// Connects to the listener `name`. Called inside a runtime; does not wait.
    pub(super) fn connect(name: &[u8]) -> io::Result<Self> {
        let socket = new_socket()?;
        connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
        Self::new(socket)
    }

    /// The user that the process at the other end had when it connected or listened.
    pub(super) fn peer_user(&self) -> io::Result<u32> {
        Ok(getsockopt(self.socket.get_ref(), sockopt::PeerCredentials)?.uid())
    }

    /// Sends one message.
    pub(super) async fn send(&self, frame: Frame, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        loop {
            let mut ready = self.socket.writable().await?;
            let sent = ready.try_io(|socket| {
                ffi::send(socket.get_ref().as_fd(), &frame.to_bytes(), descriptor).map_err(io::Error::from)
            });
            if let Ok(sent) = sent {
                return sent;
            }
        }
    }

    /// Receives one message; `None` when the other end is closed.
    ///
    /// # Errors
    /// `InvalidData` for a message of another length.
    pub(super) async fn receive(&self) -> io::Result<Option<(Frame, Option<OwnedFd>)>> {
        // One byte more than a message, so that a longer one is seen.
        let mut bytes = [0; FRAME_BYTES + 1];
        loop {
            let mut ready = self.socket.readable().await?;
            let received = ready
                .try_io(|socket| ffi::receive(socket.get_ref().as_fd(), &mut bytes).map_err(io::Error::from));
            let Ok(received) = received else { continue };
            let (length, descriptor) = received?;
            if length == 0 {
                return Ok(None);
            }
            let frame = Frame::from_bytes(&bytes[..length]);
            let frame = frame.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
            return Ok(Some((frame, descriptor)));
        }
    }

    /// Tells the other end that nothing more comes; what it sends is still received.
    pub(super) fn finish(&self) {
        // It fails only when the other end is gone, which `receive` says.
        let _ = shutdown(self.socket.get_ref().as_raw_fd(), Shutdown::Write);
    }
}
