//! Requests that wait for an object to come back from the SSD tier, off the session threads that others need.
//!
//! All who want one object wait for one load. What waited is done by the thread that loaded.
//!
//! Limits: at most `WAITING_MAX` requests wait; further ones are done at once, and find a miss. How long a load takes at
//! most is the SSD tier's limit.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};

use crate::datapath::Datapath;
use crate::namespace::Ino;

const WAITING_MAX: usize = 4096;

/// What is left to do of a request, with its reply.
pub(super) type Rest = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Waiting {
    by_object: HashMap<Ino, Vec<Rest>>,
    line: VecDeque<Ino>,
    count: usize,
    is_closed: bool,
}

/// Where requests are left to wait.
#[derive(Default)]
pub(super) struct Loader {
    /// Guards who waits for what.
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("waiting", &self.waiting.lock().count).finish_non_exhaustive()
    }
}

impl Loader {
    /// Does `rest` when the object is back, or is known to be a miss; at once when too many wait.
    pub(super) fn leave(&self, ino: Ino, rest: Rest) {
        {
            let mut waiting = self.waiting.lock();
            if waiting.count < WAITING_MAX && !waiting.is_closed {
                waiting.count += 1;
                let of_object = waiting.by_object.entry(ino).or_default();
                of_object.push(rest);
                if of_object.len() == 1 {
                    waiting.line.push_back(ino);
                    self.arrived.notify_one();
                }
                return;
            }
        }
        rest();
    }

    /// Ends the threads once nothing waits.
    pub(super) fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.arrived.notify_all();
    }
}

/// Loads until the loader is closed.
pub(super) fn run(datapath: &Arc<Datapath>, loader: &Loader) {
    loop {
        let ino = {
            let mut waiting = loader.waiting.lock();
            loop {
                if let Some(ino) = waiting.line.pop_front() {
                    break ino;
                }
                if waiting.is_closed {
                    return;
                }
                loader.arrived.wait(&mut waiting);
            }
        };
        // A miss is told by what waits for it.
        let _ = datapath.promote(ino);
        let rest = {
            let mut waiting = loader.waiting.lock();
            let rest = waiting.by_object.remove(&ino).unwrap_or_default();
            waiting.count -= rest.len();
            rest
        };
        rest.into_iter().for_each(|rest| rest());
    }
}
