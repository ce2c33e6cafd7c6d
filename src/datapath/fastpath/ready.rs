//! Objects that are read while they are written: a writer says which parts are as they will stay, and who waits for one of
//! them gets a reference to the object before it is sealed.
//!
//! Invariants
//! - Nobody is told of a begun object but for a part that its writer made ready.
//! - What was made ready is not cut: a seal that would is refused.
//! - A reference to a begun object is one like any other: it outlives the seal, and keeps the bytes when the writer gives
//!   the object up.
//!
//! Limits: [`PARTS_MAX`] parts of one object that do not touch each other; of the objects that are begun under one name the
//! [`LOOKED_AT_MAX`] that were shown last are looked at.

use hashbrown::HashMap;
use tidefs_engine::types::{ByteCount, FileOffset, KeyHash, SegmentId, Version};

use super::batch::Batch;
use super::walk::Walk;
use super::{Located, Session};
use crate::datapath::rights::{Credentials, Right};
use crate::datapath::{Datapath, Phase, Place, State, key_hash};
use crate::namespace::{Ino, Slot};

/// Parts of one object that do not touch each other.
const PARTS_MAX: usize = 4096;

/// Objects begun under one name that are looked at for one wait: two engines may compute one block.
const LOOKED_AT_MAX: usize = 16;

/// A part of a begun object that is as it will stay.
#[derive(Clone, Copy, Debug)]
pub struct ReadyRequest {
    /// The reference that the begin gave.
    pub reference: u64,
    /// Where the part starts.
    pub offset: FileOffset,
    /// Its length.
    pub length: ByteCount,
}

/// A part of an object that somebody waits for.
#[derive(Clone, Copy, Debug)]
pub struct FollowRequest<'n> {
    /// Relative to the scope.
    pub name: &'n [u8],
    /// Where the part starts.
    pub offset: FileOffset,
    /// Its length.
    pub length: ByteCount,
}

/// What came of a wait so far.
#[derive(Clone, Copy, Debug)]
pub enum Followed {
    /// It may be read: where it is, and the reference to it.
    Here(Located, u64),
    /// It is not there yet.
    NotYet,
    /// It is there, or will be, in a way that only another request can tell.
    Else(Located),
}

/// Parts that are ready: sorted, and none touches another.
#[derive(Debug, Default)]
struct Parts(Vec<(u64, u64)>);

impl Parts {
    /// Adds `start..end`. False when there are too many.
    fn add(&mut self, start: u64, end: u64) -> bool {
        let first = self.0.partition_point(|&(_, other_end)| other_end < start);
        let last = self.0.partition_point(|&(other_start, _)| other_start <= end);
        if first == last && self.0.len() >= PARTS_MAX {
            return false;
        }
        let joined =
            self.0[first..last].iter().fold((start, end), |(start, end), &(other_start, other_end)| {
                (start.min(other_start), end.max(other_end))
            });
        self.0.splice(first..last, [joined]);
        true
    }

    /// Whether all of `start..end` is ready.
    fn cover(&self, start: u64, end: u64) -> bool {
        let after = self.0.partition_point(|&(other_start, _)| other_start <= start);
        after.checked_sub(1).is_some_and(|index| self.0[index].1 >= end)
    }

    fn end(&self) -> u64 {
        self.0.last().map_or(0, |&(_, end)| end)
    }
}

/// A begun object of which parts are ready.
#[derive(Debug)]
struct Shown {
    key: KeyHash,
    /// The directory in which it will stand; it may be gone.
    parent: Ino,
    size: ByteCount,
    parts: Parts,
}

/// The begun objects of which parts are ready. Under a lock that is taken last.
#[derive(Debug, Default)]
pub(in crate::datapath) struct Following {
    by_slot: HashMap<Slot, Shown>,
    /// Those that are shown under each name, the one that was shown last at the end.
    by_key: HashMap<KeyHash, Vec<Slot>>,
}

impl Following {
    fn show(&mut self, slot: Slot, (key, parent): (KeyHash, Ino), size: ByteCount, part: (u64, u64)) -> bool {
        let slots = self.by_key.entry(key).or_default();
        if slots.last() != Some(&slot) {
            slots.retain(|&other| other != slot);
            slots.push(slot);
        }
        let shown =
            self.by_slot.entry(slot).or_insert_with(|| Shown { key, parent, size, parts: Parts::default() });
        shown.parts.add(part.0, part.1)
    }

