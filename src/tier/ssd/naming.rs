//! After the index: the owner is told what stands on the disks, zone by zone, while the tier is used already.
//!
//! Invariants
//! - Nothing is told that was removed or replaced meanwhile: the owner asks [`super::SsdTier::own`] under the lock under
//!   which it removes.
//! - Until all was told no zone is taken back, so that no record moves to where it would be missed.
//!
//! Limits: the entries of one zone are in memory at a time. A disk that is late, or reads nothing, `LATE_MAX` times in a row is
//! asked for no more: what has no name by then is a miss, and its records stay until they are replaced or their zones are taken
//! back.
//! One header is read for a record that is wanted before its turn, unless its disk is late ([`super::overdue`]): then it is
//! a miss at once.
//! Threads: one that the owner has; [`super::SsdTier::describe`] from any that may wait.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use tidefs_engine::types::{ByteCount, Version};

use super::Shared;
use super::device::Device;
use super::format::{BLOCK_BYTES, FooterEntry, RecordFacts, RecordHash, RecordHeader, decode};
use super::index::Place;
use super::load::{ASIDE, Missed, read_block, says_that_it_is_damaged};
use super::reasons::ReadFor;
use super::recover::Known;

/// Stands for the owner of a record that nobody was told of yet.
pub(super) const NOBODY: u32 = u32::MAX;

/// Records that are told at once.
const TOLD_AT_ONCE: usize = 256;

/// So often in a row a disk may be too late, then it is not asked for more names.
const LATE_MAX: u32 = 4;

/// An object that a start found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRecord {
    /// The owner's key.
    pub key: Vec<u8>,
    /// What the owner keeps beside.
    pub meta: Vec<u8>,
    /// Its version.
    pub version: Version,
    /// Bytes of data.
    pub length: ByteCount,
}

/// A record that stood in its place when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What it says.
    pub record: FoundRecord,
    pub(super) hash: RecordHash,
    pub(super) place: Place,
}

impl Standing {
    pub(super) fn new(place: Place, facts: RecordFacts) -> Self {
        let RecordFacts { hash, key, meta, version, length, .. } = facts;
        Self { record: FoundRecord { key, meta, version, length }, hash, place }
    }
}

/// What the owner was not told of yet.
#[derive(Debug)]
pub struct Unnamed {
    zones: VecDeque<Known>,
    /// Read from a zone and not told yet.
    standing: VecDeque<Standing>,
    objects: u64,
    /// How often in a row each disk was too late.
    late: HashMap<u8, u32>,
}

impl Unnamed {
    pub(super) fn new(zones: Vec<Known>, objects: u64) -> Self {
        Self { zones: zones.into(), standing: VecDeque::new(), objects, late: HashMap::new() }
    }

    /// A disk was too late with the names of a zone, which has another turn later, unless the disk seems to hang.
    fn note_late(&mut self, device: &Device, zone: Known) {
        tracing::warn!(device = device.name, zone = zone.zone, "the names of a zone are late");
        let number = zone.device;
        self.zones.push_back(zone);
        let late = self.late.entry(number).or_default();
        *late += 1;
        if *late >= LATE_MAX {
            tracing::error!(
                device = device.name,
                "a disk does not answer: objects on it whose names are not known are misses until the next start"
            );
            self.zones.retain(|zone| zone.device != number);
        }
    }

    /// How many objects there were when the index was complete.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.objects
    }
}

impl Shared {
    /// Whether the record that counts for its key still stands there.
    pub(super) fn stands(&self, standing: &Standing) -> bool {
        self.index.get_at(&standing.hash, standing.place).is_some()
    }

    /// Notes how the owner finds a record again. Returns whether it still stands.
    pub(super) fn own(&self, standing: &Standing, owner: u32) -> bool {
        self.stands(standing) && self.index.set_owner(&standing.hash, standing.record.version, owner)
    }

    /// Some of what nobody was told of yet, perhaps nothing for now; `None` when all was told.
    pub(super) fn next_standing(&self, unnamed: &mut Unnamed) -> Option<Vec<Standing>> {
        while unnamed.standing.is_empty() {
            let mut known = unnamed.zones.pop_front()?;
            let Some(device) = self.devices.get(known.device) else { continue };
            match self.entries_of(&device, &mut known, false) {
                Ok(entries) => {
                    let standing = entries.into_iter().filter_map(|entry| {
                        let FooterEntry::Object { block, facts } = entry else { return None };
                        let place = Place { zone: device.zone_id(known.zone), block };
                        let found = self.index.get_at(&facts.hash, place)?;
                        (found.owner == NOBODY).then(|| Standing::new(place, facts))
                    });
                    unnamed.standing.extend(standing);
                    unnamed.late.remove(&known.device);
                }
                // The disk is busy, or hangs, or reads nothing: what it holds is found when it is looked up, if at all.
                Err(error) if !says_that_it_is_damaged(&error) || self.reads_nothing(&device, self.limit) => {
                    unnamed.note_late(&device, known);
                    if device.overdue.is_aside() {
                        std::thread::sleep(ASIDE);
                    }
                    return Some(Vec::new());
                }
                Err(error) => {
                    tracing::error!(device = device.name, zone = known.zone, %error, "a zone is lost");
                    self.quarantine(&device, known.zone);
                }
            }
        }
        let count = unnamed.standing.len().min(TOLD_AT_ONCE);
        Some(unnamed.standing.drain(..count).collect())
    }

    /// From now on zones are taken back.
    pub(super) fn end_naming(&self) {
        self.is_named.store(true, Ordering::Relaxed);
        self.wake_reclaim();
    }

    /// What the record of a key says, read from its header.
    pub(super) fn describe(&self, key: &[u8]) -> Result<Standing, Missed> {
        let hash = self.hash(key);
        let place = self.index.get(&hash).ok_or(Missed::Absent)?.place;
        let device = self.devices.of(place).ok_or(Missed::Absent)?;
        let zone = place.zone.zone();
        let _lease = device.lease(zone).ok_or(Missed::Absent)?;
        let sequence = device.zone(zone).map(|zone| zone.sequence);
        if !self.may_ask(&device, place) {
            return Err(Missed::Failed);
        }
        let read = read_block(&device, device.offset(zone, place.block), self.limit);
        let bytes = read.map_err(|error| {
            device.count_read_error(zone, &error);
            Missed::Failed
        })?;
        device.work.read.add(ReadFor::Structures, BLOCK_BYTES);
        let RecordHeader { device: uuid, sequence: written, facts } =
            decode(bytes.bytes()).map_err(|_| Missed::Corrupt)?;
        let is_meant =
            uuid == device.uuid && Some(written) == sequence && facts.hash == hash && facts.key == key;
        if is_meant { Ok(Standing::new(place, facts)) } else { Err(Missed::Corrupt) }
    }
}
