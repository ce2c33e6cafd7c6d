//! The SSD tier: objects that left memory, in a log of zones on local disks (docs/internals/ssd-format.md).
//!
//! A record goes to the end of a disk's open zone, straight from the memory of its segment; it is read back straight into
//! the memory of another. The index in memory says where each key stands and is built again from the disks at a start.
//! When zones run out the oldest is taken back: what was used is written again, the rest is dropped.
//!
//! Invariants
//! - What is loaded is what was stored under that key and version, byte for byte, or it is a miss.
//! - What was removed does not come back, after a crash neither ([`SsdTier::remove`]).
//! - Nothing here makes an evicting writer or a reader wait for a disk: storing is refused when the disks have enough to
//!   do, and loading is done by threads that may wait.
//! - A place that is missing, foreign, read-only, full or failing is a state to show, never an error of the mount.
//!
//! Limits: an object fits into a zone; keys and what is kept beside are bounded by the block of a header. Real blocks
//! never pass the capacity: zones are allocated once and used again.
//! Threads: any, every method; [`SsdTier::load`] waits for the disk, at most the configured limit. Own threads: a writer
//! for each disk, one reclaimer, one that goes on emptying disks where a start finds some, and those of the I/O.

// A disk, its zones, what stands in them, and how bytes get there and back.
mod contents;
mod device;
mod devices;
mod disk;
mod format;
mod io;
mod memory;
mod zone;

// Records: where each stands, which are on their way, and what all threads share.
mod index;
mod second_places;
mod shared;
mod under_way;

// Storing: which records are taken, and for which disk.
mod admission;
mod bucket;
mod days;
mod endurance;
mod placing;
mod queue;

// Writing: the log of one disk, and the zone at its end.
mod open_zone;
mod retain;
mod writer;

// Loading, and disks that are late with it.
mod load;
mod overdue;
mod reading;

// Removing, so that nothing comes back.
mod intents;
mod removing;

// Taking zones back: which one, what of it is written again, and what is dropped.
mod choosing;
mod dropping;
mod emptying;
mod homes;
mod reclaim;
mod vacating;

// Zones and disks that do not count: damaged, late, beyond the capacity, or behind their pool.
mod given_up;
mod late;
mod outdated;
mod surplus;

// A life of the tier: which disks it has, what stands there, and whose it is.
mod epochs;
mod identity;
mod life;
mod naming;
mod open;
mod orders;
mod recover;
mod side_by_side;
mod stations;

// Disks that come and go while the tier is used.
mod change;
mod changes_file;
mod drain;
mod moving;
mod resume;
mod unwritable;

// What is counted and shown.
mod reasons;
mod status;
mod work;

// Its parsers, for fuzzing.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use parking_lot::Mutex;
use tidefs_engine::memory::Mapping;
use tidefs_engine::types::{ByteCount, Checksum, Version};

use self::device::Device;
use self::format::BLOCK_BYTES;
use self::index::Located;
use self::life::Threads;
use self::memory::{Buffer, Memory};
use self::queue::{Append, Job, Origin};
use self::shared::{Shared, checksum_of};

pub use self::admission::{Budget, Refused};
pub use self::change::ChangeError;
pub use self::drain::Drained;
pub use self::endurance::DayStatus;
pub use self::format::{KEY_BYTES_MAX, META_BYTES_MAX, Uuid};
pub use self::identity::Unusable;
pub(crate) use self::identity::{FILE_NAME, unmounted};
pub use self::load::Missed;
pub use self::naming::{FoundRecord, Standing, Unnamed};
pub use self::open::SsdConfig;
pub use self::queue::{Stored, cost_of};
pub use self::reasons::{DroppedFor, ReadFor, WrittenFor};
pub use self::recover::{Indexed, RecoverySummary};
pub use self::status::{DeviceStatus, SsdSpace, SsdStatus};

/// Whose objects the tier keeps.
pub trait Owner: Send + Sync + fmt::Debug {
    /// The tier gave up the record of a version. `number` is what the owner gave with it. Called without a lock of the
    /// tier, from threads of its own and from those that load; by then the version may have been stored again.
    fn dropped(&self, number: u32, version: Version, reason: DroppedFor);

    /// Whether the owner has the bytes of a version elsewhere too: then its record is not worth being written again.
    fn has_elsewhere(&self, number: u32, version: Version) -> bool;

    /// Whether a version is never to be given up for room.
    fn is_pinned(&self, number: u32, version: Version) -> bool;

    /// Whether the record of a key, which has no data, stays whenever its zone is taken back, used or not.
    fn must_stay(&self, key: &[u8]) -> bool;
}

/// Where the bytes of an object to be stored are.
#[derive(Debug)]
pub enum Source {
    /// In a segment, mapped at least as long as the object; its bytes do not change until the record is stored.
    Segment(Arc<Mapping>),
    /// Here.
    Bytes(Vec<u8>),
}

