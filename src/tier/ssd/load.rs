//! Reading a record back, straight into the memory that is to hold it.
//!
//! Invariants
//! - Bytes are said to be loaded only when header, key, version, length and checksum match: whatever the disk gives else
//!   is a miss. What does not match is forgotten, and after an error of the medium everything of its zone, if its disk reads
//!   anything at all. One that reads nothing is left alone for a while, and keeps what stands on it.
//! - A disk that is late gets no loads ([`super::overdue`]): who waits for an object is told that it is a miss, at once. What
//!   is read to be written again, or compared, waits for the disk as long as for a request.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidefs_engine::types::{ByteCount, Version};

use super::device::Device;
use super::disk::Request;
use super::format::{BLOCK, BLOCK_BYTES, RecordFacts, RecordHash, RecordHeader, decode};
use super::identity::read_blocks;
use super::index::{Located, Place};
use super::io::{settle_abandoned, settles_abandoned};
use super::memory::{Buffer, Memory, Piece};
use super::reading::Reading;
use super::reasons::{DroppedFor, ReadFor};
use super::{Shared, SsdTier};

/// How often a load looks again for a record that reclaim moves.
const MOVES_MAX: u32 = 200;
/// How long it pauses before.
const MOVE_PAUSE: Duration = Duration::from_millis(5);
/// How often it is looked whether a disk is in time again.
const LATE_PAUSE: Duration = Duration::from_millis(20);
/// How long a disk that reads nothing is left alone.
pub(super) const ASIDE: Duration = Duration::from_secs(1);

/// Why a record was not loaded. Each is a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// No disk has it (any more).
    Absent,
    /// What stands there is not what was written.
    Corrupt,
    /// The disk failed, took too long, or was late before and is not asked.
    Failed,
}

impl SsdTier {
    /// How long a load may take.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.shared.limit
    }

    /// Whether the disk on which an object stands may be asked for it: one that is late is not.
    #[must_use]
    pub fn may_load(&self, key: &[u8]) -> bool {
        let Some(Located { place, .. }) = self.shared.index.get(&self.shared.hash(key)) else { return true };
        self.shared.devices.of(place).is_none_or(|device| self.shared.may_ask(&device, place))
    }

    /// Whether a version of a key can be loaded, from where nothing is about to go, and none of it is on its way, which may say
    /// other things of it. A disk that reads nothing for now keeps what it has: what leaves memory for it is a miss until then.
    #[must_use]
    pub fn has_settled(&self, key: &[u8], version: Version) -> bool {
        self.shared.has_settled(self.shared.hash(key), version)
    }

    /// Reads an object and compares it, which is no use of it. What is damaged is given up. Waits for the disk.
    ///
    /// # Errors
    /// Why it is a miss.
    pub fn check(&self, key: &[u8], version: Version, length: ByteCount) -> Result<(), Missed> {
        let bytes = usize::try_from(length.get()).map_err(|_| Missed::Corrupt)?;
        let memory = Memory::Buffer(Arc::new(Buffer::zeroed(bytes)));
        let hash = self.shared.hash(key);
        self.shared.load((&hash, key), version, length, &memory, ReadFor::Check).map(drop)
    }

    /// Whether a version of a key can be loaded, or is on its way.
    #[must_use]
    pub fn has(&self, key: &[u8], version: Version) -> bool {
        let hash = self.shared.hash(key);
        let under_way = self.shared.pending.lock();
        under_way.is_stored_now(hash, version) || self.shared.index.get_version(&hash, version).is_some()
    }

    /// Whether there is more than one disk.
    #[must_use]
    pub fn has_several_disks(&self) -> bool {
        self.shared.devices.count() > 1
    }

    /// The number of the disk on which an object stands.
    #[must_use]
    pub fn disk_of(&self, key: &[u8]) -> Option<u8> {
        self.shared.index.get(&self.shared.hash(key)).map(|found| found.place.zone.device())
    }

    /// Lets go of memory that this thread wanted filled, as far as its disk was late and has done so by now. Returns whether
    /// there is more of it. Waits for nothing. Who calls it has its loads in hand from then on, and is to call it again for as long
    /// as there is more.
    #[must_use]
    pub fn settle_late_loads() -> bool {
        settle_abandoned()
    }
}

