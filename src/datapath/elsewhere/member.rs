//! What this daemon does for the other members with what it holds: lends ([`super::lend`]), withdraws, lists.
//!
//! Limits: [`LENDS_MAX`] lends that wait at once; a further one waits for one of them to end, on no thread, for as long as a disk
//! may take, and is refused then: its reader goes elsewhere. What others were told to forget waits for no reader.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Instant;

use tidefs_engine::types::{BoxFuture, ByteCount, MemberId};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::super::history::Ending;
use super::super::{Datapath, Object, Phase};
use super::stamp_of;
use crate::cluster::coordinator::Namespaces;
use crate::cluster::shards::{KeyId, Shard};
use crate::cluster::{Facts, Holder, Holding, Lent, ListedName, Medium, Stamp, Unkept, Unlent};
use crate::namespace::{Cookie, Slot};
use crate::tier::eviction::Departure;

/// What was sealed a shorter time ago may not have been answered to its writer yet.
const YOUNG_NS: i64 = 200_000_000;
/// Slots that are looked at together, as for one page of holdings, while nobody else is served.
pub(super) const SCANNED_MAX: usize = 1024;
/// Objects of others that are forgotten together, while nobody else is served.
const FORGOTTEN_AT_ONCE: usize = 256;
/// Lends that may wait, for a disk or a writer, on a thread each: half of the threads that tokio has for what waits, 512. The rest
/// is for withdrawals, which others wait for, and copies.
const LENDS_MAX: usize = 256;

/// The datapath as other members see it. Knows it weakly: a daemon that stops answers nobody.
#[derive(Debug)]
pub struct MemberSide {
    datapath: Weak<Datapath>,
    runtime: Handle,
    /// A lend has one of these until its thread is done with it, whether or not somebody still waits for that.
    lends: Arc<Semaphore>,
}

impl MemberSide {
    /// The side of `datapath`; what waits for a disk or frees memory runs on the blocking threads of `runtime`.
    #[must_use]
    pub fn new(datapath: &Arc<Datapath>, runtime: Handle) -> Self {
        Self { datapath: Arc::downgrade(datapath), runtime, lends: Arc::new(Semaphore::new(LENDS_MAX)) }
    }
}

