//! What a segment file says about itself, so that a restart finds every object by listing the tmpfs.
//!
//! A record is `magic, kind, format, postcard body, crc32`. It is small, bounded by [`RECORD_BYTES_MAX`], and
//! parsed with errors: a record that does not decode costs one object, never the start of the daemon.
//!
//! Invariants
//! - What [`ObjectRecord::encode`] returns, [`ObjectRecord::decode`] reads back equal.
//! - Formats 1 to 5 never change; their golden bytes are in the tests. Another layout is another format number.
//! - A record without what a later format added is written in the earlier one, which earlier daemons read.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidefs_engine::types::{ByteCount, Checksum, DirectoryId, Version};

use crate::tier::NUMBER_MAX;

/// Most bytes of an encoded record: a name of 255 bytes and every field at its longest fit twice.
pub const RECORD_BYTES_MAX: usize = 1024;

/// Most bytes of one name, as in `NAME_MAX`.
pub const NAME_BYTES_MAX: usize = 255;

/// Most bytes of the name of an eviction policy.
const EVICTION_BYTES_MAX: usize = 32;

/// In [`ObjectRecord::mode`]: the object is a copy of what another member of a cluster holds, and leaves first. Daemons that
/// do not know it take the copy for one of their own.
pub const SOFT_COPY: u32 = 1 << 31;

/// In [`ObjectRecord::mode`]: applications attached attributes of their own to the object, so it is kept in a file of its own.
/// Daemons that do not know it may send the object to disk without them.
pub const DECORATED: u32 = 1 << 30;

/// In [`ObjectRecord::mode`]: somebody had the object open to write when its record was written, and may go on. Daemons that do
/// not know it take its segment for one that nobody changes.
pub const UNFINISHED: u32 = 1 << 29;

const MAGIC: [u8; 2] = *b"TD";
const FORMAT: u8 = 1;
/// Ends in the policy's `durable`, which format 1 does not have.
const FORMAT_DURABLE: u8 = 2;
/// Ends in the policy's `recompute_bytes_per_second` behind that.
const FORMAT_RECOMPUTE: u8 = 3;
/// Ends in the policy's `replicas` behind that.
const FORMAT_REPLICAS: u8 = 4;
/// Ends in the policy's `pinned_at_ns` behind that.
const FORMAT_PINNED_AT: u8 = 5;
/// How postcard writes a `None`.
const NONE: u8 = 0;
const HEADER_BYTES: usize = 4;
const TRAILER_BYTES: usize = 4;

/// What is kept of one sealed object beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRecord {
    /// The directory that holds the name.
    pub parent: DirectoryId,
    /// The name in it, 1 to 255 bytes, neither `.` nor `..`, without `/` and NUL.
    pub name: Vec<u8>,
    /// Order of the seal.
    pub version: Version,
    /// Exact length of the object.
    pub size: ByteCount,
    /// Over all bytes, once taken.
    pub checksum: Option<Checksum>,
    /// Type and permission bits, [`SOFT_COPY`], [`DECORATED`] and [`UNFINISHED`].
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the bytes, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Last read, in nanoseconds since 1970, as far as it was noticed.
    pub atime_ns: i64,
    /// Last change of the attributes, in nanoseconds since 1970.
    pub ctime_ns: i64,
    /// When the object was sealed, in nanoseconds since 1970.
    pub sealed_at_ns: i64,
    /// The object before this one in its chain.
    pub predecessor: Option<Version>,
    /// What was set on this object itself.
    pub policy: PolicyRecord,
}

/// What is kept of one directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryRecord {
    /// The directory.
    pub id: DirectoryId,
    /// The directory above.
    pub parent: DirectoryId,
    /// The name in it; empty for [`DirectoryId::ROOT`] only.
    pub name: Vec<u8>,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the entries, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Last change of the attributes, in nanoseconds since 1970.
    pub ctime_ns: i64,
    /// What was set on this directory itself.
    pub policy: PolicyRecord,
}

/// What an operator or a writer has set on one file or directory; `None` means inherited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRecord {
    /// Most bytes below this directory.
    pub quota: Option<ByteCount>,
    /// Bytes below this directory that nobody else's growth evicts.
    pub floor: Option<ByteCount>,
    /// Life of an object after its seal, in seconds.
    pub ttl_s: Option<u64>,
    /// Whether eviction passes over it.
    pub pin: Option<Pin>,
    /// Larger stays longer.
    pub priority: Option<i8>,
    /// Name of the eviction policy.
    pub eviction: Option<String>,
    /// Whether files are scratch.
    pub scratch: Option<bool>,
    /// Whether an object is on disk, durably, before its rename returns. Format 1 is a record without this and what
    /// follows.
    pub durable: Option<bool>,
    /// Bytes a second that computing an object again yields. Format 2 is a record without this and what follows.
    pub recompute_bytes_per_second: Option<ByteCount>,
    /// How many members of a cluster are to hold an object. Format 3 is a record without this and what follows.
    pub replicas: Option<u8>,
    /// When a soft pin with an end was set on an object itself, in nanoseconds since 1970: its time counts from here. The
    /// last field of every record: format 4 is a record without it.
    pub pinned_at_ns: Option<i64>,
}

/// An order not to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pin {
    /// Not pinned, even if the directory above is.
    None,
    /// Evicted last, until the time is over.
    Soft {
        /// How long the pin holds, in seconds; for ever without.
        ttl_s: Option<u64>,
    },
    /// Never evicted.
    Hard,
}

