//! How a directory moves, with everything below it: its entries keep their keys, and only what is counted above them and the
//! policies that they inherit change.
//!
//! Invariants
//! - It is not moved below itself, nor deeper than directories may be, nor over one that something is in.
//! - What it holds counts above its new place from the move on. What has no room there leaves, and what cannot leave stays.
//! - One whose record cannot be written stays where it is.
//!
//! Limit: no directory moves on a member of a cluster, where the keys of other members would have to move along.

use tidefs_engine::types::ByteCount;

use super::super::burial::Doomed;
use super::super::folders::{Change, QuotaInTheWay};
use super::super::regroup::{Changes, Walk};
use super::super::{Datapath, Error, State};
use crate::namespace::{Name, Slot};
use crate::tier::memory::DirectoryRecord;

/// What is left to do for a directory that has its new name, outside the lock.
#[derive(Default)]
pub(super) struct Moved {
    /// What is to be gone through below it.
    pub(super) walk: Option<Walk>,
    /// A file that stood under that name in vain.
    pub(super) overtaken: Option<Doomed>,
}

impl Datapath {
    pub(super) fn rename_directory(
        &self,
        state: &mut State,
        slot: Slot,
        parent: Slot,
        name: Name,
        keep_target: bool,
    ) -> Result<Moved, Error> {
        if state.has_members() {
            // The keys of other members below it would have to move along, one by one.
            return Err(Error::OtherPlace);
        }
        if state.tree.ancestors(parent).any(|ancestor| ancestor == slot) {
            return Err(Error::Invalid("a directory cannot move below itself"));
        }
        let height = state.height_of(slot);
        let levels_above = |slot| state.tree.ancestors(slot).count();
        if levels_above(parent) > levels_above(state.tree.node(slot).parent) {
            state.check_depth(parent, height)?;
        }
        let target = state.tree.child(parent, name.as_bytes());
        if target == Some(slot) {
            return Ok(Moved::default());
        }
        // Whoever looks there finds nothing.
        let overtaken = target.filter(|&target| state.is_overtaken(target));
        let target = target.filter(|_| overtaken.is_none());
        if let Some(target) = target {
            if keep_target {
                return Err(Error::Exists);
            }
            let directory = state.tree.directory(target).ok_or(Error::NotDirectory)?;
            if !directory.children.is_empty() || state.may_hold_unnamed(directory) {
                return Err(Error::NotEmpty);
            }
        }
        let now_ns = self.now_ns();
        self.record_move(state, slot, (parent, &name), target, now_ns)?;
        if let Some(target) = target {
            let id = state.directory_id(target)?;
            self.forget_directory(state, id);
            state.note_name_lost([Some(target)], now_ns);
            state.leave_directory(target);
            state.drop_if_unused(target);
        }
        let overtaken = overtaken.and_then(|overtaken| self.discard_overtaken(state, overtaken));
        let before = state.effective_policy(slot).record;
        let old_parent = state.tree.node(slot).parent;
        let old_domain = state.folders.domain(old_parent);
        state.move_directory(slot, parent, name)?;
        state.raise(parent, height);
        let mut changes = Changes::between(&before, &state.effective_policy(slot).record);
        // A walk that is under way may have come to one of the two places and not to the other.
        let is_walked = !state.walks.is_empty();
        changes.order |= state.folders.domain(parent) != old_domain || is_walked;
        changes.expiries |= is_walked;
        let walk = changes.is_any().then(|| state.begin_walk(slot, changes));
        state.tree.node_mut(slot).attributes.ctime_ns = now_ns;
        for changed in [old_parent, parent] {
            state.tree.node_mut(changed).attributes.written_at(now_ns);
        }
        self.keep_directory(state, slot);
        Ok(Moved { walk, overtaken })
    }

    /// Writes the record that the directory in `slot` has under another name, in place of that of an empty directory there, `target`:
    /// of two with one name a start shows one, and loses what is in the other.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be written: the old records stand.
    fn record_move(
        &self,
        state: &State,
        slot: Slot,
        (parent, name): (Slot, &Name),
        target: Option<Slot>,
        ctime_ns: i64,
    ) -> Result<(), Error> {
        let record = DirectoryRecord {
            parent: state.directory_id(parent)?,
            name: name.as_bytes().to_vec(),
            ctime_ns,
            ..state.directory_record(slot)
        };
        match target {
            Some(target) => self.tier.put_directory_over(&record, state.directory_id(target)?)?,
            None => self.tier.put_directory(&record)?,
        }
        Ok(())
    }

    /// Evicts below each of the directories `limited` down to its quota, for the directory in `slot` that came to be there.
    pub(super) fn fit_moved(&self, slot: Slot, limited: &[Slot]) {
        for &limited in limited {
            // As when a quota is lowered.
            self.trim_below(|state| {
                let in_the_way = state.quota_in_the_way(limited, ByteCount::ZERO, None)?;
                Some(QuotaInTheWay { growing: slot, ..in_the_way })
            });
        }
    }
}

impl State {
    /// Moves a directory with everything below it: what it holds is accounted above its new place.
    fn move_directory(&mut self, slot: Slot, parent: Slot, name: Name) -> Result<(), Error> {
        let folder = self.folder(slot)?;
        let (bytes, objects) = (folder.bytes, folder.objects);
        let (unsealed, guessed) = (folder.unsealed, folder.guessed);
        let old_parent = self.tree.node(slot).parent;
        self.folders.account(&self.tree, old_parent, Change::Take { bytes, objects });
        self.folders.account_unsealed(&self.tree, old_parent, |above| above.take_unsealed(unsealed, guessed));
        self.move_name(slot, parent, name);
        self.folders.account(&self.tree, parent, Change::Add { bytes, objects });
        self.folders.account_unsealed(&self.tree, parent, |above| above.add_unsealed(unsealed, guessed));
        Ok(())
    }
}
