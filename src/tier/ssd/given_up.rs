//! Zones that are given up after an error: nothing of them is served any more, and a start is not to find them.
//!
//! Who meets the error marks the zone and takes its records out of the index. The disk's writer does the rest: it writes
//! the removals of the zone again, and makes its header void when they are durable.
//!
//! Invariants
//! - Nothing is said to be stored in a zone that the writer sees marked: the writer looks before each record that it starts
//!   and after each that ended.
//! - While a removal in the zone may still hide something, it stands in the file of intents, or durably in another zone,
//!   before the zone's header is void.
//! - As long as the header is not void a start may find the zone, with records that the index does not know: removals of
//!   keys that nobody knows are noted on that disk too, unless it takes no writes.
//!
//! Limits: a removal that cannot be read any more is lost. What of a zone is read without its footer is what can be read
//! within `SALVAGE_LIMIT`. A zone whose removals cannot be written is tried again every `RETRY`, and is left to the next
//! start when the disk takes no writes; so is one whose header cannot be made void.
//! Threads: any marks a zone; the rest is done by the disk's writer.

use std::time::{Duration, Instant};

use tidefs_engine::types::ByteCount;

use super::Shared;
use super::contents::{fits, read_footer};
use super::device::Device;
use super::format::{BLOCK, FooterEntry, Order, RecordHeader, Tombstone, TombstoneBlock, decode};
use super::identity::{flush, read_blocks};
use super::queue::Job;
use super::reasons::DroppedFor;
use super::writer::Writer;
use super::zone::{FooterPlace, ZoneState};

/// How long it is looked for removals in a zone without a footer that can be read.
pub(super) const SALVAGE_LIMIT: Duration = Duration::from_secs(10);
/// Blocks that are read at once there.
const SALVAGE_BLOCKS: u32 = 256;
/// When it is tried again to write the removals of a zone elsewhere.
const RETRY: Duration = Duration::from_secs(1);

/// Zones of one disk whose headers are to be made void.
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    zones: Vec<(u32, Vec<Tombstone>)>,
    /// After a failure, when the next attempt may be made.
    retry_at: Option<Instant>,
}

impl Shared {
    /// Gives up a zone after an error: nothing of it is served any more, and its disk's writer sees to it that a start
    /// does not find it. Does not wait. When the writer has ended, the next start finds the zone as it is.
    pub(super) fn quarantine(&self, device: &Device, zone: u32) {
        let is_first = device.give_up(zone);
        self.drop_zone(device.zone_id(zone), DroppedFor::Error);
        if is_first {
            device.queue.push(Job::GiveUp(zone));
        }
    }

    /// What was removed in a zone, as far as it can be read within `limit`, perhaps among other entries.
    pub(super) fn removals_left_in(&self, device: &Device, number: u32, limit: Duration) -> Salvaged {
        let Some(zone) = device.zone(number) else { return Salvaged::default() };
        let footer = zone.footer.and_then(|FooterPlace { block, blocks }| {
            read_footer(device, number, zone.sequence, block, blocks, self.limit).ok()
        });
        let life = (zone.sequence > 0).then_some(zone.sequence);
        match footer {
            Some(entries) => Salvaged { entries, is_whole: true },
            None => salvage_removals(device, number, life, limit),
        }
    }
}

/// What could be read of the removals of a zone.
#[derive(Debug, Default)]
pub(super) struct Salvaged {
    pub(super) entries: Vec<FooterEntry>,
    /// Whether every block was read, or passed over by a header.
    pub(super) is_whole: bool,
}

/// Finds the removals of a zone some of whose blocks cannot be read, and its records without data. Other records are passed
/// over by their headers. Of a zone whose life is not known those of all its lives are found, and no record.
fn salvage_removals(device: &Device, zone: u32, life: Option<Order>, limit: Duration) -> Salvaged {
    let deadline = Instant::now() + limit;
    let mut found = Vec::new();
    let mut is_whole = true;
    let mut block = 1;
    // One block that cannot be read fails the read of many: they are read alone up to here.
    let mut alone_until = 0;
    // The last block is the trailer's alone.
    let last = device.zone_blocks - 1;
    while block < last {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            tracing::error!(
                device = device.name,
                zone,
                block,
                "removals behind this block of a zone cannot be read"
            );
            is_whole = false;
            break;
        }
        let count = if block < alone_until { 1 } else { SALVAGE_BLOCKS.min(last - block) };
        let Ok(bytes) = read_blocks(&*device.disk, device.offset(zone, block), count.into(), left) else {
            if count == 1 {
                is_whole = false;
                block += 1;
            } else {
                alone_until = block + count;
            }
            continue;
        };
        let start = block;
        while block < start + count {
            let at = (block - start) as usize * BLOCK;
            let one = bytes.bytes().get(at..at + BLOCK).unwrap_or_default();
            let mut blocks = 1;
            if let Ok(RecordHeader { device: uuid, sequence: written, facts }) = decode(one) {
                if uuid == device.uuid && life == Some(written) && fits(device, block, &facts) {
                    blocks = u32::try_from(facts.blocks()).unwrap_or(1);
                    if facts.length == ByteCount::ZERO {
                        found.push(FooterEntry::Object { block, facts });
                    }
                }
            } else if let Ok(TombstoneBlock { device: uuid, sequence: written, tombstones }) = decode(one)
                && uuid == device.uuid
                && life.is_none_or(|life| life == written)
            {
                found.push(FooterEntry::Tombstones(tombstones));
            }
            block += blocks;
        }
    }
    Salvaged { entries: found, is_whole }
}

