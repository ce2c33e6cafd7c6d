//! `.tidefs` at the root of the mount: what the daemon says of itself, as files that anybody may read.
//!
//! The directory is reachable by name and not listed, so that programs that walk or empty a cache never meet it. A
//! file's contents are made when it is opened, so a reader sees one moment.
//!
//! Limits: `OPEN_MAX` open ones for each user, whose contents the daemon keeps; one more is refused.

use std::collections::HashMap;
use std::fmt;
use std::time::SystemTime;

use fuser::{Errno, FileAttr, FileType, INodeNo};
use parking_lot::Mutex;

use super::fast_files;
use crate::namespace::RESERVED_AT_ROOT;

/// Name of the directory.
pub(super) const DIRECTORY: &[u8] = RESERVED_AT_ROOT;

/// Inode numbers of control files have this bit; generations of ordinary ones never reach it.
pub(super) const MARK: u64 = 1 << 63;

/// Open files of one user at most: each keeps some ten kilobytes, and readers close what they have read.
const OPEN_MAX: usize = 256;

type Source = Box<dyn Fn() -> String + Send + Sync>;

/// The files of the directory.
pub struct ControlFiles {
    files: Vec<(&'static str, Source)>,
    /// Contents by handle, with the user who opened it. Guards nothing else, and is held for a copy at most.
    open: Mutex<HashMap<u64, (u32, Vec<u8>)>>,
    since: SystemTime,
}

impl fmt::Debug for ControlFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlFiles")
            .field("names", &self.names().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl ControlFiles {
    /// Files by name, each with what makes its contents. A source must not touch the mount.
    #[must_use]
    pub fn new(files: Vec<(&'static str, Source)>) -> Self {
        Self { files, open: Mutex::new(HashMap::new()), since: SystemTime::now() }
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.files.iter().map(|(name, _)| *name)
    }

    /// Whether an inode number is of this directory or one of its files.
    pub(super) fn owns(ino: INodeNo) -> bool {
        ino.0 & MARK != 0
    }

    /// The directory's inode number.
    pub(super) fn directory() -> INodeNo {
        INodeNo(MARK)
    }

    /// The inode number of the file `name`.
    pub(super) fn child(&self, name: &[u8]) -> Option<INodeNo> {
        if let Some(ino) = fast_files::child(name) {
            return Some(ino);
        }
        let index = self.names().position(|candidate| candidate.as_bytes() == name)?;
        Some(INodeNo(MARK | (index as u64 + 1)))
    }

    /// Inode numbers and names of all files.
    pub(super) fn children(&self) -> impl Iterator<Item = (INodeNo, &'static str)> {
        self.names().zip(1..).map(|(name, index)| (INodeNo(MARK | index), name))
    }

    /// Attributes of the directory or a file.
    pub(super) fn attributes(&self, ino: INodeNo) -> FileAttr {
        let is_directory = ino == Self::directory() || ino == fast_files::SEGMENTS;
        // Who opens a segment, and how, is looked at when it is opened.
        let is_writable = ino == fast_files::CONTROL || fast_files::segment_of(ino).is_some();
        FileAttr {
            ino,
            size: 0,
            blocks: 0,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind: if is_directory { FileType::Directory } else { FileType::RegularFile },
            perm: match (is_directory, is_writable) {
                (true, _) => 0o555,
                (_, true) => 0o666,
                _ => 0o444,
            },
            nlink: if is_directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Makes the contents of `ino` for handle `handle` of a user.
    ///
    /// # Errors
    /// `EISDIR` when there is no such file, `ENFILE` when the user has too many of them open.
    pub(super) fn open(&self, ino: INodeNo, handle: u64, user: u32) -> Result<(), Errno> {
        let index = usize::try_from(ino.0 & !MARK).unwrap_or(0);
        let Some((_, source)) = index.checked_sub(1).and_then(|index| self.files.get(index)) else {
            return Err(Errno::EISDIR);
        };
        {
            // Counted before the work, which takes longer than the handle's release.
            let mut open = self.open.lock();
            if open.values().filter(|(owner, _)| *owner == user).count() >= OPEN_MAX {
                return Err(Errno::ENFILE);
            }
            open.insert(handle, (user, Vec::new()));
        }
        let contents = source().into_bytes();
        self.open.lock().insert(handle, (user, contents));
        Ok(())
    }

    /// Bytes of an open file.
    pub(super) fn read(&self, handle: u64, offset: u64, length: usize) -> Vec<u8> {
        let open = self.open.lock();
        let Some((_, contents)) = open.get(&handle) else { return Vec::new() };
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(contents.len());
        let end = start.saturating_add(length).min(contents.len());
        contents[start..end].to_vec()
    }

    /// Drops the contents of a handle.
    pub(super) fn release(&self, handle: u64) {
        self.open.lock().remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_shows_one_moment_until_it_is_closed() {
        let files = ControlFiles::new(vec![("status", Box::new(|| "now".to_owned()))]);
        let ino = files.child(b"status").unwrap();
        assert!(ControlFiles::owns(ino) && ino != ControlFiles::directory());
        assert!(files.open(ino, 7, 0).is_ok());
        assert_eq!(files.read(7, 1, 10), b"ow");
        assert_eq!(files.read(7, 9, 10), b"");
        files.release(7);
        assert_eq!(files.read(7, 0, 10), b"");
        assert!(files.open(ControlFiles::directory(), 8, 0).is_err());
        assert!(files.child(b"nothing").is_none());
    }
}
