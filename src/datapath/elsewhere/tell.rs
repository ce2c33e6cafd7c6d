//! What other members are told: that a name stands for something here, or for nothing any more.
//!
//! Who publishes or removes a name waits until the others know. A member that cannot be reached does not stop that: its
//! catalog hears of the object later, and until then the object is found on this host alone, with a warning and a count.
//!
//! Of one name one thing is told at a time ([`Turns`](super::turns::Turns)), and that is what stands there when it is told: the
//! catalog puts what it hears in order, which must be the order in which it happened here. Of what a file replaces that was told
//! at its close nothing is told any more.

use std::sync::{Arc, Weak};

use tidefs_engine::types::ByteCount;
use tokio::time::timeout_at;

use super::super::open_state::OpenState;
use super::super::{Datapath, Object, Phase, State};
use super::news::{Appeared, News};
use super::{ClusterSide, stamp_of};
use crate::cluster::shards::KeyId;
use crate::cluster::{Facts, PublishGuard, Removal, Stamp};
use crate::namespace::{Ino, Slot};

impl Datapath {
    /// Keeps what there is nobody to tell yet, until this host is a member. What appeared is announced then anyway.
    pub fn remember_news(&self, news: News) {
        if let Some(Removal { path, through, .. }) = news.removed {
            // What is sealed there next is later.
            self.lock().elsewhere.note_withdrawn(KeyId::of(&path), through);
            self.remove_later(path, through);
        }
        if let Some(appeared) = news.appeared {
            self.lock().elsewhere.untold.remove(&appeared.ino);
            if let Some(path) = appeared.namespace() {
                self.agree_later(&path);
            }
        }
    }

    /// Tells the other members, and waits until they know, as long as they are waited for.
    ///
    /// # Cancellation
    /// Dropping the future leaves it open who knows.
    pub async fn tell(&self, news: News) {
        let Some(side) = self.cluster.get() else { return self.remember_news(news) };
        let News { appeared, removed } = news;
        if let Some(appeared) = appeared {
            self.tell_appeared(side, appeared).await;
        }
        if let Some(removed) = removed {
            self.tell_removed(side, removed).await;
        }
    }

    async fn tell_removed(&self, side: &ClusterSide, removal: Removal) {
        let (path, through) = (removal.path.clone(), removal.through);
        let deadline = side.deadline();
        let _turn = timeout_at(deadline.into(), side.turns.take(KeyId::of(&path))).await;
        if self.lock().was_told_later(&path, through) {
            // What took its place here takes it everywhere.
            return;
        }
        self.telemetry.catalog_removals.increment();
        let told = side.cluster.remove(removal, deadline).await;
        if self.was_told_by_us(&path) {
            // So may the kernel, by now.
            self.forget_names_in_kernel();
        }
        self.lock().elsewhere.note_withdrawn(KeyId::of(&path), through);
        if let Err(error) = told {
            self.telemetry.catalog_failures.increment();
            tracing::warn!(%error, "a removal is not known to the whole cluster yet");
        }
    }

    async fn tell_appeared(&self, side: &ClusterSide, appeared: Appeared) {
        let deadline = side.deadline();
        // Who waits in vain is too late to tell anything: it is announced.
        let turn = timeout_at(deadline.into(), side.turns.take(KeyId::of(&appeared.path))).await;
        let Some((appeared, outlived, under_way)) = self.begin_to_tell(side, appeared) else { return };
        let Appeared { path, mut stamp, facts, ino, is_promise } = appeared;
        if matches!(facts, Facts::Directory(_)) {
            stamp = self.lock().elsewhere.above_withdrawn(KeyId::of(&path));
        } else if let Facts::File(file) = facts
            && !is_promise
        {
            // Also if nobody hears of it now: with an earlier version it would leave with what was removed there before.
            let above = side.cluster.above_removed(&path, stamp);
            if above != stamp {
                self.take_stamp((ino, &path), (stamp, above), None, file.size);
                stamp = above;
            }
        }
        self.telemetry.catalog_publications.increment();
        let promised_in = is_promise.then(|| side.cluster.view());
        let published = side.cluster.publish(path.clone(), stamp, facts, deadline).await;
        self.was_told_by_us(&path);
        match published {
            Ok(published) => {
                if let Facts::File(file) = facts {
                    self.take_stamp((ino, &path), (stamp, published.stamp), promised_in, file.size);
                    if !self.lock().has_at(ino, &path) {
                        // It left before it had the version that it was given: what was told of that meant another one.
                        side.cluster.let_go(&path, published.stamp);
                    }
                    self.take_back(side, &path, outlived, published.stamp);
                    if file.replicas > 1 && !is_promise {
                        let mut state = self.lock();
                        if let Some(slot) = state.tree.by_ino(ino) {
                            state.wish_for_copies(slot);
                        }
                    }
                } else {
                    self.lock().elsewhere.untold.remove(&ino);
                }
            }
            Err(error) => {
                self.telemetry.catalog_failures.increment();
                tracing::warn!(%error, "an object is found on this host alone until the cluster hears of it");
                self.lock().keep_directory(ino);
            }
        }
        drop((under_way, turn));
        if let Facts::Directory(facts) = facts
            && !path.contains(&b'/')
        {
            self.agree_on_namespace(side, &path, facts).await;
        }
    }