/// Why bytes are not a record, or a value cannot become one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Fewer bytes than the frame needs.
    #[error("{length} bytes are too few for a record; the object is dropped and must be written again")]
    TooShort {
        /// How many there are.
        length: usize,
    },
    /// More bytes than a record may have.
    #[error("a record of more than {RECORD_BYTES_MAX} bytes; shorten the name or the policy")]
    TooLong,
    /// Not a record, or of the other kind.
    #[error("the bytes do not start as a record of this kind does; something else wrote them")]
    Foreign,
    /// Written by a version of the daemon with another layout.
    #[error(
        "record format {format} is not known, this daemon writes {FORMAT} to {FORMAT_PINNED_AT}; use the daemon that wrote it"
    )]
    Format {
        /// The number found.
        format: u8,
    },
    /// The bytes changed since they were written.
    #[error("the crc32 does not match; the record was damaged")]
    Damaged,
    /// The frame is whole, the body is not.
    #[error("the body does not decode; the record was damaged, or written by a faulty daemon")]
    Body,
    /// A field has a value that no object has.
    #[error("the {field} is not valid; the record was written by a faulty daemon")]
    Field {
        /// Which field.
        field: &'static str,
    },
}

impl ObjectRecord {
    const KIND: u8 = b'o';

    /// The bytes to keep, at most [`RECORD_BYTES_MAX`].
    ///
    /// # Errors
    /// [`RecordError::Field`] for a name or policy that no object may have.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        self.validate()?;
        encode(Self::KIND, self, self.policy.format())
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// Every variant of [`RecordError`]; arbitrary bytes are safe to pass.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record: Self = decode(Self::KIND, bytes)?;
        record.validate()?;
        Ok(record)
    }

    fn validate(&self) -> Result<(), RecordError> {
        validate_name(&self.name)?;
        validate_number("version", self.version.0)?;
        self.policy.validate()
    }
}

impl DirectoryRecord {
    const KIND: u8 = b'd';

    /// The bytes to keep, at most [`RECORD_BYTES_MAX`].
    ///
    /// # Errors
    /// [`RecordError::Field`] for a name or policy that no directory may have.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        self.validate()?;
        encode(Self::KIND, self, self.policy.format())
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// Every variant of [`RecordError`]; arbitrary bytes are safe to pass.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record: Self = decode(Self::KIND, bytes)?;
        record.validate()?;
        Ok(record)
    }

    fn validate(&self) -> Result<(), RecordError> {
        if self.id != DirectoryId::ROOT || !self.name.is_empty() {
            validate_name(&self.name)?;
        }
        validate_number("id", self.id.0)?;
        self.policy.validate()
    }
}

impl PolicyRecord {
    /// The earliest format that can say it.
    fn format(&self) -> u8 {
        match (self.durable, self.recompute_bytes_per_second, self.replicas, self.pinned_at_ns) {
            (_, _, _, Some(_)) => FORMAT_PINNED_AT,
            (_, _, Some(_), None) => FORMAT_REPLICAS,
            (_, Some(_), None, None) => FORMAT_RECOMPUTE,
            (Some(_), None, None, None) => FORMAT_DURABLE,
            (None, None, None, None) => FORMAT,
        }
    }

    fn validate(&self) -> Result<(), RecordError> {
        match &self.eviction {
            Some(name) if name.is_empty() || name.len() > EVICTION_BYTES_MAX => {
                Err(RecordError::Field { field: "name of the eviction policy" })
            }
            _ => Ok(()),
        }
    }
}

fn validate_name(name: &[u8]) -> Result<(), RecordError> {
    let valid = (1..=NAME_BYTES_MAX).contains(&name.len())
        && !matches!(name, b"." | b"..")
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    if valid { Ok(()) } else { Err(RecordError::Field { field: "name" }) }
}

fn validate_number(field: &'static str, number: u64) -> Result<(), RecordError> {
    if number <= NUMBER_MAX { Ok(()) } else { Err(RecordError::Field { field }) }
}

/// How many `None` at the end of a body a format leaves out.
fn left_out(format: u8) -> usize {
    usize::from(FORMAT_PINNED_AT - format)
}

fn encode(kind: u8, body: &impl Serialize, format: u8) -> Result<Vec<u8>, RecordError> {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend([MAGIC[0], MAGIC[1], kind, format]);
    let mut bytes = postcard::to_extend(body, bytes).map_err(|_| RecordError::Body)?;
    for _ in 0..left_out(format) {
        bytes.pop_if(|last| *last == NONE);
    }
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    if bytes.len() > RECORD_BYTES_MAX { Err(RecordError::TooLong) } else { Ok(bytes) }
}

fn decode<T: DeserializeOwned>(kind: u8, bytes: &[u8]) -> Result<T, RecordError> {
    if bytes.len() > RECORD_BYTES_MAX {
        return Err(RecordError::TooLong);
    }
    if bytes.len() < HEADER_BYTES + TRAILER_BYTES {
        return Err(RecordError::TooShort { length: bytes.len() });
    }
    let (framed, trailer) = bytes.split_at(bytes.len() - TRAILER_BYTES);
    let (header, body) = framed.split_at(HEADER_BYTES);
    if header[..2] != MAGIC || header[2] != kind {
        return Err(RecordError::Foreign);
    }
    if crc32fast::hash(framed).to_le_bytes() != *trailer {
        return Err(RecordError::Damaged);
    }
    let value = match header[3] {
        format @ FORMAT..=FORMAT_PINNED_AT => {
            let whole = [body, &[NONE; 4][..left_out(format)]].concat();
            postcard::take_from_bytes(&whole).map(|(value, rest)| (value, rest.len()))
        }
        format => return Err(RecordError::Format { format }),
    };
    match value {
        Ok((value, 0)) => Ok(value),
        _ => Err(RecordError::Body),
    }
}

#[cfg(test)]
pub(super) mod tests;
