//! What a member answers and decides for the shards that it serves. Neither I/O nor a clock: what others have to be told is
//! returned.
//!
//! Invariants
//! - The order of the versions of a key is decided by the shard's primary; by the backup only while it holds the primary
//!   for lost. What it decided alone it owes the primary.
//! - Who was answered is told when that changes, for as long as the one who answered serves the shard. Absence may be
//!   remembered only when the primary says it, after it has learned all there is to know.
//! - A primary that may have been passed over answers nothing until it has caught up; who goes by an old view answers nothing
//!   of what others answer for in a later one.

mod changes;
mod learning;
mod left;
mod members;
mod passed;
mod removed;
mod spoken;
mod surplus;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidefs_engine::types::{MemberId, PeerId};

pub use changes::Effects;
use left::{Left, RecentlyLeft};
use passed::Passed;
pub use removed::Expired;
use spoken::Spoken;
pub use surplus::Surplus;

use super::entry::{Entry, Slot};
use super::slots::Slots;
use super::table::{Dropped, Table};
use super::tombstones::Tombstones;
use super::watches::Watches;
use super::wire::{Answered, Known, Revocation};
use crate::cluster::object::{Copy, Facts, Stamp};
use crate::cluster::shards::{KeyId, Shard, ShardMap};

/// Keys that a member is told at once that its copies count.
const HEIRLOOMS: usize = 1024;

/// What this member is to a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It decides.
    Primary,
    /// It decides, since the primary is lost.
    Acting,
    /// It knows the same and decides nothing.
    Backup,
    /// It may have been passed over, and has to catch up first.
    Behind,
    /// Others serve it.
    None,
}

/// What another owner's word did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// What members have to be told.
    pub tell: Vec<(MemberId, Revocation)>,
    /// Keys of which this member knows something later.
    pub ours_later: Vec<KeyId>,
    /// What stands for the other owner with a copy of this member alone, which has let go of it, as that one is to know it.
    pub ended: Vec<(u128, Known)>,
    /// There were keys of shards that it does not serve, as far as it knows: it learned nothing of these.
    pub is_stranger: bool,
}

/// How large a catalog is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Keys with an entry.
    pub entries: usize,
    /// Removals that are remembered.
    pub tombstones: usize,
    /// Names of which it remembers who was answered.
    pub watches: usize,
    /// Bytes of all of it.
    pub bytes: usize,
    /// Shards that it serves and of which it may not know everything.
    pub incomplete_shards: usize,
}

/// The catalog that this member serves.
#[derive(Debug)]
pub struct Owner {
    me: MemberId,
    map: Arc<ShardMap>,
    pub(super) table: Table,
    watches: Watches,
    slots: Slots,
    /// Shards of which it may not know everything, each with the keys of which the other owner was told since what stands there.
    incomplete: BTreeMap<Shard, Spoken>,
    /// What members said meanwhile that they hold no more.
    left: Left,
    /// What this member itself let go of where it decides, by the map that counts. All that it holds there it tells this catalog
    /// first.
    own_left: RecentlyLeft<KeyId>,
    /// Who has still to announce what it holds.
    awaited: BTreeSet<MemberId>,
    /// From which view on.
    awaited_view: u64,
    /// The latest view under which each member has announced all.
    announced: BTreeMap<MemberId, u64>,
    suspects: BTreeSet<MemberId>,
    /// Backups that may have decided without this member, each with the number of the last time that this was noticed.
    behind: BTreeMap<MemberId, u64>,
    falls: u64,
    /// The last publish of each start of a member that was put in order.
    seen: BTreeMap<PeerId, u64>,
    /// When each member was lost last that had heard until then of all that happened before.
    contacts: BTreeMap<MemberId, Duration>,
    /// Members that were lost then and have not told since what they hold: they may come back with earlier versions. While
    /// there are such, the end of a version's last copy is remembered.
    away: BTreeMap<MemberId, Duration>,
    /// Those that were away for longer than removals are remembered, and have not told since what they hold; also when they are not
    /// expected any more, as many as [`Self::forget_member`] keeps.
    disbelieved: BTreeSet<MemberId>,
    /// Members that have announced all that they hold in their latest start.
    settled: BTreeSet<MemberId>,
    /// What others answer for already.
    passed: Passed,
}

