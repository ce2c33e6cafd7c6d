//! Disks that are taken into use, emptied, and taken out while the tier is used.
//!
//! ```text
//! add ──> in use ──drain──> leaving: takes no records, its own go to the other disks ──remove──> gone
//! ```
//! Invariants
//! - What a disk held before it is added is void: it was not told of removals meanwhile.
//! - A zone of a leaving disk is void on it before its records could be missed by a removal: other disks keep their
//!   removals as long as a leaving one has a zone that was opened before them.
//! - What was moved to other disks is durable there before its zone is void: while it is not, the zone stays.
//! - A record that goes with its zone leaves the index after the zone is void: until then a removal of its key finds it.
//! - A disk that is removed has no superblock any more, or [an old one](super::outdated): no start takes what it held
//!   for the pool's.
//!
//! Limits: a disk that is added has the share of the budgets that the others have, until the next start.
//! Threads: any that may wait; one change at a time.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use tidefs_engine::types::ByteCount;

use super::device::Device;
use super::disk::Disk;
use super::format::{BLOCK, BLOCK_BYTES, FooterEntry, RecordFacts, Superblock};
use super::identity::{
    FILE_NAME, Unusable, draw_uuid, flush, open_file, read_superblock, write_blocks, zone_bytes_for,
};
use super::index::Place;
use super::io::FileDisk;
use super::kept::Changes;
use super::open::{Candidate, DEVICES_MAX, default_share, size_of, take_into_use};
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

/// Why a change of the disks was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The place cannot be used.
    #[error("{0}")]
    Unusable(Unusable),
    /// It is to hold more than it ever can.
    #[error("a capacity of {capacity} is more than the disk has, {size}")]
    TooMuch {
        /// What was asked for.
        capacity: ByteCount,
        /// What there is.
        size: ByteCount,
    },
    /// It is a disk of this tier already.
    #[error("it is a disk of this tier already")]
    InUse,
    /// It is not a disk of this tier.
    #[error("it is not a disk of this tier")]
    Unknown,
    /// There is no other disk that takes what it holds.
    #[error("there is no other disk that takes what it holds")]
    NoOther,
    /// As many disks were in use since the start as there are numbers for.
    #[error(
        "{DEVICES_MAX} disks were in use since the daemon was started, which is as many as it can tell apart"
    )]
    TooMany,
    /// It holds objects.
    #[error("{0} objects are on it")]
    HoldsObjects(u64),
    /// A start is still reading what is on the disks.
    #[error("the start is still reading what is on the disks")]
    Starting,
    /// The tier gets its first disk, and its threads or files are not to be had.
    #[error("the SSD tier cannot start: {0}")]
    CannotStart(String),
    /// The disk does not do what is asked.
    #[error("the disk does not empty: {0}")]
    Stuck(String),
}

impl From<io::Error> for ChangeError {
    fn from(error: io::Error) -> Self {
        Self::Unusable(error.into())
    }
}

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

impl SsdTier {
    /// Takes a place into use, with room for `capacity` bytes, or as much as the others have, or, where nothing says how
    /// much that is, three quarters of what is free. What it held is void.
    ///
    /// # Errors
    /// Why it is not used. Then a directory that was empty is empty again.
    pub fn add(&self, place: &Path, capacity: Option<ByteCount>) -> Result<(), ChangeError> {
        let shared = &self.shared;
        let _turn = shared.change.try_lock().ok_or_else(busy)?;
        let name = place.display().to_string();
        if shared.devices.named(&name).is_some() {
            return Err(ChangeError::InUse);
        }
        let file = open_file(place).map_err(ChangeError::Unusable)?;
        let io = shared.io.clone().ok_or(ChangeError::NoOther)?;
        let disk = Arc::new(FileDisk::new(file, io));
        let held = disk.length().unwrap_or_default();
        let configured = shared.growth.share.filter(|share| *share > ByteCount::ZERO);
        // What is configured is for each of several disks, which take what they have of it.
        let fits = match (capacity, size_of(place, held)) {
            (Some(capacity), Some(size)) if capacity > size => Err(ChangeError::TooMuch { capacity, size }),
            _ => Ok(()),
        };
        let capacity = capacity.or(configured).unwrap_or_else(|| default_share(place, held));
        fits.and_then(|()| self.add_disk(name, disk, capacity)).inspect_err(|_| {
            if held == ByteCount::ZERO && place.is_dir() {
                // The error that led here says more than one of this.
                let _ = std::fs::remove_file(place.join(FILE_NAME));
            }
        })?;
        shared.note_change(|changes| changes.add(place, capacity));
        Ok(())
    }

