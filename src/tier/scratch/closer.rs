//! Closes scratch files. They have no name any more, so the last close frees their blocks, and a file in many pieces keeps
//! a disk busy with that for seconds. Whoever lets go of a file may be answering the kernel, or hold a lock.
//!
//! Threads: one, started for the first file that is closed.
//! Bound: files that wait count as living ones, of which there are at most as many as descriptors for them.

use std::fs::File;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;

use super::Scratch;

/// A file that nobody uses any more.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) space: Arc<Scratch>,
    pub(super) file: Arc<File>,
    /// The bytes of its blocks, which are in use until it is closed.
    pub(super) charged: u64,
}

/// The thread that closes them, by the way to it. `None` when it could not be started.
#[derive(Debug, Default)]
pub(super) struct Closer {
    thread: OnceLock<Option<mpsc::Sender<Closing>>>,
}

impl Closer {
    /// Closes a file soon, or at once where there is no thread for it.
    pub(super) fn close(&self, closing: Closing) {
        let left = match self.thread.get_or_init(start) {
            Some(sender) => sender.send(closing).err().map(|error| error.0),
            None => Some(closing),
        };
        if let Some(closing) = left {
            closing.carry_out();
        }
    }
}

/// Ends with the space: each file that waits keeps it alive.
fn start() -> Option<mpsc::Sender<Closing>> {
    let (sender, waiting) = mpsc::channel::<Closing>();
    let thread = thread::Builder::new().name("scratch-close".to_owned());
    let started = thread.spawn(move || waiting.into_iter().for_each(Closing::carry_out));
    if let Err(error) = &started {
        tracing::warn!(%error, "slot files are closed by whoever lets go of them, and others may wait for the disk");
    }
    started.ok().map(|_| sender)
}

impl Closing {
    fn carry_out(self) {
        drop(self.file);
        self.space.used.fetch_sub(self.charged, Ordering::Relaxed);
        self.space.files.fetch_sub(1, Ordering::Relaxed);
    }
}
