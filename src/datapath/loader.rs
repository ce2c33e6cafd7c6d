//! Objects that are to come back from the SSD tier, and requests that wait for them, off the session threads that others
//! need.
//!
//! All who want one object wait for one load. What waited is done by the thread that loaded. Objects that nobody waits for
//! yet are loaded ahead of their use ([`Datapath::prefetch`]) by threads that have nothing else to do, and by at most half
//! of them; a request for one of these waits for the load that is under way, or makes it an ordinary one.
//!
//! What comes from other members takes half of the threads at most where there is a disk: a peer that hangs, or an object that is
//! read while it arrives, keeps a thread for as long as its transfer takes, and loads from the disk go on by the others.
//!
//! A request that waits for a disk otherwise, or takes long for another reason, is a *job*: it is done by the same threads,
//! before loads, and by at most half of them: however many change a policy of all that is below a directory, loads have threads.
//!
//! Limits: at most `WAITING_MAX` requests wait; further ones are done at once, and find a miss. At most `AHEAD_MAX` objects
//! wait to be loaded ahead; further ones are not. How long a load takes at most is the SSD tier's limit, and one from a disk
//! that waited for a thread that long is a miss.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::{Condvar, Mutex};
use tidefs_engine::types::ByteCount;

use super::{Datapath, Error};
use crate::namespace::Ino;
use crate::tier::ssd::{ReadFor, SsdTier};

const WAITING_MAX: usize = 4096;
const AHEAD_MAX: usize = 1024;
/// How often a thread with nothing to do looks after what a disk was late with.
const LATE_LOOK: Duration = Duration::from_secs(1);

/// What is left to do of a request, with its reply; it is told whether the object is back.
pub type Rest = Box<dyn FnOnce(bool) + Send>;

/// A request that waits for a disk or takes long, with its reply; it is told whether it may wait.
pub type Job = Box<dyn FnOnce(bool) + Send>;

/// What a request needs of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// All of its bytes.
    Whole,
    /// Its first ones, while the others come.
    Start,
}

/// One object that is to be loaded.
#[derive(Default)]
struct Load {
    waiting: Vec<Rest>,
    /// Those who can do with its first bytes.
    at_start: Vec<Rest>,
    is_running: bool,
    has_started: bool,
    /// Since when somebody waits.
    since: Option<Instant>,
    /// Its bytes, when it was begun ahead of its use.
    ahead: Option<ByteCount>,
    /// Whether a client named it.
    is_named: bool,
}

#[derive(Default)]
struct Lines {
    loads: HashMap<Ino, Load>,
    jobs: VecDeque<Job>,
    /// Those that somebody waits for. One that was moved here from `ahead` stands in both.
    wanted: VecDeque<Ino>,
    /// Those that nobody waits for yet.
    ahead: VecDeque<Ino>,
    /// Those that somebody waits for, that come from other members, and for which there was no thread.
    far: VecDeque<Ino>,
    /// Requests that wait.
    count: usize,
    threads: usize,
    running_jobs: usize,
    running_ahead: usize,
    running_far: usize,
    is_closed: bool,
}

/// What a thread is to do.
enum Next {
    Job(Job),
    Load(Ino, Turn),
}

/// What a thread is to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Somebody waits for it. Where it comes from is still to be found out.
    Wanted,
    /// Somebody waits for it, and it comes from another member.
    Far,
    /// Nobody waits for it yet.
    Ahead,
    /// Nor for this one, which a client named.
    Named,
}

impl Lines {
    fn half(&self) -> usize {
        self.threads.div_ceil(2)
    }

    /// What is next for a thread that has nothing to do.
    fn next(&mut self) -> Option<Next> {
        if self.running_jobs < self.half()
            && let Some(job) = self.jobs.pop_front()
        {
            self.running_jobs += 1;
            return Some(Next::Job(job));
        }
        self.take().map(|(ino, turn)| Next::Load(ino, turn))
    }

