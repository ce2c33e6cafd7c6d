//! Closes scratch files. They have no name any more, so the last close frees their blocks, and a file in many pieces keeps
//! a disk busy with that for seconds. Whoever lets go of a file may be answering the kernel, or hold a lock.
//!
//! Threads: one, started for the first file that is closed. Nobody else closes a file, but where that cannot be started.
//! Bound: files that wait count as living ones, and their bytes as used. Who finds no room for another one
//! [waits](super::budget) until there is, for a while.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::Scratch;

/// A file that nobody uses any more.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) space: Arc<Scratch>,
    pub(super) file: Arc<File>,
    /// The bytes of its blocks, which are in use until it is closed.
    pub(super) charged: u64,
}

/// The files that wait, and the thread that closes them.
#[derive(Debug, Default)]
pub(super) struct Closer {
    line: Mutex<Line>,
    /// Signalled for the thread: a file waits, or none will any more.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Closing>,
    has_thread: bool,
    is_over: bool,
    /// Files for which there was no thread.
    without_thread: u64,
}

impl Line {
    /// Says so the first time: there will be one for each file.
    fn count_without_thread(&mut self, error: &io::Error) {
        if self.without_thread == 0 {
            tracing::warn!(
                %error,
                "no thread can be started to close slot files: whoever lets go of one closes it, and may wait for the disk; \
                 allow the daemon more threads (TasksMax, ulimit -u)"
            );
        }
        self.without_thread += 1;
    }
}

impl Closer {
    /// Closes a file soon, or at once where there is no thread for it.
    pub(super) fn close(self: &Arc<Self>, closing: Closing) {
        closing.space.bytes.loosen(closing.charged);
        closing.space.files.loosen(1);
        let mut line = self.line.lock();
        line.waiting.push_back(closing);
        if !line.has_thread {
            match self.start() {
                Ok(()) => line.has_thread = true,
                Err(error) => line.count_without_thread(&error),
            }
        }
        let must_close = !line.has_thread;
        drop(line);
        if must_close {
            self.close_one();
        } else {
            self.changed.notify_all();
        }
    }

    /// Ends the thread when nothing waits.
    pub(super) fn end(&self) {
        self.line.lock().is_over = true;
        self.changed.notify_all();
    }

    fn start(self: &Arc<Self>) -> io::Result<()> {
        let this = Arc::clone(self);
        let thread = thread::Builder::new().name("scratch-close".to_owned());
        let started = thread.spawn(move || {
            while this.wait_for_one() {
                this.close_one()
            }
        });
        started.map(drop)
    }

    /// Files that were closed by whoever let go of them, for want of a thread.
    pub(super) fn without_thread(&self) -> u64 {
        self.line.lock().without_thread
    }

    /// Whether there will be one to close.
    fn wait_for_one(&self) -> bool {
        let mut line = self.line.lock();
        while line.waiting.is_empty() && !line.is_over {
            self.changed.wait(&mut line);
        }
        !line.waiting.is_empty()
    }

    /// Closes the first that waits, if somebody else did not.
    fn close_one(&self) {
        let Some(closing) = self.line.lock().waiting.pop_front() else { return };
        let Closing { space, file, charged } = closing;
        drop(file);
        space.bytes.give_back(charged);
        space.files.give_back(1);
        // The last user of the space may end the thread by this.
        drop(space);
    }
}
