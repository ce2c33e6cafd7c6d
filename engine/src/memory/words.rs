//! Counters that two processes share.
//!
//! Invariants
//! - The file is as long as the mapping and is never cut: it is a memfd sealed against shrinking.
//! - Words are only touched as atomics. What the other process stores in them may be anything, and is only compared.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use memmap2::MmapRaw;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// An array of 32-bit words in memory that another process maps too.
#[derive(Debug)]
pub struct SharedWords {
    map: MmapRaw,
    file: File,
    count: u32,
}

impl SharedWords {
    /// `count` words, all zero.
    ///
    /// # Errors
    /// What memfd_create(2), ftruncate(2), fcntl(2) and mmap(2) say.
    pub fn new(count: u32) -> io::Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"tidefs-words", flags)?);
        file.set_len(u64::from(count) * 4)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL))?;
        Self::map(file, count)
    }

    /// Maps `count` words that another process made.
    ///
    /// # Errors
    /// As [`Self::new`]. `EINVAL` when the file is shorter, or its maker could still cut it.
    pub fn of_descriptor(descriptor: OwnedFd, count: u32) -> io::Result<Self> {
        let file = File::from(descriptor);
        let seals = SealFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GET_SEALS)?);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) || file.metadata()?.len() < u64::from(count) * 4 {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Self::map(file, count)
    }

    fn map(file: File, count: u32) -> io::Result<Self> {
        let bytes = usize::try_from(u64::from(count) * 4)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let map = memmap2::MmapOptions::new().len(bytes).map_raw(&file)?;
        Ok(Self { map, file, count })
    }

    /// The memory, to be passed to the other process.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The word `index`, or `None` when there are not as many.
    #[must_use]
    pub fn word(&self, index: u32) -> Option<&AtomicU32> {
        if index >= self.count {
            return None;
        }
        let word = self.map.as_mut_ptr().cast::<AtomicU32>().wrapping_add(usize::try_from(index).ok()?);
        // SAFETY: `index < count`, and the mapping holds `count` words and starts at a page, so the word is inside and
        // aligned; `self` keeps it mapped for the borrow, the seal keeps its page; every process uses atomics only.
        Some(unsafe { &*word })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_of_the_words_see_each_other() {
        let ours = SharedWords::new(1024).unwrap();
        let theirs =
            SharedWords::of_descriptor(ours.descriptor().try_clone_to_owned().unwrap(), 1024).unwrap();
        ours.word(1023).unwrap().store(5, Ordering::Relaxed);
        assert_eq!(theirs.word(1023).unwrap().load(Ordering::Relaxed), 5);
        assert!(ours.word(1024).is_none());
    }

    #[test]
    fn a_file_that_may_shrink_or_is_too_short_is_refused() {
        let words = SharedWords::new(16).unwrap();
        assert!(SharedWords::of_descriptor(words.descriptor().try_clone_to_owned().unwrap(), 17).is_err());
        let unsealed = memfd_create(c"unsealed", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        File::from(unsealed.try_clone().unwrap()).set_len(4096).unwrap();
        assert!(SharedWords::of_descriptor(unsealed, 16).is_err());
    }
}
