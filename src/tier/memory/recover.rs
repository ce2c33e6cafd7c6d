//! What a restart finds: one listing of the directory, one attribute and one stat per file, no file opened but
//! the packed ones.
//!
//! A file that cannot be used is unlinked, counted and, if something damaged it, said in the log; it is a miss
//! from then on. Files with names that the tier does not give are left alone.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use nix::dir::Dir;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use tidefs_engine::types::{ByteCount, DirectoryId, FileOffset, SegmentId};
use tracing::{info, warn};

use super::attribute::{Attribute, AttributeValue};
use super::error::MemoryError;
use super::name::Entry;
use super::packed::{PackedExtent, PackedPool, PackedRecovery};
use super::record::{DirectoryRecord, ObjectRecord, RecordError, UNFINISHED};
use super::space::{self, Space};

/// Something that was sealed before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// A directory.
    Directory(DirectoryRecord),
    /// An object in a segment of its own.
    Solo {
        /// The segment.
        segment: SegmentId,
        /// What it is.
        record: ObjectRecord,
    },
    /// An object in a segment that its writer still had open when its record was written, or made longer since.
    Unfinished {
        /// The segment.
        segment: SegmentId,
        /// What it was.
        record: ObjectRecord,
    },
    /// An object among others.
    Packed {
        /// Where it lies.
        extent: PackedExtent,
        /// What it is.
        record: ObjectRecord,
    },
}

/// Counts of one recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoverySummary {
    /// Directories told.
    pub directories: u64,
    /// Solo objects told.
    pub solo: u64,
    /// Packed objects told.
    pub packed: u64,
    /// Segments, directories and packed blocks that were never finished, and are gone.
    pub unsealed: u64,
    /// Segments, directories and packed blocks that were damaged, and are gone.
    pub corrupt: u64,
    /// Packed objects of which a later rewrite was found, and that are gone.
    pub superseded: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// The tier's files by kind.
#[derive(Debug, Default)]
pub(super) struct Listing {
    segments: Vec<SegmentId>,
    directories: Vec<DirectoryId>,
    packed: Vec<(u32, DirectoryId)>,
}

impl Listing {
    /// Every file.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        let segments = self.segments.iter().map(|id| Entry::Segment(*id));
        let directories = self.directories.iter().map(|id| Entry::Directory(*id));
        let packed = self.packed.iter().map(|&(index, namespace)| Entry::Packed { index, namespace });
        segments.chain(directories).chain(packed)
    }

    /// A segment id above all that exist.
    pub(super) fn next_segment(&self) -> u64 {
        self.segments.iter().map(|id| id.0.saturating_add(1)).max().unwrap_or(1)
    }

    /// A number above those of all packed segments that exist.
    pub(super) fn next_packed(&self) -> u32 {
        self.packed.iter().map(|(index, _)| index.saturating_add(1)).max().unwrap_or(0)
    }
}

/// Lists the directory of the tier.
pub(super) fn list(space: &Space) -> Result<Listing, MemoryError> {
    let failed = |error| MemoryError::io("list", space.path(), error);
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut directory = Dir::openat(space.directory(), ".", flags, Mode::empty()).map_err(failed)?;
    let mut listing = Listing::default();
    for entry in directory.iter() {
        match Entry::parse(entry.map_err(failed)?.file_name().to_bytes()) {
            Some(Entry::Segment(id)) => listing.segments.push(id),
            Some(Entry::Directory(id)) => listing.directories.push(id),
            Some(Entry::Packed { index, namespace }) => listing.packed.push((index, namespace)),
            None => {}
        }
    }
    Ok(listing)
}

/// See [`super::MemoryTier::recover`].
pub(super) fn recover(
    space: &Space,
    attribute: Attribute,
    pool: &PackedPool,
    visit: &mut dyn FnMut(Recovered),
) -> Result<RecoverySummary, MemoryError> {
    let start = Instant::now();
    let listing = list(space)?;
    let mut recovery = Recovery { space, attribute, summary: RecoverySummary::default() };
    for id in listing.directories {
        if let Some(record) = recovery.directory(id)? {
            recovery.summary.directories += 1;
            visit(Recovered::Directory(record));
        }
    }
    for segment in listing.segments {
        if let Some((record, is_unfinished)) = recovery.solo(segment)? {
            recovery.summary.solo += 1;
            visit(if is_unfinished {
                Recovered::Unfinished { segment, record }
            } else {
                Recovered::Solo { segment, record }
            });
        }
    }
    let mut summary = recovery.summary;
    let mut packed = PackedRecovery::default();
    for (index, namespace) in listing.packed {
        pool.adopt(&mut packed, index, namespace)?;
    }
    pool.tell(&mut packed, &mut |extent, record| visit(Recovered::Packed { extent, record }))?;
    summary.packed = packed.objects;
    summary.unsealed += packed.unsealed;
    summary.corrupt += packed.corrupt;
    summary.superseded = packed.superseded;
    summary.elapsed = start.elapsed();
    info!(
        directories = summary.directories,
        solo = summary.solo,
        packed = summary.packed,
        unsealed = summary.unsealed,
        corrupt = summary.corrupt,
        superseded = summary.superseded,
        elapsed_ms = summary.elapsed.as_millis(),
        "memory tier recovered"
    );
    Ok(summary)
}

