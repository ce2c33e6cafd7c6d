//! Disks that are not to be trusted by a later start: one that lost removals, or that was emptied or taken out and still
//! says that it belongs to the pool.
//!
//! Its superblock stays as it is, since it takes no writes, and the rest of the pool goes ahead of it: the next start
//! finds it behind, as one that was missing, and gives up what it holds.
//!
//! Invariants
//! - A disk of the rest that did not go ahead does so later: its writer tries that now and then, and before it says that
//!   anything is durable. One that takes no writes by then is given up at the next start, too. So is one whose superblock fails
//!   a few times in a row, whatever else is written: it gets no more writes, and what is to be durable goes to the others.
//!
//! Threads: the disk's writer, or the one that takes it out; waits for the other disks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidefs_engine::types::ByteCount;

use super::device::Device;
use super::format::{BLOCK_BYTES, Superblock};
use super::identity::{write_superblock, write_superblocks};
use super::{Shared, SsdTier};

impl SsdTier {
    /// The numbers of the disks whose content the next start gives up.
    #[must_use]
    pub fn outdated_disks(&self) -> Vec<u8> {
        self.shared.devices.numbers(is_given_up)
    }

    /// Whether a record of a key stands, or is on its way, where the next start finds it.
    #[must_use]
    pub fn outlives_a_start(&self, key: &[u8]) -> bool {
        self.shared.has_on(key, |device| !is_given_up(device))
    }

    /// Whether any disk takes records.
    #[must_use]
    pub fn takes_records(&self) -> bool {
        self.shared.has_taker()
    }
}

/// Whether the next start gives up what a disk holds.
fn is_given_up(device: &Device) -> bool {
    device.is_outdated.load(Ordering::Relaxed)
        || (device.is_behind.load(Ordering::Relaxed) && device.is_failing())
}

impl Shared {
    /// Has the next start give up what a disk holds. Returns false when there is neither another disk nor a file to
    /// say so.
    pub(super) fn outdate(&self, device: &Device) -> bool {
        if device.is_outdated.load(Ordering::Relaxed) {
            return true;
        }
        let mut epochs = self.epochs.lock();
        let epoch = epochs.of(self.pool).saturating_add(1);
        let is_other =
            |other: &Arc<Device>| other.number != device.number && !other.is_outdated.load(Ordering::Relaxed);
        let others: Vec<Arc<Device>> = self.devices.all().into_iter().filter(is_other).collect();
        let of: Vec<_> =
            others.iter().map(|other| (&*other.disk, self.superblock_at(other, epoch))).collect();
        let (mut is_noted, mut behind) = (false, Vec::new());
        for (other, outcome) in others.iter().zip(write_superblocks(&of)) {
            match outcome {
                Ok(()) => {
                    is_noted = true;
                    other.end_being_behind();
                }
                Err(error) => {
                    other.count_write_error(&error);
                    behind.push(other);
                }
            }
        }
        epochs.reach(self.pool, epoch);
        match epochs.store() {
            Ok(is_kept) => is_noted |= is_kept,
            Err(error) => tracing::error!(%error, "the file of epochs cannot be written"),
        }
        if is_noted {
            device.is_outdated.store(true, Ordering::Relaxed);
            device.is_behind.store(false, Ordering::Relaxed);
            tracing::error!(
                device = device.name,
                "a disk takes no writes: what it holds is given up at the next start"
            );
            for other in behind {
                other.is_behind.store(true, Ordering::Relaxed);
                tracing::error!(
                    device = other.name,
                    "the superblock of a disk was not written: what it holds is given up at the next start, unless it is by then"
                );
            }
        }
        is_noted
    }

    /// Has a disk go ahead with the others when it did not with them. Returns whether it is not behind.
    pub(super) fn catch_up(&self, device: &Device) -> bool {
        let is_behind = || device.is_behind.load(Ordering::Relaxed);
        if !is_behind() {
            return true;
        }
        if device.is_failing() {
            return false;
        }
        // Who has it waits for other disks, perhaps for ones that hang.
        let Some(epochs) = self.epochs.try_lock_for(self.limit) else { return false };
        if !is_behind() {
            return true;
        }
        let superblock = self.superblock_at(device, epochs.of(self.pool));
        match write_superblock(&*device.disk, &superblock, self.limit) {
            Ok(()) => {
                device.end_being_behind();
                tracing::info!(
                    device = device.name,
                    "the superblock of a disk is written: what it holds stays"
                );
                true
            }
            Err(error) => {
                device.count_superblock_error(&error);
                false
            }
        }
    }

    fn superblock_at(&self, device: &Device, epoch: u64) -> Superblock {
        let zone_bytes = ByteCount(u64::from(device.zone_blocks) * BLOCK_BYTES);
        Superblock { device: device.uuid, pool: self.pool, epoch, zone_bytes }
    }
}
