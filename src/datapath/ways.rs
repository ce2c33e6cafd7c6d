//! The ways on which objects come to memory that may keep threads for long, and how many threads each of them keeps at most.
//!
//! A peer that hangs, or an object that is read while it arrives, keeps a thread for as long as its transfer takes: members
//! have half of the threads where there is a disk. A disk that hangs keeps them until the first request is late: of several
//! disks each leaves a quarter to the others.
//!
//! Limits: what finds no thread on its way waits, behind those that came before it; as many as [`super::loader`] has waiting.
//! Threads: any, under the lock of the loader.

use std::collections::{BTreeMap, VecDeque};

use crate::namespace::Ino;

/// Where an object comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// Another member.
    Member,
    /// One of several disks.
    Disk(u8),
}

impl Way {
    /// Of `threads`, how many it may keep.
    fn most(self, threads: usize) -> usize {
        let left = match self {
            Self::Member => threads / 2,
            Self::Disk(_) => threads.div_ceil(4),
        };
        threads.saturating_sub(left).max(1)
    }
}

/// What goes on one way.
#[derive(Debug, Default)]
struct Line {
    running: usize,
    /// Those that found no thread and that somebody waits for.
    wanted: VecDeque<Ino>,
    /// The same that nobody waits for yet.
    ahead: VecDeque<Ino>,
}

/// What goes on all ways.
#[derive(Debug, Default)]
pub(super) struct Ways(BTreeMap<Way, Line>);

impl Ways {
    /// A thread is to load something on a way. Returns whether it may; else what it was to load is left to wait.
    pub(super) fn begin(&mut self, way: Way, threads: usize) -> bool {
        let line = self.0.entry(way).or_default();
        let may = line.running < way.most(threads);
        line.running += usize::from(may);
        may
    }

    /// A thread has loaded what came on a way.
    pub(super) fn end(&mut self, way: Way) {
        if let Some(line) = self.0.get_mut(&way) {
            line.running = line.running.saturating_sub(1);
        }
    }

    /// An object waits until its way has a thread for it.
    pub(super) fn wait(&mut self, way: Way, ino: Ino, is_ahead: bool) {
        let line = self.0.entry(way).or_default();
        let waiting = if is_ahead { &mut line.ahead } else { &mut line.wanted };
        waiting.push_back(ino);
    }

    /// Whether there is one that waited and whose way has a thread for it now.
    pub(super) fn has_next(&self, threads: usize) -> bool {
        let waits = |line: &Line| !line.wanted.is_empty() || !line.ahead.is_empty();
        self.0.iter().any(|(way, line)| waits(line) && line.running < way.most(threads))
    }

    /// One that waited and whose way has a thread for it now.
    pub(super) fn next(&mut self, is_ahead: bool, threads: usize) -> Option<(Ino, Way)> {
        let free = self.0.iter_mut().filter(|(way, line)| line.running < way.most(threads));
        let mut waited = free.filter_map(|(way, line)| {
            let waiting = if is_ahead { &mut line.ahead } else { &mut line.wanted };
            waiting.pop_front().map(|ino| (ino, *way))
        });
        waited.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_leaves_threads_to_the_others_and_has_one_at_least() {
        let most = |threads| (Way::Member.most(threads), Way::Disk(0).most(threads));
        assert_eq!([1, 2, 4, 5, 16].map(most), [(1, 1), (1, 1), (2, 3), (3, 3), (8, 12)]);
    }

    #[test]
    fn what_waits_for_a_way_comes_when_that_has_a_thread_again() {
        let mut ways = Ways::default();
        let disk = Way::Disk(3);
        assert!((0..3).all(|_| ways.begin(disk, 4)) && !ways.begin(disk, 4));
        ways.wait(disk, Ino(1), true);
        ways.wait(disk, Ino(2), false);
        assert!(ways.begin(Way::Disk(4), 4), "another disk has threads");
        assert_eq!(ways.next(false, 4), None);
        assert!(!ways.has_next(4));
        ways.end(disk);
        assert!(ways.has_next(4), "who sleeps is to be woken");
        assert_eq!((ways.next(false, 4), ways.next(false, 4)), (Some((Ino(2), disk)), None));
        assert_eq!(ways.next(true, 4), Some((Ino(1), disk)));
        assert!(!ways.has_next(4));
    }
}
