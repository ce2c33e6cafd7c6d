//! Names of the files in the tier's directory: what kind a file is, and which one, can be told from its name.

use std::fmt;

use tidefs_engine::types::{DirectoryId, SegmentId};

/// One file of the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The bytes of one object, or of one being written: `s<id>`.
    Segment(SegmentId),
    /// The record of one directory, without bytes: `d<id>`.
    Directory(DirectoryId),
    /// Packed objects of one namespace: `p<index>-<namespace>`.
    Packed {
        /// Number of the packed segment.
        index: u32,
        /// The top-level directory that they lie below.
        namespace: DirectoryId,
    },
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment(id) => write!(f, "s{:016x}", id.0),
            Self::Directory(id) => write!(f, "d{:016x}", id.0),
            Self::Packed { index, namespace } => write!(f, "p{index:08x}-{:016x}", namespace.0),
        }
    }
}

impl Entry {
    /// Reads a name; `None` for one that the tier does not give.
    pub(super) fn parse(name: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(name).ok()?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let entry = match (text.get(..1)?, text.get(1..)?) {
            ("s", id) => Self::Segment(SegmentId(number(id)?)),
            ("d", id) => Self::Directory(DirectoryId(number(id)?)),
            ("p", rest) => {
                let (index, namespace) = rest.split_once('-')?;
                Self::Packed {
                    index: u32::from_str_radix(index, 16).ok()?,
                    namespace: DirectoryId(number(namespace)?),
                }
            }
            _ => return None,
        };
        // One entry has one name, so that what is listed is what is opened.
        (entry.to_string() == text).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_reads_back_from_its_name() {
        for entry in [
            Entry::Segment(SegmentId(0x123)),
            Entry::Segment(SegmentId(u64::MAX)),
            Entry::Directory(DirectoryId::ROOT),
            Entry::Packed { index: 7, namespace: DirectoryId(u64::MAX) },
        ] {
            assert_eq!(Entry::parse(entry.to_string().as_bytes()), Some(entry));
        }
        assert_eq!(Entry::Segment(SegmentId(0x123)).to_string(), "s0000000000000123");
    }

    #[test]
    fn other_names_are_nobodys() {
        for name in
            ["", "s", "s123", "S0000000000000123", "s000000000000012G", "s+00000000000123", "probe", "é"]
        {
            assert_eq!(Entry::parse(name.as_bytes()), None, "{name}");
        }
        assert_eq!(Entry::parse(b"s\xff"), None);
    }
}
