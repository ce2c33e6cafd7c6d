//! Hot path: one data connection of a peer, whose reads and writes of this side's regions are served.
//!
//! Memory is touched for it under one lock, in system calls that do not wait; what the kernel may read afterwards keeps its
//! lease (see `sends`). Answers that wait are bounded: beyond
//! [`ANSWERS_MAX`] no more requests are read, and the peer, which always reads answers, is slowed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::frame::{Header, Kind, Reason};
use super::inbox::{Handler, Inbox, Incoming, Place};
use super::outbox::{Outbox, Outgoing, Payload};
use super::poller::{Driven, Poller, Readiness, Watch};
use super::registry::Registry;
use super::sends::{Grave, Sends, State};
use super::{NAME, TURN};
use crate::error::Error;
use crate::link::DataStream;

/// Answers that wait before no more requests are read.
const ANSWERS_MAX: usize = 256;

/// A data connection that a peer dialled.
#[derive(Debug)]
pub(super) struct Served {
    me: Weak<Self>,
    stream: DataStream,
    /// Held for system calls that do not wait.
    work: Mutex<Work>,
    /// Set once, when it is made.
    watch: OnceLock<Watch>,
    is_over: AtomicBool,
}

#[derive(Debug)]
struct Work {
    inbox: Inbox,
    requests: Requests,
}

impl Served {
    /// Serves `stream` with the regions of `registry`, at most `operation_bytes_max` at once; `poller` looks after it.
    ///
    /// # Errors
    /// When the poller takes no more.
    pub(super) fn start(
        stream: DataStream,
        sends: Sends,
        registry: &Arc<Registry>,
        operation_bytes_max: u64,
        poller: &Arc<Poller>,
    ) -> io::Result<Arc<Self>> {
        let requests = Requests {
            registry: Arc::clone(registry),
            operation_bytes_max,
            outbox: Outbox::new(sends),
            refusal: None,
        };
        let work = Mutex::new(Work { inbox: Inbox::default(), requests });
        let is_over = AtomicBool::new(false);
        let served =
            Arc::new_cyclic(|me| Self { me: Weak::clone(me), stream, work, watch: OnceLock::new(), is_over });
        let watch = poller.watch(&served)?;
        // Set nowhere else.
        let _ = served.watch.set(watch);
        Ok(served)
    }

    /// Ends the connection. No memory is touched for it any more when this returns, but for what the kernel has leases of.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.stream.shut_down();
        self.bury(&mut self.work.lock());
    }

    /// Lets go of all memory, and leaves to the poller what the kernel may still read.
    fn bury(&self, work: &mut Work) {
        work.inbox = Inbox::default();
        work.requests.outbox.clear();
        if let (Some(socket), Some(watch), Some(me)) =
            (self.stream.as_plain(), self.watch.get(), self.me.upgrade())
            && work.requests.outbox.sends().end(socket)
        {
            watch.poller().bury(me);
        }
    }

    /// Lets go of what the kernel is done with.
    fn read_notices(&self, work: &mut Work) -> Result<(), Error> {
        let Some(socket) = self.stream.as_plain() else { return Ok(()) };
        // What is sent here is no operation's.
        work.requests.outbox.sends().read_notices(socket).map(drop).map_err(failed)
    }

    /// Whether payload goes without a copy.
    pub(super) fn zero_copy(&self) -> State {
        self.work.lock().requests.outbox.sends().state()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Lets go of regions that were withdrawn.
    pub(super) fn let_go_withdrawn(&self) {
        let mut work = self.work.lock();
        work.requests.outbox.let_go_withdrawn();
        work.inbox.give_up(is_withdrawn);
        let sends = work.requests.outbox.sends();
        let due = if sends.note_withdrawn() { sends.arm(Instant::now()) } else { None };
        drop(work);
        let Some(watch) = self.watch.get() else { return };
        if let Some(due) = due {
            watch.wake_at(due);
        }
        // What became a refusal may be sent, if nothing was under way before.
        watch.wake();
    }

    /// Looks whether the kernel takes too long.
    fn look_at_sends(&self, work: &mut Work) -> Result<(), Error> {
        let due = work.requests.outbox.sends().look(Instant::now())?;
        if let (Some(due), Some(watch)) = (due, self.watch.get()) {
            watch.wake_at(due);
        }
        Ok(())
    }
}

impl Grave for Served {
    fn visit(&self) -> bool {
        let mut work = self.work.lock();
        if let Err(error) = self.read_notices(&mut work) {
            // Looked at again: the kernel may not be done.
            tracing::error!(%error, "the notices of a data connection of a peer cannot be read");
        }
        !work.requests.outbox.sends().is_open()
    }
}

