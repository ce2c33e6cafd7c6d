//! What the members of a cluster agree on and what changes rarely: who takes part, which start of a member is the latest,
//! and the policies of namespaces. Never anything per object.
//!
//! [`embedded`] is the daemon's own, for one host; [`etcd`] is shared by many. While the coordinator cannot be reached
//! the last view and the last policies go on to count: reads and writes do not notice. What would change them waits, and
//! says what it waits for when its deadline passes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_engine::types::{Incarnation, MemberId};
use tokio::sync::watch;

use super::member::{ClusterId, Member, View};

#[cfg(test)]
mod conformance;
pub mod embedded;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod hosted;
mod namespaces;

pub use error::CoordinatorError;
pub use namespaces::{
    Access, Agreement, Made, NamespaceChange, NamespaceRecord, Namespaces, RECORDS_MAX, name_of, path_of,
};

/// A future of a coordinator: it owns nothing but borrows, and may be dropped at any time. What was asked for may have
/// happened then.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, CoordinatorError>> + Send + 'a>>;

/// Members that are not registered and of which the latest start is remembered: hosts may come under new names for ever.
const STARTS_MAX: usize = 65_536;

/// What a member is given when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The cluster that it joins.
    pub cluster: ClusterId,
    /// Larger than that of every earlier start of this member.
    pub incarnation: Incarnation,
}

/// Whether the coordinator can be reached.
#[derive(Clone, Debug)]
pub enum Reachability {
    /// It answers.
    Reached,
    /// It was not reached yet, or not any more.
    Away {
        /// Since when.
        since: Instant,
        /// What the last attempt failed with.
        reason: Arc<str>,
    },
    /// It answers, and this member does not go by what it says, or it does not register this member: what was heard before
    /// stands.
    Refused {
        /// Since when.
        since: Instant,
        /// What is wrong with it, and what to do.
        reason: Arc<str>,
    },
}

impl Reachability {
    /// As long as nothing was heard of it.
    fn unknown() -> Self {
        Self::Away { since: Instant::now(), reason: "not reached yet".into() }
    }

    /// It does not answer. Returns whether that is news.
    fn note_away(&mut self, why: Arc<str>) -> bool {
        if let Self::Away { reason, .. } = self {
            *reason = why;
            return false;
        }
        *self = Self::Away { since: Instant::now(), reason: why };
        true
    }

    /// It answers what this member does not go by. Returns whether that is news.
    fn note_strange(&mut self, why: Arc<str>) -> bool {
        if let Self::Refused { reason, .. } = self {
            *reason = why;
            return false;
        }
        *self = Self::Refused { since: Instant::now(), reason: why };
        true
    }

    /// It was asked `what`, and did not answer by the deadline.
    fn away(&self, what: &'static str) -> CoordinatorError {
        let (away, reason) = match self {
            Self::Away { since, reason } | Self::Refused { since, reason } => {
                (since.elapsed(), Arc::clone(reason))
            }
            Self::Reached => (Duration::ZERO, "it answers too slowly for the deadline".into()),
        };
        CoordinatorError::Away { what, away, reason }
    }

    /// It answers. `refused`: why this member is not registered though it wants to be, of which the log tells once.
    fn note_answer(&mut self, refused: Option<&CoordinatorError>) {
        let reason: Option<Arc<str>> = refused.map(|error| error.to_string().into());
        match (reason, &*self) {
            (None, Self::Reached) => {}
            (Some(reason), Self::Refused { reason: known, .. }) if reason == *known => {}
            (None, Self::Away { since, .. } | Self::Refused { since, .. }) => {
                tracing::info!(away_s = since.elapsed().as_secs(), "the coordinator answers");
                *self = Self::Reached;
            }
            (Some(reason), _) => {
                tracing::error!(%reason, "the coordinator does not register this member, which takes part no more");
                *self = Self::Refused { since: Instant::now(), reason };
            }
        }
    }
}

/// Keeps what members agree on. All methods may be called from any thread; deadlines are absolute.
pub trait Coordinator: fmt::Debug + Send + Sync {
    /// Opens a new start of `member`. Its earlier starts can register no more.
    ///
    /// # Errors
    /// [`CoordinatorError::Away`] when the deadline passes first.
    fn begin(&self, member: MemberId, deadline: Instant) -> Asked<'_, Start>;

    /// Registers `member`, and keeps it registered until [`Coordinator::leave`], or until this process is gone for longer
    /// than a lease lives. Registering again replaces what was registered.
    ///
    /// # Errors
    /// [`CoordinatorError::Superseded`] when a later start of it was opened; [`CoordinatorError::Away`].
    fn register(&self, member: Member, deadline: Instant) -> Asked<'_, ()>;

    /// Gives up the registration of this process. That there is none is fine.
    ///
    /// # Errors
    /// [`CoordinatorError::Away`]; the registration then ends with its lease, or as soon as the coordinator is back, unless
    /// [`Coordinator::register`] is called again.
    fn leave(&self, deadline: Instant) -> Asked<'_, ()>;

    /// Who is registered, as last heard. Numbers of views only grow.
    fn views(&self) -> watch::Receiver<View>;

    /// Namespaces, as last heard.
    fn namespaces(&self) -> watch::Receiver<Namespaces>;

    /// Changes what is agreed on about the directory called `name`. Returns the revision with which it is so: everyone who
    /// heard of that revision, or a later one, knows it. What it is already makes no revision.
    ///
    /// # Errors
    /// [`CoordinatorError::TooMany`]; [`CoordinatorError::Away`]: what has reached it by then may still come into force.
    fn change_namespace(&self, name: &str, change: NamespaceChange, deadline: Instant) -> Asked<'_, u64>;

    /// Which record there is of the directory called `name`, whoever has heard of it: [`Made::NOTHING`] where nothing is agreed
    /// on about it. [`Made::ANY`], also where there is none, of a keeper of an earlier build, which does not say.
    ///
    /// # Errors
    /// [`CoordinatorError::Away`]; [`CoordinatorError::Refused`], as by a keeper whose disk does.
    fn find_namespace(&self, name: &str, deadline: Instant) -> Asked<'_, Made>;

    /// Forgets a directory of which the record is the one that was `made` so, as [`Coordinator::find_namespace`] said: one that
    /// was made anew since stays, so that a removal may be asked for again by who did not hear the answer. With [`Made::ANY`]
    /// whichever there is goes, also one that was made anew. Returns the revision with which it is so, as
    /// [`Coordinator::change_namespace`] does. That there is no such record is fine: who heard of that revision knows of its
    /// removal, if somebody asked for that before. It may be a later revision then, as that of the last removal of any name, for
    /// which who waits for this one waits as well.
    ///
    /// # Errors
    /// [`CoordinatorError::Away`], as [`Coordinator::change_namespace`] says; [`CoordinatorError::Refused`].
    fn remove_namespace(&self, name: &str, made: Made, deadline: Instant) -> Asked<'_, u64>;

    /// Whether it can be reached now.
    fn reachability(&self) -> Reachability;
}