    /// It is sealed, or given up.
    pub(super) fn end(&mut self, slot: Slot) {
        if let Some(shown) = self.by_slot.remove(&slot)
            && let Some(slots) = self.by_key.get_mut(&shown.key)
        {
            slots.retain(|&other| other != slot);
            if slots.is_empty() {
                self.by_key.remove(&shown.key);
            }
        }
    }

    /// Those that are shown under a name, the one that was shown last first.
    fn latest(&self, key: KeyHash) -> impl Iterator<Item = (Slot, &Shown)> {
        let slots = self.by_key.get(&key).map_or(&[][..], Vec::as_slice);
        let latest = slots.iter().rev().take(LOOKED_AT_MAX);
        latest.filter_map(move |&slot| Some((slot, self.by_slot.get(&slot)?)))
    }

    /// Where the last part that is ready ends.
    pub(super) fn ready_end(&self, slot: Slot) -> ByteCount {
        ByteCount(self.by_slot.get(&slot).map_or(0, |shown| shown.parts.end()))
    }

    /// The directory of a begun object that is shown.
    pub(super) fn parent_of(&self, slot: Slot) -> Option<Ino> {
        self.by_slot.get(&slot).map(|shown| shown.parent)
    }
}

impl Datapath {
    /// Says that parts of begun objects are as they will stay. `tell` is called once for each, in order.
    pub fn make_ready(
        &self,
        session: &Session,
        requests: impl Iterator<Item = ReadyRequest>,
        mut tell: impl FnMut(Result<Version, Located>),
    ) {
        for request in requests {
            tell(self.make_one_ready(session, &request).map(|()| Version::default()));
        }
        self.released.notify_all();
    }

    fn make_one_ready(&self, session: &Session, request: &ReadyRequest) -> Result<(), Located> {
        // Held, so that it is not sealed meanwhile.
        let holdings = session.holdings.lock();
        let begun = holdings.begun.get(&request.reference).ok_or(Located::Invalid)?;
        let end = request.offset.0.checked_add(request.length.get()).ok_or(Located::Invalid)?;
        if end > begun.size.get() {
            return Err(Located::Invalid);
        }
        if request.length == ByteCount::ZERO {
            return Ok(());
        }
        let state = self.lock();
        let parent = state.living_directory(begun.parent).map_err(|_| Located::Absent)?;
        let directory = state.directory_id(parent).map_err(|_| Located::Absent)?;
        let place = (key_hash(directory, begun.name.as_bytes()), begun.parent);
        let mut following = self.fast.following.lock();
        let fits = following.show(begun.slot, place, begun.size, (request.offset.0, end));
        if fits { Ok(()) } else { Err(Located::TooMany) }
    }

    /// Looks whether a part of an object may be read: of a sealed one, or of one that is written and of which that part was
    /// made ready. Takes a reference when it may. Does not wait.
    pub fn follow(&self, session: &Session, scope: Ino, request: &FollowRequest<'_>) -> Followed {
        if session.references_left() == 0 {
            return Followed::Else(Located::TooMany);
        }
        let first = session.next_batch();
        let mut readmitted = None;
        let (slot, here) = {
            let mut state = self.lock();
            let mut walk = Walk::new(&state, session.credentials(), scope);
            let (found, located) = self.find(&mut state, &mut walk, request.name, None);
            match (located, found) {
                (Located::Here { segment, .. }, Some(spot)) => {
                    let referred = self.refer(&mut state, spot.slot, segment, self.now_ns());
                    let Some(is_readmitted) = referred else { return Followed::Else(Located::AskByFile) };
                    readmitted = is_readmitted.then(|| state.tree.ino(spot.slot));
                    (spot.slot, located)
                }
                (Located::Absent | Located::AskByFile, _) => {
                    let shown = match walk.split(&state, request.name) {
                        (Ok(within), leaf) => {
                            let key = key_hash(within.id, leaf);
                            self.refer_to_shown(&mut state, session.credentials(), key, request)
                        }
                        (Err(_), _) => None,
                    };
                    match shown {
                        Some(Ok(held)) => held,
                        Some(Err(Located::Absent)) => return Followed::NotYet,
                        Some(Err(other)) => return Followed::Else(other),
                        None if located == Located::Absent => return Followed::NotYet,
                        None => return Followed::Else(located),
                    }
                }
                _ => return Followed::Else(located),
            }
        };
        readmitted.into_iter().for_each(|ino| self.settle_quota(ino));
        let mut batch = Batch::with_capacity(1);
        batch.push(slot);
        session.enter(first, batch);
        Followed::Here(here, first)
    }

