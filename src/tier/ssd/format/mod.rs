//! What stands on a disk of the tier: frames of whole blocks, each with its kind, its format and a checksum.
//!
//! docs/internals/ssd-format.md draws the layout. Everything read from a disk passes [`decode`], which takes any bytes.
//!
//! Invariants
//! - What [`encode`] returns, [`decode`] reads back equal, and with any byte changed refuses.
//! - Format 1 never changes; its golden bytes are in the tests. Another layout is another format number.
//! - What a frame says is in bounds: whoever counts on from it does not come to the end of a number.
//! - A frame names its device, and those inside a zone the zone's sequence, so that what an earlier life of a zone or of
//!   a disk left is never taken for what is there now.

mod entries;
mod frame;

use serde::{Deserialize, Serialize};
use tidefs_engine::types::{ByteCount, Checksum, Version};
use twox_hash::XxHash3_128;

#[cfg(any(test, feature = "fuzz"))]
pub(super) use self::frame::framed;
pub(super) use crate::tier::NUMBER_MAX;

pub(super) use self::frame::{FormatError, Frame, decode, encode, frame_blocks};

/// Unit of everything on a disk, in bytes.
pub(super) const BLOCK: usize = 4096;
/// The same, as a distance on disk.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Bytes before the first zone: the two superblocks, and room for what later formats need.
pub(super) const ZONES_START: u64 = 1 << 20;
/// Most bytes of a key.
pub const KEY_BYTES_MAX: usize = 1024;
/// Most bytes that an owner may keep beside an object's key.
pub const META_BYTES_MAX: usize = 2048;
/// Tombstones of one block: 30 bytes each at most, beside a frame and a device id of less than 128.
pub(super) const TOMBSTONES_MAX: usize = 96;

/// Most bytes of a zone, as of `ssd.zone`: a record is as long at most, and a start reads one as a whole.
pub(super) const ZONE_BYTES_MAX: u64 = 4 << 30;

/// Largest epoch that counts: one for each start.
pub(super) const EPOCH_MAX: u64 = 1 << 30;

const _: () = assert!(KEY_BYTES_MAX + META_BYTES_MAX + 256 <= BLOCK);
// The orders of a life begin at the epoch times 2^32.
const _: () = assert!((EPOCH_MAX + 1) << 32 < NUMBER_MAX);
const _: () = assert!(TOMBSTONES_MAX * 36 + 128 <= BLOCK);

/// A 128-bit identity that is drawn at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Uuid(pub [u8; 16]);

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// 128 bits of a key's hash; keyed by the pool, so that nobody outside can aim at a collision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct RecordHash(pub(super) [u8; 16]);

impl RecordHash {
    /// The hash of `key` in `pool`.
    pub(super) fn of(pool: Uuid, key: &[u8]) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = pool.0;
        Self(XxHash3_128::oneshot_with_seed(u64::from_le_bytes([a, b, c, d, e, f, g, h]), key).to_le_bytes())
    }
}

/// Place of an operation in the order of a pool: grows with each record and each removal.
pub(super) type Order = u64;

/// The first two blocks of a disk, written in turn; that with the larger epoch counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Superblock {
    /// This disk. Drawn anew when its content is given up, which makes all of it void.
    pub(super) device: Uuid,
    /// The disks that belong together.
    pub(super) pool: Uuid,
    /// Grows at each start, on all disks of the pool that are there.
    pub(super) epoch: u64,
    /// Bytes of a zone.
    pub(super) zone_bytes: ByteCount,
}

/// The first block of a zone that is in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ZoneHeader {
    pub(super) device: Uuid,
    /// Which zone of the disk.
    pub(super) zone: u32,
    /// The order at which it was opened: no two lives of zones share it.
    pub(super) sequence: Order,
}

/// What is kept of one record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordFacts {
    /// When it was written, among everything of the pool.
    pub(super) order: Order,
    /// Hash of the key.
    pub(super) hash: RecordHash,
    /// The owner's version.
    pub(super) version: Version,
    /// Bytes of data, without padding.
    pub(super) length: ByteCount,
    /// Of the data.
    pub(super) checksum: Checksum,
    /// The owner's key.
    pub(super) key: Vec<u8>,
    /// What the owner keeps beside.
    pub(super) meta: Vec<u8>,
}

