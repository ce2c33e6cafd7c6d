//! Quotas and floors: what a directory may hold at most, and what is left to it when others need room.
//!
//! Invariants
//! - A quota counts what is in memory below its directory, and unfinished files, in whole pages.
//! - A floor is of sealed objects alone. What grows below the same floor may take from it.

use hashbrown::HashSet;
use tidefs_engine::types::{ByteCount, PAGE};

use super::super::room::footprint;
use super::super::{Object, Phase, State};
use super::Folder;
use crate::namespace::{Name, Slot};

/// A quota that something would pass.
#[derive(Clone, Copy, Debug)]
pub(in crate::datapath) struct QuotaInTheWay {
    /// Where that grows: at or below `limited`.
    pub(in crate::datapath) growing: Slot,
    /// The directory that has the quota.
    pub(in crate::datapath) limited: Slot,
    /// The quota.
    pub(in crate::datapath) quota: ByteCount,
}

impl State {
    /// The nearest directory at or above `directory` whose quota `more` bytes would pass. Directories at and above
    /// `counted_in` count the bytes already.
    pub(in crate::datapath) fn quota_in_the_way(
        &self,
        directory: Slot,
        more: ByteCount,
        counted_in: Option<Slot>,
    ) -> Option<QuotaInTheWay> {
        // What is above one that counts them does so too.
        let counting: HashSet<Slot> =
            counted_in.into_iter().flat_map(|counted| self.tree.ancestors(counted)).collect();
        let mut growing = self.tree.ancestors(directory).take_while(|ancestor| !counting.contains(ancestor));
        growing.find_map(|limited| {
            let folder = self.folders.get(limited)?;
            let quota = folder.policy.quota?;
            let used = folder.bytes.saturating_add(folder.unsealed);
            let in_the_way = QuotaInTheWay { growing: directory, limited, quota };
            (used.saturating_add(more) > quota).then_some(in_the_way)
        })
    }

    /// Whether the object in `victim` may leave for what grows in `growing`: the directories above it that have a floor hold
    /// that much without it, or hold `growing` too and so pay for themselves.
    ///
    /// A floor is of all objects below its directory. Closed temporary files that nobody came for are none.
    pub(in crate::datapath) fn may_leave_for(&self, victim: Slot, growing: Slot) -> bool {
        if !self.folders.has_floors() {
            return true;
        }
        let Some(object) = self.object(victim).filter(|object| object.phase == Phase::Sealed) else {
            return true;
        };
        // An empty one makes no room.
        let bytes = footprint(object.size).max(PAGE);
        let is_broken = |folder: &Folder| {
            folder.policy.floor.is_some_and(|floor| folder.bytes < floor.saturating_add(bytes))
        };
        let mut above = self.tree.ancestors(victim);
        above.all(|directory| {
            !self.folders.get(directory).is_some_and(is_broken)
                || self.tree.ancestors(growing).any(|ancestor| ancestor == directory)
        })
    }

    /// Bytes of the object in `slot` that the quotas above it count: of one that is in memory.
    pub(in crate::datapath) fn counted(&self, slot: Slot) -> ByteCount {
        let is_counted = |object: &&Object| object.phase == Phase::Sealed && object.is_resident();
        self.object(slot).filter(is_counted).map_or(ByteCount::ZERO, |object| footprint(object.size))
    }

    /// The same of what stands under a name, whose place a new object takes, as far as no begun file has it already.
    pub(in crate::datapath) fn counted_under(&self, parent: Slot, name: &Name) -> ByteCount {
        self.tree.child(parent, name.as_bytes()).map_or(ByteCount::ZERO, |slot| self.discount_left(slot))
    }

    /// Whether `directory` or one above it has a quota.
    pub(in crate::datapath) fn has_quota(&self, directory: Slot) -> bool {
        self.tree.ancestors(directory).any(|ancestor| self.has_own_quota(ancestor))
    }

    /// Those of `directory` and the ones above it that have a quota, nearest first.
    pub(in crate::datapath) fn quotas_above(&self, directory: Slot) -> Vec<Slot> {
        self.tree.ancestors(directory).filter(|&ancestor| self.has_own_quota(ancestor)).collect()
    }

    fn has_own_quota(&self, directory: Slot) -> bool {
        self.folders.get(directory).is_some_and(|folder| folder.policy.quota.is_some())
    }
}
