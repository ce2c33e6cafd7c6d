//! Hot path: frames on their way into a data connection, payload straight into memory.
//!
//! A connection keeps no buffer: headers are read into the stack, and the payload of the frame that is being received
//! goes where its handler says.

use std::io;

use super::ffi::{self, Target};
use super::frame::{HEADER_BYTES, Header};
use super::registry::Lease;
use crate::error::Error;
use crate::link::DataStream;
use crate::memory::MemorySlice;

/// Bytes of headers read at once.
const READ_BYTES: usize = 4 << 10;
/// Bytes of payload read at once.
const PAYLOAD_READ_BYTES: usize = 512 << 10;
/// Bytes decrypted, or dropped, at once.
const BOUNCE_BYTES: usize = 16 << 10;

/// Where a payload goes.
#[derive(Debug)]
pub(super) enum Place {
    /// Into memory, and the right to write it where it is not this side's own.
    Memory(MemorySlice, Option<Lease>),
    /// Nowhere: it is read and dropped.
    Nowhere,
}

/// A payload on its way.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) header: Header,
    pub(super) place: Place,
    done: u64,
}

impl Incoming {
    pub(super) fn new(header: Header, place: Place) -> Self {
        Self { header, place, done: 0 }
    }

    fn missing(&self) -> usize {
        usize::try_from(self.header.length - self.done).unwrap_or(usize::MAX)
    }
}

/// What becomes of frames.
pub(super) trait Handler {
    /// Where the payload of the next frame goes, when only one frame is awaited, and one with a payload.
    fn expected(&self) -> Option<MemorySlice> {
        None
    }

    /// A header arrived. For one with a payload, says where that goes.
    ///
    /// # Errors
    /// [`Error::Protocol`]: the connection is of no use any more.
    fn begun(&mut self, header: Header) -> Result<Place, Error>;

    /// The frame is complete.
    ///
    /// # Errors
    /// As `begun`.
    fn arrived(&mut self, incoming: Incoming) -> Result<(), Error>;
}

/// What is known of the frame that is being received.
#[derive(Debug)]
pub(super) struct Inbox {
    partial: [u8; HEADER_BYTES],
    partial_bytes: usize,
    incoming: Option<Incoming>,
    /// All that was ever read.
    received_bytes: u64,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { partial: [0; HEADER_BYTES], partial_bytes: 0, incoming: None, received_bytes: 0 }
    }
}

impl Inbox {
    /// Bytes that were read since the connection began.
    pub(super) fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Reads once, and gives each frame to `handler`. Returns whether more may be there.
    ///
    /// # Errors
    /// [`Error::Protocol`] for what is no frame; [`Error::TransportFailed`] for what the socket says, and for its end;
    /// what `handler` says.
    pub(super) fn receive(&mut self, stream: &DataStream, handler: &mut dyn Handler) -> Result<bool, Error> {
        match stream.as_plain() {
            Some(socket) => self.receive_plain(socket, handler),
            None => self.receive_bounced(stream, handler),
        }
    }

    fn receive_plain(
        &mut self,
        socket: &std::net::TcpStream,
        handler: &mut dyn Handler,
    ) -> Result<bool, Error> {
        let mut buffer = [0; READ_BYTES];
        let Some(Incoming { place: Place::Memory(slice, _), done, .. }) = &self.incoming else {
            if self.incoming.is_none()
                && self.partial_bytes == 0
                && let Some(slice) = handler.expected()
            {
                return self.receive_expected(socket, &slice, handler);
            }
            let Some(count) = counted(ffi::receive(socket, &[Target::bytes(&mut buffer)]))? else {
                return Ok(false);
            };
            self.received_bytes += count as u64;
            self.take_in(&buffer[..count], handler)?;
            return Ok(count == READ_BYTES);
        };
        let from = usize::try_from(*done).unwrap_or(usize::MAX);
        let missing = slice.length().saturating_sub(from);
        let payload = Target::memory(slice, from, missing.min(PAYLOAD_READ_BYTES));
        let wanted = payload.length();
        // The header of the next frame, in the same call.
        let beyond_max = if wanted == missing { READ_BYTES } else { 0 };
        let targets = [payload, Target::bytes(&mut buffer[..beyond_max])];
        let Some(count) = counted(ffi::receive(socket, &targets))? else { return Ok(false) };
        self.received_bytes += count as u64;
        let (stored, beyond) = (count.min(wanted), count.saturating_sub(wanted));
        self.stored(stored, handler)?;
        self.take_in(&buffer[..beyond], handler)?;
        Ok(count == wanted + beyond_max)
    }

