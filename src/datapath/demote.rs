//! The demoter: keeps room free ahead of writers by sending what is coldest to the disks, and copies there of what leaves
//! next, so that a writer who needs room at once loses nothing.
//!
//! What has to go to a disk that has no room for it waits there, as the coldest, and what is hotter waits with it: but for when
//! another disk has nothing to do, as that one hangs perhaps. Then they are passed by, in a round that has sent nothing yet.
//!
//! Threads: `demote_in_background` is a thread of its own; who needs room at once calls [`Datapath::copied_instead`].

use std::time::Duration;

use tidefs_engine::types::ByteCount;

use super::directory_records::UNKEPT_PAUSE;
use super::history::Ending;
use super::room::footprint;
use super::ssd::{Leaving, MayLend};
use super::{Datapath, Marks, Object, State};
use crate::namespace::{Ino, Slot};
use crate::tier::ssd::{SsdTier, cost_of};

/// Objects that are sent to the disks between two looks at the free room.
const SENT_AT_ONCE: usize = 16;
/// Objects that leave next of which copies are kept on disk while room is short.
const COPIED_AHEAD: usize = 256;
/// Objects that leave next among which one is looked for that is on disk already.
const COPIED_INSTEAD: usize = 32;
/// Objects that are passed by in one round, as they go to a disk alone that has no room.
const PASSED_BY_MAX: usize = 32;
/// How often the free room is looked at while it is short.
const BUSY_PAUSE: Duration = Duration::from_millis(2);
/// How long no copies are made after the tier refused one: its budgets are used up, or no disk takes anything.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
/// How often otherwise.
const IDLE_PAUSE: Duration = Duration::from_millis(20);

/// What came of looking for objects to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// Some went.
    Sent,
    Nothing,
    /// None went, as the coldest go to a disk that has no room.
    PassedBy,
}

impl Datapath {
    /// Keeps room free ahead of writers, until `is_stopping` says so. Runs in a thread of its own.
    pub fn demote_in_background(&self, is_stopping: impl Fn() -> bool) {
        let (mut copies_from, mut kept_at) = (Duration::ZERO, Duration::ZERO);
        let mut outdated = Vec::new();
        while !is_stopping() {
            let target = self.settings.write_headroom.saturating_add(self.settings.free_ahead);
            let free = self.tier.usage().map(|usage| usage.free).unwrap_or_default();
            let missing = target.saturating_sub(free.saturating_add(self.lent_bytes()));
            let round = if missing > ByteCount::ZERO { self.send_round(missing) } else { Round::Nothing };
            let is_short = free < target.saturating_add(target);
            let now = self.clock.monotonic();
            if now >= kept_at + UNKEPT_PAUSE {
                kept_at = now;
                self.keep_unkept();
                self.keep_elsewhere(&mut outdated);
            }
            if is_short && now >= copies_from && !self.copy_coldest() {
                copies_from = now + REFUSED_PAUSE;
            }
            match round {
                Round::Sent => {}
                Round::Nothing if is_short => std::thread::sleep(BUSY_PAUSE),
                // Those that were passed by are so again, which takes long, until their disk is heard of.
                Round::Nothing | Round::PassedBy => std::thread::sleep(IDLE_PAUSE),
            }
        }
        // The disks write what is left to them now, and no more.
        self.keep_unkept();
        self.keep_elsewhere(&mut outdated);
    }

    /// Sends the coldest objects to the disks until `missing` bytes are free or on their way. Returns whether any went.
    pub(super) fn send_coldest(&self, missing: ByteCount) -> bool {
        self.send_round(missing) == Round::Sent
    }

    fn send_round(&self, missing: ByteCount) -> Round {
        let Some(ssd) = self.ssd.get() else { return Round::Nothing };
        let (mut leaving, mut passed_by) = (Vec::new(), Vec::new());
        {
            let mut state = self.lock();
            // Those of this round are not in a queue yet.
            let (mut freed, mut ahead) = (ByteCount::ZERO, ByteCount::ZERO);
            while freed < missing && leaving.len() < SENT_AT_ONCE {
                let Some(victim) = state.victim_anywhere(Slot::ROOT) else { break };
                if !self.has_way_out(ssd, &state, victim, ahead) {
                    // What is sent now may be for the disk that is idle yet.
                    let is_idle = ahead == ByteCount::ZERO && ssd.has_idle_disk();
                    if !is_idle || passed_by.len() == PASSED_BY_MAX {
                        break;
                    }
                    // It keeps its place in the order.
                    state.hold(victim);
                    passed_by.push(victim);
                    continue;
                }
                let size = state.object(victim).map(|object| object.size).unwrap_or_default();
                freed = freed.saturating_add(footprint(size));
                let ending = Ending::Evicted { for_directory: Ino::ROOT };
                let one = self.let_leave(&mut state, victim, ending, MayLend::Yes);
                if let Leaving::Lent(lent) = &one {
                    ahead = ahead.saturating_add(cost_of(lent.size));
                }
                leaving.push(one);
            }
            passed_by.iter().for_each(|&slot| state.update_hold(slot));
        }
        let round = match (leaving.is_empty(), passed_by.is_empty()) {
            (false, _) => Round::Sent,
            (true, true) => Round::Nothing,
            (true, false) => Round::PassedBy,
        };
        leaving.into_iter().for_each(|leaving| self.see_off(leaving, None));
        round
    }

