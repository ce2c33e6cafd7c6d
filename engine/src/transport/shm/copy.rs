//! Hot path: the copies, and the few threads that make them.
//!
//! An operation is cut into parts, which go into one queue; each thread takes the part at its front. So a long operation
//! is copied by all threads, and given up between two parts.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::attached::{Attached, Entered};
use super::line::Line;
use crate::error::Error;
use crate::memory::MemorySlice;
use crate::transport::{BatchId, Direction, Operation};

/// An operation with both its ends in reach.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) line: Arc<Line>,
    attached: Arc<Attached>,
    direction: Direction,
    local: MemorySlice,
    remote: MemorySlice,
    batch: BatchId,
    deadline: Instant,
    /// What changes. Held for a moment at the start and the end of each part.
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    operation: Option<Operation>,
    entered: Option<Entered>,
    parts_left: usize,
    result: Result<(), Error>,
}

impl Copy {
    /// `operation`, whose peer's end is `remote` in `attached`.
    pub(super) fn new(
        line: Arc<Line>,
        attached: Arc<Attached>,
        remote: MemorySlice,
        operation: Operation,
    ) -> Self {
        let (direction, local) = (operation.direction, operation.local.clone());
        let (batch, deadline) = (operation.ticket.batch(), operation.deadline);
        let progress = Progress { operation: Some(operation), entered: None, parts_left: 1, result: Ok(()) };
        Self { line, attached, direction, local, remote, batch, deadline, progress: Mutex::new(progress) }
    }

    pub(super) fn length(&self) -> usize {
        self.local.length()
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn batch(&self) -> BatchId {
        self.batch
    }

    /// Copies one part. False when the operation is over before it.
    fn try_part(&self, from: usize, length: usize) -> Result<(), Error> {
        {
            let mut progress = self.progress.lock();
            progress.result.clone()?;
            if progress.entered.is_none() {
                if self.deadline <= Instant::now() {
                    return Err(Error::DeadlinePassed);
                }
                progress.entered = Some(self.attached.enter()?);
            }
        }
        if (from, length) == (0, self.length()) {
            copy(self.direction, &self.local, &self.remote);
        } else {
            copy(self.direction, &self.local.part(from, length), &self.remote.part(from, length));
        }
        Ok(())
    }

    /// Copies one part, and ends the operation if it was the last.
    pub(super) fn run_part(&self, from: usize, length: usize) {
        let result = self.try_part(from, length);
        self.end_part(result);
    }

    /// Counts one part as done; the first error is the operation's.
    fn end_part(&self, result: Result<(), Error>) {
        let mut progress = self.progress.lock();
        if progress.result.is_ok() {
            progress.result = result;
        }
        progress.parts_left -= 1;
        if progress.parts_left > 0 {
            return;
        }
        let (entered, operation) = (progress.entered.take(), progress.operation.take());
        let result = progress.result.clone();
        drop(progress);
        drop(entered);
        if let Some(operation) = operation {
            self.line.finish(operation, result);
        }
    }
}

fn copy(direction: Direction, local: &MemorySlice, remote: &MemorySlice) {
    match direction {
        Direction::Read => local.copy_from(remote),
        Direction::Write => remote.copy_from(local),
    }
}

/// A piece of a copy.
#[derive(Debug)]
struct Part {
    copy: Arc<Copy>,
    from: usize,
    length: usize,
}

#[derive(Debug)]
struct Shared {
    /// What is to be done, and by whom.
    queue: Mutex<Queue>,
    /// Something was added to the queue, or the pool is over.
    added: Condvar,
    part_bytes: usize,
}

#[derive(Debug, Default)]
struct Queue {
    parts: VecDeque<Part>,
    is_over: bool,
    #[cfg(test)]
    is_paused: bool,
}

impl Queue {
    fn take(&mut self) -> Option<Part> {
        #[cfg(test)]
        if self.is_paused {
            return None;
        }
        self.parts.pop_front()
    }
}

/// The threads that copy. They end with the value.
#[derive(Debug)]
pub(super) struct CopyPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl CopyPool {
    /// `threads` of them, at least one; operations are cut into parts of `part_bytes`.
    ///
    /// # Errors
    /// What the system says when it makes no thread.
    pub(super) fn start(threads: usize, part_bytes: usize) -> io::Result<Self> {
        let (queue, added) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { queue, added, part_bytes: part_bytes.max(1) });
        let mut pool = Self { shared, threads: Vec::new() };
        for number in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("shm-copy-{number}"));
            pool.threads.push(builder.spawn(move || work(&shared))?);
        }
        Ok(pool)
    }

    /// Adds copies behind those that are there.
    pub(super) fn add(&self, copies: impl Iterator<Item = Copy>) {
        let part_bytes = self.shared.part_bytes;
        let mut added = 0;
        let mut queue = self.shared.queue.lock();
        for copy in copies {
            let (length, copy) = (copy.length(), Arc::new(copy));
            let parts = length.div_ceil(part_bytes).max(1);
            copy.progress.lock().parts_left = parts;
            added += parts;
            queue.parts.extend((0..parts).map(|number| {
                let from = number * part_bytes;
                Part { copy: Arc::clone(&copy), from, length: part_bytes.min(length - from) }
            }));
        }
        drop(queue);
        match added {
            0 => {}
            1 => drop(self.shared.added.notify_one()),
            _ => drop(self.shared.added.notify_all()),
        }
    }

    /// Takes the parts that nobody has begun of each copy that `which` chooses, and ends them with `error`.
    pub(super) fn give_up(&self, which: impl Fn(&Copy) -> bool, error: &Error) {
        let mut queue = self.shared.queue.lock();
        let (given_up, kept) = queue.parts.drain(..).partition(|part| which(&part.copy));
        queue.parts = kept;
        drop(queue);
        let given_up: VecDeque<Part> = given_up;
        for part in given_up {
            part.copy.end_part(Err(error.clone()));
        }
    }

    /// The first deadline of the copies of `line` that wait.
    pub(super) fn next_deadline(&self, line: &Line) -> Option<Instant> {
        let queue = self.shared.queue.lock();
        let of_line = queue.parts.iter().filter(|part| std::ptr::eq(&raw const *part.copy.line, line));
        of_line.map(|part| part.copy.deadline()).min()
    }

    /// Whether nothing waits, so that a short copy is better made at once.
    pub(super) fn is_idle(&self) -> bool {
        let queue = self.shared.queue.lock();
        #[cfg(test)]
        if queue.is_paused {
            return false;
        }
        queue.parts.is_empty()
    }

    /// Holds copies back, or lets them go on.
    #[cfg(test)]
    pub(super) fn pause(&self, is_paused: bool) {
        self.shared.queue.lock().is_paused = is_paused;
        self.shared.added.notify_all();
    }
}

impl Drop for CopyPool {
    fn drop(&mut self) {
        self.shared.queue.lock().is_over = true;
        self.shared.added.notify_all();
        for thread in self.threads.drain(..) {
            // The last user of the pool may be one of its threads, which ends by itself. Another ends with an error
            // only when it panicked, which has been printed.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

fn work(shared: &Shared) {
    let mut queue = shared.queue.lock();
    loop {
        if let Some(part) = queue.take() {
            drop(queue);
            part.copy.run_part(part.from, part.length);
            drop(part);
            queue = shared.queue.lock();
        } else if queue.is_over {
            return;
        } else {
            shared.added.wait(&mut queue);
        }
    }
}
