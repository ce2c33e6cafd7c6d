//! What members agree on about directories: told to the holder as it is heard, and waited for by who changes it.
//!
//! The coordinator gives changes their order, and each member applies what it hears from it alone, so all end with the same.
//! Who changes something asks every other member whether it has applied that revision, before its caller's call returns.
//!
//! Limits: a member that cannot be asked in time is told of to the caller; it applies the change when it hears of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tidefs_engine::engine::Answer;
use tidefs_engine::types::MemberId;

use super::catalog::wire::{AGREED, Agreed, Done, Message};
use super::coordinator::{Made, NamespaceChange, name_of};
use super::core::Core;
use super::error::ClusterError;

/// Who did not say in time that it has applied a change, and why.
pub type Unapplied = BTreeMap<MemberId, String>;

impl Core {
    /// Tells the holder what is agreed on, as it is heard, for ever.
    pub(super) async fn follow_agreements(self: Arc<Self>) {
        let mut heard = self.coordinator.namespaces();
        loop {
            let namespaces = Arc::clone(&heard.borrow_and_update());
            let Some(holder) = self.holder.upgrade() else { return };
            let revision = namespaces.revision;
            // It writes records of directories.
            let applying = self.runtime.spawn_blocking(move || holder.agreed(&namespaces));
            if let Err(error) = applying.await {
                tracing::error!(%error, "what the members agree on could not be applied");
            }
            self.applied.send_replace(Some(revision));
            if heard.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until what is agreed on up to `revision` is applied here. Returns whether that was before the deadline.
    pub(super) async fn has_applied(&self, revision: u64, deadline: Instant) -> bool {
        let mut applied = self.applied.subscribe();
        let is_it = applied.wait_for(|applied| applied.is_some_and(|applied| applied >= revision));
        matches!(tokio::time::timeout_at(deadline.into(), is_it).await, Ok(Ok(_)))
    }

    pub(super) fn answer_agreed(self: &Arc<Self>, agreed: Agreed) -> Answer {
        let core = Arc::clone(self);
        let deadline = self.in_background();
        Answer::Later(Box::pin(async move {
            if core.has_applied(agreed.revision, deadline).await {
                Ok(Done {}.encode())
            } else {
                Err("it does not hear of changes now: it does not reach the coordinator".to_owned())
            }
        }))
    }

    /// Changes what is agreed on about the directory at `path`, and waits until every member has applied it.
    pub(super) async fn agree(
        self: &Arc<Self>,
        path: &[u8],
        change: NamespaceChange,
        deadline: Instant,
    ) -> Result<Unapplied, ClusterError> {
        let revision = self.coordinator.change_namespace(&name_of(path), change, deadline).await?;
        Ok(self.all_apply(revision, deadline).await)
    }

    /// As [`Core::agree`], for the end of all that is agreed on about it: of the record that there is now, and no later one.
    pub(super) async fn disagree(
        self: &Arc<Self>,
        path: &[u8],
        deadline: Instant,
    ) -> Result<Unapplied, ClusterError> {
        let name = name_of(path);
        let made = self.coordinator.find_namespace(&name, deadline).await?;
        let revision = self.coordinator.remove_namespace(&name, made, deadline).await?;
        Ok(self.all_apply(revision, deadline).await)
    }

    /// Whether something is agreed on about the directory at `path` now, whoever has heard of it.
    pub(super) async fn has_record(&self, path: &[u8], deadline: Instant) -> Result<bool, ClusterError> {
        let made = self.coordinator.find_namespace(&name_of(path), deadline).await?;
        Ok(![Made::NOTHING, Made::ANY].contains(&made))
    }

    async fn all_apply(self: &Arc<Self>, revision: u64, deadline: Instant) -> Unapplied {
        let members = self.seen().view.members().iter().map(|member| member.id).collect::<Vec<_>>();
        let mut asked = tokio::task::JoinSet::new();
        for member in members.into_iter().filter(|&member| member != self.me.member) {
            let (core, body) = (Arc::clone(self), Agreed { revision }.encode());
            let asking = async move { (member, core.call(member, AGREED, body, deadline).await) };
            asked.spawn_on(asking, &self.runtime);
        }
        let mut unheard = BTreeMap::new();
        if !self.has_applied(revision, deadline).await {
            unheard.insert(self.me.member, "it was not told by the coordinator in time".to_owned());
        }
        while let Some(ended) = asked.join_next().await {
            if let Ok((member, Err(error))) = ended {
                unheard.insert(member, error.to_string());
            }
        }
        unheard
    }
}
