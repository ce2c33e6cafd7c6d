//! A request as the kernel takes it: a file, an offset and the addresses of pages.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::squeue::{Entry, Flags, PushError};
use io_uring::{IoUring, opcode, types};
use tidefs_engine::types::ByteCount;

use super::super::disk::Request;
use super::super::format::{BLOCK, BLOCK_BYTES};
use super::super::memory::{Buffer, Piece};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
    Flush,
}

/// The file of a disk.
#[derive(Debug)]
pub(super) struct DiskFile {
    pub(super) file: File,
    /// Whether its filesystem has whoever submits a request wait for the end of it, as FUSE has, and NFS and SMB on older
    /// kernels: threads of the kernel are to submit it then.
    waits: bool,
}

impl DiskFile {
    /// A file of `length` bytes.
    pub(super) fn new(file: File, length: ByteCount) -> Self {
        let waits = !takes_requests_at_once(&file, length);
        Self { file, waits }
    }
}

/// Whether a file takes requests without waiting for their end. preadv2(2) of `RWF_NOWAIT`: "if this flag is not supported by
/// the filesystem, EOPNOTSUPP is returned", which is said before the filesystem is asked; and behind the end of a file nothing
/// is read.
fn takes_requests_at_once(file: &File, length: ByteCount) -> bool {
    let buffer = Arc::new(Buffer::zeroed(BLOCK));
    let vector = libc::iovec { iov_base: Piece::of_buffer(&buffer).start().cast(), iov_len: BLOCK };
    let offset = i64::try_from(length.get().next_multiple_of(BLOCK_BYTES)).unwrap_or(0);
    // SAFETY: `vector` is one range of `buffer`, which nobody else has and which outlives the call; the descriptor is open.
    let outcome = unsafe { libc::preadv2(file.as_raw_fd(), &raw const vector, 1, offset, libc::RWF_NOWAIT) };
    outcome >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EOPNOTSUPP)
}

/// One request, with everything that the kernel may touch while it works on it.
#[derive(Debug)]
pub(super) struct Transfer {
    file: Arc<DiskFile>,
    direction: Direction,
    offset: u64,
    /// What is left to move; its addresses lie in `_pieces`.
    vectors: Vec<libc::iovec>,
    _pieces: Vec<Piece>,
}

// SAFETY: the addresses in `vectors` point into `_pieces`, whose memory may be touched from any thread and lives as long
// as the transfer.
unsafe impl Send for Transfer {}

impl Transfer {
    /// The request on `file`.
    pub(super) fn new(file: Arc<DiskFile>, request: Request) -> Self {
        let (direction, offset, pieces) = match request {
            Request::Read { offset, pieces } => (Direction::Read, offset, pieces),
            Request::Write { offset, pieces } => (Direction::Write, offset, pieces),
            Request::Flush => (Direction::Flush, 0, Vec::new()),
        };
        let vectors = pieces
            .iter()
            .map(|piece| libc::iovec { iov_base: piece.start().cast(), iov_len: piece.length() })
            .collect();
        Self { file, direction, offset, vectors, _pieces: pieces }
    }

    /// The submission of what is left to do.
    pub(super) fn entry(&self) -> Entry {
        let file = types::Fd(self.file.file.as_raw_fd());
        let count = u32::try_from(self.vectors.len()).unwrap_or(u32::MAX);
        let entry = match self.direction {
            Direction::Read => {
                opcode::Readv::new(file, self.vectors.as_ptr(), count).offset(self.offset).build()
            }
            Direction::Write => {
                opcode::Writev::new(file, self.vectors.as_ptr(), count).offset(self.offset).build()
            }
            Direction::Flush => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
        };
        if self.file.waits { entry.flags(Flags::ASYNC) } else { entry }
    }

    /// Does what is left in the calling thread. Returns what the system call says.
    pub(super) fn call(&self) -> i64 {
        let file = self.file.file.as_raw_fd();
        let vectors = self.vectors.as_ptr();
        let count = i32::try_from(self.vectors.len()).unwrap_or(i32::MAX);
        let offset = i64::try_from(self.offset).unwrap_or(i64::MAX);
        let outcome = match self.direction {
            // SAFETY: `vectors` holds `count` ranges inside pieces that `self` keeps mapped; the descriptor is open.
            Direction::Read => unsafe { libc::preadv(file, vectors, count, offset) as i64 },
            // SAFETY: as above.
            Direction::Write => unsafe { libc::pwritev(file, vectors, count, offset) as i64 },
            // SAFETY: takes an open descriptor and no memory.
            Direction::Flush => i64::from(unsafe { libc::fdatasync(file) }),
        };
        if outcome < 0 {
            -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
        } else {
            outcome
        }
    }

    /// Takes the kernel's answer. `None`: there is more to do, submit again.
    pub(super) fn advance(&mut self, answer: i64) -> Option<io::Result<()>> {
        match i32::try_from(-answer) {
            Ok(libc::EINTR | libc::EAGAIN) => return None,
            Ok(errno) if errno > 0 => return Some(Err(io::Error::from_raw_os_error(errno))),
            _ => {}
        }
        if self.direction == Direction::Flush {
            return Some(Ok(()));
        }
        let mut moved = usize::try_from(answer).unwrap_or(0);
        if moved == 0 && !self.vectors.is_empty() {
            return Some(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        self.offset += moved as u64;
        while let Some(first) = self.vectors.first_mut() {
            if first.iov_len > moved {
                first.iov_base = first.iov_base.cast::<u8>().wrapping_add(moved).cast();
                first.iov_len -= moved;
                break;
            }
            moved -= first.iov_len;
            self.vectors.remove(0);
        }
        self.vectors.is_empty().then_some(Ok(()))
    }
}

/// Hands an entry to the kernel at its next submit.
///
/// # Errors
/// When the queue is full.
pub(super) fn push(ring: &mut IoUring, entry: &Entry) -> Result<(), PushError> {
    // SAFETY: entries are built by `Transfer::entry`, whose transfer the ring's thread keeps until its completion, and
    // by `wake_entry`, which names a counter that lives as long as the ring.
    unsafe { ring.submission().push(entry) }
}

/// The number that a wake-up's read fills.
#[derive(Debug)]
pub(super) struct WakeCounter(Box<std::cell::UnsafeCell<u64>>);

impl WakeCounter {
    /// A counter to read into. Dropped after the ring.
    pub(super) fn new() -> Self {
        Self(Box::new(std::cell::UnsafeCell::new(0)))
    }

    /// A read of the event descriptor, which ends when somebody wakes the ring.
    pub(super) fn entry(&self, event: i32) -> Entry {
        opcode::Read::new(types::Fd(event), self.0.get().cast(), 8).build()
    }
}

// SAFETY: the number is only written by the kernel and read by nobody.
unsafe impl Send for WakeCounter {}
