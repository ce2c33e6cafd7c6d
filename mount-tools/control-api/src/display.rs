//! How the values of closed sets are shown to people: by the words that JSON has for them, which are a promise to scripts.

/// `Display` by the word of each variant.
macro_rules! display_as_in_json {
    ($($name:ident { $($variant:ident => $text:literal),+ $(,)? })+) => {
        $(impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(match self { $(Self::$variant => $text),+ })
            }
        })+
    };
}
pub(crate) use display_as_in_json;

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Display};

    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use crate::{CopyMedium, DiskState, DrainPhase, MemberLink, WhereKind};

    /// Each value is the same word in JSON and to people; a word that is not known is `unknown`.
    fn check<T>(words: &[(T, &str)], unknown: &T)
    where
        T: Debug + PartialEq + Display + Serialize + DeserializeOwned,
    {
        for (value, word) in words {
            assert_eq!(serde_json::to_value(value).unwrap(), *word);
            assert_eq!(value.to_string(), *word);
            assert_eq!(serde_json::from_value::<T>((*word).into()).unwrap(), *value);
        }
        assert_eq!(serde_json::from_value::<T>("from_the_future".into()).unwrap(), *unknown);
    }

    #[test]
    fn states_keep_their_words() {
        let disks = [
            (DiskState::Ready, "ready"),
            (DiskState::Missing, "missing"),
            (DiskState::Foreign, "foreign"),
            (DiskState::ReadOnly, "read_only"),
            (DiskState::Full, "full"),
            (DiskState::Failing, "failing"),
            (DiskState::Slow, "slow"),
            (DiskState::Leaving, "leaving"),
            (DiskState::Damaged, "damaged"),
        ];
        check(&disks, &DiskState::Other);
        let links = [
            (MemberLink::Myself, "myself"),
            (MemberLink::Up, "up"),
            (MemberLink::Connecting, "connecting"),
            (MemberLink::Suspect, "suspect"),
        ];
        check(&links, &MemberLink::Other);
        let kinds = [
            (WhereKind::File, "file"),
            (WhereKind::Directory, "directory"),
            (WhereKind::Absent, "absent"),
            (WhereKind::Unknown, "unknown"),
        ];
        check(&kinds, &WhereKind::Unknown);
        let media = [
            (CopyMedium::Memory, "memory"),
            (CopyMedium::Ssd, "ssd"),
            (CopyMedium::LeavesFirst, "memory, leaves first"),
        ];
        check(&media, &CopyMedium::Other);
        let phases = [
            (DrainPhase::Idle, "idle"),
            (DrainPhase::Copying, "copying"),
            (DrainPhase::Left, "left"),
            (DrainPhase::Late, "late"),
            (DrainPhase::Stuck, "stuck"),
        ];
        check(&phases, &DrainPhase::Other);
    }
}
