//! The ways on which objects come to memory that may keep threads for long, and how many threads each of them keeps at most.
//!
//! A member that hangs, or an object that is read while it arrives, keeps a thread for as long as its transfer takes: all members
//! together have half of the threads where there is a disk, and each leaves a quarter of theirs to the others. A disk that hangs
//! keeps them until the first request is late: of several disks each leaves a quarter to the others.
//!
//! Limits: what finds no thread on its way waits, behind those that came before it; as many as [`super::loader`] has waiting.
//! Threads: any, under the lock of the loader.

use std::collections::{BTreeMap, VecDeque};

use tidefs_engine::types::MemberId;

use crate::namespace::Ino;

/// Where an object comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// Another member: the one that is asked first.
    Member(MemberId),
    /// One of several disks.
    Disk(u8),
}

/// Of so many threads, those that one of several may keep.
pub(super) fn all_but_a_quarter(threads: usize) -> usize {
    threads.saturating_sub(threads.div_ceil(4)).max(1)
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

impl Line {
    fn is_idle(&self) -> bool {
        self.running == 0 && self.wanted.is_empty() && self.ahead.is_empty()
    }
}

/// What goes on all ways.
#[derive(Debug, Default)]
pub(super) struct Ways {
    lines: BTreeMap<Way, Line>,
    /// Loads from members, of all of them.
    from_members: usize,
    /// Whether a part of the threads is for a disk.
    pub(super) has_disk: bool,
}

impl Ways {
    /// How many of `threads` are for members.
    fn for_members(&self, threads: usize) -> usize {
        if self.has_disk { (threads - threads / 2).max(1) } else { threads }
    }

    /// Whether one of `threads` may load on a way.
    fn has_thread(&self, way: Way, threads: usize) -> bool {
        let running = self.lines.get(&way).map_or(0, |line| line.running);
        match way {
            Way::Member(_) => {
                let all = self.for_members(threads);
                self.from_members < all && running < all_but_a_quarter(all)
            }
            Way::Disk(_) => running < all_but_a_quarter(threads),
        }
    }

    /// A thread is to load something on a way. Returns whether it may; else what it was to load is left to wait.
    pub(super) fn begin(&mut self, way: Way, threads: usize) -> bool {
        let may = self.has_thread(way, threads);
        if may {
            self.lines.entry(way).or_default().running += 1;
            self.from_members += usize::from(matches!(way, Way::Member(_)));
        }
        may
    }

    /// A thread has loaded what came on a way.
    pub(super) fn end(&mut self, way: Way) {
        if let Some(line) = self.lines.get_mut(&way).filter(|line| line.running > 0) {
            line.running -= 1;
            self.from_members -= usize::from(matches!(way, Way::Member(_)));
            if line.is_idle() {
                // Members come and go.
                self.lines.remove(&way);
            }
        }
    }

    /// An object waits until its way has a thread for it.
    pub(super) fn wait(&mut self, way: Way, ino: Ino, is_ahead: bool) {
        let line = self.lines.entry(way).or_default();
        let waiting = if is_ahead { &mut line.ahead } else { &mut line.wanted };
        waiting.push_back(ino);
    }

    /// Whether there is one that waited and whose way has a thread for it now.
    pub(super) fn has_next(&self, threads: usize) -> bool {
        let waits = |line: &Line| !line.wanted.is_empty() || !line.ahead.is_empty();
        self.lines.iter().any(|(way, line)| waits(line) && self.has_thread(*way, threads))
    }

    /// One that waited and whose way has a thread for it now.
    pub(super) fn next(&mut self, is_ahead: bool, threads: usize) -> Option<(Ino, Way)> {
        let waits = |line: &Line| !if is_ahead { &line.ahead } else { &line.wanted }.is_empty();
        let is_free = |(way, line): &(&Way, &Line)| waits(line) && self.has_thread(**way, threads);
        let way = *self.lines.iter().find(is_free)?.0;
        let line = self.lines.get_mut(&way)?;
        let waiting = if is_ahead { &mut line.ahead } else { &mut line.wanted };
        Some((waiting.pop_front()?, way))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_leaves_threads_to_the_others_and_has_one_at_least() {
        let most = |way, threads, has_disk| {
            let mut ways = Ways { has_disk, ..Ways::default() };
            (0..100).filter(|_| ways.begin(way, threads)).count()
        };
        let of_member =
            |threads| [false, true].map(|has_disk| most(Way::Member(MemberId(2)), threads, has_disk));
        assert_eq!([1, 2, 4, 16, 32].map(of_member), [[1, 1], [1, 1], [3, 1], [12, 6], [24, 12]]);
        assert_eq!([1, 2, 4, 5, 16].map(|threads| most(Way::Disk(0), threads, true)), [1, 1, 3, 3, 12]);
    }

    #[test]
    fn members_together_leave_half_of_the_threads_to_a_disk() {
        let mut ways = Ways { has_disk: true, ..Ways::default() };
        let (hangs, other) = (Way::Member(MemberId(2)), Way::Member(MemberId(3)));
        assert_eq!((0..8).filter(|_| ways.begin(hangs, 8)).count(), 3);
        assert!(ways.begin(other, 8) && !ways.begin(other, 8));
        ways.end(hangs);
        assert!(ways.begin(other, 8));
        [hangs, hangs, other, other].into_iter().for_each(|way| ways.end(way));
        assert!(ways.lines.is_empty() && ways.from_members == 0);
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
