//! What is in a zone, as its disk says: its footer, or its headers where there is none.
//!
//! Invariants
//! - A record of a zone without a footer counts only when its data matches its checksum: a torn one loses itself alone.
//! - What says that it is of another life of the zone, or does not fit into it, is not in it; a footer that names such a thing is
//!   none.
//!
//! Threads: those that build the index, name what is in it, take a zone back, give it up, or empty a disk; all wait for the disk.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::checksum_of;
use super::device::Device;
use super::format::{
    BLOCK, BLOCK_BYTES, Footer, FooterEntry, Order, RecordFacts, RecordHeader, TombstoneBlock, decode,
};
use super::identity::read_blocks;
use super::index::{Place, ZoneId};
use super::memory::Buffer;
use super::reasons::ReadFor;

/// Blocks that a scan reads at once.
const SCAN_BLOCKS: u32 = 256;

/// The records among what is in a zone, each with where it stands.
pub(super) fn records_in(
    zone: ZoneId,
    entries: &[FooterEntry],
) -> impl Iterator<Item = (Place, &RecordFacts)> {
    entries.iter().filter_map(move |entry| match entry {
        FooterEntry::Object { block, facts } => Some((Place { zone, block: *block }, facts)),
        FooterEntry::Tombstones(_) => None,
    })
}

/// Reads the footer of a zone.
///
/// # Errors
/// What the disk says; `InvalidData` when it is not that zone's footer, or names places outside of the zone.
pub(super) fn read_footer(
    device: &Device,
    zone: u32,
    sequence: Order,
    block: u32,
    blocks: u32,
    limit: Duration,
) -> io::Result<Vec<FooterEntry>> {
    if block.checked_add(blocks).is_none_or(|end| end >= device.zone_blocks) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let bytes = read_structures(device, device.offset(zone, block), u64::from(blocks), limit)?;
    let footer = decode::<Footer>(bytes.bytes())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    let is_inside = |entry: &FooterEntry| match entry {
        FooterEntry::Object { block, facts } => fits(device, *block, facts),
        FooterEntry::Tombstones(_) => true,
    };
    let is_right = footer.device == device.uuid && footer.sequence == sequence;
    if is_right && footer.entries.iter().all(is_inside) {
        Ok(footer.entries)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Reads what says what is in a zone.
fn read_structures(device: &Device, offset: u64, blocks: u64, limit: Duration) -> io::Result<Arc<Buffer>> {
    let bytes = read_blocks(&*device.disk, offset, blocks, limit)?;
    device.work.read.add(ReadFor::Structures, blocks * BLOCK_BYTES);
    Ok(bytes)
}

pub(super) fn fits(device: &Device, block: u32, facts: &RecordFacts) -> bool {
    block > 0 && u64::from(block).saturating_add(facts.blocks()) < u64::from(device.zone_blocks)
}

/// What a zone without a footer holds.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) entries: Vec<FooterEntry>,
    /// The block behind the last of them.
    pub(super) end: u32,
}

/// Finds the records of a zone by their headers, whose data is whole.
///
/// # Errors
/// What the disk says.
pub(super) fn scan_zone(device: &Device, zone: u32, sequence: Order, limit: Duration) -> io::Result<Scan> {
    let mut entries = Vec::new();
    let mut end = 1;
    let mut window: Option<(u32, Arc<Buffer>)> = None;
    let mut block = 1;
    // The last block is the trailer's alone: one that cannot be read costs no record.
    let last = device.zone_blocks - 1;
    while block < last {
        let (start, bytes) = match window.take() {
            Some((start, bytes)) if block - start < SCAN_BLOCKS => (start, bytes),
            _ => {
                let count = SCAN_BLOCKS.min(last - block);
                (block, read_structures(device, device.offset(zone, block), count.into(), limit)?)
            }
        };
        let at = (block - start) as usize * BLOCK;
        let one = bytes.bytes().get(at..at + BLOCK).unwrap_or_default();
        let mut next = block + 1;
        if let Ok(RecordHeader { device: uuid, sequence: written, facts }) = decode(one) {
            if uuid == device.uuid
                && written == sequence
                && fits(device, block, &facts)
                && is_whole(device, zone, block, &facts, limit)?
            {
                next = block.saturating_add(u32::try_from(facts.blocks()).unwrap_or(u32::MAX));
                entries.push(FooterEntry::Object { block, facts });
                end = next;
            }
        } else if let Ok(TombstoneBlock { device: uuid, sequence: written, tombstones }) = decode(one)
            && uuid == device.uuid
            && written == sequence
        {
            entries.push(FooterEntry::Tombstones(tombstones));
            end = next;
        }
        window = Some((start, bytes));
        block = next;
    }
    Ok(Scan { entries, end })
}

/// Whether the data of a record is what its header says.
fn is_whole(
    device: &Device,
    zone: u32,
    block: u32,
    facts: &RecordFacts,
    limit: Duration,
) -> io::Result<bool> {
    let length = usize::try_from(facts.length.get()).map_err(|_| io::ErrorKind::InvalidData)?;
    if length == 0 {
        return Ok(checksum_of(&[]) == facts.checksum);
    }
    let offset = device.offset(zone, block + 1);
    let data = read_structures(device, offset, length.div_ceil(BLOCK) as u64, limit)?;
    Ok(checksum_of(&data.bytes()[..length]) == facts.checksum)
}
