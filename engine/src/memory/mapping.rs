//! A shared mapping of a segment file.
//!
//! Invariants
//! - The mapping covers exactly the length it was made with, and lives as long as the value.
//! - The file is never truncated below that length while a mapping of it lives; the memory tier keeps this,
//!   else an access is a SIGBUS.

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicU64;

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::types::ByteCount;

/// A writable shared mapping of the first `length` bytes of a file.
#[derive(Debug)]
pub struct Mapping {
    map: MmapRaw,
}

impl Mapping {
    /// Maps `length` bytes of `file`, which is at least that long and open for reading and writing.
    ///
    /// # Errors
    /// What mmap(2) says; `InvalidInput` when `length` does not fit this machine's addresses.
    pub fn new(file: &File, length: ByteCount) -> io::Result<Self> {
        let length =
            usize::try_from(length.get()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(Self { map: MmapOptions::new().len(length).map_raw(file)? })
    }

    /// Length of the mapping.
    #[must_use]
    pub fn length(&self) -> ByteCount {
        ByteCount(self.map.len() as u64)
    }

    /// First byte of the mapping, for registration with a device and for raw copies while `self` lives.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Has the kernel make the pages of a range and map them, on this thread, so that whoever writes there meets no
    /// faults. Nothing happens on kernels before 5.14, nor outside the mapping: the faults come later then.
    pub fn populate(&self, offset: usize, length: usize) {
        let length = length.min(self.map.len().saturating_sub(offset));
        if length > 0 {
            // A hint: what it says is said again by the fault.
            let _ = self.map.advise_range(Advice::PopulateWrite, offset, length);
        }
    }

    /// Copies bytes out, starting at `offset`. Returns the number copied, less than `target.len()` at the end.
    pub fn read_at(&self, offset: usize, target: &mut [u8]) -> usize {
        let count = self.map.len().saturating_sub(offset).min(target.len());
        // SAFETY: `offset + count <= len`, so the source lies inside the live mapping that `self` owns, and
        // `target` is exclusive; a concurrent writer of the same bytes is excluded by the tier, which never
        // reuses an extent while a reader holds a reference.
        unsafe { std::ptr::copy_nonoverlapping(self.map.as_ptr().add(offset), target.as_mut_ptr(), count) };
        count
    }

    /// Copies `source` in at `offset`. Returns false, and copies nothing, when it does not fit.
    pub fn write_at(&self, offset: usize, source: &[u8]) -> bool {
        let fits = offset.checked_add(source.len()).is_some_and(|end| end <= self.map.len());
        if fits {
            // SAFETY: the target range lies inside the live mapping (`fits`), and the tier hands an extent to one
            // writer at a time, so nobody else reads or writes these bytes.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    source.as_ptr(),
                    self.map.as_mut_ptr().add(offset),
                    source.len(),
                );
            };
        }
        fits
    }

    /// A number in the mapping that processes share; `None` when it leaves the mapping or is not aligned.
    ///
    /// Whoever shares it touches these bytes by atomic operations alone.
    #[must_use]
    pub fn counter(&self, offset: usize) -> Option<&AtomicU64> {
        let end = offset.checked_add(size_of::<AtomicU64>())?;
        let start = self.map.as_mut_ptr().wrapping_add(offset).cast::<AtomicU64>();
        (end <= self.map.len() && start.is_aligned()).then(|| {
            // SAFETY: aligned, and inside the live mapping that `&self` keeps alive; an atomic may change under a shared borrow,
            // whoever changes it.
            unsafe { &*start }
        })
    }

    /// Borrows a range, or `None` when it leaves the mapping.
    ///
    /// The caller holds a reference to the extent, so that nobody writes it while the borrow lives.
    #[must_use]
    pub fn slice(&self, offset: usize, length: usize) -> Option<&[u8]> {
        let end = offset.checked_add(length)?;
        (end <= self.map.len()).then(|| {
            // SAFETY: the range lies inside the live mapping, which `&self` keeps alive; sealed extents are not
            // written while a reference is held, which the caller does.
            unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(offset), length) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_bounds_hold() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mapping = Mapping::new(&file, ByteCount(8192)).unwrap();
        assert!(mapping.write_at(8190, b"ab"));
        assert!(!mapping.write_at(8191, b"ab"));
        let mut target = [0; 4];
        assert_eq!(mapping.read_at(8190, &mut target), 2);
        assert_eq!(&target[..2], b"ab");
        assert_eq!(mapping.slice(8190, 2), Some(&b"ab"[..]));
        assert_eq!(mapping.slice(8190, 3), None);
        assert_eq!(mapping.slice(usize::MAX, 3), None);
    }

    #[test]
    fn a_counter_is_shared_by_all_mappings_of_a_file_and_lies_inside() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let [one, other] = [(); 2].map(|()| Mapping::new(&file, ByteCount(4096)).unwrap());
        one.counter(4088).unwrap().store(7, std::sync::atomic::Ordering::Release);
        assert_eq!(other.counter(4088).unwrap().load(std::sync::atomic::Ordering::Acquire), 7);
        assert!([4089, 4096, 4, usize::MAX - 3].iter().all(|&offset| one.counter(offset).is_none()));
    }
}
