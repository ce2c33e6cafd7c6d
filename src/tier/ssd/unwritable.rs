//! Moving a disk that takes no writes: no zone of it can be made void, so it is emptied as a whole.
//!
//! All that can be read moves, and when that is durable on other disks the pool goes ahead of this one
//! ([`super::outdated`]): the next start gives up what it holds.
//!
//! Invariants
//! - Nothing leaves the index before that: a start that comes earlier finds what did not move, and what was removed on it.
//! - What is removed on it meanwhile, and cannot be noted there, is noted on another disk, which keeps it as long as this one has
//!   an older zone. When that one fails, or is taken out, the pool goes ahead of this one at once.
//! - Its removals are kept as long as another disk that is being emptied may need them.
//!
//! Threads: that which empties the disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Shared;
use super::change::ChangeError;
use super::contents::records_in;
use super::device::Device;
use super::drain::{ATTEMPTS, Drained, Pace, stuck};
use super::format::Tombstone;
use super::moving::{Moving, UNTAKEN};

impl Shared {
    /// After a failed write: whether the disk takes no more, which it takes a few to know.
    pub(super) fn turns_out_to_fail(&self, device: &Device) -> bool {
        while !device.is_failing() {
            if device.can_be_written(self.limit) {
                return false;
            }
        }
        true
    }

    /// Notes removals of a disk that takes no writes, and is being emptied, on another one. Returns whether there is one.
    pub(super) fn bury_elsewhere(&self, device: &Device, removals: &[Tombstone]) -> bool {
        let is_trusted = !device.is_outdated.load(Ordering::Relaxed);
        let other = if device.is_leaving() && is_trusted { self.best_taker(|_| ()) } else { None };
        let Some(other) = other else { return false };
        self.intend(other.number, removals);
        other.queue.push_tombstones(removals.iter().copied())
    }

    /// Has the next start give up what a disk holds, and with it what those hold whose removals it may keep. Returns whether all
    /// of that is noted.
    pub(super) fn give_up_with(&self, device: &Device) -> bool {
        let is_noted = self.outdate(device);
        self.outdate_leaning_on(device) && is_noted
    }

    /// A disk may keep removals of others that take no writes, and is not trusted any more: nor are they. Returns whether that is
    /// noted.
    pub(super) fn outdate_leaning_on(&self, device: &Device) -> bool {
        let leans_on_it =
            |other: &&Arc<Device>| other.number != device.number && other.is_leaving() && other.is_failing();
        let all = self.devices.all();
        // Each of them, also after one that could not be noted.
        let noted: Vec<bool> = all.iter().filter(leans_on_it).map(|other| self.outdate(other)).collect();
        noted.into_iter().all(|is_noted| is_noted)
    }

    /// Empties a disk that takes no writes. Ends early when nobody wants more.
    pub(super) fn empty_as_a_whole(
        &self,
        device: &Arc<Device>,
        drained: &mut Drained,
        pace: &mut Pace,
        progress: &mut dyn FnMut(Drained) -> bool,
    ) -> Result<(), ChangeError> {
        let _vacated = device.vacating.begin_all();
        let before = *drained;
        for _ in 0..ATTEMPTS {
            // What is in memory now may have to move the next time.
            drained.count_as(before);
            let (moved, mut left) = (drained.moved, 0);
            for (_, zone) in device.closed_by_age() {
                let Some(entries) = self.entries_with_patience(device, zone, drained, progress)? else {
                    drained.count_as(before);
                    return Ok(());
                };
                let records = records_in(device.zone_id(zone), &entries).collect();
                let mut moving = Moving::new(self, device, drained);
                if !moving.move_all(records, pace, progress)? {
                    moving.drained.count_as(before);
                    return Ok(());
                }
                left += moving.left.len() as u64;
            }
            self.flush_moved(device)?;
            if drained.moved == moved {
                return self.give_up_whole(device, left);
            }
        }
        Err(stuck(UNTAKEN))
    }

    /// Has the next start give up a disk of which all that could be moved is durable elsewhere, and drops the `left` records.
    fn give_up_whole(&self, device: &Arc<Device>, left: u64) -> Result<(), ChangeError> {
        let others = self.devices.all();
        let is_in_need = |other: &Arc<Device>| other.number != device.number && other.needs_removals();
        if others.iter().any(is_in_need) {
            return Err(stuck(
                "its removals count for another disk that is being emptied: remove that one first",
            ));
        }
        // On their way since an earlier drain, or given back by another disk.
        let has_more = || self.index.count_device(device.number) > left;
        if has_more() {
            return Err(stuck(UNTAKEN));
        }
        if !self.outdate(device) {
            return Err(stuck("it takes no writes, and nothing else tells the next start to give it up"));
        }
        if has_more() {
            return Err(stuck(UNTAKEN));
        }
        self.drop_device(device.number);
        Ok(())
    }

    /// Nothing is left on a disk. When it takes no writes, zones that were given up may stand there, which no start is to find.
    pub(super) fn end_failing(&self, device: &Arc<Device>) {
        if device.is_failing()
            && let Err(error) = self.give_up_whole(device, 0)
        {
            tracing::warn!(device = device.name, %error, "a disk that is empty and takes no writes is still trusted");
        }
    }
}
