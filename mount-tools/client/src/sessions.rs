//! Hot path: the session of a cache, and the next one when its daemon was started again, or its directory is another.
//!
//! A session belongs to one directory of one mount. It is over when the daemon of that mount ended, however it did, or when that
//! directory is no more, or another is at the path of the cache: then the cache goes by file, and looks for the next session at
//! its path. So it does while there was none yet: the mount may come later.
//!
//! Invariants
//! - A call takes one [`Opened`] and stays with it, so nothing that one session gave is used with another.
//! - One thread at a time looks for the next session. No other waits for it: those go by file meanwhile.
//! - What a session that is over has mapped is unmapped, but for what is still viewed or written.
//! - The next session keeps as much, and registers its segments by the same function, from its first segment on.
//! - When the cache is closed, all is unmapped but what is still viewed or written.
//! - A child of fork(2) takes no lock here, and gets no session.
//!
//! Limits: the next session is looked for by calls alone, not more often than `PAUSES` say.
//! Threads: any; there is none of its own.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::Registration;
use crate::file::Files;
use crate::fork::{Owner, Registered};
use crate::kept::Kept;
use crate::memory::Register;
use crate::segments::Hook;
use crate::session::Session;

/// From one look for the next session to another: at first, and at most. Each is a few stat(2) where there is none.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// A session, and what is kept of what it gave.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) session: Arc<Session>,
    pub(crate) kept: Kept,
}

impl Opened {
    /// Whether references are kept. In a child of fork(2), which must not use them, there is no [`Opened`].
    pub(crate) fn keeps(&self) -> bool {
        self.kept.is_on()
    }

    /// Lets go of what nobody views, of a session that is over.
    fn let_go(&self) {
        self.kept.clear();
        self.session.let_go();
    }
}

/// When the next session is looked for.
#[derive(Debug)]
struct Search {
    /// Bytes that the next one is to keep.
    kept_max: usize,
    pause: Duration,
    /// `None` while none was ever looked for.
    not_before: Option<Instant>,
}

impl Search {
    fn new() -> Self {
        Self { kept_max: 0, pause: PAUSES.0, not_before: None }
    }

    /// Whether it is time to look, which the caller then does.
    fn is_due(&mut self, now: Instant) -> bool {
        if self.not_before.is_some_and(|not_before| now < not_before) {
            return false;
        }
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
        true
    }

    /// One was found: the one after it is looked for as soon as this was.
    fn succeed(&mut self) {
        self.pause = PAUSES.0;
    }
}

/// The sessions of a cache, one after the other.
pub(crate) struct Sessions {
    /// Whose they are. `None` when its children cannot be told from it: then there is no fast path.
    owner: Option<Owner>,
    /// By what segments are registered, of all of them.
    hook: Arc<Hook>,
    /// `None` before the first, and between two. Held to be looked at and to be set, no longer.
    current: RwLock<Option<Arc<Opened>>>,
    /// Held by the one who looks for the next, and then sets `current`. Others that come to look try it and go on without.
    search: Mutex<Search>,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("current", &self.current)
            .field("search", &self.search)
            .finish_non_exhaustive()
    }
}

impl Sessions {
    /// Opens the first one, for keys of `files`, if it is there already.
    pub(crate) fn open(files: &Files) -> Self {
        let mut sessions = Self {
            owner: Owner::this_process(),
            hook: Arc::default(),
            current: RwLock::default(),
            search: Mutex::new(Search::new()),
        };
        *sessions.current.get_mut() = sessions.open_next(files, 0);
        sessions
    }

    /// The process that may use them, if it is this one.
    fn user(&self) -> Option<Owner> {
        self.owner.filter(|owner| !owner.is_a_parent())
    }

    /// The session that there is, unless it is known to be over. Waits for nothing.
    pub(crate) fn live(&self) -> Option<Arc<Opened>> {
        self.user()?;
        let current = self.current.read();
        current.as_ref().filter(|opened| !opened.session.is_over()).cloned()
    }

    /// Whether there is one. Drops nothing, which could wait for a thread that ends registrations: also for who holds a lock that
    /// those need.
    pub(crate) fn is_live(&self) -> bool {
        let is_live = |opened: &Arc<Opened>| !opened.session.is_over();
        self.user().is_some() && self.current.read().as_ref().is_some_and(is_live)
    }

    /// Registered segments that nobody views. `None` in a child of fork(2), and when another thread holds a lock.
    pub(crate) fn idle_registrations(&self) -> Option<usize> {
        self.user()?;
        match &*self.current.try_read()? {
            Some(opened) => opened.session.idle_registrations(),
            None => Some(0),
        }
    }

