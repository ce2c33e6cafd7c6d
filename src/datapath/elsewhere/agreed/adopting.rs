//! What the members agreed on comes to hold here: namespaces are entered and withdrawn, owner, mode and policy of directories
//! changed.
//!
//! Invariants
//! - What is agreed on is in force whether or not a record of it can be written: who is denied something must not see it.
//! - A directory that is entered later goes by what is agreed on about it from its first moment on.

use std::sync::Arc;

use crate::cluster::Stamp;
use crate::cluster::coordinator::{Access, NamespaceRecord, Namespaces, name_of, path_of};
use crate::cluster::shards::KeyId;
use crate::datapath::policy_text::apply;
use crate::datapath::regroup::Changes;
use crate::datapath::xattrs::PREFIX;
use crate::datapath::{Datapath, Error, State};
use crate::namespace::{Attributes, Ino, Name, Slot, permissions};
use crate::tier::memory::PolicyRecord;

/// What else a directory's new policy asks for.
#[derive(Debug, Default)]
struct Aftermath {
    /// The kernel knows its attributes.
    known: Option<Ino>,
    /// What is to be gone through below it.
    changes: Changes,
    /// It has a quota now, or another one.
    has_quota: bool,
    /// Another number of copies is wanted.
    wants_copies: bool,
}

/// The policy that a record says. What this build does not know is left out, with a warning.
fn policy_of(name: &str, record: &NamespaceRecord) -> PolicyRecord {
    let mut policy = PolicyRecord::default();
    for (attribute, value) in &record.policy {
        let applied = attribute.strip_prefix(PREFIX).map(|key| apply(&mut policy, key, Some(value)));
        if !matches!(applied, Some(Ok(_))) {
            tracing::warn!(
                directory = name,
                attribute,
                value,
                "a policy that the cluster agreed on is not known here"
            );
        }
    }
    policy
}

impl State {
    /// What is agreed on about the directory in `slot`.
    fn agreed_record(&self, slot: Slot) -> Option<NamespaceRecord> {
        let records = &self.elsewhere.agreed.namespaces.records;
        // Most clusters agree on a few; a directory is entered seldom.
        if records.is_empty() { None } else { records.get(&name_of(&self.tree.path(slot))).cloned() }
    }
}

impl Datapath {
    /// Goes by `namespaces` from now on. Writes records of directories, and frees what a smaller quota leaves no room for.
    pub(in crate::datapath::elsewhere) fn adopt_agreement(&self, namespaces: &Namespaces) {
        let before = {
            let mut state = self.lock();
            std::mem::replace(&mut state.elsewhere.agreed.namespaces, Arc::clone(namespaces))
        };
        for (name, record) in &namespaces.records {
            if before.records.get(name) != Some(record) {
                self.adopt_record(name, record);
            }
        }
        for name in before.records.keys().filter(|name| !namespaces.records.contains_key(*name)) {
            let path = path_of(name);
            let is_namespace = !path.is_empty() && !path.contains(&b'/');
            let directory = {
                let mut state = self.lock();
                let slot = state.tree.by_path(&path).filter(|&slot| state.tree.directory(slot).is_some());
                // It goes whether or not the catalog has heard of it.
                slot.map(|slot| state.clear_untold(slot))
            };
            if is_namespace && directory.is_some() {
                self.withdraw_for_peer(&path, Stamp::default());
            }
        }
    }

    fn adopt_record(&self, name: &str, record: &NamespaceRecord) {
        let path = path_of(name);
        let adopted = self.with_room(|| {
            let mut state = self.lock();
            let slot = match state.tree.by_path(&path) {
                Some(slot) => slot,
                None if path.contains(&b'/') => return Ok(None),
                None => self.enter_namespace(&mut state, &path, record)?,
            };
            if state.tree.directory(slot).is_none() {
                return Ok(None);
            }
            self.apply_record(&mut state, slot, name, record).map(|aftermath| Some((slot, aftermath)))
        });
        match adopted {
            Ok(Some((slot, aftermath))) => self.attend(slot, &aftermath),
            Ok(None) => {}
            Err(error) => {
                self.telemetry.agreements_late.increment();
                tracing::warn!(directory = name, %error, "what the cluster agreed on about a directory does not hold here");
            }
        }
    }

    /// A namespace that another member made.
    fn enter_namespace(
        &self,
        state: &mut State,
        path: &[u8],
        record: &NamespaceRecord,
    ) -> Result<Slot, Error> {
        let access = record.access.unwrap_or(Access { mode: 0o755, uid: 0, gid: 0 });
        let attributes = Attributes::new(access.mode, access.uid, access.gid, self.now_ns());
        let slot = self.enter_directory(state, Slot::ROOT, Name::new(path)?, attributes)?;
        state.elsewhere.change(KeyId::of(path));
        state.hold_directory(slot);
        Ok(slot)
    }

    /// What is agreed on about a directory that was just entered holds for it.
    pub(in crate::datapath) fn adopt_for_new(&self, state: &mut State, slot: Slot) {
        let Some(record) = state.agreed_record(slot) else { return };
        let name = name_of(&state.tree.path(slot));
        // It is new, so there is nothing in it that a quota would drive out, and the kernel does not know it.
        let applied = self.apply_record(state, slot, &name, &record);
        let applied = applied.map(|aftermath| state.regroup_at_once(slot, aftermath.changes));
        if let Err(error) = applied {
            tracing::warn!(directory = name, %error, "what the cluster agreed on about a directory does not hold here");
        }
    }

    fn apply_record(
        &self,
        state: &mut State,
        slot: Slot,
        name: &str,
        record: &NamespaceRecord,
    ) -> Result<Aftermath, Error> {
        let (after, before) = (policy_of(name, record), state.folder(slot)?.policy.clone());
        let now_ns = self.now_ns();
        let attributes = &mut state.tree.node_mut(slot).attributes;
        let old = *attributes;
        if let Some(Access { mode, uid, gid }) = record.access {
            (attributes.mode, attributes.uid, attributes.gid) = (permissions(mode), uid, gid);
        }
        if *attributes == old && after == before {
            return Ok(Aftermath::default());
        }
        attributes.ctime_ns = now_ns;
        let aftermath = Aftermath {
            known: (state.tree.node(slot).lookups > 0).then(|| state.tree.ino(slot)),
            changes: Changes::between(&before, &after),
            has_quota: after.quota.is_some() && after.quota != before.quota,
            wants_copies: after.replicas != before.replicas,
        };
        // It is in force whether or not its record can be written: who is denied something must not see it.
        state.set_policy(slot, after);
        state.tell_clients(slot);
        if let Err(error) = self.persist_directory(state, slot) {
            tracing::warn!(directory = name, %error, "a restart learns what was agreed on about a directory from the cluster alone");
        }
        Ok(aftermath)
    }

    /// Does what takes time after a directory changed.
    fn attend(&self, slot: Slot, aftermath: &Aftermath) {
        let walk = {
            let mut state = self.lock();
            let is_there = aftermath.changes.is_any() && state.tree.directory(slot).is_some();
            is_there.then(|| state.begin_walk(slot, aftermath.changes))
        };
        walk.into_iter().for_each(|walk| self.regroup(walk));
        if let (Some(kernel), Some(ino)) = (self.kernel.get(), aftermath.known) {
            kernel.forget_attributes_now(ino);
        }
        self.forget_names_in_kernel();
        if let Some(side) = self.cluster.get().filter(|_| aftermath.wants_copies) {
            side.cluster.check_copies();
        }
        if aftermath.has_quota {
            self.trim_to_quota(slot);
        }
    }
}
