//! The coordinator inside the daemon: for one host, for the one that hosts it for others ([`super::hosted`]), and for tests with
//! many members in one process.
//!
//! Limits: of members that are not registered the latest starts of `STARTS_MAX` are remembered. When there are more all of these
//! are forgotten: each start that is opened from then on is later than any of them.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidefs_engine::types::{Incarnation, MemberId};
use tokio::sync::watch;

use super::namespaces::{RECORDS_BYTES_MAX, RECORDS_MAX, weight};
use super::{
    Agreement, Asked, Coordinator, CoordinatorError, Made, NamespaceChange, NamespaceRecord, Namespaces,
    Reachability, STARTS_MAX, Start,
};
use crate::cluster::member::{ClusterId, Member, View};

/// What is agreed on about a directory, and which record that is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MadeRecord {
    /// Nothing where an earlier build kept it, until that is resumed.
    #[serde(default)]
    made: Made,
    /// As an earlier build reads it.
    #[serde(flatten)]
    record: NamespaceRecord,
}

/// What is agreed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Agreed {
    pub(super) cluster: ClusterId,
    starts: BTreeMap<MemberId, Incarnation>,
    /// The latest of the starts that were forgotten.
    #[serde(default)]
    forgotten: Incarnation,
    pub(super) members: BTreeMap<MemberId, Member>,
    namespaces: BTreeMap<String, MadeRecord>,
    /// Bytes of these records. Counted when it is resumed.
    #[serde(skip)]
    namespaces_bytes: usize,
    /// Counts changes: numbers of views and revisions are taken from it.
    changes: u64,
}

impl Agreed {
    /// A cluster without members.
    pub(super) fn new(cluster: ClusterId) -> Self {
        Self {
            cluster,
            starts: BTreeMap::new(),
            forgotten: Incarnation::default(),
            members: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            namespaces_bytes: 0,
            changes: 0,
        }
    }

    /// Opens a start of `member`, later than all before it.
    fn begin(&mut self, member: MemberId) -> Incarnation {
        if self.starts.len() >= self.members.len() + STARTS_MAX {
            let members = &self.members;
            let forgotten = self.starts.extract_if(.., |member, _| !members.contains_key(member));
            self.forgotten = forgotten.map(|(_, start)| start).fold(self.forgotten, Incarnation::max);
        }
        let latest = self.starts.entry(member).or_default();
        *latest = Incarnation(self.forgotten.max(*latest).0.saturating_add(1));
        *latest
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
    pub(super) fn resumed(mut agreed: Agreed) -> Self {
        let weighed = agreed.namespaces.iter().map(|(name, known)| weight(name, &known.record));
        agreed.namespaces_bytes = weighed.sum();
        // What is made from here on is made later. Until the file is written again the next start finds the same.
        let made = Made(agreed.changes);
        let unnamed = agreed.namespaces.values_mut().filter(|known| known.made == Made::NOTHING);
        unnamed.for_each(|known| known.made = made);
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

    /// Whether that is all that is agreed on, as it is now.
    pub(super) fn has_agreed_on(&self, known: &Agreed) -> bool {
        *self.shared.agreed.lock() == *known
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

    fn change_now(&self, name: &str, change: &NamespaceChange) -> Result<u64, CoordinatorError> {
        let mut agreed = self.shared.agreed.lock();
        let known = agreed.namespaces.get(name);
        let before = known.map(|known| &known.record);
        let record = change.applied_to(before);
        if before == Some(&record) {
            return Ok(self.shared.namespaces.borrow().revision);
        }
        let is_one_more = known.is_none();
        // The revision with which it is told.
        let made = known.map_or(Made(agreed.changes + 1), |known| known.made);
        let (bytes, bytes_before) = (weight(name, &record), before.map_or(0, |before| weight(name, before)));
        let bytes_after = (agreed.namespaces_bytes + bytes).saturating_sub(bytes_before);
        let are_too_many = is_one_more && agreed.namespaces.len() >= RECORDS_MAX;
        if are_too_many || (bytes > bytes_before && bytes_after > RECORDS_BYTES_MAX) {
            return Err(CoordinatorError::TooMany);
        }
        agreed.namespaces_bytes = bytes_after;
        agreed.namespaces.insert(name.to_owned(), MadeRecord { made, record });
        Ok(self.publish_namespaces(&mut agreed))
    }

    fn find_now(&self, name: &str) -> Made {
        self.shared.agreed.lock().namespaces.get(name).map_or(Made::NOTHING, |known| known.made)
    }

    fn remove_now(&self, name: &str, made: Made) -> u64 {
        let mut agreed = self.shared.agreed.lock();
        let is_it = |known: &MadeRecord| made == Made::ANY || made == known.made;
        let is_there = agreed.namespaces.get(name).is_some_and(is_it);
        let Some(known) = is_there.then(|| agreed.namespaces.remove(name)).flatten() else {
            return self.shared.namespaces.borrow().revision;
        };
        agreed.namespaces_bytes = agreed.namespaces_bytes.saturating_sub(weight(name, &known.record));
        self.publish_namespaces(&mut agreed)
    }

    fn publish_view(&self, agreed: &mut Agreed) {
        agreed.changes += 1;
        let view = View::new(agreed.changes, agreed.members.values().cloned().collect());
        self.shared.views.send_replace(view);
    }

    /// Tells everyone what is agreed on about directories. Returns the revision of that.
    fn publish_namespaces(&self, agreed: &mut Agreed) -> u64 {
        agreed.changes += 1;
        let records = agreed.namespaces.iter().map(|(name, known)| (name.clone(), known.record.clone()));
        let agreement = Agreement { revision: agreed.changes, records: records.collect() };
        self.shared.namespaces.send_replace(Arc::new(agreement));
        agreed.changes
    }
}

impl Coordinator for Embedded {
    fn begin(&self, member: MemberId, _deadline: Instant) -> Asked<'_, Start> {
        let mut agreed = self.shared.agreed.lock();
        let incarnation = agreed.begin(member);
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
        Box::pin(ready(self.change_now(name, &change)))
    }

    fn find_namespace(&self, name: &str, _deadline: Instant) -> Asked<'_, Made> {
        Box::pin(ready(Ok(self.find_now(name))))
    }

    fn remove_namespace(&self, name: &str, made: Made, _deadline: Instant) -> Asked<'_, u64> {
        Box::pin(ready(Ok(self.remove_now(name, made))))
    }