impl Holder for MemberSide {
    fn lend(&self, path: Vec<u8>, stamp: Stamp) -> BoxFuture<'static, Result<Lent, Unlent>> {
        let datapath = self.datapath.upgrade();
        let (runtime, lends) = (self.runtime.clone(), Arc::clone(&self.lends));
        Box::pin(async move {
            let datapath = datapath.ok_or(Unlent::NotNow)?;
            if let Some(lent) = datapath.lend_at_once(&path, stamp) {
                return Ok(lent);
            }
            let asked = Instant::now();
            let Ok(Ok(place)) = timeout(datapath.settings.deadline, lends.acquire_owned()).await else {
                datapath.telemetry.overloads.increment();
                return Err(Unlent::NotNow);
            };
            let lending = runtime.spawn_blocking(move || {
                let lent = datapath.lend_to_peer(&path, stamp, asked);
                drop(place);
                lent
            });
            // A panic in there is logged by its thread.
            lending.await.unwrap_or(Err(Unlent::NotNow))
        })
    }

    fn withdraw(&self, path: Vec<u8>, through: Stamp) -> BoxFuture<'static, ()> {
        let datapath = self.datapath.upgrade();
        let runtime = self.runtime.clone();
        Box::pin(async move {
            if let Some(datapath) = datapath {
                // A panic in there is logged by its thread; the peer is answered all the same.
                let _ = runtime.spawn_blocking(move || datapath.withdraw_for_peer(&path, through)).await;
            }
        })
    }

    fn holds(&self, path: &[u8], stamp: Stamp) -> bool {
        let Some(datapath) = self.datapath.upgrade() else { return false };
        let state = datapath.lock();
        let slot = state.tree.by_path(path);
        slot.and_then(|slot| state.holding(slot)).is_some_and(|holding| holding.stamp == stamp)
    }

    fn was_announced(&self, path: &[u8]) {
        let Some(datapath) = self.datapath.upgrade() else { return };
        let mut state = datapath.lock();
        if let Some(slot) = state.tree.by_path(path).filter(|&slot| state.tree.directory(slot).is_some()) {
            state.clear_untold(slot);
        }
    }

    fn appeared(&self, paths: &[Vec<u8>]) {
        let Some(datapath) = self.datapath.upgrade() else { return };
        {
            let mut state = datapath.lock();
            for path in paths {
                state.elsewhere.change(KeyId::of(path));
            }
        }
        datapath.forget_names_in_kernel();
    }

    fn keep(
        &self,
        path: Vec<u8>,
        stamp: Stamp,
        replicas: u8,
        head: KeyId,
        from: MemberId,
    ) -> BoxFuture<'static, Result<ByteCount, Unkept>> {
        let (datapath, runtime) = (self.datapath.upgrade(), self.runtime.clone());
        Box::pin(async move {
            let datapath = datapath.ok_or(Unkept::NotNow)?;
            datapath.keep_for_peer(runtime, path, stamp, (replicas, head), from).await
        })
    }

    fn head(&self, path: &[u8]) -> KeyId {
        let own = || KeyId::of(path);
        self.datapath.upgrade().map_or_else(own, |datapath| {
            let mut state = datapath.lock();
            state.tree.by_path(path).map_or_else(own, |slot| state.head_of(slot))
        })
    }

    fn hottest(&self) -> (Vec<u64>, ByteCount) {
        self.datapath.upgrade().map(|datapath| datapath.hottest()).unwrap_or_default()
    }

    fn tell_moved(&self, max: usize) -> usize {
        self.datapath.upgrade().map(|datapath| datapath.tell_moved(max)).unwrap_or_default()
    }

    fn holding_at(&self, place: u64) -> Option<Holding> {
        self.datapath.upgrade()?.holding_at(place)
    }

    fn inherit(&self, keys: &[KeyId]) -> Vec<(Vec<u8>, Stamp, Medium)> {
        self.datapath.upgrade().map(|datapath| datapath.lock().inherit(keys)).unwrap_or_default()
    }

    fn forget_answers(&self, shards: &[Shard]) {
        if let Some(datapath) = self.datapath.upgrade() {
            datapath.forget_answers(&shards.iter().copied().collect());
        }
    }

    fn holdings(
        &self,
        is_wanted: &dyn Fn(Shard) -> bool,
        after: u64,
        max: usize,
    ) -> (Vec<Holding>, Option<u64>) {
        self.datapath
            .upgrade()
            .map_or_else(Default::default, |datapath| datapath.holdings(is_wanted, after, max))
    }

    fn agreed(&self, namespaces: &Namespaces) {
        if let Some(datapath) = self.datapath.upgrade() {
            datapath.adopt_agreement(namespaces);
        }
    }

    fn list(&self, directory: &[u8], after: u64, max: usize) -> Vec<ListedName> {
        self.datapath
            .upgrade()
            .map(|datapath| datapath.list_for_peer(directory, after, max))
            .unwrap_or_default()
    }
}

