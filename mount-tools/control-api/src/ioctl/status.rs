//! What became of one entry of a batch, and what a daemon offers.

/// What became of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Status {
    /// Done, or found: the rest of the result says where.
    Ok = 0,
    /// Nothing is there that the caller may see: a miss.
    Absent = 1,
    /// Sealed, and below memory: PREFETCH, or opening its file, brings it.
    Loadable = 2,
    /// Sealed and in memory, in no segment that a client may map: GET_INTO, or reading its file, gives its bytes.
    CopyOnly = 3,
    /// Something is there of which only the file can tell: it is written, or not verified yet, or a directory.
    AskByFile = 4,
    /// The caller may not.
    Denied = 5,
    /// The name, the range or the reference means nothing.
    Invalid = 6,
    /// No room, and nothing that may be evicted for it.
    NoRoom = 7,
    /// The quota of a directory is full.
    OverQuota = 8,
    /// The session holds as much as one may.
    TooMany = 9,
    /// The daemon failed; its log says why.
    Failed = 10,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Ok,
        Self::Absent,
        Self::Loadable,
        Self::CopyOnly,
        Self::AskByFile,
        Self::Denied,
        Self::Invalid,
        Self::NoRoom,
        Self::OverQuota,
        Self::TooMany,
        Self::Failed,
    ];

    /// The status with this number. One that is not known here is [`Status::AskByFile`].
    #[must_use]
    pub fn of(number: u16) -> Self {
        Self::ALL.into_iter().find(|status| *status as u16 == number).unwrap_or(Self::AskByFile)
    }

    /// Whether an object is there, in whatever tier.
    #[must_use]
    pub fn is_present(self) -> bool {
        matches!(self, Self::Ok | Self::Loadable | Self::CopyOnly | Self::AskByFile)
    }
}

/// Feature of a daemon: segments can be mapped, since the kernel serves them by passthrough.
pub const FEATURE_MAPPING: u32 = 1;

/// Feature of a daemon: objects can be created, since the kernel can be told of new names.
pub const FEATURE_CREATE: u32 = 2;

/// Feature of a daemon: it has READY, FOLLOW and PIN.
pub const FEATURE_FOLLOW: u32 = 4;

/// Feature of a daemon: its names clock tells whether what was found under a name still stands there.
pub const FEATURE_CLOCK: u32 = 8;

/// Feature of a daemon: a LOOKUP may say that it is to wait for no other host.
pub const FEATURE_HERE: u32 = 16;

/// Feature of a daemon: a GET_INTO may say that it counts no use.
pub const FEATURE_PROBE: u32 = 32;

/// What a daemon offers beyond the commands that only look: a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u32);

impl Features {
    /// [`FEATURE_MAPPING`].
    pub const MAPPING: Self = Self(FEATURE_MAPPING);
    /// [`FEATURE_CREATE`].
    pub const CREATE: Self = Self(FEATURE_CREATE);
    /// [`FEATURE_FOLLOW`].
    pub const FOLLOW: Self = Self(FEATURE_FOLLOW);
    /// [`FEATURE_CLOCK`].
    pub const CLOCK: Self = Self(FEATURE_CLOCK);
    /// [`FEATURE_HERE`].
    pub const HERE: Self = Self(FEATURE_HERE);
    /// [`FEATURE_PROBE`].
    pub const PROBE: Self = Self(FEATURE_PROBE);

    /// Whether all of `features` are offered.
    #[must_use]
    pub fn has(self, features: Self) -> bool {
        self.0 & features.0 == features.0
    }
}
