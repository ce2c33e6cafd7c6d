//! A changed policy, applied to everything below: which domain orders what, who leaves first, and when it expires.
//!
//! The policy itself is in force at once, for all that is made, sealed or moved from then on. What is there already is gone
//! through in parts, with the lock let go after each: a million keys keep nobody waiting for longer than a part takes.
//!
//! Invariants
//! - One walk is under way at a time, and each decides by the policies that are in force when it comes to a directory. So
//!   whatever changed during one is put right by the walk of that change, which comes after.
//! - While a directory is gone through, its objects are in two orders: an object whose [`Marks::TURN`] is the directory's
//!   `turn` is in that of `domain`, any other in that of `former`.
//! - A domain lives as long as a directory uses it.
//!
//! Threads: whoever changes the policy goes through it, off those that answer the kernel, and is answered when it is done.
//! Who finds nothing to evict below a quota waits for the walks that lead through its directory, or through something below
//! that, since the objects may not be in its order yet.

use tidefs_engine::types::ByteCount;

use super::below::{Descent, PART, Part};
use super::domains::DomainId;
use super::room::footprint;
use super::{Datapath, Marks, Phase, State};
use crate::namespace::{Ino, Slot};
use crate::tier::eviction::Departure;
use crate::tier::memory::PolicyRecord;

/// What has to be done below a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Other domains, or other ranks within them.
    pub(super) order: bool,
    /// Another time to live.
    pub(super) expiries: bool,
}

impl Changes {
    /// What it takes when one policy, of a directory or in force there, follows another.
    pub(super) fn between(before: &PolicyRecord, after: &PolicyRecord) -> Self {
        let domain = |policy: &PolicyRecord| {
            (policy.quota.is_some() || policy.floor.is_some(), policy.eviction.clone())
        };
        let rank = |policy: &PolicyRecord| (policy.pin, policy.priority);
        Self {
            order: domain(before) != domain(after) || rank(before) != rank(after),
            expiries: before.ttl_s != after.ttl_s,
        }
    }

    /// Whether there is anything to do.
    pub(super) fn is_any(self) -> bool {
        self.order || self.expiries
    }
}

/// A change on its way through a directory and all that is below.
#[derive(Debug)]
pub(super) struct Walk {
    top: Ino,
    changes: Changes,
    descent: Descent,
}

impl Walk {
    fn new(top: Ino, changes: Changes) -> Self {
        Self { top, changes, descent: Descent::from(top) }
    }
}

impl Datapath {
    /// Goes through everything at and below a directory of which the policy changed, or the place.
    pub(super) fn regroup(&self, walk: Walk) {
        let mut walk = walk;
        let one_at_a_time = self.regrouping.lock();
        let part = |state: &mut State| {
            let is_more = state.regroup_part(&mut walk, PART);
            if !is_more {
                state.end_walk(walk.top);
            }
            is_more.then_some(())
        };
        self.in_parts(part, |()| {});
        drop(one_at_a_time);
        self.walked.notify_all();
    }
}

impl State {
    /// Begins a walk, which [`Datapath::regroup`] then goes.
    pub(super) fn begin_walk(&mut self, top: Slot, changes: Changes) -> Walk {
        let top = self.tree.ino(top);
        self.walks.push(top);
        Walk::new(top, changes)
    }

    fn end_walk(&mut self, top: Ino) {
        if let Some(index) = self.walks.iter().position(|&begun| begun == top) {
            self.walks.swap_remove(index);
        }
    }

    /// Whether a walk that is not through may bring objects below `directory` into another order. Of a walk that leads neither
    /// through it nor through anything below, none is: what is moved there meanwhile is gone through by a walk of its own.
    pub(super) fn is_walked(&self, directory: Slot) -> bool {
        let is_at_or_below = |slot: Slot, top: Slot| self.tree.ancestors(slot).any(|above| above == top);
        let mut tops = self.walks.iter().filter_map(|&top| self.tree.by_ino(top));
        tops.any(|top| is_at_or_below(directory, top) || is_at_or_below(top, directory))
    }

    /// The whole walk at once: for a directory without entries, and for a start, when nobody waits.
    pub(super) fn regroup_at_once(&mut self, top: Slot, changes: Changes) {
        let mut walk = Walk::new(self.tree.ino(top), changes);
        while self.regroup_part(&mut walk, PART) {}
    }

