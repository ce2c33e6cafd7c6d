//! What waits for the threads that load, and in which order it has its turn.
//!
//! Jobs come first ([`super::job_lines`]), then what somebody waits for, then what is loaded ahead. Each of them has a part of the
//! threads at most, and so has what comes from members or from one disk ([`super::ways`]).
//!
//! Threads: any, under the lock of [`super::loader`].

use std::collections::VecDeque;
use std::time::Instant;

use hashbrown::HashMap;
use tidefs_engine::types::ByteCount;

use super::job_lines::{JobKind, JobLines};
use super::loader::{Job, Rest};
use super::ways::{Way, Ways};
use crate::cluster::SharedPurpose;
use crate::namespace::Ino;

/// One object that is to be loaded.
#[derive(Default)]
pub(super) struct Load {
    pub(super) waiting: Vec<Rest>,
    /// Those who can do with its first bytes.
    pub(super) at_start: Vec<Rest>,
    pub(super) is_running: bool,
    pub(super) has_started: bool,
    /// Since when somebody waits.
    pub(super) since: Option<Instant>,
    /// Its bytes, when it was begun ahead of its use.
    pub(super) ahead: Option<ByteCount>,
    /// Whether a client named it.
    pub(super) is_named: bool,
    /// Why it is loaded, for all who want it.
    pub(super) purpose: SharedPurpose,
}

#[derive(Default)]
pub(super) struct Lines {
    pub(super) loads: HashMap<Ino, Load>,
    pub(super) jobs: JobLines,
    /// Those that somebody waits for. One that was moved here from `ahead` stands in both.
    pub(super) wanted: VecDeque<Ino>,
    /// Those that nobody waits for yet.
    pub(super) ahead: VecDeque<Ino>,
    /// What is loaded on ways that have a part of the threads, and waits for that.
    pub(super) ways: Ways,
    /// Requests that wait.
    pub(super) count: usize,
    pub(super) threads: usize,
    pub(super) running_ahead: usize,
    pub(super) is_closed: bool,
}

/// What a thread is to do.
pub(super) enum Next {
    Job(JobKind, Job),
    Load(Turn),
}

/// What a thread is to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) ino: Ino,
    pub(super) why: Why,
    /// Where it comes from, when it has waited for that; else that is still to be found out.
    pub(super) way: Option<Way>,
}

/// Why it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Somebody waits for it.
    Wanted,
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
    pub(super) fn next(&mut self) -> Option<Next> {
        let job = self.jobs.next(self.threads).map(|(kind, job)| Next::Job(kind, job));
        job.or_else(|| self.take().map(Next::Load))
    }

    /// The next object to load.
    pub(super) fn take(&mut self) -> Option<Turn> {
        // They waited longer than those that are wanted.
        while let Some((ino, way)) = self.ways.next(false, self.threads) {
            if self.begin(ino) {
                self.ways.begin(way, self.threads);
                return Some(Turn { ino, why: Why::Wanted, way: Some(way) });
            }
        }
        while let Some(ino) = self.wanted.pop_front() {
            if self.begin(ino) {
                return Some(Turn { ino, why: Why::Wanted, way: None });
            }
        }
        while self.running_ahead < self.half()
            && let Some((ino, way)) = self.next_ahead()
        {
            if self.begin(ino) {
                self.running_ahead += 1;
                if let Some(way) = way {
                    self.ways.begin(way, self.threads);
                }
                let is_named = self.loads.get(&ino).is_some_and(|load| load.is_named);
                return Some(Turn { ino, why: if is_named { Why::Named } else { Why::Ahead }, way });
            }
        }
        None
    }

    /// The next one that nobody waits for, and where it comes from when it has waited for that.
    fn next_ahead(&mut self) -> Option<(Ino, Option<Way>)> {
        let waited = self.ways.next(true, self.threads).map(|(ino, way)| (ino, Some(way)));
        waited.or_else(|| self.ahead.pop_front().map(|ino| (ino, None)))
    }

    /// It turned out where an object comes from that a thread has. Returns whether this thread may load it; else one of those that
    /// load from there now is to, when it is done.
    pub(super) fn goes_by(&mut self, way: Way, turn: &mut Turn) -> bool {
        let is_ahead = turn.why != Why::Wanted;
        if matches!(way, Way::Member(_)) && is_ahead {
            // It takes a place of those that come from members, and of no others.
            self.running_ahead -= 1;
            turn.why = Why::Wanted;
        }
        let may = self.ways.begin(way, self.threads);
        if may {
            turn.way = Some(way);
        } else {
            if let Some(load) = self.loads.get_mut(&turn.ino) {
                load.is_running = false;
            }
            self.running_ahead -= usize::from(turn.why != Why::Wanted);
            self.ways.wait(way, turn.ino, turn.why != Why::Wanted);
        }
        may
    }

    /// A thread has done its turn. Returns who waits for it.
    pub(super) fn end(&mut self, turn: Turn) -> Load {
        let load = self.loads.remove(&turn.ino).unwrap_or_default();
        self.count -= load.waiting.len() + load.at_start.len();
        self.running_ahead -= usize::from(turn.why != Why::Wanted);
        if let Some(way) = turn.way {
            self.ways.end(way);
        }
        load
    }

    /// Whether something that waited for its way may be loaded now.
    pub(super) fn has_way_for_more(&self) -> bool {
        self.ways.has_next(self.threads)
    }

    /// Since when somebody waits for what comes next, and why it is loaded.
    pub(super) fn known(&self, next: &Next) -> (Option<Instant>, SharedPurpose) {
        let load = if let Next::Load(turn) = next { self.loads.get(&turn.ino) } else { None };
        load.map(|load| (load.since, load.purpose.clone())).unwrap_or_default()
    }

    /// Whether something that nobody waits for may be loaded now.
    pub(super) fn has_room_ahead(&self) -> bool {
        self.running_ahead < self.half() && (!self.ahead.is_empty() || self.has_way_for_more())
    }

    fn begin(&mut self, ino: Ino) -> bool {
        let load = self.loads.get_mut(&ino).filter(|load| !load.is_running);
        load.map(|load| load.is_running = true).is_some()
    }
}
