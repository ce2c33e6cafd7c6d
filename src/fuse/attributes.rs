//! Our attributes in the kernel's form, and how long it may believe them.

use std::time::Duration;

use fuser::{FileAttr, FileType, INodeNo};
use tidefs_engine::types::PAGE;

use crate::datapath::{Kind, Stat};
use crate::namespace::{Ino, time_of};

/// How long the kernel may believe what it is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetimes {
    /// Names and attributes that change only with a message to the kernel.
    pub(super) settled: Duration,
    /// Names that stand for nothing.
    pub(super) absent: Duration,
}

impl Lifetimes {
    pub(super) fn attributes(&self, stat: &Stat) -> Duration {
        if stat.is_settled { self.settled } else { Duration::ZERO }
    }

    pub(super) fn entry(&self, is_cacheable: bool) -> Duration {
        if is_cacheable { self.settled } else { Duration::ZERO }
    }
}

pub(super) fn ino(number: INodeNo) -> Ino {
    Ino(number.0)
}

pub(super) fn file_attr(stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(stat.ino.0),
        size: stat.size.get(),
        blocks: stat.occupied.get() / 512,
        atime: time_of(stat.attributes.atime_ns),
        mtime: time_of(stat.attributes.mtime_ns),
        ctime: time_of(stat.attributes.ctime_ns),
        crtime: time_of(stat.attributes.ctime_ns),
        kind: kind_of(stat.kind),
        perm: stat.attributes.mode,
        nlink: stat.links,
        uid: stat.attributes.uid,
        gid: stat.attributes.gid,
        rdev: 0,
        blksize: u32::try_from(PAGE.get()).unwrap_or(4096),
        flags: 0,
    }
}

pub(super) fn kind_of(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::File => FileType::RegularFile,
    }
}

/// Attributes of "nothing stands here": inode number zero is what makes the kernel remember the absence.
pub(super) fn absence() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: time_of(0),
        mtime: time_of(0),
        ctime: time_of(0),
        crtime: time_of(0),
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}
