//! Direct I/O on files, without a copy: by io_uring where it is allowed, else by threads that read and write.
//!
//! Which of the two is found out by a probe, not from a version: containers forbid io_uring by seccomp. Threads cost CPU
//! and depth, so [`Io::start`] says loudly that they are used.
//!
//! Limits: [`DEPTH`] requests are with the kernel at once; further ones wait in line. Whoever submits bounds how many
//! they are: loaders by their number, writers by their window.
//! Threads: `ssd-ring`, which owns the ring, or [`POOL_THREADS`] of the pool. A thread that waits for what it reads has a
//! ring of its own beside it ([`own`]).

mod ffi;
mod own;
mod pool;
mod requests;
mod ring;

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use nix::fcntl::{FallocateFlags, fallocate};
use tidefs_engine::types::ByteCount;

use self::ffi::Transfer;
use self::pool::Pool;
use self::ring::Ring;
use super::disk::{Completion, Disk, Request, Ticket};

/// Requests that the kernel works on at once.
const DEPTH: u32 = 128;
/// Threads where there is no ring: enough for the depth at which most disks are fast.
const POOL_THREADS: usize = 8;

/// Who moves the bytes.
#[derive(Debug)]
enum Mover {
    Ring(Ring),
    Pool(Pool),
}

/// One way to the disks, shared by all of a pool.
#[derive(Debug)]
pub(super) struct Io {
    mover: Mover,
    /// Why the ring is not used.
    fallback_reason: Option<String>,
}

/// One request on its way.
#[derive(Debug)]
struct Job {
    transfer: Transfer,
    completion: Arc<Completion>,
}

impl Job {
    /// Gives the request back, unless nobody waits for it any more: then it is not begun.
    fn if_wanted(self) -> Option<Self> {
        if !self.completion.is_abandoned() {
            return Some(self);
        }
        self.end(Err(io::ErrorKind::TimedOut.into()));
        None
    }

    fn end(self, outcome: io::Result<()>) {
        // Memory and file are let go of before anyone is told.
        let Self { transfer, completion } = self;
        drop(transfer);
        completion.end_one(outcome);
    }
}

impl Io {
    /// Starts the ring, or the pool with a warning. `wants_ring`: false takes the pool without asking.
    ///
    /// # Errors
    /// What starting a thread says.
    pub(super) fn start(wants_ring: bool) -> io::Result<Arc<Self>> {
        let refused = if wants_ring {
            match Ring::start(DEPTH) {
                Ok(ring) => return Ok(Arc::new(Self { mover: Mover::Ring(ring), fallback_reason: None })),
                Err(error) => format!("io_uring is not available: {error}"),
            }
        } else {
            "io_uring is switched off".to_owned()
        };
        tracing::warn!(
            reason = refused,
            threads = POOL_THREADS,
            "the SSD tier reads and writes by threads, which is slower"
        );
        let pool = Pool::start(POOL_THREADS)
            .map_err(|error| io::Error::new(error.kind(), format!("no threads for its I/O: {error}")))?;
        Ok(Arc::new(Self { mover: Mover::Pool(pool), fallback_reason: Some(refused) }))
    }

    /// Why the pool is used; `None` with the ring.
    pub(super) fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    fn submit(&self, job: Job) {
        match &self.mover {
            Mover::Ring(ring) => ring.submit(job),
            Mover::Pool(pool) => pool.submit(job),
        }
    }
}

/// Lets go of what the kernel has ended of the requests for which this thread does not wait any more. Returns whether there are
/// more of them. Waits for nothing.
pub(super) fn settle_abandoned() -> bool {
    own::settle()
}

/// A file, or a block device, that is opened for direct I/O.
#[derive(Debug)]
pub(super) struct FileDisk {
    file: Arc<File>,
    io: Arc<Io>,
}

impl FileDisk {
    /// A disk on `file`.
    pub(super) fn new(file: File, io: Arc<Io>) -> Self {
        Self { file: Arc::new(file), io }
    }
}

impl Disk for FileDisk {
    fn submit(&self, requests: Vec<Request>) -> Ticket {
        let (ticket, completion) = Ticket::new(requests.len());
        for request in requests {
            let transfer = Transfer::new(Arc::clone(&self.file), request);
            self.io.submit(Job { transfer, completion: Arc::clone(&completion) });
        }
        ticket
    }

    fn submit_here(&self, requests: Vec<Request>) -> Ticket {
        if matches!(self.io.mover, Mover::Pool(_)) {
            return self.submit(requests);
        }
        let (ticket, completion) = Ticket::new(requests.len());
        for request in requests {
            let transfer = Transfer::new(Arc::clone(&self.file), request);
            if let Err(job) = own::submit(Job { transfer, completion: Arc::clone(&completion) }) {
                self.io.submit(job);
            }
        }
        ticket.driven_by(own::drive)
    }

    fn allocate(&self, length: ByteCount) -> io::Result<()> {
        if self.length()? >= length {
            // Nobody but this tier makes the file longer, and it does so here; a device has all its blocks.
            return Ok(());
        }
        let length = i64::try_from(length.get()).map_err(|_| io::ErrorKind::InvalidInput)?;
        loop {
            match fallocate(&*self.file, FallocateFlags::empty(), 0, length) {
                Err(nix::errno::Errno::EINTR) => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    fn length(&self) -> io::Result<ByteCount> {
        // Of a device, metadata says nothing; the position is not used by anybody.
        (&*self.file).seek(SeekFrom::End(0)).map(ByteCount)
    }

    fn cut(&self, length: ByteCount) -> io::Result<()> {
        let metadata = self.file.metadata()?;
        if metadata.is_file() && metadata.len() > length.get() {
            self.file.set_len(length.get())
        } else {
            Ok(())
        }
    }

    fn allocated(&self) -> io::Result<ByteCount> {
        Ok(ByteCount(self.file.metadata()?.blocks() * 512))
    }
}

#[cfg(test)]
mod tests;
