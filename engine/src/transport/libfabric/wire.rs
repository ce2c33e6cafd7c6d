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
            let length = length.min(u64::MAX - base);
            let key = Key { access, base, length, chunk_bytes: None, keys };
            let bytes = key.encode();
            prop_assert!(bytes.len() <= 256 && !has_several_registrations(&bytes));
            prop_assert_eq!(Key::decode(&bytes), Ok(key));
        }

        #[test]
        fn keys_of_several_registrations_are_decoded_and_each_byte_has_its_own(
            has_addresses: bool, rails in 1_usize..=15, chunk in 1_u64..1 << 40, more in 1_u64..16,
            last in any::<u64>(), at in any::<u64>(),
        ) {
            let length = chunk * more + last % chunk + u64::from(more == 1);
            let length = length.min(chunk * REGISTRATIONS_MAX);
            let count = length.div_ceil(chunk);
            prop_assume!(count >= 2);
            let base = if has_addresses { 1 << 45 } else { 0 };
            let keys = (0..rails as u64 * count).map(|index| index * 3).collect();
            let key = Key { access: Access::Read, base, length, chunk_bytes: Some(chunk), keys };
            let bytes = key.encode();
            prop_assert!(bytes.len() <= KEY_BYTES_MAX && has_several_registrations(&bytes));
            prop_assert_eq!(Key::decode(&bytes), Ok(key.clone()));
            let offset = at % length;
            for rail in 0..rails {
                let expected = (rail as u64 * count + offset / chunk) * 3;
                let address = if has_addresses { base + offset } else { offset % chunk };
                prop_assert_eq!(key.place(rail, offset), Ok((address, expected)));
            }
            prop_assert!(key.place(rails, 0).is_err());
            // An operation of no bytes at the end.
            prop_assert!(key.place(rails - 1, length).is_ok());
            for cut in 0..bytes.len() {
                prop_assert!(Key::decode(&bytes[..cut]).is_err(), "{}", cut);
            }
        }

        #[test]
        fn what_is_accepted_as_a_key_has_few_keys_and_a_place_for_each_byte(
            version in 1_u8..=2, rails in 0_u8..40, has_long_keys: bool, base: u64, length: u64,
            chunk in any::<u64>(), count in 0_usize..300, at in any::<u64>(),
        ) {
            let width = if has_long_keys { 8 } else { 4 };
            let chunk = if chunk % 3 == 0 { chunk } else { (length / 16).saturating_add(chunk % 1000) };
            let mut bytes = vec![version, 1, width, rails];
            bytes.extend([base, length].iter().flat_map(|number| number.to_le_bytes()));
            let chunks = if version == 1 { 1 } else {
                bytes.extend(chunk.to_le_bytes());
                length.checked_div(chunk).map_or(1, |_| length.div_ceil(chunk))
            };
            // Mostly as many as there should be.
            let wanted = usize::try_from(chunks).unwrap_or(usize::MAX).saturating_mul(usize::from(rails));
            let keys = if count > 30 && wanted < 1000 { wanted } else { count };
            bytes.extend(std::iter::repeat_n(1, keys * usize::from(width)));
            if let Ok(key) = Key::decode(&bytes) {
                prop_assert!(key.keys.len() <= KEYS_MAX && key.encode().len() <= KEY_BYTES_MAX);
                prop_assert_eq!(Key::decode(&key.encode()), Ok(key.clone()));
                let offset = at.checked_rem(length).unwrap_or_default();
                for rail in 0..usize::from(rails) {
                    prop_assert!(key.place(rail, offset).is_ok());
                }
                prop_assert!(key.place(usize::from(rails), offset).is_err());
            }
        }

        #[test]
        fn other_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Greeting::decode(&bytes);
            let _ = Key::decode(&bytes);
            let _ = Greeting::decode(&[MAGIC, bytes.as_slice()].concat());
            for version in [KEY_VERSION, KEYS_VERSION] {
                let _ = Key::decode(&[&[version][..], bytes.as_slice()].concat());
            }
        }
    }

    #[test]
    fn both_versions_of_a_key_are_these_bytes() {
        let one = Key { access: Access::Read, base: 0x10, length: 5, chunk_bytes: None, keys: vec![7, 8] };
        let golden =
            [&[1, 0, 4, 2, 0x10, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0][..], &[7, 0, 0, 0, 8, 0, 0, 0]];
        assert_eq!(one.encode(), golden.concat());
        let several = Key { access: Access::ReadWrite, chunk_bytes: Some(3), keys: vec![7, 1 << 32], ..one };
        let golden = [
            &[2, 1, 8, 1, 0x10, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0][..],
            &[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
        ];
        assert_eq!(several.encode(), golden.concat());
        assert_eq!(Key::decode(&golden.concat()), Ok(several));
    }

    #[test]
    fn registrations_that_cannot_be_are_refused() {
        let refused = |length: u64, chunk: u64, rails: u8| {
            let numbers = [0, length, chunk].map(u64::to_le_bytes).concat();
            let keys = vec![0; 4 * usize::from(rails) * 32];
            Key::decode(&[&[2, 0, 4, rails][..], &numbers, &keys].concat()).unwrap_err().to_string()
        };
        assert!(refused(4096, 0, 1).contains("registrations of 0 bytes"));
        assert!(refused(0, 4096, 1).contains("of 0 in all"));
        assert!(refused(4096, 4096, 1).contains("registrations of 4096 bytes"));
        assert!(refused(u64::MAX, 1, 1).contains("registrations of 1 bytes"));
        assert!(refused(17, 1, 1).contains("registrations of 1 bytes"));
        assert!(refused(16, 1, 16).contains("256 keys of one region, of at most 252"));
        assert!(refused(2, 1, 30).contains("30 keys of 4 bytes"));
        assert!(refused(2, 1, 29).contains("bytes behind the end"));
    }

    #[test]
    fn memory_that_goes_on_beyond_the_last_address_is_refused() {
        let key = |base, length| {
            let key = Key { access: Access::Read, base, length, chunk_bytes: None, keys: vec![1] };
            Key::decode(&key.encode())
        };
        assert!(key(u64::MAX - 4096, 4096).is_ok());
        let refused = key(u64::MAX - 4095, 4096).unwrap_err().to_string();
        assert!(refused.contains("beyond the last address"), "{refused}");
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
