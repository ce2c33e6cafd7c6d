//! Hot path: frames on their way out of a data connection, payload straight from memory.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use super::ffi::{self, How, PARTS_MAX, Source};
use super::frame::{HEADER_BYTES, Header, Reason};
use super::registry::Lease;
use super::sends::Sends;
use crate::link::DataStream;
use crate::memory::MemorySlice;

/// Bytes handed to one system call: enough to make the call cheap, few enough to be done soon.
const SEND_BYTES: usize = 512 << 10;
/// Bytes encrypted at once.
const BOUNCE_BYTES: usize = 16 << 10;

/// What follows a header.
#[derive(Debug)]
pub(super) enum Payload {
    /// Nothing.
    None,
    /// Memory, and the right to read it where it is not this side's own.
    Memory(MemorySlice, Option<Lease>),
    /// A payload of `length` bytes whose memory had to be let go: what was not sent of it, at its end.
    Aside { rest: Vec<u8>, length: usize },
}

impl Payload {
    fn length(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Memory(slice, _) => slice.length(),
            Self::Aside { length, .. } => *length,
        }
    }

    /// Whether somebody waits for its memory to be let go.
    pub(super) fn is_withdrawn(&self) -> bool {
        matches!(self, Self::Memory(_, Some(lease)) if lease.is_withdrawn())
    }

    fn source(&self, from: usize, length: usize) -> Source<'_> {
        match self {
            Self::None => Source::EMPTY,
            Self::Memory(slice, _) => Source::memory(slice, from, length),
            Self::Aside { rest, length: whole } => Source::bytes(piece_of(rest, *whole, from, length)),
        }
    }
}

/// At most `length` bytes from `from` on of a payload of `whole` bytes, of which `rest` is the end.
fn piece_of(rest: &[u8], whole: usize, from: usize, length: usize) -> &[u8] {
    let left = rest.get((from + rest.len()).saturating_sub(whole)..).unwrap_or_default();
    &left[..left.len().min(length)]
}

/// A frame to be sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    operation: u64,
    header: [u8; HEADER_BYTES],
    payload: Payload,
    /// The last of its sends of which the kernel tells when it is done with the payload.
    in_place: Option<u64>,
}

impl Outgoing {
    pub(super) fn new(header: &Header, payload: Payload) -> Self {
        Self { operation: header.operation, header: header.bytes(), payload, in_place: None }
    }

    pub(super) fn operation(&self) -> u64 {
        self.operation
    }

    /// Bytes on the wire.
    pub(super) fn length(&self) -> usize {
        HEADER_BYTES + self.payload.length()
    }
}

/// Frames in order, the first perhaps sent in part.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    frames: VecDeque<Outgoing>,
    /// Bytes of the first frame that are sent.
    sent: usize,
    /// Whether the encryption may hold bytes.
    is_unflushed: bool,
    /// Whether the socket took no more; [`Outbox::has_room`] says that it does.
    is_blocked: bool,
    /// What the kernel may still read.
    sends: Sends,
}

impl Outbox {
    pub(super) fn new(sends: Sends) -> Self {
        Self { sends, ..Self::default() }
    }

    /// What was sent without a copy.
    pub(super) fn sends(&mut self) -> &mut Sends {
        &mut self.sends
    }

    pub(super) fn push(&mut self, frame: Outgoing) {
        self.frames.push_back(frame);
    }

    pub(super) fn append(&mut self, frames: &mut VecDeque<Outgoing>) {
        self.frames.append(frames);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && !self.is_unflushed
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Lets go of all memory, but for what the kernel may still read.
    pub(super) fn clear(&mut self) {
        let Self { frames, sends, .. } = std::mem::take(self);
        self.sends = sends;
        for Outgoing { operation, payload, in_place, .. } in frames {
            if let Some(last) = in_place {
                self.sends.pin(last, operation, payload);
            }
        }
    }

    /// Lets go of the memory of operations that `is_given_up` says. A frame that is sent in part is finished from a
    /// copy, or the peer would lose its place in the stream.
    pub(super) fn give_up(&mut self, mut is_given_up: impl FnMut(&Outgoing) -> bool) {
        let (sent, sends) = (self.sent, &mut self.sends);
        let mut is_first = true;
        self.frames.retain_mut(|frame| {
            let is_begun = std::mem::take(&mut is_first) && sent > 0;
            if !is_given_up(frame) {
                return true;
            }
            if is_begun {
                frame.set_aside(sent, sends);
            }
            is_begun
        });
    }

    /// Lets go of the memory of registrations that were withdrawn: what was begun is finished from a copy, the rest
    /// becomes a refusal.
    pub(super) fn let_go_withdrawn(&mut self) {
        for (index, frame) in self.frames.iter_mut().enumerate() {
            if !frame.payload.is_withdrawn() {
                continue;
            }
            let is_begun = index == 0 && self.sent > 0;
            match Header::parse(&frame.header) {
                Ok(header) if !is_begun => {
                    *frame = Outgoing::new(&header.refusal(Reason::NoSuchRegion, 0), Payload::None);
                }
                _ => frame.set_aside(self.sent, &mut self.sends),
            }
        }
    }

    /// The socket takes bytes again.
    pub(super) fn has_room(&mut self) {
        self.is_blocked = false;
    }

    /// Whether something waits for room.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked && !self.is_empty()
    }