    /// What is told at this turn: what stands under the name by now, where that is not what it was; and what that outlived, if it
    /// is told of once more. `None` when that was told.
    fn begin_to_tell(
        &self,
        side: &ClusterSide,
        mut appeared: Appeared,
    ) -> Option<(Appeared, Option<Stamp>, PublishGuard)> {
        let mut outlived = None;
        let mut state = self.lock();
        // A file that was removed before it is told is told as what it was to be: it hides what others have until they hear of the
        // removal.
        let is_kept = appeared.is_promise && state.is_written_for(appeared.ino, &appeared.path);
        if matches!(appeared.facts, Facts::File(_)) && !is_kept {
            if let Some(slot) = state.sealed_at(&appeared.path) {
                outlived = state.take_retold(slot);
                if !state.clear_untold(slot) && outlived.is_none() {
                    return None;
                }
                appeared.ino = state.tree.ino(slot);
                (appeared.stamp, appeared.facts) = state.facts_for_members(slot)?;
                appeared.is_promise = false;
                if state.is_promised_above(slot, appeared.stamp) {
                    // The others were told of what takes its place here. To be told of this one now would have it stand, for them,
                    // until that is told again: by then others may have written what is later.
                    return None;
                }
            } else if state.elsewhere.was_withdrawn(&appeared.path, appeared.stamp) {
                return None;
            }
        }
        // Under the lock under which it is not untold any more.
        let under_way = side.cluster.about_to_publish(&appeared.path);
        Some((appeared, outlived, under_way))
    }

    /// What was told once more, in place of `outlived`, is the version `given` now. If that is not the next one, others have put
    /// something under the name in between, or removed it, and this host had not heard of that: it does not take its place.
    fn take_back(&self, side: &ClusterSide, path: &[u8], outlived: Option<Stamp>, given: Stamp) {
        let is_next = outlived.is_none_or(|outlived| given.0 <= outlived.0.saturating_add(1));
        let Some(this) = self.this.get().and_then(Weak::upgrade).filter(|_| !is_next) else { return };
        let path = path.to_vec();
        side.cluster.remove_later(path.clone(), given);
        // Which frees memory.
        side.runtime.spawn_blocking(move || this.withdraw_for_peer(&path, given));
    }

    /// The cluster heard of a name from this host. Who tells is not told, so what it was answered before counts no more.
    /// Returns whether it was known to stand for nothing.
    fn was_told_by_us(&self, path: &[u8]) -> bool {
        self.lock().elsewhere.change(KeyId::of(path))
    }

    /// What the file in `slot` was promised to be, with that length, was replaced or removed elsewhere before its last descriptor
    /// was closed. Unless somebody goes on writing it, nothing comes of it when that is.
    pub(super) fn withdraw_promise(&self, state: &mut State, slot: Slot, length: ByteCount) {
        let mtime_ns = self.stat_of(state, slot).attributes.mtime_ns;
        if let Some(open) = state.object_mut(slot).and_then(|object| object.open.as_mut()) {
            open.promised = None;
            open.withdrawn = Some((length, mtime_ns));
        }
    }

    /// The version of an object is what the catalog made of the one that was proposed. `promised_in`: the view in which that of a
    /// file which is being closed was told.
    fn take_stamp(
        &self,
        (ino, path): (Ino, &[u8]),
        (proposed, given): (Stamp, Stamp),
        promised_in: Option<u64>,
        size: ByteCount,
    ) {
        let is_promise = promised_in.is_some();
        let mut state = self.lock();
        let Some(slot) = state.tree.by_ino(ino) else { return };
        if is_promise && state.final_path(slot).as_deref() != Some(path) {
            // It is to stand somewhere else by now, or nowhere.
            return;
        }
        if is_promise && state.is_withdrawn(slot, given) {
            // Removed or replaced on another member before this one heard that it was published.
            return self.withdraw_promise(&mut state, slot, size);
        }
        let Some(object) = state.object_mut(slot) else { return };
        let given_ns = i64::try_from(given.0).unwrap_or(i64::MAX);
        let next = object.next_version();
        match (object.phase, promised_in) {
            (Phase::Writing, Some(view)) => {
                let open = object.open_mut();
                (open.promised, open.promised_in) = (Some((given, size)), view);
            }
            (Phase::Sealed, None) if stamp_of(object) == proposed && given != proposed => {
                object.sealed_at_ns = given_ns;
                if let Err(error) = self.rewrite_record(&mut state, slot) {
                    tracing::warn!(%error, "a restart will not know the version that the cluster gave an object");
                }
                state.renew_expiry(slot);
            }
            _ => {}
        }
        // What is being written over it may have been promised before, and takes its place later: it is told anew then.
        if let Some(next) = next.filter(|_| !is_promise)
            && let Some(open) = state.object_mut(next).and_then(|object| object.open.as_mut())
            && let Some(promised) = open.promised.as_mut().filter(|promised| promised.0 < given)
        {
            promised.1 = ByteCount(u64::MAX);
        }
    }

