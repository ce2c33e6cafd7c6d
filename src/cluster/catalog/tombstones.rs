//! Keys that were removed, for as long as somebody may come back with a copy.
//!
//! Invariants
//! - At most `limit` keys are remembered; each for the retention time, unless there are more.
//! - The horizon is the latest removal that was forgotten: who was last in touch before it may hold something removed that
//!   nobody remembers.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;

use super::table::KeyHash;
use crate::cluster::object::Stamp;
use crate::cluster::shards::KeyId;

#[derive(Clone, Copy, Debug)]
struct Removed {
    through: Stamp,
    at: Duration,
}

/// Removed keys, and which of them were forgotten.
#[derive(Debug)]
pub struct Tombstones {
    removed: HashMap<KeyId, Removed, KeyHash>,
    /// Ordered by when they were noted. One that was noted again has a place for each time; the last one counts.
    order: VecDeque<(Duration, KeyId)>,
    horizon: Option<Duration>,
    retention: Duration,
    limit: usize,
    /// How many were forgotten before their time since that was asked last.
    surplus: u64,
}

impl Tombstones {
    /// None yet.
    #[must_use]
    pub fn new(retention: Duration, limit: usize) -> Self {
        let (removed, order) = (HashMap::default(), VecDeque::new());
        Self { removed, order, horizon: None, retention, limit: limit.max(1), surplus: 0 }
    }

    /// None yet, of which as many are remembered for as long.
    #[must_use]
    pub fn alike(&self) -> Self {
        Self::new(self.retention, self.limit)
    }

    /// For how long each is remembered.
    #[must_use]
    pub fn retention(&self) -> Duration {
        self.retention
    }

    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.removed.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty()
    }

    /// Through which version `key` was removed.
    #[must_use]
    pub fn through(&self, key: KeyId) -> Option<Stamp> {
        self.removed.get(&key).map(|removed| removed.through)
    }

    /// Through which version, and when.
    #[must_use]
    pub fn get(&self, key: KeyId) -> Option<(Stamp, Duration)> {
        self.removed.get(&key).map(|removed| (removed.through, removed.at))
    }

    /// Remembers that `key` was removed at `at`, which is not after `now`.
    pub fn note(&mut self, key: KeyId, through: Stamp, at: Duration, now: Duration) {
        let known = self.removed.get(&key).map_or(Stamp(0), |removed| removed.through);
        self.removed.insert(key, Removed { through: through.max(known), at });
        self.order.push_back((at, key));
        self.expire(now);
    }

    /// The key stands for something later now.
    pub fn forget(&mut self, key: KeyId) {
        self.removed.remove(&key);
    }

    /// Forgets what is older than the retention time, and what is too much. Returns how many places of the order were
    /// looked at, which is all the work that it does.
    pub fn expire(&mut self, now: Duration) -> usize {
        let mut steps = 0;
        while let Some(&(at, key)) = self.order.front() {
            let is_old = at + self.retention <= now;
            if !is_old && self.order.len() <= self.limit {
                break;
            }
            self.order.pop_front();
            steps += 1;
            if self.removed.get(&key).is_some_and(|removed| removed.at == at) {
                self.removed.remove(&key);
                self.raise_horizon(at);
                self.surplus += u64::from(!is_old);
            }
        }
        steps
    }

    /// How many were forgotten before their time since this was asked last.
    pub fn take_surplus(&mut self) -> u64 {
        std::mem::take(&mut self.surplus)
    }

    /// The time of the latest removal that was forgotten.
    #[must_use]
    pub fn horizon(&self) -> Option<Duration> {
        self.horizon
    }

    /// Somebody whose knowledge was taken over had forgotten removals until then.
    pub fn raise_horizon(&mut self, at: Duration) {
        self.horizon = Some(self.horizon.map_or(at, |horizon| horizon.max(at)));
    }

    /// Forgets the keys for which `is_wanted` does not hold, without a trace: others answer for them now.
    pub fn retain(&mut self, is_wanted: impl Fn(KeyId) -> bool) {
        self.removed.retain(|&key, _| is_wanted(key));
        self.order.retain(|&(_, key)| is_wanted(key));
    }

    /// All of them: key, through which version, and when.
    pub fn iter(&self) -> impl Iterator<Item = (KeyId, Stamp, Duration)> {
        self.removed.iter().map(|(&key, removed)| (key, removed.through, removed.at))
    }

    /// Bytes that they take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.removed.allocation_size() + self.order.capacity() * size_of::<(Duration, KeyId)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RETENTION: Duration = Duration::from_secs(60);

    proptest! {
        #[test]
        fn what_is_not_remembered_is_behind_the_horizon(
            steps in proptest::collection::vec((0_u128..12, 0_u64..40, any::<bool>()), 1..80)
        ) {
            let mut tombstones = Tombstones::new(RETENTION, 8);
            let mut now = Duration::ZERO;
            let mut last = std::collections::BTreeMap::new();
            for (key, wait, is_forgotten) in steps {
                now += Duration::from_secs(wait);
                if is_forgotten {
                    tombstones.forget(KeyId(key));
                    last.remove(&key);
                } else {
                    tombstones.note(KeyId(key), Stamp(1), now, now);
                    last.insert(key, now);
                }
                tombstones.expire(now);
                prop_assert!(tombstones.len() <= 8 && tombstones.order.len() <= 8);
                for (&key, &at) in &last {
                    let is_known = tombstones.through(KeyId(key)).is_some();
                    prop_assert!(is_known || tombstones.horizon().is_some_and(|horizon| horizon >= at));
                    prop_assert!(!is_known || at + RETENTION > now);
                }
            }
        }
    }

    #[test]
    fn a_removal_never_covers_less_than_before() {
        let mut tombstones = Tombstones::new(RETENTION, 8);
        tombstones.note(KeyId(1), Stamp(9), Duration::ZERO, Duration::ZERO);
        tombstones.note(KeyId(1), Stamp(4), Duration::from_secs(1), Duration::from_secs(1));
        assert_eq!(tombstones.through(KeyId(1)), Some(Stamp(9)));
    }
}
