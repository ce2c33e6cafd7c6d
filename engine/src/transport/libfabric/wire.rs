//! What two ends tell each other: addresses in the handshake, base and keys with a region's description.
//!
//! Both come from a peer, so they are parsed with errors. Integers are little-endian.
//!
//! Handshake: `TLF1`, `is_ready` u8, length of the provider's name u8, the name, number of rails u8, and for each the
//! length of its address u16 and the address.
//! Key: version u8, access u8, bytes of a key u8 (4 or 8), number of rails u8, base u64, length of the region u64, and
//! the keys. Version 1 has one for each rail: 20 bytes and 8 for each at most. Version 2 is for regions of several
//! registrations side by side: before the keys stands the length of a registration u64 (the last may be shorter), and
//! then come all keys of the first rail, all of the second, and so on. Version 1 is written wherever it is enough,
//! since older engines know no other; version 2 travels under another name ([`KEYS_NAME`]), which they pass over.
//! Limits: [`RAILS_MAX`]; [`REGISTRATIONS_MAX`] registrations; [`KEYS_MAX`] keys, which fit [`KEY_BYTES_MAX`].

use super::registered::REGISTRATIONS_MAX;
use crate::error::Error;
use crate::memory::Access;
use crate::transport::KEY_BYTES_MAX;

/// Most rails that a key has room for.
pub(super) const RAILS_MAX: usize = 29;
/// Most keys of one region: those of all its registrations at all rails.
pub(super) const KEYS_MAX: usize = 252;
/// Name under which keys of version 2 travel.
pub(super) const KEYS_NAME: &str = "libfabric/2";
const KEY_VERSION: u8 = 1;
/// Version of a key with several registrations.
const KEYS_VERSION: u8 = 2;
const _: () = const {
    // Four bytes, three numbers, the keys; and all rails fit version 1.
    assert!(4 + 3 * 8 + KEYS_MAX * 8 <= KEY_BYTES_MAX && RAILS_MAX <= KEYS_MAX);
};
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
    /// What an offset is added to: the region's address where the provider wants addresses, else 0, and then
    /// offsets count from the start of each registration.
    pub(super) base: u64,
    /// Length of the region in bytes.
    pub(super) length: u64,
    /// Length of a registration, where there are several.
    pub(super) chunk_bytes: Option<u64>,
    /// The keys at the owner's first rail, in order, then those at the next.
    pub(super) keys: Vec<u64>,
}

impl Key {
    /// Registrations at each rail.
    fn chunks(&self) -> usize {
        let count = self.chunk_bytes.map_or(1, |chunk| self.length.div_ceil(chunk.max(1)));
        usize::try_from(count).unwrap_or(usize::MAX).max(1)
    }

    /// Address and key of the byte at `offset`, which lies in the region, at a rail of the owner.
    ///
    /// # Errors
    /// [`Error::Protocol`] where the owner has said nothing of that.
    pub(super) fn place(&self, rail: usize, offset: u64) -> Result<(u64, u64), Error> {
        let chunk = self.chunk_bytes.map_or(0, |chunk| offset / chunk.max(1));
        // An operation of no bytes may be at the end.
        let index = usize::try_from(chunk).unwrap_or(usize::MAX).min(self.chunks() - 1);
        let key = rail.checked_mul(self.chunks()).and_then(|first| self.keys.get(first.checked_add(index)?));
        let key = key.ok_or_else(|| Error::protocol("a key without this rail"))?;
        let from = self.chunk_bytes.filter(|_| self.base == 0).map_or(0, |chunk| index as u64 * chunk);
        let address = self.base.checked_add(offset - from);
        Ok((address.ok_or_else(|| Error::protocol("an address that does not exist"))?, *key))
    }

    /// As bytes, at most [`KEY_BYTES_MAX`].
    pub(super) fn encode(&self) -> Vec<u8> {
        let is_short = self.keys.iter().all(|&key| u32::try_from(key).is_ok());
        let key_bytes = if is_short { 4 } else { 8 };
        let rails = u8::try_from(self.keys.len() / self.chunks()).unwrap_or(u8::MAX);
        let version = if self.chunk_bytes.is_some() { KEYS_VERSION } else { KEY_VERSION };
        let mut bytes = vec![version, u8::from(self.access == Access::ReadWrite), key_bytes, rails];
        bytes.extend_from_slice(&self.base.to_le_bytes());
        bytes.extend_from_slice(&self.length.to_le_bytes());
        self.chunk_bytes.iter().for_each(|chunk| bytes.extend_from_slice(&chunk.to_le_bytes()));
        for key in &self.keys {
            bytes.extend_from_slice(&key.to_le_bytes()[..usize::from(key_bytes)]);
        }
        bytes
    }

    /// From a peer's bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(bytes);
        let version = reader.byte()?;
        if !matches!(version, KEY_VERSION | KEYS_VERSION) {
            return Err(Error::protocol(format!("a key of version {version}")));
        }
        let access = if reader.byte()? == 0 { Access::Read } else { Access::ReadWrite };
        let key_bytes = usize::from(reader.byte()?);
        let rails = usize::from(reader.byte()?);
        if !matches!(key_bytes, 4 | 8) || rails == 0 || rails > RAILS_MAX {
            return Err(Error::protocol(format!("{rails} keys of {key_bytes} bytes")));
        }
        let (base, length) = (reader.integer(8)?, reader.integer(8)?);
        if base.checked_add(length).is_none() {
            return Err(Error::protocol("memory that goes on beyond the last address"));
        }
        let mut key = Self { access, base, length, chunk_bytes: None, keys: Vec::new() };
        if version == KEYS_VERSION {
            let chunk = reader.integer(8)?;
            let count = length.checked_div(chunk).map(|_| length.div_ceil(chunk));
            if count.is_none_or(|count| !(2..=REGISTRATIONS_MAX).contains(&count)) {
                return Err(Error::protocol(format!("registrations of {chunk} bytes, of {length} in all")));
            }
            key.chunk_bytes = Some(chunk);
        }
        let count = rails * key.chunks();
        if count > KEYS_MAX {
            return Err(Error::protocol(format!("{count} keys of one region, of at most {KEYS_MAX}")));
        }
        key.keys = (0..count).map(|_| reader.integer(key_bytes)).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(key)
    }
}

/// Whether these bytes are a key that only engines from version 2 on understand.
pub(super) fn has_several_registrations(key: &[u8]) -> bool {
    key.first() == Some(&KEYS_VERSION)
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
mod tests;