impl Owner {
    /// A catalog that serves nothing yet.
    #[must_use]
    pub fn new(me: MemberId, tombstones: Tombstones, watches: Watches) -> Self {
        Self {
            me,
            map: Arc::new(ShardMap::new(&crate::cluster::member::View::default())),
            table: Table::new(tombstones),
            watches,
            slots: Slots::default(),
            incomplete: BTreeMap::new(),
            left: Left::default(),
            own_left: RecentlyLeft::default(),
            awaited: BTreeSet::new(),
            awaited_view: 0,
            announced: BTreeMap::new(),
            suspects: BTreeSet::new(),
            behind: BTreeMap::new(),
            falls: 0,
            seen: BTreeMap::new(),
            contacts: BTreeMap::new(),
            away: BTreeMap::new(),
            disbelieved: BTreeSet::new(),
            settled: BTreeSet::new(),
            passed: Passed::default(),
        }
    }

    fn other_owner(&self, shard: Shard) -> Option<MemberId> {
        let owners = self.map.owners(shard)?;
        if owners.primary == self.me { owners.backup } else { Some(owners.primary) }
    }

    fn copies(&self, entry: &Entry) -> Vec<Copy> {
        // What an earlier start of a member held is its latest one's when that has announced it.
        let is_any_latest = entry.copies.iter().any(|(slot, _)| self.slots.is_latest(slot));
        let counts = |slot: Slot| !is_any_latest || self.slots.is_latest(slot);
        let counted = entry.copies.iter().filter(|&(slot, _)| counts(slot));
        let mut copies: Vec<Copy> = counted
            .filter_map(|(slot, medium)| Some(Copy { member: self.slots.peer(slot)?.member, medium }))
            .collect();
        copies.sort_by_key(|copy| (self.suspects.contains(&copy.member), copy.medium.distance()));
        if !is_any_latest {
            // Two earlier starts of one member may be named for a while.
            let mut named = BTreeSet::new();
            copies.retain(|copy| named.insert(copy.member));
        }
        copies
    }

    fn present(&self, entry: &Entry) -> Answered {
        let facts = entry.facts();
        let copies = if matches!(facts, Facts::File(_)) { self.copies(entry) } else { Vec::new() };
        Answered::Present { stamp: entry.stamp(), facts, copies }
    }

    /// What stands under `key`, for who remembers none of it, and is not told when that changes. Nobody else is shown the version
    /// of a directory.
    #[must_use]
    pub fn look_at(&self, key: KeyId) -> Answered {
        let role = self.role(key.shard());
        match (self.refusal(role), self.table.get(key)) {
            (Some(refusal), _) => refusal,
            (None, Some(entry)) => self.present(entry),
            (None, None) if self.is_incomplete(key.shard()) => Answered::Incomplete,
            (None, None) => Answered::Absent { is_watched: false },
        }
    }

    /// What stands under `path`, for `asker`, which watches it from then on.
    pub fn find(&mut self, asker: PeerId, path: &[u8]) -> Answered {
        let key = KeyId::of(path);
        let answer = match self.look_at(key) {
            // It may be made anew, of which who watches it is not told.
            Answered::Present { facts: facts @ Facts::Directory(_), copies, .. } => {
                Answered::Present { stamp: Stamp(0), facts, copies }
            }
            answer => answer,
        };
        let is_absent = match answer {
            Answered::Present { .. } => false,
            // What a backup says may be remembered by nobody.
            Answered::Absent { .. } if self.role(key.shard()) == Role::Primary => true,
            Answered::Absent { .. } | Answered::Moved | Answered::Incomplete => return answer,
        };
        match self.slots.of(asker) {
            Some(slot) => self.watches.add(key, path, slot),
            None if is_absent => return answer,
            // It would not be told when that changes.
            None => return Answered::Moved,
        }
        if is_absent { Answered::Absent { is_watched: true } } else { answer }
    }

    /// What is told to who watches `key` or holds a copy of what it stood for: that nothing through `through` is valid any
    /// more, or, when that is zero, that it stands for something.
    fn revoke(
        &mut self,
        key: KeyId,
        path: Option<&[u8]>,
        through: Stamp,
        holders: &[Slot],
        but: Option<Slot>,
    ) -> Vec<(MemberId, Revocation)> {
        let watched = self.watches.take(key);
        let path = path.or(watched.as_ref().map(|watched| &*watched.path));
        let mut slots: Vec<Slot> = holders.to_vec();
        slots.extend(watched.iter().flat_map(|watched| &watched.watchers));
        slots.sort_unstable();
        slots.dedup();
        let mut tell = Vec::with_capacity(slots.len());
        for slot in slots.into_iter().filter(|&slot| Some(slot) != but) {
            let Some(peer) = self.slots.peer(slot) else { continue };
            let revocation = match path {
                Some(path) => self.revocation(peer, path.to_vec(), through),
                // Only the key is known: it announces everything, and is told then.
                None => Revocation::AnnounceAgain,
            };
            tell.push((peer.member, revocation));
        }
        tell
    }