impl Driven for Served {
    fn turn(&self, readiness: &mut Readiness) -> bool {
        let mut work = self.work.lock();
        if self.is_over() {
            return false;
        }
        let looked = match std::mem::take(&mut readiness.is_noticed) {
            true => self.read_notices(&mut work).and_then(|()| self.look_at_sends(&mut work)),
            false => Ok(()),
        };
        looked.and_then(|()| work.exchange(&self.stream, readiness)).unwrap_or_else(|error| {
            tracing::debug!(%error, "a data connection of a peer ended");
            self.is_over.store(true, Ordering::Release);
            self.stream.shut_down();
            self.bury(&mut work);
            false
        })
    }

    fn wants_room(&self) -> bool {
        self.work.lock().requests.outbox.is_blocked()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Work {
    /// Sends and receives for one turn; returns whether more can be done at once.
    fn exchange(&mut self, stream: &DataStream, readiness: &mut Readiness) -> Result<bool, Error> {
        let Self { inbox, requests } = self;
        if readiness.has_room {
            requests.outbox.has_room();
        }
        for _ in 0..TURN {
            let can_read = readiness.is_readable && requests.outbox.len() < ANSWERS_MAX;
            if can_read && !inbox.receive(stream, requests)? {
                readiness.emptied();
            }
            let can_send = !requests.outbox.is_idle();
            if can_send {
                requests.outbox.send_some(stream).map_err(failed)?;
            }
            if !can_read && !can_send {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn is_withdrawn(incoming: &Incoming) -> bool {
    matches!(&incoming.place, Place::Memory(_, Some(lease)) if lease.is_withdrawn())
}

fn failed(error: io::Error) -> Error {
    Error::transport(NAME, error.to_string())
}

/// What is done with requests.
#[derive(Debug)]
struct Requests {
    registry: Arc<Registry>,
    /// What the peer was granted: a longer operation would hold up all others, and take its length of memory when its
    /// region is withdrawn meanwhile.
    operation_bytes_max: u64,
    outbox: Outbox,
    /// Why the payload that is being received goes nowhere.
    refusal: Option<(Reason, u64)>,
}

impl Requests {
    fn answer(&mut self, header: &Header, payload: Payload) {
        self.outbox.push(Outgoing::new(header, payload));
    }
}

impl Handler for Requests {
    fn begun(&mut self, header: Header) -> Result<Place, Error> {
        if header.length > self.operation_bytes_max {
            let granted = self.operation_bytes_max;
            return Err(Error::protocol(format!("{} bytes at once, {granted} were granted", header.length)));
        }
        match header.kind {
            Kind::Read => Ok(Place::Nowhere),
            Kind::Write => match self.registry.lease(&header) {
                Ok((slice, lease)) => Ok(Place::Memory(slice, Some(lease))),
                Err(refusal) => {
                    self.refusal = Some(refusal);
                    Ok(Place::Nowhere)
                }
            },
            Kind::Data | Kind::Applied | Kind::Refused => {
                Err(Error::protocol(format!("a {:?} that nobody asked for", header.kind)))
            }
        }
    }

    fn arrived(&mut self, incoming: Incoming) -> Result<(), Error> {
        let header = incoming.header;
        if header.kind == Kind::Read {
            match self.registry.lease(&header) {
                Ok((slice, lease)) => {
                    let checksum = if header.is_checked { slice.checksum() } else { 0 };
                    let answer = Header { checksum, ..header.answer(Kind::Data) };
                    self.answer(&answer, Payload::Memory(slice, Some(lease)));
                }
                Err((reason, beside)) => self.answer(&header.refusal(reason, beside), Payload::None),
            }
            return Ok(());
        }
        let answer = match &incoming.place {
            Place::Nowhere => {
                // Without a reason it was withdrawn while it arrived.
                let (reason, beside) = self.refusal.take().unwrap_or((Reason::NoSuchRegion, 0));
                header.refusal(reason, beside)
            }
            Place::Memory(slice, _) => match header.is_checked.then(|| slice.checksum()) {
                Some(found) if found != header.checksum => header.refusal(Reason::Corrupt, found),
                _ => header.answer(Kind::Applied),
            },
        };
        self.answer(&answer, Payload::None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::header;
    use super::*;

    #[test]
    fn a_request_that_is_longer_than_was_granted_ends_the_connection() {
        let mut requests = Requests {
            registry: Arc::default(),
            operation_bytes_max: 4096,
            outbox: Outbox::default(),
            refusal: None,
        };
        for kind in [Kind::Read, Kind::Write] {
            assert!(requests.begun(header(kind, 4096)).is_ok());
            assert!(matches!(requests.begun(header(kind, 4097)), Err(Error::Protocol { .. })));
        }
    }
}
