//! The ends of clients that hold much, and requests that give much up, by a thread of its own: what a client has begun is cut then,
//! a gigabyte in a good part of a second, and whoever answers the kernel has others waiting. It is none of the threads that wait
//! for disks: what was held is to be free soon, whatever a disk does. A request, for which somebody waits, has its turn before the
//! next object of a client that has ended.
//!
//! Limits: [`WAITING_MAX`] clients and as many requests wait for it; a further one is done at once, as is what is little. What
//! waits or is left of one at the stop is not freed, and a request is answered all the same: what was begun, or has lost its name,
//! has no record, so the next start removes it.
//! Threads: [`Datapath::end_sessions`] is that thread. It sleeps while nobody waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, Thread};
use std::{fmt, mem};

use parking_lot::Mutex;

use super::remains::Remains;
use super::{AREA_MAX, LOCKED_AT_ONCE, Session};
use crate::datapath::Datapath;

const WAITING_MAX: usize = 256;

/// What is left of an ended client.
#[derive(Debug)]
enum Left {
    /// All that it held.
    All(Arc<Session>),
    /// What had lost its name while it held it.
    Remains(Remains),
}

/// The rest of a request, with its reply. It is told whether the daemon stops.
struct Rest(Box<dyn FnOnce(bool) + Send>);

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rest")
    }
}

/// Where ended clients and requests wait. A mutex: held to add or take one.
#[derive(Debug, Default)]
pub(super) struct Ending(Mutex<Line>);

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Left>,
    /// Requests, each with what is freed before its rest is done.
    requests: VecDeque<(Remains, Rest)>,
    /// `None` while there is no such thread.
    thread: Option<Thread>,
}

impl Ending {
    /// Leaves the end of a client to the thread. Gives it back when there is none, or too many wait for it.
    fn leave(&self, left: Left) -> Option<Left> {
        self.leave_in(left, |line| &mut line.waiting)
    }

    /// The same with a request.
    fn leave_request(&self, request: (Remains, Rest)) -> Option<(Remains, Rest)> {
        self.leave_in(request, |line| &mut line.requests)
    }

    fn leave_in<T>(&self, left: T, waiting: impl FnOnce(&mut Line) -> &mut VecDeque<T>) -> Option<T> {
        let mut line = self.0.lock();
        let Some(thread) = line.thread.clone() else { return Some(left) };
        let waiting = waiting(&mut line);
        if waiting.len() >= WAITING_MAX {
            return Some(left);
        }
        waiting.push_back(left);
        drop(line);
        thread.unpark();
        None
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
        let left = mem::take(&mut *self.0.0.lock());
        drop(left);
    }
}

impl Datapath {
    /// The control file of a client is closed, or its last holder died: what it holds is given back at once, or soon if it is much.
    pub fn end_soon(&self, session: &Arc<Session>) {
        let (count, bytes) = session.held();
        let is_long = count > LOCKED_AT_ONCE || bytes > AREA_MAX;
        if is_long && self.fast.ending.leave(Left::All(Arc::clone(session))).is_none() {
            return;
        }
        // Few objects, of which each may have lost its name and be as large as the cache.
        let remains = self.end_references(&session.take_all());
        if !remains.is_empty()
            && let Some(Left::Remains(remains)) = self.fast.ending.leave(Left::Remains(remains))
        {
            self.free_remains(remains);
        }
        self.end_session(session);
    }

    /// Frees what a request left and then does `rest` of it, which answers: soon, or at once when too many wait. It is told
    /// whether the daemon stops, and is to take no time then; what is not freed by then is left to the next start.
    pub fn answer_when_freed(&self, remains: Remains, rest: impl FnOnce(bool) + Send + 'static) {
        if let Some(request) = self.fast.ending.leave_request((remains, Rest(Box::new(rest)))) {
            self.end_request(request, || false);
        }
    }

    fn end_request(&self, (remains, Rest(rest)): (Remains, Rest), is_stopping: impl Fn() -> bool) {
        self.free_remains_until(remains, &is_stopping);
        rest(is_stopping());
    }

    /// Ends the clients and requests that are left to the calling thread, until `is_stopping`. Who stops it unparks it. What is to
    /// be freed then is left to the next start, as what clients hold that are still there.
    pub fn end_sessions(&self, is_stopping: impl Fn() -> bool) {
        let enlisted = Enlisted::new(&self.fast.ending);
        // Looked at before each object, so that a request has its turn then, and no more than one: ended clients do not wait for ever.
        let is_over = || {
            let next = enlisted.0.0.lock().requests.pop_front();
            if let Some(request) = next {
                self.end_request(request, &is_stopping);
            }
            is_stopping()
        };
        while !is_over() {
            let next = enlisted.0.0.lock().waiting.pop_front();
            match next {
                Some(Left::All(session)) => self.end_session_until(&session, is_over),
                Some(Left::Remains(remains)) => self.free_remains_until(remains, is_over),
                // What comes after this look wakes it up.
                None if enlisted.0.0.lock().requests.is_empty() => thread::park(),
                None => {}
            }
        }
        // Those that came since. From now on none is left here.
        let line = mem::take(&mut *enlisted.0.0.lock());
        line.requests.into_iter().for_each(|request| self.end_request(request, || true));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::iter;

    use tidefs_engine::types::ByteCount;

    use super::super::segments::Shared;
    use super::*;
    use crate::datapath::testing::{caller, unprivileged};
    use crate::datapath::{BeginRequest, Credentials, Located, SealRequest};
    use crate::namespace::Ino;

    const BYTES: ByteCount = ByteCount::mib(1);

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
        let is_left = || ending.leave(Left::All(Arc::clone(&session))).is_none();
        assert!(!is_left(), "there is no thread");
        ending.0.lock().thread = Some(thread::current());
        assert!((0..WAITING_MAX).all(|_| is_left()) && !is_left());
        let request = || (Remains::default(), Rest(Box::new(|_| ())));
        let is_left = || ending.leave_request(request()).is_none();
        assert!((0..WAITING_MAX).all(|_| is_left()) && !is_left());
    }

