//! Bringing objects into memory before anybody waits for them: those that a client names, and from SSD those that come next in
//! the chain of one that is being loaded.
//!
//! What comes next is what the same client opened or created after it the last time. The first load of a chain starts
//! `prefetch_objects` of its successors; each first use of one of them starts the next, so that the disk stays that far
//! ahead of the reader.
//!
//! Invariants
//! - A load of a chain begins only when there is free room for it in memory, and in each quota above it, where what stands
//!   elsewhere too leaves for it, and nothing else does. For what a client names others leave memory.
//! - What was loaded ahead and nobody used is bounded by `prefetch_max` bytes, those on their way included. After
//!   [`UNUSED_MAX_MS`] it is as any other object: while memory is free nothing else would end that.
//! - Each object that a load ahead brought is counted once: useful when somebody opens it, wasted when it leaves memory or that time
//!   passes before.
//!
//! Limits: successors of as many keys as [`Recent`] holds are remembered, the least recently used are forgotten; none
//! over a restart. posix_fadvise(2) does not reach a FUSE filesystem, so it starts nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hashbrown::HashMap;
use tidefs_engine::types::{ByteCount, KeyHash};

use super::promote::Promoted;
use super::recent::Recent;
use super::room::footprint;
use super::{Datapath, Error, Marks, Object, Phase, Place, State};
use crate::namespace::{Ino, Slot};
use crate::telemetry::Telemetry;
use crate::tier::ssd::ReadFor;

/// How long an object that was loaded ahead counts as one that somebody comes for, in milliseconds.
const UNUSED_MAX_MS: u64 = 60_000;

/// What is known of chains and of what was loaded ahead.
#[derive(Debug)]
pub(super) struct Ahead {
    /// What came after a key the last time; made when it is first needed.
    successors: Option<Recent>,
    /// Bytes that are loaded ahead and not used yet, and of those on their way.
    bytes: u64,
    /// What was loaded, and when, in milliseconds; the oldest first. Some of it was used since, or left and was loaded again.
    loads: VecDeque<(u64, Ino)>,
    /// Of what is not used yet, which of these loads brought it.
    unused: HashMap<Ino, u64>,
    /// What is being loaded below quotas, which count it when it has come.
    below_quotas: Vec<(Ino, ByteCount)>,
    telemetry: Arc<Telemetry>,
}

impl Ahead {
    pub(super) fn new(telemetry: Arc<Telemetry>) -> Self {
        Self {
            successors: None,
            bytes: 0,
            loads: VecDeque::new(),
            unused: HashMap::new(),
            below_quotas: Vec::new(),
            telemetry,
        }
    }
}

impl State {
    /// Notes that `slot` was used after `before` by the same client.
    pub(super) fn note_successor(&mut self, before: Option<KeyHash>, slot: Slot) {
        if let Some(before) = before {
            let ino = self.tree.ino(slot);
            self.ahead.successors.get_or_insert_default().put(before, ino);
        }
    }

    /// The next objects in the chain of the one in `slot` that are on SSD alone, among its next `limit` successors.
    fn successors_on_ssd(&mut self, slot: Slot, limit: usize) -> Vec<(Ino, ByteCount)> {
        let mut found = Vec::new();
        let mut at = slot;
        for _ in 0..limit {
            let next = self.key_of(at).and_then(|key| self.ahead.successors.as_mut()?.get(key));
            let Some(next) = next.and_then(|ino| self.tree.by_ino(ino)).filter(|next| *next != slot) else {
                break;
            };
            found.extend(self.on_ssd_alone(next));
            at = next;
        }
        found
    }

    /// The object in `slot`, if it is to be loaded before it is used.
    fn on_ssd_alone(&self, slot: Slot) -> Option<(Ino, ByteCount)> {
        let is_away = |object: &&Object| object.phase == Phase::Sealed && matches!(object.place, Place::Ssd);
        self.object(slot).filter(is_away).map(|object| (self.tree.ino(slot), object.size))
    }

    /// The object in `slot`, if it is below memory.
    fn below(&self, slot: Slot) -> Option<(Ino, ByteCount)> {
        let is_below = |object: &&Object| object.phase == Phase::Sealed && Datapath::is_away(&object.place);
        self.object(slot).filter(is_below).map(|object| (self.tree.ino(slot), object.size))
    }

