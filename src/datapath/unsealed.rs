//! What unfinished files take of the quotas above them, so that nobody has more room for being slow to seal.
//!
//! A file is unfinished while it is written, while it waits under a temporary name for its rename, while a writer goes on
//! after its seal, and, when it lost its name meanwhile, for as long as somebody has it open. It is counted by what is
//! reserved for it, or by its length where that is more; a version that is written over an object counts only by what it
//! has more than that one, whose place it takes, and so does one that a client of the fast path has begun.
//!
//! Invariants
//! - `Folder::unsealed` is the sum of the charges of the directory and of those below it, and `Folder::guessed` that of
//!   what they have on a guess.
//! - Beside one object one begun file counts at most, for as long as that object is in memory under its name.
//! - What the daemon writes, and what ftruncate(2) and fallocate(2) make, is counted before it has its pages.
//!
//! Limits: what the kernel writes by passthrough beyond the reservation is counted by [`Datapath::count_growth`], which the
//! housekeeping calls, and when a writer closes or renames the file.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use tidefs_engine::types::ByteCount;

use super::folders::Folder;
use super::open_state::OpenState;
use super::room::footprint;
use super::{Datapath, Error, IoPath, Phase, State};
use crate::namespace::{Name, Slot};

/// What unfinished files are counted with.
#[derive(Debug, Default)]
pub(super) struct Charges {
    /// Each of them.
    pub(super) of: HashMap<Slot, Charge>,
    /// The begun file that counts beside an object.
    begun_over: HashMap<Slot, Slot>,
}

/// What one unfinished file is counted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    /// The directory that counts it, with all those above.
    pub(super) directory: Slot,
    /// Bytes, in whole pages.
    pub(super) bytes: ByteCount,
    /// Those of them that were reserved on a guess of its size, beyond its length as it was last seen.
    pub(super) guessed: ByteCount,
    /// The object beside which it counts, of a file that is begun.
    over: Option<Slot>,
}

/// What an unfinished file counts by itself.
fn whole(open: &OpenState) -> ByteCount {
    footprint(open.reserved.max(open.reserved_behind_hole).max(open.claimed))
}

impl State {
    /// Counts the file in `slot` as it is now, or not at all when it is not unfinished any more; and what is written, or begun,
    /// for its place, which counts beside it.
    pub(super) fn recharge(&mut self, slot: Slot) {
        let (next, begun) = (self.next_version(slot), self.charges.begun_over.get(&slot).copied());
        for slot in [Some(slot), next, begun].into_iter().flatten() {
            let now = self.charge_of(slot);
            self.set_charge(slot, now);
        }
    }

    /// Begins to count a file without a name, which is written for `name` in `directory`: beside what stands there, unless
    /// another one does.
    pub(super) fn charge_in(&mut self, slot: Slot, directory: Slot, name: &Name) {
        let over = self.to_be_replaced(directory, name);
        if let Some(old) = over {
            self.charges.begun_over.insert(old, slot);
        }
        let nothing = Charge { directory, bytes: ByteCount::ZERO, guessed: ByteCount::ZERO, over };
        self.set_charge(slot, Some(nothing));
        self.recharge(slot);
    }

    /// The object beside which a file counts that is begun now for its name.
    fn to_be_replaced(&self, directory: Slot, name: &Name) -> Option<Slot> {
        let old = self.tree.child(directory, name.as_bytes())?;
        let is_taken = self.charges.begun_over.contains_key(&old) || self.next_version(old).is_some();
        (!is_taken && self.counted(old) > ByteCount::ZERO).then_some(old)
    }

    /// Bytes of it.
    pub(super) fn counted_for_begun(&self, directory: Slot, name: &Name) -> ByteCount {
        self.to_be_replaced(directory, name).map_or(ByteCount::ZERO, |old| self.counted(old))
    }

    /// Whether a begun file counts beside the object in `slot`, and whole when that is no more.
    pub(super) fn is_beside_begun(&self, slot: Slot) -> bool {
        self.charges.begun_over.contains_key(&slot)
    }

