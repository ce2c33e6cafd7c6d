//! The system calls that move payload between a socket and registered memory, without a buffer between, and those that
//! tell what the kernel still reads of it.
//!
//! Memory that peers may change at any time is never a Rust slice: it goes to the kernel as an address and a length.

use std::io;
use std::marker::PhantomData;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use crate::memory::MemorySlice;

/// Parts that one call takes.
pub(super) const PARTS_MAX: usize = 16;

/// A range to be read from, alive as long as what it borrows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a>(Range<'a>);

/// A range to be written to, alive as long as what it borrows.
#[derive(Debug)]
pub(super) struct Target<'a>(Range<'a>);

#[derive(Clone, Copy, Debug)]
struct Range<'a> {
    start: *mut u8,
    length: usize,
    _owner: PhantomData<&'a ()>,
}

impl Range<'_> {
    /// At most `length` bytes of `slice`, `from` bytes in.
    fn of(slice: &MemorySlice, from: usize, length: usize) -> Self {
        let from = from.min(slice.length());
        // `from` is inside the slice, which is inside its region.
        Self {
            start: slice.start().wrapping_add(from),
            length: length.min(slice.length() - from),
            _owner: PhantomData,
        }
    }

    fn vector(&self) -> libc::iovec {
        libc::iovec { iov_base: self.start.cast(), iov_len: self.length }
    }
}

impl<'a> Source<'a> {
    pub(super) const EMPTY: Self =
        Self(Range { start: std::ptr::null_mut(), length: 0, _owner: PhantomData });

    pub(super) fn memory(slice: &'a MemorySlice, from: usize, length: usize) -> Self {
        Self(Range::of(slice, from, length))
    }

    pub(super) fn bytes(bytes: &'a [u8]) -> Self {
        Self(Range { start: bytes.as_ptr().cast_mut(), length: bytes.len(), _owner: PhantomData })
    }

    pub(super) fn length(&self) -> usize {
        self.0.length
    }
}

impl<'a> Target<'a> {
    /// The region of `slice` must be writable; else the call ends with `EFAULT`.
    pub(super) fn memory(slice: &'a MemorySlice, from: usize, length: usize) -> Self {
        Self(Range::of(slice, from, length))
    }

    pub(super) fn bytes(bytes: &'a mut [u8]) -> Self {
        Self(Range { start: bytes.as_mut_ptr(), length: bytes.len(), _owner: PhantomData })
    }

    pub(super) fn length(&self) -> usize {
        self.0.length
    }
}

/// A message of `vectors` and nothing else.
fn message(vectors: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: msghdr is plain data, for which all zeros mean "no address, no control data, no flags" (recvmsg(2)).
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len();
    message
}

fn counted(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// How bytes leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// The kernel copies them before the call returns.
    Copied,
    /// The same, and more follows at once.
    CopiedWithMore,
    /// The kernel may read them where they lie, until it says that it is done with this call: see [`next_notice`]. Only on
    /// a socket that [`allow_zero_copy`] was called for.
    InPlace,
}

impl How {
    fn flags(self) -> libc::c_int {
        let own = match self {
            Self::Copied => 0,
            Self::CopiedWithMore => libc::MSG_MORE,
            Self::InPlace => libc::MSG_ZEROCOPY,
        };
        own | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT
    }
}