    /// What `peer` is told of `path`: that nothing through `through` is valid any more, or, when that is zero, that it stands for
    /// something.
    fn revocation(&self, peer: PeerId, path: Vec<u8>, through: Stamp) -> Revocation {
        if through == Stamp(0) {
            return Revocation::Appeared { path };
        }
        let seen = self.seen.get(&peer).copied().unwrap_or(0);
        Revocation::Withdraw { path, through, seen }
    }

    /// The member whose copy is to be relied on from now on: there are only copies left that leave first.
    fn heir(&self, key: KeyId) -> Option<MemberId> {
        let copies = &self.table.get(key)?.copies;
        let members = || copies.heirs().filter_map(|slot| Some(self.slots.peer(slot)?.member));
        // Who is lost hears of it when it is back, if it is.
        members().find(|member| !self.suspects.contains(member)).or_else(|| members().next())
    }

    /// Forgets the copies of a start of a member in one shard. Returns what is told, and how many copies there were.
    pub fn drop_copies(
        &mut self,
        shard: Shard,
        slot: Slot,
        now: Duration,
    ) -> (Vec<(MemberId, Revocation)>, usize) {
        let Dropped { gone, soft, count } = self.table.drop_copies(shard, slot);
        let lost = self.slots.peer(slot).map(|peer| peer.member);
        let are_others_away = self.away.keys().any(|&member| Some(member) != lost);
        let mut tell = Vec::new();
        for (key, through) in gone {
            if are_others_away {
                self.table.note_end(key, through, now);
            }
            tell.extend(self.revoke(key, None, through, &[], Some(slot)));
        }
        if matches!(self.role(shard), Role::Primary | Role::Acting) {
            tell.extend(self.bequeath(soft));
        }
        (tell, count)
    }

    /// What is told to those whose copies of `keys` are to be relied on from now on.
    fn bequeath(&self, keys: Vec<KeyId>) -> Vec<(MemberId, Revocation)> {
        let mut heirs: BTreeMap<MemberId, Vec<u128>> = BTreeMap::new();
        for key in keys {
            if let Some(heir) = self.heir(key) {
                heirs.entry(heir).or_default().push(key.0);
            }
        }
        let parts = |(heir, keys): (MemberId, Vec<u128>)| {
            let parts: Vec<_> = keys.chunks(HEIRLOOMS).map(<[u128]>::to_vec).collect();
            parts.into_iter().map(move |keys| (heir, Revocation::Inherit { keys }))
        };
        heirs.into_iter().flat_map(parts).collect()
    }

    /// Looks through one shard for keys of which only copies are left that leave first: whoever was to be told of that may
    /// have been lost meanwhile, or have lost this member.
    pub fn find_heirs(&mut self, shard: Shard) -> Vec<(MemberId, Revocation)> {
        if !matches!(self.role(shard), Role::Primary | Role::Acting) || self.is_incomplete(shard) {
            return Vec::new();
        }
        let is_soft = |key: &KeyId| self.table.get(*key).is_some_and(|entry| entry.copies.has_heirs());
        let soft = self.table.keys(shard).filter(is_soft).collect();
        self.bequeath(soft)
    }

    /// Believes nobody any more that this start of a member, or one before it, holds anything. Returns the numbers under
    /// which what they held is to be dropped.
    pub fn forget_start(&mut self, peer: PeerId) -> Vec<Slot> {
        self.slots.forget(peer)
    }

    /// Nothing names that number any more.
    pub fn free_slot(&mut self, slot: Slot) {
        if let Some(peer) = self.slots.peer(slot) {
            self.seen.remove(&peer);
        }
        self.slots.free(slot);
    }

    /// A member is there.
    pub fn meet(&mut self, peer: PeerId) {
        self.slots.meet(peer);
    }

    /// Keys of a shard with an entry.
    pub fn keys(&self, shard: Shard) -> impl Iterator<Item = KeyId> {
        self.table.keys(shard)
    }

    /// How large the catalog is.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let is_incomplete = |shard: &Shard| self.role(*shard) != Role::None && self.is_incomplete(*shard);
        Sizes {
            entries: self.table.len(),
            tombstones: self.table.tombstones().len(),
            watches: self.watches.len(),
            bytes: self.table.bytes() + self.watches.bytes(),
            incomplete_shards: Shard::all().filter(is_incomplete).count(),
        }
    }

    /// Copies that it names the latest start of each member for.
    #[must_use]
    pub fn copies_by_member(&self) -> BTreeMap<MemberId, usize> {
        let copies = self.table.copies();
        let of_member = |peer: PeerId| {
            let slot = self.slots.of_member(peer.member)?;
            Some((peer.member, copies.get(slot.index()).copied().unwrap_or_default()))
        };
        self.slots.latest().filter_map(of_member).collect()
    }
}
