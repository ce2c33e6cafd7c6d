//! Hot path: the caller's end of a submission, by which it waits, or gives up.
//!
//! Invariants
//! - Who blocks does the work of the transport meanwhile, where that lends some, and is called away from it by the end.
//! - A handle that is dropped gives up what has not ended, unless it was detached.
//!
//! Limit: a thread works for [`WORK_MAX`] at most, and sleeps until the end then.
//!
//! Threads: whichever waits; one at a time, since the handle is not shared.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::{Report, Transfer};
use crate::transport::Progress;

/// Longest time for which a thread that waits works itself; then it only waits.
const WORK_MAX: Duration = Duration::from_secs(60);

/// Gives up a submission; what the engine lends to a handle.
pub trait Cancel: Send + Sync + fmt::Debug {
    /// Every slice of `transfer` ends soon, with [`Error::Cancelled`](crate::error::Error::Cancelled) unless it ended before.
    fn cancel(&self, transfer: &Transfer);

    /// What a thread that blocks for `transfer` may do meanwhile.
    fn progress(&self, transfer: &Transfer) -> Option<Arc<dyn Progress>> {
        let _ = transfer;
        None
    }
}

/// Waits for one submission: as a future, or by blocking.
///
/// Dropping it cancels what has not ended; the engine keeps the memory until nothing can touch it any more.
#[derive(Debug)]
pub struct TransferHandle {
    transfer: Arc<Transfer>,
    canceller: Option<Arc<dyn Cancel>>,
}

impl TransferHandle {
    /// The handle of `transfer`, which `canceller` can give up.
    #[must_use]
    pub fn new(transfer: Arc<Transfer>, canceller: Option<Arc<dyn Cancel>>) -> Self {
        Self { transfer, canceller }
    }

    /// Gives up what has not ended. The handle still resolves, when the memory is safe.
    pub fn cancel(&self) {
        if let Some(canceller) = &self.canceller
            && !self.transfer.is_ended()
        {
            canceller.cancel(&self.transfer);
        }
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.transfer.is_ended()
    }

    /// Lets the submission go on by itself; nobody learns how it ends.
    pub fn detach(mut self) {
        self.canceller = None;
    }

    /// Does what the threads of the transport would do otherwise, for at most `time`.
    fn work(&self, time: Duration) {
        let Some(progress) = self.canceller.as_ref().and_then(|engine| engine.progress(&self.transfer))
        else {
            return;
        };
        {
            let mut state = self.transfer.state.lock();
            if state.report.is_some() {
                return;
            }
            state.progress = Some(Arc::clone(&progress));
        }
        progress.work(&|| self.transfer.is_ended(), Instant::now() + time);
        self.transfer.state.lock().progress = None;
    }

    /// Blocks until it has ended, which is soon after its deadline at the latest. Not for async code.
    #[must_use]
    pub fn wait(self) -> Report {
        self.work(WORK_MAX);
        let mut state = self.transfer.state.lock();
        loop {
            if let Some(report) = state.report.take() {
                // Dropping the handle asks whether it has ended.
                state.report = Some(Report { entries: Vec::new(), elapsed: report.elapsed });
                return report;
            }
            self.transfer.ended.wait(&mut state);
        }
    }

    /// Blocks for at most `time`. Gives the handle back when it has not ended by then.
    ///
    /// # Errors
    /// The handle itself.
    pub fn wait_for(self, time: Duration) -> Result<Report, Self> {
        // A time beyond all clocks is for ever.
        let Some(until) = Instant::now().checked_add(time) else { return Ok(self.wait()) };
        self.work(time.min(WORK_MAX));
        {
            let mut state = self.transfer.state.lock();
            while state.report.is_none() {
                if self.transfer.ended.wait_until(&mut state, until).timed_out() {
                    break;
                }
            }
        }
        if self.is_ended() { Ok(self.wait()) } else { Err(self) }
    }
}

impl Future for TransferHandle {
    type Output = Report;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Report> {
        let mut state = self.transfer.state.lock();
        match state.report.take() {
            Some(report) => {
                state.report = Some(Report { entries: Vec::new(), elapsed: report.elapsed });
                Poll::Ready(report)
            }
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for TransferHandle {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::super::tests::transfer;
    use super::*;

    #[test]
    fn a_task_that_awaits_it_is_woken() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let transfer = transfer(&[1]);
        let handle = TransferHandle::new(Arc::clone(&transfer), None);
        let ender = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            transfer.slices_ended(0, 1, Ok(()));
        });
        assert_eq!(runtime.block_on(handle).into_result(), Ok(()));
        ender.join().unwrap();
    }

    #[test]
    fn one_may_wait_for_ever() {
        let transfer = transfer(&[1]);
        let handle = TransferHandle::new(Arc::clone(&transfer), None);
        let ender = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            transfer.slices_ended(0, 1, Ok(()));
        });
        assert_eq!(handle.wait_for(Duration::MAX).unwrap().entries, [Ok(())]);
        ender.join().unwrap();
    }

    #[test]
    fn dropping_a_handle_cancels_and_detaching_does_not() {
        #[derive(Debug, Default)]
        struct Count(AtomicU32);
        impl Cancel for Count {
            fn cancel(&self, _: &Transfer) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let count = Arc::new(Count::default());
        let handle = |transfer| TransferHandle::new(transfer, Some(Arc::clone(&count) as Arc<dyn Cancel>));
        drop(handle(transfer(&[1])));
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        handle(transfer(&[1])).detach();
        drop(handle(transfer(&[])));
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
    }
}
