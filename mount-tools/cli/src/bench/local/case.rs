//! What is done to hot objects, and what the mount must reach at it.
//!
//! The targets are ratios to the same operation on a private tmpfs with huge pages, except where a row names
//! another baseline. They hold for objects of at least the size they are written beside.

use tidefs_engine::types::ByteCount;

use crate::bench::report::Target;

/// One way to read or write whole objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// read(2) of a file that stays open.
    Read,
    /// The same with `O_DIRECT`.
    ReadDirect,
    /// memcpy out of a mapping that stays.
    CopyMapped,
    /// mmap, memcpy, munmap on a file that stays open.
    MapCopy,
    /// open, read, close.
    OpenRead,
    /// create, write, close, rename into a cache with room.
    Create,
    /// The same into a full one, which must evict: on the baseline, the writer unlinks its oldest file.
    CreateFull,
}

const KIB_64: ByteCount = ByteCount::kib(64);
const MIB_1: ByteCount = ByteCount::mib(1);
const MIB_4: ByteCount = ByteCount::mib(4);
const MIB_32: ByteCount = ByteCount::mib(32);

impl Case {
    /// Those that are measured on the mount under test, in the order of the table.
    pub(super) const ON_MOUNT: [Self; 6] =
        [Self::Read, Self::ReadDirect, Self::CopyMapped, Self::MapCopy, Self::OpenRead, Self::Create];

    /// The name in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "read(2), open file",
            Self::ReadDirect => "O_DIRECT read, open file",
            Self::CopyMapped => "copy out of a mapping",
            Self::MapCopy => "mmap + copy + munmap",
            Self::OpenRead => "open + read + close",
            Self::Create => "create + write + close + rename",
            Self::CreateFull => "the same, cache full",
        }
    }

    /// Whether it writes objects.
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Create | Self::CreateFull)
    }

    /// The least ratio to tmpfs for objects of `size`, `None` where nothing is promised.
    pub(super) fn target(self, size: ByteCount) -> Option<Target> {
        let steps: &[(ByteCount, f64)] = match self {
            Self::Read | Self::ReadDirect => &[(MIB_1, 0.95), (KIB_64, 0.85)],
            Self::CopyMapped | Self::MapCopy => &[(KIB_64, 0.95)],
            Self::OpenRead => &[(MIB_32, 0.95), (MIB_4, 0.9), (MIB_1, 0.75)],
            Self::Create | Self::CreateFull => &[(MIB_4, 0.8), (MIB_1, 0.6)],
        };
        steps.iter().find(|(least, _)| size >= *least).map(|(_, ratio)| Target::RatioAtLeast(*ratio))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_that_of_the_largest_step_not_above_the_size() {
        let ratio = |case: Case, size| case.target(size);
        assert_eq!(ratio(Case::Read, KIB_64), Some(Target::RatioAtLeast(0.85)));
        assert_eq!(ratio(Case::Read, MIB_1), Some(Target::RatioAtLeast(0.95)));
        assert_eq!(ratio(Case::OpenRead, KIB_64), None);
        assert_eq!(ratio(Case::OpenRead, ByteCount::mib(2)), Some(Target::RatioAtLeast(0.75)));
        assert_eq!(ratio(Case::OpenRead, MIB_32), Some(Target::RatioAtLeast(0.95)));
        assert_eq!(ratio(Case::Create, MIB_4), Some(Target::RatioAtLeast(0.8)));
    }
}