    /// What was loaded ahead too long ago counts no more.
    fn settle_unused(&mut self, now_ms: u64) {
        while let Some(&(loaded_ms, ino)) = self.ahead.loads.front()
            && now_ms.saturating_sub(loaded_ms) >= UNUSED_MAX_MS
        {
            self.ahead.loads.pop_front();
            // A later load may have brought it since.
            let is_unused = self.ahead.unused.get(&ino) == Some(&loaded_ms);
            if let Some(slot) = self.tree.by_ino(ino).filter(|_| is_unused) {
                self.settle_ahead(slot, false);
            }
        }
    }

    /// Notes that the object of `ino` is about to be loaded, if a quota will count it. Returns its directory, and for how many bytes
    /// its quotas need room: for it, and for what else is being loaded below one of them and has not come yet.
    fn begin_below_quotas(&mut self, ino: Ino) -> Option<(Slot, ByteCount)> {
        let slot = self.tree.by_ino(ino)?;
        let size = footprint(self.object(slot)?.size);
        let directory = self.tree.node(slot).parent;
        let quotas = self.quotas_above(directory);
        if quotas.is_empty() {
            return None;
        }
        let is_coming = |&&(other, _): &&(Ino, ByteCount)| {
            let slot = self.tree.by_ino(other).filter(|&slot| self.on_ssd_alone(slot).is_some());
            slot.is_some_and(|slot| self.tree.ancestors(slot).any(|above| quotas.contains(&above)))
        };
        let others = self.ahead.below_quotas.iter().filter(is_coming).map(|(_, size)| *size);
        let more = others.fold(size, ByteCount::saturating_add);
        self.ahead.below_quotas.push((ino, size));
        Some((directory, more))
    }

    /// An object that was loaded ahead is used, or leaves memory without. Returns whether it was one.
    pub(super) fn settle_ahead(&mut self, slot: Slot, is_used: bool) -> bool {
        let was_ahead = |object: &&mut Object| object.marks.has(Marks::PREFETCHED);
        let Some(object) = self.object_mut(slot).filter(was_ahead) else { return false };
        object.marks.set(Marks::PREFETCHED, false);
        let size = object.size.get();
        let ino = self.tree.ino(slot);
        self.ahead.unused.remove(&ino);
        self.ahead.bytes = self.ahead.bytes.saturating_sub(size);
        let telemetry = &self.ahead.telemetry;
        if is_used { &telemetry.ssd_prefetches_useful } else { &telemetry.ssd_prefetches_wasted }.increment();
        true
    }
}

impl Datapath {
    /// Has objects that a client names brought into memory ahead of their use, as far as the budget goes, but for those that are
    /// faster computed again. Waits for nothing. Returns how many are on their way; those that are in memory need none.
    pub fn prefetch(&self, inos: &[Ino]) -> usize {
        let mut state = self.lock();
        let below = |ino: &Ino| state.below(state.tree.by_ino(*ino)?);
        let is_wanted = |(ino, _): &(Ino, ByteCount)| !self.is_predicted_faster_computed(&state, *ino);
        let wanted: Vec<_> = inos.iter().filter_map(below).filter(is_wanted).collect();
        self.load_ahead(&mut state, wanted, true)
    }

    /// Somebody waits for an object: its successors are loaded meanwhile.
    pub fn prefetch_successors(&self, ino: Ino) {
        if self.ssd.get().is_none() || self.settings.prefetch_objects == 0 {
            return;
        }
        let mut state = self.lock();
        if let Some(slot) = state.tree.by_ino(ino) {
            self.follow_chain(&mut state, slot);
        }
    }

    /// An object is opened to be read. `before`: what its client used before it.
    pub(super) fn note_use(&self, state: &mut State, slot: Slot, before: Option<KeyHash>) {
        if self.ssd.get().is_some() {
            state.note_successor(before, slot);
        }
        self.settle_used(state, slot);
    }

    /// An object is used: if it was loaded ahead the next of its chain are.
    pub(super) fn settle_used(&self, state: &mut State, slot: Slot) {
        if state.settle_ahead(slot, true) {
            self.follow_chain(state, slot);
        }
    }

    /// An object is created by `thread` under a key. Returns the key before it in its chain, if it seems to have one.
    pub(super) fn note_created(
        &self,
        state: &mut State,
        (thread, key): (u32, KeyHash),
        slot: Slot,
        now: Duration,
    ) -> Option<KeyHash> {
        let before = state.chains.created(thread, key, now);
        if self.ssd.get().is_some() {
            state.note_successor(before, slot);
        }
        before
    }

    fn follow_chain(&self, state: &mut State, slot: Slot) {
        let wanted = state.successors_on_ssd(slot, self.settings.prefetch_objects);
        self.load_ahead(state, wanted, false);
    }

