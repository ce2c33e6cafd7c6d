//! Disks that are taken into use, emptied, and taken out while the tier is used.
//!
//! ```text
//! add ──> in use ──drain──> leaving: takes no records, its own go to the other disks ──remove──> gone
//! ```
//! Invariants
//! - What a disk held before it is added is void: it was not told of removals meanwhile.
//! - A disk that is removed has no superblock any more, or [an old one](super::outdated): no start takes what it held
//!   for the pool's.
//!
//! Limits: a disk that is added has the share of the budgets that the others have, until the next start.
//! Threads: any that may wait; one change at a time.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidefs_engine::types::ByteCount;

use super::changes_file::Changes;
use super::disk::Disk;
use super::drain::Drained;
use super::format::{BLOCK, Superblock};
use super::identity::{
    FILE_NAME, Unusable, draw_uuid, flush, open_file, read_superblock, write_blocks, zone_bytes_for,
};
use super::io::FileDisk;
use super::open::{Candidate, DEVICES_MAX, default_share, size_of, take_into_use};
use super::{Shared, SsdTier};

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

impl SsdTier {
    /// Takes a place into use, with room for `capacity` bytes, or as much as each of those has that are configured, or else the
    /// largest of the others, if that is free, or three quarters of what is free. What it held is void.
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
        let capacity = capacity.or(configured).unwrap_or_else(|| {
            let share = default_share(place, held);
            self.largest_capacity().map_or(share, |largest| largest.min(share))
        });
        fits.and_then(|()| self.add_disk(name, disk, capacity)).inspect_err(|_| {
            if held == ByteCount::ZERO && place.is_dir() {
                // The error that led here says more than one of this.
                let _ = std::fs::remove_file(place.join(FILE_NAME));
            }
        })?;
        shared.note_change(|changes| changes.add(place, capacity));
        Ok(())
    }

    /// The capacity of the largest disk in use.
    fn largest_capacity(&self) -> Option<ByteCount> {
        let capacities = self.status().devices.into_iter().map(|device| device.capacity);
        capacities.max().filter(|largest| *largest > ByteCount::ZERO)
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
        let device = Arc::new(take_into_use(&candidate, number, &superblock, capacity)?);
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
    /// Without `force` [`ChangeError::HoldsObjects`], and [`ChangeError::Stuck`] while what was moved from it to other disks is not
    /// durable there.
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
        let on_it = || shared.index.count_device(device.number);
        if !force {
            match on_it() {
                0 => {}
                held => return Err(ChangeError::HoldsObjects(held)),
            }
            // What was moved from it may be durable nowhere else.
            shared.flush_moved(&device)?;
        }
        // From here on nothing more is left for it. What is on its way may be in the index in a moment, and counts twice at worst.
        let was_leaving = device.is_leaving.swap(true, Ordering::Relaxed);
        let on_its_way = shared.pending.lock().count_for(device.number);
        let held = on_its_way + on_it();
        if held > 0 && !force {
            device.is_leaving.store(was_leaving, Ordering::Relaxed);
            return Err(ChangeError::HoldsObjects(held));
        }
        shared.outdate_leaning_on(&device);
        device.queue.close();
        self.join_writer(device.number);
        shared.note_day(&device);
        shared.drop_device(device.number);
        shared.devices.take(device.number);
        let void = write_blocks(&*device.disk, 0, &[0; 2 * BLOCK], shared.limit)
            .and_then(|()| flush(&*device.disk, shared.limit));
        let is_over = match void {
            Ok(()) => {
                let file = place.join(FILE_NAME);
                // Of a disk that was unmounted meanwhile it stays, and not what another one has there.
                if device.disk.is_at(&file)
                    && let Err(error) = std::fs::remove_file(&file)
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
            // Who removes a key just now may have met the disk.
            drop(shared.pending.lock());
            shared.intents.settle_disk(device.number);
        }
        shared.note_removal(place);
        tracing::info!(place = name, objects = held, "a disk was removed from the SSD tier");
        Ok(())
    }
}

pub(super) fn busy() -> ChangeError {
    ChangeError::Stuck("another change of the disks is going on".to_owned())
}

impl Shared {
    pub(super) fn note_change(&self, change: impl FnOnce(&mut Changes)) {
        let mut changes = Changes::load(self.changes.as_deref());
        change(&mut changes);
        changes.store(self.changes.as_deref());
    }

    fn note_removal(&self, place: &Path) {
        let is_configured = self.configured.iter().any(|configured| configured == place);
        self.note_change(|changes| changes.remove(place, is_configured));
    }
}
