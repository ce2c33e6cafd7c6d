//! Packed objects: many small ones in one segment file, so that each costs its bytes and not a file.
//!
//! One set of segments per namespace, so that pages of one namespace are never handed to another. Inside a
//! segment, blocks lie one behind the other without a gap, each starting with its length (`block`); the free
//! ones are remembered by the daemon (`free_space`), the live ones by nobody but their owner's index: an object
//! costs no daemon memory here. Segments are sparse; pages come and go in grains of [`GRAIN`].
//!
//! Invariants
//! - At every moment, a kill of the daemon included, the blocks of a segment file form one unbroken chain; an
//!   object appears and disappears by one aligned 8-byte write.
//! - A grain in which anything but the inside of a free block lies is allocated, so that no write into a block
//!   meets a full tmpfs, and no read allocates.
//! - An extent is freed only when nobody reads it any more; its owner keeps this.
//!
//! Limits: objects of at most [`PACKED_MAX`] bytes; 2^32 segments in the life of one tmpfs.
//! Threads: any; one lock per namespace, held for the bookkeeping and never while an object's bytes are copied.

mod block;
mod free_space;
mod heap;
mod recover;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};
use tidefs_engine::types::{ByteCount, DirectoryId, FileOffset, ObjectCount, Version};

#[cfg(any(test, feature = "fuzz"))]
pub(crate) use self::block::fuzz;
use self::block::{Block, BlockHeader, HEADER_BYTES, State, UNIT};
use self::heap::Heap;
pub(super) use self::recover::PackedRecovery;
use super::error::MemoryError;
use super::name::Entry;
use super::record::{ObjectRecord, RECORD_BYTES_MAX};
use super::space::Space;

/// Largest object that is packed; larger ones gain nothing from it.
pub const PACKED_MAX: ByteCount = ByteCount::mib(1);

/// Length of a segment file, nearly all of it a hole at first.
const SEGMENT: ByteCount = ByteCount::mib(64);

/// Pages are allocated and given back by this many bytes: few system calls, and little that is idle.
const GRAIN: ByteCount = ByteCount::kib(16);

/// Where a packed object lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedExtent {
    segment: u32,
    /// Offset in the segment in units of 64 bytes.
    unit: u32,
    /// Checksum of the block's header: an extent that outlived its object is noticed.
    tag: u32,
}

const _: () = assert!(size_of::<PackedExtent>() <= 12, "one per object in the index, so it stays small");

impl fmt::Display for PackedExtent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "packed extent {:08x}+{:#x}", self.segment, u64::from(self.unit) * UNIT)
    }
}

/// What packed objects hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedUsage {
    /// Segment files.
    pub segments: u64,
    /// Objects in them.
    pub objects: ObjectCount,
    /// Bytes of their blocks, records and rounding included.
    pub bytes_live: ByteCount,
    /// Bytes of allocated pages.
    pub bytes_allocated: ByteCount,
}

/// One segment file of packed objects.
#[derive(Debug)]
struct Segment {
    index: u32,
    namespace: DirectoryId,
    file: File,
}

impl Segment {
    fn name(&self) -> String {
        Entry::Packed { index: self.index, namespace: self.namespace }.to_string()
    }

    fn error(&self, operation: &'static str, error: io::Error) -> MemoryError {
        MemoryError::file(operation, &self.file, error)
    }

    /// Makes the block at `unit` what `state` says, in one step.
    fn write_mark(&self, unit: u32, state: State, units: u32) -> Result<(), MemoryError> {
        self.file
            .write_all_at(&block::mark(state, units), u64::from(unit) * UNIT)
            .map_err(|error| self.error("write a block of", error))
    }

    /// Reads up to `target.len()` bytes from the start of the block at `unit`.
    fn read_block<'a>(&self, unit: u32, target: &'a mut [u8]) -> Result<&'a [u8], MemoryError> {
        let count = self
            .file
            .read_at(target, u64::from(unit) * UNIT)
            .map_err(|error| self.error("read a block of", error))?;
        Ok(&target[..count])
    }

    /// The header of the object in `extent`, if it is still there.
    fn header(&self, extent: &PackedExtent) -> Result<BlockHeader, MemoryError> {
        let mut bytes = [0; HEADER_BYTES];
        let bytes = self.read_block(extent.unit, &mut bytes)?;
        match BlockHeader::parse(bytes) {
            Some(Block { state: State::Live | State::Retired, header: Some(header), .. })
                if header.tag == extent.tag =>
            {
                Ok(header)
            }
            _ => Err(MemoryError::Stale { extent: *extent }),
        }
    }
}

/// All packed objects of one tier.
#[derive(Debug)]
pub(super) struct PackedPool {
    space: Arc<Space>,
    segment_units: u32,
    /// Guards the table only. Readers take it shared for each access; written when a segment comes or goes.
    segments: RwLock<HashMap<u32, Arc<Segment>>>,
    /// One heap per namespace, each behind its own lock so that namespaces do not wait for each other.
    heaps: RwLock<HashMap<DirectoryId, Arc<Mutex<Heap>>>>,
    next_index: AtomicU32,
}

