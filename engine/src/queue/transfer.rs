//! Hot path: counts the slices of one submission to their end, and tells who waits (see `handle`).
//!
//! Invariants
//! - It ends when the last slice of every entry has ended; so nothing can touch any of its memory then.
//! - An entry's result is `Ok`, or the first error among its slices.
//! - It ends once: who waits is woken once, and the follow-up runs once, before anybody is woken. It may take its time.

// By its path, since `tests/interleavings` names this file by one.
#[path = "transfer/handle.rs"]
mod handle;

use std::fmt;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::sync::{Condvar, Mutex};
use crate::transport::{BatchId, Progress};

pub use self::handle::{Cancel, TransferHandle};

/// What became of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// One result for each request, in the order of the batch.
    pub entries: Vec<Result<(), Error>>,
    /// Time from submission to the end.
    pub elapsed: Duration,
}

impl Report {
    /// The first error, if there is one.
    ///
    /// # Errors
    /// That error.
    pub fn into_result(self) -> Result<(), Error> {
        self.entries.into_iter().collect()
    }
}

#[derive(Clone, Debug)]
struct Entry {
    open_slices: u32,
    error: Option<Error>,
}

/// What is done with the results before anybody is told.
pub type FollowUp = Box<dyn FnOnce(Conclusion) + Send>;

/// The results of a submission all of whose slices have ended. When it is dropped, who waits is told what it holds then.
#[derive(Debug)]
pub struct Conclusion {
    transfer: Arc<Transfer>,
    /// One for each entry; as many stay.
    pub entries: Vec<Result<(), Error>>,
}

impl Drop for Conclusion {
    fn drop(&mut self) {
        self.transfer.conclude(std::mem::take(&mut self.entries));
    }
}

struct State {
    entries: Vec<Entry>,
    open_entries: usize,
    follow_up: Option<FollowUp>,
    waker: Option<Waker>,
    /// What the thread that waits does meanwhile.
    progress: Option<Arc<dyn Progress>>,
    report: Option<Report>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("open_entries", &self.open_entries).finish_non_exhaustive()
    }
}

/// One submission, shared between who waits for it and what ends it.
#[derive(Debug)]
pub struct Transfer {
    me: Weak<Self>,
    id: BatchId,
    began: Instant,
    /// Guards all of it; a short critical section for each slice.
    state: Mutex<State>,
    ended: Condvar,
}

