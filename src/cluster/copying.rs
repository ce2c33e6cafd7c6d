//! Copies on other members: of what its policy wants more than once, when it is sealed, and again when a member is
//! [lost](super::repairing).
//!
//! Who seals an object asks other members to fetch it: those that rendezvous hashing names for the head of its chain, each
//! on another host and, while there are any, in another rack.
//!
//! Invariants
//! - Too few members, or too little room on them, is a state that is shown, never a failure of who writes.
//! - Copies that leave first do not count, nor do those of members that are forgotten.
//!
//! Limits: [`WISHES_MAX`] objects wait for their first copies; of those beyond the next walk takes care.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidefs_engine::engine::Answer;
use tidefs_engine::types::{ByteCount, MemberId, PeerId};
use tokio::sync::{Notify, Semaphore};

use super::catalog::wire::{KEEP, Keep, Kept, Message};
use super::core::Core;
use super::object::{Facts, Found, Stamp, Unkept};
use super::shards::{KeyId, replica_target};
use super::short::Short;

/// Objects that wait for their first copies.
const WISHES_MAX: usize = 65_536;
/// Objects of which copies are made at once, for others and by others.
pub(super) const AT_ONCE: usize = 8;
/// An object that is to have copies on other members.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Name.
    pub path: Vec<u8>,
    /// Which version.
    pub stamp: Stamp,
    /// Its length.
    pub size: ByteCount,
    /// How many copies there are to be.
    pub replicas: u8,
    /// The head of its chain, or its own key.
    pub head: KeyId,
}

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copied {
    /// There are as many as there are to be.
    Enough,
    /// There are fewer members than that, or none of them can take it.
    Short,
    /// The same may succeed a moment later.
    NotNow,
    /// It is not what stands there any more, or it is another member's to see to.
    NotMine,
    /// The catalog knows of nothing, or of an earlier version: it was removed, or is not published yet.
    Absent,
}

/// Copies on other members that are there to rely on since they were asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Made {
    pub(super) copies: u32,
    /// Of these, those that were not there as copies that leave first, as far as the catalog knows.
    pub(super) moved: u32,
}

/// What is to be copied.
#[derive(Debug)]
pub(super) struct Copying {
    /// Held for a look-up.
    wishes: Mutex<VecDeque<Wish>>,
    wish_came: Notify,
    pub(super) walk_wanted: Notify,
    /// Members came or went since the last walk began: neither that nor the next is to take its time, and another follows.
    pub(super) is_urgent: AtomicBool,
    /// Held for a look, and once for each walk.
    pub(super) short: Mutex<Short>,
    /// Keys of which this member has copies made right now.
    busy: Mutex<HashSet<KeyId>>,
    was_freed: Notify,
    under_way: AtomicUsize,
    /// Copies that this member makes for others now.
    taking: Arc<Semaphore>,
    /// Until when the budget for repairs is used up, in nanoseconds since the start.
    pub(super) paid_until_ns: AtomicU64,
    /// The same for what others ask this member to keep.
    taken_until_ns: AtomicU64,
}

impl Default for Copying {
    fn default() -> Self {
        Self {
            wishes: Mutex::default(),
            wish_came: Notify::new(),
            walk_wanted: Notify::new(),
            is_urgent: AtomicBool::new(false),
            short: Mutex::default(),
            busy: Mutex::default(),
            was_freed: Notify::new(),
            under_way: AtomicUsize::new(0),
            taking: Arc::new(Semaphore::new(AT_ONCE)),
            paid_until_ns: AtomicU64::new(0),
            taken_until_ns: AtomicU64::new(0),
        }
    }
}

impl Copying {
    /// Objects that wait for copies, and objects of which there are too few.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.wishes.lock().len() + self.under_way.load(Ordering::Relaxed), self.short.lock().count())
    }

    /// Waits until nobody else here makes copies of `key`, and has nobody do so until the answer is dropped.
    async fn begin(&self, key: KeyId) -> Busy<'_> {
        loop {
            let freed = self.was_freed.notified();
            tokio::pin!(freed);
            // Before the look, or what comes in between is missed.
            freed.as_mut().enable();
            if self.busy.lock().insert(key) {
                return Busy { copying: self, key };
            }
            freed.await;
        }
    }
}

