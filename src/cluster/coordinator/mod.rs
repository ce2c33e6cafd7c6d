//! What the members of a cluster agree on and what changes rarely: who takes part, which start of a member is the latest,
//! and the policies of namespaces. Never anything per object.
//!
//! [`embedded`] is the daemon's own, for one host; [`etcd`] is shared by many. While the coordinator cannot be reached
//! the last view and the last policies go on to count: reads and writes do not notice. What would change them waits, and
//! says what it waits for when its deadline passes.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tidefs_engine::types::{Incarnation, MemberId};
use tokio::sync::watch;

use super::member::{ClusterId, Member, View};

#[cfg(test)]
mod conformance;
pub mod embedded;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;

pub use error::CoordinatorError;

/// A future of a coordinator: it owns nothing but borrows, and may be dropped at any time. What was asked for may have
/// happened then.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, CoordinatorError>> + Send + 'a>>;

/// What a member is given when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The cluster that it joins.
    pub cluster: ClusterId,
    /// Larger than that of every earlier start of this member.
    pub incarnation: Incarnation,
}

/// What is agreed about one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceRecord {
    /// Policy by attribute, as `setfattr` spells both: `user.tidefs.quota` and `64GiB`.
    pub policy: BTreeMap<String, String>,
}

/// All namespaces by name.
pub type Namespaces = Arc<BTreeMap<String, NamespaceRecord>>;

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
    /// [`CoordinatorError::Away`]; the registration then ends with its lease.
    fn leave(&self, deadline: Instant) -> Asked<'_, ()>;

    /// Who is registered, as last heard. Numbers of views only grow.
    fn views(&self) -> watch::Receiver<View>;

    /// Namespaces, as last heard.
    fn namespaces(&self) -> watch::Receiver<Namespaces>;

    /// Makes a namespace, or replaces what is agreed about it. Every member hears of it.
    ///
    /// # Errors
    /// [`CoordinatorError::Away`].
    fn set_namespace(&self, name: &str, record: NamespaceRecord, deadline: Instant) -> Asked<'_, ()>;

    /// Removes a namespace. That there is none is fine.
    ///
    /// # Errors
    /// [`CoordinatorError::Away`].
    fn remove_namespace(&self, name: &str, deadline: Instant) -> Asked<'_, ()>;

    /// Whether it can be reached now.
    fn reachability(&self) -> Reachability;
}