impl Shared {
    /// Whether a disk may be asked for the record at `place`, by whose header it is looked whether it answers.
    pub(super) fn may_ask(&self, device: &Device, place: Place) -> bool {
        device.overdue.may_load(self.limit, || {
            // What is on the move stands nowhere: then any block tells.
            let zone = place.zone.zone();
            let offset = device.zone(zone).map_or(0, |_| device.offset(zone, place.block));
            let piece = Piece::of_buffer(&Arc::new(Buffer::zeroed(BLOCK)));
            device.disk.submit(vec![Request::read(offset, piece)])
        })
    }

    /// The same. Who is in no haste waits for that, as long as for a request.
    fn may_ask_in_time(&self, device: &Device, place: Place, reason: ReadFor) -> bool {
        let deadline = Instant::now() + self.limit;
        loop {
            let may_ask = self.may_ask(device, place);
            if may_ask || reason.is_hasty() || Instant::now() >= deadline {
                return may_ask;
            }
            std::thread::sleep(LATE_PAUSE);
        }
    }

    /// Whether a disk whose read failed reads nothing at all, not even its superblock: then that says nothing of what was to be
    /// read, and the disk gets no loads for a while. It has `limit` for that, and reads nothing without any.
    pub(super) fn reads_nothing(&self, device: &Device, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let is_unread = |copy: u64| {
            let left = until.saturating_duration_since(Instant::now());
            left.is_zero() || read_block(device, copy * BLOCK_BYTES, left).is_err()
        };
        let reads_nothing = (0..2).all(is_unread);
        if !reads_nothing {
            device.overdue.has_read();
        } else if device.overdue.set_aside(ASIDE) {
            tracing::error!(
                device = device.name,
                "a disk reads nothing: what is on it is a miss until it does"
            );
        }
        reads_nothing
    }

    /// Fills the start of `memory` with the data of a record of `length` bytes.
    pub(super) fn load(
        &self,
        (hash, key): (&RecordHash, &[u8]),
        version: Version,
        length: ByteCount,
        memory: &Memory,
        reason: ReadFor,
    ) -> Result<RecordFacts, Missed> {
        for _ in 0..MOVES_MAX {
            let located = self.index.get_version(hash, version).ok_or(Missed::Absent)?;
            let outcome = self.load_from(located.place, length, memory, reason);
            let now = self.index.get_at(hash, located.place);
            let stands = now.is_some_and(|now| now.version == version);
            match outcome {
                Err(Missed::Failed) => return Err(Missed::Failed),
                // Reclaim took the zone: the record is on its way to another place.
                Err(Missed::Absent) if stands => std::thread::sleep(MOVE_PAUSE),
                // It moved, or was replaced, between the look at the index and that at the disk.
                Ok(_) | Err(_) if !stands => {}
                outcome => return self.judge(hash, key, &located, outcome),
            }
        }
        Err(Missed::Failed)
    }

    /// What was read is the record that was meant, or is forgotten.
    fn judge(
        &self,
        hash: &RecordHash,
        key: &[u8],
        located: &Located,
        outcome: Result<RecordFacts, Missed>,
    ) -> Result<RecordFacts, Missed> {
        let version = located.version;
        let facts = match outcome {
            Ok(facts) if facts.hash == *hash && facts.version == version && facts.key == key => facts,
            Ok(_) | Err(Missed::Corrupt) => {
                self.counters.corrupt_records.fetch_add(1, Ordering::Relaxed);
                tracing::error!(place = ?located.place, "a record of the SSD tier is damaged and is a miss from now on");
                self.forget_record(hash, located.place, DroppedFor::Error);
                return Err(Missed::Corrupt);
            }
            Err(missed) => return Err(missed),
        };
        Ok(facts)
    }

