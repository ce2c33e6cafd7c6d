//! The memory tier: the bytes of objects in a private tmpfs, one file per segment.
//!
//! A sealed solo object is exactly one segment file, which the kernel serves by FUSE passthrough: neither a read
//! nor a write of it passes through here. That is why the tier never keeps count of what writers put into a
//! segment: it asks the tmpfs. The tmpfs is mounted by path and outlives the daemon, and each segment carries its
//! record as an extended attribute, so a restart finds every sealed object by listing one directory.
//!
//! Invariants
//! - `size=` of the tmpfs is the capacity and a page for the names clock, so used bytes cannot pass it, whoever writes.
//! - A segment with a record is whole, and exactly as long as its record says; one without is garbage after a
//!   restart.
//! - A segment id is never used twice, so a stale one never names somebody else's bytes.
//! - Once [`MemoryTier::fill_holes`] succeeded, no access to a sealed segment allocates a page.
//!
//! Limits: capacity of at least 1 MiB; a write or a reservation beyond the capacity is [`MemoryError::Full`], and
//! the caller evicts. Without the right to mount, the directory itself serves if it lies on a tmpfs
//! (`private_mount` in the report says which).
//! Threads: any thread, every method; nothing here waits for anything but the kernel.

// The private tmpfs: mounted, opened, and what a start finds in it.
mod error;
mod mount;
mod open;
mod recover;

// Files in it: segments with their records, those of directories, packed ones, and the clock of names.
mod attribute;
mod checksum;
mod clock;
mod directories;
mod name;
mod packed;
mod record;

// Pages: counted, allocated, and touched ahead.
mod huge_page;
mod prefault;
mod probe;
mod space;
mod zeros;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidefs_engine::types::{ByteCount, DirectoryId, FileOffset, PAGE, SegmentId};

use self::attribute::Attribute;
use self::name::Entry;
use self::packed::PackedPool;
use self::space::Space;

pub use self::checksum::{checksum_bytes, checksum_file};
pub use self::clock::NamesClock;
pub use self::error::MemoryError;
pub use self::huge_page::HugePage;
pub use self::open::{HugePages, MemoryConfig, MemoryReport};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use self::packed::fuzz;
pub use self::packed::{PACKED_MAX, PackedExtent, PackedUsage};
pub use self::prefault::{CHUNK, Prefault};
pub use self::record::{
    DECORATED, DirectoryRecord, NAME_BYTES_MAX, ObjectRecord, Pin, PolicyRecord, RECORD_BYTES_MAX,
    RecordError, SOFT_COPY, UNFINISHED,
};
pub use self::recover::{Recovered, RecoverySummary};
pub use self::space::MemoryUsage;
pub use self::zeros::write_zeros;

/// The memory tier of one mount.
#[derive(Debug)]
pub struct MemoryTier {
    space: Arc<Space>,
    attribute: Attribute,
    packed: PackedPool,
    next_segment: AtomicU64,
    clock: Arc<NamesClock>,
    report: MemoryReport,
}

impl MemoryTier {
    /// What the tier really got.
    #[must_use]
    pub fn report(&self) -> MemoryReport {
        MemoryReport { shrink_pending: self.space.shrink_pending(), ..self.report.clone() }
    }

    /// The clock by which clients see that names changed.
    #[must_use]
    pub fn names_clock(&self) -> &Arc<NamesClock> {
        &self.clock
    }

    /// Bytes of the tier now, those that writers added by passthrough included.
    ///
    /// # Errors
    /// [`MemoryError::Io`] when the kernel does not say.
    pub fn usage(&self) -> Result<MemoryUsage, MemoryError> {
        self.space.usage()
    }

    /// Free memory that is touched ahead of its use, which [`Self::usage`] does not tell of; `None` where there is to be none.
    #[must_use]
    pub fn prefault(&self) -> Option<&Prefault> {
        self.space.prefault()
    }

    /// A place to touch a page before a file gets it. None where files get small pages: those do not come from a huge one that
    /// was freed, unless by chance.
    #[must_use]
    pub fn huge_page(&self) -> Option<HugePage> {
        if self.report.page_size == Some(PAGE) { None } else { HugePage::new() }
    }

    /// Tries a pending shrink again, if little enough is in use by now; without one this costs nothing. Returns whether the tmpfs
    /// has its configured size.
    ///
    /// # Errors
    /// [`MemoryError::Io`] for any other reason than that too much is in use.
    pub fn retry_resize(&self) -> Result<bool, MemoryError> {
        if self.space.shrink_pending() && self.usage()?.used <= self.space.capacity() {
            let own = mount::options_of_own(self.space.path())
                .map_err(|error| MemoryError::io("read the mount table for", self.space.path(), error))?;
            open::resize(&self.space, own.as_deref().unwrap_or_default())?;
        }
        Ok(!self.space.shrink_pending())
    }

