//! Eviction domains: which objects compete with which.
//!
//! All objects compete in one order, so that the coldest of the whole cache leaves first, whatever directories a
//! client spreads its keys over. A directory with a quota, a floor or a policy of its own gets a domain of its own:
//! its objects are ordered among themselves, and who grows pays (docs/adr/0003-eviction-domains.md).
//!
//! Invariants
//! - A victim is found without a look at every domain, of which there may be thousands: those that hold something
//!   are kept in the order of what they hold, and those that have soft copies, or are below others, are known.
//! - A domain lives as long as a directory uses it, and nobody else has its id for longer than the lock is held: the id of one
//!   that has ended is never met. Where it is met all the same it stands for the root's domain, or for one that came after it.

use std::collections::BTreeSet;

use tidefs_engine::types::{ByteCount, KeyHash};

use super::{Marks, Phase, State};
use crate::namespace::Slot;
use crate::tier::eviction::{Departure, Eviction, EvictionParameters, ObjectSlot, policy_by_name};

/// How eviction is done where no directory says otherwise.
#[derive(Debug, Clone)]
pub struct EvictionSettings {
    /// Name of the policy.
    pub policy: String,
    /// Its parameters.
    pub parameters: EvictionParameters,
}

/// Index of a domain, which another one has when it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DomainId(u32);

impl DomainId {
    /// After every other in order.
    const LAST: Self = Self(u32::MAX);
    /// The domain of everything that has no other.
    pub(super) const ROOT: Self = Self(0);
}

/// Objects that compete with each other.
#[derive(Debug)]
pub(super) struct Domain {
    /// The directory that it is the domain of.
    pub(super) directory: Slot,
    /// The order.
    pub(super) order: Box<dyn Eviction>,
    /// Bytes of its objects, in whole pages.
    pub(super) bytes: ByteCount,
    /// Its objects that are soft copies.
    pub(super) soft: u64,
    /// Directories whose objects are in its order.
    folders: u32,
}

/// All domains.
#[derive(Debug)]
pub(super) struct Domains {
    all: Vec<Option<Domain>>,
    settings: EvictionSettings,
    /// Those that hold something, by how much.
    by_bytes: BTreeSet<(ByteCount, DomainId)>,
    /// Those that have soft copies.
    with_soft: BTreeSet<DomainId>,
    /// Those whose directory is below that of another one that is not the root's.
    nested: BTreeSet<DomainId>,
    /// What all of them hold.
    bytes: ByteCount,
    /// How many there are.
    count: u64,
    /// Objects on SSD.
    below: usize,
}

pub(super) fn object_slot(slot: Slot) -> ObjectSlot {
    ObjectSlot(slot.0)
}

impl Domains {
    pub(super) fn new(settings: &EvictionSettings) -> Self {
        let mut domains = Self {
            all: Vec::new(),
            settings: settings.clone(),
            by_bytes: BTreeSet::new(),
            with_soft: BTreeSet::new(),
            nested: BTreeSet::new(),
            bytes: ByteCount::ZERO,
            count: 0,
            below: 0,
        };
        domains.add(Slot::ROOT, None);
        domains
    }

    pub(super) fn root(&self) -> DomainId {
        DomainId::ROOT
    }

    /// Makes a domain for `directory`, ordered by the policy named `policy` or the default one.
    pub(super) fn add(&mut self, directory: Slot, policy: Option<&str>) -> DomainId {
        let name = policy.unwrap_or(&self.settings.policy);
        let order = policy_by_name(name, &self.settings.parameters)
            .or_else(|| policy_by_name(&self.settings.policy, &self.settings.parameters))
            .expect("the configured policy was validated when the daemon started");
        let domain = Some(Domain { directory, order, bytes: ByteCount::ZERO, soft: 0, folders: 0 });
        self.count += 1;
        let free = self.all.iter().position(Option::is_none);
        let index = free.unwrap_or(self.all.len());
        if free.is_some() {
            self.all[index] = domain
        } else {
            self.all.push(domain)
        }
        DomainId(u32::try_from(index).expect("one domain per directory, and directories are fewer than 2^32"))
    }

