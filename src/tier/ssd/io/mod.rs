//! Direct I/O on files, without a copy: by io_uring where it is allowed, else by threads that read and write.
//!
//! Which of the two is found out by a probe, not from a version: containers forbid io_uring by seccomp. Threads cost CPU
//! and depth, so [`Io::start`] says loudly that they are used.
//!
//! Each disk has a way of its own, with a thread, or threads, of its own: one that hangs keeps those of no other busy. That
//! goes for what the kernel does by threads of the one that submitted, too. A file whose filesystem would have who submits wait
//! for it is left to threads of the kernel from the start.
//!
//! Limits: [`DEPTH`] requests of a disk are with the kernel at once; further ones wait in line. Whoever submits bounds how many
//! they are: loaders by their number, writers by their window.
//! Threads: for each disk `ssd-ring`, which owns its ring, or [`POOL_THREADS`] of its pool. A thread that waits for what it
//! reads has a ring of its own beside them ([`own`]).

mod ffi;
mod own;
mod pool;
mod requests;
mod ring;

use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use parking_lot::Mutex;
use tidefs_engine::types::ByteCount;

use self::ffi::{DiskFile, Transfer};
use self::pool::Pool;
use self::ring::Ring;
use super::disk::{Completion, Disk, Request, Ticket};

/// Requests of a disk that the kernel works on at once.
const DEPTH: u32 = 128;
/// What is said of a filesystem that could promise room and not have it later.
const NO_FALLOCATE: &str =
    "its filesystem does not allocate blocks ahead (fallocate): use another, or a block device";
/// Threads of a disk where there is no ring: enough for the depth at which most disks are fast.
const POOL_THREADS: usize = 8;

/// Who moves the bytes of a disk.
#[derive(Debug)]
enum Mover {
    Ring(Ring),
    Pool(Pool),
    /// No thread could be started: each request fails.
    Nobody,
}

impl Mover {
    fn submit(&self, job: Job) {
        match self {
            Self::Ring(ring) => ring.submit(job),
            Self::Pool(pool) => pool.submit(job),
            Self::Nobody => job.end(Err(io::Error::other("no thread could be started for its I/O"))),
        }
    }

    /// Nothing more is submitted. Returns the threads, which end when every request has.
    fn close(&mut self) -> Vec<JoinHandle<()>> {
        match self {
            Self::Ring(ring) => ring.close().into_iter().collect(),
            Self::Pool(pool) => pool.close(),
            Self::Nobody => Vec::new(),
        }
    }
}

/// The ways to the disks of a pool. Dropped after the last of them, it waits until every request ended.
#[derive(Debug)]
pub(super) struct Io {
    /// Guards what the next disk gets: that there is a way is known before there is a disk.
    spare: Mutex<Option<Mover>>,
    /// Why rings are not used.
    fallback_reason: Option<String>,
    /// Guards the threads of disks that are not used any more. A request may keep them for as long as its disk hangs.
    ending: Mutex<Vec<JoinHandle<()>>>,
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
    /// Starts a ring for the first disk, or a pool with a warning. `wants_ring`: false takes pools without asking.
    ///
    /// # Errors
    /// What starting a thread says.
    pub(super) fn start(wants_ring: bool) -> io::Result<Arc<Self>> {
        let refused = if wants_ring {
            match Ring::start(DEPTH) {
                Ok(ring) => return Ok(Self::with(Mover::Ring(ring), None)),
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
        Ok(Self::with(Mover::Pool(pool), Some(refused)))
    }

    fn with(spare: Mover, fallback_reason: Option<String>) -> Arc<Self> {
        Arc::new(Self { spare: Mutex::new(Some(spare)), fallback_reason, ending: Mutex::default() })
    }

    /// The way to one more disk. What stands in the way of that is met by its requests.
    fn one_more(&self) -> Mover {
        if let Some(spare) = self.spare.lock().take() {
            return spare;
        }
        if self.fallback_reason.is_none() {
            match Ring::start(DEPTH) {
                Ok(ring) => return Mover::Ring(ring),
                Err(error) => tracing::warn!(
                    %error,
                    threads = POOL_THREADS,
                    "there is no io_uring for one more disk of the SSD tier, which is read and written by threads, slower"
                ),
            }
        }
        match Pool::start(POOL_THREADS) {
            Ok(pool) => Mover::Pool(pool),
            Err(error) => {
                tracing::error!(%error, "there are no threads for one more disk of the SSD tier");
                Mover::Nobody
            }
        }
    }

    /// Why pools are used; `None` with rings.
    pub(super) fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        for thread in self.ending.get_mut().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the SSD tier had panicked");
            }
        }
    }
}