    /// Makes an empty segment, open for reading and writing, with an id that was never used.
    ///
    /// # Errors
    /// [`MemoryError::Io`].
    pub fn create_segment(&self) -> Result<(SegmentId, File), MemoryError> {
        let id = SegmentId(self.next_segment.fetch_add(1, Ordering::Relaxed));
        let file = self.space.create(&Entry::Segment(id).to_string())?;
        Ok((id, file))
    }

    /// Opens a segment for reading and writing.
    ///
    /// # Errors
    /// [`MemoryError::Io`], also when there is no such segment.
    pub fn open_segment(&self, segment: SegmentId) -> Result<File, MemoryError> {
        self.space.open(&Entry::Segment(segment).to_string())
    }

    /// Removes a segment's name; that it is gone already is fine. Its pages go with its last open file or mapping.
    ///
    /// # Errors
    /// [`MemoryError::Io`].
    pub fn remove_segment(&self, segment: SegmentId) -> Result<(), MemoryError> {
        self.space.unlink(&Entry::Segment(segment).to_string())
    }

    /// Allocates the pages of a range, so that writing it cannot fail. The file's size stays.
    ///
    /// # Errors
    /// [`MemoryError::Full`] when not all fit; then exactly those pages are allocated that were before.
    pub fn reserve(&self, file: &File, offset: FileOffset, length: ByteCount) -> Result<(), MemoryError> {
        self.space.reserve(file, offset, length)
    }

    /// Makes the file exactly `length` long and gives back every page beyond, reserved ones included.
    ///
    /// Nobody may map the file beyond `length`: such an access becomes a SIGBUS.
    ///
    /// # Errors
    /// [`MemoryError::Io`].
    pub fn trim(&self, file: &File, length: ByteCount) -> Result<(), MemoryError> {
        self.space.trim(file, length)
    }

    /// Gives back the pages that lie wholly in a range, all of which reads as zeros from then on. The file's size stays.
    ///
    /// # Errors
    /// [`MemoryError::Io`].
    pub fn punch(&self, file: &File, offset: FileOffset, length: ByteCount) -> Result<(), MemoryError> {
        self.space.punch(file, offset, length)
    }

    /// Allocates what is not allocated of the first `length` bytes, so that no later access does.
    ///
    /// # Errors
    /// [`MemoryError::Full`].
    pub fn fill_holes(&self, file: &File, length: ByteCount) -> Result<(), MemoryError> {
        self.space.reserve(file, FileOffset(0), length)
    }

    /// Makes the segment an object: from now on a restart finds it. Replaces an earlier record in one step. The file may be
    /// longer than the record says: its writer may go on at any moment, and a restart cuts off what came after.
    ///
    /// # Errors
    /// [`MemoryError::SizeMismatch`] when the file is shorter than the record says, [`MemoryError::Record`],
    /// [`MemoryError::Io`].
    pub fn seal(&self, file: &File, record: &ObjectRecord) -> Result<(), MemoryError> {
        let size = file.metadata().map_err(|error| MemoryError::file("stat", file, error))?.len();
        if size < record.size.get() {
            return Err(MemoryError::SizeMismatch {
                path: error::path_of(file),
                file: ByteCount(size),
                record: record.size,
            });
        }
        self.seal_measured(file, record)
    }

    /// The same for who took the size in the record from the file itself, a moment ago: it is not asked once more.
    ///
    /// # Errors
    /// [`MemoryError::Record`], [`MemoryError::Io`].
    pub fn seal_measured(&self, file: &File, record: &ObjectRecord) -> Result<(), MemoryError> {
        let encoded =
            record.encode().map_err(|source| MemoryError::Record { path: error::path_of(file), source })?;
        self.attribute
            .set(file, &encoded)
            .map_err(|error| MemoryError::file("write the record of", file, error))
    }

    /// Makes the segment garbage for a restart again; that it was is fine.
    ///
    /// # Errors
    /// [`MemoryError::Io`].
    pub fn unseal(&self, file: &File) -> Result<(), MemoryError> {
        self.attribute.remove(file).map_err(|error| MemoryError::file("remove the record of", file, error))
    }

    /// The same, of a segment that is not open here.
    ///
    /// # Errors
    /// [`MemoryError::Io`], also when there is no such segment.
    pub fn unseal_segment(&self, segment: SegmentId) -> Result<(), MemoryError> {
        let path = self.space.path().join(Entry::Segment(segment).to_string());
        let removed = CString::new(path.as_os_str().as_bytes())
            .map_err(io::Error::from)
            .and_then(|path| self.attribute.remove_at(&path));
        removed.map_err(|error| MemoryError::io("remove the record of", path, error))
    }

    /// The record of a segment; `None` when it is not sealed.
    ///
    /// # Errors
    /// [`MemoryError::Record`] when it does not decode, [`MemoryError::Io`].
    pub fn read_record(&self, file: &File) -> Result<Option<ObjectRecord>, MemoryError> {
        let value =
            self.attribute.get(file).map_err(|error| MemoryError::file("read the record of", file, error))?;
        value
            .map(|value| ObjectRecord::decode(value.bytes()))
            .transpose()
            .map_err(|source| MemoryError::Record { path: error::path_of(file), source })
    }

