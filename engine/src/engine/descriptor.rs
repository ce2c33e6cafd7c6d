//! What engines tell each other about themselves and their regions, as versioned bytes.
//!
//! A descriptor is a version byte and a postcard value. Fields are only ever added with a new version; an unknown version
//! is refused by name. Bytes from outside are parsed with errors and bounded lengths, never trusted.

use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::types::{ByteCount, PeerId, RegionId};

/// Version of all descriptors of this module.
const VERSION: u8 = 1;
/// Longest descriptor that is read.
const LENGTH_MAX: usize = 1 << 20;

/// How to reach an engine. Published by who starts it, for example in etcd or on a command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerDescriptor {
    /// Which process.
    pub id: PeerId,
    /// Where it listens, as bound, never derived.
    pub addresses: Vec<SocketAddr>,
    /// Transports that it offers, the best first.
    pub transports: Vec<String>,
}

/// A region as its owner describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionDescriptor {
    /// What its owner registered it as.
    pub id: RegionId,
    /// Its length.
    pub length: ByteCount,
    /// Whether peers may write.
    pub is_writable: bool,
    /// For each transport that registered it, what a peer needs to name it.
    pub keys: Vec<(String, Vec<u8>)>,
}

/// Asks the owner to describe regions.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Describe {
    pub(super) regions: Vec<RegionId>,
}

/// One answer for each region that was asked for, in that order; `None` when it is not registered.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Described {
    pub(super) regions: Vec<Option<RegionDescriptor>>,
}

/// What one end of a transport asks the other.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Exchanged {
    pub(super) transport: String,
    pub(super) request: Vec<u8>,
}

/// A versioned value as bytes.
pub(super) trait Bytes: Serialize + DeserializeOwned {
    fn to_bytes(&self) -> Vec<u8> {
        // Writing numbers, strings and lists to memory cannot fail.
        postcard::to_extend(self, vec![VERSION]).unwrap_or_default()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let what = std::any::type_name::<Self>().rsplit("::").next().unwrap_or_default();
        match bytes {
            _ if bytes.len() > LENGTH_MAX => {
                let (length, limit) = (ByteCount(bytes.len() as u64), ByteCount(LENGTH_MAX as u64));
                Err(Error::TooLarge { what: "a descriptor", length, limit })
            }
            [VERSION, rest @ ..] => match postcard::take_from_bytes(rest) {
                Ok((value, [])) => Ok(value),
                Ok((_, left)) => Err(Error::protocol(format!("{} bytes follow a {what}", left.len()))),
                Err(error) => Err(Error::protocol(format!("not a {what}: {error}"))),
            },
            [version, ..] => Err(Error::protocol(format!(
                "a {what} of version {version}; this engine reads version {VERSION}"
            ))),
            [] => Err(Error::protocol(format!("an empty {what}"))),
        }
    }
}

impl Bytes for PeerDescriptor {}
impl Bytes for RegionDescriptor {}
impl Bytes for Describe {}
impl Bytes for Described {}
impl Bytes for Exchanged {}

impl PeerDescriptor {
    /// The versioned bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.to_bytes()
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// [`Error::Protocol`] with what is wrong; [`Error::TooLarge`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        Self::from_bytes(bytes)
    }
}

impl RegionDescriptor {
    /// The versioned bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.to_bytes()
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// [`Error::Protocol`] with what is wrong; [`Error::TooLarge`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        Self::from_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Incarnation, MemberId};
    use proptest::prelude::*;

    fn peer() -> PeerDescriptor {
        PeerDescriptor {
            id: PeerId { member: MemberId(0x1234), incarnation: Incarnation(7) },
            addresses: vec!["10.0.0.1:7400".parse().unwrap(), "[fe80::1]:7400".parse().unwrap()],
            transports: vec!["shm".into(), "tcp".into()],
        }
    }

    #[test]
    fn version_1_of_a_peer_is_these_bytes() {
        let golden = [
            &[1_u8, 0xb4, 0x24, 7, 2, 0, 10, 0, 0, 1, 0xe8, 0x39, 1][..],
            &[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xe8, 0x39],
            &[2, 3, b's', b'h', b'm', 3, b't', b'c', b'p'],
        ]
        .concat();
        assert_eq!(peer().encode(), golden);
        assert_eq!(PeerDescriptor::decode(&golden), Ok(peer()));
    }

    #[test]
    fn version_1_of_a_region_is_these_bytes() {
        let region = RegionDescriptor {
            id: RegionId(5),
            length: ByteCount(300),
            is_writable: true,
            keys: vec![("tcp".into(), vec![7, 8])],
        };
        let golden = [1, 5, 0xac, 2, 1, 1, 3, b't', b'c', b'p', 2, 7, 8];
        assert_eq!(region.encode(), golden);
        assert_eq!(RegionDescriptor::decode(&golden), Ok(region));
    }

    #[test]
    fn what_is_no_descriptor_is_refused_with_its_fault() {
        let refused = |bytes: &[u8]| PeerDescriptor::decode(bytes).unwrap_err().to_string();
        assert!(refused(&[]).contains("an empty PeerDescriptor"));
        assert!(refused(&[9, 0]).contains("of version 9"));
        assert!(refused(&[1, 0xb4]).contains("not a PeerDescriptor"));
        let mut long = peer().encode();
        long.push(0);
        assert!(refused(&long).contains("1 bytes follow"));
        assert!(refused(&vec![1; LENGTH_MAX + 1]).contains("the limit is 1.0 MiB"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = PeerDescriptor::decode(&bytes);
            let _ = Described::from_bytes(&[&[VERSION], &bytes[..]].concat());
            if let Ok(region) = RegionDescriptor::decode(&[&[VERSION], &bytes[..]].concat()) {
                prop_assert_eq!(RegionDescriptor::decode(&region.encode()), Ok(region));
            }
        }
    }
}
