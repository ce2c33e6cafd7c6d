//! Whole objects written the way a KV cache client writes them: under a temporary name, then renamed.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use tidefs_engine::types::ByteCount;

use crate::bench::buffer::Rotating;
use crate::bench::error::Error;

/// Writes the object `path` by way of `temporary`: create, one write(2), close, rename.
///
/// # Errors
/// What the kernel says to one of the calls, and a write that moves fewer bytes than asked.
pub(in crate::bench) fn write_object(path: &Path, temporary: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(OFlag::O_TRUNC.bits())
        .open(temporary)
        .map_err(Error::file("create", temporary))?;
    let moved = file.write(bytes).map_err(Error::file("write", temporary))?;
    if moved != bytes.len() {
        return Err(Error::Short { path: temporary.to_owned(), moved, expected: bytes.len() });
    }
    drop(file);
    fs::rename(temporary, path).map_err(Error::file("rename", temporary))
}

/// A directory with objects that stay, for reading.
#[derive(Debug)]
pub(super) struct ObjectSet {
    /// Paths of the objects.
    pub(super) paths: Vec<PathBuf>,
}

impl ObjectSet {
    /// Writes `count` objects of `size` below `directory`.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn write(
        directory: &Path,
        count: usize,
        size: usize,
        source: &mut Rotating,
    ) -> Result<Self, Error> {
        let paths: Vec<_> = (0..count).map(|index| directory.join(format!("hot-{size}-{index}"))).collect();
        for path in &paths {
            write_object(path, &path.with_extension("tmp"), source.next(size))?;
        }
        Ok(Self { paths })
    }

    /// Removes the objects.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn remove(self) -> Result<(), Error> {
        self.paths.iter().try_for_each(|path| fs::remove_file(path).map_err(Error::file("unlink", path)))
    }
}

/// What a writer does with the objects it wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retention {
    /// Unlinks them after each sample, outside the timed part, so that capacity never matters.
    UnlinkAfterSample,
    /// Keeps this many and unlinks the oldest before each write: eviction by hand.
    UnlinkOldest {
        /// Objects kept.
        kept: usize,
    },
    /// Leaves them to the eviction of the mount.
    LeaveToEviction,
}

/// A stream of new objects.
#[derive(Debug)]
pub(super) struct Writer {
    directory: PathBuf,
    prefix: String,
    written: VecDeque<PathBuf>,
    sequence: u64,
    retention: Retention,
}

impl Writer {
    /// A writer of objects `prefix-N` below `directory`.
    pub(super) fn new(directory: &Path, prefix: String, retention: Retention) -> Self {
        Self { directory: directory.to_owned(), prefix, written: VecDeque::new(), sequence: 0, retention }
    }

    /// Writes the next object.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if let Retention::UnlinkOldest { kept } = self.retention
            && self.written.len() >= kept
            && let Some(oldest) = self.written.pop_front()
        {
            fs::remove_file(&oldest).map_err(Error::file("unlink", &oldest))?;
        }
        let path = self.directory.join(format!("{}-{}", self.prefix, self.sequence));
        self.sequence += 1;
        write_object(&path, &path.with_extension("tmp"), bytes)?;
        if self.retention != Retention::LeaveToEviction {
            self.written.push_back(path);
        }
        Ok(())
    }

    /// Fills the directory with `total` of objects of the length of `source.next(size)`.
    ///
    /// # Errors
    /// When the mount still has the first object afterwards although it should have evicted it.
    pub(super) fn fill(&mut self, total: ByteCount, size: usize, source: &mut Rotating) -> Result<(), Error> {
        let first = self.sequence;
        for _ in 0..total.get().div_ceil(size as u64) {
            self.write(source.next(size))?;
        }
        let path = self.directory.join(format!("{}-{first}", self.prefix));
        if self.retention == Retention::LeaveToEviction && path.exists() {
            return Err(Error::Invalid(format!(
                "{total} were written to a smaller cache and {} is still there: nothing was evicted",
                path.display()
            )));
        }
        Ok(())
    }

    /// Ends a sample.
    ///
    /// # Errors
    /// What the kernel says to the unlinks that [`Retention::UnlinkAfterSample`] asks for.
    pub(super) fn end_sample(&mut self) -> Result<(), Error> {
        if self.retention == Retention::UnlinkAfterSample {
            self.unlink_all()?;
        }
        Ok(())
    }

    /// Unlinks what was written and is still known.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn unlink_all(&mut self) -> Result<(), Error> {
        self.written
            .drain(..)
            .try_for_each(|path| fs::remove_file(&path).map_err(Error::file("unlink", &path)))
    }
}

/// Opens an object for reading with `flags` beside `O_RDONLY`.
///
/// # Errors
/// What open(2) says.
pub(super) fn open(path: &Path, flags: i32) -> Result<File, Error> {
    OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(Error::file("open", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_evicts_by_hand_keeps_as_many_objects_as_it_was_told() {
        let directory = tempfile::TempDir::new().unwrap();
        let retention = Retention::UnlinkOldest { kept: 3 };
        let mut writer = Writer::new(directory.path(), "w".to_owned(), retention);
        (0..10).for_each(|_| writer.write(b"bytes").unwrap());
        let mut names: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["w-7", "w-8", "w-9"]);
    }

    #[test]
    fn a_sample_that_cleans_up_leaves_nothing() {
        let directory = tempfile::TempDir::new().unwrap();
        let mut writer = Writer::new(directory.path(), "w".to_owned(), Retention::UnlinkAfterSample);
        (0..10).for_each(|_| writer.write(b"bytes").unwrap());
        writer.end_sample().unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_mount_that_evicts_nothing_is_found_out_when_it_is_filled() {
        let directory = tempfile::TempDir::new().unwrap();
        let mut writer = Writer::new(directory.path(), "w".to_owned(), Retention::LeaveToEviction);
        let error = writer.fill(ByteCount::kib(8), 4096, &mut Rotating::new(ByteCount::kib(4)).unwrap());
        assert!(error.unwrap_err().to_string().contains("nothing was evicted"));
    }
}
