//! Moving a disk: what it holds [goes to the others](super::moving), zone by zone, those that were opened first first.
//!
//! Invariants
//! - A zone of a leaving disk is void on it before its records could be missed by a removal: other disks keep their
//!   removals as long as a leaving one has a zone that was opened before them.
//! - What was moved to other disks is durable there before its zone is void: while it is not, the zone stays. Nor is the disk
//!   called empty before that, or [taken out](super::change), unless by force.
//! - A record that goes with its zone leaves the index after the zone is void: until then a removal of its key finds it.
//! - A disk that takes no writes is emptied [as a whole](super::unwritable).
//! - When nothing is left on a disk, its other zones become void, too: those of which all was removed or moved before. From when
//!   no start finds a record there it takes no removals, and no other disk keeps its own for it, however long it stays.
//!
//! Limits: a zone is emptied `ATTEMPTS` times at most, and waits for `READERS_LIMIT` for those who still read it.
//! Threads: any that may wait; one disk at a time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use hashbrown::HashSet;
use tidefs_engine::types::ByteCount;

use super::Shared;
use super::change::{ChangeError, busy};
use super::contents::records_in;
use super::device::Device;
use super::index::Place;
use super::moving::{Moving, Record, UNTAKEN};
use super::queue::{Job, report_to};
use super::reasons::DroppedFor;

/// How long a writer may take to answer: for one record, for closing its zone, or for a flush.
pub(super) const MOVE_LIMIT: Duration = Duration::from_secs(30);
/// How long an emptied zone waits for those who still read it.
const READERS_LIMIT: Duration = Duration::from_secs(60);
/// How often a zone is emptied anew, because other disks lost what they had taken.
pub(super) const ATTEMPTS: u32 = 8;
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
    /// Objects that are damaged, or too large for the other disks: they are misses from now on.
    pub lost: u64,
    /// Objects that are still on it.
    pub left: u64,
}

impl Drained {
    /// What was to go with a zone, which stays, counts as it did before.
    pub(super) fn count_as(&mut self, before: Self) {
        (self.in_memory, self.lost) = (before.in_memory, before.lost);
    }
}

/// Keeps to a rate and to reports.
#[derive(Debug)]
pub(super) struct Pace {
    rate: Option<ByteCount>,
    started: Instant,
    reported: Instant,
}

impl Pace {
    /// Waits until so many bytes may have been moved. Returns false when nobody wants more.
    pub(super) fn keep(&mut self, drained: Drained, progress: &mut dyn FnMut(Drained) -> bool) -> bool {
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
    /// See [`super::SsdTier::drain`].
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
        let was_leaving = device.is_leaving.swap(true, Ordering::Relaxed);
        if !self.has_taker() {
            // What was moved from it before may stand on it still: its removals go to it too.
            device.is_leaving.store(was_leaving, Ordering::Relaxed);
            return Err(ChangeError::NoOther);
        }
        // A zone of it may be being taken back; no other one will be.
        drop(self.reclaiming.lock());
        self.note_change(|changes| changes.leave(place, bytes_per_second));
        let mut pace = Pace { rate: bytes_per_second, started: Instant::now(), reported: Instant::now() };
        let mut drained = Drained::default();
        loop {
            drained.left = self.index.count_device(device.number);
            if drained.left == 0 {
                self.flush_moved(&device)?;
                self.end_emptying(&device, &mut drained, &mut pace, progress);
                // What was on its way to it may have come meanwhile, or be back from another disk.
                drained.left = self.index.count_device(device.number);
            }
            if drained.left == 0 || !progress(drained) {
                return Ok(drained);
            }
            self.close_open_zone(&device)?;
            if device.is_failing() {
                self.empty_as_a_whole(&device, &mut drained, &mut pace, progress)?;
                return Ok(Drained { left: self.index.count_device(device.number), ..drained });
            }
            let zone = device.closed_by_age().first().map(|&(_, zone)| zone);
            let zone = zone.ok_or_else(|| stuck("its zones cannot be read"))?;
            if !self.empty_to_others(&device, zone, &mut drained, &mut pace, progress)? {
                return Ok(Drained { left: self.index.count_device(device.number), ..drained });
            }
        }
    }

    fn close_open_zone(&self, device: &Device) -> Result<(), ChangeError> {
        let (sender, receiver) = sync_channel(1);
        let is_left = device.queue.push(Job::Close(report_to(sender)));
        if is_left && receiver.recv_timeout(MOVE_LIMIT).is_ok() {
            return Ok(());
        }
        Err(stuck("its writer does not answer"))
    }