    pub(super) fn add_disk(
        &self,
        name: String,
        disk: Arc<dyn Disk>,
        capacity: ByteCount,
    ) -> Result<(), ChangeError> {
        let shared = &self.shared;
        let found = read_superblock(&*disk).map_err(ChangeError::Unusable)?;
        if found.is_some_and(|found| found.pool != shared.pool) {
            let reason = "it belongs to another pool; a daemon that is started with it in `ssd.dirs` finds what it holds, and \
                          if nobody needs that, remove its file `tidefs.ssd`, or clear the first MiB of the device";
            let reason = reason.to_owned();
            return Err(ChangeError::Unusable(Unusable::Foreign(reason)));
        }
        let number = shared.devices.next_number().ok_or(ChangeError::TooMany)?;
        // Until it is one of the disks, and goes ahead with the others.
        let epochs = shared.epochs.lock();
        let superblock = Superblock {
            device: draw_uuid()?,
            pool: shared.pool,
            epoch: epochs.of(shared.pool),
            zone_bytes: zone_bytes_for(capacity, shared.growth.zone_bytes),
        };
        let candidate = Candidate { name: name.clone(), disk, capacity: Some(capacity) };
        let device = Arc::new(take_into_use(candidate, number, &superblock, capacity)?);
        shared.give_budget(&device);
        self.start_writer(&device)?;
        shared.devices.push(device);
        epochs.store_or_warn();
        drop(epochs);
        shared.unusable.lock().retain(|(place, _)| *place != name);
        tracing::info!(place = name, %capacity, "a disk was added to the SSD tier");
        Ok(())
    }

    /// Writes what a disk holds to the others, at most `bytes_per_second` of it. From now on it takes nothing. Calls
    /// `progress` now and then; when that says no, it ends early, and the disk goes on leaving. A later start goes on.
    ///
    /// # Errors
    /// Why it cannot be emptied.
    pub fn drain(
        &self,
        place: &Path,
        bytes_per_second: Option<ByteCount>,
        progress: &mut dyn FnMut(Drained) -> bool,
    ) -> Result<Drained, ChangeError> {
        self.shared.drain(place, bytes_per_second, progress)
    }

    /// Takes a disk out of use. With `force` the objects on it are given up, also while a start still reads what they are.
    ///
    /// # Errors
    /// [`ChangeError::HoldsObjects`] without `force`.
    pub fn remove_disk(&self, place: &Path, force: bool) -> Result<(), ChangeError> {
        let shared = &self.shared;
        let _turn = shared.change.try_lock().ok_or_else(busy)?;
        let name = place.display().to_string();
        let Some(device) = shared.devices.named(&name) else {
            let mut unusable = shared.unusable.lock();
            let before = unusable.len();
            unusable.retain(|(place, _)| *place != name);
            if unusable.len() == before {
                return Err(ChangeError::Unknown);
            }
            drop(unusable);
            shared.note_removal(place);
            return Ok(());
        };
        if !force && !shared.is_named.load(Ordering::Relaxed) {
            return Err(ChangeError::Starting);
        }
        let held = shared.index.count_device(device.number);
        if held > 0 && !force {
            return Err(ChangeError::HoldsObjects(held));
        }
        device.is_leaving.store(true, Ordering::Relaxed);
        device.queue.close();
        self.join_writer(device.number);
        shared.drop_device(device.number);
        shared.devices.take(device.number);
        let void = write_blocks(&*device.disk, 0, &[0; 2 * BLOCK], shared.limit)
            .and_then(|()| flush(&*device.disk, shared.limit));
        let is_over = match void {
            Ok(()) => {
                if place.is_dir()
                    && let Err(error) = std::fs::remove_file(place.join(FILE_NAME))
                {
                    tracing::warn!(place = name, %error, "the file of a disk that was removed stays");
                }
                true
            }
            Err(error) => {
                tracing::warn!(place = name, %error, "a disk that was removed still says that it belongs to the pool");
                shared.outdate(&device)
            }
        };
        if is_over {
            shared.intents.settle_disk(device.number);
        }
        shared.note_removal(place);
        tracing::info!(place = name, objects = held, "a disk was removed from the SSD tier");
        Ok(())
    }
}

fn busy() -> ChangeError {
    ChangeError::Stuck("another change of the disks is going on".to_owned())
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

    fn note_change(&self, change: impl FnOnce(&mut Changes)) {
        let mut changes = Changes::load(self.changes.as_deref());
        change(&mut changes);
        changes.store(self.changes.as_deref());
    }

    fn note_removal(&self, place: &Path) {
        let is_configured = self.configured.iter().any(|configured| configured == place);
        self.note_change(|changes| changes.remove(place, is_configured));
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
