//! What one open control file holds, and how it is given back: by the client, or by its end.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tidefs_engine::memory::Mapping;
use tidefs_engine::types::{ByteCount, SegmentId};

use super::batch::Batch;
use super::remains::Remains;
use super::{LOCKED_AT_ONCE, Located};
use crate::datapath::afterwards::Afterwards;
use crate::datapath::burial::Doomed;
use crate::datapath::rights::Credentials;
use crate::datapath::{Datapath, Marks, Phase, State};
use crate::namespace::{Ino, Name, Slot};

/// References that one session may hold.
pub const REFERENCES_MAX: usize = 1 << 20;

/// Objects that one session may have begun.
pub const CREATES_MAX: usize = 4096;

/// Part of the capacity that a client may keep from being evicted although it has no use for it any more.
const KEPT_BACK_SHARE: u64 = 64;

/// Bits of a reference that count within its batch.
const INDEX_BITS: u32 = 16;

/// An object that a client writes into a segment.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) slot: Slot,
    pub(super) segment: SegmentId,
    /// The directory in which it will stand.
    pub(super) parent: Ino,
    pub(super) name: Name,
    /// Length of its segment.
    pub(super) size: ByteCount,
    pub(super) file: Arc<File>,
}

/// A segment that a client owns.
#[derive(Clone, Debug)]
pub(super) struct Area {
    pub(super) file: Arc<File>,
    /// The same memory, for the kernel to copy from and into. Its client writes there whenever it likes, so no part is borrowed.
    pub(super) memory: Arc<Mapping>,
    pub(super) length: ByteCount,
}

#[derive(Debug, Default)]
pub(super) struct Holdings {
    batches: HashMap<u64, Batch>,
    references: usize,
    pub(super) begun: BTreeMap<u64, Begun>,
    pub(super) areas: HashMap<SegmentId, Area>,
}

/// An open control file.
#[derive(Debug)]
pub struct Session {
    credentials: Credentials,
    /// Whether it was opened to write. One that was not, as through a read-only mount, makes and changes nothing.
    may_write: bool,
    /// A mutex: held while references are entered or taken out, never while an object is looked up.
    pub(super) holdings: Mutex<Holdings>,
    next_batch: AtomicU64,
    /// How many retired segments its client was told of.
    retired_seen: AtomicU64,
}

impl Session {
    /// Who opened it.
    #[must_use]
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Whether by it something may be made or changed.
    ///
    /// # Errors
    /// [`Located::Denied`].
    pub(super) fn check_write(&self) -> Result<(), Located> {
        if self.may_write { Ok(()) } else { Err(Located::Denied) }
    }

    /// How many references and begun objects it holds, and how many bytes what is begun and its areas have.
    pub(super) fn held(&self) -> (usize, ByteCount) {
        let holdings = self.holdings.lock();
        let areas = holdings.areas.values().map(|area| area.length);
        let begun = holdings.begun.values().map(|begun| begun.size);
        let bytes = begun.chain(areas).fold(ByteCount::ZERO, ByteCount::saturating_add);
        (holdings.references + holdings.begun.len(), bytes)
    }

    /// Bytes of which begun objects are cut when they are sealed, each with its reference and its length.
    #[must_use]
    pub fn surplus(&self, seals: impl Iterator<Item = (u64, ByteCount)>) -> ByteCount {
        let holdings = self.holdings.lock();
        let surplus_of = |(reference, length): (u64, ByteCount)| {
            let begun = holdings.begun.get(&reference)?;
            Some(begun.size.saturating_sub(length))
        };
        seals.filter_map(surplus_of).fold(ByteCount::ZERO, ByteCount::saturating_add)
    }

    /// References that may still be taken.
    pub(super) fn references_left(&self) -> usize {
        REFERENCES_MAX.saturating_sub(self.holdings.lock().references)
    }

    /// The first reference of a new batch.
    pub(super) fn next_batch(&self) -> u64 {
        self.next_batch.fetch_add(1, Ordering::Relaxed) << INDEX_BITS
    }