    /// One more directory has objects in its order.
    pub(super) fn join(&mut self, id: DomainId) {
        self.get_mut(id).folders += 1;
    }

    /// A directory has no objects in its order any more. With the last one the domain goes; the root's stays.
    pub(super) fn leave(&mut self, id: DomainId) {
        let domain = self.get_mut(id);
        debug_assert!(domain.folders > 0, "more directories leave {id:?} than have joined it");
        domain.folders = domain.folders.saturating_sub(1);
        if domain.folders == 0 && id != DomainId::ROOT && self.all[id.0 as usize].is_some() {
            self.change_bytes(id, |_| ByteCount::ZERO);
            self.with_soft.remove(&id);
            self.nested.remove(&id);
            self.count -= 1;
            self.all[id.0 as usize] = None;
        }
    }

    /// Changes what a domain holds.
    pub(super) fn change_bytes(&mut self, id: DomainId, change: impl FnOnce(ByteCount) -> ByteCount) {
        let id = self.living(id);
        let before = self.get(id).bytes;
        let now = change(before);
        self.get_mut(id).bytes = now;
        self.bytes = self.bytes.saturating_sub(before).saturating_add(now);
        self.by_bytes.remove(&(before, id));
        if now > ByteCount::ZERO {
            self.by_bytes.insert((now, id));
        }
    }

    /// Counts a soft copy in a domain, or takes one out.
    fn change_soft(&mut self, id: DomainId, is_there: bool) {
        let id = self.living(id);
        let soft = &mut self.get_mut(id).soft;
        *soft = if is_there { *soft + 1 } else { soft.saturating_sub(1) };
        if *soft > 0 {
            self.with_soft.insert(id);
        } else {
            self.with_soft.remove(&id);
        }
    }

    /// Whether the directory of a domain is below that of another one that is not the root's.
    pub(super) fn set_nested(&mut self, id: DomainId, is_nested: bool) {
        if is_nested {
            self.nested.insert(id);
        } else {
            self.nested.remove(&id);
        }
    }

    /// Those for which that is so.
    pub(super) fn nested(&self) -> impl Iterator<Item = DomainId> {
        self.nested.iter().copied()
    }

    /// Those that have soft copies.
    pub(super) fn with_soft(&self) -> Vec<DomainId> {
        self.with_soft.iter().copied().collect()
    }

    /// The one that holds most of those that come after `previous` in that order, which begins with `None`.
    pub(super) fn next_largest(
        &self,
        previous: Option<(ByteCount, DomainId)>,
    ) -> Option<(ByteCount, DomainId)> {
        let end = previous.unwrap_or((ByteCount(u64::MAX), DomainId::LAST));
        self.by_bytes.range(..end).next_back().copied()
    }

    /// An equal part of what all hold.
    pub(super) fn fair_share(&self) -> ByteCount {
        ByteCount(self.bytes.get() / self.count.max(1))
    }

    /// `id`, or the root's when it has ended, which is a bug.
    fn living(&self, id: DomainId) -> DomainId {
        let is_there = self.all[id.0 as usize].is_some();
        debug_assert!(is_there, "{id:?} has ended, and somebody goes by it");
        if is_there { id } else { DomainId::ROOT }
    }

    pub(super) fn get(&self, id: DomainId) -> &Domain {
        let id = self.living(id);
        self.all[id.0 as usize].as_ref().expect("the root's domain stays, and others were just seen")
    }

    pub(super) fn get_mut(&mut self, id: DomainId) -> &mut Domain {
        let id = self.living(id);
        self.all[id.0 as usize].as_mut().expect("the root's domain stays, and others were just seen")
    }

    /// About the next `limit` objects in the orders of all domains that list them cheaply: of those that hold most, when
    /// there are more domains than that.
    pub(super) fn coldest(&mut self, limit: usize) -> Vec<Slot> {
        let mut largest: Vec<DomainId> = self.by_bytes.iter().rev().take(limit).map(|&(_, id)| id).collect();
        largest.retain(|&id| self.get(id).order.lists_cheaply());
        let share = limit / largest.len().max(1);
        let next = largest.into_iter().flat_map(|id| self.get_mut(id).order.coldest(share));
        next.map(|object| Slot(object.0)).collect()
    }

