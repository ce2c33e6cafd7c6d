//! The coordinator inside the daemon: for one host, for the one that hosts it for others ([`super::hosted`]), and for tests with
//! many members in one process.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidefs_engine::types::{Incarnation, MemberId};
use tokio::sync::watch;

use super::{
    Agreement, Asked, Coordinator, CoordinatorError, NamespaceChange, NamespaceRecord, Namespaces,
    Reachability, Start,
};
use crate::cluster::member::{ClusterId, Member, View};

/// What is agreed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Agreed {
    pub(super) cluster: ClusterId,
    starts: BTreeMap<MemberId, Incarnation>,
    pub(super) members: BTreeMap<MemberId, Member>,
    namespaces: BTreeMap<String, NamespaceRecord>,
    /// Counts changes: numbers of views and revisions are taken from it.
    changes: u64,
}

impl Agreed {
    /// A cluster without members.
    pub(super) fn new(cluster: ClusterId) -> Self {
        Self {
            cluster,
            starts: BTreeMap::new(),
            members: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            changes: 0,
        }
    }

    /// How many changes were counted.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether more changes can be counted than a cluster ever sees. What a coordinator kept always has room for them.
    pub(super) fn can_go_on(&self) -> bool {
        self.changes < u64::MAX / 2
    }
}

/// State that all handles of one embedded coordinator share.
#[derive(Debug)]
struct Shared {
    /// A mutex: held for a table look-up, while nothing waits.
    agreed: Mutex<Agreed>,
    views: watch::Sender<View>,
    namespaces: watch::Sender<Namespaces>,
}

/// One member's handle of a coordinator that lives in this process.
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
    /// Who registered through this handle, and which start of it.
    registered: Mutex<Option<(MemberId, Incarnation)>>,
}

impl Embedded {
    /// A coordinator without members.
    #[must_use]
    pub fn new(cluster: ClusterId) -> Self {
        Self::resumed(Agreed::new(cluster))
    }

    /// A coordinator that goes on where another one ended.
    pub(super) fn resumed(agreed: Agreed) -> Self {
        let coordinator = Self {
            shared: Arc::new(Shared {
                agreed: Mutex::new(agreed),
                views: watch::Sender::new(View::default()),
                namespaces: watch::Sender::new(Namespaces::default()),
            }),
            registered: Mutex::new(None),
        };
        {
            let mut agreed = coordinator.shared.agreed.lock();
            // Also when nothing is left of it: who follows may not have heard of the end of the last record.
            if agreed.changes > 0 {
                coordinator.publish_view(&mut agreed);
                coordinator.publish_namespaces(&mut agreed);
            }
        }
        coordinator
    }

    /// A handle for another member of the same cluster.
    #[must_use]
    pub fn another(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), registered: Mutex::new(None) }
    }

    /// The cluster that it is of.
    pub(super) fn cluster(&self) -> ClusterId {
        self.shared.agreed.lock().cluster
    }

    /// All that is agreed on, as it is now, with the view and the records that are of it.
    pub(super) fn agreed(&self) -> (Agreed, View, Namespaces) {
        // Both are told under this lock.
        let agreed = self.shared.agreed.lock();
        let (views, namespaces) = (self.shared.views.borrow(), self.shared.namespaces.borrow());
        (agreed.clone(), views.clone(), Arc::clone(&namespaces))
    }

    /// Who registered through this handle, and which start of it.
    pub(super) fn registered(&self) -> Option<(MemberId, Incarnation)> {
        *self.registered.lock()
    }

    /// Ends the registration of one start of a member. Returns whether it was registered.
    pub(super) fn forget(&self, (member, incarnation): (MemberId, Incarnation)) -> bool {
        let mut agreed = self.shared.agreed.lock();
        let is_it = agreed.members.get(&member).is_some_and(|found| found.incarnation == incarnation);
        if is_it {
            agreed.members.remove(&member);
            self.publish_view(&mut agreed);
        }
        is_it
    }

    fn register_now(&self, member: Member) -> Result<(), CoordinatorError> {
        let mut agreed = self.shared.agreed.lock();
        let latest = agreed.starts.get(&member.id).copied().unwrap_or_default();
        if latest > member.incarnation {
            let (member, ours) = (member.id, member.incarnation);
            return Err(CoordinatorError::Superseded { member, ours, latest });
        }
        // What is agreed on may be older than the start.
        agreed.starts.insert(member.id, member.incarnation);
        *self.registered.lock() = Some((member.id, member.incarnation));
        let since = match agreed.members.get(&member.id) {
            Some(known) if known.incarnation == member.incarnation => known.since,
            // The number of the view that it is in first.
            _ => agreed.changes + 1,
        };
        let member = Member { since, ..member };
        if agreed.members.get(&member.id) != Some(&member) {
            agreed.members.insert(member.id, member);
            self.publish_view(&mut agreed);
        }
        Ok(())
    }

    fn publish_view(&self, agreed: &mut Agreed) {
        agreed.changes += 1;
        let view = View::new(agreed.changes, agreed.members.values().cloned().collect());
        self.shared.views.send_replace(view);
    }

    /// Tells everyone what is agreed on about directories. Returns the revision of that.
    fn publish_namespaces(&self, agreed: &mut Agreed) -> u64 {
        agreed.changes += 1;
        let agreement = Agreement { revision: agreed.changes, records: agreed.namespaces.clone() };
        self.shared.namespaces.send_replace(Arc::new(agreement));
        agreed.changes
    }
}

impl Coordinator for Embedded {
    fn begin(&self, member: MemberId, _deadline: Instant) -> Asked<'_, Start> {
        let mut agreed = self.shared.agreed.lock();
        let latest = agreed.starts.entry(member).or_default();
        latest.0 += 1;
        let incarnation = *latest;
        Box::pin(ready(Ok(Start { cluster: agreed.cluster, incarnation })))
    }

    fn register(&self, member: Member, _deadline: Instant) -> Asked<'_, ()> {
        Box::pin(ready(self.register_now(member)))
    }

    fn leave(&self, _deadline: Instant) -> Asked<'_, ()> {
        let registered = self.registered.lock().take();
        if let Some(registered) = registered {
            self.forget(registered);
        }
        Box::pin(ready(Ok(())))
    }

    fn views(&self) -> watch::Receiver<View> {
        self.shared.views.subscribe()
    }

    fn namespaces(&self) -> watch::Receiver<Namespaces> {
        self.shared.namespaces.subscribe()
    }

    fn change_namespace(&self, name: &str, change: NamespaceChange, _deadline: Instant) -> Asked<'_, u64> {
        let mut agreed = self.shared.agreed.lock();
        let record = change.applied_to(agreed.namespaces.get(name));
        agreed.namespaces.insert(name.to_owned(), record);
        let revision = self.publish_namespaces(&mut agreed);
        Box::pin(ready(Ok(revision)))
    }

    fn remove_namespace(&self, name: &str, _deadline: Instant) -> Asked<'_, u64> {
        let mut agreed = self.shared.agreed.lock();
        let was_there = agreed.namespaces.remove(name).is_some();
        let revision = if was_there {
            self.publish_namespaces(&mut agreed)
        } else {
            self.shared.namespaces.borrow().revision
        };
        Box::pin(ready(Ok(revision)))
    }

    fn reachability(&self) -> Reachability {
        Reachability::Reached
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{Pair, coordinator_facts};
    use super::*;

    fn pair() -> Pair {
        let first = Embedded::new(ClusterId(7));
        let second = first.another();
        Pair { first: Box::new(first), second: Box::new(second), keeps: Box::new(()) }
    }

    coordinator_facts!(pair());
}
