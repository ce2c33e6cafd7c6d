//! The fast path: programs that hold a session find many objects with one request, map the segments that hold them once,
//! and write new ones into segments that they map too.
//!
//! A session is an open `.tidefs/control`. What it holds dies with it: references, begun objects, areas.
//!
//! Invariants
//! - An object that a session has a reference to counts as open: it is not evicted, not packed, not reopened in place, and
//!   its segment is given up only after the last reference.
//! - A segment is cut or written again only when no reference, no file handle, no mapping made through a key's file and no
//!   way to a disk can reach its bytes, and never if it was taken over from an earlier daemon. Mappings of programs that
//!   hold no reference do not count: they have promised not to look.
//! - A segment is written again only for an object that the same users may read as the one before.
//!
//! Limits: [`REFERENCES_MAX`] references, [`CREATES_MAX`] begun objects, [`AREAS_MAX`] areas in one session. A request holds
//! the lock for at most [`LOCKED_AT_ONCE`] entries at a time.
//! Lock order: the order of names being made known ([`FastPath::publishing`]), a session's holdings, the state, the
//! segments, the begun objects that are shown.

// Sessions, the references that they hold, and what is to be freed when they give something back.
mod batch;
mod ending;
mod remains;
mod session;

// Finding objects by their names, and pinning them.
mod locate;
mod pins;
mod walk;

// New objects: begun, shown in part, sealed, and made known to the kernel.
mod absences;
mod ready;
mod sealing;
mod store;

// Segments that clients map, and those that wait for the next object.
mod area;
mod pool;
mod segments;

use parking_lot::Mutex;
use tidefs_engine::types::{ByteCount, SegmentId, Version};

use super::Error;

pub use self::area::{AREA_MAX, GetRequest};
pub use self::locate::{Run, UnknownNames};
pub use self::ready::{FollowRequest, Followed, ReadyRequest};
pub use self::remains::Remains;
pub use self::sealing::SealRequest;
pub use self::segments::RetiredSegments;
pub use self::session::{CREATES_MAX, REFERENCES_MAX, Session};
pub use self::store::{BeginRequest, PutRequest};

use self::absences::Absences;
use self::ending::Ending;
use self::pool::Pool;
use self::ready::Following;
use self::segments::Segments;

/// Areas that one session may have.
const AREAS_MAX: usize = 8;

/// Entries of a batch that are looked at before the lock is let go for others.
const LOCKED_AT_ONCE: usize = 512;

/// What became of one entry of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// In a segment that the client may map.
    Here {
        /// The segment.
        segment: SegmentId,
        /// Which version of the object.
        version: Version,
        /// Its length.
        length: ByteCount,
        /// Whether it stays until the names clock changes.
        lasts: bool,
    },
    /// Sealed, and below memory.
    Below,
    /// Sealed and in memory, in no segment of its own.
    Packed {
        /// Which version.
        version: Version,
        /// Its length.
        length: ByteCount,
    },
    /// Nothing that the caller may see.
    Absent,
    /// Only its file can tell.
    AskByFile,
    /// What the name is relative to is no directory, or was removed: so is it with the whole batch.
    NoScope,
    /// The caller may not.
    Denied,
    /// The name means nothing.
    Invalid,
    /// The session holds as much as one may.
    TooMany,
    /// No room.
    NoRoom,
    /// A quota is full.
    OverQuota,
    /// The daemon failed.
    Failed,
}

impl Located {
    /// What an error comes to.
    fn of(error: &Error) -> Self {
        match error {
            Error::NoObject | Error::Stale | Error::NotDirectory => Self::Absent,
            Error::NothingEvictable { .. }
            | Error::ScratchFull(_)
            | Error::AttributesFull
            | Error::TooLarge { .. }
            | Error::TooLong => Self::NoRoom,
            Error::OverQuota { .. } => Self::OverQuota,
            Error::NotPermitted(_) | Error::Denied => Self::Denied,
            Error::Invalid(_) | Error::NameTooLong | Error::TooDeep | Error::BadHandle => Self::Invalid,
            Error::IsDirectory
            | Error::Exists
            | Error::NotEmpty
            | Error::OtherPlace
            | Error::NotAgreed
            | Error::AgreementsFull
            | Error::Unanswered
            | Error::Overloaded
            | Error::Unsupported(_) => Self::AskByFile,
            Error::NoAttribute | Error::Io { .. } => {
                tracing::error!(%error, "an entry of a batch failed");
                Self::Failed
            }
        }
    }
}

/// What the fast path keeps beside the tables.
#[derive(Debug)]
pub(super) struct FastPath {
    /// Segments that clients were told of in this life of the daemon. A mutex: held for a map look-up.
    pub(super) segments: Mutex<Segments>,
    /// Held while names are published and the kernel is told, so that whoever returns has its names known.
    publishing: Mutex<()>,
    /// Names that the kernel may believe to stand for nothing.
    pub(super) absences: Absences,
    /// Begun objects of which parts may be read. A mutex: held for map look-ups.
    following: Mutex<Following>,
    /// What is left of clients that have ended and held much, and requests that leave much to be freed.
    ending: Ending,
}

impl FastPath {
    pub(super) fn new(capacity: ByteCount) -> Self {
        Self {
            segments: Mutex::new(Segments::new(Pool::new(capacity))),
            publishing: Mutex::new(()),
            absences: Absences::default(),
            following: Mutex::default(),
            ending: Ending::default(),
        }
    }
}