    /// Bytes of the object in `slot` that what takes its place next counts less: none where a begun file does so already, which
    /// counts whole then.
    pub(super) fn discount_left(&self, slot: Slot) -> ByteCount {
        if self.is_beside_begun(slot) { ByteCount::ZERO } else { self.counted(slot) }
    }

    /// Bytes that another version over the object in `slot` counts less, and whether something else counts whole from then on: what is
    /// begun for its place, or what was to take that before, for as long as somebody has it open.
    pub(super) fn discount_of_version(&self, slot: Slot) -> (ByteCount, bool) {
        let is_open = |next: Slot| self.object(next).is_some_and(super::Object::is_open);
        if self.next_version(slot).is_some_and(is_open) {
            return (ByteCount::ZERO, true);
        }
        (self.discount_left(slot), self.is_beside_begun(slot))
    }

    /// Whether the quotas above the object in `slot` have more room without it. As much as it counts, a begun file beside it may
    /// count more then.
    pub(super) fn makes_room(&self, slot: Slot) -> bool {
        let begun = self.charges.begun_over.get(&slot).copied();
        let begun = begun.and_then(|begun| self.object(begun)?.open.as_deref());
        begun.is_none_or(|open| whole(open) < self.counted(slot))
    }

    /// What is in `slot` leaves memory or its name, or is written over: no begun file counts beside it any more, nor does it
    /// beside another one.
    pub(super) fn part_from_begun(&mut self, slot: Slot) {
        if let Some(begun) = self.charges.begun_over.remove(&slot) {
            if let Some(charge) = self.charges.of.get_mut(&begun) {
                charge.over = None;
            }
            self.recharge(begun);
        }
        if let Some(old) = self.charges.of.get_mut(&slot).and_then(|charge| charge.over.take()) {
            self.charges.begun_over.remove(&old);
        }
    }

    /// The file in `from` goes on in `to`.
    pub(super) fn move_charge(&mut self, from: Slot, to: Slot) {
        if let Some(charge) = self.charges.of.remove(&from) {
            self.charges.of.insert(to, charge);
        }
        self.recharge(to);
    }

    /// The node is no more.
    pub(super) fn discharge(&mut self, slot: Slot) {
        self.part_from_begun(slot);
        self.set_charge(slot, None);
    }

    fn set_charge(&mut self, slot: Slot, now: Option<Charge>) {
        let before = match now {
            Some(charge) => self.charges.of.insert(slot, charge),
            None => self.charges.of.remove(&slot),
        };
        if before == now {
            return;
        }
        if let Some(Charge { directory, bytes, guessed, .. }) = before {
            let take = |folder: &mut Folder| folder.take_unsealed(bytes, guessed);
            self.folders.account_unsealed(&self.tree, directory, take);
        }
        if let Some(Charge { directory, bytes, guessed, .. }) = now {
            let add = |folder: &mut Folder| folder.add_unsealed(bytes, guessed);
            self.folders.account_unsealed(&self.tree, directory, add);
        }
    }

    fn charge_of(&self, slot: Slot) -> Option<Charge> {
        let object = self.object(slot).filter(|object| !object.is_slot_file())?;
        let is_unfinished = match object.phase {
            Phase::Writing | Phase::Parked => true,
            Phase::Sealed => object.writers() > 0,
            Phase::Gone => object.is_open() && self.charges.of.contains_key(&slot),
        };
        let open = object.open.as_deref().filter(|_| is_unfinished)?;
        let node = self.tree.get(slot)?;
        let directory = match &open.supersedes {
            Some((parent, _)) => *parent,
            None if !node.is_detached() => node.parent,
            None => self.charges.of.get(&slot)?.directory,
        };
        let whole = whole(open);
        let guessed = open.guessed.saturating_sub(footprint(open.claimed));
        let over = self.charges.of.get(&slot).and_then(|charge| charge.over);
        Some(Charge { directory, bytes: whole.saturating_sub(self.counted_beside(slot)), guessed, over })
    }

