//! What the two ends say on their socket: fixed 40-byte packets, little-endian. Descriptors travel beside them.
//!
//! The first packet of the peer is the 16-byte token that it was granted over the link; the owner's first is
//! [`Packet::Welcome`] with the words.

use crate::types::{ByteCount, RegionId};

/// Bytes of a packet.
pub(super) const PACKET: usize = 40;
/// Proof that the other end was granted this connection over the link.
pub(super) type Token = [u8; 16];

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// Owner: the token was right. Beside it: the words.
    Welcome,
    /// Peer: wants to touch this region.
    Map { id: RegionId },
    /// Owner: it may, while the word says so. Beside it: the file.
    Mapped { id: RegionId, length: ByteCount, is_writable: bool, word: u64 },
    /// Owner: there is no such region.
    Unknown { id: RegionId },
    /// Owner: the region is withdrawn; its mapping is to be dropped.
    Revoked { id: RegionId },
    /// Owner: no more regions can be granted on this connection; make a new one.
    Exhausted { id: RegionId },
    /// Owner: the region is there, and cannot be passed now. Peers of before take it for the end of the connection.
    Refused { id: RegionId },
}

impl Packet {
    pub(super) fn encode(self) -> [u8; PACKET] {
        let (kind, id, length, is_writable, word) = match self {
            Self::Welcome => (1_u64, RegionId(0), 0, false, 0),
            Self::Map { id } => (2, id, 0, false, 0),
            Self::Mapped { id, length, is_writable, word } => (3, id, length.get(), is_writable, word),
            Self::Unknown { id } => (4, id, 0, false, 0),
            Self::Revoked { id } => (5, id, 0, false, 0),
            Self::Exhausted { id } => (6, id, 0, false, 0),
            Self::Refused { id } => (7, id, 0, false, 0),
        };
        let mut bytes = [0; PACKET];
        let numbers = [kind, id.0, length, u64::from(is_writable), word];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// `None` for what is no packet of this version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; PACKET] = bytes.try_into().ok()?;
        let number = |index: usize| {
            let place = bytes[index * 8..][..8].try_into().expect("eight bytes of forty");
            u64::from_le_bytes(place)
        };
        let id = RegionId(number(1));
        Some(match (number(0), number(3)) {
            (1, _) => Self::Welcome,
            (2, _) => Self::Map { id },
            (3, 0 | 1) => Self::Mapped {
                id,
                length: ByteCount(number(2)),
                is_writable: number(3) == 1,
                word: number(4),
            },
            (4, _) => Self::Unknown { id },
            (5, _) => Self::Revoked { id },
            (6, _) => Self::Exhausted { id },
            (7, _) => Self::Refused { id },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packets_are_read_as_they_were_written() {
        let id = RegionId(0x0102_0304);
        let mapped = Packet::Mapped { id, length: ByteCount(4096), is_writable: true, word: 9 };
        let others = [
            Packet::Map { id },
            Packet::Unknown { id },
            Packet::Revoked { id },
            Packet::Exhausted { id },
            Packet::Refused { id },
        ];
        for packet in [Packet::Welcome, mapped].into_iter().chain(others) {
            assert_eq!(Packet::decode(&packet.encode()), Some(packet));
        }
        let golden =
            [&[3_u8][..], &[0; 7], &[4, 3, 2, 1], &[0; 5], &[16], &[0; 6], &[1], &[0; 7], &[9], &[0; 7]];
        assert_eq!(mapped.encode()[..], golden.concat());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Some(packet) = Packet::decode(&bytes) {
                prop_assert_eq!(Packet::decode(&packet.encode()), Some(packet));
            }
        }
    }
}