impl Writer {
    /// Gives up the open zone after an error.
    pub(super) fn abandon_zone(&mut self) {
        if let Some(open) = self.open.take() {
            self.give_up(open.zone, &open.entries);
        }
    }

    /// Gives up the open zone when a load met an error in it: what is written there would never be loaded.
    pub(super) fn abandon_zone_if_given_up(&mut self) {
        let is_given_up = |zone| self.device.zone(zone).is_none_or(|zone| zone.state != ZoneState::Open);
        if self.open.as_ref().is_some_and(|open| is_given_up(open.zone)) {
            self.abandon_zone();
        }
    }

    /// Gives up a zone in which somebody met an error.
    pub(super) fn take_given_up(&mut self, zone: u32) {
        if self.open.as_ref().is_some_and(|open| open.zone == zone) {
            return self.abandon_zone();
        }
        let is_known = self.given_up.zones.iter().any(|(known, _)| *known == zone);
        let is_marked = self.device.zone(zone).is_some_and(|zone| zone.is_given_up());
        if is_marked && !is_known {
            let left = self.shared.removals_left_in(&self.device, zone, SALVAGE_LIMIT);
            self.give_up(zone, &left.entries);
        }
    }

    /// Gives up a zone with what is known to stand in it.
    pub(super) fn give_up(&mut self, zone: u32, entries: &[FooterEntry]) {
        self.device.give_up(zone);
        // All of the index is looked at for it. What lies beyond the capacity, many zones perhaps, the start has taken out, and no
        // record comes there since.
        if !self.device.is_surplus(zone) {
            self.shared.drop_zone(self.device.zone_id(zone), DroppedFor::Error);
        }
        let removals = self.shared.needed_tombstones(&self.device, zone, entries);
        self.shared.intend(self.device.number, &removals);
        self.given_up.zones.push((zone, removals));
    }

    /// Makes zones void that were given up, after their removals are durable elsewhere.
    pub(super) fn void_given_up(&mut self) {
        let is_early = self.given_up.retry_at.is_some_and(|at| Instant::now() < at);
        if self.given_up.zones.is_empty() || is_early {
            return;
        }
        self.given_up.retry_at = None;
        for (zone, removals) in std::mem::take(&mut self.given_up.zones) {
            let is_safe = removals.is_empty()
                || (!self.device.is_failing() && self.write_tombstones(&removals, self.last_for_removals()));
            // Records may have been moved out of it.
            self.reap_all();
            let is_safe = is_safe && (self.device.is_failing() || self.is_flushed());
            if is_safe {
                self.shared.intents.settle(self.device.number, &removals);
                self.void(zone);
            } else {
                self.given_up.zones.push((zone, removals));
                self.given_up.retry_at = Some(Instant::now() + RETRY);
            }
        }
    }

    /// Makes durable what was written. A failure is one of the zone that is tried again, and counts for nothing else.
    fn is_flushed(&self) -> bool {
        flush(&*self.device.disk, self.shared.limit).is_ok()
    }

    /// Makes the header of a zone void that is given up.
    fn void(&self, zone: u32) {
        match self.device.void_zone(zone, self.shared.limit) {
            Ok(()) => {
                self.device.end_giving_up(zone);
                if self.device.is_surplus(zone) {
                    self.device.cut_surplus();
                }
            }
            Err(error) => {
                tracing::error!(
                    device = self.device.name, zone, %error,
                    "a zone is given up and may be met again at the next start: replace the disk"
                );
            }
        }
    }

    /// Tries for the last time, and says which zones keep their headers for their removals.
    pub(super) fn leave_given_up(&mut self) {
        self.given_up.retry_at = None;
        self.void_given_up();
        for (zone, removals) in &self.given_up.zones {
            tracing::error!(
                device = self.device.name,
                zone,
                removals = removals.len(),
                "a zone is given up and may be met again at the next start: its removals could not be written elsewhere"
            );
        }
    }
}