    /// The next `limit` objects in the order of a domain, at most an eighth of them, so that none is among them that was
    /// just used; none if it does not list them cheaply.
    pub(super) fn coldest_of(&mut self, id: DomainId, limit: usize) -> Vec<Slot> {
        let order = &mut self.get_mut(id).order;
        let limit = limit.min(order.len() / 8);
        let next = if order.lists_cheaply() { order.coldest(limit) } else { Vec::new() };
        next.into_iter().map(|object| Slot(object.0)).collect()
    }

    /// So many objects are on SSD.
    pub(super) fn set_below(&mut self, objects: usize) {
        self.below = objects;
    }

    /// Tells the order of a domain about how many objects it has on SSD: as large a part of them as of what is in memory. So all
    /// of them together remember no more than one would.
    fn tell_below(&mut self, id: DomainId) {
        let (own, all) = (self.get(id).bytes.get(), self.bytes.get().max(1));
        let part = self.below as u128 * u128::from(own) / u128::from(all);
        self.get_mut(id).order.set_below(usize::try_from(part).unwrap_or(usize::MAX));
    }

    /// Compares what is known of all with each. For tests.
    pub(super) fn check(&self) {
        let held = |(id, domain): (DomainId, &Domain)| {
            (domain.bytes > ByteCount::ZERO).then_some((domain.bytes, id))
        };
        assert_eq!(self.by_bytes, self.iter().filter_map(held).collect::<BTreeSet<_>>(), "what domains hold");
        let soft = |(id, domain): (DomainId, &Domain)| (domain.soft > 0).then_some(id);
        assert_eq!(
            self.with_soft,
            self.iter().filter_map(soft).collect::<BTreeSet<_>>(),
            "domains with soft copies"
        );
        let is_used = |(id, domain): (DomainId, &Domain)| id == DomainId::ROOT || domain.folders > 0;
        assert!(self.iter().all(is_used), "a domain that no directory uses");
        let bytes = self.iter().map(|(_, domain)| domain.bytes.get()).sum();
        assert_eq!((self.bytes, self.count), (ByteCount(bytes), self.iter().count() as u64), "all domains");
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (DomainId, &Domain)> {
        self.all.iter().zip(0u32..).filter_map(|(domain, index)| Some((DomainId(index), domain.as_ref()?)))
    }
}

impl State {
    /// Enters a sealed or parked object into the order of its domain. `bytes`: what it occupies.
    pub(super) fn enter_order(
        &mut self,
        slot: Slot,
        key: KeyHash,
        predecessor: Option<Slot>,
        bytes: ByteCount,
    ) {
        self.take_turn(slot);
        let class = self.class_of(slot);
        let held = self.is_held(slot);
        let id = self.domain_of(slot);
        let predecessor = predecessor.filter(|&other| self.domain_of(other) == id).map(object_slot);
        self.domains.change_bytes(id, |held| held.saturating_add(bytes));
        self.domains.get_mut(id).order.insert(object_slot(slot), key, predecessor, class);
        if held {
            self.domains.get_mut(id).order.set_held(object_slot(slot), true);
            self.note_hold(slot);
        }
        if self.is_soft(slot) {
            self.count_soft(slot, true);
        }
    }

    /// The object is held, maybe by references alone: then it is admitted again when the last one is given back.
    fn note_hold(&mut self, slot: Slot) {
        if let Some(object) = self.object_mut(slot).filter(|object| object.references > 0) {
            object.marks.set(Marks::HELD, true);
        }
    }

    /// Takes an object out of the order of its domain; it still has its name.
    pub(super) fn leave_order(&mut self, slot: Slot, bytes: ByteCount, departure: Departure) {
        self.settle_ahead(slot, false);
        if self.is_soft(slot) {
            self.count_soft(slot, false);
        }
        let id = self.domain_of(slot);
        if departure == Departure::Evicted {
            self.domains.tell_below(id);
        }
        self.domains.change_bytes(id, |held| held.saturating_sub(bytes));
        self.domains.get_mut(id).order.remove(object_slot(slot), departure);
    }