impl Datapath {
    /// What stood at `path` was removed or replaced on another member.
    pub(super) fn withdraw_for_peer(&self, path: &[u8], through: Stamp) {
        let mut kept = None;
        let (doomed, emptied, known, may_stand) = {
            let now_ns = self.now_ns();
            let mut state = self.lock();
            state.elsewhere.change(KeyId::of(path));
            state.elsewhere.note_withdrawn(KeyId::of(path), through);
            let Some(slot) = state.tree.by_path(path) else {
                // It was known to be absent, and nobody tells this host any more when it appears.
                drop(state);
                return self.forget_names_in_kernel();
            };
            if slot == Slot::ROOT {
                // Nobody removes the root, whatever a peer says.
                return;
            }
            if let Some(directory) = state.tree.directory(slot) {
                // Refused for what was removed before it was made.
                let is_new = through == Stamp::default() && state.is_untold(slot);
                let emptied = (!is_new && directory.children.is_empty()).then_some(directory.id);
                if emptied.is_some() {
                    state.leave_directory(slot);
                } else if is_new || state.has_own_children(slot) {
                    // Somebody writes in it here, which the other members could not see: it stands again for them, or they
                    // would not find what is published below it.
                    kept = Some(state.tree.ino(slot));
                }
                let known = (state.tree.node(slot).lookups > 0).then(|| state.tree.ino(slot));
                state.drop_if_unused(slot);
                (None, emptied, known, false)
            } else {
                let (current, next) = state.versions_of(slot);
                let promised = next.and_then(|next| {
                    state.object(next)?.open.as_ref()?.promised.map(|promised| (next, promised))
                });
                if let Some((next, (_, length))) = promised.filter(|(_, (stamp, _))| *stamp <= through) {
                    self.withdraw_promise(&mut state, next, length);
                }
                let old = current.filter(|&slot| {
                    let is_old =
                        |object: &Object| object.phase == Phase::Sealed && stamp_of(object) <= through;
                    // What was decided before the others are told of it is earlier, whatever its stamp.
                    !state.is_untold(slot) && state.object(slot).is_some_and(is_old)
                });
                let Some(old) = old else {
                    // The kernel may still take the name for what a rename that is under way here replaces.
                    drop(state);
                    return self.forget_names_in_kernel();
                };
                let known = (state.tree.node(old).lookups > 0).then(|| state.tree.ino(old));
                let ending = (now_ns, Ending::Withdrawn);
                // The kernel may not have heard yet that it stands there, and take the name for what it replaced.
                let is_young = now_ns.saturating_sub(state.tree.node(old).attributes.ctime_ns) < YOUNG_NS;
                let doomed = self.remove_object(&mut state, old, Departure::Gone, ending);
                let answers = known.is_some_and(|ino| state.still_answers(ino));
                (Some(doomed), None, known, answers || is_young)
            }
        };
        self.telemetry.withdrawals.increment();
        if let (Some(kernel), Some(ino)) = (self.kernel.get(), known) {
            kernel.forget_attributes_now(ino);
        }
        if may_stand {
            // An inode that answers still stands there: the name is what is to be looked up again.
            self.forget_names_in_kernel();
        }
        doomed.into_iter().for_each(|doomed| self.bury(doomed));
        if let (Some(this), Some(kept)) = (self.this.get().and_then(std::sync::Weak::upgrade), kept) {
            this.tell_later(vec![kept]);
        }
        if let Some(directory) = emptied {
            // Its inode may be somebody's working directory, and answers: the name is what is to be looked up again.
            self.forget_names_in_kernel();
            if let Err(error) = self.tier.remove_directory(directory) {
                tracing::warn!(%error, "a directory that another member removed may come back after a restart");
            }
            self.forget_directory(&mut self.lock(), directory);
        }
    }

    /// Nothing that was answered about names of these shards counts any more. Callers are served in between.
    fn forget_answers(&self, moved: &BTreeSet<Shard>) {
        let shown: Vec<Slot> = {
            let mut state = self.lock();
            state.elsewhere.forget_absence();
            state.elsewhere.copies.keys().copied().collect()
        };
        for part in shown.chunks(FORGOTTEN_AT_ONCE) {
            let known = self.lock().unshow_moved(part, moved);
            if let Some(kernel) = self.kernel.get() {
                known.into_iter().for_each(|ino| kernel.forget_attributes(ino));
            }
        }
        self.forget_names_in_kernel();
    }

    pub(in crate::datapath) fn forget_names_in_kernel(&self) {
        let has_forgotten = self.kernel.get().is_none_or(|kernel| kernel.forget_names());
        if !has_forgotten && self.can_tell_names() {
            self.telemetry.invalidation_failures.increment();
            tracing::warn!("the kernel may take names for what they do not stand for any more");
        }
    }

    /// A page of what this host holds, in the order of slots.
    fn holdings(
        &self,
        is_wanted: &dyn Fn(Shard) -> bool,
        after: u64,
        max: usize,
    ) -> (Vec<Holding>, Option<u64>) {
        let state = self.lock();
        let mut found = Vec::new();
        let first = u32::try_from(after).unwrap_or(u32::MAX);
        let mut next = first;
        for (slot, _) in state.tree.slots_from(Slot(first)).take(SCANNED_MAX) {
            if found.len() >= max {
                return (found, Some(u64::from(next)));
            }
            next = slot.0.saturating_add(1);
            let holding = self.told_holding(&state, slot);
            found.extend(holding.filter(|holding| is_wanted(KeyId::of(&holding.path).shard())));
        }
        let has_more = state.tree.slots_from(Slot(next)).next().is_some();
        (found, has_more.then_some(u64::from(next)))
    }

