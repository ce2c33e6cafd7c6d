//! One disk of a pool and its zones, and beside them [what is wrong with it](trouble).
//!
//! Invariants
//! - A zone in `Free` has a header on disk that is void, durably: no start finds records in it.
//! - A zone is not taken back while somebody reads from it ([`Lease`]).

mod trouble;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};
use tidefs_engine::types::ByteCount;

use self::trouble::Trouble;
use super::admission::Admission;
use super::disk::{Completion, Disk};
use super::format::{BLOCK_BYTES, Order, Uuid};
use super::identity::Unusable;
use super::index::ZoneId;
use super::overdue::Overdue;
use super::queue::{Queue, Retain};
use super::vacating::Vacating;
use super::work::Work;
use super::zone::{Zone, ZoneState, zone_offset};

/// A disk in use.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) number: u8,
    pub(super) uuid: Uuid,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) zone_blocks: u32,
    /// Zones for which the capacity has room; those behind are [`super::surplus`].
    zone_count: u32,
    /// Guards the stations of all zones.
    zones: Mutex<Vec<Zone>>,
    /// Guards the ends of the footers that it was late with, by their zones: one that is written yet would change what a later life
    /// of its zone has there.
    late_footers: Mutex<HashMap<u32, Arc<Completion>>>,
    /// Signalled when a zone becomes free, or its last reader leaves.
    changed: Condvar,
    pub(super) queue: Queue,
    pub(super) work: Work,
    pub(super) overdue: Overdue,
    /// Guards its part of the budgets.
    pub(super) admission: Mutex<Admission>,
    /// Whether it is being emptied, and takes no records.
    pub(super) is_leaving: AtomicBool,
    /// Whether that has ended, and no start finds a record on it. Set under the lock of what is pending: no removal is left for it
    /// from then on.
    pub(super) is_emptied: AtomicBool,
    /// What of it is being emptied.
    pub(super) vacating: Vacating,
    /// Whether the next start gives up what it holds.
    pub(super) is_outdated: AtomicBool,
    /// Whether it would, as its superblock was not written when the others' were.
    pub(super) is_behind: AtomicBool,
    is_failing: AtomicBool,
    is_full: AtomicBool,
    is_short_of_zones: AtomicBool,
    /// Real bytes that its content occupied when that last changed.
    allocated_bytes: AtomicU64,
    /// Whether a start may find a zone that was given up.
    may_find_given_up: AtomicBool,
    /// Guards why it gets no more writes, and when an answer last came too late.
    trouble: Mutex<Trouble>,
}

/// Keeps a zone from being taken back.
#[derive(Debug)]
pub(super) struct Lease<'a> {
    device: &'a Device,
    zone: u32,
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut zones = self.device.zones.lock();
        zones[self.zone as usize].readers -= 1;
        if zones[self.zone as usize].readers == 0 {
            self.device.changed.notify_all();
        }
    }
}

impl Device {
    /// A disk with `zones`, whose stations a start found out, `count` of which fit its capacity.
    pub(super) fn new(
        name: String,
        number: u8,
        uuid: Uuid,
        disk: Arc<dyn Disk>,
        zone_blocks: u32,
        (mut zones, count): (Vec<Zone>, u32),
    ) -> Self {
        zones.iter_mut().skip(count as usize).for_each(Zone::close_if_empty);
        let may_find_given_up = zones.iter().any(Zone::is_given_up).into();
        let allocated = disk.allocated().unwrap_or_default();
        Self {
            name,
            number,
            uuid,
            disk,
            zone_blocks,
            zone_count: count,
            zones: Mutex::new(zones),
            late_footers: Mutex::default(),
            changed: Condvar::new(),
            queue: Queue::default(),
            work: Work::default(),
            overdue: Overdue::default(),
            admission: Mutex::new(Admission::closed()),
            is_leaving: AtomicBool::new(false),
            is_emptied: AtomicBool::new(false),
            vacating: Vacating::default(),
            is_outdated: AtomicBool::new(false),
            is_behind: AtomicBool::new(false),
            is_failing: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            is_short_of_zones: AtomicBool::new(false),
            allocated_bytes: AtomicU64::new(allocated.get()),
            may_find_given_up,
            trouble: Mutex::default(),
        }
    }

    /// Where a block of a zone stands on the disk.
    pub(super) fn offset(&self, zone: u32, block: u32) -> u64 {
        zone_offset(zone, self.zone_blocks) + u64::from(block) * BLOCK_BYTES
    }

    /// The zone's name in the index.
    pub(super) fn zone_id(&self, zone: u32) -> ZoneId {
        ZoneId::new(self.number, zone)
    }

    /// What is known of a zone.
    pub(super) fn zone(&self, zone: u32) -> Option<Zone> {
        self.zones.lock().get(zone as usize).copied()
    }

    /// All zones.
    pub(super) fn zones(&self) -> Vec<Zone> {
        self.zones.lock().clone()
    }

    /// The zones for which the capacity has room.
    pub(super) fn zones_in_capacity(&self) -> Vec<Zone> {
        let mut zones = self.zones();
        zones.truncate(self.zone_count as usize);
        zones
    }

