//! Emptying a zone: what is not to go with it is read, and left to be written again.
//!
//! That is what was used since it was written or is pinned, and is not in memory too, up to a part of the zone, and what its owner
//! wants to stay.
//!
//! Invariants
//! - A zone whose disk is late with what is to be written again, or does not take it, stays for now: that is not lost. So does
//!   one with more that is pinned than may be written again. It is touched only while the writer has zones: who waits for one
//!   gains nothing by that.
//! - No record is waited for when the writer needs the zone: their bytes are in memory of their own, and a kill then loses
//!   them. One whose version was stored before, which a start would find instead, is given up then, unless it is pinned. Until
//!   such a record is written again the index names no zone for it, and loads try again.
//!
//! Limits: [`REINSERTED_PARTS`] of [`PARTS`] of a zone are written again at most, about [`REINSERT_WINDOW`] bytes at once, and
//! waited for no longer than [`REINSERT_LIMIT`].
//! Threads: the reclaimer; those that empty a disk move records by [`Shared::rewrite`], too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use tidefs_engine::types::ByteCount;

use super::Shared;
use super::contents::records_in;
use super::device::Device;
use super::format::{BLOCK_BYTES, FooterEntry, RecordFacts, RecordHash};
use super::homes::Home;
use super::index::{Located, Place, ZoneId};
use super::load::Missed;
use super::memory::{Buffer, Memory};
use super::queue::{Append, Job, Origin, Stored};
use super::reasons::{DroppedFor, ReadFor};

/// Parts of a zone that may be written again, of [`PARTS`]: the rest is what a zone gains at least.
const REINSERTED_PARTS: u64 = 3;
const PARTS: u64 = 4;
/// Bytes that are read to be written again at once.
const REINSERT_WINDOW: u64 = 32 << 20;
/// How long records that are written again may take before the zone goes without them.
const REINSERT_LIMIT: Duration = Duration::from_secs(5);
/// How often it is looked whether the writer waits for the zone.
const WRITER_LOOK: Duration = Duration::from_millis(5);

/// What became of the records of a zone.
#[derive(Debug, Default)]
pub(super) struct Emptied {
    /// Those that stood in it: what still does goes with it.
    pub(super) stood: Vec<(RecordHash, Place)>,
    /// Whether one of them is held up: then the zone stays for now.
    pub(super) is_held_up: bool,
}

/// Why a record is not written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotMoved {
    /// It was replaced or removed.
    Replaced,
    /// It cannot be read, or is too large.
    Lost,
    /// Its disk did not give it in time, or the other one takes nothing, or its owner stores it again: what is stored last is
    /// to come last in the order. It stands where it stood.
    HeldUp,
}

impl Shared {
    /// Whether its bytes are in memory too.
    pub(super) fn has_elsewhere(&self, located: &Located) -> bool {
        self.owner.get().is_some_and(|owner| owner.has_elsewhere(located.owner, located.version))
    }

    fn is_pinned(&self, located: &Located) -> bool {
        self.owner.get().is_some_and(|owner| owner.is_pinned(located.owner, located.version))
    }

    /// Whether the record at `place` is pinned.
    pub(super) fn is_pinned_at(&self, hash: &RecordHash, place: Place) -> bool {
        self.index.get_at(hash, place).is_some_and(|located| self.is_pinned(&located))
    }

    pub(super) fn must_stay(&self, facts: &RecordFacts) -> bool {
        facts.length == ByteCount::ZERO && self.owner.get().is_some_and(|owner| owner.must_stay(&facts.key))
    }

    /// Bytes of a zone that are pinned and stand nowhere else.
    fn pinned_bytes(&self, device: &Device, number: u32, entries: &[FooterEntry]) -> u64 {
        let pinned = records_in(device.zone_id(number), entries).filter_map(|(place, facts)| {
            let located = self.index.get_at(&facts.hash, place)?;
            let is_meant = self.is_pinned(&located) && !self.has_elsewhere(&located);
            is_meant.then_some(facts.blocks() * BLOCK_BYTES)
        });
        pinned.sum()
    }

    /// Writes again what a zone is not to take along.
    pub(super) fn empty_zone(&self, device: &Arc<Device>, number: u32, entries: &[FooterEntry]) -> Emptied {
        let mut emptied = Emptied::default();
        let mut budget = u64::from(device.zone_blocks) * BLOCK_BYTES / PARTS * REINSERTED_PARTS;
        if device.is_short_of_zones() && self.pinned_bytes(device, number, entries) > budget {
            emptied.is_held_up = true;
            return emptied;
        }
        let (mut rewriting, mut again) = (Rewriting::new(device), Vec::new());
        for (place, facts) in records_in(device.zone_id(number), entries) {
            let Some(located) = self.index.get_at(&facts.hash, place) else { continue };
            let bytes = facts.blocks() * BLOCK_BYTES;
            let is_pinned = || self.is_pinned(&located);
            let is_wanted = (located.heat > 0 || is_pinned()) && !self.has_elsewhere(&located);
            let is_in_time = rewriting.bytes <= REINSERT_WINDOW;
            let is_kept = bytes <= budget && ((is_wanted && is_in_time) || self.must_stay(facts));
            emptied.stood.push((facts.hash, place));
            let rewritten = if is_kept {
                self.rewrite(device, device, place, facts)
            } else if is_wanted && is_pinned() {
                Err(NotMoved::HeldUp)
            } else {
                Err(NotMoved::Lost)
            };
            match rewritten {
                Ok(end) => {
                    budget -= bytes;
                    again.extend((located.is_again && !is_pinned()).then_some(facts.hash));
                    rewriting.add(bytes, end);
                }
                Err(NotMoved::HeldUp) => {
                    emptied.is_held_up = true;
                    break;
                }
                // It goes with the zone, unless it is gone already.
                Err(NotMoved::Replaced | NotMoved::Lost) => {}
            }
        }
        let has_failed = rewriting.end();
        // A writer that waits for the zone gets it nevertheless.
        emptied.is_held_up |= has_failed && !device.is_short_of_zones();
        if !emptied.is_held_up {
            // As in `free_zone`: of these, what is not written again by now is given up.
            let moving = ZoneId::on_the_move(device.number);
            for hash in again {
                self.drop_record(&hash, DroppedFor::Room, |found| {
                    found.place.zone == moving && found.is_again
                });
            }
        }
        emptied
    }