    fn reachability(&self) -> Reachability {
        Reachability::Reached
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{Pair, coordinator_facts, sets};
    use super::*;
    use crate::cluster::member::testing::member;

    fn pair() -> Pair {
        let first = Embedded::new(ClusterId(7));
        let second = first.another();
        Pair { first: Box::new(first), second: Box::new(second), keeps: Box::new(()) }
    }

    coordinator_facts!(pair());

    #[test]
    fn starts_of_hosts_that_come_under_new_names_are_forgotten_and_none_is_opened_twice() {
        let mut agreed = Agreed::new(ClusterId(7));
        let (stays, goes) = (MemberId(1), MemberId(2));
        agreed.members.insert(stays, member(1, 8));
        let last = [stays, goes].map(|member| [(); 3].map(|()| agreed.begin(member))[2]);
        assert_eq!(last, [Incarnation(3); 2]);
        for id in (3..).take(STARTS_MAX) {
            agreed.begin(MemberId(id));
        }
        assert!(agreed.starts.len() <= STARTS_MAX, "{}", agreed.starts.len());
        assert!(agreed.starts.contains_key(&stays) && !agreed.starts.contains_key(&goes));
        assert!([stays, goes].map(|member| agreed.begin(member)).iter().all(|start| *start > Incarnation(3)));
    }

    /// A coordinator that knows records with these names.
    fn knowing(names: impl Iterator<Item = String>) -> Embedded {
        let mut agreed = Agreed::new(ClusterId(7));
        let known = || MadeRecord { made: Made(1), record: NamespaceRecord::default() };
        agreed.namespaces = names.map(|name| (name, known())).collect();
        Embedded::resumed(agreed)
    }

    fn is_full_until_one_of_them_goes(coordinator: &Embedded, known: &str, another: &str) {
        let change = |name: &str| coordinator.change_now(name, &sets("quota", "1GiB"));
        assert!(matches!(change(another), Err(CoordinatorError::TooMany)));
        coordinator.remove_now(known, Made::ANY);
        change(another).unwrap();
        assert!(matches!(change(known), Err(CoordinatorError::TooMany)));
    }

    #[test]
    fn no_more_is_agreed_on_than_is_bounded_and_what_goes_makes_room() {
        let many = knowing((0..RECORDS_MAX).map(|number| number.to_string()));
        is_full_until_one_of_them_goes(&many, "7", "one more");
        many.change_now("8", &sets("quota", "1GiB")).expect("it is known, and there is room");
        // As many bytes as may be told, in fewer names.
        let long = |number: usize| format!("{number:04096}");
        let count = RECORDS_BYTES_MAX / weight(&long(0), &NamespaceRecord::default());
        let of_long_names = knowing((0..count).map(long));
        is_full_until_one_of_them_goes(&of_long_names, &long(7), &long(count));
    }
}