    /// Gives each directory with a quota, floor or policy of its own its domain, after all policies are known.
    pub(super) fn renew_domains(&mut self) {
        for slot in self.subtree(Slot::ROOT) {
            if slot != Slot::ROOT && self.folders.get(slot).is_some_and(|folder| folder.wants_domain()) {
                self.regroup_at_once(slot, Changes { order: true, expiries: false });
            }
        }
    }

    /// Goes through up to `limit` nodes more. Returns whether there are others.
    fn regroup_part(&mut self, walk: &mut Walk, limit: usize) -> bool {
        match walk.descent.next(&self.tree, limit) {
            None => return false,
            Some(Part::Enter(slot)) => self.switch_domain(slot),
            Some(Part::Files { directory, files, is_end }) => {
                files.into_iter().for_each(|slot| self.regroup_object(directory, slot, walk.changes));
                if is_end {
                    self.end_former(directory);
                }
            }
            Some(Part::Gone) => {}
        }
        true
    }

    /// Brings one object in line with the policies in force.
    pub(super) fn regroup_object(&mut self, directory: Slot, slot: Slot, changes: Changes) {
        if self.folders.get(directory).is_some_and(|folder| folder.former.is_some()) {
            self.move_to_domain(slot);
        }
        if changes.order {
            self.watch_pin(slot);
            self.refresh_rank(slot);
        }
        if changes.expiries && self.object(slot).is_some_and(|object| object.phase == Phase::Sealed) {
            self.renew_expiry(slot);
        }
    }

    /// Has a directory's objects compete where its policy says, and those that were there before do so one by one.
    fn switch_domain(&mut self, slot: Slot) {
        let Some(folder) = self.folders.get(slot).filter(|_| slot != Slot::ROOT) else { return };
        if self.tree.node(slot).is_detached() {
            return;
        }
        let (own, wants) = (folder.domain, folder.wants_domain());
        let has = self.domains.get(own).directory == slot;
        let policy = self.effective_policy(slot).record.eviction;
        let is_of_policy =
            self.domains.get(own).order.name() == policy.as_deref().unwrap_or(self.default_policy());
        let target = match (wants, has) {
            (true, true) if is_of_policy => own,
            (true, _) => self.domains.add(slot, policy.as_deref()),
            (false, _) => self.folders.domain(self.tree.node(slot).parent),
        };
        if wants {
            let above = self.folders.domain(self.tree.node(slot).parent);
            self.domains.set_nested(target, above != DomainId::ROOT);
        }
        if target == own {
            return;
        }
        self.end_former(slot);
        self.domains.join(target);
        if let Some(folder) = self.folders.get_mut(slot) {
            folder.domain = target;
            folder.former = Some(own);
            folder.turn = !folder.turn;
        }
    }

    /// All objects of a directory are where they belong.
    fn end_former(&mut self, directory: Slot) {
        if let Some(former) = self.folders.get_mut(directory).and_then(|folder| folder.former.take()) {
            self.domains.leave(former);
        }
    }

    /// Moves an object to the order of its directory's domain, if it is in the former one. Its recency is lost: it counts
    /// as just used.
    fn move_to_domain(&mut self, slot: Slot) {
        let is_ordered = self.object(slot).is_some_and(|object| {
            (object.phase == Phase::Sealed && object.is_resident())
                || (object.phase == Phase::Parked && !object.is_slot_file())
        });
        if !is_ordered || self.is_in_turn(slot) {
            return;
        }
        let bytes = self.object(slot).map_or(ByteCount::ZERO, |object| footprint(object.size));
        self.leave_order(slot, bytes, Departure::Gone);
        if let Some(key) = self.key_of(slot) {
            self.enter_order(slot, key, None, bytes);
        }
    }

    /// Whether the object in `slot` has the turn of its directory.
    fn is_in_turn(&self, slot: Slot) -> bool {
        let folder = self.tree.get(slot).and_then(|node| self.folders.get(node.parent));
        let turn = folder.is_some_and(|folder| folder.turn);
        self.object(slot).is_none_or(|object| object.marks.has(Marks::TURN) == turn)
    }

