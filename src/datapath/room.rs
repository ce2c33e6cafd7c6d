//! Room: evicting exactly as much as a write needs, before the write is accepted.
//!
//! The truth about free pages is the private tmpfs's own count; nothing is summed up by hand. A writer whose size is
//! known (`ftruncate`, `fallocate`, writes through the daemon, or the size that objects of its directory have) has
//! its pages allocated beforehand. A passthrough writer that outgrows that is served from the headroom, which the
//! keeper thread ([`super::headroom`]) restores while such writers are open.
//!
//! Limits: a request waits for room at most `runtime.deadline_ms`; an eviction round takes at most `BATCH_MAX`
//! objects under the lock.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidefs_engine::types::{ByteCount, FileOffset, PAGE};

use super::burial::Doomed;
use super::history::Ending;
use super::lingering::Lingerers;
use super::open_state::Refusal;
use super::ssd::{Leaving, MayLend};
use super::{Datapath, Error, Phase, State};
use crate::namespace::{Ino, Slot};

const BATCH_MAX: usize = 64;
/// Room that is made for a record beside what it lacks: others take some of it before it is written.
const RECORD_ROOM: ByteCount = ByteCount::kib(128);
/// How long a request pauses before it looks again, when everything is open at the moment.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// How often it does so before it is refused: closes that are on their way have arrived by then.
const RETRY_MAX: u32 = 10;

/// How often one request may still wait for room in vain: once for the headroom and once without it, as for one object. What
/// others were about to give has come by then.
#[derive(Debug)]
pub(super) struct Waits {
    left: u32,
    /// Whether what was on its way to a disk did not get there in time.
    is_late: bool,
    /// Whether nobody is told that there was no room: then it is not counted.
    is_trial: bool,
}

impl Default for Waits {
    fn default() -> Self {
        Self { left: 2, is_late: false, is_trial: false }
    }
}

impl Waits {
    /// None, for what is tried in another way when there is no room.
    pub(super) fn none() -> Self {
        Self { left: 0, is_late: true, is_trial: true }
    }

    /// Whether nobody is told that there was no room.
    pub(super) fn are_of_trial(&self) -> bool {
        self.is_trial
    }
}

/// Whether something may be evicted that is nowhere else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    Accepted,
    Refused,
}

/// Pages that an object of `size` occupies.
pub(super) fn footprint(size: ByteCount) -> ByteCount {
    size.round_up_to_pages()
}

impl Datapath {
    /// Evicts until `needed` bytes are free, for something that grows in `directory`.
    pub(super) fn make_room(&self, needed: ByteCount, directory: Slot) -> Result<(), Error> {
        self.make_room_within(&mut Waits::default(), needed, directory)
    }

    /// The same, as a part of a request that has so many waits left.
    pub(super) fn make_room_within(
        &self,
        waits: &mut Waits,
        needed: ByteCount,
        directory: Slot,
    ) -> Result<(), Error> {
        let capacity = self.settings.capacity;
        if needed > capacity {
            return Err(Error::TooLarge { size: needed, capacity });
        }
        let started = self.clock.monotonic();
        let mut retries = 0;
        loop {
            let usage = self.tier.usage()?;
            if usage.free >= needed {
                return Ok(());
            }
            let is_late = self.clock.monotonic().saturating_sub(started) > self.settings.deadline;
            if is_late || self.evict_round(needed.saturating_sub(usage.free), directory) == 0 {
                // What is on its way to a disk gives its pages back when it is there.
                let lent = self.lent_bytes();
                let is_coming = lent > ByteCount::ZERO && usage.free.saturating_add(lent) >= needed;
                retries += u32::from(!is_coming);
                let is_spent = waits.left == 0 && (waits.is_late || !is_coming);
                if is_late || retries > RETRY_MAX || is_spent {
                    waits.left = waits.left.saturating_sub(1);
                    waits.is_late |= is_late;
                    if !waits.is_trial {
                        self.telemetry.no_room.increment();
                    }
                    return Err(Error::NothingEvictable { needed: Some(needed) });
                }
                std::thread::sleep(RETRY_PAUSE);
            }
        }
    }

    /// As [`Datapath::make_room`] for nobody in particular, at the cost of copies alone: what is nowhere else stays.
    pub(super) fn make_room_without_loss(&self, needed: ByteCount) -> Result<(), Error> {
        loop {
            let free = self.tier.usage()?.free;
            if free >= needed {
                return Ok(());
            }
            if self.evict(needed.saturating_sub(free), Slot::ROOT, Loss::Refused) == 0 {
                return Err(Error::NothingEvictable { needed: Some(needed) });
            }
        }
    }

