//! Waiting with a deadline: nothing in these tests waits for ever.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Longest time any single answer may take on a loaded machine before the test calls it a hang.
pub(crate) const HANG: Duration = Duration::from_secs(20);

/// Asks `condition` every millisecond until it is true; false when `deadline` passed first.
pub(crate) fn until(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + deadline;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `work` in a thread of its own and returns its result, or `None` when it has not ended after `deadline`.
///
/// The only safe way to touch a path below a mount whose daemon is stopped or dead: the thread is then left behind.
pub(crate) fn within<T: Send + 'static>(
    deadline: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // The receiver is gone when the deadline passed; there is nobody left to tell.
        let _ = sender.send(work());
    });
    receiver.recv_timeout(deadline).ok()
}
