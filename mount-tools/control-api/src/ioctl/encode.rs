//! Writing requests, and reading and writing what comes back.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout::{HEADER_BYTES, Header};
use super::{ABI_VERSION, AREA_BATCH_MAX, BATCH_MAX, Flags, PAYLOAD_MAX, Record};

/// Builds the payload of a request, record by record.
#[derive(Clone, Debug)]
pub struct Encoder {
    bytes: Vec<u8>,
    flags: Flags,
    scope: u64,
    count: u32,
    /// Length of the result of one entry.
    result_bytes: usize,
    /// Most bytes of the request, and of the reply.
    room: usize,
}

impl Encoder {
    /// A request of which each entry has a result of `result_bytes`, with room for what one ioctl carries.
    #[must_use]
    pub fn new(flags: Flags, scope: u64, result_bytes: usize) -> Self {
        Self::with_room(flags, scope, result_bytes, PAYLOAD_MAX)
    }

    /// A request with room for `room` bytes each way, its header included.
    #[must_use]
    pub fn with_room(flags: Flags, scope: u64, result_bytes: usize, room: usize) -> Self {
        let bytes = vec![0; HEADER_BYTES];
        Self { bytes, flags, scope, count: 0, result_bytes, room }
    }

    /// Makes room for `more` bytes of records and results, to save growing step by step.
    pub fn reserve(&mut self, more: usize) {
        self.bytes.reserve(more.min(self.room).min(PAYLOAD_MAX));
    }

    /// Adds a record. Returns whether there was room for it and its result, and a batch may be so long.
    pub fn push<'a>(&mut self, record: &impl Record<'a>) -> bool {
        let results = HEADER_BYTES + self.result_bytes * (self.len() + 1);
        let most = if self.flags.has(Flags::IN_AREA) { AREA_BATCH_MAX } else { BATCH_MAX };
        if self.len() == most || results > self.room || self.bytes.len() + record.length() > self.room {
            return false;
        }
        record.put(&mut self.bytes);
        self.count += 1;
        true
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> Header {
        Header {
            version: ABI_VERSION.into(),
            flags: self.flags.0.into(),
            count: self.count.into(),
            scope: self.scope.into(),
        }
    }

    /// The records alone.
    #[must_use]
    pub fn records(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..]
    }

    /// The payload, as long as the longer of request and reply, in multiples of 8.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        let header = self.header();
        self.bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        let length = self.bytes.len().max(HEADER_BYTES + self.result_bytes * self.len());
        self.bytes.resize(length.next_multiple_of(8), 0);
        self.bytes
    }
}

/// The header and the results of a reply. `None` when it is shorter than it says, or of another version.
#[must_use]
pub fn results<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8]) -> Option<(Header, &[T])> {
    let (header, rest) = Header::read_from_prefix(bytes).ok()?;
    let count = usize::try_from(header.count.get()).ok()?;
    let (results, _) = <[T]>::ref_from_prefix_with_elems(rest, count).ok()?;
    (header.version.get() == ABI_VERSION).then_some((header, results))
}

/// The bytes of a reply: a header and results.
#[must_use]
pub fn results_bytes<T: IntoBytes + Immutable>(flags: Flags, first: u64, results: &[T]) -> Vec<u8> {
    let header = Header {
        version: ABI_VERSION.into(),
        flags: flags.0.into(),
        count: u32::try_from(results.len()).unwrap_or(u32::MAX).into(),
        scope: first.into(),
    };
    [header.as_bytes(), results.as_bytes()].concat()
}