/// Lets go of what the kernel has ended of the requests for which this thread does not wait any more. Returns whether there are
/// more of them. Waits for nothing.
pub(super) fn settle_abandoned() -> bool {
    own::settle()
}

/// Whether this thread does that now and then.
pub(super) fn settles_abandoned() -> bool {
    own::looks_after()
}

/// A file, or a block device, that is opened for direct I/O.
#[derive(Debug)]
pub(super) struct FileDisk {
    file: Arc<DiskFile>,
    mover: Mover,
    io: Arc<Io>,
}

impl FileDisk {
    /// A disk on `file`.
    pub(super) fn new(file: File, io: Arc<Io>) -> Self {
        // One that does not even say how long it is has its requests fail.
        let length = length_of(&file).unwrap_or_default();
        Self { file: Arc::new(DiskFile::new(file, length)), mover: io.one_more(), io }
    }
}

/// How long a file, or a device, is.
fn length_of(mut file: &File) -> io::Result<ByteCount> {
    // Of a device, metadata says nothing; the position is not used by anybody.
    file.seek(SeekFrom::End(0)).map(ByteCount)
}

impl Drop for FileDisk {
    fn drop(&mut self) {
        let mut ending = self.io.ending.lock();
        ending.retain(|thread| !thread.is_finished());
        ending.extend(self.mover.close());
    }
}

impl Disk for FileDisk {
    fn submit(&self, requests: Vec<Request>) -> Ticket {
        let (ticket, completion) = Ticket::new(requests.len());
        for request in requests {
            let transfer = Transfer::new(Arc::clone(&self.file), request);
            self.mover.submit(Job { transfer, completion: Arc::clone(&completion) });
        }
        ticket
    }

    fn submit_here(&self, requests: Vec<Request>) -> Ticket {
        if !matches!(self.mover, Mover::Ring(_)) {
            return self.submit(requests);
        }
        let (ticket, completion) = Ticket::new(requests.len());
        let mut is_driven = false;
        for request in requests {
            let transfer = Transfer::new(Arc::clone(&self.file), request);
            match own::submit(Job { transfer, completion: Arc::clone(&completion) }) {
                Ok(()) => is_driven = true,
                Err(job) => self.mover.submit(job),
            }
        }
        if is_driven { ticket.driven_by(own::drive) } else { ticket }
    }

    fn allocate(&self, length: ByteCount) -> io::Result<()> {
        if self.length()? >= length {
            // Nobody but this tier makes the file longer, and it does so here; a device has all its blocks.
            return Ok(());
        }
        let length = i64::try_from(length.get()).map_err(|_| io::ErrorKind::InvalidInput)?;
        loop {
            match fallocate(&self.file.file, FallocateFlags::empty(), 0, length) {
                Err(Errno::EINTR) => {}
                Err(Errno::EOPNOTSUPP) => {
                    return Err(io::Error::new(io::ErrorKind::Unsupported, NO_FALLOCATE));
                }
                outcome => return Ok(outcome?),
            }
        }
    }

    fn length(&self) -> io::Result<ByteCount> {
        length_of(&self.file.file)
    }

    fn cut(&self, length: ByteCount) -> io::Result<()> {
        let metadata = self.file.file.metadata()?;
        if metadata.is_file() && metadata.len() > length.get() {
            self.file.file.set_len(length.get())
        } else {
            Ok(())
        }
    }

    fn allocated(&self) -> io::Result<ByteCount> {
        Ok(ByteCount(self.file.file.metadata()?.blocks() * 512))
    }

    fn is_at(&self, path: &Path) -> bool {
        let (ours, there) = (self.file.file.metadata(), std::fs::metadata(path));
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        ours.ok().map(identity).is_some_and(|ours| there.is_ok_and(|there| identity(there) == ours))
    }
}

#[cfg(test)]
mod slow_fs_tests;
#[cfg(test)]
mod tests;
