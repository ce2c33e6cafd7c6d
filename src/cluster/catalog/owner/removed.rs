//! What this owner remembers to be removed, and for how long.
//!
//! Invariant: who is away for longer is not believed in what nobody knows any more. Its last versions may have been removed, or
//! replaced, and what took their place let go of; that is forgotten from then on, as there may be as much of it as is evicted.

use std::time::Duration;

use tidefs_engine::types::MemberId;

use super::Owner;
use crate::cluster::object::Stamp;
use crate::cluster::shards::{KeyId, Shard};

/// What is forgotten with time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Ends that were forgotten before their time since this was asked last.
    pub ends_lost: u64,
    /// Members that are away for so long now that they are not believed in what nobody knows.
    pub disbelieved: Vec<MemberId>,
}

impl Owner {
    /// Keys with a tombstone or an end, in order. It costs a look at all of them.
    #[must_use]
    pub fn removed_keys(&self, is_wanted: impl Fn(Shard) -> bool) -> Vec<KeyId> {
        let removed = self.table.tombstones().iter().chain(self.table.ends().iter()).map(|(key, ..)| key);
        let mut keys: Vec<KeyId> = removed.filter(|key| is_wanted(key.shard())).collect();
        keys.sort_unstable();
        keys
    }

    /// What was removed in some shards: through which version, and when. Ends of last copies are not among it.
    pub fn removals(&self, is_wanted: impl Fn(Shard) -> bool) -> Vec<(KeyId, Stamp, Duration)> {
        self.table.tombstones().iter().filter(|(key, ..)| is_wanted(key.shard())).collect()
    }

    /// An earlier start of this member knew that `key` was removed. From now on that is remembered anew.
    pub fn recall_removal(&mut self, key: KeyId, through: Stamp, now: Duration) {
        self.table.tombstones_mut().note(key, through, now, now);
    }

    /// Forgets old removals and ends.
    pub fn expire(&mut self, now: Duration) -> Expired {
        self.table.tombstones_mut().expire(now);
        self.table.ends_mut().expire(now);
        let retention = self.table.tombstones().retention();
        let mut disbelieved = Vec::new();
        for (member, lost_at) in self.away.extract_if(.., |_, lost_at| *lost_at + retention <= now) {
            self.table.tombstones_mut().raise_horizon(lost_at);
            self.disbelieved.insert(member);
            disbelieved.push(member);
        }
        Expired { ends_lost: self.table.ends_mut().take_surplus(), disbelieved }
    }

    /// Age of the youngest removal that was forgotten.
    #[must_use]
    pub fn horizon_age_ms(&self, now: Duration) -> Option<u64> {
        let horizon = self.table.tombstones().horizon()?;
        Some(u64::try_from(now.saturating_sub(horizon).as_millis()).unwrap_or(u64::MAX))
    }
}
