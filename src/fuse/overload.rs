//! Requests that take long are left to threads that may wait. One that finds too many of them there already is refused: the
//! thread that answers the kernel does not wait in its place, which would hold up everybody.
//!
//! Limits: those of [`Datapath::leave_job`].

use fuser::{
    Errno, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyWrite, ReplyXattr,
};

use super::ops::fail;
use crate::datapath::{Datapath, Error, Job, Pace};

/// A reply that can be an error.
pub(super) trait Refuse: Send + 'static {
    fn refuse(self, errno: Errno);
}

macro_rules! refused_by_error {
    ($($Reply:ty),*) => {
        $(
            impl Refuse for $Reply {
                fn refuse(self, errno: Errno) {
                    self.error(errno);
                }
            }
        )*
    };
}

refused_by_error!(
    ReplyAttr,
    ReplyCreate,
    ReplyEmpty,
    ReplyEntry,
    ReplyIoctl,
    ReplyOpen,
    ReplyWrite,
    ReplyXattr
);

/// Does `rest`, which may take long, on a thread that may wait; or refuses the request, of which nothing is done then.
pub(super) fn at_leisure<R: Refuse>(
    datapath: &Datapath,
    operation: &'static str,
    reply: R,
    rest: impl FnOnce(R) + Send + 'static,
) {
    datapath.leave_job(or_refused(operation, reply, rest));
}

/// The job of a request that is refused where too many wait.
pub(super) fn or_refused<R: Refuse>(
    operation: &'static str,
    reply: R,
    rest: impl FnOnce(R) + Send + 'static,
) -> Job {
    Box::new(move |pace| match pace {
        Pace::AtLeisure => rest(reply),
        Pace::AtOnce => reply.refuse(fail(operation, &Error::Overloaded)),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::datapath::testing::unprivileged;

    /// Keeps what it is refused with.
    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Option<Errno>>>);

    impl Refuse for Told {
        fn refuse(self, errno: Errno) {
            *self.0.lock() = Some(errno);
        }
    }

    #[test]
    fn what_finds_too_many_waiting_is_refused_at_once_and_not_done() {
        let (_place, datapath) = unprivileged();
        let waits = Told::default();
        at_leisure(&datapath, "test", waits.clone(), |_| ());
        while datapath.telemetry().overloads.get() == 0 {
            datapath.leave_job(Box::new(|_| ()));
        }
        let told = Told::default();
        at_leisure(&datapath, "test", told.clone(), |_| panic!("it takes long"));
        assert_eq!(*told.0.lock(), Some(Errno::EAGAIN));
        assert_eq!(*waits.0.lock(), None);
    }
}
