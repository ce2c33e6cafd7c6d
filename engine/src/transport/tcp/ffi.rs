//! The two system calls that move payload between a socket and registered memory, without a buffer between.
//!
//! Memory that peers may change at any time is never a Rust slice: it goes to the kernel as an address and a length.

use std::io;
use std::marker::PhantomData;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

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

/// Sends what fits of at most [`PARTS_MAX`] `sources`, in order; returns how many bytes that was.
///
/// # Errors
/// `WouldBlock` when nothing fits; what sendmsg(2) says.
pub(super) fn send(socket: &TcpStream, sources: &[Source<'_>]) -> io::Result<usize> {
    let mut vectors = [Source::EMPTY.0.vector(); PARTS_MAX];
    let count = sources.len().min(PARTS_MAX);
    for (vector, source) in vectors.iter_mut().zip(sources) {
        *vector = source.0.vector();
    }
    let message = message(&mut vectors[..count]);
    // SAFETY: the socket is open for as long as it is borrowed. Each vector is a range of memory that its source borrows,
    // mapped and readable; the kernel copies from it before the call returns.
    let sent = unsafe {
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    counted(sent)
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
