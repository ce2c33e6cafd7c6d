//! Copies that are kept for others: fetched because another member asked for it, and as good as the original.

use std::sync::Arc;

use tidefs_engine::types::{ByteCount, MemberId};
use tokio::runtime::Handle;

use super::super::{Datapath, Need, Object, Phase, Place, State};
use super::member::SCANNED_MAX;
use super::stamp_of;
use crate::cluster::shards::KeyId;
use crate::cluster::{Copy, Facts, Holding, Medium, REPLICAS_MAX, Stamp, Unkept, Wish, is_told_of};
use crate::namespace::{Ino, Name, Slot};

/// How many copies there are of what says nothing else.
const REPLICAS: u8 = 1;

impl State {
    /// How many members are to hold the object in `slot`.
    pub(super) fn replicas(&self, slot: Slot) -> u8 {
        self.effective_policy(slot).record.replicas.unwrap_or(REPLICAS).clamp(REPLICAS, REPLICAS_MAX)
    }

    /// The object in `slot` follows `predecessor` in its chain: both have one head.
    pub(in crate::datapath) fn note_head(&mut self, slot: Slot, predecessor: Option<Slot>) {
        if !self.has_members() {
            return;
        }
        if let Some(head) = predecessor.map(|before| self.head_of(before)) {
            let ino = self.tree.ino(slot);
            self.elsewhere.heads.put(ino, head);
        }
    }

    /// The head of the chain that the object in `slot` belongs to, as far as it is known; else its own key.
    pub(super) fn head_of(&mut self, slot: Slot) -> KeyId {
        let ino = self.tree.ino(slot);
        self.elsewhere.heads.get(&ino).copied().unwrap_or_else(|| KeyId::of(&self.tree.path(slot)))
    }

    /// Has other members hold the sealed object in `slot` too, if its policy wants that. Nobody waits for it.
    pub(in crate::datapath) fn wish_for_copies(&mut self, slot: Slot) {
        let Some(cluster) = self.elsewhere.cluster.clone() else { return };
        let replicas = self.replicas(slot);
        let Some(stamp) = self.sealed_stamp(slot).filter(|_| replicas > 1) else { return };
        let size = self.object(slot).map(|object| object.size).unwrap_or_default();
        let head = self.head_of(slot);
        cluster.wish(Wish { path: self.tree.path(slot), stamp, size, replicas, head });
    }

    /// What this host holds in `slot`, as it tells other members.
    pub(super) fn holding(&self, slot: Slot) -> Option<Holding> {
        let node = self.tree.get(slot)?;
        if slot == Slot::ROOT || node.is_detached() || self.remote_size(slot).is_some() {
            return None;
        }
        let (stamp, facts) = self.facts_for_members(slot)?;
        let is_on_ssd = |object: &Object| matches!(object.place, Place::Ssd);
        let medium = match self.object(slot) {
            Some(object) if is_on_ssd(object) => Medium::Ssd,
            Some(_) if self.is_soft(slot) => Medium::Soft,
            _ => Medium::Memory,
        };
        Some(Holding { path: self.tree.path(slot), stamp, facts, medium })
    }
}

impl Datapath {
    /// What this host holds in `slot`, unless it has a temporary name, or too long a path: nobody else hears of that.
    pub(super) fn told_holding(&self, state: &State, slot: Slot) -> Option<Holding> {
        let is_temporary = || state.object(slot).is_some() && self.is_temporary(&state.tree.name(slot));
        state.holding(slot).filter(|holding| is_told_of(&holding.path) && !is_temporary())
    }

    /// Everything that other members may not have, the hottest first, and its bytes. Callers are served in between.
    pub(super) fn hottest(&self) -> (Vec<u64>, ByteCount) {
        let mut bytes = ByteCount::ZERO;
        let mut found: Vec<(i64, Slot)> = Vec::new();
        let mut next = Slot(0);
        loop {
            let state = self.lock();
            let mut scanned = 0;
            for (slot, node) in state.tree.slots_from(next).take(SCANNED_MAX) {
                scanned += 1;
                next = Slot(slot.0.saturating_add(1));
                let Some(holding) =
                    self.told_holding(&state, slot).filter(|holding| holding.medium.is_hard())
                else {
                    continue;
                };
                if let Facts::File(facts) = holding.facts {
                    bytes = bytes.saturating_add(facts.size);
                }
                found.push((node.attributes.atime_ns, slot));
            }
            if scanned < SCANNED_MAX {
                break;
            }
        }
        found.sort_unstable_by_key(|&(used_ns, slot)| (std::cmp::Reverse(used_ns), slot));
        (found.into_iter().map(|(_, slot)| u64::from(slot.0)).collect(), bytes)
    }