    /// Whether nothing can be sent now: nothing is there, or there is no room.
    pub(super) fn is_idle(&self) -> bool {
        self.is_blocked || self.is_empty()
    }

    /// Sends once.
    ///
    /// # Errors
    /// What the socket says, but for `WouldBlock`.
    pub(super) fn send_some(&mut self, stream: &DataStream) -> io::Result<()> {
        let sent = match stream.as_plain() {
            _ if self.frames.is_empty() => self.flush(stream),
            Some(socket) => self.send_plain(socket),
            None => self.send_bounced(stream),
        };
        match sent {
            Ok(count) => self.advance(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_blocked = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn flush(&mut self, stream: &DataStream) -> io::Result<usize> {
        stream.try_flush()?;
        self.is_unflushed = false;
        Ok(0)
    }

    fn send_plain(&mut self, socket: &std::net::TcpStream) -> io::Result<usize> {
        if let Some(longest) = self.frames.front().and_then(|first| self.in_place(first)) {
            return self.send_in_place(socket, longest, ffi::send);
        }
        let mut parts = [Source::EMPTY; PARTS_MAX];
        let (mut count, mut room, mut skip) = (0, SEND_BYTES, self.sent);
        for (index, frame) in self.frames.iter().take(PARTS_MAX / 2).enumerate() {
            if index > 0 && self.in_place(frame).is_some() {
                break;
            }
            let header = frame.header.get(skip..).unwrap_or_default();
            let payload = frame.payload.source(skip.saturating_sub(HEADER_BYTES), room);
            skip = 0;
            for part in [Source::bytes(header), payload] {
                if part.length() > 0 {
                    parts[count] = part;
                    count += 1;
                }
            }
            room = room.saturating_sub(payload.length());
            if room == 0 {
                break;
            }
        }
        ffi::send(socket, &parts[..count], How::Copied)
    }

    /// How much of `frame` the next send takes from where it lies, at most; `None` when it is copied.
    fn in_place(&self, frame: &Outgoing) -> Option<usize> {
        match &frame.payload {
            Payload::Memory(slice, _) => self.sends.longest(slice.length()),
            Payload::None | Payload::Aside { .. } => None,
        }
    }

    /// Sends the header of the first frame, which does not stay where it is, or by `send` up to `longest` bytes of its
    /// payload, which does.
    fn send_in_place(
        &mut self,
        socket: &std::net::TcpStream,
        longest: usize,
        send: impl Fn(&std::net::TcpStream, &[Source<'_>], How) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let Some(frame) = self.frames.front_mut() else { return Ok(0) };
        if let Some(rest) = frame.header.get(self.sent..).filter(|rest| !rest.is_empty()) {
            return send(socket, &[Source::bytes(rest)], How::CopiedWithMore);
        }
        let source = frame.payload.source(self.sent - HEADER_BYTES, longest);
        match send(socket, &[source], How::InPlace) {
            Ok(count) => {
                frame.in_place = Some(self.sends.sent());
                Ok(count)
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.sends.refused();
                send(socket, &[source], How::Copied)
            }
            Err(error) => Err(error),
        }
    }

    /// Copies a piece out of the memory, because the encryption takes slices.
    fn send_bounced(&mut self, stream: &DataStream) -> io::Result<usize> {
        let Some(frame) = self.frames.front() else { return Ok(0) };
        self.is_unflushed = true;
        if let Some(rest) = frame.header.get(self.sent..).filter(|rest| !rest.is_empty()) {
            return stream.try_write(&[IoSlice::new(rest)]);
        }
        let from = self.sent - HEADER_BYTES;
        let mut bounce = [0; BOUNCE_BYTES];
        let count = BOUNCE_BYTES.min(frame.payload.length() - from);
        match &frame.payload {
            Payload::None => return Ok(0),
            Payload::Aside { rest, length } => {
                bounce[..count].copy_from_slice(piece_of(rest, *length, from, count));
            }
            Payload::Memory(slice, _) => {
                slice.region().read_at(slice.offset() + from as u64, &mut bounce[..count]);
            }
        }
        stream.try_write(&[IoSlice::new(&bounce[..count])])
    }

    fn advance(&mut self, count: usize) {
        self.sent += count;
        while let Some(first) = self.frames.front().filter(|first| self.sent >= first.length()) {
            self.sent -= first.length();
            let first = self.frames.pop_front();
            if let Some(Outgoing { operation, payload, in_place: Some(last), .. }) = first {
                self.sends.pin(last, operation, payload);
            }
        }
    }
}

impl Outgoing {
    /// Copies what follows the `sent` bytes of the frame, so that its memory can be let go, but for what the kernel may
    /// still read.
    fn set_aside(&mut self, sent: usize, sends: &mut Sends) {
        if let Payload::Memory(slice, _) = &self.payload {
            let length = slice.length();
            let from = sent.saturating_sub(HEADER_BYTES).min(length);
            let mut rest = vec![0; length - from];
            slice.region().read_at(slice.offset() + from as u64, &mut rest);
            let payload = std::mem::replace(&mut self.payload, Payload::Aside { rest, length });
            if let Some(last) = self.in_place.take() {
                sends.pin(last, self.operation, payload);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use super::super::frame::{Kind, header};
    use super::*;
    use crate::memory::{Access, PageKind, Region};
    use crate::types::{ByteCount, RegionId};

    const LENGTH: u64 = 64 << 10;

    /// A kernel without room to note a send gets the same bytes again, to copy; nothing waits for a notice of them.
    #[test]
    fn a_send_that_cannot_be_noted_is_copied_and_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let length = ByteCount::mib(1);
        let region = Arc::new(Region::anonymous(length, PageKind::Base, Access::Read).unwrap());
        let slice = MemorySlice::new(&region, RegionId(1), 0, length).unwrap();
        let metrics = Arc::default();
        let mut outbox = Outbox::new(Sends::on(&metrics));
        outbox.push(Outgoing::new(&header(Kind::Data, length.get()), Payload::Memory(slice, None)));
        let asked = RefCell::new(Vec::new());
        let send = |_: &TcpStream, sources: &[Source<'_>], how| {
            asked.borrow_mut().push((sources[0].length(), how));
            match how {
                How::InPlace => Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
                How::Copied | How::CopiedWithMore => Ok(sources[0].length()),
            }
        };
        let mut sent = 0;
        while !outbox.is_empty() {
            let longest = outbox.frames.front().and_then(|first| outbox.in_place(first)).unwrap();
            let count = outbox.send_in_place(&socket, longest, send).unwrap();
            outbox.advance(count);
            sent += count;
        }
        assert_eq!(sent as u64, HEADER_BYTES as u64 + length.get());
        let both = |length| [(length, How::InPlace), (length, How::Copied)];
        let wanted =
            [&[(HEADER_BYTES, How::CopiedWithMore)][..], &both(512 << 10), &both(512 << 10)].concat();
        assert_eq!(asked.into_inner(), wanted);
        assert_eq!(metrics.zero_copy_refused_total.get(), 2);
        assert!(!outbox.sends().is_open());
    }

    /// A frame is given up when `sent` bytes of it are on the wire: what follows them is copied, and no more.
    #[test]
    fn what_is_finished_from_a_copy_is_copied_from_where_it_stopped() {
        let region = Arc::new(Region::anonymous(ByteCount(LENGTH), PageKind::Base, Access::Read).unwrap());
        let bytes: Vec<u8> = (0..LENGTH).map(|index| u8::try_from(index % 251).unwrap()).collect();
        assert!(region.write_at(0, &bytes));
        for sent in [1, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 60_000] {
            let slice = MemorySlice::new(&region, RegionId(1), 0, ByteCount(LENGTH)).unwrap();
            let mut outbox = Outbox { sent, ..Outbox::default() };
            outbox.push(Outgoing::new(&header(Kind::Data, LENGTH), Payload::Memory(slice, None)));
            outbox.give_up(|_| true);
            let frame = &outbox.frames[0];
            assert_eq!(frame.length(), HEADER_BYTES + bytes.len());
            let from = sent.saturating_sub(HEADER_BYTES);
            let Payload::Aside { rest, length } = &frame.payload else { panic!("{frame:?}") };
            assert_eq!(rest, &bytes[from..]);
            assert_eq!(piece_of(rest, *length, from + 100, 50), &bytes[from + 100..][..50]);
            assert_eq!(frame.payload.source(from, usize::MAX).length(), bytes.len() - from);
        }
    }
}
