//! Hot path: frames on their way to one peer.
//!
//! Whoever has a frame to send writes it to the socket at once when nothing waits before it; only what the socket does
//! not take is kept, and the task of the link sends it later. Bounded by bytes.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use super::frame::{HEADER_BYTES, Header};
use super::stream::Stream;

/// Parts handed to one system call.
const PARTS_MAX: usize = 32;

#[derive(Debug)]
struct Frame {
    header: [u8; HEADER_BYTES],
    body: Vec<u8>,
}

impl Frame {
    fn length(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }
}

/// What waits, in order.
#[derive(Debug)]
pub(super) struct Outbox {
    frames: VecDeque<Frame>,
    /// Bytes of the first frame that are sent.
    sent: usize,
    /// Bytes of all frames that are not sent.
    bytes: usize,
    bytes_max: usize,
    /// Whether the encryption may hold bytes.
    is_unflushed: bool,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The socket has it.
    Now,
    /// Some of it waits: the link's task has to be woken.
    Later,
    /// There is no room for it; it was not taken.
    Full,
}

impl Outbox {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { frames: VecDeque::new(), sent: 0, bytes: 0, bytes_max, is_unflushed: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && !self.is_unflushed
    }

    /// Sends or keeps a frame. With `over` the bound is twice as high: for answers, which somebody waits for.
    ///
    /// # Errors
    /// What the socket says, but for `WouldBlock`.
    pub(super) fn send(
        &mut self,
        stream: &Stream,
        header: &Header,
        body: Vec<u8>,
        over: bool,
    ) -> io::Result<Sent> {
        let frame = Frame { header: header.bytes(), body };
        let limit = if over { self.bytes_max.saturating_mul(2) } else { self.bytes_max };
        // Alone, a frame of any length is taken: else one longer than the bound could never be sent.
        if self.bytes > 0 && self.bytes + frame.length() > limit {
            return Ok(Sent::Full);
        }
        let waits = !self.is_empty();
        self.bytes += frame.length();
        self.frames.push_back(frame);
        if waits {
            return Ok(Sent::Later);
        }
        self.drain(stream).map(|is_empty| if is_empty { Sent::Now } else { Sent::Later })
    }

    /// Sends until the socket takes no more; true when nothing is left.
    ///
    /// # Errors
    /// What the socket says, but for `WouldBlock`.
    pub(super) fn drain(&mut self, stream: &Stream) -> io::Result<bool> {
        while !self.frames.is_empty() {
            match self.write_some(stream) {
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.frames.shrink_to(PARTS_MAX);
        match stream.try_flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            flushed => {
                self.is_unflushed = flushed.is_err();
                Ok(!self.is_unflushed)
            }
        }
    }

    fn write_some(&self, stream: &Stream) -> io::Result<usize> {
        let mut parts = [IoSlice::new(&[]); PARTS_MAX];
        let mut count = 0;
        let mut skip = self.sent;
        for frame in self.frames.iter().take(PARTS_MAX / 2) {
            for part in [&frame.header[..], &frame.body] {
                let rest = part.get(skip..).unwrap_or_default();
                skip = skip.saturating_sub(part.len());
                if !rest.is_empty() {
                    parts[count] = IoSlice::new(rest);
                    count += 1;
                }
            }
        }
        stream.try_write(&parts[..count])
    }

    fn advance(&mut self, count: usize) {
        self.bytes -= count;
        self.sent += count;
        while let Some(first) = self.frames.front().filter(|first| self.sent >= first.length()) {
            self.sent -= first.length();
            self.frames.pop_front();
        }
    }
}