    /// Enters the references of a batch, of which the first is `first`.
    pub(super) fn enter(&self, first: u64, mut batch: Batch) {
        if batch.held() > 0 {
            batch.compact();
            let mut holdings = self.holdings.lock();
            holdings.references += batch.held();
            holdings.batches.insert(first >> INDEX_BITS, batch);
        }
    }

    /// Takes references out that follow each other.
    fn take(&self, first: u64, count: u64, taken: &mut Vec<Slot>) {
        let index = u32::try_from(first & ((1 << INDEX_BITS) - 1)).unwrap_or(u32::MAX);
        let end = index.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        let mut holdings = self.holdings.lock();
        let Some(batch) = holdings.batches.get_mut(&(first >> INDEX_BITS)) else { return };
        let before = taken.len();
        batch.take(index..end, taken);
        let is_empty = batch.held() == 0;
        holdings.references -= taken.len() - before;
        if is_empty {
            holdings.batches.remove(&(first >> INDEX_BITS));
        }
    }

    /// Takes all references out.
    pub(super) fn take_all(&self) -> Vec<Slot> {
        let mut holdings = self.holdings.lock();
        holdings.references = 0;
        std::mem::take(&mut holdings.batches).into_values().flat_map(Batch::into_held).collect()
    }

    /// Whether segments were retired that its client was not told of.
    #[must_use]
    pub fn retired_seen(&self) -> u64 {
        self.retired_seen.load(Ordering::Relaxed)
    }

    /// Its client was told.
    pub fn set_retired_seen(&self, seen: u64) {
        self.retired_seen.store(seen, Ordering::Relaxed);
    }
}

impl Datapath {
    /// Begins a session with the rights of whoever opens the control file, to write or to read alone.
    #[must_use]
    pub fn begin_session(&self, credentials: Credentials, may_write: bool) -> Session {
        let seen = self.fast.segments.lock().retired_total();
        Session {
            credentials,
            may_write,
            holdings: Mutex::default(),
            next_batch: AtomicU64::new(1),
            retired_seen: AtomicU64::new(seen),
        }
    }

    /// Bytes of objects whose references a client may keep back for a while, to return them together.
    #[must_use]
    pub fn kept_back_max(&self) -> ByteCount {
        ByteCount(self.settings.capacity.get() / KEPT_BACK_SHARE)
    }

    /// Whether segments were retired of which the session's client does not know.
    #[must_use]
    pub fn has_retired_for(&self, session: &Session) -> bool {
        self.fast.segments.lock().retired_total() > session.retired_seen()
    }

    /// Gives references back: `(first, count)` of each range. What is not held is passed over.
    pub fn give_back(&self, session: &Session, ranges: impl Iterator<Item = (u64, u64)>) -> Remains {
        let mut taken = Vec::new();
        ranges.for_each(|(first, count)| session.take(first, count, &mut taken));
        self.end_references(&taken)
    }

    /// As [`Datapath::give_back`], of objects that were used since they were looked up.
    pub fn give_back_used(&self, session: &Session, ranges: impl Iterator<Item = (u64, u64)>) -> Remains {
        let mut taken = Vec::new();
        ranges.for_each(|(first, count)| session.take(first, count, &mut taken));
        for some in taken.chunks(LOCKED_AT_ONCE) {
            let mut state = self.lock();
            for &slot in some {
                // What lost its name since is in no order.
                if state
                    .object(slot)
                    .is_some_and(|object| object.phase == Phase::Sealed && object.is_resident())
                {
                    state.touch(slot);
                }
            }
        }
        self.end_references(&taken)
    }

    /// Gives up objects that were begun.
    pub fn abort(&self, session: &Session, ranges: impl Iterator<Item = (u64, u64)>) -> Remains {
        let mut remains = Remains::default();
        for (first, count) in ranges {
            let begun: Vec<Begun> = {
                let mut holdings = session.holdings.lock();
                let last = first.saturating_add(count);
                let known: Vec<u64> = holdings.begun.range(first..last).map(|(&id, _)| id).collect();
                known.into_iter().filter_map(|id| holdings.begun.remove(&id)).collect()
            };
            remains.doomed.reserve(begun.len());
            remains.doomed.extend(begun.iter().filter_map(|begun| self.take_out(begun)));
        }
        self.free_what_is_little(remains)
    }

