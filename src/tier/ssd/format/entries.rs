//! The entries of a footer, refused at the first that no daemon writes: an empty list of removals takes two bytes on disk and
//! a hundred in memory.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error as _, SeqAccess, Visitor};

use super::FooterEntry;

/// Reads the entries, in memory of a few times their bytes on disk.
///
/// # Errors
/// Those of the deserializer, and at the first entry that is not sound.
pub(super) fn sound<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<FooterEntry>, D::Error> {
    deserializer.deserialize_seq(Sound)
}

struct Sound;

impl<'de> Visitor<'de> for Sound {
    type Value = Vec<FooterEntry>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the entries of a footer")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = sequence.next_element::<FooterEntry>()? {
            if !entry.is_sound() {
                return Err(A::Error::custom("an entry that no daemon writes"));
            }
            entries.push(entry);
        }
        Ok(entries)
    }
}