    /// Bytes of the sealed object whose place the file in `slot` takes, or which it is.
    fn counted_beside(&self, slot: Slot) -> ByteCount {
        let over = || self.charges.of.get(&slot)?.over;
        self.versions_of(slot).0.or_else(over).map_or(ByteCount::ZERO, |current| self.counted(current))
    }

    /// What the file in `slot` adds to the quotas above it when it has `length` bytes; `None` when none counts it.
    fn growth(&self, slot: Slot, length: ByteCount) -> Option<Charge> {
        let Charge { directory, bytes, over, .. } = *self.charges.of.get(&slot)?;
        let wanted = footprint(length).saturating_sub(self.counted_beside(slot));
        Some(Charge { directory, bytes: wanted.saturating_sub(bytes), guessed: ByteCount::ZERO, over })
    }

    /// Counts the file in `slot` with at least `length` bytes.
    fn claim_length(&mut self, slot: Slot, length: ByteCount) {
        if let Some(open) = self.object_mut(slot).and_then(|object| object.open.as_deref_mut()) {
            open.claimed = open.claimed.max(length);
        }
        self.recharge(slot);
    }

    /// Counts the file in `slot` as long as its backing file is: after passthrough writes, or when it did not get what was
    /// claimed for it.
    pub(super) fn measure(&mut self, slot: Slot) {
        let Some(open) = self.object_mut(slot).and_then(|object| object.open.as_deref_mut()) else { return };
        if let Some(metadata) = open.file.as_ref().and_then(|file| file.metadata().ok()) {
            open.claimed = ByteCount(metadata.len());
        }
        self.recharge(slot);
    }

    /// A directory is about to lose its name: what is open of it without a name counts above it from now on.
    pub(super) fn pass_charges_up(&mut self, directory: Slot) {
        let above = self.tree.node(directory).parent;
        if above == Slot::NONE {
            return;
        }
        // What is empty as well: it may grow.
        let is_below = |charge: &&mut Charge| charge.directory == directory;
        self.charges.of.values_mut().filter(is_below).for_each(|charge| charge.directory = above);
        if let Some(folder) = self.folders.get_mut(directory) {
            (folder.unsealed, folder.guessed) = (ByteCount::ZERO, ByteCount::ZERO);
        }
    }

    /// Unfinished files that the kernel writes and that are below a quota, or rest on a guess, with the backing file of each.
    fn written_by_kernel(&self) -> Vec<(Slot, Arc<File>)> {
        let file_of = |(&slot, charge): (&Slot, &Charge)| {
            let open = self.object(slot)?.open.as_deref().filter(|open| open.passthrough > 0)?;
            let counts = charge.guessed > ByteCount::ZERO || self.has_quota(charge.directory);
            open.file.as_ref().filter(|_| counts).map(|file| (slot, Arc::clone(file)))
        };
        self.charges.of.iter().filter_map(file_of).collect()
    }
}

impl Datapath {
    /// Makes room in the quotas above the file in `slot` for it to have `end` bytes, and counts it with them: with `ahead`
    /// bytes where that costs nobody anything. Returns which of the two.
    ///
    /// When it does not get them after all, [`State::measure`] takes that back.
    pub(super) fn claim(&self, slot: Slot, end: ByteCount, ahead: ByteCount) -> Result<ByteCount, Error> {
        let whole = {
            let mut state = self.lock();
            let has_room =
                |charge: Charge| state.quota_in_the_way(charge.directory, charge.bytes, None).is_none();
            if state.growth(slot, ahead).is_none_or(has_room) {
                state.claim_length(slot, ahead);
                return Ok(ahead);
            }
            footprint(end).saturating_sub(state.counted_beside(slot))
        };
        self.make_room_below(whole, |state| {
            let in_the_way = state
                .growth(slot, end)
                .and_then(|Charge { directory, bytes, .. }| state.quota_in_the_way(directory, bytes, None));
            if in_the_way.is_none() {
                state.claim_length(slot, end);
            }
            in_the_way
        })?;
        Ok(end)
    }

