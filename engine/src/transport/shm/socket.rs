//! Sequenced-packet sockets in the abstract namespace, which pass descriptors.
//!
//! The name is random and was told over the link; it is of the network namespace, so peers in two containers of one
//! host reach each other only when they share that.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType,
    UnixAddr, accept4, bind, connect, getsockopt, listen, recvmsg, sendmsg, shutdown, socket, sockopt,
};
use nix::unistd::Uid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// The kernel passes no more descriptors with one packet (unix(7), `SCM_MAX_FD`): with less room, those that do not fit were
/// there and nobody's.
const DESCRIPTORS_MAX: usize = 253;

/// Whether a process of user `owner` gives its memory to one of user `reader`.
fn may_read(owner: Uid, reader: Uid) -> bool {
    reader.is_root() || reader == owner
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

/// Waits for connections.
#[derive(Debug)]
pub(super) struct Listener {
    socket: AsyncFd<OwnedFd>,
}

impl Listener {
    /// Listens on the abstract `name`. Called inside the runtime.
    pub(super) fn bind(name: &[u8]) -> io::Result<Self> {
        let socket = new_socket()?;
        bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
        listen(&socket, Backlog::new(BACKLOG)?)?;
        Ok(Self { socket: super::ffi::watch(socket)? })
    }

    /// The next connection of a process of this user or of root.
    pub(super) async fn accept(&self) -> io::Result<Socket> {
        loop {
            let descriptor = self
                .socket
                .async_io(Interest::READABLE, |socket| {
                    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
                    Ok(accept4(socket.as_raw_fd(), flags)?)
                })
                .await?;
            let socket = Socket::new(super::ffi::own(descriptor))?;
            if socket.is_trusted() {
                return Ok(socket);
            }
            tracing::warn!("a process of another user asked for memory and was sent away");
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Socket {
    socket: AsyncFd<OwnedFd>,
}

impl Socket {
    fn new(descriptor: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: super::ffi::watch(descriptor)? })
    }

    /// Connects to the abstract `name`. Called inside the runtime.
    pub(super) fn connect(name: &[u8]) -> io::Result<Self> {
        let socket = new_socket()?;
        connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
        Self::new(socket)
    }

    /// The user that the other end runs as; where this end connected, the one that listens (unix(7), `SO_PEERCRED`).
    fn user(&self) -> Option<Uid> {
        let credentials = getsockopt(&self.socket.as_fd(), sockopt::PeerCredentials).ok()?;
        Some(Uid::from_raw(credentials.uid()))
    }

    /// Whether the other end is given memory of this process.
    pub(super) fn is_trusted(&self) -> bool {
        self.user().is_some_and(|reader| may_read(Uid::effective(), reader))
    }

    /// Whether the other end gives memory to this process.
    pub(super) fn trusts_us(&self) -> bool {
        self.user().is_some_and(|owner| may_read(owner, Uid::effective()))
    }

    /// Tells the other end that no more is sent, or received. One that is gone needs not be told.
    pub(super) fn shut_down(&self, how: Shutdown) {
        let _ = shutdown(self.socket.as_raw_fd(), how);
    }

    /// Sends one packet, with a descriptor when there is one.
    pub(super) async fn send(&self, packet: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let raw: Option<[RawFd; 1]> = descriptor.map(|descriptor| [descriptor.as_raw_fd()]);
        self.socket
            .async_io(Interest::WRITABLE, |socket| {
                let rights = raw.as_ref().map(|raw| ControlMessage::ScmRights(raw));
                let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
                let sent = sendmsg::<()>(
                    socket.as_raw_fd(),
                    &[IoSlice::new(packet)],
                    rights.as_slice(),
                    flags,
                    None,
                )?;
                if sent == packet.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
            })
            .await
    }

    /// Receives one packet of at most `packet.len()` bytes. Zero bytes: the other end is gone. Without the descriptor that was
    /// passed with it, where this process may have no more.
    pub(super) async fn receive(&self, packet: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        self.socket
            .async_io(Interest::READABLE, |socket| {
                let mut space = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
                let mut parts = [IoSliceMut::new(packet)];
                let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
                let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
                let mut passed = Vec::new();
                // Refused where this process has no room for a descriptor that was passed: then the packet comes without.
                for part in message.cmsgs().into_iter().flatten() {
                    if let ControlMessageOwned::ScmRights(descriptors) = part {
                        passed.extend(descriptors.into_iter().map(super::ffi::own));
                    }
                }
                // A peer that passes more than one, or whose packet is too long, breaks the protocol; what it passed is closed.
                if passed.len() > 1 || message.flags.contains(MsgFlags::MSG_TRUNC) {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                Ok((message.bytes, passed.pop()))
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_to_its_own_user_and_to_root() {
        let [root, one, other] = [0, 1000, 1001].map(Uid::from_raw);
        assert!(may_read(root, root) && may_read(one, root) && may_read(one, one));
        assert!(!may_read(one, other) && !may_read(root, one));
    }
}
