//! Emptying a disk: what it holds goes to the others, zone by zone, those that were opened first first.
//!
//! Invariants
//! - A zone of a leaving disk is void on it before its records could be missed by a removal: other disks keep their
//!   removals as long as a leaving one has a zone that was opened before them.
//! - What was moved to other disks is durable there before its zone is void: while it is not, the zone stays.
//! - A record that goes with its zone leaves the index after the zone is void: until then a removal of its key finds it.
//!
//! Threads: any that may wait; one disk at a time.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use tidefs_engine::types::ByteCount;

use super::change::{ChangeError, busy};
use super::device::Device;
use super::format::{BLOCK_BYTES, FooterEntry, RecordFacts};
use super::index::Place;
use super::open_zone::fits_a_zone;
use super::queue::{Job, Stored, report_to};
use super::{Shared, SsdTier};

/// Bytes of records under way to other disks at once.
const WINDOW: u64 = 32 << 20;
/// How long the records of one zone may take to be written elsewhere, beyond what the rate asks for.
const MOVE_LIMIT: Duration = Duration::from_secs(30);
/// How long an emptied zone waits for those who still read it.
const READERS_LIMIT: Duration = Duration::from_secs(60);
/// Longest pause between two reports.
const LOOK: Duration = Duration::from_millis(200);

/// How far a disk is emptied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Objects that were written to other disks.
    pub moved: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Objects that are in memory too, and were given up on the disk.
    pub in_memory: u64,
    /// Objects that no other disk took, or that could not be read: they are misses from now on.
    pub lost: u64,
    /// Objects that are still on it.
    pub left: u64,
}

/// Keeps to a rate and to reports.
#[derive(Debug)]
struct Pace {
    rate: Option<ByteCount>,
    started: Instant,
    reported: Instant,
}

impl Pace {
    /// Waits until so many bytes may have been moved. Returns false when nobody wants more.
    fn keep(&mut self, drained: Drained, progress: &mut dyn FnMut(Drained) -> bool) -> bool {
        let rate = self.rate.map(ByteCount::get).filter(|rate| *rate > 0);
        let due = rate.map_or(0.0, |rate| drained.moved_bytes as f64 / rate as f64);
        loop {
            if self.reported.elapsed() >= LOOK {
                self.reported = Instant::now();
                if !progress(drained) {
                    return false;
                }
            }
            let early = due - self.started.elapsed().as_secs_f64();
            if early <= 0.0 {
                return true;
            }
            std::thread::sleep(Duration::from_secs_f64(early.min(LOOK.as_secs_f64())));
        }
    }
}

impl Shared {
    /// See [`SsdTier::drain`].
    pub(super) fn drain(
        &self,
        place: &Path,
        bytes_per_second: Option<ByteCount>,
        progress: &mut dyn FnMut(Drained) -> bool,
    ) -> Result<Drained, ChangeError> {
        let _turn = self.change.try_lock().ok_or_else(busy)?;
        let device = self.devices.named(&place.display().to_string()).ok_or(ChangeError::Unknown)?;
        if !self.is_named.load(Ordering::Relaxed) {
            return Err(ChangeError::Starting);
        }
        device.is_leaving.store(true, Ordering::Relaxed);
        if self.least_busy().is_none() {
            device.is_leaving.store(false, Ordering::Relaxed);
            return Err(ChangeError::NoOther);
        }
        self.note_change(|changes| changes.leave(place, bytes_per_second));
        let mut pace = Pace { rate: bytes_per_second, started: Instant::now(), reported: Instant::now() };
        let mut drained = Drained::default();
        loop {
            drained.left = self.index.count_device(device.number);
            if drained.left == 0 || !progress(drained) {
                return Ok(drained);
            }
            self.close_open_zone(&device)?;
            let zone = device.closed_by_age().first().map(|&(_, zone)| zone);
            let zone = zone.ok_or_else(|| ChangeError::Stuck("its zones cannot be read".to_owned()))?;
            if !self.empty_to_others(&device, zone, &mut drained, &mut pace, progress)? {
                return Ok(drained);
            }
        }
    }

    fn close_open_zone(&self, device: &Device) -> Result<(), ChangeError> {
        let (sender, receiver) = sync_channel(1);
        let is_left = device.queue.push(Job::Close(report_to(sender)));
        if is_left && receiver.recv_timeout(MOVE_LIMIT).is_ok() {
            return Ok(());
        }
        Err(ChangeError::Stuck("its writer does not answer".to_owned()))
    }

