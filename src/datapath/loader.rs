//! Objects that are to come back from the SSD tier, and requests that wait for them, off the session threads that others
//! need.
//!
//! All who want one object wait for one load. What waited is done by the thread that loaded. Objects that nobody waits for
//! yet are loaded ahead of their use ([`Datapath::prefetch`]) by threads that have nothing else to do, and by at most half
//! of them; a request for one of these waits for the load that is under way, or makes it an ordinary one.
//!
//! What comes from one member, or from one of several disks, takes a part of the threads at most ([`super::ways`]): loads from
//! elsewhere go on by the others.
//!
//! A request that waits for a disk otherwise, or takes long for another reason, is a *job*: it is done by the same threads,
//! before loads, and by a part of them at most ([`super::job_lines`]): however many change a policy of all that is below a directory,
//! loads have threads, and so has what is to be durable.
//!
//! Limits: at most `WAITING_MAX` requests wait for objects; further ones are done at once, and find a miss. As many jobs of each kind
//! wait; a further one is done at once by whoever left it, and told so ([`Pace`]): it is to answer without a wait. At most
//! `AHEAD_MAX` objects wait to be loaded ahead; further ones are not. How long a load takes at most is the SSD tier's limit, and one
//! from a disk that waited for a thread that long is a miss.

use std::fmt;
use std::time::{Duration, Instant};

use hashbrown::hash_map::Entry;
use parking_lot::{Condvar, Mutex};
use tidefs_engine::types::ByteCount;

use super::job_lines::JobKind;
use super::load_lines::{Lines, Load, Next, Turn, Why};
use super::ways::Way;
use super::{Datapath, Error};
use crate::cluster::{Purpose, SharedPurpose};
use crate::namespace::Ino;
use crate::tier::ssd::{ReadFor, SsdTier};

pub(super) const WAITING_MAX: usize = 4096;
const AHEAD_MAX: usize = 1024;
/// How often a thread with nothing to do looks after what a disk was late with.
const LATE_LOOK: Duration = Duration::from_secs(1);

/// What is left to do of a request, with its reply; it is told whether the object is back.
pub type Rest = Box<dyn FnOnce(bool) + Send>;

/// How long a job may take, by the thread that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As long as it needs: the thread is there to wait.
    AtLeisure,
    /// No longer than an answer: too many wait already, and it is done by the thread that left it, which others need.
    AtOnce,
}

/// A request that waits for a disk or takes long, with its reply.
pub type Job = Box<dyn FnOnce(Pace) + Send>;

