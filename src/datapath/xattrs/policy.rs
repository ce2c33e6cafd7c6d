//! The values of `user.tidefs.*`: policies, which are set on a directory or an object, or inherited; and facts.
//!
//! Invariants
//! - A policy that could not be kept is not in force either.
//! - What is set on an object whose next version is being written is set on that, too.

use super::super::domains::DomainId;
use super::super::policy_text::{RECOMPUTE, apply, is_settable, written};
use super::super::regroup::Changes;
use super::super::{Datapath, Error, Object, Phase, Place, State};
use crate::namespace::{Ino, Slot};
use crate::tier::memory::{Pin, PolicyRecord};

impl Datapath {
    /// Whether there is a value. That of a checksum is not taken for it: it is of all bytes of the object.
    pub(super) fn has_value(&self, ino: Ino, key: &str) -> bool {
        if key == "checksum" { self.may_have_checksum(ino) } else { self.policy_value(ino, key).is_ok() }
    }

    pub(super) fn policy_value(&self, ino: Ino, key: &str) -> Result<String, Error> {
        if key == "checksum" {
            let checksum = self.checksum(ino)?.ok_or(Error::NoAttribute)?;
            return Ok(format!("xxh3-64:{:016x}", checksum.0));
        }
        let state = self.lock();
        let slot = state.slot_of(ino)?;
        let policy = state.effective_policy(slot).record;
        let is_file = state.object(slot).is_some();
        match key {
            "policy" => Some(state.domains.get(state.domain_for_reading(slot)).order.name().to_owned()),
            "tier" if is_file => state.object(slot).map(|object| tier_text(object).to_owned()),
            "version" if is_file => state.object(slot).map(|object| object.version.to_string()),
            "why" if is_file => Some(state.why_text(slot)),
            _ => written(&policy, key),
        }
        .ok_or(Error::NoAttribute)
    }

    /// Whether a policy is set on the node itself.
    pub(super) fn has_own_policy(&self, ino: Ino, key: &str) -> Result<bool, Error> {
        let state = self.lock();
        let slot = state.slot_of(ino)?;
        let mut own = match state.folders.get(slot) {
            Some(folder) => folder.policy.clone(),
            None => state.object(slot).map(Object::policy).unwrap_or_default(),
        };
        // Taking it out of a copy tells whether it was there; what is no policy is refused by the caller's next step.
        Ok(apply(&mut own, key, None).unwrap_or(false))
    }

    /// Sets, or with `None` removes, one policy of a directory, or of an object that is in memory.
    pub(in crate::datapath) fn change_policy(
        &self,
        ino: Ino,
        key: &str,
        value: Option<&str>,
    ) -> Result<(), Error> {
        is_settable(key)?;
        self.with_room_for(ino, || self.set_own_policy(ino, key, value))
    }

    fn set_own_policy(&self, ino: Ino, key: &str, value: Option<&str>) -> Result<(), Error> {
        let mut state = self.lock();
        let slot = state.slot_in_use(ino)?;
        if state.object(slot).is_some_and(Object::is_on_ssd_alone) {
            // It was to be brought back before, and could not be. Its record on disk would say nothing of this.
            return Err(Error::NoObject);
        }
        let is_directory = state.tree.directory(slot).is_some();
        if !is_directory && matches!(key, "quota" | "floor" | "policy" | "scratch" | "durability" | RECOMPUTE)
        {
            return Err(Error::Invalid("this policy is set on directories"));
        }
        let before = match state.folders.get(slot) {
            Some(folder) => folder.policy.clone(),
            None => state.object(slot).map(Object::policy).unwrap_or_default(),
        };
        let mut after = before.clone();
        let changed = apply(&mut after, key, value)?;
        if !changed {
            return Err(Error::NoAttribute);
        }
        let now_ns = self.now_ns();
        if key == "pin" {
            // One that is set again counts from now, too.
            let has_end = !is_directory && matches!(after.pin, Some(Pin::Soft { ttl_s: Some(_) }));
            after.pinned_at_ns = has_end.then_some(now_ns);
        }
        let is_other = after != before;
        let changes = Changes::between(&before, &after);
        state.set_policy(slot, after);
        state.tree.node_mut(slot).attributes.ctime_ns = now_ns;
        let persisted = if is_directory {
            self.persist_directory(&mut state, slot)
        } else {
            self.rewrite_record(&mut state, slot)
        };
        if let Err(error) = persisted {
            state.set_policy(slot, before);
            return Err(error);
        }
        if let Some(next) = state.next_version(slot).filter(|_| is_other) {
            let mut after = state.object(next).map(Object::policy).unwrap_or_default();
            if apply(&mut after, key, value)? {
                state.set_policy(next, after);
            }
        }
        let quota = state.folders.get(slot).and_then(|folder| folder.policy.quota);
        let walk = (is_directory && changes.is_any()).then(|| state.begin_walk(slot, changes));
        if !is_directory {
            let parent = state.tree.node(slot).parent;
            state.regroup_object(parent, slot, Changes { order: true, expiries: key == "ttl" });
        }
        drop(state);
        walk.into_iter().for_each(|walk| self.regroup(walk));
        if let Some(side) = self.cluster.get().filter(|_| key == "replicas") {
            side.cluster().check_copies();
        }
        if key == "quota" && quota.is_some() {
            // A quota below what is there takes effect by evicting down to it.
            self.trim_to_quota(slot);
        }
        Ok(())
    }
}

/// Which tier an object is in, as `user.tidefs.tier` spells it.
pub(in crate::datapath) fn tier_text(object: &Object) -> &'static str {
    match (&object.place, object.phase) {
        (Place::Scratch(_), _) => "scratch",
        (_, Phase::Writing | Phase::Parked) => "writing",
        (Place::Packed(_), _) => "packed",
        (Place::Solo(_) | Place::Freed, _) => "memory",
        (Place::Ssd, _) => "ssd",
        (Place::Remote, _) => "remote",
    }
}

impl State {
    pub(in crate::datapath) fn set_policy(&mut self, slot: Slot, policy: PolicyRecord) {
        let policy_of_object = self.folders.set_policy(slot, policy);
        if let Some((object, policy)) = self.object_mut(slot).zip(policy_of_object) {
            object.open_mut().policy = policy;
            object.settle();
        }
    }

    /// The domain that orders the objects directly in a directory, or a file among its siblings.
    fn domain_for_reading(&self, slot: Slot) -> DomainId {
        if self.folders.get(slot).is_some() { self.folders.domain(slot) } else { self.domain_of(slot) }
    }

    fn why_text(&self, slot: Slot) -> String {
        let Some(object) = self.object(slot) else { return String::new() };
        match object.phase {
            Phase::Writing => {
                "being written: hidden from others until its last writer closes or renames it".to_owned()
            }
            Phase::Parked if object.is_slot_file() => {
                "a slot file: on the disk of this host, until its name or its daemon goes".to_owned()
            }
            Phase::Parked => "a closed temporary file: becomes an object when it is renamed".to_owned(),
            Phase::Gone => "without a name: kept for whoever has it open".to_owned(),
            Phase::Sealed => format!("present in {}", tier_text(object)),
        }
    }
}
