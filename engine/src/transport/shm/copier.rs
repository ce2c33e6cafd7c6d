//! Hot path: the threads that copy.
//!
//! A copy is the initiator's work alone. The caller of `post` copies the first operation itself: handing it to another
//! thread costs several microseconds, a sixth of the time that a MiB takes. All others go to the pool, so that `post`
//! returns after one operation at most; and who blocks for a transfer copies with the pool meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::endpoint::Copy;
use crate::transport::Progress;

/// Threads that copy, shared by all endpoints of a transport. They end when the last handle goes.
#[derive(Debug)]
pub(super) struct Copiers {
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Bounded by the operations that the endpoints take.
    waiting: VecDeque<Copy>,
    is_closed: bool,
}

impl Copiers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub(super) fn start(count: usize) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let copiers = Self { queue: Arc::clone(&queue) };
        for index in 0..count.max(1) {
            let queue = Arc::clone(&queue);
            thread::Builder::new().name(format!("shm-copy-{index}")).spawn(move || queue.work())?;
        }
        Ok(copiers)
    }

    /// The work of the pool, for threads that wait.
    pub(super) fn progress(&self) -> Arc<dyn Progress> {
        Arc::clone(&self.queue) as Arc<dyn Progress>
    }

    /// Adds copies to the queue.
    pub(super) fn push(&self, copies: impl IntoIterator<Item = Copy>) {
        let mut state = self.queue.state.lock();
        for copy in copies {
            state.waiting.push_back(copy);
            self.queue.arrived.notify_one();
        }
    }
}

impl Drop for Copiers {
    fn drop(&mut self) {
        self.queue.state.lock().is_closed = true;
        self.queue.arrived.notify_all();
    }
}

impl Queue {
    fn work(&self) {
        loop {
            let copy = {
                let mut state = self.state.lock();
                loop {
                    if let Some(copy) = state.waiting.pop_front() {
                        break copy;
                    }
                    if state.is_closed {
                        return;
                    }
                    self.arrived.wait(&mut state);
                }
            };
            copy.run();
        }
    }
}

impl Progress for Queue {
    fn work(&self, is_done: &dyn Fn() -> bool, until: Instant) {
        let mut state = self.state.lock();
        while !is_done() && !state.is_closed && Instant::now() < until {
            if let Some(copy) = state.waiting.pop_front() {
                drop(state);
                copy.run();
                state = self.state.lock();
            } else {
                self.arrived.wait_until(&mut state, until);
            }
        }
        // This thread may have been woken for what it leaves.
        if !state.waiting.is_empty() {
            self.arrived.notify_one();
        }
    }

    fn nudge(&self) {
        // Behind the lock, under which a worker looks before it waits.
        drop(self.state.lock());
        self.arrived.notify_all();
    }
}