    /// Reads a record of one disk and leaves it to be written to another, or to the same one.
    pub(super) fn rewrite(
        &self,
        from: &Device,
        to: &Device,
        place: Place,
        facts: &RecordFacts,
    ) -> Result<Receiver<Stored>, NotMoved> {
        let length = usize::try_from(facts.length.get()).map_err(|_| NotMoved::Lost)?;
        let memory = Memory::Buffer(Arc::new(Buffer::zeroed(length)));
        let read = self.load_from(place, facts.length, &memory, ReadFor::Again).map_err(|missed| {
            // After an error of the medium the zone is given up.
            let is_there = from.zone(place.zone.zone()).is_some_and(|zone| zone.can_be_read());
            if missed == Missed::Failed && is_there { NotMoved::HeldUp } else { NotMoved::Lost }
        })?;
        if read != *facts {
            return Err(NotMoved::Lost);
        }
        // Its bytes are here: from now on it stands nowhere, until it is written.
        let nowhere = self.nowhere(from.number);
        let sequence = from.zone(place.zone.zone()).map_or(0, |zone| zone.sequence);
        let uses = self.index.get(&facts.hash).map_or(0, |found| found.heat);
        {
            // Who stores it again forgets where it stood under this lock, too.
            let pending = self.pending.lock();
            if pending.is_stored_now(facts.hash, facts.version) {
                return Err(NotMoved::HeldUp);
            }
            if !self.index.relocate(&facts.hash, facts.version, place, nowhere) {
                return Err(NotMoved::Replaced);
            }
            let home = Home { version: facts.version, place, sequence, uses };
            let before = self.homes.note(facts.hash, home);
            self.note_former_home(&facts.hash, before, from.number);
        }
        let (sender, receiver) = sync_channel(1);
        let append = Append {
            hash: facts.hash,
            key: facts.key.clone(),
            meta: facts.meta.clone(),
            version: facts.version,
            length: facts.length,
            checksum: Some(facts.checksum),
            memory,
            durable: false,
            origin: Origin::Zone(nowhere),
            uses: 0,
            done: super::queue::report_to(sender),
        };
        if !to.queue.push(Job::Append(append)) {
            self.index.relocate(&facts.hash, facts.version, nowhere, place);
            return Err(NotMoved::HeldUp);
        }
        Ok(receiver)
    }
}

/// The records of a zone that are being written again.
struct Rewriting<'a> {
    device: &'a Device,
    deadline: Instant,
    /// Their ends, each with its bytes.
    under_way: VecDeque<(u64, Receiver<Stored>)>,
    /// All of these bytes.
    bytes: u64,
    /// Whether some were not written.
    has_failed: bool,
}

impl<'a> Rewriting<'a> {
    fn new(device: &'a Device) -> Self {
        let deadline = Instant::now() + REINSERT_LIMIT;
        Self { device, deadline, under_way: VecDeque::new(), bytes: 0, has_failed: false }
    }

    /// One more is. Waits until less than [`REINSERT_WINDOW`] is under way, as far as that may be waited for.
    fn add(&mut self, bytes: u64, end: Receiver<Stored>) {
        self.under_way.push_back((bytes, end));
        self.bytes += bytes;
        while self.bytes > REINSERT_WINDOW
            && let Some((bytes, end)) = self.under_way.pop_front()
        {
            let Some(stored) = self.wait_for(&end) else {
                self.under_way.push_back((bytes, end));
                break;
            };
            self.bytes -= bytes;
            self.has_failed |= stored == Stored::Failed;
        }
    }

    /// Waits for all of them, as far as that may be waited for. Returns whether some were not written: whatever becomes of one,
    /// its writer tells the index.
    fn end(mut self) -> bool {
        while let Some((_, end)) = self.under_way.pop_front() {
            self.has_failed |= self.wait_for(&end) == Some(Stored::Failed);
        }
        self.has_failed
    }

    /// Waits until a record was written again, but not while the writer itself waits for the zone. Returns how that ended.
    fn wait_for(&self, end: &Receiver<Stored>) -> Option<Stored> {
        loop {
            // Looked at first: many are asked for while nothing is to be waited for.
            let gives_up = self.device.is_short_of_zones() || Instant::now() >= self.deadline;
            match end.recv_timeout(if gives_up { Duration::ZERO } else { WRITER_LOOK }) {
                Ok(stored) => return Some(stored),
                Err(RecvTimeoutError::Disconnected) => return Some(Stored::Failed),
                Err(RecvTimeoutError::Timeout) if gives_up => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}
