//! Closes scratch files. They have no name any more, so the last close frees their blocks, and a file in many pieces keeps
//! a disk busy with that for seconds. Whoever lets go of a file may be answering the kernel, or hold a lock.
//!
//! Threads: one for each directory of scratch files, started for the first file of it that is closed: a disk that hangs keeps no other
//! waiting. Nobody else closes a file, but where that cannot be started.
//! Bound: files that wait count as living ones, and their bytes as used. Who finds no room for another one
//! [waits](super::budget) until there is, for a while.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::Scratch;

/// A file that nobody uses any more.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) space: Arc<Scratch>,
    pub(super) file: Arc<File>,
    /// Its directory, among those of the space.
    pub(super) home: usize,
    /// The bytes of its blocks, which are in use until it is closed.
    pub(super) charged: u64,
}

/// The files that wait, and the threads that close them.
#[derive(Debug)]
pub(super) struct Closer {
    /// One for each directory.
    lines: Vec<Line>,
    /// Files for which there was no thread.
    without_thread: AtomicU64,
}

/// The files of one directory.
#[derive(Debug, Default)]
struct Line {
    state: Mutex<State>,
    /// Signalled for the thread: a file waits, or none will any more.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Closing>,
    has_thread: bool,
    is_over: bool,
}

impl Closer {
    /// Closes files of so many directories.
    pub(super) fn new(homes: usize) -> Arc<Self> {
        let lines = (0..homes.max(1)).map(|_| Line::default()).collect();
        Arc::new(Self { lines, without_thread: AtomicU64::new(0) })
    }

    /// Closes a file soon, or at once where there is no thread for it.
    pub(super) fn close(self: &Arc<Self>, closing: Closing) {
        closing.space.bytes.loosen(closing.charged);
        closing.space.files.loosen(1);
        let home = closing.home;
        let line = &self.lines[home];
        let mut state = line.state.lock();
        state.waiting.push_back(closing);
        if !state.has_thread {
            match self.start(home) {
                Ok(()) => state.has_thread = true,
                Err(error) => self.count_without_thread(&error),
            }
        }
        let must_close = !state.has_thread;
        drop(state);
        if must_close {
            line.close_one();
        } else {
            line.changed.notify_all();
        }
    }

    /// Ends the threads when nothing waits.
    pub(super) fn end(&self) {
        for line in &self.lines {
            line.state.lock().is_over = true;
            line.changed.notify_all();
        }
    }

    fn start(self: &Arc<Self>, home: usize) -> io::Result<()> {
        let this = Arc::clone(self);
        let thread = thread::Builder::new().name(format!("scratch-close-{home}"));
        let started = thread.spawn(move || {
            let line = &this.lines[home];
            while line.wait_for_one() {
                line.close_one();
            }
        });
        started.map(drop)
    }

    /// Files that were closed by whoever let go of them, for want of a thread.
    pub(super) fn without_thread(&self) -> u64 {
        self.without_thread.load(Ordering::Relaxed)
    }

    /// Says so the first time: there will be one for each file.
    fn count_without_thread(&self, error: &io::Error) {
        if self.without_thread.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                %error,
                "no thread can be started to close slot files: whoever lets go of one closes it, and may wait for the disk; \
                 allow the daemon more threads (TasksMax, ulimit -u)"
            );
        }
    }
}

impl Line {
    /// Whether there will be one to close.
    fn wait_for_one(&self) -> bool {
        let mut state = self.state.lock();
        while state.waiting.is_empty() && !state.is_over {
            self.changed.wait(&mut state);
        }
        !state.waiting.is_empty()
    }

    /// Closes the first that waits, if somebody else did not.
    fn close_one(&self) {
        let Some(closing) = self.state.lock().waiting.pop_front() else { return };
        let Closing { space, file, charged, .. } = closing;
        drop(file);
        space.bytes.give_back(charged);
        space.files.give_back(1);
        // The last user of the space may end the threads by this.
        drop(space);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use nix::sys::memfd::{MFdFlags, memfd_create};
    use tidefs_engine::types::ByteCount;

    use super::super::testing::slow_to_close;
    use super::*;

    #[test]
    fn a_disk_whose_closes_hang_keeps_those_of_another_waiting_for_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let homes = ["hangs", "works"].map(|name| directory.path().join(name)).to_vec();
        let space = Scratch::new(homes, true, ByteCount::mib(1));
        let (hangs, peer) = slow_to_close(&space, ByteCount::ZERO);
        let memory = File::from(memfd_create(c"slots", MFdFlags::MFD_CLOEXEC).unwrap());
        let works = space.count(space.files.try_claim(1).unwrap(), memory, 1);
        drop(hangs);
        drop(works);
        let began = Instant::now();
        while space.files() > 1 && began.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(space.files(), 1, "the file of the disk that works is closed, and the other is not");
        drop(peer);
    }
}
