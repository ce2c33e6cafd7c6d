//! Victims: which object leaves next, for whoever grows.
//!
//! Each domain has its own exact order (`tier/eviction`); here is said whose order is asked. Nothing is looked at of domains
//! that are not asked: there may be one for each of thousands of directories.

use tidefs_engine::types::ByteCount;

use super::burial::Doomed;
use super::domains::DomainId;
use super::history::Ending;
use super::{Object, State};
use crate::namespace::Slot;
use crate::tier::eviction::Departure;

/// Objects of a domain that are looked at when a floor keeps the coldest.
const LOOKED_AT: usize = 64;

/// Objects that are passed over for one request, as their leaving makes no room: what comes behind is not worth the time under the
/// lock.
const PASSED_OVER_MAX: usize = 64;

impl State {
    /// The object that leaves next when `directory` grows.
    ///
    /// Whose domain holds more than its share pays first, the grower before others; then whoever holds most above
    /// its share. A floor is never broken for somebody else: [`State::may_leave_for`].
    pub(super) fn victim_anywhere(&mut self, directory: Slot) -> Option<Slot> {
        // What another member has a copy of goes before what nobody else has, whoever grows. So does a temporary file that no
        // rename came for, which may be before it.
        let soft = self.domains.with_soft().into_iter().find_map(|id| {
            let victim = self.victim_for(id, directory);
            victim.filter(|&slot| self.leaves_first(slot) || self.is_abandoned(slot))
        });
        let grower = self.folders.domain(directory);
        let has_more = self.domains.get(grower).bytes > self.share_of(grower);
        soft.or_else(|| has_more.then(|| self.victim_for(grower, directory)).flatten())
            .or_else(|| self.victim_of_largest(directory))
            // It may be all of files without a byte.
            .or_else(|| self.victim_for(grower, directory))
            .or_else(|| {
                let ids: Vec<DomainId> = self.domains.iter().map(|(id, _)| id).collect();
                self.victim_behind_a_larger_one(&ids, directory)
            })
    }

    /// The first object of some domains that a floor lets go, where it keeps the coldest, which is too large to go.
    fn victim_behind_a_larger_one(&mut self, ids: &[DomainId], growing: Slot) -> Option<Slot> {
        if !self.folders.has_floors() {
            return None;
        }
        ids.iter().find_map(|&id| {
            let order = &mut self.domains.get_mut(id).order;
            let next = if order.lists_cheaply() { order.coldest(LOOKED_AT) } else { Vec::new() };
            let may_go = |slot: &Slot| {
                !self.object(*slot).is_some_and(Object::is_open) && self.may_leave_for(*slot, growing)
            };
            next.into_iter().map(|object| Slot(object.0)).find(may_go)
        })
    }

    /// What a domain may hold before others pay for it: its floor, or as much as any.
    fn share_of(&self, id: DomainId) -> ByteCount {
        let folder = self.folders.get(self.domains.get(id).directory);
        folder.and_then(|folder| folder.policy.floor).unwrap_or_else(|| self.domains.fair_share())
    }

    /// The object that leaves next of the domain that holds most above its share and has one.
    fn victim_of_largest(&mut self, directory: Slot) -> Option<Slot> {
        let mut floored = self.above_floors();
        floored.sort_unstable();
        let fair = self.domains.fair_share();
        let mut largest = self.next_without_floor(None);
        loop {
            let excess = largest.map(|(bytes, _)| bytes.saturating_sub(fair));
            let id = match floored.last() {
                Some(&(most, id)) if excess.is_none_or(|excess| most > excess) => {
                    floored.pop();
                    id
                }
                _ => {
                    let (_, id) = largest?;
                    largest = self.next_without_floor(largest);
                    id
                }
            };
            if let Some(victim) = self.victim_for(id, directory) {
                return Some(victim);
            }
        }
    }