    /// As [`Sessions::live`], or the next one for `files`, if it is time to look for that and it is there. `None` while all is
    /// done by file.
    pub(crate) fn find(&self, files: &Files) -> Option<Arc<Opened>> {
        self.live().or_else(|| self.find_next(files))
    }

    #[cold]
    fn find_next(&self, files: &Files) -> Option<Arc<Opened>> {
        // A child of fork(2) takes no lock here.
        self.user()?;
        let mut search = self.search.try_lock()?;
        // Another thread may have been faster.
        if let Some(opened) = self.live() {
            return Some(opened);
        }
        let over = self.current.write().take();
        let next = search.is_due(Instant::now()).then(|| self.open_next(files, search.kept_max)).flatten();
        if let Some(opened) = &next {
            search.succeed();
            *self.current.write() = Some(Arc::clone(opened));
        }
        drop(search);
        // Under no lock: registrations end by that, and may wait for others.
        if let Some(over) = over {
            over.let_go();
        }
        next
    }

    fn open_next(&self, files: &Files, kept_max: usize) -> Option<Arc<Opened>> {
        let session = Arc::new(Session::open(self.user()?, files, &self.hook)?);
        let kept = Kept::default();
        if kept_max > 0 {
            // A daemon without a clock, or one that is gone again: it is asked each time.
            let _ = kept.set_limit(&session, kept_max);
        }
        Some(Arc::new(Opened { session, kept }))
    }

    /// Keeps up to so many bytes from now on, by this session and those after it. False when this one cannot.
    ///
    /// # Errors
    /// What mapping the clock and starting a thread say.
    pub(crate) fn keep(&self, files: &Files, bytes_max: usize) -> io::Result<bool> {
        if self.user().is_none() {
            return Ok(false);
        }
        // So that a caller who was told `false` may ask again.
        drop(self.find(files));
        // Whoever looks for the next one sees the new limit, or is done and has set it here.
        let mut search = self.search.lock();
        search.kept_max = bytes_max;
        self.live().map_or(Ok(false), |opened| opened.kept.set_limit(&opened.session, bytes_max))
    }

    /// Registers each segment that is mapped, now and from now on.
    pub(crate) fn register_with(&self, register: Box<Register>) {
        let Some(owner) = self.user() else { return };
        let register: Box<Register> = Box::new(move |start, length, is_writable| {
            let registration = Some(register(start, length, is_writable)?);
            Some(Box::new(Registered { registration, owner }) as Registration)
        });
        let mut hook = self.hook.lock();
        // Looked at under the lock: what a later session maps finds the new function.
        let opened = self.live();
        let mapped = opened.as_ref().map(|opened| opened.session.segments.register_all(&register));
        let replaced = hook.replace(register);
        drop(hook);
        drop((opened, mapped, replaced));
    }
}

impl Drop for Sessions {
    /// What is still viewed or written has its own part in the session.
    fn drop(&mut self) {
        // A child of fork(2) takes no lock: another thread of its parent may have held it.
        if self.user().is_none() {
            return;
        }
        if let Some(opened) = self.current.get_mut().take() {
            opened.kept.clear();
            // Where nobody else has the session it ends here, and the daemon need not be told of what it held.
            if Arc::strong_count(&opened.session) > 1 {
                opened.session.let_go();
            }
        }
        // What is still viewed keeps its session, and that the hook.
        let register = self.hook.lock().take();
        drop(register);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_session_is_looked_for_at_once_and_then_ever_more_rarely() {
        let mut search = Search::new();
        let start = Instant::now();
        let looks = |search: &mut Search, from: u64, to: u64| -> Vec<u64> {
            (from..to).filter(|&at| search.is_due(start + Duration::from_millis(at))).collect()
        };
        assert_eq!(looks(&mut search, 0, 4000), [0, 100, 300, 700, 1500, 2500, 3500]);
        search.succeed();
        assert_eq!(looks(&mut search, 4000, 5000), [4500, 4600, 4800], "a session that is over at once, too");
    }

    #[test]
    fn where_there_is_no_fast_path_one_is_looked_for() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::below(directory.path().to_owned());
        let sessions = Sessions::open(&files);
        assert!(sessions.find(&files).is_none() && !sessions.keep(&files, 1).unwrap());
        let first = sessions.search.lock().not_before;
        sessions.search.lock().not_before = Some(Instant::now());
        assert!(sessions.find(&files).is_none());
        assert!(first.is_some() && sessions.search.lock().not_before > first);
    }
}