    /// The next object to load.
    fn take(&mut self) -> Option<(Ino, Turn)> {
        // They waited longer than those that are wanted.
        while self.running_far < self.half()
            && let Some(ino) = self.far.pop_front()
        {
            if self.begin(ino) {
                self.running_far += 1;
                return Some((ino, Turn::Far));
            }
        }
        while let Some(ino) = self.wanted.pop_front() {
            if self.begin(ino) {
                return Some((ino, Turn::Wanted));
            }
        }
        while self.running_ahead < self.half()
            && let Some(ino) = self.ahead.pop_front()
        {
            if self.begin(ino) {
                self.running_ahead += 1;
                let is_named = self.loads.get(&ino).is_some_and(|load| load.is_named);
                return Some((ino, if is_named { Turn::Named } else { Turn::Ahead }));
            }
        }
        None
    }

    /// One that was taken because it is wanted comes from another member. Returns whether this thread may load it; else one of
    /// those that do so now is to, when it is done.
    fn goes_far(&mut self, ino: Ino) -> bool {
        let may = self.running_far < self.half();
        if may {
            self.running_far += 1;
        } else {
            if let Some(load) = self.loads.get_mut(&ino) {
                load.is_running = false;
            }
            self.far.push_back(ino);
        }
        may
    }

    /// Since when somebody waits for what comes next.
    fn since(&self, next: &Next) -> Option<Instant> {
        let Next::Load(ino, _) = next else { return None };
        self.loads.get(ino).and_then(|load| load.since)
    }

    fn begin(&mut self, ino: Ino) -> bool {
        let load = self.loads.get_mut(&ino).filter(|load| !load.is_running);
        load.map(|load| load.is_running = true).is_some()
    }
}

/// Where requests are left to wait.
#[derive(Default)]
pub struct Loader {
    /// Guards who waits for what.
    lines: Mutex<Lines>,
    arrived: Condvar,
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("waiting", &self.lines.lock().count).finish_non_exhaustive()
    }
}

impl Loader {
    /// Does `rest` when the object is back, or is known to be a miss; at once when too many wait.
    pub fn leave(&self, ino: Ino, rest: Rest) {
        self.leave_for(ino, Need::Whole, rest);
    }

    /// The same; with [`Need::Start`] sooner, when it can be read while it comes.
    pub fn leave_for(&self, ino: Ino, need: Need, rest: Rest) {
        let has_started = {
            let mut lines = self.lines.lock();
            let load = lines.loads.get(&ino);
            let has_started = need == Need::Start && load.is_some_and(|load| load.has_started);
            if !has_started && lines.count < WAITING_MAX && !lines.is_closed {
                lines.count += 1;
                let load = lines.loads.entry(ino).or_default();
                load.since.get_or_insert_with(Instant::now);
                match need {
                    Need::Whole => load.waiting.push(rest),
                    Need::Start => load.at_start.push(rest),
                }
                if load.waiting.len() + load.at_start.len() == 1 && !load.is_running {
                    lines.wanted.push_back(ino);
                    self.arrived.notify_one();
                }
                return;
            }
            has_started
        };
        rest(has_started);
    }

    /// An object that is being loaded can be read.
    pub(super) fn started(&self, ino: Ino) {
        let ready = {
            let mut lines = self.lines.lock();
            let Some(load) = lines.loads.get_mut(&ino).filter(|load| load.is_running) else { return };
            load.has_started = true;
            let ready = std::mem::take(&mut load.at_start);
            lines.count -= ready.len();
            ready
        };
        ready.into_iter().for_each(|rest| rest(true));
    }

    /// Has a request done by a thread that may wait; at once, by this one, when too many are left already.
    pub fn leave_job(&self, job: Job) {
        {
            let mut lines = self.lines.lock();
            if lines.jobs.len() < WAITING_MAX && !lines.is_closed {
                lines.jobs.push_back(job);
                self.arrived.notify_one();
                return;
            }
        }
        job(false);
    }

    /// Has an object loaded that nobody waits for; others leave memory for it only when a client named it. Returns false when it
    /// is being loaded already, or too many are.
    pub(super) fn leave_ahead(&self, ino: Ino, size: ByteCount, is_named: bool) -> bool {
        let mut lines = self.lines.lock();
        if lines.ahead.len() >= AHEAD_MAX || lines.is_closed {
            return false;
        }
        let Entry::Vacant(entry) = lines.loads.entry(ino) else { return false };
        entry.insert(Load { ahead: Some(size), is_named, ..Load::default() });
        lines.ahead.push_back(ino);
        self.arrived.notify_one();
        true
    }