impl PackedPool {
    /// An empty pool whose new segments are numbered from `next_index`.
    pub(super) fn new(space: Arc<Space>, next_index: u32) -> Self {
        Self::with_segment(space, next_index, SEGMENT)
    }

    fn with_segment(space: Arc<Space>, next_index: u32, segment: ByteCount) -> Self {
        Self {
            space,
            segment_units: u32::try_from(segment.get() / UNIT).expect("a segment has fewer than 2^32 units"),
            segments: RwLock::default(),
            heaps: RwLock::default(),
            next_index: AtomicU32::new(next_index),
        }
    }

    /// Stores an object. See [`super::MemoryTier::pack`].
    pub(super) fn pack(
        &self,
        namespace: DirectoryId,
        record: &ObjectRecord,
        data: &[u8],
    ) -> Result<PackedExtent, MemoryError> {
        self.store(namespace, record, data, (record.version, 0))
    }

    fn store(
        &self,
        namespace: DirectoryId,
        record: &ObjectRecord,
        data: &[u8],
        (origin, generation): (Version, u16),
    ) -> Result<PackedExtent, MemoryError> {
        let name = || std::path::PathBuf::from(String::from_utf8_lossy(&record.name).into_owned());
        let size = ByteCount(data.len() as u64);
        if record.size != size {
            return Err(MemoryError::SizeMismatch { path: name(), file: size, record: record.size });
        }
        if size > PACKED_MAX {
            return Err(MemoryError::TooLarge { size, maximum: PACKED_MAX });
        }
        let encoded = record.encode().map_err(|source| MemoryError::Record { path: name(), source })?;
        let (header, head) = BlockHeader::new(origin, generation, &encoded, data.len());
        let units = header.units();
        let heap = self.heap(namespace);
        let (segment, unit) = heap.lock().allocate(self, namespace, units)?;
        let start = u64::from(unit) * UNIT;
        // The mark says `pending` until everything behind it is written.
        let written = segment
            .file
            .write_all_at(&head, start + block::MARK_BYTES)
            .and_then(|()| segment.file.write_all_at(data, start + header.data_offset()))
            .map_err(|error| segment.error("write a packed object into", error))
            .and_then(|()| segment.write_mark(unit, State::Live, units));
        match written {
            Ok(()) => Ok(PackedExtent { segment: segment.index, unit, tag: header.tag }),
            Err(error) => {
                heap.lock().free(self, &segment, unit, units)?;
                Err(error)
            }
        }
    }

    /// Reads bytes of an object. See [`super::MemoryTier::read_packed`].
    pub(super) fn read(
        &self,
        extent: &PackedExtent,
        offset: FileOffset,
        target: &mut [u8],
    ) -> Result<usize, MemoryError> {
        let segment = self.segment(extent)?;
        let header = segment.header(extent)?;
        let left = header.data_length().saturating_sub(offset.0);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(target.len());
        let start = u64::from(extent.unit) * UNIT + header.data_offset() + offset.0.min(header.data_length());
        segment
            .file
            .read_exact_at(&mut target[..count], start)
            .map_err(|error| segment.error("read a packed object of", error))?;
        Ok(count)
    }

    /// Reads all bytes of an object. See [`super::MemoryTier::read_packed_whole`].
    pub(super) fn read_whole(&self, extent: &PackedExtent, size: ByteCount) -> Result<Vec<u8>, MemoryError> {
        let segment = self.segment(extent)?;
        let header = segment.header(extent)?;
        self.check_size(&segment, extent, &header, size)?;
        let length =
            usize::try_from(size.get()).expect("a header that matches its tag was made from a slice");
        let mut data = vec![0; length];
        segment
            .file
            .read_exact_at(&mut data, u64::from(extent.unit) * UNIT + header.data_offset())
            .map_err(|error| segment.error("read a packed object of", error))?;
        Ok(data)
    }

    /// Refuses an object that has another size than it is known by.
    fn check_size(
        &self,
        segment: &Segment,
        extent: &PackedExtent,
        header: &BlockHeader,
        size: ByteCount,
    ) -> Result<(), MemoryError> {
        let found = ByteCount(header.data_length());
        if found == size {
            return Ok(());
        }
        Err(MemoryError::SizeMismatch { path: self.path_of(segment, extent), file: found, record: size })
    }

    /// The name of an object's place, for messages.
    fn path_of(&self, segment: &Segment, extent: &PackedExtent) -> PathBuf {
        self.space.path().join(format!("{} {extent}", segment.name()))
    }

    /// Reads the record of an object. See [`super::MemoryTier::packed_record`].
    pub(super) fn record(&self, extent: &PackedExtent) -> Result<ObjectRecord, MemoryError> {
        let segment = self.segment(extent)?;
        self.record_in(&segment, extent)
    }