    /// Whether a zone lies beyond the capacity.
    pub(super) fn is_surplus(&self, zone: u32) -> bool {
        zone >= self.zone_count
    }

    /// Zones beyond the capacity whose headers are not known to be void.
    pub(super) fn surplus(&self) -> Vec<u32> {
        let zones = self.zones.lock();
        let surplus = zones.iter().zip(0u32..).skip(self.zone_count as usize);
        surplus.filter(|(zone, _)| zone.sequence != Order::MAX).map(|(_, index)| index).collect()
    }

    /// Gives back the blocks beyond the capacity, which is of real blocks, once nothing is left there.
    pub(super) fn cut_surplus(&self) {
        if !self.surplus().is_empty() {
            return;
        }
        let end = zone_offset(self.zone_count, self.zone_blocks);
        if let Err(error) = self.disk.cut(ByteCount(end)) {
            tracing::warn!(device = self.name, %error, "blocks beyond the capacity are not given back");
        }
        self.note_allocated();
    }

    /// Looks how many real bytes its content occupies. Waits for its filesystem.
    fn note_allocated(&self) {
        if let Ok(bytes) = self.disk.allocated() {
            self.allocated_bytes.store(bytes.get(), Ordering::Relaxed);
        }
    }

    /// Real bytes that its content occupied when that last changed. Asks the disk nothing.
    pub(super) fn allocated(&self) -> ByteCount {
        ByteCount(self.allocated_bytes.load(Ordering::Relaxed))
    }

    /// Blocks of the zones that hold records, or may get some.
    pub(super) fn usable_blocks(&self) -> u64 {
        let is_usable = self.usable();
        let count = self.zones_in_capacity().iter().filter(|zone| is_usable(zone)).count();
        count as u64 * u64::from(self.zone_blocks)
    }

    /// Whether there is such a zone.
    pub(super) fn has_usable_zone(&self) -> bool {
        let is_usable = self.usable();
        self.zones.lock().iter().take(self.zone_count as usize).any(is_usable)
    }

    fn usable(&self) -> impl Fn(&Zone) -> bool {
        let (takes_writes, is_full) = (!self.is_failing() && !self.is_leaving(), self.is_full());
        move |zone: &Zone| match zone.state {
            ZoneState::Absent => takes_writes && !is_full,
            ZoneState::Free => takes_writes,
            ZoneState::Open | ZoneState::Closed | ZoneState::Reclaiming => true,
            ZoneState::Headless | ZoneState::Quarantined => false,
        }
    }

    /// Changes what is known of a zone, and wakes who waits for a change.
    pub(super) fn change_zone(&self, zone: u32, change: impl FnOnce(&mut Zone)) {
        if let Some(zone) = self.zones.lock().get_mut(zone as usize) {
            change(zone);
        }
        self.changed.notify_all();
    }

    /// Takes a free zone, allocating it if need be, and makes it the open one. `None` when no more than `kept` are free at
    /// the moment.
    ///
    /// # Errors
    /// What the disk says to an allocation, but for want of room.
    pub(super) fn take_free_zone(&self, sequence: Order, kept: usize) -> io::Result<Option<u32>> {
        let mut zones = self.zones.lock();
        if self.spare_of(&zones) <= kept {
            return Ok(None);
        }
        let open = Zone { state: ZoneState::Open, sequence, ..Zone::ABSENT };
        let first =
            |state| zones.iter().zip(0u32..).find(|(zone, _)| zone.state == state).map(|(_, index)| index);
        if let Some(number) = first(ZoneState::Free) {
            zones[number as usize] = open;
            return Ok(Some(number));
        }
        if self.is_full() {
            return Ok(None);
        }
        let Some(number) = first(ZoneState::Absent) else { return Ok(None) };
        // It is nobody else's while its blocks are allocated, which a filesystem may take its time for.
        zones[number as usize] = open;
        drop(zones);
        let Err(error) = self.disk.allocate(ByteCount(zone_offset(number + 1, self.zone_blocks))) else {
            self.note_allocated();
            return Ok(Some(number));
        };
        self.change_zone(number, |zone| *zone = Zone::ABSENT);
        if Unusable::from(&error) != Unusable::Full {
            return Err(error);
        }
        self.is_full.store(true, Ordering::Relaxed);
        tracing::warn!(device = self.name, %error, "the SSD tier stays smaller than configured");
        Ok(None)
    }

    /// Waits until more than `kept` zones are free, or `limit` passes. Reclaim neither waits for the writer meanwhile nor
    /// asks it for anything but removals.
    pub(super) fn wait_for_free_zone(&self, kept: usize, limit: Duration) {
        self.is_short_of_zones.store(true, Ordering::Relaxed);
        let has_none = |zones: &mut Vec<Zone>| self.spare_of(zones) <= kept && !self.queue.has_retained();
        self.changed.wait_while_for(&mut self.zones.lock(), has_none, limit);
        self.is_short_of_zones.store(false, Ordering::Relaxed);
    }