impl Transfer {
    /// A submission whose entry `i` has `slices[i]` slices, none of which is zero. `follow_up` is called with the
    /// results when all have ended, before anybody who waits is told. Without entries it has ended at once.
    #[must_use]
    pub fn new(id: BatchId, slices: impl IntoIterator<Item = u32>, follow_up: Option<FollowUp>) -> Arc<Self> {
        let entries: Vec<Entry> =
            slices.into_iter().map(|open_slices| Entry { open_slices, error: None }).collect();
        let state = State {
            open_entries: entries.len(),
            entries,
            follow_up,
            waker: None,
            progress: None,
            report: None,
        };
        let transfer = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            id,
            began: Instant::now(),
            state: Mutex::new(state),
            ended: Condvar::new(),
        });
        if transfer.state.lock().open_entries == 0 {
            transfer.finish();
        }
        transfer
    }

    /// Its name among the operations.
    #[must_use]
    pub fn id(&self) -> BatchId {
        self.id
    }

    /// `count` slices of `entry` have ended with `result`. Called for each slice exactly once. Returns whether they were
    /// the last of all.
    pub fn slices_ended(&self, entry: usize, count: u32, result: Result<(), Error>) -> bool {
        let is_last = {
            let mut state = self.state.lock();
            let Some(found) = state.entries.get_mut(entry) else { return false };
            if let Err(error) = result {
                found.error.get_or_insert(error);
            }
            debug_assert!(found.open_slices >= count, "a slice ended twice");
            found.open_slices = found.open_slices.saturating_sub(count);
            let is_entry_done = found.open_slices == 0 && count > 0;
            state.open_entries -= usize::from(is_entry_done);
            is_entry_done && state.open_entries == 0
        };
        if is_last {
            self.finish();
        }
        is_last
    }

    /// `entry`, which has not ended, has `count` more slices than was said.
    pub fn slices_added(&self, entry: usize, count: u32) {
        if let Some(found) = self.state.lock().entries.get_mut(entry) {
            debug_assert!(found.open_slices > 0, "an entry that has ended gets no more slices");
            found.open_slices += count;
        }
    }

    /// Nobody is left who would end what is open: it ends with `error`.
    pub fn end_open(&self, error: &Error) {
        {
            let mut state = self.state.lock();
            if state.open_entries == 0 {
                return;
            }
            state.open_entries = 0;
            for entry in state.entries.iter_mut().filter(|entry| entry.open_slices > 0) {
                entry.open_slices = 0;
                entry.error.get_or_insert_with(|| error.clone());
            }
        }
        self.finish();
    }

    /// Slices that have not ended.
    #[must_use]
    pub fn open_slices(&self) -> u64 {
        self.state.lock().entries.iter().map(|entry| u64::from(entry.open_slices)).sum()
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.state.lock().report.is_some()
    }

    fn finish(&self) {
        let (entries, follow_up) = {
            let mut state = self.state.lock();
            let result = |entry: Entry| entry.error.map_or(Ok(()), Err);
            let entries: Vec<_> = std::mem::take(&mut state.entries).into_iter().map(result).collect();
            (entries, state.follow_up.take())
        };
        // Whoever ends the last slice holds it.
        let Some(transfer) = self.me.upgrade() else { return };
        let conclusion = Conclusion { transfer, entries };
        match follow_up {
            Some(follow_up) => follow_up(conclusion),
            None => drop(conclusion),
        }
    }

    fn conclude(&self, entries: Vec<Result<(), Error>>) {
        let (waker, progress) = {
            let mut state = self.state.lock();
            state.report = Some(Report { entries, elapsed: self.began.elapsed() });
            (state.waker.take(), state.progress.take())
        };
        self.ended.notify_all();
        if let Some(progress) = progress {
            progress.nudge();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    pub(super) fn transfer(slices: &[u32]) -> Arc<Transfer> {
        Transfer::new(BatchId::next(), slices.iter().copied(), None)
    }

    #[test]
    fn it_ends_with_its_last_slice_and_keeps_the_first_error_of_each_entry() {
        let transfer = transfer(&[2, 1, 1]);
        let handle = TransferHandle::new(Arc::clone(&transfer), None);
        transfer.slices_ended(0, 1, Ok(()));
        transfer.slices_ended(1, 1, Err(Error::Cancelled));
        transfer.slices_ended(2, 1, Ok(()));
        assert!(!handle.is_ended());
        assert_eq!(transfer.open_slices(), 1);
        let handle = handle.wait_for(Duration::ZERO).unwrap_err();
        transfer.slices_ended(0, 1, Err(Error::Closed));
        assert_eq!(handle.wait().entries, [Err(Error::Closed), Err(Error::Cancelled), Ok(())]);
    }

    #[test]
    fn what_nobody_ends_any_more_ends_once_with_an_error() {
        let transfer = transfer(&[2, 1, 1]);
        transfer.slices_ended(1, 1, Ok(()));
        transfer.slices_ended(2, 1, Err(Error::Cancelled));
        transfer.end_open(&Error::Closed);
        transfer.end_open(&Error::DeadlinePassed);
        let handle = TransferHandle::new(transfer, None);
        assert_eq!(handle.wait().entries, [Err(Error::Closed), Ok(()), Err(Error::Cancelled)]);
    }

    #[test]
    fn a_submission_without_entries_has_ended() {
        assert_eq!(TransferHandle::new(transfer(&[]), None).wait().entries, []);
    }

    #[test]
    fn the_follow_up_runs_once_and_before_anybody_is_told_what_it_has_made_of_the_results() {
        let count = Arc::new(AtomicU32::new(0));
        let follow_up = {
            let count = Arc::clone(&count);
            Box::new(move |mut conclusion: Conclusion| {
                assert_eq!(conclusion.entries, [Ok(())]);
                conclusion.entries[0] = Err(Error::Closed);
                count.fetch_add(1, Ordering::SeqCst);
            })
        };
        let transfer = Transfer::new(BatchId::next(), [1000], Some(follow_up));
        let handle = TransferHandle::new(Arc::clone(&transfer), None);
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    (0..100).for_each(|_| {
                        transfer.slices_ended(0, 1, Ok(()));
                    })
                });
            }
            assert_eq!(handle.wait().entries, [Err(Error::Closed)]);
            assert_eq!(count.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn who_waits_is_told_when_the_follow_up_lets_go_of_the_results() {
        let (hand_on, handed_on) = std::sync::mpsc::channel();
        let follow_up = Box::new(move |conclusion: Conclusion| hand_on.send(conclusion).unwrap());
        let transfer = Transfer::new(BatchId::next(), [1], Some(follow_up));
        let handle = TransferHandle::new(Arc::clone(&transfer), None);
        assert!(transfer.slices_ended(0, 1, Ok(())), "nothing of it is under way");
        let mut conclusion = handed_on.recv().unwrap();
        let handle = handle.wait_for(Duration::from_millis(1)).unwrap_err();
        conclusion.entries[0] = Err(Error::DeadlinePassed);
        drop(conclusion);
        assert_eq!(handle.wait().entries, [Err(Error::DeadlinePassed)]);
    }
}