    /// Writes what a zone holds to other disks and frees it. Returns false when nobody wants more.
    fn empty_to_others(
        &self,
        device: &Arc<Device>,
        zone: u32,
        drained: &mut Drained,
        pace: &mut Pace,
        progress: &mut dyn FnMut(Drained) -> bool,
    ) -> Result<bool, ChangeError> {
        let stuck = |error: io::Error| ChangeError::Stuck(error.to_string());
        let entries = self.entries_in(device, zone).map_err(stuck)?;
        if !self.retain_tombstones(device, zone, &entries) {
            return Err(ChangeError::Stuck("its removals cannot be written".to_owned()));
        }
        let mut under_way: Vec<(u64, Receiver<Stored>)> = Vec::new();
        // Records that go with the zone, and what was counted before them.
        let (mut left, before) = (Vec::new(), *drained);
        for entry in &entries {
            let FooterEntry::Object { block, facts } = entry else { continue };
            let place = Place { zone: device.zone_id(zone), block: *block };
            let Some(located) = self.index.get(&facts.hash).filter(|found| found.place == place) else {
                continue;
            };
            let owner = self.owner.get();
            if owner.is_some_and(|owner| owner.has_elsewhere(located.owner, located.version)) {
                drained.in_memory += 1;
                left.push((facts.hash, place));
            } else if let Some(receiver) = self.move_elsewhere(device, place, facts) {
                under_way.push((facts.blocks() * BLOCK_BYTES, receiver));
                drained.moved_bytes += facts.blocks() * BLOCK_BYTES;
            } else {
                drained.lost += 1;
                left.push((facts.hash, place));
            }
            drained.left = drained.left.saturating_sub(1);
            while under_way.iter().map(|(bytes, _)| bytes).sum::<u64>() > WINDOW {
                drained.count(&under_way.remove(0).1)?;
            }
            if !pace.keep(*drained, progress) {
                // The zone stays, with what was to go with it.
                (drained.in_memory, drained.lost) = (before.in_memory, before.lost);
                under_way.iter().try_for_each(|(_, receiver)| drained.count(receiver))?;
                return Ok(false);
            }
        }
        under_way.iter().try_for_each(|(_, receiver)| drained.count(receiver))?;
        self.flush_moved()?;
        if !device.end_reading(zone, READERS_LIMIT) {
            self.quarantine(device, zone);
            return Ok(true);
        }
        if let Err(error) = self.free_zone(device, zone, &left) {
            device.count_write_error(&error);
            self.quarantine(device, zone);
        }
        Ok(true)
    }

    /// Leaves a record to be written to another disk. `None` when that cannot be.
    fn move_elsewhere(&self, device: &Device, place: Place, facts: &RecordFacts) -> Option<Receiver<Stored>> {
        let other = self.least_busy()?;
        if !fits_a_zone(other.zone_blocks, facts.blocks(), facts.footer_bytes()) {
            return None;
        }
        self.moved_to.lock().insert(other.number);
        self.rewrite(device, &other, place, facts)
    }

    /// Makes durable what was moved to other disks, also by a drain that ended early.
    fn flush_moved(&self) -> Result<(), ChangeError> {
        let moved_to = self.moved_to.lock().clone();
        let disks: Vec<_> =
            moved_to.iter().filter_map(|&number| self.devices.get(usize::from(number))).collect();
        if !SsdTier::flush_disks(&disks, MOVE_LIMIT) {
            return Err(ChangeError::Stuck("what was moved is not durable on the other disks".to_owned()));
        }
        self.moved_to.lock().clear();
        Ok(())
    }
}

impl Drained {
    /// Waits for the end of a record's way. Until it is known nothing may be void where the record came from.
    fn count(&mut self, receiver: &Receiver<Stored>) -> Result<(), ChangeError> {
        match receiver.recv_timeout(MOVE_LIMIT) {
            Ok(Stored::Yes) => self.moved += 1,
            // Replaced or removed meanwhile.
            Ok(Stored::Superseded) => {}
            Ok(Stored::Failed) | Err(RecvTimeoutError::Disconnected) => self.lost += 1,
            Err(RecvTimeoutError::Timeout) => {
                return Err(ChangeError::Stuck(
                    "the other disks do not take what is moved in time".to_owned(),
                ));
            }
        }
        Ok(())
    }
}