    /// Whether its writer waits for a zone.
    pub(super) fn is_short_of_zones(&self) -> bool {
        self.is_short_of_zones.load(Ordering::Relaxed)
    }

    /// Leaves removals of a zone that is being taken back to the writer, also to one that waits for a zone.
    pub(super) fn retain(&self, retain: Retain) -> bool {
        let is_left = self.queue.push_retain(retain);
        // A writer that is about to wait has looked at its queue under this lock.
        drop(self.zones.lock());
        self.changed.notify_all();
        is_left
    }

    /// Zones that can be opened before anything must be reclaimed.
    pub(super) fn spare_zones(&self) -> usize {
        self.spare_of(&self.zones.lock())
    }

    fn spare_of(&self, zones: &[Zone]) -> usize {
        let is_full = self.is_full();
        let is_spare =
            |zone: &&Zone| zone.state == ZoneState::Free || (zone.state == ZoneState::Absent && !is_full);
        zones.iter().filter(is_spare).count()
    }

    /// The closed zones with their sequences, in the order in which they were opened.
    pub(super) fn closed_by_age(&self) -> Vec<(Order, u32)> {
        let zones = self.zones.lock();
        let closed = zones.iter().zip(0u32..).filter(|(zone, _)| zone.state == ZoneState::Closed);
        let mut closed: Vec<(Order, u32)> = closed.map(|(zone, index)| (zone.sequence, index)).collect();
        closed.sort_unstable();
        closed
    }

    /// The smallest sequence of the zones in use, without `except`.
    pub(super) fn oldest_sequence(&self, except: u32) -> Option<Order> {
        let zones = self.zones.lock();
        let others = zones.iter().zip(0u32..).filter(|(zone, index)| zone.is_in_use() && *index != except);
        others.map(|(zone, _)| zone.sequence).min()
    }

    /// Keeps a zone from being taken back while it is read. `None` when it has nothing to read any more.
    pub(super) fn lease(&self, zone: u32) -> Option<Lease<'_>> {
        let mut zones = self.zones.lock();
        let found = zones.get_mut(zone as usize)?;
        found.can_be_read().then(|| {
            found.readers += 1;
            Lease { device: self, zone }
        })
    }

    /// Marks a zone that gave an error: nobody reads it any more. Returns false when that was done before.
    pub(super) fn give_up(&self, zone: u32) -> bool {
        let mut zones = self.zones.lock();
        let Some(zone) = zones.get_mut(zone as usize).filter(|zone| zone.state != ZoneState::Quarantined)
        else {
            return false;
        };
        zone.state = ZoneState::Quarantined;
        self.may_find_given_up.store(true, Ordering::Relaxed);
        true
    }

    /// The header of a zone that was given up is void.
    pub(super) fn end_giving_up(&self, zone: u32) {
        let mut zones = self.zones.lock();
        zones[zone as usize].sequence = Order::MAX;
        let is_left = zones.iter().any(Zone::is_given_up);
        self.may_find_given_up.store(is_left, Ordering::Relaxed);
    }

    /// Whether a start may find records that the index does not know, in a zone that was given up.
    pub(super) fn may_find_given_up(&self) -> bool {
        self.may_find_given_up.load(Ordering::Relaxed)
    }

    /// Lets nobody read a closed zone any more and waits for those who do. Returns whether all are gone, and it was not
    /// given up before.
    pub(super) fn end_reading(&self, zone: u32, limit: Duration) -> bool {
        let mut zones = self.zones.lock();
        if zones[zone as usize].state == ZoneState::Quarantined {
            return false;
        }
        zones[zone as usize].state = ZoneState::Reclaiming;
        let has_readers = |zones: &mut Vec<Zone>| zones[zone as usize].readers > 0;
        !self.changed.wait_while_for(&mut zones, has_readers, limit).timed_out()
    }

    /// The footer of a zone was handed to the disk, and not written in time.
    pub(super) fn note_late_footer(&self, zone: u32, end: Arc<Completion>) {
        self.late_footers.lock().insert(zone, end);
    }

    /// A zone was emptied, and its header is void.
    pub(super) fn free_zone(&self, zone: u32) {
        let late = self.late_footers.lock().remove(&zone);
        let may_be_written = late.is_some_and(|end| !end.has_ended_well());
        self.change_zone(zone, |zone| zone.free(may_be_written));
    }

    /// Whether it is being emptied.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    /// Whether it was emptied: nothing is left there that a removal could hide.
    pub(super) fn is_emptied(&self) -> bool {
        self.is_emptied.load(Ordering::Relaxed)
    }

    /// Whether a start may serve what stands there, so that a removal is to hide it.
    pub(super) fn may_be_served(&self) -> bool {
        !self.is_emptied() && !self.is_outdated.load(Ordering::Relaxed)
    }

    /// Whether the others keep their removals for it: it is being emptied, and a start may serve what stands there.
    pub(super) fn needs_removals(&self) -> bool {
        self.is_leaving() && self.may_be_served()
    }

    /// Whether its filesystem had no room for all zones.
    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }
}
