//! The stations of a disk's zones at a start, from their first and their last blocks.
//!
//! Invariants
//! - A zone whose header is whole is in use, one whose header is zeros is free.
//! - What a zone removed counts, whatever became of its header: one that cannot be read, or is damaged, makes its zone
//!   [headless](ZoneState::Headless), unless the life that it named can be told.
//! - Nothing else of a headless zone counts: its trailer may be of an earlier life, whose records were dropped since.
//! - A header that was not read for another reason than damage says nothing, nor does one of a disk that reads nothing at all:
//!   its zone is out of use and stays as it is ([`super::late`]).
//!
//! Limits: a damaged header is taken for that of a life when at most `FLIPPED_BITS_MAX` of its bits differ; those of
//! two lives differ in their checksums. A block device may hold anything before a zone is first opened: a zone that
//! names the disk neither in its trailer nor in its first record was never in use. `ZONES_AT_ONCE` zones are asked for at once,
//! and a disk that ends none of that within `BATCH_LIMIT` is asked for no further ones: its zones are waited for once.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::disk::{Disk, Request, Ticket};
use super::format::{
    BLOCK, BLOCK_BYTES, Order, RecordHeader, TombstoneBlock, Trailer, Uuid, ZoneHeader, decode, encode,
};
use super::identity::START_LIMIT;
use super::load::says_that_it_is_damaged;
use super::memory::{Buffer, Piece};
use super::zone::{FooterPlace, Zone, ZoneState, zone_offset};

/// Zones whose first and last blocks are read at once.
const ZONES_AT_ONCE: u32 = 256;
/// How long they have. A disk whose driver resets it pauses for the driver's timeout, of 30 s mostly, and for the reset; who
/// mounts waits for a minute until something is logged.
pub(super) const BATCH_LIMIT: Duration = Duration::from_secs(START_LIMIT.as_secs() * 3 / 2);
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
    read_zones_within(disk, uuid, (count, zone_blocks), BATCH_LIMIT)
}

fn read_zones_within(
    disk: &dyn Disk,
    uuid: Uuid,
    (count, zone_blocks): (u32, u32),
    limit: Duration,
) -> io::Result<Vec<Zone>> {
    let length = disk.length()?.get();
    let is_there = |number: u32| zone_offset(number + 1, zone_blocks) <= length;
    let mut zones = Vec::with_capacity(count as usize);
    let mut first = 0;
    while first < count {
        let last = count.min(first + ZONES_AT_ONCE);
        let mut patience = Patience::new(limit);
        let begin = |number: u32| {
            let (start, end) = (zone_offset(number, zone_blocks), zone_offset(number + 1, zone_blocks));
            is_there(number).then(|| Ends::begin(disk, start, end - BLOCK_BYTES))
        };
        let begun: Vec<Option<Ends>> = (first..last).map(begin).collect();
        let stations = (first..last).zip(begun);
        zones.extend(stations.map(|(number, ends)| {
            ends.map_or(Zone::ABSENT, |ends| ends.station(disk, (uuid, number), zone_blocks, &mut patience))
        }));
        first = last;
        if patience.is_lost() && first < count {
            tracing::error!(
                first,
                count,
                "a disk of the SSD tier does not answer: from this zone on none is read"
            );
            zones.extend((first..count).map(|number| if is_there(number) { UNREAD } else { Zone::ABSENT }));
            break;
        }
    }
    Ok(zones)
}

/// How long a disk has for what it was asked at once. One that ends some of that while it is waited for has as long again.
struct Patience {
    limit: Duration,
    until: Instant,
    has_answered: bool,
    was_late: bool,
}

impl Patience {
    fn new(limit: Duration) -> Self {
        Self { limit, until: Instant::now() + limit, has_answered: false, was_late: false }
    }

    /// For how long it is waited yet.
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Notes what became of a request. `was_over`: it had ended before it was waited for, whenever that was.
    fn note<T>(&mut self, outcome: &io::Result<T>, was_over: bool) {
        if outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            self.was_late = true;
            return;
        }
        self.has_answered = true;
        if !was_over {
            self.until = Instant::now() + self.limit;
        }
    }

    /// Whether the disk was waited for in vain.
    fn is_lost(&self) -> bool {
        self.was_late && !self.has_answered
    }
}

/// A block that is being read.
struct Block(Ticket, Arc<Buffer>);

impl Block {
    fn begin(disk: &dyn Disk, offset: u64) -> Self {
        let buffer = Arc::new(Buffer::zeroed(BLOCK));
        Self(disk.submit(vec![Request::read(offset, Piece::of_buffer(&buffer))]), buffer)
    }

    fn wait(self, patience: &mut Patience) -> io::Result<Arc<Buffer>> {
        let was_over = self.0.is_over();
        let outcome = self.0.wait(patience.left());
        patience.note(&outcome, was_over);
        outcome.map(|()| self.1)
    }

