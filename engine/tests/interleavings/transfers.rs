//! One submission, its slices ended by several threads.

use std::sync::Arc;

use shuttle::{future, thread};
use tidefs_engine::error::Error;
use tidefs_engine::transport::BatchId;

use crate::sync::{AtomicUsize, Ordering};
use crate::transfer::{Cancel, FollowUp, Transfer, TransferHandle};

/// Counts, and checks that it is called with all results there.
fn follow_up(count: &Arc<AtomicUsize>) -> Option<FollowUp> {
    let count = Arc::clone(count);
    Some(Box::new(move |conclusion| {
        assert_eq!(conclusion.entries.len(), 2);
        count.fetch_add(1, Ordering::SeqCst);
    }))
}

/// Two entries of two slices each; three threads end them.
fn end_all(transfer: &Arc<Transfer>) -> Vec<thread::JoinHandle<bool>> {
    let end = |ends: &'static [(usize, u32, bool)]| {
        let transfer = Arc::clone(transfer);
        thread::spawn(move || {
            ends.iter().fold(false, |was_last, &(entry, count, is_ok)| {
                let result = if is_ok { Ok(()) } else { Err(Error::Cancelled) };
                transfer.slices_ended(entry, count, result) || was_last
            })
        })
    };
    vec![end(&[(0, 1, true), (1, 1, false)]), end(&[(0, 1, true)]), end(&[(1, 1, true)])]
}

fn expect_one_last(threads: Vec<thread::JoinHandle<bool>>) {
    let last = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|&last| last).count();
    assert_eq!(last, 1, "one thread ends the transfer");
}

pub(crate) fn a_transfer_ends_once_for_who_blocks() {
    let count = Arc::new(AtomicUsize::new(0));
    let transfer = Transfer::new(BatchId::next(), [2, 2], follow_up(&count));
    let handle = TransferHandle::new(Arc::clone(&transfer), None);
    let threads = end_all(&transfer);
    assert_eq!(handle.wait().entries, [Ok(()), Err(Error::Cancelled)]);
    assert_eq!(count.load(Ordering::SeqCst), 1, "the follow-up runs before anybody is told");
    expect_one_last(threads);
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

pub(crate) fn a_transfer_ends_once_for_who_awaits() {
    let count = Arc::new(AtomicUsize::new(0));
    let transfer = Transfer::new(BatchId::next(), [2, 2], follow_up(&count));
    let handle = TransferHandle::new(Arc::clone(&transfer), None);
    let threads = end_all(&transfer);
    assert_eq!(future::block_on(handle).entries, [Ok(()), Err(Error::Cancelled)]);
    assert_eq!(count.load(Ordering::SeqCst), 1);
    expect_one_last(threads);
}

pub(crate) fn slices_may_be_added_while_others_end() {
    let transfer = Transfer::new(BatchId::next(), [1, 1], None);
    let handle = TransferHandle::new(Arc::clone(&transfer), None);
    let cut = {
        let transfer = Arc::clone(&transfer);
        thread::spawn(move || {
            // As a request is cut while it still has the slice that it began with.
            transfer.slices_added(0, 2);
            let ends: Vec<_> = (0..3)
                .map(|_| {
                    let transfer = Arc::clone(&transfer);
                    thread::spawn(move || transfer.slices_ended(0, 1, Ok(())))
                })
                .collect();
            ends.into_iter().any(|end| end.join().unwrap())
        })
    };
    let was_last = transfer.slices_ended(1, 1, Ok(()));
    assert_eq!(handle.wait().entries, [Ok(()), Ok(())]);
    assert!(cut.join().unwrap() != was_last);
}

#[derive(Debug, Default)]
struct Counted(AtomicUsize);

impl Cancel for Counted {
    fn cancel(&self, transfer: &Transfer) {
        self.0.fetch_add(1, Ordering::SeqCst);
        // What the engine does for slices that were not with a transport.
        transfer.slices_ended(1, 1, Err(Error::Cancelled));
    }
}

pub(crate) fn a_dropped_handle_races_with_the_end() {
    let count = Arc::new(AtomicUsize::new(0));
    let canceller = Arc::new(Counted::default());
    let transfer = Transfer::new(BatchId::next(), [1, 1], follow_up(&count));
    let handle = TransferHandle::new(Arc::clone(&transfer), Some(Arc::clone(&canceller) as Arc<dyn Cancel>));
    let end = {
        let transfer = Arc::clone(&transfer);
        thread::spawn(move || transfer.slices_ended(0, 1, Ok(())))
    };
    drop(handle);
    end.join().unwrap();
    assert_eq!(canceller.0.load(Ordering::SeqCst), 1, "it had a slice that only cancelling ends");
    assert!(transfer.is_ended());
    assert_eq!(count.load(Ordering::SeqCst), 1);
}
