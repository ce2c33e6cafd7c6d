//! Hot path: frames on their way from one peer.
//!
//! An idle link keeps no buffer: bytes are read into the stack, and only a frame that is not complete yet is kept.

use std::io;

use super::frame::{HEADER_BYTES, Header};
use super::stream::Stream;
use crate::error::Error;

/// Bytes read at once into the stack.
const READ_BYTES: usize = 16 << 10;
/// Bytes of a long body read at once, into its own memory.
const BODY_READ_BYTES: usize = 256 << 10;

/// What one read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The end of the stream.
    End,
}

impl Received {
    fn count(self) -> usize {
        match self {
            Self::Bytes(count) => count,
            Self::Nothing | Self::End => 0,
        }
    }
}

/// What is known of the frame that is being received.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// The start of a header.
    partial: [u8; HEADER_BYTES],
    partial_bytes: usize,
    /// A header whose body is not complete.
    body: Option<(Header, Vec<u8>)>,
}

impl Inbox {
    /// Reads once, and gives each frame that is complete to `deliver`.
    ///
    /// # Errors
    /// [`Error::Protocol`] for what is no frame, or has a body longer than `body_bytes_max`; [`Error::System`] for what
    /// the socket says; what `deliver` says.
    pub(super) fn receive(
        &mut self,
        stream: &Stream,
        body_bytes_max: usize,
        deliver: &mut dyn FnMut(Header, Vec<u8>) -> Result<(), Error>,
    ) -> Result<Received, Error> {
        if let Some((header, mut body)) = self.body.take() {
            let missing = header.length as usize - body.len();
            if missing >= READ_BYTES {
                let have = body.len();
                body.resize(have + missing.min(BODY_READ_BYTES), 0);
                let received = outcome(stream.try_read(&mut body[have..]))?;
                body.truncate(have + received.count());
                if body.len() == header.length as usize {
                    deliver(header, body)?;
                } else {
                    self.body = Some((header, body));
                }
                return Ok(received);
            }
            self.body = Some((header, body));
        }
        let mut buffer = [0; READ_BYTES];
        let received = outcome(stream.try_read(&mut buffer))?;
        self.take_in(&buffer[..received.count()], body_bytes_max, deliver)?;
        Ok(received)
    }

    /// Goes on with `bytes`.
    pub(super) fn take_in(
        &mut self,
        mut bytes: &[u8],
        body_bytes_max: usize,
        deliver: &mut dyn FnMut(Header, Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while !bytes.is_empty() {
            let (header, mut body) = match self.body.take() {
                Some(begun) => begun,
                None => {
                    let count = bytes.len().min(HEADER_BYTES - self.partial_bytes);
                    self.partial[self.partial_bytes..][..count].copy_from_slice(&bytes[..count]);
                    self.partial_bytes += count;
                    bytes = &bytes[count..];
                    let Some(header) = Header::parse(&self.partial[..self.partial_bytes])? else {
                        return Ok(());
                    };
                    self.partial_bytes = 0;
                    let length = header.length as usize;
                    if length > body_bytes_max {
                        let cause = format!("a {:?} of {length} bytes is over the limit", header.kind);
                        return Err(Error::protocol(cause));
                    }
                    // A body is believed as it arrives, not as it is announced.
                    (header, Vec::with_capacity(length.min(READ_BYTES)))
                }
            };
            let count = bytes.len().min(header.length as usize - body.len());
            body.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            if body.len() == header.length as usize {
                deliver(header, body)?;
            } else {
                self.body = Some((header, body));
            }
        }
        Ok(())
    }
}

fn outcome(read: io::Result<usize>) -> Result<Received, Error> {
    match read {
        Ok(0) => Ok(Received::End),
        Ok(count) => Ok(Received::Bytes(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
        Err(error) => Err(Error::system("receive", &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Channel;
    use super::super::frame::Kind;
    use super::*;
    use proptest::prelude::*;

    fn frame(length: usize, correlation: u64) -> (Header, Vec<u8>) {
        let length_u32 = u32::try_from(length).unwrap();
        let header = Header { kind: Kind::Request, channel: Channel(3), correlation, length: length_u32 };
        (header, (0..=250).cycle().take(length).collect())
    }

    proptest! {
        #[test]
        fn frames_are_found_however_the_stream_is_cut(
            lengths in prop::collection::vec(0..600_usize, 1..12),
            cuts in prop::collection::vec(1..300_usize, 1..40),
        ) {
            let frames: Vec<_> = lengths.iter().zip(1..).map(|(&length, id)| frame(length, id)).collect();
            let mut bytes: Vec<u8> = Vec::new();
            for (header, body) in &frames {
                bytes.extend(header.bytes());
                bytes.extend(body);
            }
            let (mut inbox, mut found) = (Inbox::default(), Vec::new());
            let mut cuts = cuts.iter().cycle();
            while !bytes.is_empty() {
                let rest = bytes.split_off(bytes.len().min(*cuts.next().unwrap()));
                let mut deliver = |header, body| { found.push((header, body)); Ok(()) };
                inbox.take_in(&bytes, 1 << 20, &mut deliver).unwrap();
                bytes = rest;
            }
            prop_assert_eq!(found, frames);
        }

        #[test]
        fn random_bytes_end_in_an_error_or_wait_for_more(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut inbox = Inbox::default();
            let outcome = inbox.take_in(&bytes, 64, &mut |_, _| Ok(()));
            prop_assert!(outcome.is_err() || bytes.len() < HEADER_BYTES);
        }
    }

    #[test]
    fn a_body_over_the_limit_is_refused_before_it_arrives() {
        let (header, _) = frame(65, 1);
        let refused = Inbox::default().take_in(&header.bytes(), 64, &mut |_, _| Ok(()));
        assert!(matches!(refused, Err(Error::Protocol { .. })));
    }
}
