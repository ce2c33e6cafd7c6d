//! A shared mapping of a segment file.
//!
//! Invariants
//! - The mapping covers exactly the length it was made with, and lives as long as the value.
//! - The file is never truncated below that length while a mapping of it lives; the memory tier keeps this,
//!   else an access is a SIGBUS. Where the kernel alone copies, it may be.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
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

    /// Has the kernel copy a range into `file`, to `at`. Nobody borrows these bytes, so others may write them meanwhile, and what
    /// was cut off the mapped file is an error (`EFAULT`) and no SIGBUS.
    ///
    /// # Errors
    /// What pwrite(2) says; `InvalidInput` when the range leaves the mapping.
    pub fn copy_to_file(&self, offset: usize, length: usize, file: &File, at: u64) -> io::Result<()> {
        let copied = self.copy_by_kernel(offset, length, at, |start, length, at| {
            // SAFETY: the kernel reads `length` bytes at `start`, which lie in the live mapping.
            unsafe { libc::pwrite(file.as_raw_fd(), start, length, at) }
        })?;
        if copied < length { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }

    /// Has the kernel copy what `file` has from `at` on into a range. Returns how many bytes those were, less than `length` where
    /// the file ends. As by [`Mapping::copy_to_file`], nobody borrows them.
    ///
    /// # Errors
    /// What pread(2) says; `InvalidInput` when the range leaves the mapping.
    pub fn copy_from_file(&self, offset: usize, length: usize, file: &File, at: u64) -> io::Result<usize> {
        self.copy_by_kernel(offset, length, at, |start, length, at| {
            // SAFETY: the kernel writes `length` bytes at `start`, which lie in the live mapping; who shares this range knows that
            // it changes, and no part of it is borrowed.
            unsafe { libc::pread(file.as_raw_fd(), start, length, at) }
        })
    }

    /// Calls `copy` with the start of a part of the range, its length, and where it is in the file, until all is copied or there
    /// is no more. Returns how many bytes were copied.
    fn copy_by_kernel(
        &self,
        offset: usize,
        length: usize,
        at: u64,
        copy: impl Fn(*mut libc::c_void, usize, libc::off_t) -> libc::ssize_t,
    ) -> io::Result<usize> {
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.map.len());
        let mut done = 0;
        while is_inside && done < length {
            let position = at.checked_add(done as u64).and_then(|at| libc::off_t::try_from(at).ok());
            let position = position.ok_or(io::ErrorKind::InvalidInput)?;
            let start = self.map.as_mut_ptr().wrapping_add(offset + done);
            match usize::try_from(copy(start.cast(), length - done, position)) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        if is_inside { Ok(done) } else { Err(io::ErrorKind::InvalidInput.into()) }
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

    #[test]
    fn the_kernel_copies_between_a_mapping_and_a_file_and_meets_no_signal_where_that_was_cut() {
        let (mapped, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        mapped.set_len(3 * 4096).unwrap();
        let mapping = Mapping::new(&mapped, ByteCount(3 * 4096)).unwrap();
        assert!(mapping.write_at(4000, &[7; 200]));
        mapping.copy_to_file(4000, 200, &other, 10).unwrap();
        assert_eq!(other.metadata().unwrap().len(), 210);
        assert_eq!(mapping.copy_from_file(8192, 300, &other, 10).unwrap(), 200, "there are no more");
        assert_eq!(mapping.slice(8192, 201).unwrap(), [&[7; 200][..], &[0]].concat());
        for (offset, length) in [(3 * 4096, 1), (4096, 2 * 4096 + 1), (usize::MAX, 2)] {
            let error = mapping.copy_to_file(offset, length, &other, 0).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(mapping.copy_from_file(offset, length, &other, 0).is_err());
        }
        assert!(mapping.copy_to_file(0, 1, &other, u64::MAX).is_err());
        mapped.set_len(4096).unwrap();
        let error = mapping.copy_to_file(4096, 4096, &other, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        assert!(mapping.copy_from_file(8192, 100, &other, 0).is_err());
    }
}