    /// Reads a header and its payload in one call, when only one frame can come, whose payload goes to `slice`. If it is
    /// another, what was stored there goes its proper way; `slice` waits for its own bytes anyway.
    fn receive_expected(
        &mut self,
        socket: &std::net::TcpStream,
        slice: &MemorySlice,
        handler: &mut dyn Handler,
    ) -> Result<bool, Error> {
        let mut beyond = [0; HEADER_BYTES];
        let payload = Target::memory(slice, 0, PAYLOAD_READ_BYTES);
        let room = payload.length();
        let targets = [Target::bytes(&mut self.partial), payload, Target::bytes(&mut beyond)];
        let Some(count) = counted(ffi::receive(socket, &targets))? else { return Ok(false) };
        self.received_bytes += count as u64;
        let has_more = count == HEADER_BYTES + room + HEADER_BYTES;
        if count < HEADER_BYTES {
            self.partial_bytes = count;
            return Ok(has_more);
        }
        let stored = (count - HEADER_BYTES).min(room);
        let beyond = &beyond[..count - HEADER_BYTES - stored];
        self.begin(handler)?;
        let is_expected = |incoming: &Incoming| match &incoming.place {
            Place::Memory(found, _) => found.start() == slice.start() && found.length() == slice.length(),
            Place::Nowhere => false,
        };
        if self.incoming.as_ref().is_some_and(is_expected) {
            self.stored(stored, handler)?;
        } else {
            let mut bytes = vec![0; stored];
            slice.region().read_at(slice.offset(), &mut bytes);
            self.take_in(&bytes, handler)?;
        }
        self.take_in(beyond, handler)?;
        Ok(has_more)
    }

    /// A header is complete: its frame begins, and has arrived if no payload follows.
    fn begin(&mut self, handler: &mut dyn Handler) -> Result<(), Error> {
        self.partial_bytes = 0;
        let header = Header::parse(&self.partial)?;
        let place = handler.begun(header)?;
        let incoming = Incoming::new(header, place);
        if header.kind.has_payload() && header.length > 0 {
            self.incoming = Some(incoming);
            return Ok(());
        }
        handler.arrived(incoming)
    }

    fn receive_bounced(&mut self, stream: &DataStream, handler: &mut dyn Handler) -> Result<bool, Error> {
        let mut buffer = [0; BOUNCE_BYTES];
        let Some(count) = counted(stream.try_read(&mut buffer))? else { return Ok(false) };
        self.received_bytes += count as u64;
        self.take_in(&buffer[..count], handler)?;
        Ok(true)
    }

    /// Lets go of the memory that is being received into, when `is_given_up` says so.
    pub(super) fn give_up(&mut self, is_given_up: impl FnOnce(&Incoming) -> bool) {
        if let Some(incoming) = self.incoming.as_mut().filter(|incoming| is_given_up(incoming)) {
            incoming.place = Place::Nowhere;
        }
    }

    /// `count` more bytes of the payload are where they belong.
    fn stored(&mut self, count: usize, handler: &mut dyn Handler) -> Result<(), Error> {
        let Some(mut incoming) = self.incoming.take() else { return Ok(()) };
        incoming.done += count as u64;
        if incoming.missing() == 0 {
            return handler.arrived(incoming);
        }
        self.incoming = Some(incoming);
        Ok(())
    }

    /// Goes on with `bytes`.
    fn take_in(&mut self, mut bytes: &[u8], handler: &mut dyn Handler) -> Result<(), Error> {
        while !bytes.is_empty() {
            if let Some(incoming) = &self.incoming {
                let count = bytes.len().min(incoming.missing());
                if let Place::Memory(slice, _) = &incoming.place {
                    slice.region().write_at(slice.offset() + incoming.done, &bytes[..count]);
                }
                bytes = &bytes[count..];
                self.stored(count, handler)?;
                continue;
            }
            let count = bytes.len().min(HEADER_BYTES - self.partial_bytes);
            self.partial[self.partial_bytes..][..count].copy_from_slice(&bytes[..count]);
            self.partial_bytes += count;
            bytes = &bytes[count..];
            if self.partial_bytes < HEADER_BYTES {
                break;
            }
            self.begin(handler)?;
        }
        Ok(())
    }
}

/// Bytes read; `None` when there were none to read.
fn counted(read: io::Result<usize>) -> Result<Option<usize>, Error> {
    match read {
        Ok(0) => Err(Error::transport(super::NAME, "the peer closed a data connection")),
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(Error::transport(super::NAME, error.to_string())),
    }
}
