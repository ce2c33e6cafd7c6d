//! The zone at the end of a disk's log, from its header to its footer.
//!
//! Invariants
//! - A footer names only what a flush before it made durable.
//! - A zone whose footer was handed to the disk and not written in time is served. When it is taken back, and the disk has not said
//!   by then that the footer is written, it is not used again until the next start: it may be written yet. One whose footer was not
//!   begun, as the flush before it was late, is used again.
//! - The last free zone is kept for removals of a zone that is being taken back: without them none would become free. When no
//!   more is taken back, at the end of the tier, it is for all removals that are left: a disk that lost one is not trusted.
//!
//! Limits: a record that finds no free zone within `ZONE_WAIT` is dropped, unless it is pinned and stands nowhere else.
//! Threads: the disk's writer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidefs_engine::types::ByteCount;

use super::SsdTier;
use super::device::Device;
use super::disk::Request;
use super::format::{
    BLOCK, BLOCK_BYTES, FOOTER_ENTRY_BYTES, Footer, FooterEntry, Frame, KEY_BYTES_MAX, META_BYTES_MAX, Order,
    Trailer, ZoneHeader, encode, frame_blocks,
};
use super::identity::{flush, write_blocks};
use super::memory::{Buffer, Memory, Piece};
use super::reasons::{DroppedFor, WrittenFor};
use super::writer::Writer;
use super::zone::{FooterPlace, ZoneState};

/// How long a record waits for reclaim to free a zone.
const ZONE_WAIT: Duration = Duration::from_secs(2);
/// How often it is looked meanwhile whether the tier stops.
const ZONE_LOOK: Duration = Duration::from_millis(50);
/// What a footer needs beside its entries: the device, the sequence and the count.
const FOOTER_OVERHEAD: usize = 64;

/// The zone that takes records.
#[derive(Debug)]
pub(super) struct OpenZone {
    pub(super) zone: u32,
    pub(super) sequence: Order,
    pub(super) next_block: u32,
    pub(super) entries: Vec<FooterEntry>,
    pub(super) footer_bytes: usize,
}

/// Who may take the last free zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// The removals for which a zone waits that is being taken back, and all when none is any more.
    Taken,
    /// All others leave it.
    Left,
}

impl Writer {
    /// Makes sure that `blocks` and their part of the footer fit into the open zone; opens another if they do not, and
    /// waits for reclaim if there is none. Removals that reclaim wants to be kept are written while it waits.
    ///
    /// # Errors
    /// Why there is none: no room, or an error of the disk.
    pub(super) fn ensure_zone(
        &mut self,
        blocks: u64,
        footer_bytes: usize,
        last: Last,
    ) -> Result<(), DroppedFor> {
        let deadline = Instant::now() + ZONE_WAIT;
        let zone_blocks = u64::from(self.device.zone_blocks);
        let fits = |open: &OpenZone| {
            let footer = frame_blocks(open.footer_bytes + footer_bytes + FOOTER_OVERHEAD);
            u64::from(open.next_block) + blocks + footer < zone_blocks
        };
        loop {
            self.abandon_zone_if_given_up();
            if self.open.as_ref().is_some_and(fits) {
                return Ok(());
            }
            self.close_zone();
            let kept = self.kept_zones(last);
            match self.open_zone(kept) {
                Ok(true) if self.open.as_ref().is_some_and(fits) => return Ok(()),
                Ok(true) => return Err(DroppedFor::Room),
                Ok(false) => {}
                Err(_) => return Err(DroppedFor::Error),
            }
            // Only reclaim frees zones, and who takes the last one has it waiting.
            let is_over = last == Last::Taken || self.shared.is_reclaim_over.load(Ordering::Relaxed);
            if is_over || Instant::now() >= deadline {
                self.shared.counters.zone_waits.fetch_add(1, Ordering::Relaxed);
                return Err(DroppedFor::Room);
            }
            if let Some(retain) = self.device.queue.take_retained() {
                self.retain(retain);
            } else {
                self.device.wait_for_free_zone(kept, ZONE_LOOK);
            }
        }
    }

    /// Whether removals that no zone waits for may take the last one.
    pub(super) fn last_for_removals(&self) -> Last {
        if self.shared.is_reclaim_over.load(Ordering::Relaxed) { Last::Taken } else { Last::Left }
    }

    /// Free zones that are left for others.
    fn kept_zones(&self, last: Last) -> usize {
        // While no zone is taken back nobody needs it, unless the first one will.
        let is_needed = self.shared.is_named.load(Ordering::Relaxed) || self.hides_what_is_older();
        usize::from(last == Last::Left && is_needed && !self.device.is_leaving())
    }

    /// Whether removals in the oldest zone that can be taken back may hide what stands in an older one.
    fn hides_what_is_older(&self) -> bool {
        self.device.may_find_given_up() || !self.shared.devices.numbers(Device::is_leaving).is_empty()
    }

