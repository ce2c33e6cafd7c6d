//! Hot path: references that are kept when their views are dropped, so that who looks the same keys up again asks nobody.
//!
//! A kept reference answers a look-up for as long as the *names clock* stands, a page that the daemon changes before it lets
//! anybody take away, replace or forbid something that is referenced.
//!
//! Invariants
//! - The clock is read before the daemon is asked, so what changes while it answers is seen at the next look-up.
//! - After a change nothing is answered from here before it was asked for again.
//! - A clock that has not beaten for a while says nothing: the daemon is asked, or found to be gone.
//!
//! Limits: as many bytes of objects as [`Cache::keep`](crate::Cache::keep) was told, which the cache cannot evict meanwhile, and
//! `COUNT_MAX` objects; one that nobody looks up for `KEPT_FOR` is given back, also when the program does nothing.
//! Threads: any; one lock, held for the look at a batch. A thread of its own gives back what is old; it takes no signals. It is over
//! when the session is let go of, or the last cache is dropped: nothing of a cache that was closed is used afterwards.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hashbrown::DefaultHashBuilder;
use lru::LruCache;
use parking_lot::Mutex;
use tidefs_control_api::ioctl::{CLOCK_BEAT, CLOCK_BEAT_MS, CLOCK_BYTES, CLOCK_CHANGES, Features, Name};

use crate::ffi;
use crate::fork::Owner;
use crate::memory::Mapping;
use crate::session::Session;
use crate::view::{Held, View};

/// Objects that are kept at most.
const COUNT_MAX: usize = 1 << 16;
/// How long one is kept that nobody looks up.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// How often that is looked at.
const SWEEP: Duration = Duration::from_secs(1);

/// What the clock said, to be compared with what it says later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(u64);

/// One that is kept.
#[derive(Debug)]
struct Entry {
    held: Arc<Held>,
    /// The sweep before which it was used last.
    used_at: u64,
}

#[derive(Debug)]
struct Store {
    entries: LruCache<Box<[u8]>, Entry, DefaultHashBuilder>,
    bytes: usize,
    clock: Mapping,
    moment: Moment,
    beat: u64,
    /// When it was seen to beat last.
    beat_at: Instant,
    sweeps: u64,
}

impl Store {
    fn new(clock: Mapping) -> Self {
        Self {
            entries: LruCache::unbounded_with_hasher(DefaultHashBuilder::default()),
            bytes: 0,
            moment: Moment(clock.number(CLOCK_CHANGES)),
            beat: clock.number(CLOCK_BEAT),
            beat_at: Instant::now(),
            clock,
            sweeps: 0,
        }
    }

    /// What the clock says now, unless it says nothing. What does not count any more is moved to `ended`.
    fn look(&mut self, ended: &mut Vec<Entry>) -> Option<Moment> {
        let moment = Moment(self.clock.number(CLOCK_CHANGES));
        if moment != self.moment {
            self.moment = moment;
            self.clear(ended);
        }
        let (beat, now) = (self.clock.number(CLOCK_BEAT), Instant::now());
        if beat != self.beat {
            (self.beat, self.beat_at) = (beat, now);
        }
        (now.duration_since(self.beat_at) < Duration::from_millis(CLOCK_BEAT_MS)).then_some(moment)
    }

    fn clear(&mut self, ended: &mut Vec<Entry>) {
        while let Some((_, entry)) = self.entries.pop_lru() {
            ended.push(entry);
        }
        self.bytes = 0;
    }

    fn find(&mut self, name: &[u8]) -> Option<View> {
        let sweeps = self.sweeps;
        let entry = self.entries.peek_mut(name)?;
        let view = View::kept(&entry.held);
        // Once between two sweeps: what is used all the time need not be moved each time.
        if entry.used_at != sweeps {
            entry.used_at = sweeps;
            self.entries.promote(name);
        }
        Some(view)
    }