    /// Evicts objects of at least `missing` bytes, or a batch, or what there is. Returns how many went. What nobody can ask
    /// for by a name goes before any object does.
    fn evict_round(&self, missing: ByteCount, directory: Slot) -> usize {
        if self.free_what_waits(missing) { 1 } else { self.evict_round_for_reuse(missing, directory) }
    }

    /// As [`Datapath::evict_round`], for somebody who may use a segment of what is evicted.
    pub(super) fn evict_round_for_reuse(&self, missing: ByteCount, directory: Slot) -> usize {
        // Blank pages are made again in less time than what is nowhere else.
        if self.has_blanks() {
            let count = self.evict(missing, directory, Loss::Refused);
            if count > 0 || self.drain_blanks(missing) {
                return count.max(1);
            }
        }
        let count = self.evict(missing, directory, Loss::Accepted);
        if count > 0 { count } else { usize::from(self.let_linger_no_more(Lingerers::All)) }
    }

    /// Evicts objects that occupy at least `missing` bytes, or as many as one batch holds, or all there are. Returns how many.
    pub(super) fn evict(&self, missing: ByteCount, directory: Slot, loss: Loss) -> usize {
        let leaving = self.choose_leaving(&mut self.lock(), missing, directory, loss);
        let count = leaving.len();
        leaving.into_iter().for_each(|leaving| self.see_off(leaving, None));
        count
    }

    fn choose_leaving(
        &self,
        state: &mut State,
        missing: ByteCount,
        directory: Slot,
        loss: Loss,
    ) -> Vec<Leaving> {
        let mut freed = ByteCount::ZERO;
        let mut all = Vec::new();
        // It may be gone by now.
        let grows = state.tree.get(directory).map_or(Ino::ROOT, |_| state.tree.ino(directory));
        let ending = Ending::Evicted { for_directory: grows };
        while freed < missing && all.len() < BATCH_MAX {
            let Some(victim) = state.victim_anywhere(directory) else { break };
            let victim = match self.copied_instead(state, victim, directory) {
                Some(copied) => copied,
                None if loss == Loss::Accepted || self.has_copy(state, victim) => victim,
                None => break,
            };
            let size = state.object(victim).map(|object| object.size).unwrap_or_default();
            freed = freed.saturating_add(footprint(size));
            // Room is needed now: nothing is lent to a disk.
            all.push(self.let_leave(state, victim, ending, MayLend::No));
        }
        all
    }

    pub(super) fn count_evictions(&self, doomed: &[Doomed]) {
        self.telemetry.evictions.add(doomed.len() as u64);
        self.telemetry.evicted_bytes.add(doomed.iter().map(|doomed| doomed.size.get()).sum());
    }

