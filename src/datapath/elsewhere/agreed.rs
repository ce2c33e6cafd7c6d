//! Directories as all members see them: owner, mode and policy are agreed on, so that what is set on one host holds on all.
//!
//! ```text
//! setfattr, chmod, chown, rmdir ──change──> coordinator ──what is agreed on──> every member ──applies it──> answered
//! ```
//! Invariants
//! - A directory changes here only when the coordinator says so: all members apply the same changes in the same order.
//! - Who changes something is answered when every member that can be asked goes by it.
//! - A namespace is a directory of every member, whoever made it, until it is removed.
//!
//! While the coordinator is away such changes are refused, with its reason in the log; a namespace can be made, and is agreed on
//! when the coordinator is back. Policy of an object is of its copy on this host alone.
//!
//! Limits: [`UNAGREED_MAX`](unagreed::UNAGREED_MAX) namespaces that were made meanwhile; further ones are agreed on when something
//! of them is changed.

mod adopting;
mod unagreed;

use std::collections::BTreeMap;
use std::time::Duration;

use tidefs_control_api::KeyPath;

use self::unagreed::Unagreed;
use super::super::policy_text::{SETTABLE, check, written};
use super::super::xattrs::PREFIX;
use super::super::{AttributeChange, Caller, Datapath, Error, Presence, Stat, State};
use super::ClusterSide;
use crate::cluster::coordinator::{
    Access, CoordinatorError, NamespaceChange, NamespaceRecord, Namespaces, name_of,
};
use crate::cluster::{ClusterError, DirectoryFacts, Unapplied, is_told_of};
use crate::namespace::{Ino, Slot, permissions};

/// Why nothing can be agreed on with others.
const NOT_JOINED: &str = "this host has not joined its cluster yet";
/// Between two attempts to have them agreed on.
const AGREE_PAUSE: Duration = Duration::from_secs(1);

/// What is agreed on, as it was heard last.
#[derive(Debug, Default)]
pub(super) struct Agreed {
    namespaces: Namespaces,
    /// Namespaces that were made here while the coordinator was away.
    unagreed: Unagreed,
    /// Somebody sees to these.
    is_agreeing: bool,
}

impl State {
    /// What this host takes for agreed on about the directory in `slot`, where nothing is.
    fn own_record(&self, slot: Slot) -> NamespaceRecord {
        let attributes = self.tree.node(slot).attributes;
        let access = Access { mode: attributes.mode.into(), uid: attributes.uid, gid: attributes.gid };
        let own = self.folders.get(slot).map(|folder| folder.policy.clone()).unwrap_or_default();
        let texts = SETTABLE.iter().filter_map(|key| Some((format!("{PREFIX}{key}"), written(&own, key)?)));
        NamespaceRecord { policy: texts.collect(), access: Some(access) }
    }
}

impl Datapath {
    /// Whether what is set on `ino` is for all members to agree on: it is a directory, and this host is one of a cluster.
    #[must_use]
    pub fn is_agreed_on(&self, ino: Ino) -> bool {
        self.is_in_cluster() && self.is_directory(ino)
    }

    /// Whether an attribute is one of those that members agree on, where it is set on a directory.
    #[must_use]
    pub fn is_policy(name: &[u8]) -> bool {
        name.starts_with(PREFIX.as_bytes())
    }

    /// Sets, or with `None` removes, a policy of a directory on all members.
    ///
    /// # Errors
    /// As [`Datapath::set_attribute`]; [`Error::NotAgreed`] while the coordinator is away, [`Error::AgreementsFull`] when
    /// something is agreed on about too many others, [`Error::TooDeep`] when no other member can know it: nothing has changed
    /// then. After [`Error::NotAgreed`] it may still come into force where it had reached the coordinator, as one whose disk
    /// takes too long.
    pub async fn agree_on_attribute(
        &self,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        only: Option<Presence>,
    ) -> Result<(), Error> {
        let name =
            std::str::from_utf8(name).map_err(|_| Error::Invalid("an attribute's name is not text"))?;
        let key = name.strip_prefix(PREFIX).ok_or(Error::Unsupported("no policy"))?;
        let value = value.map(std::str::from_utf8).transpose();
        let value = value.map_err(|_| Error::Invalid("the value is not text"))?.map(str::trim);
        let base = {
            let state = self.lock();
            let slot = state.slot_of(ino)?;
            check(&state.folder(slot)?.policy, key, value, only)?;
            state.own_record(slot)
        };
        let policy = BTreeMap::from([(name.to_owned(), value.map(str::to_owned))]);
        self.agree_on(ino, NamespaceChange { base, policy, ..NamespaceChange::default() }).await
    }

