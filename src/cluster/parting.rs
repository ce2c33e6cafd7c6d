//! What this member publishes while it drains: the last walk through what it holds may have begun before, so it is looked at
//! once more before the member leaves.
//!
//! Invariants
//! - Of what is published while it drains nothing is under way, or not looked at since, when the coordinator is asked to take
//!   this member out.
//! - What would be published while that is asked waits for the answer. It is announced if the member stays.
//!
//! Limits: [`NOTED_MAX`] publishes are noted; after more than that all that is held is walked through again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::types::MemberId;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::copying::Wish;
use super::core::Core;
use super::error::ClusterError;
use super::object::{Copy, Facts, Found, Holding, Medium, Stamp};
use super::shards::KeyId;

/// Publishes that are noted for one more look.
const NOTED_MAX: usize = 4096;
/// Between two looks whether the catalog names who holds a copy.
const NAMING: Duration = Duration::from_millis(5);

/// Publishes of this member, as far as its leaving has to know of them.
#[derive(Debug, Default)]
pub(super) struct Parting {
    /// Held for a look-up.
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// It drains, and notes what it publishes.
    is_noting: bool,
    /// The coordinator is being asked to take it out: nothing is published now.
    is_shut: bool,
    under_way: usize,
    noted: Vec<Holding>,
    /// Something was published that is not noted.
    has_missed: bool,
}

impl Parting {
    /// What is published from now on is noted.
    pub(super) fn begin(&self) {
        let mut state = self.state.lock();
        (state.is_noting, state.has_missed) = (true, false);
        state.noted.clear();
    }

    /// Nothing is noted any more.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.is_noting = false;
        state.noted = Vec::new();
    }

    /// What was noted since this was asked last. `None` when that is not all that was published.
    pub(super) fn take(&self) -> Option<Vec<Holding>> {
        let mut state = self.state.lock();
        let noted = std::mem::take(&mut state.noted);
        (!std::mem::take(&mut state.has_missed)).then_some(noted)
    }

    /// Whether much more than this cannot be noted.
    pub(super) fn is_filling(&self) -> bool {
        self.state.lock().noted.len() >= NOTED_MAX / 2
    }

    /// Nothing more is published until the answer is dropped.
    pub(super) fn shut(&self) -> Shut<'_> {
        self.state.lock().is_shut = true;
        Shut { parting: self }
    }

    async fn until(&self, is_so: impl Fn(&mut State) -> bool) {
        loop {
            // Made before the look: it hears of all that comes after.
            let changed = self.changed.notified();
            if is_so(&mut self.state.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// A publish begins, as soon as one may.
    async fn begin_publish(&self) -> UnderWay<'_> {
        self.until(|state| {
            if !state.is_shut {
                state.under_way += 1;
            }
            !state.is_shut
        })
        .await;
        UnderWay { parting: self, published: None }
    }

    fn is_noting(&self) -> bool {
        self.state.lock().is_noting
    }
}

/// Nothing is published while this lives.
#[derive(Debug)]
pub(super) struct Shut<'a> {
    parting: &'a Parting,
}

impl Shut<'_> {
    /// Waits until nothing is under way that began before.
    pub(super) async fn is_idle(&self) {
        self.parting.until(|state| state.under_way == 0).await;
    }
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.parting.state.lock().is_shut = false;
        self.parting.changed.notify_waiters();
    }
}

/// A publish that is under way.
struct UnderWay<'a> {
    parting: &'a Parting,
    /// What it published, if that is known.
    published: Option<Holding>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.parting.state.lock();
        state.under_way -= 1;
        if state.is_noting {
            match self.published.take() {
                Some(published) if state.noted.len() < NOTED_MAX => state.noted.push(published),
                _ => state.has_missed = true,
            }
        }
        // Nobody else waits for that.
        let is_awaited = state.is_shut && state.under_way == 0;
        drop(state);
        if is_awaited {
            self.parting.changed.notify_waiters();
        }
    }
}