    /// What lies in a place that [`Datapath::hottest`] named, if it is still something that others may not have.
    pub(super) fn holding_at(&self, place: u64) -> Option<Holding> {
        let state = self.lock();
        let slot = Slot(u32::try_from(place).ok()?);
        self.told_holding(&state, slot).filter(|holding| holding.medium.is_hard())
    }

    /// Fetches what `from` wants to be here too, and keeps it as long as what was written here.
    pub(super) async fn keep_for_peer(
        self: Arc<Self>,
        runtime: Handle,
        path: Vec<u8>,
        stamp: Stamp,
        (replicas, head): (u8, KeyId),
        from: MemberId,
    ) -> Result<ByteCount, Unkept> {
        let mut parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let name = parts.pop().ok_or(Unkept::Gone)?;
        let mut parent = Ino::ROOT;
        for part in parts {
            parent = self.child_or_ask(parent, part).await.ok_or(Unkept::NotNow)?;
        }
        let ino = self.child_or_ask(parent, name).await.ok_or(Unkept::NotNow)?;
        let keeping = runtime.spawn_blocking(move || {
            let kept = self.keep_here(ino, stamp, (replicas, head), from);
            if kept.is_err() {
                self.unshow_if_unknown(ino);
            }
            kept
        });
        // A panic in there is logged by its thread.
        keeping.await.unwrap_or(Err(Unkept::NotNow))
    }

    /// The inode of a name, which other members are asked for if it is not known here.
    async fn child_or_ask(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        let child = || {
            let state = self.lock();
            let slot = state.tree.child(state.tree.by_ino(parent)?, name)?;
            Some(state.tree.ino(slot))
        };
        if child().is_none()
            && let Ok(name) = Name::new(name)
        {
            self.ask(vec![(parent, name)]).await;
        }
        child()
    }

    fn keep_here(
        &self,
        ino: Ino,
        stamp: Stamp,
        (replicas, head): (u8, KeyId),
        from: MemberId,
    ) -> Result<ByteCount, Unkept> {
        let side = self.cluster.get().ok_or(Unkept::NotNow)?;
        let was_here = {
            let mut state = self.lock();
            let slot = state.tree.by_ino(ino).ok_or(Unkept::Gone)?;
            if state.tree.directory(slot).is_some() {
                state.hold_directory(slot);
                return Ok(ByteCount::ZERO);
            }
            let object = state.object(slot).filter(|object| object.phase == Phase::Sealed);
            let object = object.ok_or(Unkept::NotNow)?;
            if stamp_of(object) != stamp {
                return Err(Unkept::Gone);
            }
            if let Some(copies) = state.elsewhere.copies.get_mut(&slot)
                && !copies.iter().any(|copy| copy.member == from)
            {
                // What it was said before may be old.
                copies.push(Copy { member: from, medium: Medium::Memory });
            }
            state.remote_size(slot).is_none()
        };
        if !self.load_for_peer(ino, Need::Copy, side.fetch_limit) {
            return Err(Unkept::NotNow);
        }
        let mut state = self.lock();
        let slot = state.tree.by_ino(ino).ok_or(Unkept::Gone)?;
        if state.sealed_stamp(slot) != Some(stamp) || state.remote_size(slot).is_some() {
            return Err(Unkept::NotNow);
        }
        let was_soft = state.harden(slot);
        state.elsewhere.heads.put(ino, head);
        if replicas > 1 && state.replicas(slot) != replicas {
            let mut policy = state.object(slot).map(Object::policy).unwrap_or_default();
            policy.replicas = Some(replicas);
            state.set_policy(slot, policy);
        }
        if (was_soft || replicas > 1)
            && let Err(error) = self.rewrite_record(&mut state, slot)
        {
            tracing::warn!(%error, "a restart will not know how many copies of an object there are to be");
        }
        let medium = if state.object(slot).is_some_and(|object| object.is_resident()) {
            Medium::Memory
        } else {
            Medium::Ssd
        };
        side.cluster.hold(&state.tree.path(slot), stamp, medium);
        let came = state.object(slot).filter(|_| !was_here);
        Ok(came.map(|object| object.size).unwrap_or_default())
    }

    /// Takes an object of other members that nobody here asked for out of the tree again.
    fn unshow_if_unknown(&self, ino: Ino) {
        let mut state = self.lock();
        if let Some(slot) = state.tree.by_ino(ino).filter(|&slot| state.tree.node(slot).lookups == 0) {
            state.unshow(slot);
        }
    }
}
