//! The ends of clients that hold much, by a thread of its own: what a client has begun is cut then, a gigabyte in a good part of a
//! second, and whoever answers the kernel has others waiting. It is none of the threads that wait for disks: what was held is to be
//! free soon, whatever a disk does.
//!
//! Limits: [`WAITING_MAX`] clients wait for it; the end of a further one is done at once, as is that of one that holds little. What
//! waits or is left of one at the stop is not ended: what was begun has no record, so the next start removes it.
//! Threads: [`Datapath::end_sessions`] is that thread. It sleeps while nobody waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, Thread};

use parking_lot::Mutex;

use super::{AREA_MAX, LOCKED_AT_ONCE, Session};
use crate::datapath::Datapath;

const WAITING_MAX: usize = 256;

/// Where ended clients wait. A mutex: held to add or take one.
#[derive(Debug, Default)]
pub(super) struct Ending(Mutex<Line>);

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Arc<Session>>,
    /// `None` while there is no such thread.
    thread: Option<Thread>,
}

impl Ending {
    /// Leaves the end of a client to the thread. Returns false when there is none, or too many wait for it.
    fn leave(&self, session: &Arc<Session>) -> bool {
        let mut line = self.0.lock();
        let Some(thread) = line.thread.clone() else { return false };
        if line.waiting.len() >= WAITING_MAX {
            return false;
        }
        line.waiting.push_back(Arc::clone(session));
        drop(line);
        thread.unpark();
        true
    }
}

/// While it lives the calling thread ends clients. What waits when it goes, also by a panic, is let go of.
struct Enlisted<'a>(&'a Ending);

impl<'a> Enlisted<'a> {
    fn new(ending: &'a Ending) -> Self {
        ending.0.lock().thread = Some(thread::current());
        Self(ending)
    }
}

impl Drop for Enlisted<'_> {
    fn drop(&mut self) {
        let left = std::mem::take(&mut *self.0.0.lock());
        drop(left);
    }
}

impl Datapath {
    /// The control file of a client is closed, or its last holder died: what it holds is given back at once, or soon if it is much.
    pub fn end_soon(&self, session: &Arc<Session>) {
        let (count, bytes) = session.held();
        let is_long = count > LOCKED_AT_ONCE || bytes > AREA_MAX;
        if !(is_long && self.fast.ending.leave(session)) {
            self.end_session(session);
        }
    }

    /// Ends the clients that are left to the calling thread, until `is_stopping`. Who stops it unparks it. What waits then is left to
    /// the next start, as what clients hold that are still there.
    pub fn end_sessions(&self, is_stopping: impl Fn() -> bool) {
        let enlisted = Enlisted::new(&self.fast.ending);
        while !is_stopping() {
            let next = enlisted.0.0.lock().waiting.pop_front();
            match next {
                Some(session) => self.end_session_until(&session, &is_stopping),
                None => thread::park(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidefs_engine::types::ByteCount;

    use super::*;
    use crate::datapath::testing::{caller, unprivileged};
    use crate::datapath::{BeginRequest, Credentials, Located};
    use crate::namespace::Ino;

    #[test]
    fn the_end_of_a_client_that_has_begun_much_is_left_to_the_thread_for_that() {
        let (_place, datapath) = unprivileged();
        let much = LOCKED_AT_ONCE + 1;
        let names: Vec<String> = (0..much).map(|number| format!("key-{number}")).collect();
        let client = |count: usize| {
            let session = datapath.begin_session(Credentials::of_request(0, 0, caller().thread), true);
            let size = ByteCount::kib(4);
            let requests =
                names[..count].iter().map(|name| BeginRequest { name: name.as_bytes(), size, mode: 0o600 });
            datapath.begin(&session, Ino::ROOT, requests, |begun| {
                assert!(matches!(begun, Located::Here { .. }), "{begun:?}");
            });
            Arc::new(session)
        };
        let given_up = || usize::try_from(datapath.telemetry.fast_abandoned.get()).unwrap();
        datapath.end_soon(&client(much));
        assert_eq!(given_up(), much, "there is no thread");
        let enter = || datapath.fast.ending.0.lock().thread = Some(thread::current());
        enter();
        datapath.end_soon(&client(1));
        assert_eq!(given_up(), much + 1, "it has begun little");
        datapath.end_soon(&client(much));
        assert_eq!(given_up(), much + 1);
        datapath.end_sessions(|| given_up() == 2 * much + 1);
        assert_eq!(given_up(), 2 * much + 1);
        datapath.end_soon(&client(much));
        assert_eq!(given_up(), 3 * much + 1, "there is none any more");
        enter();
        datapath.end_soon(&client(much));
        datapath.end_sessions(|| true);
        assert_eq!(given_up(), 3 * much + 1, "what waits at the stop is for the next start");
        assert!(datapath.fast.ending.0.lock().waiting.is_empty());
        enter();
        datapath.end_soon(&client(much));
        datapath.end_sessions(|| given_up() == 3 * much + 8);
        assert_eq!(given_up(), 3 * much + 8, "so is what is left of one");
    }

    #[test]
    fn no_more_clients_wait_for_their_end_than_are_bounded() {
        let (_place, datapath) = unprivileged();
        let ending = Ending::default();
        let root = || Credentials::of_request(0, 0, caller().thread);
        let session = Arc::new(datapath.begin_session(root(), true));
        assert!(!ending.leave(&session), "there is no thread");
        ending.0.lock().thread = Some(thread::current());
        assert!((0..WAITING_MAX).all(|_| ending.leave(&session)) && !ending.leave(&session));
    }
}
