//! Hot path: one data connection of a peer, whose reads and writes of this side's regions are served.
//!
//! Its task alone touches memory for it. Answers that wait are bounded: beyond [`ANSWERS_MAX`] no more requests are
//! read, and the peer, which always reads answers, is slowed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::Interest;
use tokio::sync::Notify;

use super::frame::{Header, Kind, Reason};
use super::inbox::{Handler, Inbox, Incoming, Place};
use super::outbox::{Outbox, Outgoing, Payload};
use super::registry::Registry;
use super::{NAME, TURN};
use crate::error::Error;
use crate::link::Stream;

/// Answers that wait before no more requests are read.
const ANSWERS_MAX: usize = 256;

/// A data connection that a peer dialled.
#[derive(Debug)]
pub(super) struct Served {
    stream: Stream,
    registry: Arc<Registry>,
    /// Wakes its task: a region was withdrawn, or it is over.
    wake: Notify,
    is_over: AtomicBool,
}

impl Served {
    pub(super) fn new(stream: Stream, registry: &Arc<Registry>) -> Arc<Self> {
        let registry = Arc::clone(registry);
        Arc::new(Self { stream, registry, wake: Notify::new(), is_over: AtomicBool::new(false) })
    }

    /// Ends the connection; its task lets go of all memory.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.stream.shut_down();
        self.wake.notify_one();
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Lets go of regions that were withdrawn, soon.
    pub(super) fn let_go_withdrawn(&self) {
        self.wake.notify_one();
    }

    /// Serves until the connection ends.
    pub(super) async fn drive(&self) {
        if let Err(error) = self.exchange().await {
            tracing::debug!(%error, "a data connection of a peer ended");
        }
        self.end();
    }

    async fn exchange(&self) -> Result<(), Error> {
        let mut inbox = Inbox::default();
        let mut requests = Requests { registry: &self.registry, outbox: Outbox::default(), refusal: None };
        // Encryption may hold bytes that the socket does not show any more.
        let mut holds_more = false;
        while !self.is_over() {
            for _ in 0..TURN {
                if requests.outbox.is_empty() || !requests.outbox.send_some(&self.stream).map_err(failed)? {
                    break;
                }
            }
            let has_room = requests.outbox.len() < ANSWERS_MAX;
            let is_readable = if holds_more && has_room {
                tokio::task::yield_now().await;
                requests.outbox.let_go_withdrawn();
                inbox.give_up(is_withdrawn);
                true
            } else {
                let interest = match (has_room, requests.outbox.is_empty()) {
                    (_, true) => Interest::READABLE,
                    (true, false) => Interest::READABLE | Interest::WRITABLE,
                    (false, false) => Interest::WRITABLE,
                };
                tokio::select! {
                    () = self.wake.notified() => {
                        requests.outbox.let_go_withdrawn();
                        inbox.give_up(is_withdrawn);
                        false
                    }
                    ready = self.stream.ready(interest) => has_room && ready.map_err(failed)?.is_readable(),
                }
            };
            if !is_readable {
                continue;
            }
            for _ in 0..TURN {
                holds_more = inbox.receive(&self.stream, &mut requests)?;
                if !holds_more || requests.outbox.len() >= ANSWERS_MAX {
                    break;
                }
            }
            holds_more &= self.stream.as_plain().is_none();
        }
        Ok(())
    }
}

fn is_withdrawn(incoming: &Incoming) -> bool {
    matches!(&incoming.place, Place::Memory(_, Some(lease)) if lease.is_withdrawn())
}

fn failed(error: std::io::Error) -> Error {
    Error::transport(NAME, error.to_string())
}

/// What is done with requests.
struct Requests<'a> {
    registry: &'a Registry,
    outbox: Outbox,
    /// Why the payload that is being received goes nowhere.
    refusal: Option<(Reason, u64)>,
}

impl Requests<'_> {
    fn answer(&mut self, header: &Header, payload: Payload) {
        self.outbox.push(Outgoing::new(header, payload));
    }
}

impl Handler for Requests<'_> {
    fn begun(&mut self, header: Header) -> Result<Place, Error> {
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
