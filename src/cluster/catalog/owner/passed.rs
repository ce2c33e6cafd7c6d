//! Shards that others answer for though the view that says so has not come here: who is not heard by the coordinator goes on
//! with an old view, and must not answer by it.

use std::collections::{BTreeMap, BTreeSet};

use tidefs_engine::types::MemberId;

use super::super::wire::Answered;
use super::{Owner, Role};
use crate::cluster::shards::{SHARDS, Shard};

/// What others said of views that may not have come here.
#[derive(Debug)]
pub(super) struct Passed {
    /// The coordinator has lost this member, and others serve what it served.
    is_out: bool,
    /// For each shard the latest view of which somebody said that it answers for it.
    claimed: Box<[u64]>,
    /// The latest of all of them.
    latest: u64,
    /// Shards that were forgotten and not told whole since, with those that were asked to tell all of it once more.
    forgotten: BTreeMap<Shard, BTreeSet<MemberId>>,
}

impl Default for Passed {
    fn default() -> Self {
        Self {
            is_out: false,
            claimed: vec![0; usize::from(SHARDS)].into(),
            latest: 0,
            forgotten: BTreeMap::new(),
        }
    }
}

impl Owner {
    /// What it is to `shard`.
    #[must_use]
    pub fn role(&self, shard: Shard) -> Role {
        if self.passed.is_out || self.is_claimed(shard) {
            return Role::None;
        }
        let Some(owners) = self.map.owners(shard) else { return Role::None };
        if owners.primary == self.me {
            let is_behind = owners.backup.is_some_and(|backup| self.behind.contains_key(&backup));
            if is_behind { Role::Behind } else { Role::Primary }
        } else if owners.backup == Some(self.me) {
            if self.suspects.contains(&owners.primary) { Role::Acting } else { Role::Backup }
        } else {
            Role::None
        }
    }

    /// Somebody answers for `shards` in that view. When this returns nothing is decided here by an earlier one.
    pub fn note_claim(&mut self, shards: impl Iterator<Item = Shard>, view: u64) {
        for shard in shards {
            let claimed = &mut self.passed.claimed[usize::from(shard.number())];
            *claimed = view.max(*claimed);
        }
        self.passed.latest = view.max(self.passed.latest);
    }

    /// Whether somebody answers for `shard` in a later view than this one goes by.
    #[must_use]
    pub fn is_claimed(&self, shard: Shard) -> bool {
        self.passed.claimed[usize::from(shard.number())] > self.map.view
    }

    /// Whether it has to know what somebody who goes by `view` tells of `shard`.
    pub(super) fn has_to_know(&self, shard: Shard, view: u64) -> bool {
        let is_current = !self.is_claimed(shard) || view > self.map.view;
        !self.passed.is_out && is_current && self.map.is_served_by(shard, self.me)
    }

    /// Whether the coordinator has lost this member, or its daemon ends, so that it serves nothing.
    pub fn set_out(&mut self, is_out: bool) {
        self.passed.is_out = is_out;
        self.own_left.forget_all();
    }

    /// Others may have decided about `shards` meanwhile: what stood or ended there does not count any more, and is learned anew.
    /// Removals do.
    pub fn forget_passed(&mut self, shards: impl Iterator<Item = Shard>) {
        let shards: BTreeSet<Shard> = shards.collect();
        if shards.is_empty() {
            return;
        }
        self.table.ends_mut().retain(|key| !shards.contains(&key.shard()));
        for shard in shards {
            self.table.forget_shard(shard);
            self.passed.forgotten.insert(shard, BTreeSet::new());
        }
    }

    /// Whether all is known of `shard` when `from` says that it has told all. What it told before the shard was forgotten is
    /// forgotten, too: who says so first since then may mean that, and tells all of it once more.
    pub(super) fn is_told_whole(&mut self, shard: Shard, from: MemberId) -> bool {
        let is_whole = self.passed.forgotten.get_mut(&shard).is_none_or(|asked| !asked.insert(from));
        if is_whole {
            self.passed.forgotten.remove(&shard);
        }
        is_whole
    }

    /// Whether others may have found another backup for what this one knows as one. It learns what it is told, and answers
    /// nothing.
    fn may_be_replaced(&self, role: Role) -> bool {
        role == Role::Backup && self.passed.latest > self.map.view
    }

    /// What is answered whatever stands there, if anything is.
    pub(super) fn refusal(&self, role: Role) -> Option<Answered> {
        match role {
            Role::None => Some(Answered::Moved),
            role if self.may_be_replaced(role) => Some(Answered::Moved),
            Role::Behind => Some(Answered::Incomplete),
            Role::Primary | Role::Acting | Role::Backup => None,
        }
    }
}