    /// Tells the other members, without anybody waiting for it, of objects that were sealed at a close that had not been
    /// announced.
    pub(in crate::datapath) fn tell_later(self: &Arc<Self>, inos: Vec<Ino>) {
        let Some(side) = self.cluster.get() else {
            let elsewhere = &mut self.lock().elsewhere;
            for ino in &inos {
                elsewhere.untold.remove(ino);
                elsewhere.retold.remove(ino);
            }
            return;
        };
        for ino in inos {
            let news = {
                let state = self.lock();
                let Some(slot) = state.tree.by_ino(ino) else { continue };
                let node = state.tree.node(slot);
                (!node.is_detached()).then(|| (state.tree.ino(node.parent), state.tree.name(slot)))
            };
            if let Some((parent, name)) = news {
                let datapath = Arc::clone(self);
                let news = self.news_of(parent, name.as_bytes());
                side.runtime.spawn(async move { datapath.tell(news).await });
            }
        }
    }
}

impl State {
    /// Nobody could be told of the directory `ino`: that it was removed before takes it from nobody here.
    fn keep_directory(&mut self, ino: Ino) {
        let is_directory =
            |&slot: &Slot| self.tree.directory(slot).is_some() && !self.tree.node(slot).is_detached();
        if let Some(slot) = self.tree.by_ino(ino).filter(is_directory) {
            self.mark_untold(slot);
        }
    }

    /// Whether the file `ino` is being written, and will stand at `path`: not what another one there has overtaken.
    fn is_written_for(&self, ino: Ino, path: &[u8]) -> bool {
        let Some(slot) = self.tree.by_ino(ino) else { return false };
        let is_written = |object: &Object| object.phase == Phase::Writing && !object.is_overtaken();
        let is_written = self.object(slot).is_some_and(is_written);
        is_written && self.final_path(slot).as_deref() == Some(path)
    }

    /// Whether what was closed over the object in `slot`, and is sealed in a moment, was told as a later version than `stamp`.
    fn is_promised_above(&self, slot: Slot, stamp: Stamp) -> bool {
        let next = self.next_version(slot).and_then(|next| self.object(next)?.open.as_deref());
        let takes_its_place = |open: &OpenState| open.is_closed_by_all() && !open.is_overtaken;
        let promised = next.filter(|open| takes_its_place(open)).and_then(|open| open.promised);
        promised.is_some_and(|(promised, _)| promised > stamp)
    }

    /// The hidden file in `slot` is dropped, which the others may have been told of as what stands under its name. Returns the
    /// object that stands there on: they are to be told of that.
    pub(in crate::datapath) fn outlives(&mut self, slot: Slot) -> Option<Ino> {
        let promised = self.promised(slot)?;
        let (current, _) = self.versions_of(slot);
        let is_here =
            |&slot: &Slot| self.sealed_stamp(slot) < Some(promised) && self.remote_size(slot).is_none();
        let current = current.filter(is_here)?;
        self.harden(current);
        self.mark_retold(current, promised);
        Some(self.tree.ino(current))
    }

    /// Whether this host has an object at `path`, or writes the file `ino` for it.
    fn has_at(&self, ino: Ino, path: &[u8]) -> bool {
        self.sealed_at(path).is_some() || self.is_written_for(ino, path)
    }

    /// The object of this host that is shown at `path`.
    fn sealed_at(&self, path: &[u8]) -> Option<Slot> {
        let (current, _) = self.versions_of(self.tree.by_path(path)?);
        current.filter(|&slot| self.sealed_stamp(slot).is_some() && self.remote_size(slot).is_none())
    }

    /// Whether the other members were told of something that stands at `path` here and is later than `through`.
    fn was_told_later(&self, path: &[u8], through: Stamp) -> bool {
        let next = self.tree.by_path(path).and_then(|slot| self.versions_of(slot).1);
        let is_promised = next.is_some_and(|next| self.promised(next) > Some(through));
        let is_told = |slot: Slot| !self.is_untold(slot) && self.sealed_stamp(slot) > Some(through);
        is_promised || self.sealed_at(path).is_some_and(is_told)
    }
}
