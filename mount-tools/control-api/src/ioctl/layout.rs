//! What has a fixed length, byte by byte.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Status;

/// First in each request and each reply.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// [`super::ABI_VERSION`].
    pub version: U16,
    /// [`super::Flags`].
    pub flags: U16,
    /// Number of records, or of results. Of PREFIX's reply: how many of the names are there.
    pub count: U32,
    /// Of a request: inode number of the directory to which names are relative; 0 is the root of the mount. Of the replies
    /// of LOOKUP, CREATE and FOLLOW: the reference to the first entry; those of the others follow it one by one. Of REGISTER: the
    /// length of the area that is wanted. Of UNREGISTER: the segment of the area. Of RETIRED's reply: of how many segments more, any
    /// of those that the client met before, the numbers are forgotten.
    pub scope: U64,
}

/// Length of a [`Header`].
pub const HEADER_BYTES: usize = size_of::<Header>();

/// Result of LOOKUP, CREATE, PREFETCH, GET_INTO and FOLLOW.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Entry {
    /// The segment that holds the object.
    pub segment: U64,
    /// Which version of the object this is; 0 of one that is only begun.
    pub version: U64,
    /// Its length. Of CREATE: how long it may become. Of GET_INTO: how many bytes were copied.
    pub length: U64,
    /// Where it starts in the segment, in units of 64 bytes.
    pub offset: U32,
    /// [`Status`].
    pub status: U16,
    /// Of LOOKUP: [`ENTRY_LASTS`], or 0.
    pub marks: U16,
}

/// Mark of an entry that was found: for as long as the names clock does not change, it is what its name stands for.
pub const ENTRY_LASTS: u16 = 1;

/// Unit of [`Entry::offset`].
const OFFSET_UNIT: u64 = 64;

impl Entry {
    /// A result that says nothing but what became of it.
    #[must_use]
    pub fn bare(status: Status) -> Self {
        Self { status: (status as u16).into(), ..Self::default() }
    }

    /// What became of it.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(self.status.get())
    }

    /// Where the object starts in its segment, in bytes.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        u64::from(self.offset.get()) * OFFSET_UNIT
    }
}

/// Result of SEAL, PUT_FROM, READY and PIN.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Outcome {
    /// The version that is visible now.
    pub version: U64,
    /// [`Status`].
    pub status: U16,
    /// 0.
    pub reserved: [U16; 3],
}

impl Outcome {
    /// Success, or another end.
    #[must_use]
    pub fn new(status: Status, version: u64) -> Self {
        Self { version: version.into(), status: (status as u16).into(), ..Self::default() }
    }

    /// What became of it.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(self.status.get())
    }
}

/// The reply of VERSION, behind its header.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct VersionReply {
    /// The oldest version that the daemon speaks.
    pub oldest: U16,
    /// The newest.
    pub newest: U16,
    /// [`super::Features`].
    pub features: U32,
    /// Objects shorter than this are packed: they are copied, not mapped.
    pub packed_max: U64,
    /// Most bytes of one area.
    pub area_max: U64,
    /// Most references that a session may hold.
    pub references_max: U32,
    /// Most objects that a session may have begun.
    pub creates_max: U32,
    /// Bytes of objects whose references a client may keep back to return them together: they cannot be evicted.
    pub kept_back_max: U64,
    /// The segment with the names clock; 0 when there is none.
    pub clock: U64,
}

/// Where the records and the results of a batch lie, when they are in an area.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AreaCall {
    /// Segment of the area.
    pub area: U64,
    /// Where the records start.
    pub request_offset: U64,
    /// Their length.
    pub request_length: U64,
    /// Where the results go.
    pub reply_offset: U64,
    /// Room for them.
    pub reply_length: U64,
}

/// Length of an [`AreaCall`].
pub const AREA_CALL_BYTES: usize = size_of::<AreaCall>();

/// The reply of REGISTER, behind its header.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AreaGrant {
    /// Segment of the area.
    pub segment: U64,
    /// Its length.
    pub length: U64,
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Header>() == 16 && offset_of!(Header, count) == 4 && offset_of!(Header, scope) == 8);
    assert!(size_of::<Entry>() == 32 && offset_of!(Entry, version) == 8 && offset_of!(Entry, length) == 16);
    assert!(offset_of!(Entry, offset) == 24 && offset_of!(Entry, status) == 28);
    assert!(size_of::<Outcome>() == 16 && offset_of!(Outcome, status) == 8);
    assert!(size_of::<VersionReply>() == 48 && offset_of!(VersionReply, features) == 4);
    assert!(offset_of!(VersionReply, packed_max) == 8 && offset_of!(VersionReply, area_max) == 16);
    assert!(offset_of!(VersionReply, references_max) == 24 && offset_of!(VersionReply, creates_max) == 28);
    assert!(offset_of!(VersionReply, kept_back_max) == 32 && offset_of!(VersionReply, clock) == 40);
    assert!(offset_of!(Entry, marks) == 30);
    assert!(size_of::<AreaCall>() == 40 && offset_of!(AreaCall, reply_offset) == 24);
    assert!(size_of::<AreaGrant>() == 16 && offset_of!(AreaGrant, length) == 8);
};
