//! What others wrote and a link calls may panic: that costs the call, or the link, and never what keeps links in order.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// What is said of one that panicked; the hook of panics has said more.
pub(super) const PANICKED: &str = "what handles it panicked";

/// What `call` returns; `None` when it panicked.
pub(super) fn called<T>(call: impl FnOnce() -> T) -> Option<T> {
    // What it left half done is its own: locks of the links are not held while others are called.
    catch_unwind(AssertUnwindSafe(call)).map_err(told).ok()
}

/// What `work` comes to; `None` when it panicked.
pub(super) async fn awaited<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|context| match called(|| work.as_mut().poll(context)) {
        Some(Poll::Ready(value)) => Poll::Ready(Some(value)),
        Some(Poll::Pending) => Poll::Pending,
        // It is not polled again.
        None => Poll::Ready(None),
    })
    .await
}

fn told(panic: Box<dyn Any + Send>) {
    let words = panic.downcast_ref::<String>().map(String::as_str);
    let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
    tracing::error!(panic = words, "what handles a link panicked");
}