    /// Changes owner and mode of a directory on all members, and the rest here.
    ///
    /// # Errors
    /// As [`Datapath::setattr`]; else as [`Datapath::agree_on_attribute`].
    pub async fn agree_on_access(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &AttributeChange,
    ) -> Result<Stat, Error> {
        let base = {
            let state = self.lock();
            state.own_record(state.slot_of(ino)?)
        };
        let AttributeChange { mode, uid, gid, .. } = *change;
        let mode = mode.map(|mode| permissions(mode).into());
        self.agree_on(ino, NamespaceChange { base, policy: BTreeMap::new(), mode, uid, gid }).await?;
        self.setattr(caller, ino, &AttributeChange { mode: None, uid: None, gid: None, ..*change })
    }

    async fn agree_on(&self, ino: Ino, change: NamespaceChange) -> Result<(), Error> {
        let path = {
            let state = self.lock();
            state.tree.path(state.slot_of(ino)?)
        };
        if !is_told_of(&path) {
            // It is of this host alone, from before it was to be a member.
            return Err(Error::TooDeep);
        }
        let Some(side) = self.cluster.get() else {
            return Err(self.refuse(&path, &NOT_JOINED));
        };
        let agreed = side.cluster.agree(path.clone(), change, side.deadline()).await;
        self.take_agreement(&path, agreed)
    }

    /// Says and counts who does not go by it yet, or why nobody does.
    fn take_agreement(&self, path: &[u8], agreed: Result<Unapplied, ClusterError>) -> Result<(), Error> {
        let unapplied = agreed.map_err(|error| match (self.refuse(path, &error), error) {
            (_, ClusterError::Coordinator(CoordinatorError::TooMany)) => Error::AgreementsFull,
            (refused, _) => refused,
        })?;
        self.note_unapplied(path, unapplied);
        Ok(())
    }

    fn note_unapplied(&self, path: &[u8], unapplied: Unapplied) {
        for (member, reason) in unapplied {
            self.telemetry.agreements_late.increment();
            let directory = KeyPath::from_bytes(path);
            tracing::warn!(%directory, %member, reason, "a member goes by what it knew of a directory until it hears of the change");
        }
    }

    fn refuse(&self, path: &[u8], reason: &dyn std::fmt::Display) -> Error {
        self.telemetry.agreements_refused.increment();
        let directory = KeyPath::from_bytes(path);
        tracing::warn!(%directory, %reason, "a change that all members are to agree on is refused");
        Error::NotAgreed
    }

    /// Removes a directory that is empty on every member, and what is agreed on about it, and tells the other members.
    ///
    /// A namespace that was made anew by then, as the removal was asked for once more or other members took their time to apply
    /// it, stays on all of them, and nothing is told. One that is made between that look and the telling goes with it.
    ///
    /// # Errors
    /// As [`Datapath::remove_directory`] and [`Datapath::ensure_empty_everywhere`]; [`Error::NotAgreed`] while the coordinator
    /// is away, where something is agreed on about it: it may be removed then, and is to be removed again. [`Error::NotEmpty`] of
    /// one that was made anew where this host heard of both at once, and has one inode for them: the kernel would take that for
    /// removed.
    pub async fn remove_directory_everywhere(&self, parent: Ino, name: &[u8]) -> Result<(), Error> {
        let news = self.news_of_removal(parent, name);
        self.ensure_empty_everywhere(parent, name).await?;
        let (path, before) = {
            let mut state = self.lock();
            let parent = state.slot_of(parent)?;
            let path = state.path_of_child(parent, name);
            state.elsewhere.agreed.unagreed.remove(&path);
            let is_agreed = state.elsewhere.agreed.namespaces.records.contains_key(&name_of(&path));
            (is_agreed.then_some(path), state.ino_of_child(parent, name))
        };
        let agreed = path.zip(self.cluster.get());
        if let Some((path, side)) = &agreed
            && self.disagree_on(side, path).await?
        {
            let directory = KeyPath::from_bytes(path);
            tracing::info!(%directory, "a namespace was made anew while it was removed, and stays");
            let state = self.lock();
            let now = state.ino_of_child(state.slot_of(parent)?, name);
            return if now.is_some() && now == before { Err(Error::NotEmpty) } else { Ok(()) };
        }
        match self.remove_directory(parent, name) {
            // With what was agreed on about it went the empty directory, here as on all members.
            Err(Error::NoObject) if agreed.is_some() => {}
            removed => removed?,
        }
        self.tell(news).await;
        Ok(())
    }

    /// Ends what is agreed on about the directory at `path`. Returns whether it is a namespace that was made anew since.
    async fn disagree_on(&self, side: &ClusterSide, path: &[u8]) -> Result<bool, Error> {
        let disagreed = side.cluster.disagree(path.to_vec(), side.deadline()).await;
        self.take_agreement(path, disagreed)?;
        if path.contains(&b'/') {
            // That something is agreed on about it again makes it nowhere.
            return Ok(false);
        }
        // Asked last: somebody may have made it anew while the members applied its end.
        let is_made_anew = side.cluster.has_record(path.to_vec(), side.deadline()).await;
        is_made_anew.map_err(|error| self.refuse(path, &error))
    }