    /// Counts the soft copy in `slot` in its domain, or takes it out.
    pub(super) fn count_soft(&mut self, slot: Slot, is_there: bool) {
        let id = self.domain_of(slot);
        self.domains.change_soft(id, is_there);
    }

    /// Whether an object may not be evicted: it is open, pinned, being replaced, or waits for its rename.
    fn is_held(&self, slot: Slot) -> bool {
        let Some(object) = self.object(slot) else { return false };
        let is_superseded = object.open.as_ref().is_some_and(|open| open.next_version.is_some());
        object.is_open()
            || is_superseded
            || self.awaits_rename(slot)
            || self.effective_policy(slot).is_hard_pinned()
    }

    /// The object may not be evicted until [`State::update_hold`].
    pub(super) fn hold(&mut self, slot: Slot) {
        let id = self.domain_of(slot);
        self.domains.get_mut(id).order.set_held(object_slot(slot), true);
    }

    /// Brings "may not be evicted" up to date after handles or pins changed.
    pub(super) fn update_hold(&mut self, slot: Slot) {
        if self.object(slot).is_none() {
            return;
        }
        let held = self.is_held(slot);
        let id = self.domain_of(slot);
        self.domains.get_mut(id).order.set_held(object_slot(slot), held);
        if held {
            self.note_hold(slot);
        }
    }

    /// Whether the object is a closed temporary file that is still kept for its rename.
    fn awaits_rename(&self, slot: Slot) -> bool {
        self.parked.contains_key(&slot)
    }

    /// Whether the object is a closed temporary file that no rename came for in time.
    pub(super) fn is_abandoned(&self, slot: Slot) -> bool {
        self.object(slot).is_some_and(|object| object.phase == Phase::Parked) && !self.awaits_rename(slot)
    }

    /// Counts a use of an object.
    pub(super) fn touch(&mut self, slot: Slot) {
        let id = self.domain_of(slot);
        let is_admitted = self.is_soft(slot).then(|| self.class_of(slot));
        let order = &mut self.domains.get_mut(id).order;
        order.touch(object_slot(slot));
        if let Some(class) = is_admitted {
            order.set_class(object_slot(slot), class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::eviction::RetentionClass;

    /// None but the root's.
    fn no_domains() -> Domains {
        Domains::new(&EvictionSettings {
            policy: "lru".to_owned(),
            parameters: EvictionParameters::default(),
        })
    }

    #[test]
    fn of_more_domains_than_are_listed_those_that_hold_most_are() {
        let mut domains = no_domains();
        for index in 1..=10 {
            let id = domains.add(Slot(index), None);
            domains.join(id);
            let objects = [2 * index, 2 * index + 1].map(ObjectSlot);
            for object in objects {
                let key = KeyHash(object.0.into());
                domains.get_mut(id).order.insert(object, key, None, RetentionClass::NORMAL);
            }
            domains.change_bytes(id, |_| ByteCount(index.into()));
        }
        assert_eq!(domains.coldest(3), [20, 18, 16].map(Slot));
        assert_eq!(domains.coldest(20).len(), 20);
        domains.check();
    }

    fn one_domain() -> (Domains, DomainId) {
        let mut domains = no_domains();
        let id = domains.add(Slot(1), None);
        domains.join(id);
        (domains, id)
    }

    #[test]
    fn a_domain_ends_with_the_last_directory_that_uses_it() {
        let (mut domains, id) = one_domain();
        domains.join(id);
        domains.leave(id);
        assert_eq!(domains.get(id).directory, Slot(1));
        domains.leave(id);
        assert_eq!(domains.iter().count(), 1, "that of the root stays");
        domains.check();
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "has ended")]
    fn who_goes_by_the_id_of_a_domain_that_has_ended_is_noticed() {
        let (mut domains, id) = one_domain();
        domains.leave(id);
        domains.change_bytes(id, |_| ByteCount(1));
    }
}