    /// Waits, and reads the block again when the disk did not say what stands there. One that is too late had its time.
    fn wait_or_read(self, disk: &dyn Disk, offset: u64, patience: &mut Patience) -> io::Result<Arc<Buffer>> {
        let mut outcome = self.wait(patience);
        for _ in 1..ATTEMPTS {
            match &outcome {
                Err(error) if !says_that_it_is_damaged(error) && error.kind() != io::ErrorKind::TimedOut => {
                    thread::sleep(PAUSE);
                    outcome = Self::begin(disk, offset).wait(patience);
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

    fn station(
        self,
        disk: &dyn Disk,
        (uuid, number): (Uuid, u32),
        zone_blocks: u32,
        patience: &mut Patience,
    ) -> Zone {
        let head = match self.head.wait_or_read(disk, zone_offset(number, zone_blocks), patience) {
            Ok(head) => head,
            Err(error) if !says_that_it_is_damaged(&error) || reads_nothing(disk, patience) => {
                tracing::error!(zone = number, %error, "the header of a zone of the SSD tier was not read, for now");
                return UNREAD;
            }
            Err(error) => {
                tracing::error!(zone = number, %error, "the header of a zone of the SSD tier cannot be read");
                return HEADLESS;
            }
        };
        // Without a trailer a zone is scanned.
        let trailer = self.tail.wait(patience).ok().and_then(|tail| decode::<Trailer>(tail.bytes()).ok());
        let trailer = trailer.filter(|trailer| trailer.device == uuid);
        let sequence = match decode::<ZoneHeader>(head.bytes()) {
            Ok(header) if header.device == uuid && header.zone == number => Some(header.sequence),
            // An earlier identity of the disk wrote it.
            Ok(header) if header.device != uuid => return FREE,
            _ if head.bytes().iter().all(|&byte| byte == 0) => return FREE,
            _ => {
                let first = Block::begin(disk, zone_offset(number, zone_blocks) + BLOCK_BYTES).wait(patience);
                let is_late = first.as_ref().is_err_and(|error| !says_that_it_is_damaged(error));
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
                if sequence.is_none() && is_late {
                    return UNREAD;
                }
                sequence
            }
        };
        let Some(sequence) = sequence else { return HEADLESS };
        let trailer = trailer.filter(|trailer| trailer.sequence == sequence);
        let footer = trailer.map(|trailer| FooterPlace { block: trailer.block, blocks: trailer.blocks });
        Zone { state: ZoneState::Closed, sequence, footer, ..Zone::ABSENT }
    }
}

/// Whether a disk does not even read its superblock any more, which was read right before.
fn reads_nothing(disk: &dyn Disk, patience: &mut Patience) -> bool {
    (0..2).all(|copy| Block::begin(disk, copy * BLOCK_BYTES).wait(patience).is_err())
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use tidefs_engine::types::ByteCount;

    use super::super::testing::MemoryDisk;
    use super::*;

    const BLOCKS: u32 = 4;

    /// A disk of `zones` zones without anything in them.
    fn disk_of(zones: u32) -> Arc<MemoryDisk> {
        let disk = MemoryDisk::new();
        disk.allocate(ByteCount(zone_offset(zones, BLOCKS))).unwrap();
        disk
    }

    #[test]
    fn a_disk_that_answers_nothing_costs_a_start_one_wait_and_is_asked_for_no_more() {
        let zones = 3 * ZONES_AT_ONCE;
        let disk = disk_of(zones);
        disk.hangs.store(true, Ordering::Relaxed);
        let started = Instant::now();
        let limit = Duration::from_millis(100);
        let found = read_zones_within(&*disk, Uuid([0; 16]), (zones + 1, BLOCKS), limit).unwrap();
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{:?}: each zone was waited for",
            started.elapsed()
        );
        assert_eq!(disk.held.lock().len(), 2 * ZONES_AT_ONCE as usize);
        let (absent, unread) = found.split_last().unwrap();
        assert_eq!((absent.state, unread.len()), (ZoneState::Absent, zones as usize));
        assert!(unread.iter().all(Zone::is_given_up), "what nobody read may hold records");
    }

    #[test]
    fn a_disk_that_reads_nothing_behind_its_superblock_has_no_zone_that_is_lost() {
        let disk = disk_of(3);
        let read = || read_zones(&*disk, Uuid([0; 16]), 3, BLOCKS).unwrap();
        disk.bad_byte.store(zone_offset(1, BLOCKS), Ordering::Relaxed);
        let states: Vec<ZoneState> = read().into_iter().map(|zone| zone.state).collect();
        assert_eq!(states, [ZoneState::Free, ZoneState::Headless, ZoneState::Free]);
        disk.fails_reads.store(true, Ordering::Relaxed);
        assert!(read().into_iter().all(|zone| zone.state == ZoneState::Quarantined && zone.sequence == 0));
    }

    #[test]
    fn a_disk_that_answers_has_its_time_for_each_answer() {
        let limit = Duration::from_secs(60);
        let mut patience = Patience::new(limit);
        patience.until = Instant::now();
        patience.note(&Ok(()), true);
        assert!(patience.left().is_zero(), "what ended before says nothing of now");
        patience.note(&Ok(()), false);
        assert!(!patience.left().is_zero());
        patience.note::<()>(&Err(io::ErrorKind::TimedOut.into()), false);
        assert!(!patience.is_lost(), "it answered others");
    }
}