    /// Looks whether there is no page left, before pages are given back or a file is sealed: a passthrough write that
    /// found none was cut short, which only its writer was told.
    pub(super) fn watch_for_end_of_room(&self) {
        if self.passthrough_writers.load(Ordering::Relaxed) > 0
            && self.tier.usage().is_ok_and(|usage| usage.free < PAGE)
        {
            self.ends_of_room.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Refuses the file in `slot` as if the daemon had served it, if the kernel may have cut a write to it short: it
    /// reaches beyond what was reserved for it, and there was no page left since it was opened.
    pub(super) fn refuse_if_cut_short(&self, slot: Slot) {
        self.watch_for_end_of_room();
        let ends = self.ends_of_room.load(Ordering::Relaxed);
        let mut state = self.lock();
        let Some(object) = state.object_mut(slot).filter(|object| object.phase == Phase::Writing) else {
            return;
        };
        let Some(open) = object.open.as_mut().filter(|open| open.passthrough > 0) else { return };
        if open.ends_of_room == ends || open.refused.is_some() {
            return;
        }
        let length = open.file.as_ref().and_then(|file| file.metadata().ok()).map(|metadata| metadata.len());
        let length = ByteCount(length.unwrap_or(0));
        let has_outgrown = length > open.reserved || (length == open.reserved && length != open.sized);
        if length > ByteCount::ZERO && has_outgrown {
            open.refused = Some(Refusal::NoRoom);
        }
    }

    /// Does `action`, which writes a record, again once there is room, when it finds none. It changes nothing then. That of a packed
    /// object is written with all its bytes.
    pub(super) fn with_room<T>(&self, mut action: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        for _ in 0..RETRY_MAX {
            match action() {
                Err(Error::NothingEvictable { needed }) => {
                    let needed = needed.unwrap_or_default().saturating_add(RECORD_ROOM);
                    self.make_room(needed.min(self.settings.capacity), Slot::ROOT)?;
                }
                outcome => return outcome,
            }
        }
        action()
    }

    /// As [`Datapath::with_room`], for the record of the object `ino`, which does not leave for it.
    pub(super) fn with_room_for<T>(
        &self,
        ino: Ino,
        mut action: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        match action() {
            Err(Error::NothingEvictable { .. }) => {}
            outcome => return outcome,
        }
        let slot_in = |state: &State| state.tree.by_ino(ino).filter(|&slot| state.object(slot).is_some());
        {
            let mut state = self.lock();
            slot_in(&state).into_iter().for_each(|slot| state.hold(slot));
        }
        let outcome = self.with_room(action);
        let mut state = self.lock();
        slot_in(&state).into_iter().for_each(|slot| state.update_hold(slot));
        outcome
    }

    /// Allocates `length` bytes of `file` from `offset`, evicting for them.
    pub(super) fn reserve(
        &self,
        file: &File,
        offset: ByteCount,
        length: ByteCount,
        directory: Slot,
    ) -> Result<(), Error> {
        self.reserve_within(&mut Waits::default(), file, offset, length, directory)
    }

    /// The same, as a part of a request that has so many waits left.
    pub(super) fn reserve_within(
        &self,
        waits: &mut Waits,
        file: &File,
        offset: ByteCount,
        length: ByteCount,
        directory: Slot,
    ) -> Result<(), Error> {
        let mut retries = 0;
        loop {
            self.make_room_within(waits, length, directory)?;
            match self.tier.reserve(file, FileOffset(offset.get()), length) {
                Err(error) if error.is_full() && retries < RETRY_MAX => retries += 1,
                done => return Ok(done?),
            }
        }
    }

    /// Evicts the coldest objects of so many bytes, as many at once as the disks take, and notes `ending` of them. Tells
    /// `progress` how many objects and bytes went, until that breaks it off. Returns the same. `gone`: gets the inode numbers of
    /// those that no disk took. For what is on its way to a disk that is late it waits once, and with each further object that can
    /// go to that disk alone for as long as a request may take.
    pub(super) fn evict_coldest_bytes(
        &self,
        bytes: ByteCount,
        ending: Ending,
        gone: &mut Vec<Ino>,
        mut progress: impl FnMut(u64, ByteCount) -> ControlFlow<()>,
    ) -> (u64, ByteCount) {
        let mut evicted = (0, ByteCount::ZERO);
        let (mut under_way, mut are_in_time) = (VecDeque::new(), true);
        let mut last_went = self.clock.monotonic();
        while evicted.1 < bytes {
            if progress(evicted.0, evicted.1).is_break() {
                return evicted;
            }
            let (size, leaving) = {
                let mut state = self.lock();
                let Some(victim) = state.victim_anywhere(Slot::ROOT) else { break };
                let size = state.object(victim).map(|object| object.size).unwrap_or_default();
                // What finds no room in a queue would be dropped: those before it make some.
                let has_room =
                    self.ssd.get().is_none_or(|ssd| self.has_way_out(ssd, &state, victim, ByteCount::ZERO));
                if !has_room
                    && are_in_time
                    && let Some(first) = under_way.pop_front()
                {
                    drop(state);
                    are_in_time = self.wait_until_stored(&first);
                    continue;
                }
                // The queue may be full of copies that the demoter makes: those make room too.
                let is_early = self.clock.monotonic().saturating_sub(last_went) < self.settings.deadline;
                if !has_room && is_early && self.ssd.get().is_some_and(|ssd| ssd.is_writing()) {
                    drop(state);
                    std::thread::sleep(RETRY_PAUSE);
                    continue;
                }
                let may = if has_room { MayLend::Yes } else { MayLend::IfRoom };
                (size, self.let_leave(&mut state, victim, ending, may))
            };
            last_went = self.clock.monotonic();
            evicted = (evicted.0 + 1, evicted.1.saturating_add(footprint(size)));
            if let Leaving::Gone(doomed) = &leaving {
                gone.push(doomed.ino);
            }
            under_way.extend(self.see_off_and_tell(leaving));
        }
        for wait in &under_way {
            if !are_in_time || progress(evicted.0, evicted.1).is_break() {
                break;
            }
            are_in_time = self.wait_until_stored(wait);
        }
        evicted
    }
}