    /// What the domains of directories with a floor hold above it.
    fn above_floors(&self) -> Vec<(ByteCount, DomainId)> {
        let mut found = Vec::new();
        for (slot, floor) in self.folders.floors() {
            let Some(folder) = self.folders.get(slot) else { continue };
            for id in [Some(folder.domain), folder.former].into_iter().flatten() {
                let domain = self.domains.get(id);
                if domain.directory == slot {
                    found.push((domain.bytes.saturating_sub(floor), id));
                }
            }
        }
        found
    }

    /// The next domain after `previous`, by what they hold, whose directory has no floor.
    fn next_without_floor(&self, previous: Option<(ByteCount, DomainId)>) -> Option<(ByteCount, DomainId)> {
        let has_floor = |id: DomainId| {
            let folder = self.folders.get(self.domains.get(id).directory);
            folder.is_some_and(|folder| folder.policy.floor.is_some())
        };
        let mut next = self.domains.next_largest(previous);
        while next.is_some_and(|(_, id)| has_floor(id)) {
            next = self.domains.next_largest(next);
        }
        next
    }

    /// The object that leaves next in the domain `id`, if no floor keeps it from what grows in `growing`.
    fn victim_for(&mut self, id: DomainId, growing: Slot) -> Option<Slot> {
        self.victim_of(id).filter(|&victim| self.may_leave_for(victim, growing))
    }

    fn victim_of(&mut self, id: DomainId) -> Option<Slot> {
        loop {
            let victim = self.domains.get_mut(id).order.victim().map(|object| Slot(object.0))?;
            if !self.object(victim).is_some_and(Object::is_open) {
                return Some(victim);
            }
            // Taking a reference does not exclude an object from eviction; being met here does.
            self.update_hold(victim);
        }
    }

    /// The object that leaves next below `top`, which has a domain of its own, for what grows in `growing`.
    fn victim_below(&mut self, top: Slot, growing: Slot) -> Option<Slot> {
        let is_below = |id: &DomainId| {
            self.tree.ancestors(self.domains.get(*id).directory).any(|ancestor| ancestor == top)
        };
        let mut ids: Vec<DomainId> = if top == Slot::ROOT {
            self.domains.iter().map(|(id, _)| id).collect()
        } else {
            let own = std::iter::once(self.folders.domain(top));
            own.chain(self.domains.nested()).filter(is_below).collect()
        };
        ids.sort_unstable_by_key(|&id| std::cmp::Reverse(self.domains.get(id).bytes));
        let first = ids.iter().find_map(|&id| self.victim_for(id, growing));
        first.or_else(|| self.victim_behind_a_larger_one(&ids, growing))
    }

    /// The same of what makes room in the quota of `top` by leaving. What comes before it and makes none is held from now on, and
    /// is in `passed_over` for [`State::update_hold`]: under pressure of memory it leaves like any other.
    pub(super) fn victim_in_quota(
        &mut self,
        top: Slot,
        growing: Slot,
        passed_over: &mut Vec<Slot>,
    ) -> Option<Slot> {
        loop {
            let victim = self.victim_below(top, growing)?;
            if passed_over.len() >= PASSED_OVER_MAX || self.makes_room(victim) {
                return Some(victim);
            }
            self.hold(victim);
            passed_over.push(victim);
        }
    }

    pub(super) fn count_eviction(&mut self, victim: Slot) {
        let namespace = self.namespace_of(victim);
        if let Some(folder) = self.folders.get_mut(namespace) {
            folder.evicted += 1;
        }
    }

    /// Its record goes with its bytes, a moment after the lock, which writers wait for. A daemon that is killed in that moment may
    /// bring it back under a name that was written and removed since.
    pub(super) fn evict_object(&mut self, victim: Slot, now_ns: i64, ending: Ending) -> Doomed {
        self.count_eviction(victim);
        self.remove_object(victim, Departure::Evicted, Some((now_ns, ending)))
    }
}