/// The block before an object's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordHeader {
    pub(super) device: Uuid,
    pub(super) sequence: Order,
    pub(super) facts: RecordFacts,
}

/// The key with this hash holds nothing up to this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tombstone {
    pub(super) order: Order,
    pub(super) hash: RecordHash,
    pub(super) version: Version,
}

/// A block of removals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TombstoneBlock {
    pub(super) device: Uuid,
    pub(super) sequence: Order,
    pub(super) tombstones: Vec<Tombstone>,
}

/// What the footer of a zone says about one of its records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FooterEntry {
    /// An object, whose header stands at `block` of the zone.
    Object {
        /// Block within the zone.
        block: u32,
        /// As in its header.
        facts: RecordFacts,
    },
    /// A block of removals.
    Tombstones(Vec<Tombstone>),
}

/// All records of a zone that is closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Footer {
    pub(super) device: Uuid,
    pub(super) sequence: Order,
    #[serde(deserialize_with = "entries::sound")]
    pub(super) entries: Vec<FooterEntry>,
}

/// The last block of a closed zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trailer {
    pub(super) device: Uuid,
    pub(super) sequence: Order,
    /// Block within the zone at which the footer starts.
    pub(super) block: u32,
    /// Blocks of the footer.
    pub(super) blocks: u32,
}

impl Frame for Superblock {
    const KIND: u8 = b'S';

    fn is_sound(&self) -> bool {
        self.epoch <= EPOCH_MAX && self.zone_bytes.get() <= ZONE_BYTES_MAX
    }
}
impl Frame for ZoneHeader {
    const KIND: u8 = b'Z';

    fn is_sound(&self) -> bool {
        is_sequence(self.sequence)
    }
}
impl Frame for RecordHeader {
    const KIND: u8 = b'R';

    fn is_sound(&self) -> bool {
        is_sequence(self.sequence) && self.facts.is_sound()
    }
}
impl Frame for TombstoneBlock {
    const KIND: u8 = b'T';

    fn is_sound(&self) -> bool {
        is_sequence(self.sequence) && are_sound(&self.tombstones)
    }
}
impl Frame for Footer {
    const KIND: u8 = b'F';

    fn is_sound(&self) -> bool {
        is_sequence(self.sequence) && self.entries.iter().all(FooterEntry::is_sound)
    }
}
impl Frame for Trailer {
    const KIND: u8 = b'E';

    fn is_sound(&self) -> bool {
        is_sequence(self.sequence)
    }
}

/// Whether a zone can have been opened at this order.
fn is_sequence(sequence: Order) -> bool {
    (1..=NUMBER_MAX).contains(&sequence)
}

/// Whether these can be the removals of one block.
fn are_sound(tombstones: &[Tombstone]) -> bool {
    (1..=TOMBSTONES_MAX).contains(&tombstones.len())
        && tombstones.iter().all(|one| one.order <= NUMBER_MAX && one.version.0 <= NUMBER_MAX)
}

impl FooterEntry {
    fn is_sound(&self) -> bool {
        match self {
            Self::Object { facts, .. } => facts.is_sound(),
            Self::Tombstones(tombstones) => are_sound(tombstones),
        }
    }
}

impl RecordFacts {
    fn is_sound(&self) -> bool {
        let is_counted = self.order <= NUMBER_MAX && self.version.0 <= NUMBER_MAX;
        is_counted && self.key.len() <= KEY_BYTES_MAX && self.meta.len() <= META_BYTES_MAX
    }

    /// Blocks of the record: its header and its data.
    pub(super) fn blocks(&self) -> u64 {
        record_blocks(self.length)
    }

    /// Upper bound of what the footer needs for it.
    pub(super) fn footer_bytes(&self) -> usize {
        self.key.len() + self.meta.len() + FOOTER_ENTRY_BYTES
    }
}

/// Blocks of a record with `length` bytes of data: its header, and its data.
pub(super) fn record_blocks(length: ByteCount) -> u64 {
    1 + length.get().div_ceil(BLOCK_BYTES)
}

/// Most bytes of a footer's entry beside key and meta: hash, checksum and five varints of at most ten bytes each.
pub(super) const FOOTER_ENTRY_BYTES: usize = 96;

/// Upper bound of what the footer needs for `count` removals.
pub(super) fn tombstone_footer_bytes(count: usize) -> usize {
    16 + count * 36
}

#[cfg(test)]
mod tests;
