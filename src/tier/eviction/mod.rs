//! Who leaves when a tier is full.
//!
//! A policy orders the objects of one domain: of directories that compete by it for the same room. It decides only; the datapath
//! removes. All calls are made under the datapath's lock, so a policy needs no locking of its own and never blocks.
//!
//! Invariants
//! - [`Eviction::victim`] is exact: among evictable objects no other has a lower rank, at every call.
//! - A held object (open, pinned, still written) is never a victim, and keeps its recency while held.
//! - Dropping out and coming back is remembered by key alone (the ghost), never by object.

pub mod chain;
pub mod ghost;
mod heap;
pub mod leaf_bonus;
pub mod lru;
pub mod s3fifo;
pub mod standing;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod replay;

use std::fmt;

use tidefs_engine::types::KeyHash;

use standing::Standing;

/// Index of an object in the daemon's object table. Reused only after the object left every policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectSlot(pub u32);

/// Which objects go before which others, whatever their recency. Lower classes leave first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RetentionClass(pub u8);

impl RetentionClass {
    /// Copies of what other members hold that were hardly read: before everything else.
    pub const PASSING_COPY: Self = Self(0);
    /// Closed temporary files whose rename did not come: no object at all.
    pub const ABANDONED: Self = Self(0);
    /// Copies of what other members hold.
    pub const SOFT_COPY: Self = Self(1);
    /// Objects without a policy of their own (`user.tidefs.priority` 0). The lowest priority, -100, is above all copies.
    pub const NORMAL: Self = Self(102);
    /// Soft-pinned objects: after everything of a lower class is gone.
    pub const SOFT_PIN: Self = Self(254);
}

/// Why an object leaves a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Evicted for room: the ghost remembers it.
    Evicted,
    /// Deleted, replaced or expired: nothing is remembered.
    Gone,
}

/// An exact order of eviction over the objects of one domain.
pub trait Eviction: Send + fmt::Debug {
    /// The policy's name as configuration and `status` spell it.
    fn name(&self) -> &'static str;

    /// Adds a sealed object. `predecessor` is the object before it in its chain, when that is known and cached.
    /// An object is added once until it is removed; its first touch is now.
    fn insert(
        &mut self,
        object: ObjectSlot,
        key: KeyHash,
        predecessor: Option<ObjectSlot>,
        class: RetentionClass,
    );

    /// Counts a use of `object`, now. Unknown objects are ignored.
    fn touch(&mut self, object: ObjectSlot);

    /// Excludes an object from eviction, or admits it again, without counting a use.
    fn set_held(&mut self, object: ObjectSlot, held: bool);

    /// Moves an object to another class, keeping its recency and frequency.
    fn set_class(&mut self, object: ObjectSlot, class: RetentionClass);

    /// Takes an object out. Unknown objects are ignored.
    fn remove(&mut self, object: ObjectSlot, departure: Departure);

    /// The object to evict next, or `None` when nothing is evictable. Removes nothing.
    fn victim(&mut self) -> Option<ObjectSlot>;

    /// The next `limit` objects in the order in which they would be evicted, for people to look at.
    fn coldest(&mut self, limit: usize) -> Vec<ObjectSlot>;

    /// Where the object stands in the order of eviction, held or not; see [`standing`].
    fn standing(&self, object: ObjectSlot) -> Option<Standing>;

    /// Clock value of the object's last touch; counts touches, so larger is more recent.
    fn last_touch(&self, object: ObjectSlot) -> Option<u64>;

    /// Whether [`Eviction::coldest`] costs no more than its answer is long.
    fn lists_cheaply(&self) -> bool {
        true
    }

    /// Tells how many objects a lower tier holds: the ghost remembers at least twice as many as both tiers do.
    fn set_below(&mut self, _objects: usize) {}

    /// Objects in the policy, held ones included.
    fn len(&self) -> usize;

    /// Whether no object is in the policy.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Heap bytes of the policy's own tables, ghost included.
    fn memory_bytes(&self) -> usize;
}

const LEAF_BONUS: &str = "leaf_bonus";
const LRU: &str = "lru";
const S3FIFO: &str = "s3fifo";

/// Names of all policies, the default first.
pub const POLICY_NAMES: [&str; 3] = [LEAF_BONUS, LRU, S3FIFO];

/// Parameters of every policy; each takes its own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EvictionParameters {
    /// Of `leaf_bonus`.
    pub leaf_bonus: leaf_bonus::LeafBonusParameters,
    /// Of `s3fifo`.
    pub s3fifo: s3fifo::S3FifoParameters,
}

/// An empty policy by its name, or `None` for a name that is not in [`POLICY_NAMES`].
#[must_use]
pub fn policy_by_name(name: &str, parameters: &EvictionParameters) -> Option<Box<dyn Eviction>> {
    match name {
        LEAF_BONUS => Some(Box::new(leaf_bonus::LeafBonus::new(parameters.leaf_bonus))),
        LRU => Some(Box::new(lru::Lru::new())),
        S3FIFO => Some(Box::new(s3fifo::S3Fifo::new(parameters.s3fifo))),
        _ => None,
    }
}
