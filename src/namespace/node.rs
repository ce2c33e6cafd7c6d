//! One inode: its name, its attributes, and how often the kernel holds it. There are millions, so a node is small.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use compact_bytes::CompactBytes;

use super::directory::Directory;
use super::names::NameRef;

/// Index of a node in the [`Tree`](super::Tree). Reused after the node is gone and the kernel forgot it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

impl Slot {
    /// The root of the mount.
    pub const ROOT: Self = Self(1);
    /// No node: the parent of the root and of detached nodes.
    pub const NONE: Self = Self(0);
}

/// Inode number as the kernel and `st_ino` see it: slot and generation, so that a reused slot is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root of the mount, fixed by the FUSE protocol.
    pub const ROOT: Self = Self(1);

    /// The inode number of `slot` in its `generation`.
    #[must_use]
    pub fn new(slot: Slot, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(slot.0))
    }

    /// The slot, whether or not its generation still lives.
    #[must_use]
    pub fn slot(self) -> Slot {
        // The lower half of an inode number is its slot; the mask makes the narrowing exact.
        Slot(u32::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(0))
    }

    /// The generation that the number was given out for.
    #[must_use]
    pub fn generation(self) -> u32 {
        u32::try_from(self.0 >> 32).unwrap_or(0)
    }
}

/// Name at the root of the mount that no object and no directory has: the daemon's own files stand there.
pub const RESERVED_AT_ROOT: &[u8] = b".tidefs";

/// Longest name of a directory entry, as on other Linux filesystems.
pub const NAME_LENGTH_MAX: usize = 255;

/// Why a byte string is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// Longer than [`NAME_LENGTH_MAX`] bytes.
    TooLong,
    /// Empty, `.`, `..`, or with a slash or NUL inside.
    Invalid,
}

/// A checked entry name: 1 to 255 bytes, any but `/` and NUL. Up to 23 bytes cost no heap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(CompactBytes);

impl Name {
    /// Checks and copies a name.
    ///
    /// # Errors
    /// [`NameError`], which says what is wrong with it.
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        if bytes.len() > NAME_LENGTH_MAX {
            return Err(NameError::TooLong);
        }
        if bytes.is_empty()
            || bytes == b"."
            || bytes == b".."
            || bytes.iter().any(|&byte| matches!(byte, b'/' | 0))
        {
            return Err(NameError::Invalid);
        }
        Ok(Self::of_checked(bytes))
    }

    /// The empty name of the root and of detached nodes.
    #[must_use]
    pub fn none() -> Self {
        Self(CompactBytes::empty())
    }

    /// A name whose bytes were those of one before.
    pub(super) fn of_checked(bytes: &[u8]) -> Self {
        Self(CompactBytes::new(bytes))
    }

    /// The bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// What `stat` shows of a node beside its size. Times are nanoseconds since 1970.
///
/// Packed, so that a node has no padding: 34 bytes instead of 40. Fields are copied, never borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(Rust, packed(2))]
pub struct Attributes {
    /// Permission bits, without the type.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last use, or what utimensat(2) set.
    pub atime_ns: i64,
    /// Last change of the contents, or what utimensat(2) set.
    pub mtime_ns: i64,
    /// Last change of the attributes.
    pub ctime_ns: i64,
}

impl Attributes {
    /// Attributes of a node made at `now_ns`.
    #[must_use]
    pub fn new(mode: u32, uid: u32, gid: u32, now_ns: i64) -> Self {
        let mode = permissions(mode);
        Self { mode, uid, gid, atime_ns: now_ns, mtime_ns: now_ns, ctime_ns: now_ns }
    }

    /// The contents changed at `now_ns`: bytes of a file, or names of a directory.
    pub fn written_at(&mut self, now_ns: i64) {
        self.mtime_ns = now_ns;
        self.ctime_ns = now_ns;
    }

    /// Somebody else writes the file, or it gets another owner: who runs it gets no rights by it any more (chown(2)).
    pub fn drop_privileges(&mut self) {
        const SET_USER: u16 = 0o4000;
        const SET_GROUP: u16 = 0o2000;
        const GROUP_RUNS: u16 = 0o0010;
        let group = if self.mode & GROUP_RUNS != 0 { SET_GROUP } else { 0 };
        self.mode &= !(SET_USER | group);
    }
}

/// The permission bits of a mode, set-id and sticky bits included.
#[must_use]
pub fn permissions(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).expect("twelve bits fit")
}

/// Nanoseconds since 1970 of a time of day; times before 1970 are negative, and far ones saturate.
#[must_use]
pub fn nanos_of(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    }
}

/// The inverse of [`nanos_of`].
#[must_use]
pub fn time_of(nanos: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanos.unsigned_abs());
    if nanos < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// What a node is.
#[derive(Debug)]
pub enum Body<F> {
    /// A directory with its entries.
    Directory(Box<Directory>),
    /// A file, whatever the datapath takes that to be.
    File(F),
}

/// One inode.
#[derive(Debug)]
pub struct Node<F> {
    /// Which use of the slot this is.
    pub generation: u32,
    /// The directory it stands in, or [`Slot::NONE`] when it has no name any more.
    pub parent: Slot,
    /// Its name there, for [`Tree::name`](super::Tree::name). A node without a parent keeps the last one, for messages.
    pub(super) name: NameRef,
    /// What `stat` shows.
    pub attributes: Attributes,
    /// References that the kernel holds: one per entry reply, until FORGET takes them back.
    pub lookups: u64,
    /// Directory or file.
    pub body: Body<F>,
}

impl<F> Node<F> {
    /// Whether the node has no name any more.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.parent == Slot::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(Name::new(&[b'x'; 256]), Err(NameError::TooLong));
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert_eq!(Name::new(bad), Err(NameError::Invalid));
        }
        assert_eq!(Name::new(&[0xff; 255]).unwrap().as_bytes(), &[0xff; 255]);
    }

    #[test]
    fn inode_numbers_carry_slot_and_generation() {
        let ino = Ino::new(Slot(7), 3);
        assert_eq!((ino.slot(), ino.generation()), (Slot(7), 3));
        assert_eq!(Ino::new(Slot::ROOT, 0), Ino::ROOT);
    }

    #[test]
    fn times_round_trip_before_and_after_1970() {
        for nanos in [-1_500_000_000, 0, 1, 1_700_000_000_123_456_789] {
            assert_eq!(nanos_of(time_of(nanos)), nanos);
        }
    }
}
