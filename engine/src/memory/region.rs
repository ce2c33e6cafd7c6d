//! Memory that transfers read and write.
//!
//! Invariants
//! - `base` is valid for `length` bytes for as long as the region lives; every [`MemorySlice`] holds its region, so
//!   memory that a transport may still touch is never unmapped.
//! - Bytes are only ever touched through raw pointers: another process may change them at any time, so no Rust
//!   reference to them is made.
//! - What two transfers write into the same bytes at once is whatever arrives last, byte for byte; who submits them
//!   keeps them apart.

use std::fs::File;
use std::hash::Hasher as _;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};
use nix::unistd::{SysconfVar, sysconf};
use twox_hash::XxHash3_64;

use super::Mapping;
use crate::error::Error;
use crate::types::{ByteCount, NumaNode, RegionId};

/// What peers may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Peers may read.
    Read,
    /// Peers may read and write.
    ReadWrite,
}

/// Pages that back anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Pages of the kernel's choice.
    Base,
    /// hugetlb pages of 2 MiB, from the host's reserved pool.
    Huge2M,
}

/// Who keeps the memory mapped.
#[derive(Debug)]
enum Owner {
    Mapped(#[expect(dead_code, reason = "held for its Drop")] MmapRaw),
    Shared(#[expect(dead_code, reason = "held for its Drop")] Arc<Mapping>),
}

/// A contiguous range of this process's memory, and the file behind it.
#[derive(Debug)]
pub struct Region {
    base: *mut u8,
    length: ByteCount,
    file: Option<Arc<File>>,
    access: Access,
    is_writable: bool,
    _owner: Owner,
}

// SAFETY: `base` points to shared memory that `owner` keeps mapped; it is only used for raw copies and system calls,
// which any thread may make, and what racing copies do to the bytes is stated in the invariants above.
unsafe impl Send for Region {}
// SAFETY: as for Send; no method hands out a Rust reference to the bytes.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the first `length` bytes of a segment file.
    ///
    /// # Errors
    /// What mmap(2) says, with `length` larger than the address space as `EINVAL`.
    pub fn of_file(file: Arc<File>, length: ByteCount, access: Access) -> io::Result<Self> {
        let map = MmapOptions::new().len(to_usize(length)?).map_raw(&*file)?;
        Ok(Self {
            base: map.as_mut_ptr(),
            length,
            file: Some(file),
            access,
            is_writable: true,
            _owner: Owner::Mapped(map),
        })
    }

    /// Takes a mapping that somebody else made too, and the file it maps from its start.
    #[must_use]
    pub fn of_mapping(mapping: Arc<Mapping>, file: Arc<File>, access: Access) -> Self {
        let (base, length) = (mapping.base(), mapping.length());
        Self { base, length, file: Some(file), access, is_writable: true, _owner: Owner::Shared(mapping) }
    }

    /// Makes zeroed memory of its own. A memfd, so that a peer on this host can map it.
    ///
    /// # Errors
    /// What memfd_create(2), ftruncate(2) and mmap(2) say; `ENOMEM` when the pool of huge pages is too small.
    pub fn anonymous(length: ByteCount, pages: PageKind, access: Access) -> io::Result<Self> {
        let flags = match pages {
            PageKind::Base => MFdFlags::MFD_CLOEXEC,
            PageKind::Huge2M => MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB,
        };
        let file = File::from(memfd_create(c"tidefs-region", flags)?);
        file.set_len(length.get())?;
        Self::of_file(Arc::new(file), length, access)
    }

    /// Maps memory that a peer on this host passed as a descriptor.
    ///
    /// # Errors
    /// As [`Region::of_file`]. `EINVAL` when the file is shorter than `length`: an access would be a SIGBUS.
    pub fn of_descriptor(descriptor: OwnedFd, length: ByteCount, access: Access) -> io::Result<Self> {
        let file = File::from(descriptor);
        if file.metadata()?.len() < length.get() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        match access {
            Access::ReadWrite => Self::of_file(Arc::new(file), length, access),
            Access::Read => {
                let map = MmapOptions::new().len(to_usize(length)?).map_raw_read_only(&file)?;
                let base = map.as_mut_ptr();
                let (file, is_writable) = (Some(Arc::new(file)), false);
                Ok(Self { base, length, file, access, is_writable, _owner: Owner::Mapped(map) })
            }
        }
    }

    /// Length in bytes.
    #[must_use]
    pub fn length(&self) -> ByteCount {
        self.length
    }

    /// What peers may do.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The file that the region maps from its start, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&Arc<File>> {
        self.file.as_ref()
    }