    /// Opens a zone. Returns whether there is one for it.
    ///
    /// # Errors
    /// What the disk says.
    fn open_zone(&mut self, kept: usize) -> io::Result<bool> {
        let sequence = self.shared.next_order();
        let taken = self.device.take_free_zone(sequence, kept);
        self.shared.wake_reclaim();
        let taken = taken.inspect_err(|error| _ = self.device.count_write_error(error));
        let Some(zone) = taken? else { return Ok(false) };
        let header = ZoneHeader { device: self.device.uuid, zone, sequence };
        if let Err(error) = self.device.write_frame(zone, 0, &header, self.shared.limit) {
            self.device.count_write_error(&error);
            self.give_up(zone, &[]);
            return Err(error);
        }
        self.device.work.written.add(WrittenFor::Structures, BLOCK_BYTES);
        self.open = Some(OpenZone { zone, sequence, next_block: 1, entries: Vec::new(), footer_bytes: 0 });
        Ok(true)
    }

    /// Ends the open zone with its footer.
    pub(super) fn close_zone(&mut self) {
        self.reap_all();
        let Some(open) = self.open.take() else { return };
        let footer = self.write_footer(&open);
        if let Err(error) = &footer {
            // Its records are found by their headers.
            tracing::warn!(device = self.device.name, zone = open.zone, %error, "a zone has no footer");
        }
        self.device.change_zone(open.zone, |zone| {
            // A load may have met an error in it: then it stays given up, and its footer says what is to be kept of it.
            if zone.state == ZoneState::Open {
                zone.state = ZoneState::Closed;
            }
            zone.footer = footer.ok();
        });
        self.shared.wake_reclaim();
    }

    fn write_footer(&self, open: &OpenZone) -> io::Result<FooterPlace> {
        write_footer(
            &self.device,
            open.zone,
            open.sequence,
            open.next_block,
            open.entries.clone(),
            self.shared.limit,
        )
    }
}

/// Whether a record of `facts_blocks` fits into an empty zone, beside header, footer and trailer.
pub(super) fn fits_a_zone(zone_blocks: u32, facts_blocks: u64, footer_bytes: usize) -> bool {
    1 + facts_blocks + frame_blocks(footer_bytes + FOOTER_OVERHEAD) < u64::from(zone_blocks)
}

/// Most data of a record that fits into an empty zone, whatever its key and what its owner keeps beside it.
pub(super) fn longest_in_a_zone(zone_blocks: u32) -> ByteCount {
    let footer = KEY_BYTES_MAX + META_BYTES_MAX + FOOTER_ENTRY_BYTES;
    // The two headers and the trailer, as in `fits_a_zone`.
    let beside = 3 + frame_blocks(footer + FOOTER_OVERHEAD);
    ByteCount(u64::from(zone_blocks).saturating_sub(beside) * BLOCK_BYTES)
}

impl SsdTier {
    /// The longest object that a disk takes; nothing while none takes any.
    #[must_use]
    pub fn longest(&self) -> ByteCount {
        let longest = self.shared.takers().map(|device| longest_in_a_zone(device.zone_blocks));
        longest.max().unwrap_or_default()
    }
}

/// Writes the footer of a zone from `block` on, and its trailer, after what they name is durable.
///
/// # Errors
/// What the disk says; `StorageFull` when it does not fit before the trailer.
pub(super) fn write_footer(
    device: &Device,
    zone: u32,
    sequence: Order,
    block: u32,
    entries: Vec<FooterEntry>,
    limit: Duration,
) -> io::Result<FooterPlace> {
    let footer =
        encode(&Footer { device: device.uuid, sequence, entries }).ok_or(io::ErrorKind::InvalidInput)?;
    let blocks = u32::try_from(footer.len() / BLOCK).map_err(|_| io::ErrorKind::InvalidInput)?;
    let last = device.zone_blocks - 1;
    if block.checked_add(blocks).is_none_or(|end| end > last) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let trailer = encode(&Trailer { device: device.uuid, sequence, block, blocks })
        .ok_or(io::ErrorKind::InvalidInput)?;
    let request = |block: u32, bytes: &[u8]| {
        let memory = Memory::Buffer(Arc::new(Buffer::holding(bytes)));
        Piece::new(&memory, 0, bytes.len()).map(|piece| Request::write(device.offset(zone, block), piece))
    };
    let requests = request(block, &footer).into_iter().chain(request(last, &trailer)).collect();
    flush(&*device.disk, limit).inspect_err(|error| device.note_write_error(error))?;
    let ticket = device.disk.submit(requests);
    if let Err(error) = ticket.wait(limit) {
        device.note_write_error(&error);
        if error.kind() == io::ErrorKind::TimedOut {
            device.note_late_footer(zone, ticket.completion());
        }
        return Err(error);
    }
    device.work.written.add(WrittenFor::Structures, footer.len() as u64 + BLOCK_BYTES);
    Ok(FooterPlace { block, blocks })
}

