//! Work of the runtime that begins on the thread that a request came by.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;
use tokio::runtime::Handle;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Does `work` on this thread as far as it does not have to wait, and the rest as a task once there is more to do: what it sends
/// first leaves without another thread having to wake for it, and the thread that has what it waits for goes on with it.
pub(super) fn begin(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
    let mut work: Work = Box::pin(work);
    let rest = Arc::new(Rest { runtime: runtime.clone(), state: Mutex::new(State::Begins) });
    let begun = {
        let _entered = runtime.enter();
        work.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&rest))))
    };
    if begun.is_pending() {
        rest.wait_with(work);
    }
}

/// What is left of some work.
struct Rest {
    runtime: Handle,
    /// Guards who has the work; held for moments.
    state: Mutex<State>,
}

enum State {
    /// The thread that began it has it still.
    Begins,
    Waits(Work),
    /// There is more to do, and who has it spawns it.
    Woken,
}

impl Rest {
    fn wait_with(&self, work: Work) {
        let mut state = self.state.lock();
        match *state {
            State::Woken => drop(self.runtime.spawn(work)),
            _ => *state = State::Waits(work),
        }
    }
}

impl Wake for Rest {
    fn wake(self: Arc<Self>) {
        let before = mem::replace(&mut *self.state.lock(), State::Woken);
        if let State::Waits(work) = before {
            // As a task it asks to be woken itself.
            self.runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use tokio::sync::oneshot;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn what_has_not_to_wait_is_done_by_the_caller_and_the_rest_by_the_runtime() {
        let runtime = runtime();
        let (tell, told) = channel();
        let (go_on, mut waits) = tokio::sync::mpsc::channel::<()>(1);
        begin(runtime.handle(), async move {
            for _ in 0..3 {
                tell.send(thread::current().id()).unwrap();
                waits.recv().await;
            }
        });
        assert_eq!(told.try_recv(), Ok(thread::current().id()));
        for _ in 0..2 {
            go_on.blocking_send(()).unwrap();
            assert_ne!(told.recv().unwrap(), thread::current().id());
        }
    }

    #[test]
    fn no_thread_of_the_runtime_looks_at_work_that_waits() {
        let runtime = runtime();
        let (answer, answered) = oneshot::channel::<()>();
        begin(runtime.handle(), async move { drop(answered.await) });
        assert_eq!(runtime.metrics().num_alive_tasks(), 0);
        answer.send(()).unwrap();
    }

    #[test]
    fn what_is_woken_while_it_begins_goes_on() {
        let runtime = runtime();
        let (tell, told) = channel();
        begin(runtime.handle(), async move {
            // Wakes who waits before it says that it has to wait.
            tokio::task::yield_now().await;
            tell.send(()).unwrap();
        });
        told.recv().unwrap();
    }

    #[test]
    fn work_ends_by_its_deadline_when_nothing_else_wakes_it() {
        let runtime = runtime();
        let (tell, told) = channel();
        begin(runtime.handle(), async move {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            tell.send(()).unwrap();
        });
        told.recv().unwrap();
    }
}