    fn load_ahead(&self, state: &mut State, wanted: Vec<(Ino, ByteCount)>, are_named: bool) -> usize {
        let mut count = 0;
        if !wanted.is_empty() {
            state.settle_unused(self.now_ms());
        }
        for (ino, size) in wanted {
            let after = state.ahead.bytes.saturating_add(size.get());
            if after > self.settings.prefetch_max.get() {
                break;
            }
            if self.loader.leave_ahead(ino, size, are_named) {
                state.ahead.bytes = after;
                count += 1;
            }
        }
        count
    }

    /// Brings an object back if nothing is lost for it: what nobody asked for yet costs nobody anything.
    pub(super) fn promote_into_free_room(&self, ino: Ino) -> Result<Promoted<'_>, Error> {
        let size = self.getattr(ino)?.size.round_up_to_pages();
        // Those that run at once count together, what they have got already included.
        let running = self.loading_ahead.fetch_add(size.get(), Ordering::Relaxed).saturating_add(size.get());
        let needed = self.settings.write_headroom.saturating_add(ByteCount(running));
        let outcome = match self.tier.usage() {
            Ok(usage) if usage.free >= needed => self.promote_into_quotas(ino),
            Ok(_) => Err(Error::NothingEvictable { needed: Some(needed) }),
            Err(error) => Err(error.into()),
        };
        self.loading_ahead.fetch_sub(size.get(), Ordering::Relaxed);
        outcome
    }

    /// The same, when memory has room. A namespace that holds more than its quota stays full: there what is on disk as well makes
    /// room, or nothing would be loaded ahead any more.
    fn promote_into_quotas(&self, ino: Ino) -> Result<Promoted<'_>, Error> {
        let begun = self.lock().begin_below_quotas(ino);
        let Some((directory, more)) = begun else { return self.promote_for(ino, ReadFor::Ahead) };
        let room = self.make_room_in_quota_without_loss(more, directory);
        let outcome = room.and_then(|()| self.promote_for(ino, ReadFor::Ahead));
        self.lock().ahead.below_quotas.retain(|(other, _)| *other != ino);
        outcome
    }

    /// The load of an object of `size` that was begun ahead of its use has ended. `has_loaded`: it brought the object, and no other
    /// load did. `is_wanted`: somebody waits for it.
    pub(super) fn ended_ahead(&self, ino: Ino, size: ByteCount, has_loaded: bool, is_wanted: bool) {
        let mut state = self.lock();
        // One that is on its way to a disk again, or is written, is in no account: nothing settles it there. Nor would anything
        // twice, when it left and a later load ahead has ended before this one.
        let is_same = |object: &&mut Object| {
            object.size == size
                && object.phase == Phase::Sealed
                && object.is_resident()
                && !object.marks.has(Marks::PREFETCHED)
        };
        let slot = state.tree.by_ino(ino).filter(|_| has_loaded);
        let Some(object) = slot.and_then(|slot| state.object_mut(slot)).filter(is_same) else {
            state.ahead.bytes = state.ahead.bytes.saturating_sub(size.get());
            return;
        };
        object.marks.set(Marks::PREFETCHED, true);
        let now_ms = self.now_ms();
        state.ahead.loads.push_back((now_ms, ino));
        state.ahead.unused.insert(ino, now_ms);
        self.telemetry.ssd_prefetches.increment();
        if let Some(slot) = slot.filter(|_| is_wanted) {
            state.settle_ahead(slot, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::OpenOptions;
    use super::super::testing::{attach_disk, caller, directory, make, unprivileged};
    use super::*;

    /// A cache with an object of 5000 bytes.
    fn with_one() -> (tempfile::TempDir, Datapath, Ino) {
        let (place, datapath) = unprivileged();
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let (_, opened) = datapath.create(&caller(), Ino::ROOT, b"key", 0o644, options).unwrap();
        datapath.write(opened.handle, 0, &[1; 5000]).unwrap();
        datapath.flush(&caller(), opened.handle).unwrap();
        datapath.release(opened.handle);
        (place, datapath, opened.ino)
    }

    #[test]
    fn of_two_loads_ahead_that_brought_one_object_the_second_gives_its_budget_back() {
        let (_place, datapath, ino) = with_one();
        datapath.lock().ahead.bytes = 10_000;
        let end = || datapath.ended_ahead(ino, ByteCount(5000), true, false);
        end();
        end();
        assert_eq!((datapath.lock().ahead.bytes, datapath.telemetry().ssd_prefetches.get()), (5000, 1));
        let slot = datapath.lock().tree.by_ino(ino).unwrap();
        assert!(datapath.lock().settle_ahead(slot, true));
        assert_eq!(datapath.lock().ahead.bytes, 0);
    }

    #[test]
    fn what_is_loaded_ahead_again_is_waited_for_from_then_on() {
        let (_place, datapath, ino) = with_one();
        datapath.lock().ahead.bytes = 10_000;
        let slot = datapath.lock().tree.by_ino(ino).unwrap();
        datapath.ended_ahead(ino, ByteCount(5000), true, false);
        assert!(datapath.lock().settle_ahead(slot, true));
        // Its second load comes in another millisecond.
        std::thread::sleep(Duration::from_millis(2));
        datapath.ended_ahead(ino, ByteCount(5000), true, false);
        let mut state = datapath.lock();
        let [(first_ms, _), (second_ms, _)] = [state.ahead.loads[0], state.ahead.loads[1]];
        let wasted = || datapath.telemetry().ssd_prefetches_wasted.get();
        state.settle_unused(first_ms + UNUSED_MAX_MS);
        assert_eq!((state.ahead.bytes, wasted()), (5000, 0));
        state.settle_unused(second_ms + UNUSED_MAX_MS);
        assert_eq!((state.ahead.bytes, wasted()), (0, 1));
        assert!(state.ahead.unused.is_empty() && state.ahead.loads.is_empty());
    }

    #[test]
    fn what_nobody_asked_for_yet_is_not_loaded_where_a_quota_has_no_room_for_it() {
        let (_place, datapath) = unprivileged();
        let limited = directory(&datapath, b"limited");
        let [first, _] = ["k0", "k1"].map(|name| make(&datapath, limited, name));
        let is_loaded = |quota: &[u8]| {
            datapath.set_attribute(limited, b"user.tidefs.quota", quota, None).unwrap();
            datapath.promote_into_free_room(first).is_ok()
        };
        assert!(!is_loaded(b"2MiB"), "the other one would leave for it");
        assert!(is_loaded(b"3MiB"));
        assert_eq!(datapath.loading_ahead.load(Ordering::Relaxed), 0);
        assert!(datapath.lock().ahead.below_quotas.is_empty());
    }

    /// Two objects of a MiB, in a directory, of which memory has the second alone, and the disk both.
    fn on_disk() -> (tempfile::TempDir, tempfile::TempDir, Arc<Datapath>, Ino, [Ino; 2]) {
        let (place, datapath) = unprivileged();
        let disk = tempfile::tempdir_in("/var/tmp").unwrap();
        let datapath = Arc::new(datapath);
        attach_disk(&datapath, disk.path(), ByteCount::mib(16));
        let limited = directory(&datapath, b"limited");
        let inos = ["k0", "k1"].map(|name| make(&datapath, limited, name));
        assert!(datapath.send_coldest(ByteCount::mib(2)));
        let end = Instant::now() + Duration::from_secs(20);
        while !inos.iter().all(|&ino| is_away(&datapath, ino)) {
            assert!(Instant::now() < end, "the disk has room");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(datapath.promote(inos[1]).unwrap());
        (place, disk, datapath, limited, inos)
    }

    fn is_away(datapath: &Datapath, ino: Ino) -> bool {
        let state = datapath.lock();
        state.tree.by_ino(ino).is_some_and(|slot| state.on_ssd_alone(slot).is_some())
    }

    #[test]
    fn what_nobody_asked_for_yet_takes_the_place_in_a_full_quota_of_what_is_on_disk_as_well() {
        let (_place, _disk, datapath, limited, [first, second]) = on_disk();
        datapath.set_attribute(limited, b"user.tidefs.quota", b"1MiB", None).unwrap();
        assert!(!is_away(&datapath, second), "the quota is full of it");
        assert!(datapath.promote_into_free_room(first).unwrap().has_loaded());
        assert!(is_away(&datapath, second) && !is_away(&datapath, first));
    }

    #[test]
    fn what_was_loaded_ahead_gives_no_way_to_more_of_that() {
        let (_place, _disk, datapath, limited, [first, second]) = on_disk();
        datapath.set_attribute(limited, b"user.tidefs.quota", b"1MiB", None).unwrap();
        datapath.ended_ahead(second, ByteCount::mib(1), true, false);
        assert!(datapath.promote_into_free_room(first).is_err());
        assert!(!is_away(&datapath, second) && is_away(&datapath, first));
    }
}