impl Device {
    /// Writes a structure of one block and waits.
    ///
    /// # Errors
    /// What the disk says.
    pub(super) fn write_frame<T: Frame>(
        &self,
        zone: u32,
        block: u32,
        value: &T,
        limit: Duration,
    ) -> io::Result<()> {
        let bytes = encode(value).ok_or(io::ErrorKind::InvalidInput)?;
        write_blocks(&*self.disk, self.offset(zone, block), &bytes, limit)
    }

    /// Makes the header of a zone void, durably.
    ///
    /// # Errors
    /// What the disk says.
    pub(super) fn void_zone(&self, zone: u32, limit: Duration) -> io::Result<()> {
        write_blocks(&*self.disk, self.offset(zone, 0), &[0; BLOCK], limit)?;
        self.work.written.add(WrittenFor::Structures, BLOCK_BYTES);
        flush(&*self.disk, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::super::SsdConfig;
    use super::super::queue::{Job, Next};
    use super::super::testing::*;
    use super::*;

    /// Has a writer without a thread store an object.
    fn write(writer: &mut Writer, tier: &SsdTier, key: &[u8], length: usize) {
        tier.put(put_of(key, 1, length), |_| ()).unwrap();
        let Next::Job(Job::Append(append)) = writer.device.queue.next(Duration::ZERO) else { panic!() };
        writer.append(append);
        writer.reap_all();
    }

    /// A tier on a disk, whose limit is short, and a writer without a thread that has stored an object there.
    fn with_one_written(disk: &Arc<MemoryDisk>) -> (SsdTier, Writer) {
        let config = SsdConfig { limit: Duration::from_millis(50), ..config(1, 12) };
        let tier = tier_on(std::slice::from_ref(disk), &config);
        recover(&tier);
        let device = Arc::clone(&tier.shared.devices.all()[0]);
        let mut writer = Writer::new(Arc::clone(&tier.shared), device);
        write(&mut writer, &tier, b"key", 5000);
        (tier, writer)
    }

    /// Frees the zone in which that object stands. Returns its number.
    fn free_zone_of_it(tier: &SsdTier, device: &Device) -> u32 {
        let hash = tier.shared.hash(b"key");
        let place = tier.shared.index.get(&hash).unwrap().place;
        assert!(device.end_reading(place.zone.zone(), Duration::from_secs(20)));
        tier.shared.free_zone(device, place.zone.zone(), &[(hash, place)], DroppedFor::Room).unwrap();
        place.zone.zone()
    }

    #[test]
    fn a_zone_is_used_again_when_the_flush_before_its_footer_alone_was_late() {
        let disk = MemoryDisk::new();
        let (tier, mut writer) = with_one_written(&disk);
        disk.hangs.store(true, Ordering::Relaxed);
        writer.close_zone();
        disk.let_go();
        assert_eq!(tier.status().devices[0].write_errors, 1);
        let zone = free_zone_of_it(&tier, &writer.device);
        assert_eq!(writer.device.zone(zone).unwrap().state, ZoneState::Free);
        assert_eq!(tier.status().devices[0].quarantined_zones, 0);
    }

    #[test]
    fn a_zone_whose_footer_may_be_written_yet_serves_what_it_holds_and_is_not_used_again() {
        let disk = MemoryDisk::new();
        let (tier, mut writer) = with_one_written(&disk);
        disk.hangs_writes.store(true, Ordering::Relaxed);
        writer.close_zone();
        disk.hangs_writes.store(false, Ordering::Relaxed);
        assert!(is_right(&tier, b"key", 1, 5000));
        let status = tier.status().devices.remove(0);
        assert_eq!((status.write_errors, status.quarantined_zones), (1, 0));
        free_zone_of_it(&tier, &writer.device);
        // Where the footer would be written in its zone.
        write(&mut writer, &tier, b"later", 20_000);
        disk.let_go();
        assert!(is_right(&tier, b"later", 1, 20_000));
        assert_eq!(tier.status().devices[0].quarantined_zones, 1);
    }

    #[test]
    fn a_zone_is_used_again_when_its_late_footer_was_written_by_then_and_not_when_it_failed() {
        for (fails, expected) in [(false, ZoneState::Free), (true, ZoneState::Quarantined)] {
            let disk = MemoryDisk::new();
            let (tier, mut writer) = with_one_written(&disk);
            disk.hangs_writes.store(true, Ordering::Relaxed);
            writer.close_zone();
            disk.fails_writes.store(fails, Ordering::Relaxed);
            disk.let_go();
            disk.fails_writes.store(false, Ordering::Relaxed);
            let zone = free_zone_of_it(&tier, &writer.device);
            assert_eq!(writer.device.zone(zone).unwrap().state, expected);
            write(&mut writer, &tier, b"later", 20_000);
            assert!(is_right(&tier, b"later", 1, 20_000));
        }
    }
}
