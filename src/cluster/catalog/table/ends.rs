//! Ends of last copies: who comes back may have the last version of a key, and no earlier one.
//!
//! Invariants
//! - An end refuses earlier versions of its key. The last one itself stands again when a copy of it comes back.
//! - One that is forgotten leaves nothing behind: no member is refused what it alone holds because others let go of much.
//! - Directories have no versions that members know: no end refuses one.

use std::time::Duration;

use super::super::entry::Entry;
use super::super::tombstones::Tombstones;
use super::Table;
use crate::cluster::object::{Facts, Stamp};
use crate::cluster::shards::KeyId;

impl Table {
    /// No copy is left of `last`, which stood under `key`, while somebody is away who may come back with that or an earlier
    /// version.
    pub fn note_end(&mut self, key: KeyId, last: Stamp, now: Duration) {
        if self.get(key).is_none() && Some(last) > self.tombstones.through(key).max(Some(Stamp(0))) {
            self.ends.note(key, last, now, now);
        }
    }

    /// The latest version that stands, or stood when its last copy went.
    #[must_use]
    pub fn latest(&self, key: KeyId) -> Option<Stamp> {
        self.get(key).map(Entry::stamp).max(self.ends.through(key))
    }

    /// Through which version nothing that is announced of a key is valid, if it is not known to stand.
    pub(super) fn invalid_through(&self, key: KeyId, facts: &Facts) -> Option<Stamp> {
        let last = self.ends.through(key).filter(|_| matches!(facts, Facts::File(_)));
        self.tombstones.through(key).max(last.map(|last| Stamp(last.0.saturating_sub(1))))
    }

    /// What stood there through that version was removed at `at`.
    pub(super) fn note_removal(&mut self, key: KeyId, through: Stamp, at: Duration, now: Duration) {
        if self.ends.through(key).is_some_and(|last| last <= through) {
            self.ends.forget(key);
        }
        self.tombstones.note(key, through, at, now);
    }

    /// Ends of last copies.
    #[must_use]
    pub fn ends(&self) -> &Tombstones {
        &self.ends
    }

    /// Ends of last copies, to expire them.
    pub fn ends_mut(&mut self) -> &mut Tombstones {
        &mut self.ends
    }
}
