//! Moving the records of a zone off a disk that is emptied: each goes to another disk, or with its zone, or stays for another
//! attempt.
//!
//! Invariants
//! - What is [in memory too](super::vacating) when its zone is emptied, and leaves memory then, goes to another disk.
//! - What the disk is only late with, or another one failed to take, is not lost: its zone stays as long as it stands there.
//!
//! Limits: `WINDOW` bytes of records are under way at once. What does not go on is tried again for as long as
//! [`Shared::patience`] says, then the drain ends.
//! Threads: that which empties the disk.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use hashbrown::HashSet;

use super::change::ChangeError;
use super::device::Device;
use super::drain::{Drained, MOVE_LIMIT, Pace, stuck};
use super::emptying::NotMoved;
use super::format::{BLOCK_BYTES, FooterEntry, RecordFacts, RecordHash};
use super::index::Place;
use super::load::says_that_it_is_damaged;
use super::open_zone::fits_a_zone;
use super::queue::Stored;
use super::{Shared, SsdTier};

/// Bytes of records under way to other disks at once.
const WINDOW: u64 = 32 << 20;
/// Pause before what does not go on is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// Why objects stay.
const LATE: &str = "its objects cannot be read in time";
pub(super) const UNTAKEN: &str = "the other disks do not take what is moved";

impl Shared {
    /// What is in a zone. `None` when nobody wants to know any more.
    pub(super) fn entries_with_patience(
        &self,
        device: &Device,
        zone: u32,
        drained: &Drained,
        progress: &mut dyn FnMut(Drained) -> bool,
    ) -> Result<Option<Vec<FooterEntry>>, ChangeError> {
        let mut patience = Patience { limit: self.patience(), until: None };
        loop {
            match self.entries_in(device, zone) {
                Ok(entries) => return Ok(Some(entries)),
                Err(error) if !says_that_it_is_damaged(&error) && patience.wait() => {
                    if !progress(*drained) {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(stuck(&error.to_string())),
            }
        }
    }

    /// Makes durable what was moved from a disk to others, also by a drain that ended early.
    pub(super) fn flush_moved(&self, device: &Device) -> Result<(), ChangeError> {
        let disks = self.disks_moved_to(device.number);
        let is_durable = |disk: &Arc<Device>| SsdTier::flush_disks(std::slice::from_ref(disk), MOVE_LIMIT);
        if let Some(disk) = disks.iter().find(|disk| !is_durable(disk)) {
            let reason =
                format!("what was moved to {} is not durable there; remove that disk, too", disk.name);
            return Err(stuck(&reason));
        }
        self.moved_to.lock().retain(|(from, _)| *from != device.number);
        Ok(())
    }

    /// The disks to which records were moved from one. From those that were taken out since they may have been moved on.
    fn disks_moved_to(&self, number: u8) -> Vec<Arc<Device>> {
        let moved_to = self.moved_to.lock().clone();
        let (mut known, mut left, mut disks) = (BTreeSet::from([number]), vec![number], Vec::new());
        while let Some(from) = left.pop() {
            for (_, to) in moved_to.iter().filter(|(moved_from, _)| *moved_from == from) {
                if known.insert(*to) {
                    match self.devices.get(*to) {
                        Some(disk) => disks.push(disk),
                        None => left.push(*to),
                    }
                }
            }
        }
        disks
    }
}

/// Where a record stands, and what it says.
pub(super) type Record<'a> = (Place, &'a RecordFacts);

/// For how long something is tried again that does not go on.
#[derive(Debug)]
struct Patience {
    limit: Duration,
    until: Option<Instant>,
}

impl Patience {
    /// Pauses. Returns false when it has lasted for too long.
    fn wait(&mut self) -> bool {
        let until = *self.until.get_or_insert_with(|| Instant::now() + self.limit);
        std::thread::sleep(PAUSE);
        Instant::now() < until
    }

    /// It goes on.
    fn renew(&mut self) {
        self.until = None;
    }
}

/// A record on its way to another disk.
struct OnItsWay<'a> {
    record: Record<'a>,
    bytes: u64,
    to: u8,
    end: Receiver<Stored>,
}

/// The records of a zone on their way to other disks, and what becomes of each.
pub(super) struct Moving<'a> {
    shared: &'a Shared,
    device: &'a Device,
    pub(super) drained: &'a mut Drained,
    under_way: VecDeque<OnItsWay<'a>>,
    /// Those that go with the zone.
    pub(super) left: Vec<(RecordHash, Place)>,
    /// Those that stay for now, and why the last of them does.
    again: Vec<Record<'a>>,
    reason: &'static str,
    /// Disks that failed to take a record: for that one others are asked first.
    failed: HashSet<(Place, u8)>,
}