    /// Nothing is left on a disk, and what was moved from it is durable elsewhere. That it goes on taking removals, as some of its
    /// zones are not void, is said in the log: it can be taken out all the same.
    fn end_emptying(
        &self,
        device: &Arc<Device>,
        drained: &mut Drained,
        pace: &mut Pace,
        progress: &mut dyn FnMut(Drained) -> bool,
    ) {
        if !device.is_failing()
            && let Err(error) = self.make_void(device, drained, pace, progress)
        {
            tracing::warn!(device = device.name, %error, "a disk without objects goes on taking removals");
        }
        self.end_failing(device);
    }

    /// Makes all zones of a disk void on which nothing is left. Ends early when nobody wants more.
    fn make_void(
        &self,
        device: &Arc<Device>,
        drained: &mut Drained,
        pace: &mut Pace,
        progress: &mut dyn FnMut(Drained) -> bool,
    ) -> Result<(), ChangeError> {
        if device.is_emptied() {
            return Ok(());
        }
        // Who chose it for a record before it began to leave has left that for it under this lock. The writer has ended with all
        // such, and with zones that are given up, when it comes to the end of the zone.
        drop(self.pending.lock());
        self.close_open_zone(device)?;
        if device.queue.bytes() > 0 || device.may_find_given_up() {
            return Err(stuck("records are on their way to it, or zones of it are given up"));
        }
        // There are removals alone in what is opened from here on.
        let began = self.next_order();
        if !self.empty_closed(device, drained, pace, progress)? {
            return Ok(());
        }
        self.close_open_zone(device)?;
        let is_left = device.oldest_sequence(u32::MAX).is_some_and(|oldest| oldest < began);
        if is_left || device.may_find_given_up() {
            return Err(stuck("zones of it are not void"));
        }
        {
            // A removal that comes before this is void with the zone that is closed next, and one that comes later passes it by.
            let _pending = self.pending.lock();
            device.is_emptied.store(true, Ordering::Relaxed);
        }
        self.empty_closed(device, drained, pace, progress)?;
        Ok(())
    }

    /// Empties the zones of a disk that were opened by now. Returns false when nobody wants more.
    fn empty_closed(
        &self,
        device: &Arc<Device>,
        drained: &mut Drained,
        pace: &mut Pace,
        progress: &mut dyn FnMut(Drained) -> bool,
    ) -> Result<bool, ChangeError> {
        self.close_open_zone(device)?;
        for (_, zone) in device.closed_by_age() {
            if !progress(*drained) || !self.empty_to_others(device, zone, drained, pace, progress)? {
                return Ok(false);
            }
        }
        Ok(true)
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
        let Some(entries) = self.entries_with_patience(device, zone, drained, progress)? else {
            return Ok(false);
        };
        if !self.retain_tombstones(device, zone, &entries) {
            return if self.turns_out_to_fail(device) {
                Ok(true)
            } else {
                Err(stuck("its removals cannot be written"))
            };
        }
        let _vacated = device.vacating.begin(zone);
        let records: Vec<Record<'_>> = records_in(device.zone_id(zone), &entries).collect();
        let (mut rest, before) = (records.clone(), *drained);
        let mut moving = Moving::new(self, device, drained);
        for _ in 0..ATTEMPTS {
            if !moving.move_all(rest, pace, progress)? {
                moving.drained.count_as(before);
                return Ok(false);
            }
            let left = std::mem::take(&mut moving.left);
            self.flush_moved(device)?;
            if !device.end_reading(zone, READERS_LIMIT) {
                self.quarantine(device, zone);
                return Ok(true);
            }
            // An error of another disk gives back what was moved there.
            let is_left: HashSet<Place> = left.iter().map(|(_, place)| *place).collect();
            let stands = |&(place, facts): &Record<'_>| self.index.get_at(&facts.hash, place).is_some();
            rest = records.iter().copied().filter(stands).collect();
            let given_back = rest.iter().filter(|(place, _)| !is_left.contains(place)).count() as u64;
            if given_back == 0 {
                if let Err(error) = self.free_zone(device, zone, &left, DroppedFor::Disk) {
                    device.count_write_error(&error);
                    if self.turns_out_to_fail(device) {
                        device.keep_zone(zone);
                        moving.drained.count_as(before);
                    } else {
                        self.quarantine(device, zone);
                    }
                }
                return Ok(true);
            }
            device.keep_zone(zone);
            moving.drained.moved = moving.drained.moved.saturating_sub(given_back);
            moving.drained.count_as(before);
        }
        Err(stuck(UNTAKEN))
    }
}

pub(super) fn stuck(reason: &str) -> ChangeError {
    ChangeError::Stuck(reason.to_owned())
}
