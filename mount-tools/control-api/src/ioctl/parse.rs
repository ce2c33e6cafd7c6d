//! Reading a request: whole and known, or refused with a reason.

use zerocopy::FromBytes;

use super::layout::{AREA_CALL_BYTES, AreaCall, HEADER_BYTES, Header};
use super::records::{Create, Follow, Get, Name, Pin, Put, Range, Ready, Records, Seal};
use super::{ABI_VERSION, Command, Flags};

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Shorter than what every request of its kind has.
    #[error("{length} bytes are too few for a request")]
    Short {
        /// Its length.
        length: usize,
    },
    /// Another version.
    #[error("version {version} of the fast path's ioctls is not spoken here")]
    Version {
        /// Which.
        version: u16,
    },
    /// A flag that is not known, or not for this command.
    #[error("flags {flags:#x} are not known for {command:?}")]
    Flags {
        /// The flags.
        flags: u16,
        /// The command.
        command: Command,
    },
    /// More entries than may be in one batch.
    #[error("{count} entries are too many for one batch")]
    Count {
        /// How many.
        count: u32,
    },
    /// Fewer records than the header says.
    #[error("record {index} is cut off")]
    Records {
        /// The first that is not whole.
        index: usize,
    },
}

/// A request, understood.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Flags.
    pub flags: Flags,
    /// See [`Header::scope`].
    pub scope: u64,
    /// What is asked.
    pub body: Body<'a>,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// [`Command::Version`].
    Version,
    /// [`Command::Lookup`].
    Lookup(Records<'a, Name<'a>>),
    /// [`Command::Prefix`].
    Prefix(Records<'a, Name<'a>>),
    /// [`Command::Release`].
    Release(Records<'a, Range>),
    /// [`Command::Create`].
    Create(Records<'a, Create<'a>>),
    /// [`Command::Seal`].
    Seal(Records<'a, Seal>),
    /// [`Command::Abort`].
    Abort(Records<'a, Range>),
    /// [`Command::Prefetch`].
    Prefetch(Records<'a, Name<'a>>),
    /// [`Command::GetInto`].
    GetInto(Records<'a, Get<'a>>),
    /// [`Command::PutFrom`].
    PutFrom(Records<'a, Put<'a>>),
    /// [`Command::Register`].
    Register,
    /// [`Command::Unregister`].
    Unregister,
    /// [`Command::Retired`].
    Retired,
    /// [`Command::Ready`].
    Ready(Records<'a, Ready>),
    /// [`Command::Follow`].
    Follow(Records<'a, Follow<'a>>),
    /// [`Command::Pin`].
    Pin(Records<'a, Pin<'a>>),
}

impl Header {
    /// The header at the start of a request, when version, flags and count are such that it may go on.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn of_request(command: Command, bytes: &[u8]) -> Result<Self, Refusal> {
        let (header, _) =
            Self::read_from_prefix(bytes).map_err(|_| Refusal::Short { length: bytes.len() })?;
        if header.version.get() != ABI_VERSION {
            return Err(Refusal::Version { version: header.version.get() });
        }
        let flags = Flags(header.flags.get());
        if !flags.is_within(command.flags_known()) {
            return Err(Refusal::Flags { flags: flags.0, command });
        }
        let most = command.entries_max(flags);
        let count = header.count.get();
        if usize::try_from(count).map_or(true, |count| count > most) {
            return Err(Refusal::Count { count });
        }
        Ok(header)
    }

    /// Number of records.
    #[must_use]
    pub fn records(&self) -> usize {
        usize::try_from(self.count.get()).unwrap_or(usize::MAX)
    }
}

impl<'a> Request<'a> {
    /// Reads a request whose records are in its payload.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn parse(command: Command, bytes: &'a [u8]) -> Result<Self, Refusal> {
        let header = Header::of_request(command, bytes)?;
        Self::with_records(command, &header, &bytes[HEADER_BYTES..])
    }

    /// Reads a request whose records are in `records`, apart from their header.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn with_records(command: Command, header: &Header, records: &'a [u8]) -> Result<Self, Refusal> {
        let count = header.records();
        let body = match command {
            Command::Version => Body::Version,
            Command::Lookup => Body::Lookup(Records::parse(count, records)?),
            Command::Prefix => Body::Prefix(Records::parse(count, records)?),
            Command::Release => Body::Release(Records::parse(count, records)?),
            Command::Create => Body::Create(Records::parse(count, records)?),
            Command::Seal => Body::Seal(Records::parse(count, records)?),
            Command::Abort => Body::Abort(Records::parse(count, records)?),
            Command::Prefetch => Body::Prefetch(Records::parse(count, records)?),
            Command::GetInto => Body::GetInto(Records::parse(count, records)?),
            Command::PutFrom => Body::PutFrom(Records::parse(count, records)?),
            Command::Register => Body::Register,
            Command::Unregister => Body::Unregister,
            Command::Retired => Body::Retired,
            Command::Ready => Body::Ready(Records::parse(count, records)?),
            Command::Follow => Body::Follow(Records::parse(count, records)?),
            Command::Pin => Body::Pin(Records::parse(count, records)?),
        };
        Ok(Self { flags: Flags(header.flags.get()), scope: header.scope.get(), body })
    }
}

impl AreaCall {
    /// Where the records of a request in an area lie.
    ///
    /// # Errors
    /// [`Refusal::Short`].
    pub fn of_request(bytes: &[u8]) -> Result<Self, Refusal> {
        let call = bytes.get(HEADER_BYTES..HEADER_BYTES + AREA_CALL_BYTES);
        call.and_then(|call| Self::read_from_bytes(call).ok()).ok_or(Refusal::Short { length: bytes.len() })
    }
}
