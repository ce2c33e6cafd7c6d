//! What owns the descriptors that the kernel hands out on a unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, accept4, recvmsg, sendmsg};
use tokio::io::unix::AsyncFd;

/// Sends `bytes` as one message, with `descriptor` if there is one. Does not block.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> nix::Result<()> {
    let raw: Vec<RawFd> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None).map(|_| ())
}

/// Receives one message into `bytes`, and the descriptor that came with it. Returns its length, 0 at the end. A
/// longer message is cut, surplus descriptors are closed. Does not block.
pub(super) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<(usize, Option<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let mut slices = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    let mut received = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            // SAFETY: unix(7): the descriptors of SCM_RIGHTS are new in this process, so nobody else owns them.
            received.extend(descriptors.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
        }
    }
    Ok((message.bytes, received.into_iter().next()))
}

/// Accepts a connection of `listener`. Does not block.
pub(super) fn accept(listener: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let accepted = accept4(listener.as_raw_fd(), flags)?;
    // SAFETY: accept(2) returned a descriptor that is new in this process, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(accepted) })
}

/// Puts `socket` under the watch of the runtime that the caller is in.
pub(super) fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: `OwnedFd` gives the same open descriptor for as long as it lives, which is as long as the `AsyncFd`.
    let watched = unsafe { AsyncFd::register(socket) };
    watched.map_err(io::Error::from)
}
