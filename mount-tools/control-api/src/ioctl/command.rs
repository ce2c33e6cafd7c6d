//! The numbers: what may be asked, and how.

use super::{AREA_BATCH_MAX, BATCH_MAX};

/// What an ioctl asks for. The number is the `nr` of its ioctl number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Command {
    /// What the daemon speaks and offers.
    Version = 1,
    /// Where objects are. Takes a reference to each that is found.
    Lookup = 2,
    /// How many of the names, from the first on, are there. Takes no reference.
    Prefix = 3,
    /// Gives references back.
    Release = 4,
    /// Begins objects: a segment for each, to be written by the client.
    Create = 5,
    /// Makes begun objects immutable and visible, each in one step, as rename(2) does.
    Seal = 6,
    /// Gives begun objects up.
    Abort = 7,
    /// Asks for objects below memory to be brought into it. Does not wait.
    Prefetch = 8,
    /// Copies parts of objects into the client's areas.
    GetInto = 9,
    /// Makes objects of bytes in the client's areas.
    PutFrom = 10,
    /// Gives the client a segment of its own, an area.
    Register = 11,
    /// Takes an area back.
    Unregister = 12,
    /// Which segments that clients met are no more.
    Retired = 13,
    /// Says that parts of begun objects are as they will stay, and shows them to who follows them.
    Ready = 14,
    /// Waits until a part of one object may be read, which may still be written. Takes a reference to it.
    Follow = 15,
    /// Keeps objects from being evicted, or ends that.
    Pin = 16,
}

impl Command {
    /// All commands.
    pub const ALL: [Self; 16] = [
        Self::Version,
        Self::Lookup,
        Self::Prefix,
        Self::Release,
        Self::Create,
        Self::Seal,
        Self::Abort,
        Self::Prefetch,
        Self::GetInto,
        Self::PutFrom,
        Self::Register,
        Self::Unregister,
        Self::Retired,
        Self::Ready,
        Self::Follow,
        Self::Pin,
    ];

    /// The command that an ioctl number asks for, and the length of its payload; `None` when it is no number of ours.
    #[must_use]
    pub fn of_request(number: u32) -> Option<(Self, usize)> {
        let is_ours = number >> 30 == READ_WRITE && (number >> 8) & 0xff == TYPE;
        let nr = u8::try_from(number & 0xff).ok()?;
        let size = usize::try_from((number >> 16) & 0x3fff).ok()?;
        let command = Self::ALL.into_iter().find(|command| *command as u8 == nr)?;
        is_ours.then_some((command, size))
    }

    /// Flags that a request of this command may have.
    #[must_use]
    pub fn flags_known(self) -> Flags {
        match self {
            Self::Lookup => Flags(Flags::IN_AREA.0 | Flags::PROBE.0 | Flags::HERE.0),
            Self::Release => Flags(Flags::IN_AREA.0 | Flags::USED.0),
            Self::GetInto => Flags(Flags::IN_AREA.0 | Flags::PROBE.0),
            Self::Prefix
            | Self::Create
            | Self::Seal
            | Self::Abort
            | Self::Prefetch
            | Self::PutFrom
            | Self::Ready
            | Self::Pin => Flags::IN_AREA,
            Self::Version | Self::Register | Self::Unregister | Self::Retired | Self::Follow => Flags::NONE,
        }
    }

    /// Most entries of one request with these flags.
    #[must_use]
    pub(super) fn entries_max(self, flags: Flags) -> usize {
        match self {
            // Each is answered when it comes.
            Self::Follow => 1,
            _ if flags.has(Flags::IN_AREA) => AREA_BATCH_MAX,
            _ => BATCH_MAX,
        }
    }
}

/// The `type` of our ioctl numbers; none of the kernel's own that a file may be asked uses it.
const TYPE: u32 = 0xd7;

/// `_IOC_READ | _IOC_WRITE` of asm-generic/ioctl.h, which x86-64 and arm64 use.
const READ_WRITE: u32 = 3;

/// The ioctl number `_IOWR(0xd7, command, length)`; `length` is at most [`super::PAYLOAD_MAX`].
#[must_use]
pub fn request_number(command: Command, length: usize) -> u32 {
    let length = u32::try_from(length).unwrap_or(u32::MAX) & 0x3fff;
    READ_WRITE << 30 | length << 16 | TYPE << 8 | command as u32
}

/// Flag of a request: the records lie in an area, and the results are to be written there; the payload has an
/// [`AreaCall`](super::AreaCall) in their place.
pub const FLAG_IN_AREA: u16 = 1;

/// Flag of LOOKUP: only says what is there: takes no reference and counts no use. Of GET_INTO: counts no use, since a look-up did. That
/// is known to a daemon that offers the feature of that name.
pub const FLAG_PROBE: u16 = 2;

/// Flag of RELEASE: the objects were used since they were looked up.
pub const FLAG_USED: u16 = 4;

/// Flag of LOOKUP: it waits for no other host. What only others know of is to be asked for by file. Known to a daemon that offers
/// the feature of that name.
pub const FLAG_HERE: u16 = 8;

/// Flag of a reply: segments are gone that this client may have mapped; RETIRED tells which.
pub const FLAG_RETIRED: u16 = 1 << 15;

/// Flags of a request, and of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u16);

impl Flags {
    /// None.
    pub const NONE: Self = Self(0);
    /// [`FLAG_IN_AREA`].
    pub const IN_AREA: Self = Self(FLAG_IN_AREA);
    /// [`FLAG_PROBE`].
    pub const PROBE: Self = Self(FLAG_PROBE);
    /// [`FLAG_USED`].
    pub const USED: Self = Self(FLAG_USED);
    /// [`FLAG_HERE`].
    pub const HERE: Self = Self(FLAG_HERE);
    /// [`FLAG_RETIRED`].
    pub const RETIRED: Self = Self(FLAG_RETIRED);

    /// Whether all of `flags` are set.
    #[must_use]
    pub fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether none is set beyond `known`.
    #[must_use]
    pub fn is_within(self, known: Self) -> bool {
        self.0 & !known.0 == 0
    }
}