    /// Names of a directory that are of this host and visible to all, in the order that all members share.
    fn list_for_peer(&self, directory: &[u8], after: u64, max: usize) -> Vec<ListedName> {
        let state = self.lock();
        let Some(slot) = state.tree.by_path(directory) else { return Vec::new() };
        let mut listed: Vec<ListedName> = Vec::new();
        for (cookie, child, _) in state.tree.entries_after(slot, Cookie::before(after)) {
            let name = state.tree.name(child);
            let place = Cookie::shared(name.as_bytes());
            // Names of one hash follow each other in another order here: all of them, or none, are in a page.
            let is_full = listed.len() >= max;
            if is_full && listed.last().is_some_and(|last| !Cookie(last.cookie).has_hash_of(cookie)) {
                break;
            }
            // What was closed and promised to all is an object in a moment.
            let is_promised = state.promised(child).is_some() && !self.is_temporary(&name);
            let is_mine = is_promised
                || state.facts_for_members(child).is_some_and(|(_, facts)| match facts {
                    Facts::Directory(_) => true,
                    Facts::File(_) => !self.is_temporary(&name) && state.remote_size(child).is_none(),
                });
            if place.0 > after && is_mine {
                let is_directory = state.tree.directory(child).is_some();
                listed.push(ListedName { cookie: place.0, name: name.as_bytes().to_vec(), is_directory });
            }
        }
        listed.sort_unstable_by_key(|entry| entry.cookie);
        listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::testing;
    use crate::namespace::Ino;

    /// The side of a cache of which as much is being lent as may be, until the last value is dropped.
    fn busy() -> (tempfile::TempDir, Arc<Datapath>, MemberSide, tokio::sync::OwnedSemaphorePermit) {
        let (place, datapath) = testing::unprivileged();
        let datapath = Arc::new(datapath);
        let side = MemberSide::new(&datapath, Handle::current());
        let all = u32::try_from(LENDS_MAX).unwrap();
        let lent = Arc::clone(&side.lends).try_acquire_many_owned(all).unwrap();
        (place, datapath, side, lent)
    }

    #[tokio::test]
    async fn what_has_too_long_a_path_to_tell_others_of_is_no_holding() {
        let (_place, datapath) = testing::unprivileged();
        let datapath = Arc::new(datapath);
        let make =
            |parent, _| datapath.make_directory(&testing::caller(), parent, &[b'd'; 255], 0o755).unwrap().ino;
        let deepest = (0..17).fold(Ino::ROOT, make);
        testing::make(&datapath, deepest, "f");
        testing::make(&datapath, Ino::ROOT, "g");
        let side = MemberSide::new(&datapath, Handle::current());
        let (held, _) = side.holdings(&|_| true, 0, 100);
        let mut lengths: Vec<usize> = held.iter().map(|holding| holding.path.len()).collect();
        lengths.sort_unstable();
        let expected = std::iter::once(1).chain((1..17).map(|levels| 256 * levels - 1));
        assert_eq!(lengths, Vec::from_iter(expected));
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_too_much_being_lent_waits_for_one_of_those_to_end_and_holds_up_no_withdrawal() {
        let (_place, datapath, side, lent) = busy();
        let mut lending = side.lend(b"k".to_vec(), Stamp(1));
        let moment = datapath.settings.deadline / 2;
        assert!(timeout(moment, &mut lending).await.is_err(), "it has its turn when one of them has ended");
        side.withdraw(b"k".to_vec(), Stamp(1)).await;
        drop(lent);
        assert!(matches!(lending.await, Err(Unlent::Gone)), "nothing stands there");
        assert_eq!(datapath.telemetry.overloads.get(), 0);
        assert_eq!(side.lends.available_permits(), LENDS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_too_much_being_lent_for_as_long_as_a_disk_may_take_is_refused_and_counted() {
        let (_place, datapath, side, _lent) = busy();
        let lending = timeout(datapath.settings.deadline * 2, side.lend(b"k".to_vec(), Stamp(1)));
        assert!(matches!(lending.await, Ok(Err(Unlent::NotNow))));
        assert_eq!(datapath.telemetry.overloads.get(), 1);
    }
}