    #[test]
    fn a_request_is_answered_by_the_thread_and_at_the_stop_too() {
        let (_place, datapath) = unprivileged();
        let enter = || datapath.fast.ending.0.lock().thread = Some(thread::current());
        let answers = Arc::new(Mutex::new(Vec::new()));
        let ask = |number: u8| {
            let answers = Arc::clone(&answers);
            datapath.answer_when_freed(Remains::default(), move |is_stopping| {
                answers.lock().push((number, is_stopping));
            });
        };
        let answered = || mem::take(&mut *answers.lock());
        ask(1);
        assert_eq!(answered(), [(1, false)], "there is no thread");
        enter();
        ask(2);
        assert!(answered().is_empty(), "nothing but the thread does it");
        datapath.end_sessions(|| !answers.lock().is_empty());
        assert_eq!(answered(), [(2, false)]);
        enter();
        ask(3);
        datapath.end_sessions(|| true);
        assert_eq!(answered(), [(3, true)]);
    }

    #[test]
    fn a_request_that_comes_while_a_client_is_ended_has_its_turn_before_the_next_object() {
        let (_place, datapath) = unprivileged();
        let session = datapath.begin_session(Credentials::of_request(0, 0, caller().thread), true);
        let names: Vec<String> = (0..4).map(|number| format!("key-{number}")).collect();
        let requests =
            names.iter().map(|name| BeginRequest { name: name.as_bytes(), size: BYTES, mode: 0o600 });
        datapath.begin(&session, Ino::ROOT, requests, |_| ());
        datapath.fast.ending.0.lock().thread = Some(thread::current());
        assert!(datapath.fast.ending.leave(Left::All(Arc::new(session))).is_none());
        let given_up = || datapath.telemetry.fast_abandoned.get();
        let (left, answered_after) = (Cell::new(false), Arc::new(Mutex::new(None)));
        datapath.end_sessions(|| {
            if given_up() == 1 && !left.replace(true) {
                let (answered_after, telemetry) =
                    (Arc::clone(&answered_after), Arc::clone(&datapath.telemetry));
                datapath.answer_when_freed(Remains::default(), move |_| {
                    *answered_after.lock() = Some(telemetry.fast_abandoned.get());
                });
            }
            given_up() == 4
        });
        // The second one had its turn already.
        assert_eq!((*answered_after.lock(), given_up()), (Some(2), 4));
    }

    #[test]
    fn a_large_object_that_lost_its_name_is_left_to_the_thread_when_its_last_client_ends() {
        let (_place, datapath) = unprivileged();
        let in_use = || datapath.tier.usage().unwrap().used.saturating_sub(datapath.pooled());
        let waiting = || datapath.fast.ending.0.lock().waiting.len();
        let root = || Credentials::of_request(0, 0, caller().thread);
        let nothing = in_use();
        for (size, is_large) in [(BYTES, false), (AREA_MAX.saturating_add(BYTES), true)] {
            let session = Arc::new(datapath.begin_session(root(), true));
            let request = BeginRequest { name: b"key", size: BYTES, mode: 0o600 };
            let reference = datapath.begin(&session, Ino::ROOT, iter::once(request), |_| ());
            let seal = iter::once(SealRequest { reference, length: BYTES });
            let left = datapath.seal_begun(&session, &caller(), seal, |sealed| assert!(sealed.is_ok()));
            assert!(left.is_empty());
            let names = iter::once(&b"key"[..]);
            datapath.locate(&session, &caller(), Ino::ROOT, names, false, |_| ());
            let slot = datapath.lock().tree.by_path(b"key").unwrap();
            datapath.unlink(&caller(), Ino::ROOT, b"key").unwrap();
            // The cache itself has room for no larger one here. Nor does its segment wait for another of its length.
            datapath.lock().object_mut(slot).unwrap().size = size;
            let unshape = |shared: &mut Shared| shared.shape = None;
            datapath.fast.segments.lock().known.values_mut().for_each(unshape);
            datapath.fast.ending.0.lock().thread = Some(thread::current());
            datapath.end_soon(&session);
            assert_eq!((waiting() == 1, in_use() > nothing), (is_large, is_large));
            datapath.end_sessions(|| in_use() == nothing);
        }
    }
}
