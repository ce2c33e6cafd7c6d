//! What two processes of a host say to each other: the greeting over the link, and frames over their socket.

use std::fmt;
use std::fs;
use std::io::{self, Read};

use crate::error::Error;

/// Start of a greeting; the digit is the version of everything in this file.
const MAGIC: &[u8] = b"shm1";

/// Longest text that names a host.
const HOST_BYTES_MAX: usize = 256;

/// Where a process runs, as far as shared memory is concerned: which boot of which kernel, and which of its network
/// namespaces, since abstract sockets are names in those.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host(pub(super) String);

impl Host {
    /// This process's.
    pub(super) fn here() -> io::Result<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        // Without /proc/self/ns the namespaces count as one; if they are not, the socket is not found.
        let namespace = fs::read_link("/proc/self/ns/net").unwrap_or_default();
        Ok(Self(format!("{} {}", boot.trim(), namespace.display())))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The right to one connection. Not shown in logs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Token([u64; 2]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// A token that nobody can guess.
    pub(super) fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let (low, high) = bytes.split_at(8);
        Ok(Self([number_of(low), number_of(high)]))
    }

    /// As a name for a socket.
    pub(super) fn to_name(self) -> Vec<u8> {
        format!("tidefs-shm-{:016x}{:016x}", self.0[0], self.0[1]).into_bytes()
    }
}

/// The little-endian number at the start of `bytes`, which has 8.
fn number_of(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(number)
}

/// What `connect` asks.
pub(super) fn encode_request(host: &Host) -> Vec<u8> {
    [MAGIC, host.0.as_bytes()].concat()
}

/// Reads what a peer asks.
pub(super) fn decode_request(bytes: &[u8]) -> Result<Host, Error> {
    let host = bytes.strip_prefix(MAGIC).filter(|host| host.len() <= HOST_BYTES_MAX);
    let host = host.ok_or_else(|| Error::protocol("not a greeting for shared memory"))?;
    let host = std::str::from_utf8(host).map_err(|_| Error::protocol("a host's name that is no text"))?;
    Ok(Host(host.to_owned()))
}

/// What `answer` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The asked one runs elsewhere.
    OtherHost(Host),
    /// A connection with this token is welcome at the abstract socket of this name.
    Granted(Token, Vec<u8>),
}

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::OtherHost(host) => [&[0], host.0.as_bytes()].concat(),
            Self::Granted(token, name) => {
                [&[1], &token.0[0].to_le_bytes()[..], &token.0[1].to_le_bytes()[..], &name[..]].concat()
            }
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        match bytes {
            [0, host @ ..] if host.len() <= HOST_BYTES_MAX => {
                Ok(Self::OtherHost(Host(String::from_utf8_lossy(host).into_owned())))
            }
            // A name in the abstract namespace has at most 107 bytes, see unix(7).
            [1, rest @ ..] if (17..=16 + 107).contains(&rest.len()) => {
                let token = Token([number_of(rest), number_of(&rest[8..])]);
                Ok(Self::Granted(token, rest[16..].to_vec()))
            }
            _ => Err(Error::protocol("an answer that grants nothing and refuses nothing")),
        }
    }
}

/// Length of a frame.
pub(super) const FRAME_BYTES: usize = 32;

/// One message on the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// To the owner, first: the token.
    Hello(Token),
    /// To the peer, in answer: the descriptor of its reference counts.
    Welcome,
    /// To the owner: a region is wanted.
    Map { region: u64 },
    /// To the peer: the region's descriptor, and which count to hold.
    Mapped { region: u64, length: u64, slot: u32, is_writable: bool },
    /// To the peer: no such region.
    Unknown { region: u64 },
    /// To the peer: it maps as many regions as it may.
    Full { region: u64 },
    /// To the peer: a region it mapped is withdrawn.
    Withdrawn { region: u64 },
    /// To the owner: the last copy of a withdrawn region is over.
    Drained { slot: u32 },
    /// To the owner: a withdrawn region is unmapped, its count is not used any more.
    Freed { slot: u32 },
}

impl Frame {
    pub(super) fn to_bytes(self) -> [u8; FRAME_BYTES] {
        let (kind, slot, one, two): (u8, u32, u64, u64) = match self {
            Self::Hello(Token([low, high])) => (1, 0, low, high),
            Self::Welcome => (2, 0, 0, 0),
            Self::Map { region } => (3, 0, region, 0),
            Self::Mapped { region, length, slot, is_writable: false } => (4, slot, region, length),
            Self::Mapped { region, length, slot, is_writable: true } => (5, slot, region, length),
            Self::Unknown { region } => (6, 0, region, 0),
            Self::Full { region } => (7, 0, region, 0),
            Self::Withdrawn { region } => (8, 0, region, 0),
            Self::Drained { slot } => (9, slot, 0, 0),
            Self::Freed { slot } => (10, slot, 0, 0),
        };
        let mut bytes = [0; FRAME_BYTES];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&slot.to_le_bytes());
        bytes[8..16].copy_from_slice(&one.to_le_bytes());
        bytes[16..24].copy_from_slice(&two.to_le_bytes());
        bytes
    }

    /// `None` for bytes that are no frame.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != FRAME_BYTES {
            return None;
        }
        let mut slot = [0; 4];
        slot.copy_from_slice(&bytes[4..8]);
        let (slot, one, two) = (u32::from_le_bytes(slot), number_of(&bytes[8..]), number_of(&bytes[16..]));
        Some(match bytes[0] {
            1 => Self::Hello(Token([one, two])),
            2 => Self::Welcome,
            3 => Self::Map { region: one },
            kind @ (4 | 5) => Self::Mapped { region: one, length: two, slot, is_writable: kind == 5 },
            6 => Self::Unknown { region: one },
            7 => Self::Full { region: one },
            8 => Self::Withdrawn { region: one },
            9 => Self::Drained { slot },
            10 => Self::Freed { slot },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_and_answers_are_read_as_they_were_written() {
        let token = Token::random().unwrap();
        for frame in [
            Frame::Hello(token),
            Frame::Welcome,
            Frame::Map { region: u64::MAX },
            Frame::Mapped { region: 1, length: 2, slot: 3, is_writable: true },
            Frame::Mapped { region: 1, length: 2, slot: 3, is_writable: false },
            Frame::Unknown { region: 4 },
            Frame::Full { region: 5 },
            Frame::Withdrawn { region: 6 },
            Frame::Drained { slot: 7 },
            Frame::Freed { slot: u32::MAX },
        ] {
            assert_eq!(Frame::from_bytes(&frame.to_bytes()), Some(frame));
        }
        let host = Host::here().unwrap();
        assert_eq!(decode_request(&encode_request(&host)), Ok(host.clone()));
        for answer in [Answer::OtherHost(host), Answer::Granted(token, token.to_name())] {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(frame) = Frame::from_bytes(&bytes) {
                prop_assert_eq!(Frame::from_bytes(&frame.to_bytes()), Some(frame));
            }
            let _ = decode_request(&bytes);
            let _ = Answer::decode(&bytes);
        }
    }
}