    /// The same for the length that the file in `slot` has by now.
    pub(super) fn claim_all(&self, slot: Slot, length: ByteCount) -> Result<(), Error> {
        self.claim(slot, length, length).map(drop)
    }

    /// Counts what the kernel has written into the file in `slot`, of which the last writer closes, and makes room for it in
    /// the quotas above. Its rename is told what its close is told.
    pub(super) fn fit_what_the_kernel_wrote(&self, slot: Slot) -> Result<(), Error> {
        {
            let mut state = self.lock();
            state.measure(slot);
            let in_the_way =
                |charge: &Charge| state.quota_in_the_way(charge.directory, ByteCount::ZERO, None);
            if state.charges.of.get(&slot).and_then(in_the_way).is_none() {
                return Ok(());
            }
        }
        self.fit_quota(slot).inspect_err(|error| self.note_refusal(slot, error))
    }

    /// Counts what the kernel has written by passthrough into files below a quota, and evicts what has no room beside it; and
    /// what it has written of a guess, which makes room for the next.
    pub fn count_growth(&self) {
        if self.passthrough_writers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let written = self.lock().written_by_kernel();
        for (slot, file) in written {
            let Ok(metadata) = file.metadata() else { continue };
            let directory = {
                let mut state = self.lock();
                let is_it = state.object(slot).and_then(super::Object::file);
                if !is_it.is_some_and(|now| Arc::ptr_eq(now, &file)) {
                    continue;
                }
                let before = state.charges.of.get(&slot).copied();
                state.claim_length(slot, ByteCount(metadata.len()));
                let now = state.charges.of.get(&slot).copied();
                now.filter(|_| now != before).map(|charge| charge.directory)
            };
            if let Some(directory) = directory {
                // Who writes what has no room is told at the close.
                self.trim_to_quota(directory);
            }
        }
    }

    /// Adds up anew what the directories count of unfinished files, and compares. For tests.
    ///
    /// # Panics
    /// When they differ, or when a file is counted that is not unfinished, or otherwise than it is, or in a directory that was
    /// removed.
    pub fn check_charges(&self) {
        let state = self.lock();
        for (&slot, &charge) in &state.charges.of {
            let directory = charge.directory;
            let is_there =
                directory == Slot::ROOT || state.tree.get(directory).is_some_and(|node| !node.is_detached());
            assert!(is_there, "{} counts in a directory that was removed", state.path_text(slot));
            assert_eq!(state.charge_of(slot), Some(charge), "what {} counts with", state.path_text(slot));
        }
        for (slot, node) in state.tree.slots() {
            if let Some(folder) = state.folders.get(slot) {
                let is_below =
                    |charge: &&Charge| state.tree.ancestors(charge.directory).any(|above| above == slot);
                let sum_of = |part: fn(&Charge) -> ByteCount| {
                    state.charges.of.values().filter(is_below).map(|charge| part(charge).get()).sum()
                };
                let path = state.path_text(slot);
                assert_eq!(
                    folder.unsealed,
                    ByteCount(sum_of(|charge| charge.bytes)),
                    "unfinished below {path}"
                );
                assert_eq!(
                    folder.guessed,
                    ByteCount(sum_of(|charge| charge.guessed)),
                    "guessed below {path}"
                );
            } else if !node.is_detached() {
                let is_counted = state.charges.of.contains_key(&slot);
                assert_eq!(is_counted, state.charge_of(slot).is_some(), "{} counts", state.path_text(slot));
            }
        }
        for (&old, begun) in &state.charges.begun_over {
            let over = state.charges.of.get(begun).and_then(|charge| charge.over);
            assert_eq!(over, Some(old), "what counts beside {}", state.path_text(old));
        }
        let handles = state.handles.values().filter(|handle| handle.options.write);
        let kernel = handles.filter(|handle| handle.path == IoPath::Passthrough).count() as u64;
        assert_eq!(
            kernel,
            self.passthrough_writers.load(Ordering::Relaxed),
            "writers that the kernel serves"
        );
    }
}

#[cfg(test)]
mod tests;
