//! Keys of which this member sees to the copies, and of which there are too few.
//!
//! Invariant: a key that a whole walk through all that is held did not meet is remembered no longer: its object was removed, or
//! wants no copies any more.
//!
//! Limits: [`KEYS_MAX`] keys are remembered.

use std::collections::HashMap;

use super::shards::KeyId;

/// Keys with too few copies that are remembered.
const KEYS_MAX: usize = 65_536;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Short {
    /// Each with the number of the walk in which it was met last.
    keys: HashMap<KeyId, u64>,
    /// Walks that have begun.
    walks: u64,
}

impl Short {
    pub(super) fn count(&self) -> usize {
        self.keys.len()
    }

    /// What is known now of the copies of `key`.
    pub(super) fn note(&mut self, key: KeyId, is_short: bool) {
        if !is_short {
            self.keys.remove(&key);
        } else if self.keys.len() < KEYS_MAX || self.keys.contains_key(&key) {
            self.keys.insert(key, self.walks);
        }
    }

    /// Nothing more is known of `key` than before.
    pub(super) fn keep(&mut self, key: KeyId) {
        if let Some(walk) = self.keys.get_mut(&key) {
            *walk = self.walks;
        }
    }

    /// A walk through all that is held begins. A fast one begins anew; in another one what is short would be shown as
    /// fewer for as long as that takes.
    pub(super) fn begin_walk(&mut self, is_fast: bool) {
        self.walks += 1;
        if is_fast {
            self.keys.clear();
        }
    }

    /// It has come to its end.
    pub(super) fn end_walk(&mut self) {
        let this = self.walks;
        self.keys.retain(|_, walk| *walk == this);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_whole_walk_does_not_meet_is_forgotten() {
        let mut short = Short::default();
        let [met, unmet, unknown, enough] = [1, 2, 3, 4].map(KeyId);
        [met, unmet, unknown, enough].into_iter().for_each(|key| short.note(key, true));
        short.begin_walk(false);
        short.note(met, true);
        short.keep(unknown);
        short.note(enough, false);
        assert_eq!(short.count(), 3);
        short.end_walk();
        assert_eq!([met, unmet, unknown].map(|key| short.keys.contains_key(&key)), [true, false, true]);
        short.keep(unmet);
        assert_eq!(short.count(), 2, "what was forgotten stays so");
    }
}