    /// Whether an object is on its way, or in line for that.
    pub(super) fn is_loading(&self, ino: Ino) -> bool {
        self.lines.lock().loads.contains_key(&ino)
    }

    /// Threads that load.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.lines.lock().threads
    }

    /// Ends the threads once nothing waits.
    pub fn close(&self) {
        self.lines.lock().is_closed = true;
        self.arrived.notify_all();
    }
}

impl Datapath {
    /// Where requests wait for objects that are not in memory.
    #[must_use]
    pub fn loader(&self) -> &Loader {
        &self.loader
    }

    /// Brings an object back for a peer, by the one load for all who want it, and waits until then, at most for `patience`.
    /// Returns whether it was had.
    pub(super) fn load_for_peer(&self, ino: Ino, patience: Option<Duration>) -> bool {
        if !self.must_load(ino) {
            return true;
        }
        if self.loader.threads() == 0 {
            return self.promote(ino).is_ok();
        }
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        // Who has given up does not listen.
        let rest = move |is_back| {
            let _ = tell.send(is_back);
        };
        self.loader.leave(ino, Box::new(rest));
        let answer = match patience {
            Some(patience) => told.recv_timeout(patience).ok(),
            None => told.recv().ok(),
        };
        answer.unwrap_or(false)
    }

    /// Whether an object comes from another member, and a disk needs threads, too.
    fn keeps_a_thread_from_the_disk(&self, ino: Ino) -> bool {
        let is_far = || {
            let state = self.lock();
            state.tree.by_ino(ino).is_some_and(|slot| state.remote_size(slot).is_some())
        };
        self.ssd.get().is_some() && self.cluster.get().is_some() && is_far()
    }

    /// Whether somebody waited for a thread for as long as a disk may take.
    fn has_waited_too_long(&self, since: Option<Instant>) -> bool {
        let limit = self.ssd.get().map(|ssd| ssd.limit());
        limit.zip(since).is_some_and(|(limit, since)| since.elapsed() >= limit)
    }