    /// A reference to the begun object under `key` that was shown last of those of which the wanted part is ready. `None` when
    /// none is shown there; [`Located::Absent`] when the part is still written.
    fn refer_to_shown(
        &self,
        state: &mut State,
        credentials: &Credentials,
        key: KeyHash,
        request: &FollowRequest<'_>,
    ) -> Option<Result<(Slot, Located), Located>> {
        let following = self.fast.following.lock();
        let (mut found, mut otherwise) = (None, None);
        for (slot, shown) in following.latest(key) {
            if !credentials.may(&state.tree.node(slot).attributes, Right::READ) {
                otherwise = otherwise.or(Some(Located::Denied));
                continue;
            }
            // As read(2) does: what is wanted beyond the end is not waited for.
            let start = request.offset.0.min(shown.size.get());
            let end = request.offset.0.saturating_add(request.length.get()).min(shown.size.get());
            if shown.parts.cover(start, end) {
                found = Some((slot, shown.size));
                break;
            }
            otherwise = Some(Located::Absent);
        }
        let Some((slot, length)) = found else { return otherwise.map(Err) };
        let object = state.object_mut(slot)?;
        let segment: SegmentId = match object.place {
            Place::Solo(segment) if object.phase == Phase::Writing => segment,
            _ => return None,
        };
        let Some(references) = object.references.checked_add(1) else {
            return Some(Err(Located::TooMany));
        };
        object.references = references;
        Some(Ok((slot, Located::Here { segment, version: Version::default(), length, lasts: false })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_join_where_they_touch_and_cover_what_is_within_one() {
        let mut parts = Parts::default();
        for (start, end) in [(10, 20), (40, 50), (20, 25), (60, 70), (0, 5)] {
            assert!(parts.add(start, end));
        }
        assert_eq!(parts.0, [(0, 5), (10, 25), (40, 50), (60, 70)]);
        for (start, end, covered) in [
            (10, 25, true),
            (12, 20, true),
            (0, 6, false),
            (24, 41, false),
            (25, 26, false),
            (50, 50, true),
            (99, 99, false),
        ] {
            assert_eq!(parts.cover(start, end), covered, "{start}..{end}");
        }
        assert!(parts.add(24, 61));
        assert_eq!((&parts.0[..], parts.end()), (&[(0, 5), (10, 70)][..], 70));
    }

    #[test]
    fn one_object_has_so_many_parts_and_a_touching_one_always_fits() {
        let mut parts = Parts::default();
        assert!((0..PARTS_MAX as u64).all(|index| parts.add(index * 10, index * 10 + 5)));
        assert!(!parts.add(1_000_000, 1_000_001));
        assert!(parts.add(5, 10));
        assert!(parts.add(1_000_000, 1_000_001));
    }

    #[test]
    fn those_shown_under_a_name_are_found_the_last_one_first_and_end_alone() {
        let mut following = Following::default();
        let place = (KeyHash(7), Ino(1));
        assert!(following.show(Slot(2), place, ByteCount(100), (0, 10)));
        assert!(following.show(Slot(3), place, ByteCount(100), (0, 20)));
        let found = |following: &Following| -> Vec<Slot> {
            following.latest(KeyHash(7)).map(|(slot, _)| slot).collect()
        };
        assert_eq!(found(&following), [Slot(3), Slot(2)]);
        assert!(following.show(Slot(2), place, ByteCount(100), (10, 20)));
        assert_eq!(found(&following), [Slot(2), Slot(3)]);
        following.end(Slot(2));
        assert_eq!(found(&following), [Slot(3)]);
        assert_eq!(following.ready_end(Slot(3)), ByteCount(20));
        following.end(Slot(3));
        assert!(following.by_key.is_empty() && following.by_slot.is_empty());
        assert_eq!(following.ready_end(Slot(3)), ByteCount::ZERO);
    }
}