    fn record_in(&self, segment: &Segment, extent: &PackedExtent) -> Result<ObjectRecord, MemoryError> {
        let mut buffer = [0; HEADER_BYTES + RECORD_BYTES_MAX];
        let bytes = segment.read_block(extent.unit, &mut buffer)?;
        let (header, record) = match BlockHeader::parse(bytes) {
            Some(Block { state: State::Live, header: Some(header), .. }) if header.tag == extent.tag => {
                (header, &bytes[HEADER_BYTES..])
            }
            _ => return Err(MemoryError::Stale { extent: *extent }),
        };
        let record = header.record(record);
        let record =
            record.map_err(|source| MemoryError::Record { path: self.path_of(segment, extent), source })?;
        self.check_size(segment, extent, &header, record.size)?;
        Ok(record)
    }

    /// Gives an object another record. See [`super::MemoryTier::rewrite_packed`].
    pub(super) fn rewrite(
        &self,
        extent: PackedExtent,
        namespace: DirectoryId,
        record: &ObjectRecord,
    ) -> Result<PackedExtent, MemoryError> {
        let header = self.segment(&extent)?.header(&extent)?;
        let data = self.read_whole(&extent, ByteCount(header.data_length()))?;
        let rewritten = (header.origin, header.generation.saturating_add(1));
        let new = self.store(namespace, record, &data, rewritten)?;
        if let Err(error) = self.free(extent) {
            self.free(new)?;
            return Err(error);
        }
        Ok(new)
    }

    /// Takes an object away. See [`super::MemoryTier::free_packed`].
    pub(super) fn free(&self, extent: PackedExtent) -> Result<(), MemoryError> {
        let segment = self.segment(&extent)?;
        let heap = self.heap(segment.namespace);
        {
            let mut heap = heap.lock();
            // Looked at under the lock, so that of two who free one extent the second is told.
            let header = segment.header(&extent)?;
            heap.free(self, &segment, extent.unit, header.units())?;
            if !heap.is_empty() {
                return Ok(());
            }
        }
        drop(heap);
        self.drop_empty_heap(segment.namespace);
        Ok(())
    }

    /// Namespaces come and go: one without packed objects has no heap.
    fn drop_empty_heap(&self, namespace: DirectoryId) {
        let mut heaps = self.heaps.write();
        // Nobody else has it, or gets it under this lock.
        let is_free = |heap: &Arc<Mutex<Heap>>| Arc::strong_count(heap) == 1 && heap.lock().is_empty();
        if heaps.get(&namespace).is_some_and(is_free) {
            heaps.remove(&namespace);
        }
    }

    /// Makes an object readable until it is freed, and garbage for a restart. See
    /// [`super::MemoryTier::retire_packed`].
    pub(super) fn retire(&self, extent: PackedExtent) -> Result<(), MemoryError> {
        let segment = self.segment(&extent)?;
        let heap = self.heap(segment.namespace);
        // Under the lock, so that nobody frees it meanwhile.
        let _heap = heap.lock();
        let header = segment.header(&extent)?;
        segment.write_mark(extent.unit, State::Retired, header.units())
    }

    /// Sums over all namespaces.
    pub(super) fn usage(&self) -> PackedUsage {
        let heaps: Vec<_> = self.heaps.read().values().cloned().collect();
        let mut usage = PackedUsage::default();
        for heap in heaps {
            heap.lock().add_to(&mut usage);
        }
        usage
    }

    fn segment(&self, extent: &PackedExtent) -> Result<Arc<Segment>, MemoryError> {
        let found = self.segments.read().get(&extent.segment).cloned();
        found.ok_or(MemoryError::Stale { extent: *extent })
    }

    fn heap(&self, namespace: DirectoryId) -> Arc<Mutex<Heap>> {
        if let Some(heap) = self.heaps.read().get(&namespace) {
            return Arc::clone(heap);
        }
        let mut heaps = self.heaps.write();
        Arc::clone(
            heaps.entry(namespace).or_insert_with(|| Arc::new(Mutex::new(Heap::new(self.segment_units)))),
        )
    }

    /// Makes a segment that is one free block, with its first grain allocated.
    fn create_segment(&self, namespace: DirectoryId) -> Result<Arc<Segment>, MemoryError> {
        let index = self
            .next_index
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |index| index.checked_add(1))
            .map_err(|_| {
                let cause = io::Error::other("all 2^32 numbers are used; stop with on_stop=discard");
                MemoryError::io("number a packed segment in", self.space.path(), cause)
            })?;
        let name = Entry::Packed { index, namespace }.to_string();
        let segment = Arc::new(Segment { index, namespace, file: self.space.create(&name)? });
        let made = self
            .space
            .reserve(&segment.file, FileOffset(0), GRAIN)
            .and_then(|()| segment.write_mark(0, State::Free, self.segment_units));
        if let Err(error) = made {
            self.space.unlink(&name)?;
            return Err(error);
        }
        self.segments.write().insert(index, Arc::clone(&segment));
        Ok(segment)
    }

    /// Removes a segment without objects.
    fn remove_segment(&self, segment: &Segment) -> Result<(), MemoryError> {
        self.segments.write().remove(&segment.index);
        self.space.unlink(&segment.name())
    }
}

#[cfg(test)]
mod tests;