    /// First byte, for registration with a device. Valid for as long as the region lives.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Size of its pages in bytes, as a NIC counts them: that of hugetlb pages, or of the kernel's smallest.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.file.as_ref().and_then(|file| huge_page_bytes(file)).unwrap_or_else(|| {
            let smallest = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
            smallest.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(4096)
        })
    }

    /// Copies bytes out. Returns false, and copies nothing, when the range leaves the region.
    pub fn read_at(&self, offset: u64, target: &mut [u8]) -> bool {
        let Some(start) = self.start_of(offset, target.len()) else { return false };
        // SAFETY: `start_of` checked that the range lies inside the region, which is mapped while `self` lives; the
        // target is exclusive.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(start), target.as_mut_ptr(), target.len()) };
        true
    }

    /// Whether this process may store into the memory.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Copies bytes in. Returns false, and copies nothing, when the range leaves the region or may only be read here.
    pub fn write_at(&self, offset: u64, source: &[u8]) -> bool {
        let Some(start) = self.start_of(offset, source.len()).filter(|_| self.is_writable) else {
            return false;
        };
        // SAFETY: as in `read_at`, with the region as the target, which is mapped writable.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), self.base.add(start), source.len()) };
        true
    }

    /// Offset as an index, when `length` bytes from there lie inside.
    fn start_of(&self, offset: u64, length: usize) -> Option<usize> {
        let end = offset.checked_add(u64::try_from(length).ok()?)?;
        (end <= self.length.get()).then(|| usize::try_from(offset).ok()).flatten()
    }
}

/// Size of the pages of a hugetlb file in bytes; `None` for other files.
fn huge_page_bytes(file: &File) -> Option<u64> {
    let found = fstatfs(file).ok().filter(|found| found.filesystem_type() == HUGETLBFS_MAGIC)?;
    u64::try_from(found.block_size()).ok()
}