/// Copies of a key are being made.
struct Busy<'a> {
    copying: &'a Copying,
    key: KeyId,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.copying.busy.lock().remove(&self.key);
        self.copying.was_freed.notify_waiters();
    }
}

/// Takes `size` bytes out of a budget of `rate` bytes a second, which is used up until `until_ns`. Returns how long to wait
/// before they may be used.
pub(super) fn pay(until_ns: &AtomicU64, now: Duration, size: ByteCount, rate: u64) -> Duration {
    let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let cost = u128::from(size.get()) * 1_000_000_000 / u128::from(rate.max(1));
    let cost_ns = u64::try_from(cost).unwrap_or(u64::MAX);
    let pay = |until: u64| Some(until.max(now_ns).saturating_add(cost_ns));
    let until = until_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, pay).unwrap_or_else(|until| until);
    Duration::from_nanos(until.saturating_sub(now_ns))
}

impl Core {
    /// Has copies of an object made on other members. Nobody waits for that.
    pub(super) fn wish(&self, wish: Wish) {
        let mut wishes = self.copying.wishes.lock();
        if wishes.len() < WISHES_MAX {
            wishes.push_back(wish);
            self.copying.wish_came.notify_one();
        } else {
            self.counters.queue_overflows.increment();
            self.copying.walk();
        }
    }

    /// Makes the first copies of what is sealed here, for ever.
    pub(super) async fn copy_for_ever(self: Arc<Self>) {
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        loop {
            let Some(wish) = self.copying.wishes.lock().pop_front() else {
                self.copying.wish_came.notified().await;
                continue;
            };
            let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
            self.copying.under_way.fetch_add(1, Ordering::Relaxed);
            let core = Arc::clone(&self);
            self.spawn(async move {
                if core.copy(&wish, false).await.0 == Copied::NotNow {
                    core.copying.walk();
                }
                core.copying.under_way.fetch_sub(1, Ordering::Relaxed);
                drop(turn);
            });
        }
    }

    /// Whether what a member holds counts: it was not given up, and does not leave as this one does.
    pub(super) fn is_counted(&self, member: MemberId) -> bool {
        if member == self.me.member {
            return !self.is_leaving();
        }
        if self.drains_too(member) {
            return false;
        }
        self.peers.lock().get(&member).is_some_and(|peer| !peer.is_dropped && !peer.has_left)
    }

    /// Has the missing copies of an object made. `as_first`: only if this member is the first of those that hold it. Returns
    /// how many were made, too.
    pub(super) async fn copy(self: &Arc<Self>, wish: &Wish, as_first: bool) -> (Copied, Made) {
        let key = KeyId::of(&wish.path);
        // Two at once would each count the copies that the other one has not made yet.
        let turn = self.copying.begin(key);
        let Ok(_busy) = tokio::time::timeout(self.config.timings.background, turn).await else {
            self.copying.short.lock().keep(key);
            return (Copied::NotNow, Made::default());
        };
        let without_asking = |copied| {
            self.copying.short.lock().note(key, false);
            (copied, Made::default())
        };
        let deadline = self.in_background();
        let found = self.look_at(&wish.path, deadline).await;
        let (facts, copies) = match found {
            Found::Present { stamp, facts: Facts::File(facts), copies } if stamp == wish.stamp => {
                (facts, copies)
            }
            // What is here came later, and the catalog has not heard of it.
            Found::Present { stamp, facts: Facts::File(_), .. } if stamp < wish.stamp => {
                return without_asking(Copied::Absent);
            }
            Found::Present { .. } => return without_asking(Copied::NotMine),
            Found::Absent { .. } => return without_asking(Copied::Absent),
            Found::Unknown => {
                self.copying.short.lock().keep(key);
                return (Copied::NotNow, Made::default());
            }
        };
        let members = |is_hard: bool| {
            let counted = copies.iter().filter(|copy| copy.medium.is_hard() == is_hard);
            let counted = counted.filter(|copy| self.is_counted(copy.member));
            counted.map(|copy| copy.member).collect::<Vec<MemberId>>()
        };
        let holders = members(true);
        let first = holders.iter().copied().filter(|&member| !self.is_suspect(member)).min();
        // When its policy has changed since it was sealed the others do not know how many are wanted.
        let is_known = facts.replicas >= wish.replicas;
        if as_first && is_known && first != Some(self.me.member) {
            return without_asking(Copied::NotMine);
        }
        if !is_known {
            self.announce_wish(wish, facts, &copies);
        }
        let (copied, made) = self.copy_to_others(wish, holders, &members(false)).await;
        self.copying.short.lock().note(key, matches!(copied, Copied::Short | Copied::NotNow));
        (copied, made)
    }

