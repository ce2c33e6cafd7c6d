//! Jobs that wait for the threads that load, of two kinds: those that have a disk take an object, and all others.
//!
//! A disk takes many objects at once, and one that hangs keeps each thread for as long as its job may wait: the first have five eighths
//! of the threads at most, the others half of them. Where both want more than there are, they have their turns one by one, and leave
//! a quarter of the threads to loads.
//!
//! Limits: `WAITING_MAX` of each kind; what becomes of a further one is said by [`super::loader`].
//! Threads: any, under the lock of the loader.

use std::collections::VecDeque;

use super::loader::{Job, WAITING_MAX};
use super::ways::all_but_a_quarter;

/// What a job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobKind {
    /// That a disk takes an object.
    Durable,
    /// Anything else.
    Other,
}

/// The jobs of one kind.
#[derive(Default)]
struct Line {
    waiting: VecDeque<Job>,
    running: usize,
}

#[derive(Default)]
pub(super) struct JobLines {
    durable: Line,
    others: Line,
    /// Whether the last one that had its turn was to make something durable.
    was_durable: bool,
}

impl JobLines {
    fn line(&mut self, kind: JobKind) -> &mut Line {
        match kind {
            JobKind::Durable => &mut self.durable,
            JobKind::Other => &mut self.others,
        }
    }

    /// Leaves a job to wait. Gives it back when too many of its kind do.
    pub(super) fn push(&mut self, kind: JobKind, job: Job) -> Option<Job> {
        let waiting = &mut self.line(kind).waiting;
        if waiting.len() >= WAITING_MAX {
            return Some(job);
        }
        waiting.push_back(job);
        None
    }

    /// The next job, if one of `threads` may do it now.
    pub(super) fn next(&mut self, threads: usize) -> Option<(JobKind, Job)> {
        if self.durable.running + self.others.running >= all_but_a_quarter(threads) {
            return None;
        }
        let durable = (JobKind::Durable, (threads * 5).div_ceil(8));
        let other = (JobKind::Other, threads.div_ceil(2));
        let kinds = if self.was_durable { [other, durable] } else { [durable, other] };
        for (kind, running_max) in kinds {
            let line = self.line(kind);
            if line.running < running_max
                && let Some(job) = line.waiting.pop_front()
            {
                line.running += 1;
                self.was_durable = kind == JobKind::Durable;
                return Some((kind, job));
            }
        }
        None
    }

    /// One of them is done.
    pub(super) fn end(&mut self, kind: JobKind) {
        self.line(kind).running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many jobs of each kind.
    fn waiting(durable: usize, others: usize) -> JobLines {
        let mut lines = JobLines::default();
        for (kind, count) in [(JobKind::Durable, durable), (JobKind::Other, others)] {
            assert!((0..count).all(|_| lines.push(kind, Box::new(|_| ())).is_none()));
        }
        lines
    }

    /// How many of each kind run when `threads` have taken what they may.
    fn taken(lines: &mut JobLines, threads: usize) -> (usize, usize) {
        while lines.next(threads).is_some() {}
        (lines.durable.running, lines.others.running)
    }

    #[test]
    fn jobs_that_wait_for_a_disk_that_hangs_have_most_of_the_threads_and_leave_some_to_others_and_to_loads() {
        let mut lines = waiting(20, 0);
        assert_eq!(taken(&mut lines, 16), (10, 0));
        (0..20).for_each(|_| drop(lines.push(JobKind::Other, Box::new(|_| ()))));
        assert_eq!(taken(&mut lines, 16), (10, 2));
        // The other way round.
        let mut lines = waiting(0, 20);
        assert_eq!(taken(&mut lines, 16), (0, 8));
        (0..20).for_each(|_| drop(lines.push(JobKind::Durable, Box::new(|_| ()))));
        assert_eq!(taken(&mut lines, 16), (4, 8));
    }

    #[test]
    fn neither_kind_of_job_keeps_the_other_waiting_however_few_threads_there_are() {
        for threads in 1..=4 {
            let mut lines = waiting(20, 20);
            let kinds: Vec<JobKind> = (0..10)
                .map(|_| {
                    let (kind, _) = lines.next(threads).unwrap();
                    lines.end(kind);
                    kind
                })
                .collect();
            let durable = kinds.iter().filter(|kind| **kind == JobKind::Durable).count();
            assert_eq!(durable, 5, "{threads} threads: {kinds:?}");
            let (durable, others) = taken(&mut lines, threads);
            assert_eq!(durable + others, if threads == 1 { 1 } else { threads - 1 });
        }
    }
}