fn to_usize(length: ByteCount) -> io::Result<usize> {
    usize::try_from(length.get()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// A range of a registered region, checked when it was made. Holding it keeps the memory mapped.
#[derive(Clone, Debug)]
pub struct MemorySlice {
    region: Arc<Region>,
    id: RegionId,
    offset: u64,
    length: usize,
}

impl MemorySlice {
    /// `length` bytes at `offset` of `region`, which is registered as `id`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when they leave the region.
    pub fn new(region: &Arc<Region>, id: RegionId, offset: u64, length: ByteCount) -> Result<Self, Error> {
        let fits =
            usize::try_from(length.get()).ok().filter(|&length| region.start_of(offset, length).is_some());
        let Some(length) = fits else {
            return Err(Error::OutOfRange { region: id, offset, length, region_length: region.length() });
        };
        Ok(Self { region: Arc::clone(region), id, offset, length })
    }

    /// The part of this slice that starts `from` bytes in and is at most `length` long.
    #[must_use]
    pub fn part(&self, from: usize, length: usize) -> Self {
        let from = from.min(self.length);
        Self {
            region: Arc::clone(&self.region),
            id: self.id,
            offset: self.offset + from as u64,
            length: length.min(self.length - from),
        }
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// What the region is registered as.
    #[must_use]
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// Start in the region, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// First byte. Valid for [`Self::length`] bytes for as long as the slice lives.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        // `new` and `part` keep `offset <= length of the region`, which fits usize; so this is the same pointer as
        // `base.add(offset)`, without unsafe.
        #[expect(clippy::cast_possible_truncation, reason = "an offset inside a mapping fits usize")]
        self.region.base.wrapping_add(self.offset as usize)
    }

    /// Copies all bytes from `source`, of which at least as many are there. Source and target may be one memory
    /// mapped twice: the copy is then as memmove(3) for equal addresses, and undefined bytes, not undefined
    /// behaviour, for ranges that overlap through two mappings.
    ///
    /// # Panics
    /// When this slice's memory may only be read here: submission checks that before any transport sees it.
    pub fn copy_from(&self, source: &Self) {
        assert!(self.region.is_writable, "a slice of read-only memory is no target");
        let length = self.length.min(source.length);
        // SAFETY: both slices were checked against their regions, which they keep mapped. `copy` allows overlap.
        unsafe { std::ptr::copy(source.start(), self.start(), length) };
    }

    /// The NUMA node that its first page is on.
    ///
    /// # Errors
    /// `ENOENT` for a page that is not there yet; `EPERM` or `ENOSYS` where the kernel does not tell.
    pub fn node(&self) -> io::Result<NumaNode> {
        super::node::node_of(self.start())
    }

    /// xxh3-64 of the bytes as they are now.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        let mut hasher = XxHash3_64::new();
        let mut piece = [0; 16 << 10];
        let mut done = 0;
        while done < self.length {
            let count = piece.len().min(self.length - done);
            self.region.read_at(self.offset + done as u64, &mut piece[..count]);
            hasher.write(&piece[..count]);
            done += count;
        }
        hasher.finish()
    }

    /// Adds the bytes to a checksum of what is before them, and needs no copy of them.
    ///
    /// # Safety
    /// Nobody writes to them meanwhile, in this process or another one.
    pub unsafe fn hash_into(&self, hasher: &mut XxHash3_64) {
        // SAFETY: the slice was checked against its region, which it keeps mapped; nobody writes, says the caller.
        hasher.write(unsafe { std::slice::from_raw_parts(self.start(), self.length) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(length: u64) -> Arc<Region> {
        Arc::new(Region::anonymous(ByteCount(length), PageKind::Base, Access::ReadWrite).unwrap())
    }

    #[test]
    fn a_slice_outside_its_region_is_refused() {
        let region = region(8192);
        let slice = |offset, length| MemorySlice::new(&region, RegionId(7), offset, ByteCount(length));
        assert!(slice(0, 8192).is_ok());
        assert!(slice(8192, 0).is_ok());
        for (offset, length) in [(0, 8193), (8192, 1), (u64::MAX, 1), (1, u64::MAX)] {
            let wanted = Error::OutOfRange {
                region: RegionId(7),
                offset,
                length: ByteCount(length),
                region_length: ByteCount(8192),
            };
            assert_eq!(slice(offset, length).map(|_| ()), Err(wanted));
        }
    }

    #[test]
    fn hugetlb_memory_has_huge_pages_and_other_memory_base_pages() {
        assert!([4096, 16_384, 65_536].contains(&region(4096).page_bytes()));
        // Without a pool of huge pages it can be made, but not mapped.
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB;
        match memfd_create(c"tidefs-test", flags) {
            Ok(huge) => assert_eq!(huge_page_bytes(&File::from(huge)), Some(2 << 20)),
            Err(error) => eprintln!("skipped: this kernel has no hugetlb memory: {error}"),
        }
    }

    #[test]
    fn bytes_go_from_slice_to_slice_and_checksums_tell_them_apart() {
        let (source, target) = (region(1 << 20), region(1 << 20));
        let bytes: Vec<u8> = (0..100_000_u32).map(|index| (index % 251) as u8).collect();
        assert!(source.write_at(5, &bytes));
        let from = MemorySlice::new(&source, RegionId(1), 5, ByteCount(100_000)).unwrap();
        let to = MemorySlice::new(&target, RegionId(2), 77, ByteCount(100_000)).unwrap();
        assert_ne!(from.checksum(), to.checksum());
        to.copy_from(&from);
        assert_eq!(to.checksum(), XxHash3_64::oneshot(&bytes));
        let mut hasher = XxHash3_64::new();
        for (offset, length) in [(0, 1), (1, 70_000), (70_001, 29_999)] {
            // SAFETY: this test alone has the memory.
            unsafe { to.part(offset, length).hash_into(&mut hasher) };
        }
        assert_eq!(hasher.finish(), to.checksum(), "by parts");
        let mut found = vec![0; 10];
        assert!(target.read_at(77 + 99_990, &mut found));
        assert_eq!(found, bytes[99_990..]);
        assert!(!target.read_at((1 << 20) - 9, &mut found));
    }

    #[test]
    fn a_part_stays_inside_its_slice() {
        let region = region(4096);
        let slice = MemorySlice::new(&region, RegionId(1), 100, ByteCount(50)).unwrap();
        let part = slice.part(40, 100);
        assert_eq!((part.offset(), part.length()), (140, 10));
        assert_eq!(slice.part(51, 1).length(), 0);
    }

    #[test]
    fn a_descriptor_shorter_than_its_region_is_refused() {
        let short = File::from(memfd_create(c"short", MFdFlags::empty()).unwrap());
        short.set_len(4095).unwrap();
        let refused = Region::of_descriptor(short.into(), ByteCount(4096), Access::Read);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
