//! What two ends tell each other: addresses in the handshake, base and keys with a region's description.
//!
//! Both come from a peer, so they are parsed with errors. Integers are little-endian.
//!
//! Handshake: `TLF1`, a byte, length of the provider's name u8, the name, number of rails u8, and for each the length of its
//! address u16 and the address. The byte is 0 or `is_ready` 1 with `is_divided` 2: older engines take all but 0 for ready, so 2
//! is never alone. An address of zeros is that of a NIC whose endpoint is closed: providers refuse it, and with it older engines.
//! Key: version u8, access u8, bytes of a key u8 (4 or 8), number of rails u8, base u64, length of the region u64, and
//! the keys. Version 1 has one for each rail: 20 bytes and 8 for each at most. Version 2 is for regions of several
//! registrations side by side: before the keys stands the length of a registration u64 (the last may be shorter), and
//! then come all keys of the first rail, all of the second, and so on. Version 3 is for regions of which each rail has a part:
//! the number of parts u8, and for each the rail that has it u8, its length u64 and its key. Version 1 is written wherever it
//! is enough, since older engines know no other; the others travel under names ([`KEYS_NAME`], [`PARTS_NAME`]) that those pass
//! over who do not know them. Of a rail that does not have the region, the keys are [`NO_KEY`].
//! Limits: [`RAILS_MAX`]; [`REGISTRATIONS_MAX`] registrations; [`KEYS_MAX`] keys or [`PARTS_MAX`] parts, which fit
//! [`KEY_BYTES_MAX`].

use libfabric_sys as fi;

use super::layout::{Layout, Part};
use super::registered::REGISTRATIONS_MAX;
use crate::error::Error;
use crate::memory::Access;
use crate::transport::KEY_BYTES_MAX;
use crate::types::RailId;

/// Most rails that a key has room for.
pub(super) const RAILS_MAX: usize = 29;
/// Most keys of one region: those of all its registrations at all rails.
pub(super) const KEYS_MAX: usize = 252;
/// Name under which keys of version 2 travel.
pub(super) const KEYS_NAME: &str = "libfabric/2";
/// Most parts of a region of which each rail has some.
pub(super) const PARTS_MAX: usize = 112;
/// Name under which keys of version 3 travel.
pub(super) const PARTS_NAME: &str = "libfabric/3";
/// Key of a region at a rail that does not have it. The library gives it to no memory.
pub(super) const NO_KEY: u64 = fi::FI_KEY_NOTAVAIL;
const KEY_VERSION: u8 = 1;
/// Version of a key with several registrations.
const KEYS_VERSION: u8 = 2;
/// Version of a key of parts.
const PARTS_VERSION: u8 = 3;
const IS_READY: u8 = 1;
const IS_DIVIDED: u8 = 2;
const _: () = const {
    // Four bytes, three numbers, the keys; and all rails fit version 1.
    assert!(4 + 3 * 8 + KEYS_MAX * 8 <= KEY_BYTES_MAX && RAILS_MAX <= KEYS_MAX);
    // Four bytes, two numbers, a byte, and for each part a byte, a number and a key.
    assert!(4 + 2 * 8 + 1 + PARTS_MAX * (1 + 2 * 8) <= KEY_BYTES_MAX && PARTS_MAX <= u8::MAX as usize);
};
const MAGIC: &[u8; 4] = b"TLF1";
/// No provider's address is longer (sockaddr_un, at 110 bytes, is the longest known).
const ADDRESS_BYTES_MAX: usize = 256;

/// Whether an address of the handshake is that of a NIC whose endpoint is open.
pub(super) fn is_open(address: &[u8]) -> bool {
    address.iter().any(|&byte| byte != 0)
}

/// One side of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    /// Whether the sender knows the addresses of the receiver already.
    pub(super) is_ready: bool,
    /// Whether regions of the sender may have each byte at one rail only, so that every rail of the one must know every rail
    /// of the other. Said only with `is_ready`.
    pub(super) is_divided: bool,
    /// Provider of the sender; both ends must use the same.
    pub(super) provider: String,
    /// Addresses of the sender's rails, in order.
    pub(super) addresses: Vec<Vec<u8>>,
}