/// Sends what fits of at most [`PARTS_MAX`] `sources`, in order; returns how many bytes that was.
///
/// # Errors
/// `WouldBlock` when nothing fits; `ENOBUFS` when the kernel has no room to note a send from where bytes lie, of which it
/// has sent nothing then; what sendmsg(2) says.
pub(super) fn send(socket: &TcpStream, sources: &[Source<'_>], how: How) -> io::Result<usize> {
    let mut vectors = [Source::EMPTY.0.vector(); PARTS_MAX];
    let count = sources.len().min(PARTS_MAX);
    for (vector, source) in vectors.iter_mut().zip(sources) {
        *vector = source.0.vector();
    }
    let message = message(&mut vectors[..count]);
    // SAFETY: the socket is open for as long as it is borrowed. Each vector is a range of memory that its source borrows,
    // mapped and readable; the kernel copies from it before the call returns, or holds its pages by itself
    // (Documentation/networking/msg_zerocopy.rst), so that they stay even where the mapping does not.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, how.flags()) };
    counted(sent)
}

/// Lets `socket` send from where bytes lie.
///
/// # Errors
/// What setsockopt(2) says of `SO_ZEROCOPY`.
pub(super) fn allow_zero_copy(socket: &TcpStream) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&on)).unwrap_or_default();
    // SAFETY: the value is an int that lives through the call, of the length that is given (socket(7)).
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const on).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends from where bytes lay that the kernel is done with: successful calls of a socket, counted from 0 and over 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) first: u32,
    pub(super) last: u32,
    /// Whether it has copied them after all.
    pub(super) is_copied: bool,
}

/// Origin of a notice, and its code when the kernel has copied: `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` of
/// linux/errqueue.h.
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;

/// Room for one control message of the error queue, a `sock_extended_err` and an address, aligned as its header.
#[repr(align(8))]
struct Control([u8; 256]);

/// The next notice in the error queue of `socket`; `None` when there is none. Other messages are taken and dropped.
///
/// # Errors
/// What recvmsg(2) says.
pub(super) fn next_notice(socket: &TcpStream) -> io::Result<Option<Notice>> {
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    loop {
        let mut control = Control([0; 256]);
        let message = match recvmsg::<()>(socket.as_raw_fd(), &mut [], Some(&mut control.0), flags) {
            Ok(message) => message,
            Err(nix::Error::EAGAIN) => return Ok(None),
            Err(nix::Error::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for control in message.cmsgs()? {
            let (ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _)) =
                control
            else {
                continue;
            };
            if error.ee_errno == 0 && error.ee_origin == ORIGIN_ZEROCOPY {
                let is_copied = error.ee_code == CODE_COPIED;
                return Ok(Some(Notice { first: error.ee_info, last: error.ee_data, is_copied }));
            }
        }
    }
}

/// Ends the connection of `socket` at once and drops what it has not sent, so that the kernel lets go of its memory. The
/// socket stays, and with it its notices.
pub(super) fn abort(socket: &TcpStream) {
    // SAFETY: sockaddr is plain data; all zeros are an address of the family AF_UNSPEC, which dissolves the association of
    // a socket (connect(2)).
    let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
    let length = libc::socklen_t::try_from(size_of_val(&nowhere)).unwrap_or_default();
    // SAFETY: the address lives through the call, and is of the length that is given.
    let result = unsafe { libc::connect(socket.as_raw_fd(), &raw const nowhere, length) };
    if result != 0 {
        // Then the peer, or the limit of silence, ends it.
        tracing::warn!(error = %io::Error::last_os_error(), "a data connection is not aborted");
    }
}

/// Receives what is there into at most [`PARTS_MAX`] `targets`, filled in order; returns how many bytes that was, 0 at
/// the end of the stream. When they are not filled the socket was emptied.
///
/// # Errors
/// `WouldBlock` when nothing is there; what recvmsg(2) says.
pub(super) fn receive(socket: &TcpStream, targets: &[Target<'_>]) -> io::Result<usize> {
    let mut vectors = [Source::EMPTY.0.vector(); PARTS_MAX];
    let count = targets.len().min(PARTS_MAX);
    for (vector, target) in vectors.iter_mut().zip(targets) {
        *vector = target.0.vector();
    }
    let mut message = message(&mut vectors[..count]);
    // SAFETY: the socket is open for as long as it is borrowed. Each vector is a range that its target borrows, mapped; of
    // memory, which others may use at the same time, no Rust reference exists, and of bytes the target holds the only one.
    // The kernel stores into it before the call returns.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    counted(received)
}
