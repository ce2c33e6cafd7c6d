//! What two ends tell each other: addresses in the handshake, base and keys with a region's description.
//!
//! Both come from a peer, so they are parsed with errors. Integers are little-endian.
//!
//! Handshake: `TLF1`, `is_ready` u8, length of the provider's name u8, the name, number of rails u8, and for each the
//! length of its address u16 and the address.
//! Key: version u8 (1), access u8, bytes of a key u8 (4 or 8), number of rails u8, base u64, length of the region u64,
//! and the key for each rail. 20 bytes and 8 for each rail at most, so [`RAILS_MAX`] fit the 256 bytes that there are.

use crate::error::Error;
use crate::memory::Access;

/// Most rails that a key has room for.
pub(super) const RAILS_MAX: usize = 29;
const KEY_VERSION: u8 = 1;
const MAGIC: &[u8; 4] = b"TLF1";
/// No provider's address is longer (sockaddr_un, at 110 bytes, is the longest known).
const ADDRESS_BYTES_MAX: usize = 256;

/// One side of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    /// Whether the sender knows the addresses of the receiver already.
    pub(super) is_ready: bool,
    /// Provider of the sender; both ends must use the same.
    pub(super) provider: String,
    /// Addresses of the sender's rails, in order.
    pub(super) addresses: Vec<Vec<u8>>,
}

impl Greeting {
    /// As bytes. Names and addresses that are too long are cut, which the other end refuses.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(u8::from(self.is_ready));
        let name = &self.provider.as_bytes()[..self.provider.len().min(usize::from(u8::MAX))];
        bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(name);
        let rails = &self.addresses[..self.addresses.len().min(RAILS_MAX)];
        bytes.push(u8::try_from(rails.len()).unwrap_or(u8::MAX));
        for address in rails {
            bytes.extend_from_slice(&u16::try_from(address.len()).unwrap_or(u16::MAX).to_le_bytes());
            bytes.extend_from_slice(address);
        }
        bytes
    }

    /// From a peer's bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(bytes);
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(Error::protocol("not a greeting of the libfabric transport"));
        }
        let is_ready = reader.byte()? != 0;
        let length = usize::from(reader.byte()?);
        let provider = String::from_utf8_lossy(reader.take(length)?).into_owned();
        let rails = usize::from(reader.byte()?);
        if rails == 0 || rails > RAILS_MAX {
            return Err(Error::protocol(format!("{rails} rails, of 1 to {RAILS_MAX}")));
        }
        let mut addresses = Vec::with_capacity(rails);
        for _ in 0..rails {
            let length = usize::from(u16::from_le_bytes([reader.byte()?, reader.byte()?]));
            if length == 0 || length > ADDRESS_BYTES_MAX {
                return Err(Error::protocol(format!("an address of {length} bytes")));
            }
            addresses.push(reader.take(length)?.to_vec());
        }
        reader.end()?;
        Ok(Self { is_ready, provider, addresses })
    }
}

/// What a peer needs to reach a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// What peers may do.
    pub(super) access: Access,
    /// What an offset is added to: the region's address where the provider wants addresses, else 0.
    pub(super) base: u64,
    /// Length of the region in bytes.
    pub(super) length: u64,
    /// The key at each rail of the owner.
    pub(super) keys: Vec<u64>,
}

impl Key {
    /// As bytes, at most 256.
    pub(super) fn encode(&self) -> Vec<u8> {
        let is_short = self.keys.iter().all(|&key| u32::try_from(key).is_ok());
        let key_bytes = if is_short { 4 } else { 8 };
        let rails = u8::try_from(self.keys.len()).unwrap_or(u8::MAX);
        let mut bytes = vec![KEY_VERSION, u8::from(self.access == Access::ReadWrite), key_bytes, rails];
        bytes.extend_from_slice(&self.base.to_le_bytes());
        bytes.extend_from_slice(&self.length.to_le_bytes());
        for key in &self.keys {
            bytes.extend_from_slice(&key.to_le_bytes()[..usize::from(key_bytes)]);
        }
        bytes
    }

    /// From a peer's bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(bytes);
        let version = reader.byte()?;
        if version != KEY_VERSION {
            return Err(Error::protocol(format!("a key of version {version}")));
        }
        let access = if reader.byte()? == 0 { Access::Read } else { Access::ReadWrite };
        let key_bytes = usize::from(reader.byte()?);
        let rails = usize::from(reader.byte()?);
        if !matches!(key_bytes, 4 | 8) || rails == 0 || rails > RAILS_MAX {
            return Err(Error::protocol(format!("{rails} keys of {key_bytes} bytes")));
        }
        let (base, length) = (reader.integer(8)?, reader.integer(8)?);
        let keys = (0..rails).map(|_| reader.integer(key_bytes)).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(Self { access, base, length, keys })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) =
            self.0.split_at_checked(count).ok_or_else(|| Error::protocol("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.take(1)?[0])
    }

    fn integer(&mut self, bytes: usize) -> Result<u64, Error> {
        let mut whole = [0; 8];
        whole[..bytes].copy_from_slice(self.take(bytes)?);
        Ok(u64::from_le_bytes(whole))
    }

    fn end(&self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::protocol("bytes behind the end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            is_ready: bool, provider in "[a-z;_]{0,40}",
            addresses in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..=64), 1..=RAILS_MAX),
            base: u64, length: u64, is_writable: bool,
            keys in proptest::collection::vec(any::<u64>(), 1..=RAILS_MAX),
        ) {
            let greeting = Greeting { is_ready, provider, addresses };
            prop_assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
            let access = if is_writable { Access::ReadWrite } else { Access::Read };
            let key = Key { access, base, length, keys };
            let bytes = key.encode();
            prop_assert!(bytes.len() <= 256);
            prop_assert_eq!(Key::decode(&bytes), Ok(key));
        }

        #[test]
        fn other_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Greeting::decode(&bytes);
            let _ = Key::decode(&bytes);
            let _ = Greeting::decode(&[MAGIC, bytes.as_slice()].concat());
            let _ = Key::decode(&[&[KEY_VERSION][..], bytes.as_slice()].concat());
        }
    }

    #[test]
    fn a_cut_message_is_refused() {
        let whole = Greeting { is_ready: true, provider: "efa".to_owned(), addresses: vec![vec![1, 2, 3]] };
        let bytes = whole.encode();
        for length in 0..bytes.len() {
            assert!(Greeting::decode(&bytes[..length]).is_err(), "{length}");
        }
    }
}