    /// Has copies made of the objects that leave next, while they stay: a writer that needs room at once takes those that
    /// are on disk already. Returns false when the tier refuses.
    fn copy_coldest(&self) -> bool {
        let Some(ssd) = self.ssd.get() else { return true };
        let longest = ssd.longest();
        if longest == ByteCount::ZERO {
            return false;
        }
        let mut chosen = Vec::new();
        {
            let mut state = self.lock();
            state.domains.set_below(ssd.records());
            let next: Vec<Slot> = state.domains.coldest(COPIED_AHEAD);
            let mut ahead = ByteCount::ZERO;
            for slot in next {
                let size = state.object(slot).map(|object| object.size).unwrap_or_default();
                if size > longest || !state.lacks_copy(ssd, slot) {
                    continue;
                }
                if chosen.len() == SENT_AT_ONCE {
                    break;
                }
                if !state.has_room_on(ssd, slot, ahead) {
                    if ahead == ByteCount::ZERO && ssd.has_idle_disk() {
                        continue;
                    }
                    break;
                }
                ahead = ahead.saturating_add(cost_of(size));
                chosen.push(slot);
            }
        }
        // One after the other: what one is refused for holds for the next.
        chosen.into_iter().all(|slot| {
            let lent = {
                let mut state = self.lock();
                if state.lacks_copy(ssd, slot) { state.send(slot) } else { None }
            };
            lent.is_none_or(|lent| self.store(lent, false, None))
        })
    }

    /// Whether an object that leaves memory stands elsewhere: on another member, or on a disk as it is.
    pub(super) fn has_copy(&self, state: &State, slot: Slot) -> bool {
        state.leaves_first(slot) || self.ssd.get().is_some_and(|ssd| self.stands_on_ssd(ssd, state, slot))
    }

    /// An object that is to leave soon and is on disk already, when the victim is not: it leaves without a loss, for what
    /// grows in `growing`.
    pub(super) fn copied_instead(&self, state: &mut State, victim: Slot, growing: Slot) -> Option<Slot> {
        let ssd = self.ssd.get()?;
        if self.has_copy(state, victim) {
            return None;
        }
        let id = state.domain_of(victim);
        let next = state.domains.coldest_of(id, COPIED_INSTEAD);
        // Clients that hold references to it read its segment.
        next.into_iter().find(|&slot| {
            !state.is_referenced(slot)
                && self.stands_on_ssd(ssd, state, slot)
                && state.may_leave_for(slot, growing)
        })
    }
}

impl State {
    /// Whether an object may have a record on a disk, and has none there as it is, nor one on its way, as far as is known.
    fn lacks_copy(&self, ssd: &SsdTier, slot: Slot) -> bool {
        let lacks = |object: &Object| {
            let is_stale = || object.marks.has(Marks::STALE_ON_SSD) && self.has_settled_on(ssd, slot);
            let has_one = object.marks.has(Marks::ON_SSD) && !is_stale();
            object.is_storable() && !has_one
        };
        !self.leaves_first(slot) && self.object(slot).is_some_and(lacks)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::super::testing::{attach_disk, directory, disks_with, make, unprivileged};
    use super::*;

    /// A MiB, with which each object of these tests is filled, and its header are less than half of it.
    const QUEUE_MAX: ByteCount = ByteCount::kib(2500);

    #[test]
    fn what_the_queue_has_no_room_for_is_not_sent_and_stays_as_cold_as_it_was() {
        let (_place, datapath) = unprivileged();
        let disk = tempfile::tempdir_in("/var/tmp").unwrap();
        let datapath = Arc::new(datapath);
        attach_disk(&datapath, disk.path(), QUEUE_MAX);
        let inos: Vec<Ino> = (0..8).map(|number| make(&datapath, Ino::ROOT, &format!("k{number}"))).collect();
        assert!(datapath.send_coldest(ByteCount::mib(8)));
        let are_on_disk = |inos: &[Ino]| {
            let state = datapath.lock();
            let is_there = |&ino: &Ino| {
                let object = state.tree.by_ino(ino).and_then(|slot| state.object(slot));
                object.is_some_and(Object::is_on_ssd_alone)
            };
            inos.iter().map(is_there).collect::<Vec<bool>>()
        };
        let end = Instant::now() + Duration::from_secs(20);
        while are_on_disk(&inos[..2]) != [true; 2] {
            assert!(Instant::now() < end, "the coldest two have room");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(are_on_disk(&inos[2..]), [false; 6]);
        let mut state = datapath.lock();
        let next = state.victim_anywhere(Slot::ROOT).map(|slot| state.tree.ino(slot));
        assert_eq!(next, Some(inos[2]));
        drop(state);
        let status = datapath.ssd().unwrap().status();
        assert_eq!((status.refused_queue, datapath.telemetry().ssd_refusals.get()), (0, 0));
    }

    #[test]
    fn what_leaves_a_quota_and_is_lost_as_no_disk_has_room_is_counted_as_refused() {
        let (_place, datapath) = unprivileged();
        let ssd = Arc::new(SsdTier::without_disks(&disks_with(QUEUE_MAX)).unwrap());
        datapath.attach_new_ssd(Arc::clone(&ssd));
        let ns = directory(&datapath, b"ns");
        datapath.set_attribute(ns, b"user.tidefs.quota", b"2MiB", None).unwrap();
        // Those of directories are sent again.
        let before = ssd.status().refused_disk;
        ["k0", "k1", "k2"].iter().for_each(|name| _ = make(&datapath, ns, name));
        let lost = 3 - datapath.overview().unwrap().objects;
        assert!(lost > 0, "the quota holds two");
        let refused = ssd.status().refused_disk - before;
        assert_eq!((refused, datapath.telemetry().ssd_refusals.get()), (lost, lost));
    }
}