    /// The object in `slot` is about to enter the order of its directory's domain.
    pub(super) fn take_turn(&mut self, slot: Slot) {
        let folder = self.tree.get(slot).and_then(|node| self.folders.get(node.parent));
        let turn = folder.is_some_and(|folder| folder.turn);
        if let Some(object) = self.object_mut(slot) {
            object.marks.set(Marks::TURN, turn);
        }
    }

    /// The domain in which the object in `slot` competes.
    pub(super) fn domain_of(&self, slot: Slot) -> DomainId {
        let folder = self.tree.get(slot).and_then(|node| self.folders.get(node.parent));
        match folder.map(|folder| (folder.domain, folder.former)) {
            Some((_, Some(former))) if !self.is_in_turn(slot) => former,
            Some((domain, _)) => domain,
            None => DomainId::ROOT,
        }
    }

    /// A directory comes to be, with the domain of its parent.
    pub(super) fn enter_folder(&mut self, slot: Slot, policy: PolicyRecord, parent: Slot) {
        let domain = self.folders.domain(parent);
        self.domains.join(domain);
        self.folders.insert(slot, policy, domain);
        self.raise(parent, 0);
    }

    /// An empty directory lost its name: it needs no domain any more.
    pub(super) fn leave_domain(&mut self, slot: Slot) {
        self.end_former(slot);
        self.domains.join(DomainId::ROOT);
        if let Some(folder) = self.folders.get_mut(slot) {
            let own = std::mem::replace(&mut folder.domain, DomainId::ROOT);
            self.domains.leave(own);
        }
    }

    /// A directory is no more.
    pub(super) fn leave_folder(&mut self, slot: Slot) {
        self.leave_domain(slot);
        self.folders.remove(slot);
        self.domains.leave(DomainId::ROOT);
    }

    fn default_policy(&self) -> &'static str {
        self.domains.get(DomainId::ROOT).order.name()
    }

    /// Applies the class and pin in force to one object.
    pub(super) fn refresh_rank(&mut self, slot: Slot) {
        let class = self.class_of(slot);
        let id = self.domain_of(slot);
        self.domains.get_mut(id).order.set_class(super::domains::object_slot(slot), class);
        self.update_hold(slot);
    }
}

impl Datapath {
    /// Compares each domain with the objects that are to be in its order, each time of expiry with the policy in force, and
    /// the number of floors with the directories. For tests.
    ///
    /// # Panics
    /// When they differ, or a walk is under way.
    pub fn check_domains(&self) {
        let state = self.lock();
        assert_eq!(state.walks, [], "walks under way");
        state.folders.check_floors();
        state.domains.check();
        let mut found = std::collections::HashMap::<DomainId, (usize, u64)>::new();
        for (slot, node) in state.tree.slots() {
            if let Some(folder) =
                state.folders.get(slot).filter(|_| !node.is_detached() && slot != Slot::ROOT)
            {
                let has = state.domains.get(folder.domain).directory == slot;
                assert_eq!(has, folder.wants_domain(), "a domain of {}", state.path_text(slot));
                let above = state.folders.domain(node.parent);
                let is_nested = state.domains.nested().any(|id| id == folder.domain);
                assert!(!has || is_nested == (above != DomainId::ROOT), "{}", state.path_text(slot));
                assert!(
                    has || folder.domain == state.folders.domain(node.parent),
                    "{}",
                    state.path_text(slot)
                );
            }
            let Some(object) = state.object(slot).filter(|_| !node.is_detached()) else { continue };
            let is_sealed = object.phase == Phase::Sealed && object.is_resident();
            if is_sealed || (object.phase == Phase::Parked && !object.is_slot_file()) {
                let (count, bytes) = found.entry(state.domain_of(slot)).or_default();
                (*count, *bytes) = (*count + 1, *bytes + footprint(object.size).get());
            }
            if object.phase == Phase::Sealed {
                let ttl = state.effective_policy(slot).record.ttl_s;
                assert_eq!(state.expiry_of.contains_key(&slot), ttl.is_some(), "{}", state.path_text(slot));
            }
        }
        for (id, domain) in state.domains.iter() {
            let (count, bytes) = found.remove(&id).unwrap_or_default();
            assert_eq!((domain.order.len(), domain.bytes.get()), (count, bytes), "the order of {id:?}");
        }
        assert!(found.is_empty(), "objects of domains that are gone: {found:?}");
    }
}
