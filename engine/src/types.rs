//! Quantities and identities, one type each, so that the compiler tells a length from an offset.
//!
//! Values are parsed at the edge (`64GiB`) and carried as these types inside.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A boxed future, so that traits with asynchronous methods can be used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A length in bytes, on the wire, on disk or in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteCount(pub u64);

/// Size of the base page that the kernel accounts in on every host tidefs runs on.
pub const PAGE: ByteCount = ByteCount(4096);

impl ByteCount {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// `count` KiB.
    #[must_use]
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// `count` MiB.
    #[must_use]
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// `count` GiB.
    #[must_use]
    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    /// The plain number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The length rounded up to whole pages, which is what the kernel charges for it. Saturates.
    #[must_use]
    pub const fn round_up_to_pages(self) -> Self {
        match self.0.checked_next_multiple_of(PAGE.0) {
            Some(bytes) => Self(bytes),
            None => Self(u64::MAX),
        }
    }

    /// `self - other`, or zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `self + other`, or the largest length.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for ByteCount {
    /// Writes a human length in binary units, for example `64.0 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&bytesize::ByteSize::b(self.0).display().iec(), f)
    }
}

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a size: write a number with a unit, for example 512MiB, 64GiB or 1.5TiB")]
pub struct ParseByteCountError {
    text: String,
}

impl FromStr for ByteCount {
    type Err = ParseByteCountError;

    /// Reads `4096`, `64KiB`, `64K`, `1.5GiB`, `2GB`. Binary units have an `i`; a bare letter is binary.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseByteCountError { text: text.to_owned() };
        let trimmed = text.trim();
        let bare_letter = trimmed
            .chars()
            .last()
            .is_some_and(|last| "kmgtpKMGTP".contains(last))
            .then(|| format!("{trimmed}iB"));
        let size: bytesize::ByteSize =
            bare_letter.as_deref().unwrap_or(trimmed).parse().map_err(|_| error())?;
        Ok(Self(size.as_u64()))
    }
}

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

identity!(
    /// An offset in bytes from the start of a file or object.
    FileOffset(u64)
);
identity!(
    /// A number of objects.
    ObjectCount(u64)
);
identity!(
    /// One segment: a shared-memory file. Never used twice by one memory tier, across restarts too.
    SegmentId(u64)
);
identity!(
    /// Order of seals on one host. A later seal has a larger version; recovery keeps the largest of a key.
    Version(u64)
);
identity!(
    /// A directory, for as long as it exists and across restarts. The mount's root is [`DirectoryId::ROOT`].
    DirectoryId(u64)
);
identity!(
    /// Keyed 64-bit hash of a key, what a ghost remembers of an object that is gone.
    KeyHash(u64)
);
identity!(
    /// xxh3-64 over all bytes of an object.
    Checksum(u64)
);

identity!(
    /// One daemon of a cluster, the same across its restarts.
    MemberId(u64)
);
identity!(
    /// Start of a member: grows each time its process starts, so that a restarted peer is not taken for the old one.
    Incarnation(u64)
);
identity!(
    /// A region that an engine registered. Never used twice by one incarnation.
    RegionId(u64)
);
identity!(
    /// A NUMA node of this host, as the kernel numbers it.
    NumaNode(u32)
);
identity!(
    /// A rail of one transport on this host: a NIC, or a path that is used like one.
    RailId(u16)
);

/// One process that takes part in transfers: never a host name alone, because a host restarts and a port is reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeerId {
    /// Which daemon.
    pub member: MemberId,
    /// Which start of it.
    pub incarnation: Incarnation,
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.member, self.incarnation)
    }
}

impl DirectoryId {
    /// The root of the mount.
    pub const ROOT: Self = Self(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_binary_and_decimal_units() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64KiB", 65536),
            ("64k", 65536),
            ("1.5GiB", 3 << 29),
            ("2GB", 2_000_000_000),
            (" 8G ", 8 << 30),
        ] {
            assert_eq!(text.parse::<ByteCount>().map(ByteCount::get), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_text_without_a_number_is_refused_and_named() {
        let error = "lots".parse::<ByteCount>().unwrap_err();
        assert!(error.to_string().contains("`lots`"), "{error}");
    }

    #[test]
    fn lengths_round_up_to_pages() {
        assert_eq!(ByteCount(0).round_up_to_pages(), ByteCount(0));
        assert_eq!(ByteCount(1).round_up_to_pages(), PAGE);
        assert_eq!(ByteCount(4097).round_up_to_pages(), ByteCount(8192));
    }
}