/// What a request needs of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// All of its bytes.
    Whole,
    /// Its first ones, while the others come.
    Start,
    /// All of its bytes, which another member wants to be here: no program waits for them.
    Copy,
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
            let purpose = if need == Need::Copy { Purpose::Keeping } else { Purpose::Reading };
            let load = lines.loads.get(&ino).inspect(|load| load.purpose.raise(purpose));
            let has_started = need == Need::Start && load.is_some_and(|load| load.has_started);
            if !has_started && lines.count < WAITING_MAX && !lines.is_closed {
                lines.count += 1;
                let load = lines.loads.entry(ino).or_default();
                load.since.get_or_insert_with(Instant::now);
                load.purpose.raise(purpose);
                match need {
                    Need::Whole | Need::Copy => load.waiting.push(rest),
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

    /// Has a request done by a thread that may wait. Gives it back when too many are left already.
    fn take_job(&self, kind: JobKind, job: Job) -> Option<Job> {
        let mut lines = self.lines.lock();
        let left = if lines.is_closed { Some(job) } else { lines.jobs.push(kind, job) };
        if left.is_none() {
            self.arrived.notify_one();
        }
        left
    }

    /// Has an object loaded that nobody waits for; others leave memory for it only when a client named it. Returns false when it
    /// is being loaded already, or too many are.
    pub(super) fn leave_ahead(&self, ino: Ino, size: ByteCount, is_named: bool) -> bool {
        let mut lines = self.lines.lock();
        if lines.ahead.len() >= AHEAD_MAX || lines.is_closed {
            return false;
        }
        let Entry::Vacant(entry) = lines.loads.entry(ino) else { return false };
        let purpose = SharedPurpose::new(Purpose::Ahead);
        entry.insert(Load { ahead: Some(size), is_named, purpose, ..Load::default() });
        lines.ahead.push_back(ino);
        self.arrived.notify_one();
        true
    }

    /// It turned out where an object comes from that a thread has: see [`Lines::goes_by`].
    fn goes_by(&self, way: Way, turn: &mut Turn) -> bool {
        let mut lines = self.lines.lock();
        let may = lines.goes_by(way, turn);
        if may && lines.has_room_ahead() {
            // What comes from a member gave back its place among those that nobody waits for.
            self.arrived.notify_one();
        }
        may
    }

    /// A thread has done its turn. Returns who waits for it.
    fn end(&self, turn: Turn) -> Load {
        let mut lines = self.lines.lock();
        let load = lines.end(turn);
        if lines.has_way_for_more() {
            // This thread may have another thing to do first, and those that sleep had none when it came.
            self.arrived.notify_one();
        }
        load
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

    /// A part of the threads is for a disk from now on.
    pub(super) fn share_with_disk(&self) {
        self.lines.lock().ways.has_disk = true;
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

    /// Has a request done by a thread that may wait; at once, by this one, when too many are left already, which is counted.
    pub fn leave_job(&self, job: Job) {
        self.leave_job_of(JobKind::Other, job);
    }

    /// The same of one that has a disk take an object: it has its turn beside the others.
    pub fn leave_durable_job(&self, job: Job) {
        self.leave_job_of(JobKind::Durable, job);
    }

    fn leave_job_of(&self, kind: JobKind, job: Job) {
        if let Some(job) = self.loader.take_job(kind, job) {
            self.telemetry.overloads.increment();
            job(Pace::AtOnce);
        }
    }

    /// Brings an object back for a peer, by the one load for all who want it, and waits until then, at most for `patience`.
    /// Returns whether it was had.
    pub(super) fn load_for_peer(&self, ino: Ino, need: Need, patience: Duration) -> bool {
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
        self.loader.leave_for(ino, need, Box::new(rest));
        told.recv_timeout(patience).unwrap_or(false)
    }

    /// Where an object comes from, when others need threads, too.
    fn way_of(&self, ino: Ino) -> Option<Way> {
        let (side, ssd) = (self.cluster.get(), self.ssd.get().filter(|ssd| ssd.has_several_disks()));
        if side.is_none() && ssd.is_none() {
            return None;
        }
        let state = self.lock();
        let slot = state.tree.by_ino(ino)?;
        if let Some((side, copies)) = side.zip(state.remote_copies(slot)) {
            drop(state);
            return side.cluster().first_source(&copies).map(Way::Member);
        }
        let (ssd, key) = (ssd?, state.ssd_key(slot)?);
        drop(state);
        ssd.disk_of(&key).map(Way::Disk)
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
            let (next, (since, purpose)) = loop {
                let has_late = SsdTier::settle_late_loads();
                let mut lines = self.loader.lines.lock();
                if let Some(next) = lines.next() {
                    let known = lines.known(&next);
                    break (next, known);
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
            let mut turn = match next {
                Next::Load(turn) => turn,
                Next::Job(kind, job) => {
                    job(Pace::AtLeisure);
                    self.loader.lines.lock().jobs.end(kind);
                    continue;
                }
            };
            let ino = turn.ino;
            if turn.way.is_none()
                && let Some(way) = self.way_of(ino)
                && !self.loader.goes_by(way, &mut turn)
            {
                continue;
            }
            let needs_free_room = turn.why == Why::Ahead;
            // A miss is told by what waits for it.
            let outcome = match turn.why {
                Why::Ahead => self.promote_into_free_room(ino),
                Why::Named => self.promote_as(ino, ReadFor::Ahead, &purpose),
                Why::Wanted
                    if !matches!(turn.way, Some(Way::Member(_)))
                        && self.has_waited_too_long(since)
                        && self.must_load(ino) =>
                {
                    self.telemetry.ssd_promotion_misses.increment();
                    Err(Error::NoObject)
                }
                Why::Wanted => self.promote_as(ino, ReadFor::Use, &purpose),
            };
            let load = self.loader.end(turn);
            let is_wanted = !load.waiting.is_empty() || !load.at_start.is_empty() || load.has_started;
            let outcome =
                if needs_free_room && is_wanted { outcome.or_else(|_| self.promote(ino)) } else { outcome };
            if let Some(size) = load.ahead {
                let has_loaded = outcome.as_ref().is_ok_and(|promoted| promoted.has_loaded());
                self.ended_ahead(ino, size, has_loaded, is_wanted);
            }
            load.at_start.into_iter().chain(load.waiting).for_each(|rest| rest(outcome.is_ok()));
            // Nobody waits for the rest of it.
            drop(outcome);
        }
    }
}

#[cfg(test)]
mod tests;