    /// The control file is closed, or its last holder died.
    pub fn end_session(&self, session: &Session) {
        self.end_session_until(session, || false);
    }

    /// The same. What is left when `is_stopping` says so is for the next start.
    pub(super) fn end_session_until(&self, session: &Session, is_stopping: impl Fn() -> bool) {
        let Holdings { batches, begun, areas, .. } = std::mem::take(&mut *session.holdings.lock());
        let held: Vec<Slot> = batches.into_values().flat_map(Batch::into_held).collect();
        let remains = self.end_references(&held);
        self.free_remains_until(remains, &is_stopping);
        for begun in begun.into_values() {
            if is_stopping() {
                return;
            }
            self.telemetry.fast_abandoned.increment();
            self.give_up(&begun);
        }
        areas.into_keys().for_each(|segment| self.free_area(segment));
    }

    /// Ends references, which no session has any more.
    pub(super) fn drop_references(&self, slots: &[Slot]) {
        for some in slots.chunks(LOCKED_AT_ONCE) {
            self.carry_out(self.drop_some(some));
        }
    }

    /// The same. Frees what of it is to be freed only if that is little.
    pub(super) fn end_references(&self, slots: &[Slot]) -> Remains {
        let mut remains = Remains::default();
        for some in slots.chunks(LOCKED_AT_ONCE) {
            let mut afterwards = self.drop_some(some);
            remains.places.append(&mut afterwards.places);
            self.carry_out(afterwards);
        }
        self.free_what_is_little(remains)
    }

    /// Ends as many references as are ended under the lock at once. Returns what is to be done then.
    fn drop_some(&self, slots: &[Slot]) -> Afterwards {
        let (mut state, mut afterwards) = (self.lock(), Afterwards::default());
        slots.iter().for_each(|&slot| self.drop_reference(&mut state, slot, &mut afterwards));
        afterwards
    }

    fn drop_reference(&self, state: &mut State, slot: Slot, afterwards: &mut Afterwards) {
        // A node with a reference is not freed, so this is the one that the reference was taken of.
        let Some(object) = state.object_mut(slot) else { return };
        object.references = object.references.saturating_sub(1);
        if object.references > 0 {
            return;
        }
        if object.phase == Phase::Gone {
            self.settle_closed(state, slot, afterwards);
        } else if object.marks.has(Marks::HELD) {
            object.marks.set(Marks::HELD, false);
            state.update_hold(slot);
        }
    }

    /// Gives up an object that was begun.
    pub(super) fn give_up(&self, begun: &Begun) {
        self.take_out(begun).into_iter().for_each(|doomed| self.bury(doomed));
    }

    /// Takes an object that was begun out of the tables, to be buried.
    pub(super) fn take_out(&self, begun: &Begun) -> Option<Doomed> {
        self.fast.segments.lock().end_writes(begun.segment);
        let mut state = self.lock();
        self.fast.following.lock().end(begun.slot);
        state.object_mut(begun.slot)?.open_mut().writers = 0;
        Some(state.discard_begun(begun.slot, begun.size))
    }
}

impl State {
    /// Drops an object that was begun with so many bytes: who follows it may keep them for longer.
    pub(super) fn discard_begun(&mut self, slot: Slot, size: ByteCount) -> Doomed {
        if let Some(object) = self.object_mut(slot) {
            object.size = size;
        }
        self.discard_writing(slot)
    }

    /// What stands in `slot` lost its name, or may be looked at by others than before: who holds a reference to it, or to what is
    /// below it, asks again.
    pub(in crate::datapath) fn tell_clients(&self, slot: Slot) {
        if self.is_referenced(slot) || self.tree.directory(slot).is_some() {
            self.names.changed();
        }
    }

    /// Whether a session holds a reference to the object in `slot`.
    pub(in crate::datapath) fn is_referenced(&self, slot: Slot) -> bool {
        self.object(slot).is_some_and(|object| object.references > 0)
    }
}
