//! Hot path: the frame of a link, which is a fixed header and then its body.
//!
//! All numbers are little-endian. The header's own checksum tells a peer that has lost its place in the stream from
//! one that asks for something large; the body is the business of the channel.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | `TDLF` |
//! | 4 | kind |
//! | 5 | flags, 0 in this version |
//! | 6..8 | channel |
//! | 8..16 | correlation: the same in a request and its answer, 0 elsewhere |
//! | 16..20 | length of the body |
//! | 20..24 | CRC-32 of the bytes before |

use super::Channel;
use crate::error::Error;

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 24;

const MAGIC: [u8; 4] = *b"TDLF";

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Asks; an answer with the same correlation follows.
    Request = 1,
    /// The answer.
    Response = 2,
    /// The answer of a handler that refuses; the body is its words in UTF-8.
    Refusal = 3,
    /// The answer of a peer that has too much to do. No body.
    Overload = 4,
    /// Tells, and is not answered.
    Notification = 5,
    /// Asks whether the peer is there. No body.
    Ping = 6,
    /// It is. No body.
    Pong = 7,
    /// The last frame of a link that is closed in order. No body.
    Goodbye = 8,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Request,
        Self::Response,
        Self::Refusal,
        Self::Overload,
        Self::Notification,
        Self::Ping,
        Self::Pong,
        Self::Goodbye,
    ];

    fn has_body(self) -> bool {
        matches!(self, Self::Request | Self::Response | Self::Refusal | Self::Notification)
    }
}

/// A header, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) channel: Channel,
    pub(super) correlation: u64,
    /// Length of the body that follows, in bytes.
    pub(super) length: u32,
}

impl Header {
    /// A header without channel, correlation and body.
    pub(super) fn bare(kind: Kind) -> Self {
        Self { kind, channel: Channel(0), correlation: 0, length: 0 }
    }

    /// The header as it is sent.
    pub(super) fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.kind as u8;
        bytes[6..8].copy_from_slice(&self.channel.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.correlation.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.length.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..20]);
        bytes[20..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the header that `bytes` starts with; `None` when they are fewer than [`HEADER_BYTES`].
    ///
    /// # Errors
    /// [`Error::Protocol`] for anything that [`Header::bytes`] does not make.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<Self>, Error> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [m0, m1, m2, m3, kind, flags, c0, c1, rest @ ..] = *bytes;
        let [i0, i1, i2, i3, i4, i5, i6, i7, l0, l1, l2, l3, s0, s1, s2, s3] = rest;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(Error::protocol("a frame does not start with its mark"));
        }
        if u32::from_le_bytes([s0, s1, s2, s3]) != crc32fast::hash(&bytes[..20]) {
            return Err(Error::protocol("the header of a frame does not match its checksum"));
        }
        let Some(kind) = Kind::ALL.into_iter().find(|known| *known as u8 == kind) else {
            return Err(Error::protocol(format!("frames of kind {kind} are not known")));
        };
        let header = Self {
            kind,
            channel: Channel(u16::from_le_bytes([c0, c1])),
            correlation: u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]),
            length: u32::from_le_bytes([l0, l1, l2, l3]),
        };
        if flags != 0 {
            return Err(Error::protocol(format!("flags {flags:#04x} are not known")));
        }
        if header.length != 0 && !kind.has_body() {
            return Err(Error::protocol(format!("a {kind:?} has a body")));
        }
        Ok(Some(header))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A request as version 1 sends it. A change of these bytes is a change of the protocol's version.
    const GOLDEN: [u8; HEADER_BYTES] = [
        b'T', b'D', b'L', b'F', 1, 0, 0x34, 0x12, 8, 7, 6, 5, 4, 3, 2, 1, 0x40, 0, 1, 0, 0xc1, 0xab, 0x92,
        0x8b,
    ];

    fn golden() -> Header {
        Header {
            kind: Kind::Request,
            channel: Channel(0x1234),
            correlation: 0x0102_0304_0506_0708,
            length: 0x1_0040,
        }
    }

    #[test]
    fn a_header_of_version_1_is_these_bytes() {
        assert_eq!(golden().bytes(), GOLDEN);
        assert_eq!(Header::parse(&GOLDEN), Ok(Some(golden())));
    }

    #[test]
    fn a_bare_frame_with_a_body_is_refused() {
        let lying = Header { length: 1, ..Header::bare(Kind::Ping) };
        assert!(Header::parse(&lying.bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let parsed = Header::parse(&bytes);
            prop_assert!(bytes.len() >= HEADER_BYTES || parsed == Ok(None));
        }

        #[test]
        fn a_header_with_one_flipped_bit_is_refused(bit in 0..HEADER_BYTES * 8) {
            let mut bytes = golden().bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::parse(&bytes).is_err());
        }

        #[test]
        fn what_is_sent_is_read(kind in 0..8_usize, channel: u16, correlation: u64, length: u32) {
            let kind = Kind::ALL[kind];
            let length = if kind.has_body() { length } else { 0 };
            let header = Header { kind, channel: Channel(channel), correlation, length };
            prop_assert_eq!(Header::parse(&header.bytes()), Ok(Some(header)));
        }
    }
}