    /// Fills the start of `memory` with the data of the record at `place`.
    pub(super) fn load_from(
        &self,
        place: Place,
        length: ByteCount,
        memory: &Memory,
        reason: ReadFor,
    ) -> Result<RecordFacts, Missed> {
        let device = self.devices.of(place).ok_or(Missed::Absent)?;
        let zone = place.zone.zone();
        let _lease = device.lease(zone).ok_or(Missed::Absent)?;
        let sequence = device.zone(zone).map(|zone| zone.sequence);
        let header = Arc::new(Buffer::zeroed(BLOCK));
        let bytes = usize::try_from(length.get()).map_err(|_| Missed::Corrupt)?;
        let padded = bytes.checked_next_multiple_of(BLOCK).ok_or(Missed::Corrupt)?;
        if place.block as u64 + 1 + (padded / BLOCK) as u64 > u64::from(device.zone_blocks) {
            return Err(Missed::Corrupt);
        }
        if !self.may_ask_in_time(&device, place, reason) {
            return Err(Missed::Failed);
        }
        let offset = device.offset(zone, place.block);
        let (started, served) = (Instant::now(), device.work.begin_load(padded as u64));
        let is_alone = served == padded as u64;
        // What a thread has in hand, and gives up, nobody else can end.
        let how = (is_alone, reason.is_hasty() && settles_abandoned());
        let reading = Reading::new(&device, offset, &header, memory, (bytes, padded), how);
        let summed = reading.sum_up(self.limit);
        device.work.end_load(padded as u64, summed.is_ok().then_some(served), started.elapsed());
        let checksum = match summed {
            Ok(checksum) => checksum,
            Err(error) => {
                device.count_read_error(zone, &error);
                if error.kind() == io::ErrorKind::TimedOut {
                    note_late(&device, memory, padded as u64);
                }
                // All of it is to take no longer than a load may.
                let left = || self.limit.saturating_sub(started.elapsed());
                let blocks = 1 + (padded / BLOCK) as u64;
                // Of a disk that came back in between it can be read. For want of time, the next load of it says.
                let is_unread = || {
                    let again = read_blocks(&*device.disk, offset, blocks, left());
                    again.is_err_and(|error| says_that_it_is_damaged(&error))
                };
                if says_that_it_is_damaged(&error) && !self.reads_nothing(&device, left()) && is_unread() {
                    self.quarantine(&device, zone);
                }
                return Err(Missed::Failed);
            }
        };
        device.overdue.has_read();
        device.work.read_times.observe(started.elapsed());
        device.work.read.add(reason, (padded + BLOCK) as u64);
        let RecordHeader { device: uuid, sequence: written, facts } =
            decode(header.bytes()).map_err(|_| Missed::Corrupt)?;
        let is_ours = uuid == device.uuid && Some(written) == sequence && facts.length == length;
        if is_ours && checksum == facts.checksum { Ok(facts) } else { Err(Missed::Corrupt) }
    }
}

/// Reads one block. A disk that is late with it is asked for nothing until it answers.
///
/// # Errors
/// What the disk says, or that it took longer than `limit`.
pub(super) fn read_block(device: &Device, offset: u64, limit: Duration) -> io::Result<Arc<Buffer>> {
    let block = Arc::new(Buffer::zeroed(BLOCK));
    let outcome = device.disk.submit(vec![Request::read(offset, Piece::of_buffer(&block))]).wait(limit);
    if outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        note_late(device, &Memory::Buffer(Arc::clone(&block)), BLOCK as u64);
    }
    outcome.map(|()| block)
}

/// A request of a disk was late, which may fill `memory` yet: it is asked for nothing until it answers.
fn note_late(device: &Device, memory: &Memory, bytes: u64) {
    if device.overdue.leave(memory, bytes) {
        tracing::warn!(device = device.name, "a disk is late: what is on it is a miss until it answers");
    }
}

/// Whether an error of a read is one of what stands on the disk: not of time, nor of the memory that was to be filled, nor of
/// the way to the disk.
pub(super) fn says_that_it_is_damaged(error: &io::Error) -> bool {
    let is_elsewhere = matches!(
        error.kind(),
        io::ErrorKind::TimedOut
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::OutOfMemory
            | io::ErrorKind::Interrupted
            | io::ErrorKind::WouldBlock
            | io::ErrorKind::InvalidInput
    );
    !is_elsewhere && error.raw_os_error() != Some(libc::EFAULT)
}
