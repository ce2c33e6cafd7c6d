//! Hot path: the frame of a data connection, which is a header of 64 bytes and then the payload.
//!
//! All numbers are little-endian. Bytes 5, 56..60 and the fields that a kind has no use for are 0.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | `TDTF` |
//! | 4 | kind |
//! | 6 | reason of a refusal |
//! | 7 | 1 where a checksum is wanted or given |
//! | 8..16 | operation: the same in a request and its answer |
//! | 16..24 | region, as the target registered it |
//! | 24..32 | which registration of it |
//! | 32..40 | offset in the region, in bytes; in a refusal, what is said beside the reason |
//! | 40..48 | length of what is read or written |
//! | 48..56 | xxh3-64 of the payload |
//! | 60..64 | CRC-32 of the bytes before |

use crate::error::Error;
use crate::types::{ByteCount, RegionId};

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 64;

const MAGIC: [u8; 4] = *b"TDTF";

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Asks for bytes.
    Read = 1,
    /// Brings bytes to be stored.
    Write = 2,
    /// Brings the bytes that were asked for.
    Data = 3,
    /// The bytes are stored, and their checksum was right.
    Applied = 4,
    /// The operation was not done.
    Refused = 5,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Data, Self::Applied, Self::Refused];

    /// Whether the payload follows.
    pub(super) fn has_payload(self) -> bool {
        matches!(self, Self::Write | Self::Data)
    }
}

/// Why an operation was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Reason {
    /// The region is not registered, or not any more.
    NoSuchRegion = 1,
    /// The range leaves the region, whose length is said beside.
    OutOfRange = 2,
    /// The region may only be read.
    ReadOnly = 3,
    /// What arrived has the checksum that is said beside.
    Corrupt = 4,
}

impl Reason {
    const ALL: [Self; 4] = [Self::NoSuchRegion, Self::OutOfRange, Self::ReadOnly, Self::Corrupt];
}

/// A header, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) reason: Option<Reason>,
    pub(super) is_checked: bool,
    pub(super) operation: u64,
    pub(super) region: RegionId,
    pub(super) registration: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) checksum: u64,
}

impl Header {
    /// The header as it is sent.
    pub(super) fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.kind as u8;
        bytes[6] = self.reason.map_or(0, |reason| reason as u8);
        bytes[7] = u8::from(self.is_checked);
        let numbers =
            [self.operation, self.region.0, self.registration, self.offset, self.length, self.checksum];
        for (place, number) in bytes[8..56].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let checksum = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`Error::Protocol`] for anything that [`Header::bytes`] does not make.
    pub(super) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Error> {
        let number = |at: usize| bytes[at..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
        let checksum = bytes.last_chunk().map_or(0, |chunk| u32::from_le_bytes(*chunk));
        if bytes[..4] != MAGIC || checksum != crc32fast::hash(&bytes[..60]) {
            return Err(Error::protocol("what arrives on a data connection is no frame"));
        }
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == bytes[4]);
        let reason = Reason::ALL.into_iter().find(|reason| *reason as u8 == bytes[6]);
        let is_known = bytes[5] == 0 && bytes[7] <= 1 && bytes[56..60] == [0; 4];
        let Some(kind) = kind.filter(|_| is_known) else {
            return Err(Error::protocol("a frame of a data connection is of no known kind"));
        };
        if (kind == Kind::Refused) != reason.is_some() || (bytes[6] != 0 && reason.is_none()) {
            return Err(Error::protocol(format!("a {kind:?} with reason {}", bytes[6])));
        }
        Ok(Self {
            kind,
            reason,
            is_checked: bytes[7] == 1,
            operation: number(8),
            region: RegionId(number(16)),
            registration: number(24),
            offset: number(32),
            length: number(40),
            checksum: number(48),
        })
    }

    /// The answer to this request.
    pub(super) fn answer(&self, kind: Kind) -> Self {
        Self { kind, reason: None, ..*self }
    }

    /// The answer that says why it was not done, with what the reason says beside.
    pub(super) fn refusal(&self, reason: Reason, beside: u64) -> Self {
        Self { kind: Kind::Refused, reason: Some(reason), offset: beside, ..*self }
    }

    /// What a refusal means to who asked for bytes at `offset`.
    pub(super) fn error(&self, reason: Reason, offset: u64) -> Error {
        let region = self.region;
        match reason {
            Reason::NoSuchRegion => Error::NoSuchRegion { region },
            Reason::ReadOnly => Error::ReadOnly { region },
            Reason::Corrupt => Error::Corrupt { found: self.offset, wanted: self.checksum },
            Reason::OutOfRange => Error::OutOfRange {
                region,
                offset,
                length: ByteCount(self.length),
                region_length: ByteCount(self.offset),
            },
        }
    }
}

/// A header of `kind` for `length` bytes, for tests to which nothing else matters.
#[cfg(test)]
pub(super) fn header(kind: Kind, length: u64) -> Header {
    Header {
        kind,
        reason: None,
        is_checked: false,
        operation: 1,
        region: RegionId(1),
        registration: 1,
        offset: 0,
        length,
        checksum: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn golden() -> Header {
        Header {
            kind: Kind::Refused,
            reason: Some(Reason::Corrupt),
            is_checked: true,
            operation: 1,
            region: RegionId(2),
            registration: 3,
            offset: 4,
            length: 5,
            checksum: 6,
        }
    }

    #[test]
    fn a_header_of_version_1_is_these_bytes() {
        let mut wanted = b"TDTF\x05\0\x04\x01".to_vec();
        for number in 1..7_u64 {
            wanted.extend(number.to_le_bytes());
        }
        wanted.extend([0; 4]);
        wanted.extend(GOLDEN_CRC);
        assert_eq!(golden().bytes().as_slice(), wanted);
        assert_eq!(Header::parse(&golden().bytes()), Ok(golden()));
    }

    const GOLDEN_CRC: [u8; 4] = [0x21, 0x08, 0xfb, 0xdf];

    #[test]
    fn a_refusal_without_a_reason_and_a_reason_without_a_refusal_are_refused() {
        for lying in [Header { reason: None, ..golden() }, Header { kind: Kind::Data, ..golden() }] {
            assert!(Header::parse(&lying.bytes()).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: [u8; 32], rest: [u8; 32], is_marked: bool) {
            let mut all = [0; HEADER_BYTES];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&rest);
            if is_marked {
                all[..4].copy_from_slice(&MAGIC);
                let checksum = crc32fast::hash(&all[..60]);
                all[60..].copy_from_slice(&checksum.to_le_bytes());
            }
            if let Ok(header) = Header::parse(&all) {
                prop_assert_eq!(header.bytes(), all);
            }
        }

        #[test]
        fn a_header_with_one_flipped_bit_is_refused(bit in 0..HEADER_BYTES * 8) {
            let mut bytes = golden().bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::parse(&bytes).is_err());
        }
    }
}