    /// Asks one member after another until enough hold it. While this member leaves, those first that have its bytes
    /// already, and those too that the catalog names: it may not have heard that they have let go of it.
    async fn copy_to_others(
        self: &Arc<Self>,
        wish: &Wish,
        mut holders: Vec<MemberId>,
        soft: &[MemberId],
    ) -> (Copied, Made) {
        let (mut refusing, mut hesitating, mut made) = (BTreeSet::new(), BTreeSet::new(), Made::default());
        let mut may_succeed_later = false;
        let named = if self.is_leaving() { std::mem::take(&mut holders) } else { Vec::new() };
        while holders.len() < usize::from(wish.replicas) {
            let view = self.seen().view.clone();
            let is_candidate = |member: MemberId| {
                member != self.me.member && !refusing.contains(&member) && !self.is_suspect(member)
            };
            let nearest = [&named, soft].into_iter().find_map(|near| {
                let is_near = |member: MemberId| near.contains(&member) && is_candidate(member);
                self.is_leaving().then(|| replica_target(&view, wish.head, &holders, is_near)).flatten()
            });
            let Some(target) = nearest.or_else(|| replica_target(&view, wish.head, &holders, is_candidate))
            else {
                let is_anyone_away = view.members().iter().any(|member| self.is_suspect(member.id));
                let copied = if may_succeed_later || is_anyone_away { Copied::NotNow } else { Copied::Short };
                return (copied, made);
            };
            match self.ask_to_keep(target, wish).await {
                Kept::Done if named.contains(&target) => holders.push(target),
                Kept::Done => {
                    made.copies += 1;
                    if !soft.contains(&target) {
                        self.counters.copies_made.increment();
                        self.counters.copied_bytes.add(wish.size.get());
                        made.moved += 1;
                    }
                    holders.push(target);
                }
                // What it knows may be old. Whether it stands no more is for the catalog to say, which is asked again.
                Kept::Gone if self.is_leaving() => {
                    may_succeed_later = true;
                    refusing.insert(target);
                }
                Kept::Gone => return (Copied::NotMine, made),
                // Another member would tear its chain, or stand in the same rack: this one is asked once more.
                Kept::NotNow if hesitating.insert(target) => {
                    tokio::time::sleep(self.config.timings.tick).await;
                }
                Kept::NotNow => {
                    may_succeed_later = true;
                    refusing.insert(target);
                }
                Kept::Leaving => drop(refusing.insert(target)),
            }
        }
        let new: Vec<MemberId> = holders.into_iter().filter(|holder| !named.contains(holder)).collect();
        let are_named = !self.is_leaving() || new.is_empty() || self.are_named(wish, &new).await;
        (if are_named { Copied::Enough } else { Copied::NotNow }, made)
    }

