//! The bytes of one block in a packed segment.
//!
//! ```text
//!  0  state       u32   the mark: these 8 bytes are written in one step,
//!  4  units       u32   and last, when the rest of a live block is there
//!  8  origin      u64   version of the object when it was packed, whatever its record says after a rename
//! 16  data length u32
//! 20  record length u16
//! 22  generation  u16  how often the object was rewritten; the highest of one origin is valid
//! 24  format      u32
//! 28  tag         u32  crc32 over bytes 8..28 and the record
//! 32  record, then data at the next multiple of 8, then nothing up to the next unit
//! ```
//! Little-endian throughout. A free or pending block has a valid mark; what follows it means nothing.

#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;

use tidefs_engine::types::Version;

use super::super::record::{ObjectRecord, RECORD_BYTES_MAX, RecordError};

/// Blocks start at multiples of this and are whole multiples of it.
pub(super) const UNIT: u64 = 64;

/// Length of the mark.
pub(super) const MARK_BYTES: u64 = 8;

/// Length of everything before the record.
pub(super) const HEADER_BYTES: usize = 32;

const _: () = assert!(HEADER_BYTES as u64 <= UNIT, "the header of the smallest block fits into it");

const FORMAT: u32 = 1;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing; may be reused.
    Free,
    /// Handed out and not whole yet; free again after a restart.
    Pending,
    /// An object.
    Live,
    /// An object without a name, for those who read it still; free after a restart.
    Retired,
}

impl State {
    fn code(self) -> [u8; 4] {
        match self {
            Self::Free => *b"free",
            Self::Pending => *b"pend",
            Self::Live => *b"live",
            Self::Retired => *b"gone",
        }
    }

    fn of(code: [u8; 4]) -> Option<Self> {
        [Self::Free, Self::Pending, Self::Live, Self::Retired].into_iter().find(|state| state.code() == code)
    }
}

/// The bytes that make a block what `state` says.
pub(super) fn mark(state: State, units: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&state.code());
    bytes[4..].copy_from_slice(&units.to_le_bytes());
    bytes
}

/// A block as found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// What it is.
    pub(super) state: State,
    /// Its length, at least 1.
    pub(super) units: u32,
    /// The rest of the header of a live or retired block; `None` when it contradicts the mark.
    pub(super) header: Option<BlockHeader>,
}

/// What the header of a live block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockHeader {
    /// Version of the object when it was packed: what it is in all its rewrites, of which a kill may leave two.
    pub(super) origin: Version,
    /// How often it was rewritten.
    pub(super) generation: u16,
    /// Checksum of the header and the record.
    pub(super) tag: u32,
    data_length: u32,
    record_length: u16,
}

