//! Taking zones back: an [old one](super::choosing) of a disk is emptied while there are still others to write to.
//!
//! What was used since it was written, and is not in memory too, is written again, up to a part of the zone; the rest is
//! dropped, and its owner is told. Removals stay for as long as an older record of their key may stand in another zone, and
//! records that say where others belong stay always.
//!
//! Invariants
//! - A zone is free only when its header is void on the disk: removals that went with it hide nothing any more, because
//!   those that are later than [`Device::oldest_sequence`] of the others were written again before.
//! - A record leaves the index after its zone is void: until then a removal of its key finds it, and is noted. And before
//!   the zone is free: from then on the writer may put other records where it stood.
//! - What is [in memory too](super::vacating) when its zone is emptied, and leaves memory then, is stored again.
//! - What was [written again](super::emptying) is durable before its zone is void, unless the writer needs the zone: nobody
//!   waits for it then.
//!
//! A disk that reads nothing is looked at again here.
//!
//! Limits: a disk that is late holds up the others once, for as long as a request or two may take, and is passed over then
//! until it answers. A zone that is read for longer than `READERS_LIMIT` is passed over for a while. One that cannot be read is given
//! up, if the disk reads anything, and no other one before the next look.
//! Threads: one for a pool, `ssd-reclaim`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use super::Shared;
use super::choosing::Choosing;
use super::contents::{read_footer, records_in, scan_zone};
use super::days::KEPT_EVERY;
use super::device::Device;
use super::emptying::Emptied;
use super::format::{FooterEntry, RecordFacts, RecordHash, Tombstone};
use super::identity::flush;
use super::index::Place;
use super::load::{read_block, says_that_it_is_damaged};
use super::queue::{Retain, Stored};
use super::reasons::DroppedFor;
use super::zone::{FooterPlace, ZoneState};

/// Zones that are kept free ahead of the writer.
pub(super) const SPARE_ZONES: usize = 2;
/// How often the thread looks without being woken.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long an emptied zone waits for those who still read it.
const READERS_LIMIT: Duration = Duration::from_secs(1);
/// How soon a disk that took long has to read a block.
const ANSWER_LIMIT: Duration = Duration::from_millis(100);

impl Shared {
    /// Keeps zones free until the tier stops.
    pub(super) fn reclaim_in_background(&self) {
        let mut choosing = Choosing::default();
        let mut kept_at = Instant::now();
        while !self.is_stopping() {
            if kept_at.elapsed() >= KEPT_EVERY {
                kept_at = Instant::now();
                self.keep_days();
            }
            let mut has_progress = false;
            let is_named = self.is_named.load(Ordering::Relaxed);
            for device in &self.devices.all() {
                // Perhaps nobody else asks it again.
                if device.overdue.reads_nothing() && !device.overdue.is_late() {
                    self.reads_nothing(device, self.limit);
                }
                let _turn = self.reclaiming.lock();
                let may_be_emptied = is_named && !device.is_failing() && !device.is_leaving();
                let is_wanted = may_be_emptied && device.spare_zones() < SPARE_ZONES;
                if !self.is_stopping() && is_wanted && self.may_ask(device, first_block(device)) {
                    let started = Instant::now();
                    has_progress |= self.reclaim_one(device, &mut choosing);
                    if started.elapsed() >= self.limit {
                        // Unless it reads a block at once it is late, and gets no loads until it has.
                        let _ = read_block(device, 0, ANSWER_LIMIT);
                    }
                }
            }
            if !has_progress {
                self.wait_for_reclaim(INTERVAL);
            }
        }
    }

    /// Empties a closed zone of a disk. Returns whether it is free now.
    fn reclaim_one(&self, device: &Arc<Device>, choosing: &mut Choosing) -> bool {
        if !device.can_be_written(self.limit) {
            return false;
        }
        let Some(number) = choosing.choose(self, device) else { return false };
        let entries = match self.entries_in(device, number) {
            Ok(entries) => entries,
            // One of the whole disk says nothing of the zone.
            Err(error) if !says_that_it_is_damaged(&error) || self.reads_nothing(device, self.limit) => {
                tracing::warn!(device = device.name, zone = number, %error, "a zone is not taken back for now");
                choosing.note_late(device, number);
                return false;
            }
            Err(error) => {
                tracing::error!(device = device.name, zone = number, %error, "a zone cannot be read and is given up");
                self.quarantine(device, number);
                return false;
            }
        };
        let is_gone = self.take_back(device, number, &entries);
        if !is_gone {
            choosing.note_late(device, number);
        }
        is_gone
    }

    /// Empties a zone that holds `entries`, and frees it or gives it up. Returns false when it stays for now.
    pub(super) fn take_back(&self, device: &Arc<Device>, number: u32, entries: &[FooterEntry]) -> bool {
        let removals = self.needed_tombstones(device, number, entries);
        let records = self.records_that_stay(device, number, entries);
        // With no place for them, records are written again from memory, like others.
        let may_lose = removals.is_empty() && device.spare_zones() == 0;
        if !self.retain(device, removals, records) && !may_lose {
            tracing::warn!(
                device = device.name,
                zone = number,
                "a zone is not taken back for now: there is no place for its removals"
            );
            return false;
        }
        let _vacated = device.vacating.begin(number);
        let Emptied { stood, is_held_up } = self.empty_zone(device, number, entries);
        if is_held_up {
            tracing::warn!(
                device = device.name,
                zone = number,
                "a zone is not taken back for now: its disk is late or fails, or what stands there is pinned or being stored again"
            );
            self.note_that_it_stays(&stood);
            return false;
        }
        if !device.end_reading(number, READERS_LIMIT) {
            // It was given up meanwhile, or who reads there goes on with that.
            device.keep_zone(number);
            self.note_that_it_stays(&stood);
            return false;
        }
        // What stands elsewhere now, by an earlier attempt perhaps, is durable before it is gone here: one flush for a zone.
        if let Err(error) = flush(&*device.disk, self.limit) {
            // That is an error of the disk, or a pause of it, and none of the zone, of which nothing is void yet.
            device.count_write_error(&error);
            device.keep_zone(number);
            self.note_that_it_stays(&stood);
            return false;
        }
        match self.free_zone(device, number, &stood, DroppedFor::Room) {
            Ok(()) => {
                self.counters.reclaimed_zones.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                device.count_write_error(&error);
                self.quarantine(device, number);
            }
        }
        true
    }

