//! Keys of which the other owner of a shard was told while this one may not know everything of the shard: by that word the other
//! one may have lost what it knew.
//!
//! Limits: [`KEYS_MAX`] keys of a shard; of one with more each key counts as told, which costs further words, and copies at the
//! other owner until their holders have announced them here. A shard may stay so for as long as a member of the view is there and
//! does not announce what it holds, as one of a strange version.

use std::collections::BTreeSet;

use crate::cluster::shards::KeyId;

/// Keys of one shard that are remembered: of all shards together as many as removals.
const KEYS_MAX: usize = 256;

/// Such keys of one shard. One more than are remembered stands for all.
#[derive(Debug, Default)]
pub(super) struct Spoken(BTreeSet<KeyId>);

impl Spoken {
    /// The other owner is told of `key`.
    pub(super) fn add(&mut self, key: KeyId) {
        if self.0.len() <= KEYS_MAX {
            self.0.insert(key);
        }
    }

    /// Whether it may have been.
    pub(super) fn contains(&self, key: KeyId) -> bool {
        self.0.len() > KEYS_MAX || self.0.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_the_other_owner_was_told_of_are_bounded_and_then_all_are() {
        let (mut spoken, mut keys) = (Spoken::default(), (1..).map(KeyId));
        keys.by_ref().take(KEYS_MAX).for_each(|key| spoken.add(key));
        assert!(spoken.contains(KeyId(1)) && !spoken.contains(KeyId(0)));
        keys.take(KEYS_MAX).for_each(|key| spoken.add(key));
        assert!(spoken.contains(KeyId(0)), "it may have been");
        assert_eq!(spoken.0.len(), KEYS_MAX + 1);
    }
}
