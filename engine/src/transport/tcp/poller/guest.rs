//! Hot path: a thread that waits for a transfer, and works on its connections meanwhile.
//!
//! Invariants
//! - A poller has one guest at most, and its own thread does not look at what the guest has borrowed.
//! - What was borrowed is given back when the visit ends, however it ends, and work that is left over rings for the host.
//! - A connection that is over is not looked at: its socket would be ready for ever. A guest without another one
//!   leaves.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Driven, HUNG_UP, NOTICED, Poller, READABLE, WRITABLE, Watch};
use crate::transport::Progress;

/// Connections of one poller that a thread borrows while it waits for a transfer over them.
#[derive(Debug)]
pub(in crate::transport::tcp) struct Loan<T> {
    pub(in crate::transport::tcp) poller: Arc<Poller>,
    pub(in crate::transport::tcp) connections: Vec<Arc<T>>,
}

/// A connection that guests may borrow.
pub(in crate::transport::tcp) trait Lent: Driven {
    /// What looks after it.
    fn watch(&self) -> Option<&Watch>;

    /// Whether it has ended for good.
    fn is_over(&self) -> bool;
}

impl<T: Lent> Loan<T> {
    fn attend(&self, is_attended: bool) {
        for connection in &self.connections {
            if let Some(watch) = connection.watch() {
                watch.attend(&**connection, is_attended);
            }
        }
    }

    /// Waits for at most `longest` and works on what is ready. False when no connection is left.
    fn step(&self, longest: PollTimeout) -> bool {
        let live: Vec<&Arc<T>> = self.connections.iter().filter(|one| !one.is_over()).collect();
        if live.is_empty() {
            return false;
        }
        let longest = if self.poller.again.lock().is_empty() { longest } else { PollTimeout::ZERO };
        let wanted = |connection: &T| {
            let room = if connection.wants_room() { PollFlags::POLLOUT } else { PollFlags::empty() };
            PollFlags::POLLIN | room
        };
        let mut descriptors = Vec::with_capacity(1 + live.len());
        descriptors.push(PollFd::new(self.poller.guest_bell.as_fd(), PollFlags::POLLIN));
        descriptors.extend(live.iter().map(|one| PollFd::new(one.descriptor(), wanted(one))));
        // A signal ends the wait early, which does no harm.
        if poll(&mut descriptors, longest).unwrap_or(0) > 0 {
            let found: Vec<_> = descriptors
                .iter()
                .map(|descriptor| descriptor.revents().unwrap_or(PollFlags::empty()))
                .collect();
            if !found[0].is_empty() {
                let _ = self.poller.guest_bell.read();
            }
            for (connection, flags) in live.iter().zip(&found[1..]) {
                let watch = connection.watch().filter(|_| !flags.is_empty());
                if let Some(watch) = watch
                    && !self.poller.run(&watch.entry, bits_of_poll(*flags))
                {
                    // The host has not ended its turn, and what is ready stays so until it has.
                    drop(watch.entry.readiness.lock());
                }
            }
        }
        self.poller.go_on();
        true
    }
}

fn bits_of_poll(flags: PollFlags) -> u8 {
    let of = |wanted: PollFlags, bit: u8| if flags.intersects(wanted) { bit } else { 0 };
    let noticed = of(PollFlags::POLLERR, NOTICED);
    // The end of the stream counts as readable, again and again.
    of(PollFlags::POLLIN, READABLE)
        | of(PollFlags::POLLOUT, WRITABLE)
        | of(PollFlags::POLLHUP, HUNG_UP)
        | noticed
}

/// A thread that works while it waits.
struct Visit<'a, T: Lent>(&'a Loan<T>);

impl<T: Lent> Drop for Visit<'_, T> {
    fn drop(&mut self) {
        let poller = &self.0.poller;
        self.0.attend(true);
        *poller.guest.lock() = None;
        if !poller.again.lock().is_empty() {
            poller.ring();
        }
    }
}

impl<T: Lent> Progress for Loan<T> {
    fn work(&self, is_done: &dyn Fn() -> bool, until: Instant) {
        let poller = &self.poller;
        {
            let mut guest = poller.guest.lock();
            if guest.is_some() {
                return;
            }
            *guest = Some(thread::current().id());
        }
        self.attend(false);
        let _visit = Visit(self);
        let began = Instant::now();
        while !is_done() && !poller.is_over() {
            let now = Instant::now();
            if now >= until {
                return;
            }
            let left = PollTimeout::try_from(until - now).unwrap_or(PollTimeout::MAX);
            if !self.step(if now - began < poller.spin { PollTimeout::ZERO } else { left }) {
                return;
            }
        }
    }

    fn nudge(&self) {
        self.poller.nudge_guest();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use nix::sys::epoll::EpollTimeout;
    use parking_lot::Mutex;
    use tokio::sync::watch;

    use super::super::Readiness;
    use super::*;

    #[derive(Debug)]
    struct One {
        socket: UnixStream,
        watch: OnceLock<Watch>,
        is_over: AtomicBool,
        turns: AtomicUsize,
        /// No turn ends while somebody has it.
        gate: Mutex<()>,
    }

    impl Driven for One {
        fn turn(&self, _: &mut Readiness) -> bool {
            self.turns.fetch_add(1, Ordering::SeqCst);
            drop(self.gate.lock());
            false
        }

        fn wants_room(&self) -> bool {
            false
        }

        fn descriptor(&self) -> BorrowedFd<'_> {
            self.socket.as_fd()
        }
    }

    impl Lent for One {
        fn watch(&self) -> Option<&Watch> {
            self.watch.get()
        }

        fn is_over(&self) -> bool {
            self.is_over.load(Ordering::SeqCst)
        }
    }

    /// A loan of one connection, and its other end.
    fn loan() -> (Loan<One>, UnixStream) {
        let (socket, other) = UnixStream::pair().unwrap();
        let poller = Arc::new(Poller::new(Duration::ZERO, watch::Sender::new(0)).unwrap());
        let one = Arc::new(One {
            socket,
            watch: OnceLock::new(),
            is_over: AtomicBool::new(false),
            turns: AtomicUsize::new(0),
            gate: Mutex::new(()),
        });
        one.watch.set(poller.watch(&one).unwrap()).unwrap();
        (Loan { poller, connections: vec![one] }, other)
    }

    #[test]
    fn a_lent_connection_that_dies_wakes_the_host_once() {
        let (loan, other) = loan();
        loan.attend(false);
        while loan.poller.step(EpollTimeout::ZERO) > 0 {}
        drop(other);
        let events: usize = (0..100).map(|_| loan.poller.step(EpollTimeout::ZERO)).sum();
        assert_eq!(events, 1);
        loan.attend(true);
        assert_eq!(loan.poller.step(EpollTimeout::ZERO), 1, "it is told again who looks after it now");
    }

    #[test]
    fn work_that_is_left_while_another_thread_has_its_turn_gets_one_more() {
        let (loan, _other) = loan();
        let (one, poller) = (&loan.connections[0], &loan.poller);
        let watch = one.watch().unwrap();
        thread::scope(|scope| {
            let gate = one.gate.lock();
            scope.spawn(|| poller.run(&watch.entry, READABLE));
            while one.turns.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            // That turn may be past what it sends.
            watch.wake();
            poller.go_on();
            drop(gate);
        });
        assert_eq!(one.turns.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_guest_whose_connections_are_over_leaves() {
        let (loan, other) = loan();
        drop(other);
        loan.connections[0].is_over.store(true, Ordering::SeqCst);
        let began = Instant::now();
        loan.work(&|| false, began + Duration::from_secs(10));
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