    /// What is in a closed zone.
    pub(super) fn entries_in(&self, device: &Device, number: u32) -> io::Result<Vec<FooterEntry>> {
        self.footer_of(device, number).or_else(|error| {
            // Nor would a disk that is late answer to more.
            if !says_that_it_is_damaged(&error) {
                return Err(error);
            }
            let zone = device.zone(number).ok_or(io::ErrorKind::NotFound)?;
            scan_zone(device, number, zone.sequence, self.limit).map(|scan| scan.entries)
        })
    }

    /// What is in a closed zone, by its footer.
    pub(super) fn footer_of(&self, device: &Device, number: u32) -> io::Result<Vec<FooterEntry>> {
        let zone = device.zone(number).ok_or(io::ErrorKind::NotFound)?;
        let FooterPlace { block, blocks } = zone.footer.ok_or(io::ErrorKind::NotFound)?;
        read_footer(device, number, zone.sequence, block, blocks, self.limit)
    }

    /// Writes removals again that may still hide something, on this disk or on one that is being emptied to it. Returns
    /// whether none is lost with the zone.
    pub(super) fn retain_tombstones(&self, device: &Device, number: u32, entries: &[FooterEntry]) -> bool {
        self.retain(device, self.needed_tombstones(device, number, entries), Vec::new())
    }

    /// Has the writer write removals and records once more. Returns whether they are durable.
    fn retain(
        &self,
        device: &Device,
        tombstones: Vec<Tombstone>,
        records: Vec<(Place, RecordFacts)>,
    ) -> bool {
        if tombstones.is_empty() && records.is_empty() {
            return true;
        }
        let (sender, receiver) = sync_channel(1);
        let retain = Retain { tombstones, records, done: super::queue::report_to(sender) };
        device.retain(retain) && receiver.recv_timeout(self.limit) == Ok(Stored::Yes)
    }

    /// The records of a zone that its owner does not want to lose to reclaim.
    fn records_that_stay(
        &self,
        device: &Device,
        number: u32,
        entries: &[FooterEntry],
    ) -> Vec<(Place, RecordFacts)> {
        let stays = |&(place, facts): &(Place, &RecordFacts)| {
            self.must_stay(facts) && self.index.get_at(&facts.hash, place).is_some()
        };
        let records = records_in(device.zone_id(number), entries).filter(stays);
        records.map(|(place, facts)| (place, facts.clone())).collect()
    }

    /// The removals of a zone that may still hide something when the zone is gone.
    pub(super) fn needed_tombstones(
        &self,
        device: &Device,
        number: u32,
        entries: &[FooterEntry],
    ) -> Vec<Tombstone> {
        let others = self.devices.all();
        let in_need = others.iter().filter(|other| other.needs_removals() && other.number != device.number);
        let elsewhere = in_need.filter_map(|other| other.oldest_sequence(u32::MAX)).min();
        let Some(oldest) = device.oldest_sequence(number).into_iter().chain(elsewhere).min() else {
            return Vec::new();
        };
        let tombstones = entries.iter().filter_map(|entry| match entry {
            FooterEntry::Tombstones(tombstones) => Some(tombstones),
            FooterEntry::Object { .. } => None,
        });
        tombstones.flatten().filter(|tombstone| tombstone.order > oldest).copied().collect()
    }

    /// Frees a zone that nobody reads any more: what of `left` still stands there goes with it, all else stands durably
    /// elsewhere.
    pub(super) fn free_zone(
        &self,
        device: &Device,
        number: u32,
        left: &[(RecordHash, Place)],
        reason: DroppedFor,
    ) -> io::Result<()> {
        // What was stored again may stand elsewhere as it was before: a kill after this zone is void would bring that back.
        for (hash, place) in left {
            self.drop_record(hash, reason, |found| found.place == *place && found.is_again);
        }
        device.void_zone(number, self.limit)?;
        // Nothing stands there any more of which a removal would be left.
        self.homes.forget_in(|home| home == device.zone_id(number));
        for (hash, place) in left {
            self.drop_record(hash, reason, |found| found.place == *place);
        }
        device.free_zone(number);
        Ok(())
    }

    /// A zone stays of which some records stand elsewhere by now: they stand twice, and take along what stays when they go.
    fn note_that_it_stays(&self, stood: &[(RecordHash, Place)]) {
        for (hash, place) in stood {
            if let Some(found) = self.index.get(hash).filter(|found| found.place != *place) {
                self.index.mark_again(hash, found.version);
            }
        }
    }
}

fn first_block(device: &Device) -> Place {
    Place { zone: device.zone_id(0), block: 0 }
}

impl Device {
    /// A zone of which nobody was to read any more is not emptied for now.
    pub(super) fn keep_zone(&self, number: u32) {
        self.change_zone(number, |zone| {
            if zone.state == ZoneState::Reclaiming {
                zone.state = ZoneState::Closed;
            }
        });
    }
}
