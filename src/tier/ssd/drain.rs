//! Emptying a disk: what it holds goes to the others, zone by zone, those that were opened first first.
//!
//! Invariants
//! - A zone of a leaving disk is void on it before its records could be missed by a removal: other disks keep their
//!   removals as long as a leaving one has a zone that was opened before them.
//! - What was moved to other disks is durable there before its zone is void: while it is not, the zone stays.
//! - A record that goes with its zone leaves the index after the zone is void: until then a removal of its key finds it.
//! - What is [in memory too](super::vacating) when its zone is emptied, and leaves memory then, goes to another disk.
//! - What the disk is only late with, or another one failed to take, is not lost: its zone stays as long as it stands there.
//! - A disk that takes no writes is emptied [as a whole](super::unwritable).
//!
//! Limits: what does not go on is tried again for as long as [`Shared::patience`] says, then the drain ends.
//! Threads: any that may wait; one disk at a time.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use hashbrown::HashSet;
use tidefs_engine::types::ByteCount;

use super::change::{ChangeError, busy};
use super::device::Device;
use super::emptying::NotMoved;
use super::format::{BLOCK_BYTES, FooterEntry, RecordFacts, RecordHash};
use super::index::Place;
use super::load::says_that_it_is_damaged;
use super::open_zone::fits_a_zone;
use super::queue::{Job, Stored, report_to};
use super::reasons::DroppedFor;
use super::shared::load_of;
use super::{Shared, SsdTier};

/// Bytes of records under way to other disks at once.
const WINDOW: u64 = 32 << 20;
/// How long a writer may take to answer: for one record, for closing its zone, or for a flush.
const MOVE_LIMIT: Duration = Duration::from_secs(30);
/// How long an emptied zone waits for those who still read it.
const READERS_LIMIT: Duration = Duration::from_secs(60);
/// Pause before what does not go on is tried again.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a zone is emptied anew, because other disks lost what they had taken.
pub(super) const ATTEMPTS: u32 = 8;
/// Longest pause between two reports.
const LOOK: Duration = Duration::from_millis(200);

/// Why objects stay.
const LATE: &str = "its objects cannot be read in time";
pub(super) const UNTAKEN: &str = "the other disks do not take what is moved";

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
        let was_leaving = device.is_leaving.swap(true, Ordering::Relaxed);
        if self.least_busy().is_none() {
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
                self.end_failing(&device);
                return Ok(drained);
            }
            if !progress(drained) {
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
        let (records, before) = (records_of(device, zone, entries), *drained);
        let mut rest: Vec<&Record> = records.iter().collect();
        let mut emptying = Emptying::new(self, device, drained);
        for _ in 0..ATTEMPTS {
            if !emptying.move_all(rest, pace, progress)? {
                emptying.drained.count_as(before);
                return Ok(false);
            }
            let left = std::mem::take(&mut emptying.left);
            self.flush_moved()?;
            if !device.end_reading(zone, READERS_LIMIT) {
                self.quarantine(device, zone);
                return Ok(true);
            }
            // An error of another disk gives back what was moved there.
            let is_left: HashSet<Place> = left.iter().map(|(_, place)| *place).collect();
            let stands = |&(place, ref facts): &Record| {
                self.index.get(&facts.hash).is_some_and(|found| found.place == place)
            };
            rest = records.iter().filter(|&record| stands(record)).collect();
            let given_back = rest.iter().filter(|(place, _)| !is_left.contains(place)).count() as u64;
            if given_back == 0 {
                if let Err(error) = self.free_zone(device, zone, &left, DroppedFor::Disk) {
                    device.count_write_error(&error);
                    if self.turns_out_to_fail(device) {
                        device.keep_zone(zone);
                        emptying.drained.count_as(before);
                    } else {
                        self.quarantine(device, zone);
                    }
                }
                return Ok(true);
            }
            device.keep_zone(zone);
            emptying.drained.moved = emptying.drained.moved.saturating_sub(given_back);
            emptying.drained.count_as(before);
        }
        Err(stuck(UNTAKEN))
    }

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

    /// Makes durable what was moved to other disks, also by a drain that ended early.
    pub(super) fn flush_moved(&self) -> Result<(), ChangeError> {
        let moved_to = self.moved_to.lock().clone();
        let disks: Vec<_> =
            moved_to.iter().filter_map(|&number| self.devices.get(usize::from(number))).collect();
        let is_durable = |disk: &Arc<Device>| SsdTier::flush_disks(std::slice::from_ref(disk), MOVE_LIMIT);
        if let Some(disk) = disks.iter().find(|disk| !is_durable(disk)) {
            let reason =
                format!("what was moved to {} is not durable there; remove that disk, too", disk.name);
            return Err(stuck(&reason));
        }
        self.moved_to.lock().clear();
        Ok(())
    }
}

pub(super) fn stuck(reason: &str) -> ChangeError {
    ChangeError::Stuck(reason.to_owned())
}

/// A record, and where it stands.
pub(super) type Record = (Place, RecordFacts);

pub(super) fn records_of(device: &Device, zone: u32, entries: Vec<FooterEntry>) -> Vec<Record> {
    let records = entries.into_iter().filter_map(|entry| match entry {
        FooterEntry::Object { block, facts } => Some((Place { zone: device.zone_id(zone), block }, facts)),
        FooterEntry::Tombstones(_) => None,
    });
    records.collect()
}

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
    record: &'a Record,
    bytes: u64,
    to: u8,
    end: Receiver<Stored>,
}

/// What becomes of the records of a zone that is emptied.
pub(super) struct Emptying<'a> {
    shared: &'a Shared,
    device: &'a Device,
    pub(super) drained: &'a mut Drained,
    under_way: VecDeque<OnItsWay<'a>>,
    /// Those that go with the zone.
    pub(super) left: Vec<(RecordHash, Place)>,
    /// Those that stay for now, and why the last of them does.
    again: Vec<&'a Record>,
    reason: &'static str,
    /// Disks that failed to take a record: for that one others are asked first.
    failed: HashSet<(Place, u8)>,
}

impl<'a> Emptying<'a> {
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
        mut records: Vec<&'a Record>,
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
            if self.shared.least_busy().is_none() {
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
        records: Vec<&'a Record>,
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
    fn send(&mut self, record: &'a Record) -> bool {
        let &(place, ref facts) = record;
        let found = self.shared.index.get(&facts.hash).filter(|found| found.place == place);
        let Some(located) = found else { return true };
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
        let takers: Vec<Arc<Device>> = self.shared.takers().collect();
        if takers.is_empty() {
            return Err(NotMoved::HeldUp);
        }
        let fits =
            |device: &&Arc<Device>| fits_a_zone(device.zone_blocks, facts.blocks(), facts.footer_bytes());
        let load = |device: &&Arc<Device>| (self.failed.contains(&(place, device.number)), load_of(device));
        let other = takers.iter().filter(fits).min_by_key(load).ok_or(NotMoved::Lost)?;
        self.shared.moved_to.lock().insert(other.number);
        Ok((other.number, self.shared.rewrite(self.device, other, place, facts)?))
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