impl Core {
    /// As [`Core::publish`], and never while this member is being taken out.
    pub(super) async fn publish_unless_leaving(
        self: &Arc<Self>,
        path: Vec<u8>,
        proposed: Stamp,
        facts: Facts,
        deadline: Instant,
    ) -> Result<(Stamp, bool), ClusterError> {
        let Ok(mut under_way) = timeout_at(deadline.into(), self.parting.begin_publish()).await else {
            // Should it stay.
            self.counters.publishes.increment();
            self.note_unpublished(&self.seen(), KeyId::of(&path).shard());
            return Err(ClusterError::DeadlinePassed);
        };
        let noted = self.parting.is_noting().then(|| path.clone());
        let published = self.publish(path, proposed, facts, deadline).await;
        if let (Some(path), Ok((stamp, _))) = (noted, &published) {
            under_way.published = Some(Holding { path, stamp: *stamp, facts, medium: Medium::Memory });
        }
        published
    }

    /// Waits until the catalog names `holders`, or something else stands there: it forgets the copy of a member that leaves, and
    /// with the last copy that it knows of what stands under the name.
    pub(super) async fn are_named(self: &Arc<Self>, wish: &Wish, holders: &[MemberId]) -> bool {
        let deadline = self.within(self.config.timings.keep);
        loop {
            match self.look_at(&wish.path, deadline).await {
                Found::Present { stamp, copies, .. } if stamp == wish.stamp => {
                    let is_named =
                        |holder: &MemberId| copies.iter().any(|copy: &Copy| copy.member == *holder);
                    if holders.iter().all(is_named) {
                        return true;
                    }
                }
                Found::Present { .. } | Found::Absent { .. } => return true,
                Found::Unknown => {}
            }
            if self.until(deadline).is_zero() {
                return false;
            }
            tokio::time::sleep(NAMING).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::cluster::object::DirectoryFacts;

    fn holding(path: &[u8]) -> Holding {
        let facts = Facts::Directory(DirectoryFacts { mode: 0o755, uid: 0, gid: 0 });
        Holding { path: path.to_vec(), stamp: Stamp(1), facts, medium: Medium::Memory }
    }

    async fn publish(parting: &Parting, published: Option<Holding>) {
        let mut under_way = parting.begin_publish().await;
        under_way.published = published;
    }

    fn in_virtual_time(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().start_paused(true).build().unwrap().block_on(test);
    }

    #[test]
    fn what_is_published_while_a_member_drains_is_noted_or_said_not_to_be() {
        in_virtual_time(async {
            let parting = Parting::default();
            publish(&parting, None).await;
            parting.begin();
            assert_eq!(parting.take(), Some(Vec::new()), "what was before is found by a walk");
            publish(&parting, Some(holding(b"kv/a"))).await;
            assert_eq!(parting.take(), Some(vec![holding(b"kv/a")]));
            publish(&parting, None).await;
            assert_eq!(parting.take(), None);
            for _ in 0..=NOTED_MAX {
                publish(&parting, Some(holding(b"kv/a"))).await;
            }
            assert_eq!(parting.take(), None);
            assert_eq!(parting.take(), Some(Vec::new()));
        });
    }

    #[test]
    fn nothing_is_published_while_a_member_is_taken_out_and_what_was_under_way_ends_before() {
        in_virtual_time(async {
            let (parting, moment) = (Parting::default(), Duration::from_secs(1));
            let under_way = parting.begin_publish().await;
            let shut = parting.shut();
            assert!(timeout(moment, shut.is_idle()).await.is_err(), "one is under way");
            drop(under_way);
            timeout(moment, shut.is_idle()).await.unwrap();
            let mut next = pin!(parting.begin_publish());
            assert!(timeout(moment, &mut next).await.is_err(), "the member may leave right now");
            drop(shut);
            timeout(moment, next).await.unwrap();
        });
    }
}