    /// Keeps one more, and moves what there is no room for to `ended`.
    fn keep(&mut self, name: &[u8], held: &Arc<Held>, bytes_max: usize, ended: &mut Vec<Entry>) {
        let entry = Entry { held: Arc::clone(held), used_at: self.sweeps };
        self.bytes += held.len();
        if let Some(before) = self.entries.put(name.into(), entry) {
            self.bytes -= before.held.len();
            ended.push(before);
        }
        self.bound(bytes_max, ended);
    }

    fn bound(&mut self, bytes_max: usize, ended: &mut Vec<Entry>) {
        while (self.bytes > bytes_max || self.entries.len() > COUNT_MAX)
            && let Some((_, entry)) = self.entries.pop_lru()
        {
            self.bytes -= entry.held.len();
            ended.push(entry);
        }
    }

    /// Moves those that were not used for a while to `ended`.
    fn sweep(&mut self, ended: &mut Vec<Entry>) {
        self.sweeps += 1;
        let oldest = self.sweeps.saturating_sub(KEPT_FOR.as_secs() / SWEEP.as_secs().max(1));
        while self.entries.peek_lru().is_some_and(|(_, entry)| entry.used_at < oldest)
            && let Some((_, entry)) = self.entries.pop_lru()
        {
            self.bytes -= entry.held.len();
            ended.push(entry);
        }
    }
}

/// Made when something is to be kept first. Views are never dropped while it is locked: that may ask the daemon.
type Shared = Mutex<Option<Store>>;

/// The references of one session that are kept.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// 0 while nothing is to be kept.
    bytes_max: AtomicUsize,
    /// Started along with the store, and over before that is dropped.
    sweeper: OnceLock<Sweeper>,
    store: Arc<Shared>,
}

impl Kept {
    /// Keeps up to so many bytes from now on. False when the daemon has no clock.
    ///
    /// # Errors
    /// What mapping the clock and starting a thread say.
    pub(crate) fn set_limit(&self, session: &Arc<Session>, bytes_max: usize) -> io::Result<bool> {
        if !session.offers(Features::CLOCK) || session.is_inherited() {
            return Ok(false);
        }
        let mut ended = Vec::new();
        let mut store = self.store.lock();
        match &mut *store {
            Some(store) => store.bound(bytes_max, &mut ended),
            None if bytes_max > 0 => {
                let clock = session.segments.map_apart(session.facts.clock.get(), CLOCK_BYTES, false)?;
                // There is none yet: both are made once, under the lock.
                let _ = self.sweeper.set(Sweeper::start(&self.store, session)?);
                *store = Some(Store::new(clock));
            }
            None => {}
        }
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        drop(store);
        drop(ended);
        Ok(true)
    }

    /// Whether anything is to be kept.
    pub(crate) fn is_on(&self) -> bool {
        self.bytes_max.load(Ordering::Relaxed) > 0
    }

