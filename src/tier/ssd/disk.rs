//! A disk as the tier sees it: a range of blocks that are read, written and flushed, and whose completion is waited for.
//!
//! Everything above works on this trait, so that crash tests can put a disk under it that remembers each write.
//!
//! Limits: who waits says for how long. A request whose waiter gave up goes on when the disk has it already, and keeps its
//! memory until it ends; one that waits in line, or that the disk had no answer for, is not begun any more.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidefs_engine::types::ByteCount;

use super::memory::Piece;

/// One thing for a disk to do.
#[derive(Debug)]
pub(super) enum Request {
    /// Fill the pieces, one after the other, from `offset` on.
    Read {
        /// On the disk, in bytes.
        offset: u64,
        /// Where to.
        pieces: Vec<Piece>,
    },
    /// Write the pieces, one after the other, at `offset`.
    Write {
        /// On the disk, in bytes.
        offset: u64,
        /// Where from.
        pieces: Vec<Piece>,
    },
    /// Make everything durable that was written before.
    Flush,
}

impl Request {
    /// Writes one piece.
    pub(super) fn write(offset: u64, piece: Piece) -> Self {
        Self::Write { offset, pieces: vec![piece] }
    }

    /// Reads into one piece.
    pub(super) fn read(offset: u64, piece: Piece) -> Self {
        Self::Read { offset, pieces: vec![piece] }
    }
}

#[derive(Debug)]
struct Progress {
    left: usize,
    /// The first one, until it is told.
    error: Option<io::Error>,
    has_failed: bool,
}

/// The end of some requests that were submitted together.
#[derive(Debug)]
pub(super) struct Completion {
    progress: Mutex<Progress>,
    ended: Condvar,
    is_abandoned: AtomicBool,
}

impl Completion {
    /// Whether all requests ended.
    pub(super) fn is_over(&self) -> bool {
        self.progress.lock().left == 0
    }

    /// Whether all requests ended, and none with an error. Of one that failed nobody knows whether the disk has it yet.
    pub(super) fn has_ended_well(&self) -> bool {
        let progress = self.progress.lock();
        progress.left == 0 && !progress.has_failed
    }

    /// Whether nobody waits for the end any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Relaxed)
    }

    /// One request ended. Called once for each.
    pub(super) fn end_one(&self, outcome: io::Result<()>) {
        let mut progress = self.progress.lock();
        progress.left = progress.left.saturating_sub(1);
        if let Err(error) = outcome {
            progress.error.get_or_insert(error);
            progress.has_failed = true;
        }
        if progress.left == 0 {
            self.ended.notify_all();
        }
    }
}

/// Makes requests go on in the thread that waits for them, until they ended or the time is over.
pub(super) type Drive = fn(&Completion, Duration);

/// A promise that some requests end. Dropping it says that nobody waits for that.
#[derive(Debug)]
pub(super) struct Ticket {
    completion: Arc<Completion>,
    drive: Option<Drive>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.completion.is_abandoned.store(true, Ordering::Relaxed);
    }
}

impl Ticket {
    /// A ticket for `count` requests, and the side on which they end.
    pub(super) fn new(count: usize) -> (Self, Arc<Completion>) {
        let progress = Mutex::new(Progress { left: count, error: None, has_failed: false });
        let is_abandoned = AtomicBool::new(false);
        let completion = Arc::new(Completion { progress, ended: Condvar::new(), is_abandoned });
        (Self { completion: Arc::clone(&completion), drive: None }, completion)
    }

    /// The same for requests that go on while this thread waits.
    pub(super) fn driven_by(mut self, drive: Drive) -> Self {
        self.drive = Some(drive);
        self
    }

    /// Whether all requests ended, as far as this thread was told so.
    pub(super) fn is_over(&self) -> bool {
        self.completion.is_over()
    }

    /// The end of all requests, for who looks at it when nobody waits for it any more.
    pub(super) fn completion(&self) -> Arc<Completion> {
        Arc::clone(&self.completion)
    }

    /// Waits for the end of all requests.
    ///
    /// # Errors
    /// The first error of a request; `TimedOut` when they did not end within `limit`, and then they go on.
    pub(super) fn wait(&self, limit: Duration) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        if let Some(drive) = self.drive {
            drive(&self.completion, limit);
        }
        let mut progress = self.completion.progress.lock();
        let limit = deadline.saturating_duration_since(Instant::now());
        let outcome =
            self.completion.ended.wait_while_for(&mut progress, |progress| progress.left > 0, limit);
        match progress.error.take() {
            _ if outcome.timed_out() && progress.left > 0 => Err(io::ErrorKind::TimedOut.into()),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Blocks that last.
pub(super) trait Disk: Send + Sync + fmt::Debug {
    /// Starts all requests, in any order among themselves. The ticket ends when all of them did.
    fn submit(&self, requests: Vec<Request>) -> Ticket;

    /// As [`Disk::submit`], for a thread that waits for the ticket itself: its end needs no other thread.
    fn submit_here(&self, requests: Vec<Request>) -> Ticket {
        self.submit(requests)
    }

    /// Makes sure that the first `length` bytes have their blocks.
    ///
    /// # Errors
    /// `StorageFull`, `QuotaExceeded` or `FileTooLarge` when there are not so many.
    fn allocate(&self, length: ByteCount) -> io::Result<()>;

    /// How long it is now.
    ///
    /// # Errors
    /// What the system says.
    fn length(&self) -> io::Result<ByteCount>;

    /// Gives back the blocks from `length` on.
    ///
    /// # Errors
    /// What the system says.
    fn cut(&self, length: ByteCount) -> io::Result<()>;

    /// Real bytes that the disk's content occupies.
    ///
    /// # Errors
    /// What the system says.
    fn allocated(&self) -> io::Result<ByteCount>;

    /// Whether it is the file that stands at a path, where something else may be mounted by now.
    fn is_at(&self, _path: &Path) -> bool {
        false
    }
}
