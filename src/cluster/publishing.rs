//! Publishes of this member that are under way: what others withdraw meanwhile may come before them or after them, in the order
//! in which changes are decided.
//!
//! Invariants
//! - What is sealed here and not told yet, or told and not answered yet, is withdrawn by nothing that was decided before it.
//! - A publish that was decided here, or left, has a number: whoever withdraws says which of them it comes after.
//! - What is published while there is no other member is announced to who joins, also before its publisher has noted that.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::catalog::wire::{Change, Outcome};
use super::core::{Core, Seen};
use super::error::ClusterError;
use super::object::{Facts, Stamp};
use super::shards::{KeyId, Shard};

/// Publishes of this member that are under way.
#[derive(Debug, Default)]
pub(super) struct Publishing {
    last: u64,
    /// For each name how many, and the number of the last of them; the largest while it has none, zero where nobody is told of it.
    paths: HashMap<Vec<u8>, (usize, u64)>,
}

impl Publishing {
    fn begin(&mut self, path: &[u8]) {
        let (count, number) = self.paths.entry(path.to_vec()).or_default();
        *count += 1;
        *number = u64::MAX;
    }

    fn end(&mut self, path: &[u8]) {
        let Some((count, _)) = self.paths.get_mut(path) else { return };
        *count -= 1;
        if *count == 0 {
            self.paths.remove(path);
        }
    }

    /// Nobody is told of what is being published there: an announcement tells as much, and whatever is decided comes after it.
    fn tells_nobody(&mut self, path: &[u8]) {
        if let Some((_, number)) = self.paths.get_mut(path) {
            *number = 0;
        }
    }

    /// Numbers `change`, if it is a publish, as it leaves or is decided here.
    pub(super) fn give_number(&mut self, change: &mut Change) {
        if let Change::Publish { number, path, .. } = change {
            self.last += 1;
            *number = self.last;
            if let Some((_, number)) = self.paths.get_mut(path) {
                *number = self.last;
            }
        }
    }

    /// Whether anything is being published there.
    pub(super) fn is_under_way(&self, path: &[u8]) -> bool {
        self.paths.contains_key(path)
    }

    /// Whether something is being published there that comes, in order, after the publish with number `seen`.
    pub(super) fn is_later(&self, path: &[u8], seen: u64) -> bool {
        self.paths.get(path).is_some_and(|(_, number)| *number > seen)
    }
}

/// What stands under a name here is being published, until this is dropped: what was decided before that is not withdrawn here.
/// A caller has one at a time for each name.
#[derive(Debug)]
pub struct PublishGuard {
    core: Arc<Core>,
    path: Vec<u8>,
}

impl Drop for PublishGuard {
    fn drop(&mut self) {
        self.core.publishing.lock().end(&self.path);
    }
}

impl Core {
    /// See [`Cluster::about_to_publish`](super::Cluster::about_to_publish).
    pub(super) fn about_to_publish(self: &Arc<Self>, path: &[u8]) -> PublishGuard {
        self.publishing.lock().begin(path);
        PublishGuard { core: Arc::clone(self), path: path.to_vec() }
    }

    /// Something in `shard` could not be published: it is announced when it can be.
    pub(super) fn note_unpublished(&self, seen: &Seen, shard: Shard) {
        self.counters.publish_failures.increment();
        self.announce_unpublished(seen, shard);
    }

    /// What is held in `shard` is announced to who serves it, which may not know of all, and its copies are looked for then.
    pub(super) fn announce_unpublished(&self, seen: &Seen, shard: Shard) {
        if let Some(owners) = seen.map.owners(shard) {
            self.plan.add_unpublished(owners, shard);
        }
    }

    pub(super) async fn publish(
        self: &Arc<Self>,
        path: Vec<u8>,
        proposed: Stamp,
        facts: Facts,
        deadline: Instant,
    ) -> Result<(Stamp, bool), ClusterError> {
        self.counters.publishes.increment();
        // Also of a directory: its removal may be on its way to somebody who does not hear of this.
        let proposed = self.unheard.above(&path, proposed);
        if matches!(facts, Facts::Directory(_)) {
            // It has no version that would tell it from the one before.
            self.unheard.forget(&path);
        }
        let seen = {
            // Whoever announces to those who have joined looks here too, and goes by the view with them: one finds the other.
            let mut publishing = self.publishing.lock();
            let seen = self.seen();
            if seen.is_alone {
                publishing.tells_nobody(&path);
                return Ok((proposed, true));
            }
            seen
        };
        let shard = KeyId::of(&path).shard();
        let under_way = self.about_to_publish(&path);
        let change = Change::Publish { number: 0, path, proposed, facts };
        let result = self.change(change, deadline).await;
        drop(under_way);
        self.note_revocation(shard);
        match result {
            Ok(Outcome::Done { stamp }) => Ok((stamp, true)),
            Ok(Outcome::Late { stamp }) => Ok((stamp, false)),
            Ok(Outcome::Moved | Outcome::Refused { .. }) | Err(_) => {
                self.note_unpublished(&seen, shard);
                Err(match result {
                    Err(error) => error,
                    Ok(_) => ClusterError::NobodyReached { reason: "nobody decides about it".to_owned() },
                })
            }
        }
    }
}