impl Greeting {
    /// As bytes. Names and addresses that are too long are cut, which the other end refuses.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let divided = if self.is_divided { IS_DIVIDED } else { 0 };
        bytes.push(if self.is_ready { IS_READY | divided } else { 0 });
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
        let flags = reader.byte()?;
        let (is_ready, is_divided) = (flags != 0, flags & IS_DIVIDED != 0);
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
        Ok(Self { is_ready, is_divided, provider, addresses })
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
    /// Which of the owner's rails has which bytes.
    pub(super) layout: Layout,
    /// The keys at the owner's first rail, in order, then those at the next; or the key of each part.
    pub(super) keys: Vec<u64>,
}

impl Key {
    /// Registrations at each rail, where each has all bytes.
    fn chunks(&self, chunk_bytes: Option<u64>) -> usize {
        let count = chunk_bytes.map_or(1, |chunk| self.length.div_ceil(chunk.max(1)));
        usize::try_from(count).unwrap_or(usize::MAX).max(1)
    }

    /// The keys at the owner's `rail`, in order. `None` where it has said nothing of that.
    pub(super) fn keys_at(&self, rail: RailId) -> Option<Vec<u64>> {
        match &self.layout {
            Layout::Everywhere(chunk_bytes) => {
                let chunks = self.chunks(*chunk_bytes);
                let first = usize::from(rail.0).checked_mul(chunks)?;
                self.keys.get(first..first.checked_add(chunks)?).map(<[u64]>::to_vec)
            }
            Layout::Divided(parts) => {
                let of_rail = parts.iter().zip(&self.keys).filter(|(part, _)| part.rail == rail);
                Some(of_rail.map(|(_, &key)| key).collect())
            }
        }
    }

    /// Whether the owner's `rail` has what the layout says that it has.
    pub(super) fn is_at(&self, rail: usize) -> bool {
        let Layout::Everywhere(chunk_bytes) = &self.layout else { return true };
        // A rail registers all of a region or nothing.
        self.keys.get(rail.saturating_mul(self.chunks(*chunk_bytes))) != Some(&NO_KEY)
    }

    /// Address and key of the byte at `offset`, which lies in the region, at a rail of the owner.
    ///
    /// # Errors
    /// [`Error::Protocol`] where the owner has said nothing of that.
    pub(super) fn place(&self, rail: usize, offset: u64) -> Result<(u64, u64), Error> {
        let (key, start) = match &self.layout {
            Layout::Everywhere(chunk_bytes) => {
                let chunks = self.chunks(*chunk_bytes);
                let chunk = chunk_bytes.map_or(0, |chunk| offset / chunk.max(1));
                // An operation of no bytes may be at the end.
                let index = usize::try_from(chunk).unwrap_or(usize::MAX).min(chunks - 1);
                let key = rail.checked_mul(chunks).and_then(|first| self.keys.get(first.checked_add(index)?));
                (key, chunk_bytes.map_or(0, |chunk| index as u64 * chunk))
            }
            Layout::Divided(_) => {
                let found = self.layout.part_at(offset).filter(|(_, part)| usize::from(part.rail.0) == rail);
                (found.and_then(|(index, _)| self.keys.get(index)), found.map_or(0, |(_, part)| part.from))
            }
        };
        let key = key.ok_or_else(|| Error::protocol("a key without this rail"))?;
        let from = if self.base == 0 { start } else { 0 };
        let address = self.base.checked_add(offset - from);
        Ok((address.ok_or_else(|| Error::protocol("an address that does not exist"))?, *key))
    }