    /// Views of those names that are kept, and the moment at which the others are asked for.
    pub(crate) fn find(&self, names: &[Name<'_>]) -> (Vec<Option<View>>, Option<Moment>) {
        let mut ended = Vec::new();
        let found = {
            let mut store = self.store.lock();
            let moment = store.as_mut().and_then(|store| store.look(&mut ended));
            let find = |name: &Name<'_>| moment.and(store.as_mut()).and_then(|store| store.find(name.0));
            (names.iter().map(find).collect(), moment)
        };
        drop(ended);
        found
    }

    /// How many of the names, from the first on, are kept.
    pub(crate) fn run(&self, names: &[Name<'_>]) -> usize {
        let mut ended = Vec::new();
        let count = {
            let mut store = self.store.lock();
            let Some(store) = store.as_mut() else { return 0 };
            match store.look(&mut ended) {
                Some(_) => names.iter().take_while(|name| store.entries.peek(name.0).is_some()).count(),
                None => 0,
            }
        };
        drop(ended);
        count
    }

    /// Keeps what was found for names that were asked for at `moment`.
    pub(crate) fn keep<'v>(&self, moment: Moment, found: impl Iterator<Item = (Name<'v>, &'v mut View)>) {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        let mut ended = Vec::new();
        {
            let mut store = self.store.lock();
            // Another thread may have seen a change meanwhile.
            let Some(store) = store.as_mut().filter(|store| store.moment == moment) else { return };
            for (name, view) in found {
                if let Some(held) = view.share(bytes_max) {
                    store.keep(name.0, held, bytes_max, &mut ended);
                }
            }
        }
        drop(ended);
    }

    /// Gives all back that nobody views.
    pub(crate) fn clear(&self) {
        let mut ended = Vec::new();
        if let Some(store) = &mut *self.store.lock() {
            store.clear(&mut ended);
        }
        drop(ended);
    }
}

/// The thread that gives back what is old. Dropping it waits until it is over.
#[derive(Debug)]
struct Sweeper {
    /// Who started it. Its children have no such thread, and the locks that it held at the fork are held for ever.
    owner: Owner,
    /// `None` once it is to end.
    running: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Sweeper {
    fn start(store: &Arc<Shared>, session: &Arc<Session>) -> io::Result<Self> {
        let (go_on, ends) = mpsc::channel();
        let (store, owner, session) = (Arc::clone(store), session.owner(), Arc::downgrade(session));
        let sweep = move || sweep_until(&ends, &store, &session);
        let builder = thread::Builder::new().name("tidefs-kept".to_owned());
        // What the program waits for in a thread of its own is not to come to this one.
        let thread = ffi::with_signals_blocked(|| builder.spawn(sweep))?;
        Ok(Self { owner, running: Some((go_on, thread)) })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        let Some((go_on, thread)) = self.running.take() else { return };
        if self.owner.is_a_parent() {
            return std::mem::forget((go_on, thread));
        }
        drop(go_on);
        // A registration that ends on it may be what drops the cache.
        if thread.thread().id() != thread::current().id() {
            // Had it panicked, it would be over as well.
            let _ = thread.join();
        }
    }
}

fn sweep_until(ends: &Receiver<()>, store: &Shared, session: &Weak<Session>) {
    while ends.recv_timeout(SWEEP) == Err(RecvTimeoutError::Timeout) {
        let Some(session) = session.upgrade() else { return };
        let mut ended = Vec::new();
        if let Some(store) = &mut *store.lock() {
            // What changed is let go of at once: its memory is in use for nobody.
            store.look(&mut ended);
            store.sweep(&mut ended);
        }
        if !ended.is_empty() {
            drop(ended);
            session.give_back_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    fn clock() -> (std::fs::File, Mapping) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; CLOCK_BYTES]).unwrap();
        let mapping = Mapping::new(&file, CLOCK_BYTES, false).unwrap();
        (file, mapping)
    }

    fn set(file: &std::fs::File, offset: usize, number: u64) {
        file.write_all_at(&number.to_le_bytes(), offset as u64).unwrap();
    }

    #[test]
    fn a_clock_that_does_not_beat_says_nothing_and_one_that_beats_again_does() {
        let (file, mapping) = clock();
        let mut store = Store::new(mapping);
        let mut ended = Vec::new();
        let moment = store.look(&mut ended);
        assert_eq!(moment, Some(Moment(0)));
        store.beat_at = Instant::now() - Duration::from_millis(CLOCK_BEAT_MS);
        assert_eq!(store.look(&mut ended), None);
        set(&file, CLOCK_BEAT, 1);
        assert_eq!(store.look(&mut ended), moment);
    }

    #[test]
    fn a_change_is_another_moment() {
        let (file, mapping) = clock();
        let mut store = Store::new(mapping);
        let mut ended = Vec::new();
        let before = store.look(&mut ended);
        set(&file, CLOCK_CHANGES, 5);
        let after = store.look(&mut ended);
        assert_eq!((after, store.moment), (Some(Moment(5)), Moment(5)));
        assert_ne!(after, before);
    }
}
