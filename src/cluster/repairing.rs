//! Copies that are missing: everyone walks through what it holds, when members come, go or are forgotten, and now and then as
//! copies are evicted too. The first of those who hold an object has its missing copies made.
//!
//! Invariants
//! - What may be copied a moment later is tried again, after longer and longer pauses.
//! - What is wanted while a walk is under way is seen to by another one. If copies are known to be missing, the one that is under way
//!   does not take its time any more.
//!
//! Limits: [`AT_ONCE`] objects are looked at together, within a budget of bytes, and at most [`LOOKS_PER_SECOND`] in a second
//! when nothing is known to be missing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidefs_engine::types::ByteCount;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::copying::{AT_ONCE, Copied, Copying, Wish, pay};
use super::core::Core;
use super::object::{Facts, Holder, Holding};

/// Things that are looked at together.
const PAGE: usize = 512;
/// Objects that are looked at in a second when nothing is known to be missing.
const LOOKS_PER_SECOND: u32 = 2048;
/// The longest pause before what failed is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(60);

impl Copying {
    /// Everything that is held is to be looked at.
    pub(super) fn walk(&self) {
        self.is_urgent.store(true, Ordering::Release);
        self.walk_wanted.notify_one();
    }

    /// The same at the pace at which that is done now and then: some of it may have failed.
    pub(super) fn walk_at_ease(&self) {
        self.walk_wanted.notify_one();
    }
}

impl Core {
    /// Walks through all that is held whenever that is wanted, and else now and then, and has missing copies made.
    pub(super) async fn repair_for_ever(self: Arc<Self>) {
        let first_pause = self.config.timings.tick * 2;
        let mut is_followed = false;
        loop {
            // What a lost member held is forgotten later than it is lost, by each owner in its own time.
            let now_and_then = self.config.timings.look_for_copies;
            let again = if is_followed { self.config.timings.grace + first_pause } else { now_and_then };
            let follows = is_followed;
            // It came by time, or somebody wanted it.
            let _ = tokio::time::timeout(again, self.copying.walk_wanted.notified()).await;
            is_followed = false;
            let mut pause = first_pause;
            loop {
                // What made it necessary is known to all by then; and what failed may succeed.
                tokio::time::sleep(first_pause).await;
                is_followed |= self.copying.is_urgent.swap(false, Ordering::AcqRel);
                if self.walk_once(follows || is_followed).await {
                    break;
                }
                pause = (pause * 2).min(PAUSE_MAX);
                let wanted = self.copying.walk_wanted.notified();
                if tokio::time::timeout(pause.saturating_sub(first_pause), wanted).await.is_ok() {
                    pause = first_pause;
                }
            }
        }
    }

    /// Looks at all that is held, as fast as it can if that `is_urgent` or once copies are known to be missing. Returns whether nothing
    /// is left that may succeed a moment later.
    async fn walk_once(self: &Arc<Self>, is_urgent: bool) -> bool {
        let seen = self.seen();
        let Some(holder) = self.holder.upgrade().filter(|_| !seen.is_alone) else { return true };
        self.copying.short.lock().begin_walk(is_urgent);
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let (mut under_way, mut is_over) = (JoinSet::new(), true);
        let mut after = 0;
        loop {
            let (page, next) = holder.holdings(&|_| true, after, PAGE);
            let mut looks = 0;
            for wish in page.into_iter().filter_map(|holding| repairable(&*holder, holding)) {
                looks += 1;
                let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return true };
                let core = Arc::clone(self);
                under_way.spawn(async move {
                    let (copied, made) = core.copy(&wish, true).await;
                    let bytes = ByteCount(wish.size.get().saturating_mul(u64::from(made.moved)));
                    if made.moved > 0 {
                        let rate = core.config.limits.repair_bytes_per_second;
                        tokio::time::sleep(pay(&core.copying.paid_until_ns, core.now(), bytes, rate)).await;
                    }
                    drop(turn);
                    copied != Copied::NotNow
                });
                while let Some(ended) = under_way.try_join_next() {
                    is_over &= ended.unwrap_or(false);
                }
            }
            match next.filter(|&next| next != after) {
                Some(next) => after = next,
                None => break,
            }
            let are_missing = is_urgent || self.copying.is_urgent.load(Ordering::Acquire);
            let pace = if are_missing { u32::MAX } else { LOOKS_PER_SECOND };
            tokio::time::sleep(Duration::from_secs(looks) / pace).await;
        }
        while let Some(ended) = under_way.join_next().await {
            is_over &= ended.unwrap_or(false);
        }
        self.copying.short.lock().end_walk();
        is_over
    }
}

/// What a walk looks at more closely: what is to be there more than once, and is here to stay.
fn repairable(holder: &dyn Holder, holding: Holding) -> Option<Wish> {
    let Holding { path, stamp, facts: Facts::File(facts), medium } = holding else { return None };
    let is_wanted = medium.is_hard() && facts.replicas > 1;
    is_wanted.then(|| Wish {
        head: holder.head(&path),
        path,
        stamp,
        size: facts.size,
        replicas: facts.replicas,
    })
}
