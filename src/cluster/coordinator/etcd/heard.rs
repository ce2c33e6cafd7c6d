//! What was heard of etcd: by listing all of it, and then by each change.
//!
//! Invariants
//! - A view has the number of the last change of the members, whoever hears of it and however: members compare numbers, and go by
//!   what whoever came and left in between has claimed. That each registers again, its lease lasting, is no change.
//!
//! Limits: when a member left while etcd was away, and etcd has compacted that change, the number is not known; the view has
//! that of the list then, which is later, until the next change. When one came and left, the view has its old number until then.
//! The first list of a start gives its view the number of what was put last: it is no member yet, and that it registers gives all
//! the next one.

use std::collections::BTreeMap;
use std::sync::Arc;

use etcd_client::{EventType, KeyValue, WatchResponse};
use tidefs_engine::types::MemberId;

use super::Shared;
use super::keys::About;
use crate::cluster::coordinator::{Agreement, NamespaceRecord};
use crate::cluster::member::{Member, View};

/// What etcd holds, as far as it was heard.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    members: BTreeMap<MemberId, Member>,
    namespaces: BTreeMap<String, NamespaceRecord>,
    /// Everything up to this revision of etcd was heard; nothing, when it is zero.
    revision: i64,
    /// Revision of the last change of the members; where they were found in a list, of what was put last.
    members_revision: i64,
    /// Of a directory's record, or of the list in which it was found.
    namespaces_revision: i64,
}

impl Heard {
    /// Nothing yet of a list at `revision`.
    pub(super) fn at(revision: i64) -> Self {
        Self { revision, namespaces_revision: revision, ..Self::default() }
    }

    /// Takes a page of that list.
    pub(super) fn take(&mut self, shared: &Shared, page: &[KeyValue]) {
        for pair in page {
            if let Some(About::Member(_)) = self.put(shared, pair) {
                self.members_revision = self.members_revision.max(pair.mod_revision());
            }
        }
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// Whether this start of `member` is registered, or a later one.
    pub(super) fn has(&self, member: &Member) -> bool {
        self.members.get(&member.id).is_some_and(|found| found.incarnation >= member.incarnation)
    }

    /// Whether both know the same.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.members == other.members && self.namespaces == other.namespaces
    }

    /// Takes a list for true whose changes could not be heard one by one.
    pub(super) fn replace(&mut self, listed: Self) {
        let members_revision = match self.revision {
            0 => listed.members_revision,
            _ if self.members == listed.members => self.members_revision,
            _ => listed.revision,
        };
        *self = Self { members_revision, ..listed };
    }

    /// Takes a value that was put. One that cannot be read counts as absent: somebody else wrote it.
    fn put(&mut self, shared: &Shared, pair: &KeyValue) -> Option<About> {
        let about = shared.keys.about(pair.key())?;
        let read = match &about {
            About::Member(id) => serde_json::from_slice::<Member>(pair.value()).map(|member| {
                if member.id == *id {
                    // The key goes with the lease, and is another one then.
                    let since = u64::try_from(pair.create_revision()).unwrap_or(0);
                    self.members.insert(*id, Member { since, ..member });
                } else {
                    self.members.remove(id);
                }
            }),
            About::Namespace(name) => serde_json::from_slice(pair.value()).map(|record| {
                self.namespaces.insert(name.clone(), record);
            }),
        };
        if let Err(error) = read {
            tracing::warn!(key = %String::from_utf8_lossy(pair.key()), %error, "a value in etcd is not ours and is ignored");
            self.delete(&about);
        }
        Some(about)
    }

    fn delete(&mut self, about: &About) {
        match about {
            About::Member(id) => drop(self.members.remove(id)),
            About::Namespace(name) => drop(self.namespaces.remove(name)),
        }
    }

    /// Takes changes, and tells whoever listens.
    pub(super) fn apply(&mut self, shared: &Shared, changes: &WatchResponse) {
        let (members, namespaces) = self.take_changes(shared, changes, i64::MAX);
        if members {
            self.publish_members(shared);
        }
        if namespaces {
            self.publish_namespaces(shared);
        }
    }

    /// Takes changes up to the revision `last`, and tells nobody. Later ones count as heard of only. Returns whether members
    /// changed, and records of directories.
    pub(super) fn take_changes(
        &mut self,
        shared: &Shared,
        changes: &WatchResponse,
        last: i64,
    ) -> (bool, bool) {
        let (mut members, mut namespaces) = (false, false);
        for event in changes.events() {
            let Some(pair) = event.kv() else { continue };
            // That of the change itself: the one of the whole answer may be of changes that are yet to come.
            let revision = pair.mod_revision();
            self.revision = self.revision.max(revision);
            if revision > last {
                break;
            }
            let Some(about) = shared.keys.about(pair.key()) else { continue };
            let known = match &about {
                About::Member(id) => self.members.get(id).cloned(),
                About::Namespace(_) => None,
            };
            match event.event_type() {
                EventType::Put => drop(self.put(shared, pair)),
                EventType::Delete => self.delete(&about),
            }
            match about {
                // It registers again, as it was.
                About::Member(id) if self.members.get(&id) == known.as_ref() => {}
                About::Member(_) => {
                    members = true;
                    self.members_revision = self.members_revision.max(revision);
                }
                About::Namespace(_) => {
                    namespaces = true;
                    self.namespaces_revision = self.namespaces_revision.max(revision);
                }
            }
        }
        if changes.events().is_empty() && !changes.created() && !changes.canceled() {
            // A sign of progress: there was nothing to tell up to here.
            let revision = changes.header().map_or(0, |header| header.revision());
            self.revision = self.revision.max(revision);
        }
        (members, namespaces)
    }

    pub(super) fn publish_members(&self, shared: &Shared) {
        let number = u64::try_from(self.members_revision).unwrap_or(0);
        let heard = View::new(number, self.members.values().cloned().collect());
        shared.views.send_if_modified(|view| {
            // Also where the members are the same: one may have come and gone unheard, and others go by what it claimed.
            let is_news = heard.number > view.number;
            if is_news {
                *view = heard;
            }
            is_news
        });
    }

    pub(super) fn publish_namespaces(&self, shared: &Shared) {
        let revision = u64::try_from(self.namespaces_revision).unwrap_or(0);
        let heard = Agreement { revision, records: self.namespaces.clone() };
        shared.namespaces.send_replace(Arc::new(heard));
    }
}
