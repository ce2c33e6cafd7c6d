//! The stations of a disk's zones at a start, from their first and their last blocks.
//!
//! Invariants
//! - A zone whose header is whole is in use, one whose header is zeros is free.
//! - What a zone removed counts, whatever became of its header: one that cannot be read, or is damaged, makes its zone
//!   [headless](ZoneState::Headless), unless the life that it named can be told.
//! - Nothing else of a headless zone counts: its trailer may be of an earlier life, whose records were dropped since.
//! - A header that was not read for another reason than damage says nothing: its zone is out of use and stays as it is
//!   ([`super::late`]).
//!
//! Limits: a damaged header is taken for that of a life when at most `FLIPPED_BITS_MAX` of its bits differ; those of
//! two lives differ in their checksums. A block device may hold anything before a zone is first opened: a zone that
//! names the disk neither in its trailer nor in its first record was never in use.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::disk::{Disk, Request, Ticket};
use super::format::{
    BLOCK, BLOCK_BYTES, Order, RecordHeader, TombstoneBlock, Trailer, Uuid, ZoneHeader, decode, encode,
};
use super::identity::{START_LIMIT, read_blocks};
use super::load::says_that_it_is_damaged;
use super::memory::{Buffer, Piece};
use super::zone::{FooterPlace, Zone, ZoneState, zone_offset};

/// Zones whose first and last blocks are read at once.
const ZONES_AT_ONCE: u32 = 256;
/// How often a header is read that the disk does not give for another reason than damage, and the pause between.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(50);
/// Bits of a damaged header that may differ from what it was.
const FLIPPED_BITS_MAX: u32 = 8;

const FREE: Zone = Zone { state: ZoneState::Free, ..Zone::ABSENT };
/// Its header was not read.
const UNREAD: Zone = Zone { state: ZoneState::Quarantined, ..Zone::ABSENT };
const HEADLESS: Zone = Zone { state: ZoneState::Headless, ..Zone::ABSENT };

/// Finds out the stations of a disk's zones.
///
/// # Errors
/// What the disk says of its length.
pub(super) fn read_zones(disk: &dyn Disk, uuid: Uuid, count: u32, zone_blocks: u32) -> io::Result<Vec<Zone>> {
    let length = disk.length()?.get();
    let mut zones = Vec::with_capacity(count as usize);
    let mut first = 0;
    while first < count {
        let last = count.min(first + ZONES_AT_ONCE);
        let begin = |number: u32| {
            let (start, end) = (zone_offset(number, zone_blocks), zone_offset(number + 1, zone_blocks));
            (end <= length).then(|| Ends::begin(disk, start, end - BLOCK_BYTES))
        };
        let begun: Vec<Option<Ends>> = (first..last).map(begin).collect();
        let stations = (first..last).zip(begun);
        zones.extend(stations.map(|(number, ends)| {
            ends.map_or(Zone::ABSENT, |ends| ends.station(disk, (uuid, number), zone_blocks))
        }));
        first = last;
    }
    Ok(zones)
}

/// A block that is being read.
struct Block(Ticket, Arc<Buffer>);

impl Block {
    fn begin(disk: &dyn Disk, offset: u64) -> Self {
        let buffer = Arc::new(Buffer::zeroed(BLOCK));
        Self(disk.submit(vec![Request::read(offset, Piece::of_buffer(&buffer))]), buffer)
    }

    fn wait(self) -> io::Result<Arc<Buffer>> {
        self.0.wait(START_LIMIT).map(|()| self.1)
    }

    /// Waits, and reads the block again when the disk did not say what stands there. One that is too late had its time.
    fn wait_or_read(self, disk: &dyn Disk, offset: u64) -> io::Result<Arc<Buffer>> {
        let mut outcome = self.wait();
        for _ in 1..ATTEMPTS {
            match &outcome {
                Err(error) if !says_that_it_is_damaged(error) && error.kind() != io::ErrorKind::TimedOut => {
                    thread::sleep(PAUSE);
                    outcome = read_blocks(disk, offset, 1, START_LIMIT);
                }
                _ => break,
            }
        }
        outcome
    }
}

/// The first and the last block of a zone. One that cannot be read takes nothing from the other.
struct Ends {
    head: Block,
    tail: Block,
}

impl Ends {
    fn begin(disk: &dyn Disk, start: u64, last: u64) -> Self {
        Self { head: Block::begin(disk, start), tail: Block::begin(disk, last) }
    }

    fn station(self, disk: &dyn Disk, (uuid, number): (Uuid, u32), zone_blocks: u32) -> Zone {
        let head = match self.head.wait_or_read(disk, zone_offset(number, zone_blocks)) {
            Ok(head) => head,
            Err(error) if !says_that_it_is_damaged(&error) => {
                tracing::error!(zone = number, %error, "the header of a zone of the SSD tier was not read in time");
                return UNREAD;
            }
            Err(error) => {
                tracing::error!(zone = number, %error, "the header of a zone of the SSD tier cannot be read");
                return HEADLESS;
            }
        };
        // Without a trailer a zone is scanned.
        let trailer = self.tail.wait().ok().and_then(|tail| decode::<Trailer>(tail.bytes()).ok());
        let trailer = trailer.filter(|trailer| trailer.device == uuid);
        let sequence = match decode::<ZoneHeader>(head.bytes()) {
            Ok(header) if header.device == uuid && header.zone == number => Some(header.sequence),
            // An earlier identity of the disk wrote it.
            Ok(header) if header.device != uuid => return FREE,
            _ if head.bytes().iter().all(|&byte| byte == 0) => return FREE,
            _ => {
                let first = read_blocks(disk, zone_offset(number, zone_blocks) + BLOCK_BYTES, 1, START_LIMIT);
                let first = first.map(|first| sequence_of_first(uuid, first.bytes()));
                let named = trailer.as_ref().map(|trailer| trailer.sequence);
                if matches!(first, Ok(None)) && named.is_none() {
                    return FREE;
                }
                let lives = named.into_iter().chain(first.ok().flatten());
                let sequence = lives.into_iter().find(|&sequence| {
                    is_nearly(head.bytes(), &ZoneHeader { device: uuid, zone: number, sequence })
                });
                tracing::error!(zone = number, ?sequence, "the header of a zone of the SSD tier is damaged");
                sequence
            }
        };
        let Some(sequence) = sequence else { return HEADLESS };
        let trailer = trailer.filter(|trailer| trailer.sequence == sequence);
        let footer = trailer.map(|trailer| FooterPlace { block: trailer.block, blocks: trailer.blocks });
        Zone { state: ZoneState::Closed, sequence, footer, ..Zone::ABSENT }
    }
}

/// The life that the first block behind a header names.
fn sequence_of_first(uuid: Uuid, block: &[u8]) -> Option<Order> {
    let record = decode::<RecordHeader>(block).ok().map(|record| (record.device, record.sequence));
    let removals = || decode::<TombstoneBlock>(block).ok().map(|block| (block.device, block.sequence));
    record.or_else(removals).filter(|(device, _)| *device == uuid).map(|(_, sequence)| sequence)
}

/// Whether a block was this header before a few of its bits changed.
fn is_nearly(block: &[u8], header: &ZoneHeader) -> bool {
    let Some(expected) = encode(header) else { return false };
    let flipped = block.iter().zip(&expected).map(|(is, was)| (is ^ was).count_ones());
    block.len() == expected.len() && flipped.sum::<u32>() <= FLIPPED_BITS_MAX
}