/// An object to be stored.
#[derive(Debug)]
pub struct Put {
    /// Its key, at most [`KEY_BYTES_MAX`] bytes.
    pub key: Vec<u8>,
    /// What the owner wants back at a start, at most [`META_BYTES_MAX`] bytes.
    pub meta: Vec<u8>,
    /// Its version: a later one replaces, an equal one too.
    pub version: Version,
    /// Bytes of data.
    pub length: ByteCount,
    /// xxh3-64 of the data, when it is known.
    pub checksum: Option<Checksum>,
    /// The data.
    pub source: Source,
    /// Whether it is stored only when it would survive a power cut; then budgets do not refuse it.
    pub durable: bool,
    /// How the owner finds it again, for [`Owner::dropped`].
    pub owner: u32,
    /// How often it was used more than one expects: reclaim writes it again for that, as for uses while it is on disk.
    pub uses: u32,
    /// Whether it stays where it is all the same: one that is refused cost nothing, and does not count. It is refused when the
    /// queue is full, too; for what leaves its place that was asked before, by [`SsdTier::has_room_for`].
    pub is_copy: bool,
}

/// The tier of one mount.
#[derive(Debug)]
pub struct SsdTier {
    shared: Arc<Shared>,
    /// Guards the threads, which are joined once.
    threads: Mutex<Threads>,
}

impl SsdTier {
    /// Builds the index from the disks: from its return on everything can be loaded, replaced and removed, though the
    /// owner was told of no object yet. `is_early` says of which keys it is told at once. Call it once, before
    /// [`Self::start`], and have all be told by [`Self::next_unnamed`].
    pub fn index(&self, is_early: &dyn Fn(&[u8]) -> bool) -> Indexed {
        self.shared.is_named.store(false, Ordering::Relaxed);
        self.shared.build_index(is_early)
    }

    /// Some of the objects that the owner was not told of yet, for each of which it calls [`Self::own`], or
    /// [`Self::remove`]; `None` when it was told of all. Waits for the disk, and has nothing when that is late.
    pub fn next_unnamed(&self, unnamed: &mut Unnamed) -> Option<Vec<Standing>> {
        let next = self.shared.next_standing(unnamed);
        if next.is_none() {
            self.shared.end_naming();
        }
        next
    }

    /// Notes how the owner finds a record that it was told of. Returns false when it was removed or replaced meanwhile.
    pub fn own(&self, standing: &Standing, number: u32) -> bool {
        self.shared.own(standing, number)
    }

    /// Whether a record that the owner was told of was neither removed nor replaced meanwhile.
    #[must_use]
    pub fn stands(&self, standing: &Standing) -> bool {
        self.shared.stands(standing)
    }

    /// What the record of a key says. Waits for the disk.
    ///
    /// # Errors
    /// Why it is a miss, for now.
    pub fn describe(&self, key: &[u8]) -> Result<Standing, Missed> {
        self.shared.describe(key)
    }

    /// Records that can be loaded.
    #[must_use]
    pub fn records(&self) -> usize {
        self.shared.index.len()
    }

    /// Bytes of all zones that can be used, and what the records that can be loaded take of them. A record that is removed
    /// counts no more at once, whenever its zone is taken back.
    #[must_use]
    pub fn space(&self) -> SsdSpace {
        let bytes = |device: &Arc<Device>| device.usable_blocks() * BLOCK_BYTES;
        let capacity = ByteCount(self.shared.devices.all().iter().map(bytes).sum());
        SsdSpace { capacity, used: ByteCount(self.shared.index.blocks() * BLOCK_BYTES).min(capacity) }
    }

    /// The version of a key that can be loaded.
    #[must_use]
    pub fn holds(&self, key: &[u8]) -> Option<Version> {
        self.shared.index.get(&self.shared.hash(key)).map(|found| found.version)
    }

    /// Leaves an object to be stored. `done` is called when that has ended, from a thread that must not wait.
    ///
    /// # Errors
    /// Why it is not stored; `done` is not called then.
    pub fn put(&self, put: Put, done: impl FnOnce(Stored) + Send + 'static) -> Result<(), Refused> {
        let Put { key, meta, version, length, checksum, source, durable, owner, uses, is_copy } = put;
        let memory = match source {
            Source::Segment(mapping) => Memory::Segment(mapping),
            Source::Bytes(bytes) => Memory::Buffer(Arc::new(Buffer::holding(&bytes))),
        };
        let append = Append {
            hash: self.shared.hash(&key),
            key,
            meta,
            version,
            length,
            checksum,
            memory,
            durable,
            origin: Origin::Owner(owner),
            uses,
            done: Box::new(done),
        };
        self.shared.enqueue(append, is_copy)
    }

    /// Whether an object of `length` would be taken right now, as far as the queue is concerned of the disk to which it goes.
    /// `ahead`: what others count ([`cost_of`]) that are about to be left and are not in a queue yet.
    #[must_use]
    pub fn has_room_for(&self, key: &[u8], length: ByteCount, ahead: ByteCount) -> bool {
        self.shared.has_room_for(&self.shared.hash(key), length, ahead)
    }