    /// Loads until the loader is closed. Run by each of the load threads.
    pub fn run_loads(&self) {
        self.loader.lines.lock().threads += 1;
        loop {
            let (next, since) = loop {
                let has_late = SsdTier::settle_late_loads();
                let mut lines = self.loader.lines.lock();
                if let Some(next) = lines.next() {
                    let since = lines.since(&next);
                    break (next, since);
                }
                // What is left is done by those that run a job now.
                if lines.is_closed {
                    return;
                }
                if has_late {
                    self.loader.arrived.wait_for(&mut lines, LATE_LOOK);
                } else {
                    self.loader.arrived.wait(&mut lines);
                }
            };
            let (ino, mut turn) = match next {
                Next::Load(ino, turn) => (ino, turn),
                Next::Job(job) => {
                    job(true);
                    self.loader.lines.lock().running_jobs -= 1;
                    continue;
                }
            };
            if matches!(turn, Turn::Wanted | Turn::Named) && self.keeps_a_thread_from_the_disk(ino) {
                let mut lines = self.loader.lines.lock();
                lines.running_ahead -= usize::from(turn == Turn::Named);
                if !lines.goes_far(ino) {
                    continue;
                }
                turn = Turn::Far;
            }
            let needs_free_room = turn == Turn::Ahead;
            // A miss is told by what waits for it.
            let outcome = match turn {
                Turn::Ahead => self.promote_into_free_room(ino),
                Turn::Named => self.promote_for(ino, ReadFor::Ahead),
                Turn::Wanted if self.has_waited_too_long(since) && self.must_load(ino) => {
                    self.telemetry.ssd_promotion_misses.increment();
                    Err(Error::NoObject)
                }
                Turn::Wanted | Turn::Far => self.promote(ino),
            };
            let load = {
                let mut lines = self.loader.lines.lock();
                let load = lines.loads.remove(&ino).unwrap_or_default();
                lines.count -= load.waiting.len() + load.at_start.len();
                lines.running_ahead -= usize::from(matches!(turn, Turn::Ahead | Turn::Named));
                lines.running_far -= usize::from(turn == Turn::Far);
                load
            };
            let is_wanted = !load.waiting.is_empty() || !load.at_start.is_empty() || load.has_started;
            let outcome =
                if needs_free_room && is_wanted { outcome.or_else(|_| self.promote(ino)) } else { outcome };
            if let Some(size) = load.ahead {
                self.ended_ahead(ino, size, outcome.is_ok(), is_wanted);
            }
            load.at_start.into_iter().chain(load.waiting).for_each(|rest| rest(outcome.is_ok()));
            // Nobody waits for the rest of it.
            drop(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(threads: usize) -> Loader {
        let loader = Loader::default();
        loader.lines.lock().threads = threads;
        loader
    }

    #[test]
    fn who_is_waited_for_comes_before_what_is_loaded_ahead_and_never_twice() {
        let loader = lines(4);
        assert!((1..=2).all(|number| loader.leave_ahead(Ino(number), ByteCount(1), false)));
        assert!(!loader.leave_ahead(Ino(1), ByteCount(1), false), "it is in line already");
        loader.leave(Ino(3), Box::new(|_| ()));
        loader.leave(Ino(2), Box::new(|_| ()));
        let mut lines = loader.lines.lock();
        assert_eq!(lines.take(), Some((Ino(3), Turn::Wanted)));
        assert_eq!(lines.take(), Some((Ino(2), Turn::Wanted)), "somebody waits for it now");
        assert_eq!(lines.take(), Some((Ino(1), Turn::Ahead)));
        assert_eq!(lines.take(), None);
    }

    #[test]
    fn half_of_the_threads_stay_for_loads_while_jobs_take_long() {
        let loader = lines(4);
        (0..4).for_each(|_| loader.leave_job(Box::new(|_| ())));
        loader.leave(Ino(1), Box::new(|_| ()));
        let mut lines = loader.lines.lock();
        let is_job = |next: Option<Next>| matches!(next, Some(Next::Job(_)));
        assert!(is_job(lines.next()) && is_job(lines.next()));
        assert!(
            matches!(lines.next(), Some(Next::Load(Ino(1), Turn::Wanted))),
            "who waits for a load is forgotten"
        );
        assert!(lines.next().is_none(), "the other jobs have their turn when one of these has ended");
        lines.running_jobs -= 1;
        assert!(is_job(lines.next()));
        drop(lines);
        // With memory alone there is one thread.
        let loader = self::lines(1);
        loader.leave_job(Box::new(|_| ()));
        assert!(is_job(loader.lines.lock().next()));
    }

    #[test]
    fn half_of_the_threads_stay_for_those_who_wait() {
        let loader = lines(4);
        assert!((1..=5).all(|number| loader.leave_ahead(Ino(number), ByteCount(1), number == 2)));
        let mut lines = loader.lines.lock();
        assert_eq!(
            (lines.take(), lines.take(), lines.take()),
            (Some((Ino(1), Turn::Ahead)), Some((Ino(2), Turn::Named)), None)
        );
    }

    #[test]
    fn what_clients_name_takes_no_place_of_those_who_wait() {
        let loader = lines(4);
        let named = |number: &u64| loader.leave_ahead(Ino(*number), ByteCount(1), true);
        assert_eq!((1..10_000).filter(named).count(), AHEAD_MAX);
        let told = std::sync::Arc::new(Mutex::new(None));
        let rest = std::sync::Arc::clone(&told);
        loader.leave(Ino(20_000), Box::new(move |is_back| *rest.lock() = Some(is_back)));
        assert_eq!(*told.lock(), None, "it waits");
        assert_eq!(loader.lines.lock().take(), Some((Ino(20_000), Turn::Wanted)));
    }

    #[test]
    fn half_of_the_threads_stay_for_the_disk_while_peers_hang() {
        let loader = lines(4);
        (1..=5).for_each(|number| loader.leave(Ino(number), Box::new(|_| ())));
        let mut lines = loader.lines.lock();
        for number in 1..=3 {
            assert_eq!(lines.take(), Some((Ino(number), Turn::Wanted)));
            assert_eq!(lines.goes_far(Ino(number)), number <= 2, "{number}");
        }
        // Those behind it are of the disk.
        assert_eq!(lines.take(), Some((Ino(4), Turn::Wanted)));
        lines.running_far -= 1;
        assert_eq!(lines.take(), Some((Ino(3), Turn::Far)), "one of the peers has answered");
        assert_eq!(lines.take(), Some((Ino(5), Turn::Wanted)));
        assert_eq!(lines.take(), None);
    }
}
