//! Objects that the catalog knows and no member could give: for a moment their names stand for nothing.
//!
//! The catalog keeps what a lost member holds for as long as it may come back. Who opens that finds a miss; and who then
//! writes what it missed must find no file there, or its open would wait for the bytes of the old one and fail for want of
//! them.

use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;

use super::fetch::Away;
use crate::cluster::shards::KeyId;
use crate::cluster::{Copy, Stamp};

/// Names that are remembered.
const NAMES_MAX: NonZeroUsize = NonZeroUsize::new(1 << 12).expect("4096 is not zero");
/// For so long a name stands for nothing: who was told that it is a miss asks again within its system call, and a member
/// that is back is soon asked again.
const UNREACHED_FOR: Duration = Duration::from_secs(1);

/// What could not be read.
#[derive(Debug)]
struct Unreached {
    stamp: Stamp,
    copies: Vec<Copy>,
    /// Whether the copies are all on lost members, or were asked for twice.
    is_hidden: bool,
    at: Duration,
}

/// What could not be read a moment ago.
#[derive(Debug)]
pub(super) struct UnreachedNames {
    names: LruCache<KeyId, Unreached>,
}

impl Default for UnreachedNames {
    fn default() -> Self {
        Self { names: LruCache::new(NAMES_MAX) }
    }
}

impl UnreachedNames {
    /// None of the copies could be read, `now` by the monotonic clock. While members that are not lost hold some, they are
    /// asked once more before the name stands for nothing.
    pub(super) fn note(&mut self, away: &Away, is_lost: bool, now: Duration) {
        let key = KeyId::of(&away.path);
        let is_second = self.recent(key, away.stamp, now).is_some();
        let (stamp, copies) = (away.stamp, away.copies.clone());
        self.names.put(key, Unreached { stamp, copies, is_hidden: is_lost || is_second, at: now });
    }

    /// Whether this version was not to be had from any of these members a moment ago.
    pub(super) fn hides(&mut self, key: KeyId, stamp: Stamp, copies: &[Copy], now: Duration) -> bool {
        self.recent(key, stamp, now).is_some_and(|unreached| {
            let was_asked = |copy: &Copy| unreached.copies.iter().any(|asked| asked.member == copy.member);
            unreached.is_hidden && copies.iter().all(was_asked)
        })
    }

    fn recent(&mut self, key: KeyId, stamp: Stamp, now: Duration) -> Option<&Unreached> {
        let unreached = self.names.get(&key)?;
        (unreached.stamp == stamp && now.saturating_sub(unreached.at) < UNREACHED_FOR).then_some(unreached)
    }
}

#[cfg(test)]
mod tests {
    use tidefs_engine::types::MemberId;

    use super::*;
    use crate::cluster::Medium;

    fn copy(member: u64) -> Copy {
        Copy { member: MemberId(member), medium: Medium::Memory }
    }

    fn away(stamp: u64) -> Away {
        Away { path: b"kv/a".to_vec(), stamp: Stamp(stamp), copies: vec![copy(1), copy(2)] }
    }

    #[test]
    fn what_lost_members_hold_is_hidden_for_a_moment_and_no_other_version_or_copy_is() {
        let mut names = UnreachedNames::default();
        let (key, now) = (KeyId::of(b"kv/a"), Duration::from_secs(7));
        assert!(!names.hides(key, Stamp(1), &[copy(1)], now));
        names.note(&away(1), true, now);
        assert!(names.hides(key, Stamp(1), &[copy(1), copy(2)], now));
        assert!(names.hides(key, Stamp(1), &[copy(2)], now + UNREACHED_FOR / 2));
        assert!(!names.hides(key, Stamp(1), &[copy(2)], now + UNREACHED_FOR), "asked again");
        assert!(!names.hides(key, Stamp(1), &[copy(1), copy(3)], now), "somebody was not asked");
        assert!(!names.hides(key, Stamp(2), &[copy(1)], now), "another version");
        assert!(!names.hides(KeyId::of(b"kv/b"), Stamp(1), &[copy(1)], now));
    }

    #[test]
    fn what_members_hold_that_are_there_is_hidden_when_they_were_asked_twice() {
        let mut names = UnreachedNames::default();
        let (key, now) = (KeyId::of(b"kv/a"), Duration::from_secs(7));
        names.note(&away(1), false, now);
        assert!(!names.hides(key, Stamp(1), &[copy(1)], now));
        names.note(&away(2), false, now);
        assert!(!names.hides(key, Stamp(2), &[copy(1)], now), "of this version it was the first time");
        names.note(&away(2), false, now + UNREACHED_FOR);
        assert!(!names.hides(key, Stamp(2), &[copy(1)], now + UNREACHED_FOR), "long after the first time");
        names.note(&away(2), false, now + UNREACHED_FOR);
        assert!(names.hides(key, Stamp(2), &[copy(1)], now + UNREACHED_FOR));
    }
}