    /// Whether a disk that takes records has nothing to write.
    #[must_use]
    pub fn has_idle_disk(&self) -> bool {
        self.shared.has_idle_disk()
    }

    /// Counts an object that is lost to memory because there was [no room](Self::has_room_for) for it.
    pub fn count_lost(&self) {
        self.shared.count_lost();
    }

    /// Whether anything waits to be written, or is being written, by a disk that takes records.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.shared.is_writing()
    }

    /// Fills the start of `target` with the object, which is `length` bytes long, counted as read for `reason`. Waits for the
    /// disk.
    ///
    /// # Errors
    /// Why it is a miss; then the bytes of `target` mean nothing.
    pub fn load(
        &self,
        key: &[u8],
        version: Version,
        length: ByteCount,
        target: &Arc<Mapping>,
        reason: ReadFor,
    ) -> Result<Checksum, Missed> {
        let memory = Memory::Segment(Arc::clone(target));
        let hash = self.shared.hash(key);
        let facts = self.shared.load((&hash, key), version, length, &memory, reason)?;
        self.shared.index.touch(&hash);
        Ok(facts.checksum)
    }

    /// How long a load of `length` bytes would take right now, when its disk has shown how fast it is.
    #[must_use]
    pub fn predicted_load(&self, key: &[u8], length: ByteCount) -> Option<Duration> {
        let found = self.shared.index.get(&self.shared.hash(key))?;
        self.shared.devices.of(found.place)?.work.predicted_load(length.get())
    }

    /// Reads an object into memory of its own, counted as read for `reason`. Waits for the disk.
    ///
    /// # Errors
    /// Why it is a miss.
    pub fn read_for(
        &self,
        key: &[u8],
        version: Version,
        length: ByteCount,
        reason: ReadFor,
    ) -> Result<Vec<u8>, Missed> {
        let bytes = usize::try_from(length.get()).map_err(|_| Missed::Corrupt)?;
        let memory = Memory::Buffer(Arc::new(Buffer::zeroed(bytes)));
        let hash = self.shared.hash(key);
        self.shared.load((&hash, key), version, length, &memory, reason)?;
        self.shared.index.touch(&hash);
        Ok(memory.prefix(bytes).unwrap_or_default().to_vec())
    }

    /// Removes the versions of a key up to `version`, those that are on their way included. From its return on none of
    /// them is found any more, by a daemon that starts after this one is killed neither.
    pub fn remove(&self, key: &[u8], version: Version) {
        self.shared.remove(self.shared.hash(key), version);
    }

    /// Waits until everything that was left before is on disk, durably. Returns whether it is; it is not on a disk that is being taken
    /// out.
    pub fn flush(&self, limit: Duration) -> bool {
        Self::flush_disks(&self.shared.devices.all(), limit)
    }

    /// The same for the records of some keys: no disk is asked that has none of them.
    pub fn flush_keys<'a>(&self, keys: impl Iterator<Item = &'a [u8]>, limit: Duration) -> bool {
        let mut numbers: Vec<u8> = keys.flat_map(|key| self.shared.disks_of(self.shared.hash(key))).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let disks = numbers.into_iter().filter_map(|number| self.shared.devices.get(number));
        Self::flush_disks(&disks.collect::<Vec<_>>(), limit)
    }

    /// Whether a record of a key stands, or is on its way, on a disk that takes writes and is not being taken out.
    #[must_use]
    pub fn can_keep(&self, key: &[u8]) -> bool {
        self.shared.has_on(key, |device| !device.is_failing() && !device.queue.is_closed())
    }

    fn flush_disks(disks: &[Arc<Device>], limit: Duration) -> bool {
        // From all of them at once, and all are heard, also when one of them says no: who asks again would find what is on its way
        // there still.
        let waits: Vec<_> = disks
            .iter()
            .map(|device| {
                let (sender, receiver) = sync_channel(1);
                let done = queue::report_to(sender);
                device.queue.push(Job::Flush(done)).then_some(receiver)
            })
            .collect();
        let deadline = std::time::Instant::now() + limit;
        waits.into_iter().fold(true, |are_durable, wait| {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            wait.is_some_and(|wait| wait.recv_timeout(left) == Ok(Stored::Yes)) && are_durable
        })
    }

    /// What the tier shows of itself.
    #[must_use]
    pub fn status(&self) -> SsdStatus {
        self.shared.status()
    }
}

#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod comeback_tests;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod drain_tests;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod hang_tests;
#[cfg(test)]
mod moved_tests;
#[cfg(test)]
mod open_tests;
#[cfg(test)]
mod reclaim_tests;
#[cfg(test)]
mod stall_tests;
#[cfg(any(test, feature = "fuzz"))]
#[cfg_attr(not(test), expect(dead_code, reason = "the tests use more of it"))]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trust_tests;
#[cfg(test)]
mod unwritten_tests;