    /// Stores a small object, whole or not at all, whenever the daemon may be killed. `namespace` is the
    /// top-level directory it lies below; its pages hold nothing of another.
    ///
    /// # Errors
    /// [`MemoryError::Full`], [`MemoryError::TooLarge`] above [`PACKED_MAX`], [`MemoryError::SizeMismatch`] when
    /// `data` is not as long as the record says, [`MemoryError::Record`], [`MemoryError::Io`].
    pub fn pack(
        &self,
        namespace: DirectoryId,
        record: &ObjectRecord,
        data: &[u8],
    ) -> Result<PackedExtent, MemoryError> {
        self.packed.pack(namespace, record, data)
    }

    /// Reads bytes of a packed object from `offset` on. Returns how many, less than `target.len()` at its end.
    ///
    /// # Errors
    /// [`MemoryError::Stale`] when the object was freed, [`MemoryError::Io`].
    pub fn read_packed(
        &self,
        extent: &PackedExtent,
        offset: FileOffset,
        target: &mut [u8],
    ) -> Result<usize, MemoryError> {
        self.packed.read(extent, offset, target)
    }

    /// Reads all bytes of a packed object, which is known to have `size` of them.
    ///
    /// # Errors
    /// Those of [`Self::read_packed`], and [`MemoryError::SizeMismatch`] when it has fewer or more.
    pub fn read_packed_whole(&self, extent: &PackedExtent, size: ByteCount) -> Result<Vec<u8>, MemoryError> {
        self.packed.read_whole(extent, size)
    }

    /// The record of a packed object.
    ///
    /// # Errors
    /// [`MemoryError::Stale`], [`MemoryError::Record`], [`MemoryError::Io`].
    pub fn packed_record(&self, extent: &PackedExtent) -> Result<ObjectRecord, MemoryError> {
        self.packed.record(extent)
    }

    /// Gives a packed object another record (a new name, other times), in `namespace`, and returns its new place;
    /// the old one is freed, so nobody may be reading it. A restart finds one of the two, provided that the
    /// version stays the same.
    ///
    /// # Errors
    /// Those of [`Self::pack`] and [`Self::read_packed`]; then the object is as before.
    pub fn rewrite_packed(
        &self,
        extent: PackedExtent,
        namespace: DirectoryId,
        record: &ObjectRecord,
    ) -> Result<PackedExtent, MemoryError> {
        self.packed.rewrite(extent, namespace, record)
    }

    /// Takes a packed object away; a restart does not find it any more. Nobody may be reading it.
    ///
    /// # Errors
    /// [`MemoryError::Stale`] when it is gone already, [`MemoryError::Io`].
    pub fn free_packed(&self, extent: PackedExtent) -> Result<(), MemoryError> {
        self.packed.free(extent)
    }

    /// Takes the name of a packed object away: a restart does not find it, and who reads it still may until
    /// [`Self::free_packed`].
    ///
    /// # Errors
    /// [`MemoryError::Stale`] when it was freed already, [`MemoryError::Io`].
    pub fn retire_packed(&self, extent: PackedExtent) -> Result<(), MemoryError> {
        self.packed.retire(extent)
    }

    /// What packed objects hold.
    #[must_use]
    pub fn packed_usage(&self) -> PackedUsage {
        self.packed.usage()
    }

    /// Tells `visit` everything that was sealed before the daemon last stopped: directories first, in no order
    /// among themselves, then solo and packed objects. Unlinks what was not sealed and what does not parse.
    ///
    /// Call it once, before anything is created. `visit` may remove what it is told.
    ///
    /// # Errors
    /// [`MemoryError::Io`] when the directory or a file of packed objects cannot be read at all.
    pub fn recover(&self, visit: &mut dyn FnMut(Recovered)) -> Result<RecoverySummary, MemoryError> {
        recover::recover(&self.space, self.attribute, &self.packed, visit)
    }

    /// Gives up everything the tier holds: unmounts the private tmpfs and removes its directory, or deletes the
    /// tier's files where it has none. Memory of files that are open lives until they are closed, the tier's own
    /// ones until it is dropped. Nothing but dropping may follow.
    ///
    /// # Errors
    /// [`MemoryError::Io`].
    pub fn discard(&self) -> Result<(), MemoryError> {
        let path = self.space.path();
        self.clock.end(&self.space)?;
        if self.report.private_mount {
            mount::unmount(path).map_err(|error| MemoryError::io("unmount", path, error))?;
        } else {
            for entry in recover::list(&self.space)?.entries() {
                self.space.unlink(&entry.to_string())?;
            }
        }
        match std::fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            outcome => outcome.map_err(|error| MemoryError::io("remove", path, error)),
        }
    }
}

#[cfg(test)]
mod space_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