impl<'a> Moving<'a> {
    pub(super) fn new(shared: &'a Shared, device: &'a Device, drained: &'a mut Drained) -> Self {
        Self {
            shared,
            device,
            drained,
            under_way: VecDeque::new(),
            left: Vec::new(),
            again: Vec::new(),
            reason: LATE,
            failed: HashSet::new(),
        }
    }

    /// Has records leave their zone. Returns false when nobody wants more.
    pub(super) fn move_all(
        &mut self,
        mut records: Vec<Record<'a>>,
        pace: &mut Pace,
        progress: &mut dyn FnMut(Drained) -> bool,
    ) -> Result<bool, ChangeError> {
        let mut patience = Patience { limit: self.shared.patience(), until: None };
        loop {
            let before = records.len();
            if !self.move_some(records, pace, progress)? {
                return Ok(false);
            }
            records = std::mem::take(&mut self.again);
            if records.is_empty() {
                return Ok(true);
            }
            if !self.shared.has_taker() {
                return Err(ChangeError::NoOther);
            }
            if records.len() < before {
                patience.renew();
            }
            if !patience.wait() {
                return Err(stuck(self.reason));
            }
        }
    }

    /// Has records leave up to the first one that is held up: that and those behind it are left for another attempt.
    fn move_some(
        &mut self,
        records: Vec<Record<'a>>,
        pace: &mut Pace,
        progress: &mut dyn FnMut(Drained) -> bool,
    ) -> Result<bool, ChangeError> {
        let mut records = records.into_iter();
        for record in records.by_ref() {
            let goes_on = self.send(record);
            self.settle(WINDOW)?;
            if !pace.keep(*self.drained, progress) {
                self.settle(0)?;
                return Ok(false);
            }
            if !goes_on {
                break;
            }
        }
        self.again.extend(records);
        self.settle(0)?;
        Ok(true)
    }

    /// Decides what becomes of a record that stands in the zone. Returns false when it is held up.
    fn send(&mut self, record: Record<'a>) -> bool {
        let (place, facts) = record;
        let Some(located) = self.shared.index.get_at(&facts.hash, place) else { return true };
        let bytes = facts.blocks() * BLOCK_BYTES;
        if self.shared.has_elsewhere(&located) {
            self.drained.in_memory += 1;
            self.left.push((facts.hash, place));
        } else {
            match self.move_elsewhere(place, facts) {
                Ok((to, end)) => {
                    self.drained.moved_bytes += bytes;
                    self.under_way.push_back(OnItsWay { record, bytes, to, end });
                }
                Err(NotMoved::Replaced) => {}
                Err(NotMoved::Lost) => {
                    self.drained.lost += 1;
                    self.left.push((facts.hash, place));
                }
                Err(NotMoved::HeldUp) => {
                    self.again.push(record);
                    self.reason = LATE;
                    return false;
                }
            }
        }
        self.drained.left = self.drained.left.saturating_sub(1);
        true
    }

    /// Leaves a record to be written to another disk. Returns which one.
    fn move_elsewhere(&self, place: Place, facts: &RecordFacts) -> Result<(u8, Receiver<Stored>), NotMoved> {
        let fits = |device: &Device| fits_a_zone(device.zone_blocks, facts.blocks(), facts.footer_bytes());
        let has_failed = |device: &Device| self.failed.contains(&(place, device.number));
        let other = self.shared.best_taker(|device| (!fits(device), has_failed(device)));
        let other = other.ok_or(NotMoved::HeldUp)?;
        if !fits(&other) {
            return Err(NotMoved::Lost);
        }
        self.shared.moved_to.lock().insert((self.device.number, other.number));
        Ok((other.number, self.shared.rewrite(self.device, &other, place, facts)?))
    }

    /// Waits until no more than `bytes_max` bytes are under way. Until it is known how a record's way ended nothing may be
    /// void where it came from.
    fn settle(&mut self, bytes_max: u64) -> Result<(), ChangeError> {
        while self.under_way.iter().map(|record| record.bytes).sum::<u64>() > bytes_max
            && let Some(OnItsWay { record, bytes, to, end }) = self.under_way.pop_front()
        {
            match end.recv_timeout(MOVE_LIMIT) {
                Ok(Stored::Yes) => self.drained.moved += 1,
                // Replaced or removed meanwhile.
                Ok(Stored::Superseded) => {}
                // It stands where it stood, unless it was removed meanwhile.
                Ok(Stored::Failed) => {
                    self.drained.moved_bytes -= bytes;
                    self.drained.left += 1;
                    self.again.push(record);
                    self.reason = UNTAKEN;
                    self.failed.insert((record.0, to));
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(stuck(UNTAKEN));
                }
            }
        }
        Ok(())
    }
}