/// No file of tmpfs reaches further (`MAX_LFS_FILESIZE` in linux/fs.h), rounded down to pages.
const END_OF_ANY_FILE: u64 = 0x7fff_ffff_ffff_f000;

/// Why a file with a record cannot be used.
#[derive(Debug, thiserror::Error)]
enum Damage {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the file has {file}, its record states {record}")]
    Size { file: ByteCount, record: ByteCount },
    #[error("the record is of directory {found}")]
    Directory { found: DirectoryId },
    #[error("the attribute does not read: {0}")]
    Attribute(#[from] io::Error),
    #[error("it cannot have exactly its pages: {0}")]
    Pages(MemoryError),
}

/// The files with a record of their own.
struct Recovery<'a> {
    space: &'a Space,
    attribute: Attribute,
    summary: RecoverySummary,
}

impl Recovery<'_> {
    fn directory(&mut self, id: DirectoryId) -> Result<Option<DirectoryRecord>, MemoryError> {
        let entry = Entry::Directory(id);
        let found = self.value(entry).and_then(|value| {
            let Some(value) = value else { return Ok(None) };
            let record = DirectoryRecord::decode(value.bytes())?;
            if record.id == id { Ok(Some(record)) } else { Err(Damage::Directory { found: record.id }) }
        });
        self.keep(entry, found)
    }

    /// The record of a segment, and whether its writer may have gone on since, or may yet.
    fn solo(&mut self, segment: SegmentId) -> Result<Option<(ObjectRecord, bool)>, MemoryError> {
        let entry = Entry::Segment(segment);
        let found = match self.value(entry) {
            Ok(Some(value)) => {
                let stat = self.space.stat(&entry.to_string())?;
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                ObjectRecord::decode(value.bytes()).map_err(Damage::from).and_then(|record| {
                    if record.size.get() > size {
                        return Err(Damage::Size { file: ByteCount(size), record: record.size });
                    }
                    let is_unfinished = record.size.get() < size || record.mode & UNFINISHED != 0;
                    if !is_unfinished && space::stat_bytes(&stat) != record.size.round_up_to_pages().get() {
                        self.settle_pages(entry, record.size).map_err(Damage::Pages)?;
                    }
                    Ok(Some((record, is_unfinished)))
                })
            }
            Ok(None) => Ok(None),
            Err(damage) => Err(damage),
        };
        self.keep(entry, found)
    }

    /// Gives a segment, whose writer was at work when the daemon ended, the pages of its length and no others: those
    /// beyond its end that it was to fill, it may have for holes that it made.
    ///
    /// What is beyond goes by a hole, which cuts nothing off: that writer may live, and have it mapped.
    ///
    /// # Errors
    /// [`MemoryError::Full`] when there is no room for what a hole lacks, [`MemoryError::Io`].
    fn settle_pages(&self, entry: Entry, size: ByteCount) -> Result<(), MemoryError> {
        let file = self.space.open(&entry.to_string())?;
        let failed = |error| MemoryError::file("settle the pages of", &file, error);
        let written = file.metadata().and_then(|metadata| metadata.modified()).map_err(failed)?;
        let end = FileOffset(size.round_up_to_pages().get());
        self.space.punch(&file, end, ByteCount(END_OF_ANY_FILE - end.0))?;
        if space::allocated(&file)?.get() < end.0 {
            self.space.reserve(&file, FileOffset(0), size)?;
        }
        file.set_modified(written).map_err(failed)
    }

    fn value(&self, entry: Entry) -> Result<Option<AttributeValue>, Damage> {
        let path = self.space.path().join(entry.to_string());
        let path = CString::new(path.into_os_string().into_vec()).map_err(io::Error::from)?;
        Ok(self.attribute.get_at(&path)?)
    }

    /// Passes on what is whole; unlinks and counts the rest.
    fn keep<T>(&mut self, entry: Entry, found: Result<Option<T>, Damage>) -> Result<Option<T>, MemoryError> {
        match &found {
            Ok(Some(_)) => return Ok(found.unwrap_or(None)),
            Ok(None) => self.summary.unsealed += 1,
            Err(damage) => {
                let file = self.space.path().join(entry.to_string());
                warn!(file = %file.display(), error = %damage, "a damaged file is dropped; its object is a miss");
                self.summary.corrupt += 1;
            }
        }
        self.space.unlink(&entry.to_string())?;
        Ok(None)
    }
}