    /// As bytes, at most [`KEY_BYTES_MAX`].
    pub(super) fn encode(&self) -> Vec<u8> {
        let is_short = self.keys.iter().all(|&key| u32::try_from(key).is_ok());
        let key_bytes = if is_short { 4 } else { 8 };
        let (version, rails) = match &self.layout {
            Layout::Everywhere(None) => (KEY_VERSION, self.keys.len()),
            Layout::Everywhere(chunk) => (KEYS_VERSION, self.keys.len() / self.chunks(*chunk)),
            Layout::Divided(parts) => {
                (PARTS_VERSION, parts.iter().map(|part| usize::from(part.rail.0) + 1).max().unwrap_or(1))
            }
        };
        let rails = u8::try_from(rails).unwrap_or(u8::MAX);
        let mut bytes = vec![version, u8::from(self.access == Access::ReadWrite), key_bytes, rails];
        bytes.extend_from_slice(&self.base.to_le_bytes());
        bytes.extend_from_slice(&self.length.to_le_bytes());
        let parts = match &self.layout {
            Layout::Everywhere(chunk) => {
                chunk.iter().for_each(|chunk| bytes.extend_from_slice(&chunk.to_le_bytes()));
                &[][..]
            }
            Layout::Divided(parts) => {
                bytes.push(u8::try_from(parts.len()).unwrap_or(u8::MAX));
                parts
            }
        };
        for (index, key) in self.keys.iter().enumerate() {
            if let Some(part) = parts.get(index) {
                bytes.push(u8::try_from(part.rail.0).unwrap_or(u8::MAX));
                bytes.extend_from_slice(&part.bytes.to_le_bytes());
            }
            bytes.extend_from_slice(&key.to_le_bytes()[..usize::from(key_bytes)]);
        }
        bytes
    }

    /// From a peer's bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(bytes);
        let version = reader.byte()?;
        if !matches!(version, KEY_VERSION | KEYS_VERSION | PARTS_VERSION) {
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
        let mut key = Self { access, base, length, layout: Layout::Everywhere(None), keys: Vec::new() };
        if version == PARTS_VERSION {
            key.read_parts(&mut reader, rails, key_bytes)?;
            reader.end()?;
            return Ok(key);
        }
        let mut chunk_bytes = None;
        if version == KEYS_VERSION {
            let chunk = reader.integer(8)?;
            let count = length.checked_div(chunk).map(|_| length.div_ceil(chunk));
            if count.is_none_or(|count| !(2..=REGISTRATIONS_MAX).contains(&count)) {
                return Err(Error::protocol(format!("registrations of {chunk} bytes, of {length} in all")));
            }
            chunk_bytes = Some(chunk);
        }
        key.layout = Layout::Everywhere(chunk_bytes);
        let count = rails * key.chunks(chunk_bytes);
        if count > KEYS_MAX {
            return Err(Error::protocol(format!("{count} keys of one region, of at most {KEYS_MAX}")));
        }
        key.keys = (0..count).map(|_| reader.integer(key_bytes)).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(key)
    }

    /// The parts of a region of which each of `rails` rails has some, from a peer's bytes.
    fn read_parts(&mut self, reader: &mut Reader, rails: usize, key_bytes: usize) -> Result<(), Error> {
        let count = usize::from(reader.byte()?);
        if count == 0 || count > PARTS_MAX {
            return Err(Error::protocol(format!("{count} parts of one region, of 1 to {PARTS_MAX}")));
        }
        let mut parts = Vec::with_capacity(count);
        let mut from = 0_u64;
        for _ in 0..count {
            let (rail, bytes) = (reader.byte()?, reader.integer(8)?);
            let end = from.checked_add(bytes).filter(|&end| bytes > 0 && end <= self.length);
            let Some(end) = end.filter(|_| usize::from(rail) < rails) else {
                return Err(Error::protocol(format!("a part of {bytes} bytes at rail {rail} of {rails}")));
            };
            parts.push(Part { rail: RailId(u16::from(rail)), from, bytes });
            self.keys.push(reader.integer(key_bytes)?);
            from = end;
        }
        if from != self.length || parts.iter().all(|part| usize::from(part.rail.0) + 1 < rails) {
            return Err(Error::protocol(format!("parts of {from} bytes in all, of {}", self.length)));
        }
        self.layout = Layout::Divided(parts);
        Ok(())
    }
}

/// Name under which `key` travels, where it is one that older engines do not understand.
pub(super) fn name_of(key: &[u8]) -> Option<&'static str> {
    match key.first() {
        Some(&KEYS_VERSION) => Some(KEYS_NAME),
        Some(&PARTS_VERSION) => Some(PARTS_NAME),
        _ => None,
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
mod tests;
