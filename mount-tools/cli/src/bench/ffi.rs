//! The two unsafe calls of the bench: reading through a mapping, and a child that dies with its parent.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::{prctl, signal::Signal};

/// A shared read-only mapping of a whole file that nobody truncates while it lives.
#[derive(Debug)]
pub(crate) struct ReadMapping {
    map: MmapRaw,
}

impl ReadMapping {
    /// Maps the first `length` bytes of `file`.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub(crate) fn new(file: &File, length: usize) -> io::Result<Self> {
        Ok(Self { map: MmapOptions::new().len(length).map_raw_read_only(file)? })
    }

    /// Copies `target.len()` bytes at `offset` out of the mapping.
    ///
    /// # Panics
    /// When the range leaves the mapping.
    pub(crate) fn copy_out(&self, offset: usize, target: &mut [u8]) {
        let end = offset.checked_add(target.len()).expect("an offset and a length of one object add up");
        assert!(end <= self.map.len(), "the bench copies within the objects it made");
        // SAFETY: the assertion keeps the source inside the mapping that `self` owns and keeps alive; `target` is
        // exclusive and cannot overlap it, because the mapping is never borrowed as a slice. The bench never
        // truncates or rewrites a file while a mapping of it lives.
        unsafe {
            std::ptr::copy_nonoverlapping(self.map.as_ptr().add(offset), target.as_mut_ptr(), target.len());
        }
    }
}

/// Makes the child of `command` receive SIGTERM when the thread that spawns it ends.
pub(crate) fn stop_with_parent(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec and calls prctl(2) alone, which is async-signal-safe and
    // allocates nothing.
    unsafe { command.pre_exec(|| prctl::set_pdeathsig(Signal::SIGTERM).map_err(io::Error::from)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_shows_the_bytes_of_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"0123456789").unwrap();
        let mapping = ReadMapping::new(&File::open(file.path()).unwrap(), 10).unwrap();
        let mut target = [0; 4];
        mapping.copy_out(6, &mut target);
        assert_eq!(&target, b"6789");
    }

    #[test]
    #[should_panic(expected = "within the objects")]
    fn a_copy_past_the_end_of_a_mapping_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"0123456789").unwrap();
        let mapping = ReadMapping::new(&File::open(file.path()).unwrap(), 10).unwrap();
        mapping.copy_out(7, &mut [0; 4]);
    }
}