    /// Asks a member to have a copy of an object, or to know a directory.
    pub(super) async fn ask_to_keep(self: &Arc<Self>, target: MemberId, wish: &Wish) -> Kept {
        let keep =
            Keep { path: wish.path.clone(), stamp: wish.stamp, replicas: wish.replicas, head: wish.head.0 };
        let deadline = self.within(self.config.timings.keep);
        let answer = self.call(target, KEEP, keep.encode(), deadline).await;
        let kept = answer
            .map_err(|error| error.to_string())
            .and_then(|answer| Kept::decode(&answer).map_err(|error| error.to_string()));
        let kept = kept.unwrap_or_else(|error| {
            tracing::debug!(member = target.0, error, "a member does not say whether it keeps a copy");
            Kept::NotNow
        });
        if kept != Kept::Done {
            self.counters.copies_refused.increment();
        }
        kept
    }

    /// Another member wants this one to have a copy.
    pub(super) fn answer_keep(self: &Arc<Self>, from: PeerId, keep: Keep) -> Answer {
        let core = Arc::clone(self);
        Answer::Later(Box::pin(async move { Ok(core.keep(from, keep).await.encode()) }))
    }

    async fn keep(self: &Arc<Self>, from: PeerId, keep: Keep) -> Kept {
        if self.is_leaving() {
            return Kept::Leaving;
        }
        let Some(holder) = self.holder.upgrade() else { return Kept::NotNow };
        // Who asks waits for longer: another member would tear the chain.
        let patience = self.config.timings.keep / 2;
        let turn = tokio::time::timeout(patience, Arc::clone(&self.copying.taking).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Kept::NotNow };
        let Keep { path, stamp, replicas, head } = keep;
        let kept = holder.keep(path, stamp, replicas, KeyId(head), from.member).await;
        match kept {
            Ok(came) => {
                self.counters.copies_kept.increment();
                // Who has just joined takes less at first: the others see it as the emptiest of all.
                let (ramp, full) = (self.config.timings.ramp, self.config.limits.ingest_bytes_per_second);
                let rate = ingest_rate(self.now(), ramp, full);
                let wait = pay(&self.copying.taken_until_ns, self.now(), came, rate);
                // Nobody else takes the turn until it is paid for; who asked is answered in time.
                let (answered, paid) = (wait.min(self.config.timings.keep / 4), self.within(wait));
                self.spawn(async move {
                    tokio::time::sleep_until(paid.into()).await;
                    drop(turn);
                });
                tokio::time::sleep(answered).await;
                Kept::Done
            }
            Err(Unkept::Gone) => Kept::Gone,
            Err(Unkept::NotNow) => Kept::NotNow,
        }
    }
}

/// Bytes a second that others may have a member keep which was started `age` ago: a tenth of `full` at first, all of it after
/// `ramp`.
fn ingest_rate(age: Duration, ramp: Duration, full: u64) -> u64 {
    let part = u128::from(full) * age.min(ramp).as_millis() / ramp.as_millis().max(1);
    if age >= ramp { full } else { u64::try_from(part).unwrap_or(full).max(full / 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_member_takes_a_tenth_at_first_and_all_in_the_end() {
        let at = |seconds| ingest_rate(Duration::from_secs(seconds), Duration::from_secs(60), 1000);
        assert_eq!([0, 6, 30, 60, 600].map(at), [100, 100, 500, 1000, 1000]);
        assert_eq!(ingest_rate(Duration::ZERO, Duration::ZERO, 1000), 1000, "without a ramp");
    }

    #[test]
    fn a_budget_is_paid_for_in_time() {
        let until = AtomicU64::new(0);
        let second = Duration::from_secs(1);
        assert_eq!(pay(&until, second, ByteCount(50), 100), Duration::ZERO);
        assert_eq!(pay(&until, second, ByteCount(100), 100), Duration::from_millis(500));
        assert_eq!(pay(&until, second, ByteCount(100), 100), Duration::from_millis(1500));
        assert_eq!(pay(&until, 10 * second, ByteCount(100), 100), Duration::ZERO, "the past is paid for");
    }
}
