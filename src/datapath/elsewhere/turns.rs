//! Turns at telling the other members of a name: one thing at a time, first come, first served.
//!
//! Limits: as many queues, and places in them, as requests that are being answered; nobody waits for longer than the deadline of
//! its own request.
//! Threads: called from tasks of the cluster's runtime; the lock is held across no wait.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::{Mutex as Queue, OwnedMutexGuard};

use crate::cluster::shards::KeyId;

/// Who tells of which name, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Of the names of which something is being told. Held for a look-up.
    queues: Mutex<HashMap<KeyId, Arc<Queue<()>>>>,
}

/// A place in a queue.
#[derive(Debug)]
struct InLine<'a> {
    turns: &'a Turns,
    key: KeyId,
    /// Until it is dropped.
    queue: Option<Arc<Queue<()>>>,
}

/// Nobody else tells of the name before this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    /// Dropped first: the place knows whether it is the last one.
    _held: OwnedMutexGuard<()>,
    _place: InLine<'a>,
}

impl Turns {
    /// Waits for the turn to tell of a name.
    ///
    /// # Cancellation
    /// Dropping the future gives up the place in the queue.
    pub(super) async fn take(&self, key: KeyId) -> Turn<'_> {
        let queue = Arc::clone(self.queues.lock().entry(key).or_default());
        let place = InLine { turns: self, key, queue: Some(Arc::clone(&queue)) };
        Turn { _held: queue.lock_owned().await, _place: place }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let mut queues = self.turns.queues.lock();
        // Under the lock, which whoever comes into the queue takes as well: the last one out sees that nobody else is in it.
        drop(self.queue.take());
        if queues.get(&self.key).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            queues.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn of_one_name_one_is_told_at_a_time_and_of_others_beside_it() {
        let turns = Turns::default();
        let (one, other) = (KeyId::of(b"kv/a"), KeyId::of(b"kv/b"));
        let first = turns.take(one).await;
        let mut second = std::pin::pin!(turns.take(one));
        assert!(timeout(Duration::from_secs(1), &mut second).await.is_err());
        drop(turns.take(other).await);
        drop(first);
        drop(timeout(Duration::from_secs(1), second).await.expect("its turn"));
        assert!(turns.queues.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_no_more_leaves_nothing_behind() {
        let turns = Turns::default();
        let key = KeyId::of(b"kv/a");
        let first = turns.take(key).await;
        assert!(timeout(Duration::from_secs(1), turns.take(key)).await.is_err());
        assert_eq!(turns.queues.lock().len(), 1);
        drop(first);
        assert!(turns.queues.lock().is_empty());
    }
}