    /// Removes a directory on a host that has no others to ask.
    ///
    /// # Errors
    /// As [`Datapath::remove_directory`]. Where it has only not joined its cluster yet the others may hold something in it:
    /// [`Error::NotAgreed`] for a namespace, [`Error::Unanswered`] below one.
    pub fn remove_directory_alone(&self, parent: Ino, name: &[u8]) -> Result<(), Error> {
        if !self.is_in_cluster() {
            return self.remove_directory(parent, name);
        }
        let path = {
            let state = self.lock();
            let parent = state.slot_of(parent)?;
            let slot = state.tree.child(parent, name).ok_or(Error::NoObject)?;
            let directory = state.tree.directory(slot).ok_or(Error::NotDirectory)?;
            if !directory.children.is_empty() {
                return Err(Error::NotEmpty);
            }
            state.path_of_child(parent, name)
        };
        if !path.contains(&b'/') {
            return Err(self.refuse(&path, &NOT_JOINED));
        }
        let directory = KeyPath::from_bytes(&path);
        tracing::warn!(%directory, reason = NOT_JOINED, "a directory is not removed: others may hold something in it");
        Err(Error::Unanswered)
    }

    /// Has the members agree on a namespace that was made here: now, or when the coordinator is back.
    pub(super) async fn agree_on_namespace(&self, side: &ClusterSide, path: &[u8], facts: DirectoryFacts) {
        let DirectoryFacts { mode, uid, gid } = facts;
        let base = NamespaceRecord { access: Some(Access { mode, uid, gid }), ..NamespaceRecord::default() };
        let change = NamespaceChange { base, ..NamespaceChange::default() };
        if side.cluster.reaches_coordinator() {
            let agreed = side.cluster.agree(path.to_vec(), change, side.deadline()).await;
            if self.take_agreement(path, agreed).is_ok() {
                return;
            }
        }
        self.agree_later(path);
        self.agree_on_the_rest();
    }

    /// Notes a namespace that is to be agreed on when that is possible.
    pub(super) fn agree_later(&self, path: &[u8]) {
        let has_room = self.lock().elsewhere.agreed.unagreed.add(path);
        if !has_room {
            self.telemetry.agreements_refused.increment();
            tracing::warn!("too many namespaces were made while the coordinator is away");
        }
    }

    /// Sees to the namespaces that were made while the coordinator was away, until all are agreed on.
    pub(super) fn agree_on_the_rest(&self) {
        let (Some(side), Some(this)) = (self.cluster.get(), self.this.get().cloned()) else { return };
        {
            let agreed = &mut self.lock().elsewhere.agreed;
            if agreed.unagreed.is_empty() || std::mem::replace(&mut agreed.is_agreeing, true) {
                return;
            }
        }
        side.runtime.spawn(async move {
            loop {
                tokio::time::sleep(AGREE_PAUSE).await;
                let Some(datapath) = this.upgrade() else { return };
                if datapath.agree_on_one().await {
                    return;
                }
            }
        });
    }

    /// Has the members agree on the next of those namespaces, while the coordinator is there. Returns whether none is left.
    async fn agree_on_one(&self) -> bool {
        let Some(side) = self.cluster.get() else { return true };
        let (path, base) = {
            let mut state = self.lock();
            let Some(path) = state.elsewhere.agreed.unagreed.next_turn() else {
                state.elsewhere.agreed.is_agreeing = false;
                return true;
            };
            let slot = state.tree.by_path(&path).filter(|&slot| state.tree.directory(slot).is_some());
            let Some(slot) = slot else {
                state.elsewhere.agreed.unagreed.remove(&path);
                return false;
            };
            (path, state.own_record(slot))
        };
        if !side.cluster.reaches_coordinator() {
            return false;
        }
        let change = NamespaceChange { base, ..NamespaceChange::default() };
        match side.cluster.agree(path.clone(), change, side.deadline()).await {
            Ok(unapplied) => {
                self.lock().elsewhere.agreed.unagreed.remove(&path);
                self.note_unapplied(&path, unapplied);
            }
            Err(error) => {
                let is_news = self.lock().elsewhere.agreed.unagreed.note_refused(&path);
                if is_news {
                    let directory = KeyPath::from_bytes(&path);
                    tracing::warn!(%directory, reason = %error, "a namespace that was made here is not agreed on; it is tried again and again");
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::testing;

    #[test]
    fn who_would_have_more_agreed_on_than_is_bounded_is_told_that_there_is_no_room() {
        let (_place, datapath) = testing::unprivileged();
        let refused = |error: ClusterError| datapath.take_agreement(b"kv/a", Err(error)).unwrap_err();
        assert!(matches!(refused(CoordinatorError::TooMany.into()), Error::AgreementsFull));
        assert!(matches!(refused(ClusterError::DeadlinePassed), Error::NotAgreed));
        assert_eq!(datapath.telemetry.agreements_refused.get(), 2);
    }
}
