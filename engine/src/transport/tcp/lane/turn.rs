//! Hot path: a turn of a data connection: what can be sent and received without waiting, and what is done with answers.
//!
//! Invariants
//! - A turn is bounded in both directions; what is left gets another one.
//! - Nothing is received for an answer that does not fit its operation; it ends the connection.
//!
//! Limits: [`TURN`] system calls in each direction.
//!
//! Threads: the connection's poller or its guest, one at a time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use parking_lot::Mutex;

use super::super::frame::{Header, Kind};
use super::super::inbox::{Handler, Incoming, Place};
use super::super::poller::{Driven, Lent, Readiness};
use super::super::{NAME, TURN};
use super::{Lane, State};
use crate::error::Error;
use crate::memory::MemorySlice;
use crate::transport::{Direction, Operation};

impl Lane {
    /// Sends and receives for one turn; returns whether more can be done at once.
    fn exchange(&self, readiness: &mut Readiness) -> Result<bool, Error> {
        if std::mem::take(&mut readiness.is_noticed) {
            self.read_notices()?;
            self.look_at_sends()?;
        }
        let has_more =
            self.send(readiness.has_room).map_err(|error| Error::transport(NAME, error.to_string()))?;
        for _ in 0..TURN {
            if !readiness.is_readable {
                break;
            }
            if !self.receive()? {
                readiness.emptied();
            }
        }
        Ok(has_more || readiness.is_readable)
    }

    /// Looks whether the kernel takes too long.
    fn look_at_sends(&self) -> Result<(), Error> {
        let due = self.outbox.lock().sends().look(Instant::now())?;
        if let (Some(due), Some(watch)) = (due, self.watch.get()) {
            watch.wake_at(due);
        }
        Ok(())
    }

    /// Sends for one turn; returns whether more can be sent at once.
    fn send(&self, has_room: bool) -> io::Result<bool> {
        if has_room {
            self.outbox.lock().has_room();
        }
        for _ in 0..TURN {
            let mut outbox = self.outbox.lock();
            outbox.append(&mut self.state.lock().entry);
            if outbox.is_idle() {
                let is_blocked = outbox.is_blocked();
                drop(outbox);
                if is_blocked {
                    self.want_room();
                }
                return Ok(false);
            }
            outbox.send_some(&self.stream)?;
        }
        Ok(true)
    }

    /// Receives once; returns whether more may be there.
    fn receive(&self) -> Result<bool, Error> {
        let mut ended = Vec::new();
        let received = {
            let mut inbox = self.inbox.lock();
            inbox.receive(&self.stream, &mut Answers { state: &self.state, ended: &mut ended })
        };
        for (id, operation, result) in ended {
            if operation.direction == Direction::Read {
                self.finish(operation, result);
                continue;
            }
            // A peer that answers before it has everything does not make us send memory that is not ours any more.
            self.unsend(|frame| frame.operation() == id);
            self.finish_when_free(id, operation, result);
        }
        received
    }
}

impl Driven for Lane {
    fn turn(&self, readiness: &mut Readiness) -> bool {
        if self.is_over() {
            return false;
        }
        self.exchange(readiness).unwrap_or_else(|error| {
            tracing::debug!(%error, "a data connection ended");
            // What the peer did wrong, another connection or transport may do right.
            self.fail(&match error {
                Error::Protocol { cause } => Error::transport(NAME, cause),
                error => error,
            });
            false
        })
    }

    fn wants_room(&self) -> bool {
        self.outbox.lock().is_blocked()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

type Ended = (u64, Operation, Result<(), Error>);

/// What is done with answers.
struct Answers<'a> {
    state: &'a Mutex<State>,
    ended: &'a mut Vec<Ended>,
}

impl Handler for Answers<'_> {
    fn expected(&self) -> Option<MemorySlice> {
        let state = self.state.lock();
        let only = state.pending.values().next().filter(|_| state.pending.len() == 1)?;
        (only.direction == Direction::Read).then(|| only.local.clone())
    }

    fn begun(&mut self, header: Header) -> Result<Place, Error> {
        let state = self.state.lock();
        let wanted = match header.kind {
            Kind::Data => Direction::Read,
            Kind::Applied => Direction::Write,
            Kind::Refused => return Ok(Place::Nowhere),
            Kind::Read | Kind::Write => return Err(Error::protocol("a request where answers are expected")),
        };
        // One that was given up is answered too.
        let Some(operation) = state.pending.get(&header.operation) else { return Ok(Place::Nowhere) };
        if operation.direction != wanted || operation.local.length() as u64 != header.length {
            return Err(Error::protocol("an answer that does not fit its operation"));
        }
        match wanted {
            Direction::Read => Ok(Place::Memory(operation.local.clone(), None)),
            Direction::Write => Ok(Place::Nowhere),
        }
    }

    fn arrived(&mut self, incoming: Incoming) -> Result<(), Error> {
        let header = incoming.header;
        let Some(operation) = self.state.lock().pending.remove(&header.operation) else { return Ok(()) };
        // Before the end of the operation, whose memory may be unregistered then.
        drop(incoming);
        let result = match (header.kind, header.reason) {
            (_, Some(reason)) => Err(header.error(reason, operation.remote.offset)),
            (Kind::Data, None) if header.is_checked => match operation.local.checksum() {
                found if found == header.checksum => Ok(()),
                found => Err(Error::Corrupt { found, wanted: header.checksum }),
            },
            _ => Ok(()),
        };
        self.ended.push((header.operation, operation, result));
        Ok(())
    }
}
