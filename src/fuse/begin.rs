//! Work of the runtime that begins on the thread that a request came by.

use std::future::Future;
use std::task::{Context, Waker};

use tokio::runtime::Handle;

/// Does `work` on this thread as far as it does not have to wait, and the rest as a task: what it sends first leaves without
/// another thread having to wake for it.
pub(super) fn begin(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
    let mut work = Box::pin(work);
    let begun = {
        let _entered = runtime.enter();
        // The task asks to be woken itself, when it first looks.
        work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    };
    if begun.is_pending() {
        runtime.spawn(work);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn what_has_not_to_wait_is_done_by_the_caller_and_the_rest_by_the_runtime() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (tell, told) = channel();
        let (go_on, mut waits) = tokio::sync::mpsc::channel::<()>(1);
        begin(runtime.handle(), async move {
            tell.send(thread::current().id()).unwrap();
            waits.recv().await;
            tell.send(thread::current().id()).unwrap();
        });
        assert_eq!(told.try_recv(), Ok(thread::current().id()));
        go_on.blocking_send(()).unwrap();
        assert_ne!(told.recv().unwrap(), thread::current().id());
    }
}