impl BlockHeader {
    /// The header of a new block, and its bytes behind the mark, padded up to the data.
    ///
    /// `record` is encoded and thereby at most [`RECORD_BYTES_MAX`]; `data_length` is at most
    /// [`super::PACKED_MAX`].
    pub(super) fn new(
        origin: Version,
        generation: u16,
        record: &[u8],
        data_length: usize,
    ) -> (Self, Vec<u8>) {
        let data_length = u32::try_from(data_length).expect("the caller checked PACKED_MAX");
        let record_length = u16::try_from(record.len()).expect("an encoded record is below RECORD_BYTES_MAX");
        let mut header = Self { origin, generation, tag: 0, data_length, record_length };
        let fixed = header.fixed();
        header.tag = tag(&fixed, record);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + record.len() + 8);
        bytes.extend(fixed);
        bytes.extend(header.tag.to_le_bytes());
        bytes.extend(record);
        bytes.resize(usize::try_from(header.data_offset() - MARK_BYTES).expect("below 2 KiB"), 0);
        (header, bytes)
    }

    fn fixed(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.origin.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.data_length.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.record_length.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..].copy_from_slice(&FORMAT.to_le_bytes());
        bytes
    }

    /// Reads the first bytes of a block; `None` when no block starts there.
    pub(super) fn parse(bytes: &[u8]) -> Option<Block> {
        let mark: [u8; 8] = bytes.get(..8)?.try_into().ok()?;
        let [a, b, c, d, units @ ..] = mark;
        let state = State::of([a, b, c, d])?;
        let units = u32::from_le_bytes(units);
        let header = match state {
            State::Live | State::Retired => Self::parse_fixed(bytes).filter(|header| header.units() == units),
            State::Free | State::Pending => None,
        };
        (units > 0).then_some(Block { state, units, header })
    }

    fn parse_fixed(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER_BYTES] = bytes.get(..HEADER_BYTES)?.try_into().ok()?;
        let header = Self {
            origin: Version(u64::from_le_bytes(bytes[8..16].try_into().ok()?)),
            data_length: u32::from_le_bytes(bytes[16..20].try_into().ok()?),
            record_length: u16::from_le_bytes(bytes[20..22].try_into().ok()?),
            generation: u16::from_le_bytes(bytes[22..24].try_into().ok()?),
            tag: u32::from_le_bytes(bytes[28..32].try_into().ok()?),
        };
        let known = u32::from_le_bytes(bytes[24..28].try_into().ok()?) == FORMAT;
        let bounded = usize::from(header.record_length) <= RECORD_BYTES_MAX
            && u64::from(header.data_length) <= super::PACKED_MAX.get();
        (known && bounded).then_some(header)
    }

    /// The record, from the bytes that follow the header (and may go on behind the record).
    ///
    /// # Errors
    /// [`RecordError`]; `Damaged` also when the header does not match its tag.
    pub(super) fn record(&self, bytes: &[u8]) -> Result<ObjectRecord, RecordError> {
        let record = bytes
            .get(..usize::from(self.record_length))
            .ok_or(RecordError::TooShort { length: bytes.len() })?;
        if tag(&self.fixed(), record) != self.tag {
            return Err(RecordError::Damaged);
        }
        ObjectRecord::decode(record)
    }

    /// Where the data starts in the block.
    pub(super) fn data_offset(&self) -> u64 {
        (HEADER_BYTES as u64 + u64::from(self.record_length)).next_multiple_of(8)
    }

    /// Length of the object.
    pub(super) fn data_length(&self) -> u64 {
        u64::from(self.data_length)
    }

    /// Length of the block.
    pub(super) fn units(&self) -> u32 {
        let units = (self.data_offset() + self.data_length()).div_ceil(UNIT);
        u32::try_from(units).expect("a block is shorter than 2^32 units")
    }
}

fn tag(fixed: &[u8; 20], record: &[u8]) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(fixed);
    hash.update(record);
    hash.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::super::record::tests::object;
    use super::*;

    pub(super) fn bytes_of(record: &ObjectRecord, generation: u16) -> (BlockHeader, Vec<u8>) {
        let encoded = record.encode().unwrap();
        let length = usize::try_from(record.size.get()).unwrap();
        let (header, head) = BlockHeader::new(record.version, generation, &encoded, length);
        (header, [&mark(State::Live, header.units())[..], &head].concat())
    }

    #[test]
    fn a_block_reads_back_what_it_was_made_from() {
        let record = object(b"k", 3, 4096);
        let (header, bytes) = bytes_of(&record, 9);
        let block = BlockHeader::parse(&bytes).unwrap();
        assert_eq!((block.state, block.units, block.header), (State::Live, header.units(), Some(header)));
        assert_eq!((header.origin, header.generation, header.data_length()), (Version(3), 9, 4096));
        assert_eq!(header.data_offset(), bytes.len() as u64);
        assert_eq!(header.record(&bytes[HEADER_BYTES..]), Ok(record));
    }

    #[test]
    fn format_1_has_its_golden_layout() {
        let (_, bytes) = bytes_of(&object(b"k", 0x0102_0304, 4096), 5);
        assert_eq!(&bytes[..4], b"live");
        assert_eq!(bytes[8..16], [4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(bytes[16..20], [0, 16, 0, 0]);
        assert_eq!(bytes[22..28], [5, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn a_live_mark_over_another_length_has_no_header() {
        let (header, mut bytes) = bytes_of(&object(b"k", 3, 4096), 0);
        bytes[..8].copy_from_slice(&mark(State::Live, header.units() + 1));
        assert!(BlockHeader::parse(&bytes).unwrap().header.is_none());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..100), live in any::<bool>()) {
            let mut bytes = bytes;
            if live && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(b"live");
            }
            if let Some(Block { header: Some(header), .. }) = BlockHeader::parse(&bytes) {
                prop_assert!(header.record(&bytes).is_err());
            }
        }
    }
}
