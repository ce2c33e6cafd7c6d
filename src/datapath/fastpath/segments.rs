//! Segments that clients were told of, and what becomes of them when their object leaves.
//!
//! A client keeps what it mapped, so removing a segment's name frees nothing: its pages are given back by cutting the file,
//! which takes them from every mapping, or they serve the next object.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use tidefs_engine::memory::Mapping;
use tidefs_engine::types::{ByteCount, SegmentId};

use super::pool::{Planned, Pool, Shape, Waiting};
use crate::datapath::{Datapath, Error, Phase};
use crate::namespace::Ino;

/// Segments that are no more whose numbers are kept for clients that ask.
const RETIRED_KEPT: usize = 1 << 16;

/// Part of the capacity that areas may have together, and how many there may be, each a mapping of the daemon, of which Linux lets a
/// process have 65,530 by default; a user other than root may have half of both.
const AREAS_SHARE: u64 = 16;
const AREAS_COUNT_MAX: u64 = 8192;

/// Segments that were lent to disks are looked through for those that are given back when there are so many.
const LENT_KEPT: usize = 256;

/// Areas, counted.
#[derive(Clone, Copy, Debug, Default)]
struct Areas {
    bytes: ByteCount,
    count: u64,
}

impl Areas {
    fn with(self, more: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(more.bytes), count: self.count + more.count }
    }

    /// Whether they are no more than a part of what there may be.
    fn fit(self, capacity: ByteCount, part: u64) -> bool {
        self.bytes.get() <= capacity.get() / (AREAS_SHARE * part) && self.count <= AREAS_COUNT_MAX / part
    }
}

/// What a client may know of a segment.
#[derive(Debug)]
pub(super) enum Use {
    /// It holds the object with this inode.
    Object(Ino),
    /// It belongs to a session of this user.
    Area {
        /// The user.
        uid: u32,
        /// Its length.
        length: ByteCount,
    },
}

/// One segment that clients were told of.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) purpose: Use,
    /// What it can be used again for; `None` when more users than those of one class may have mapped it.
    pub(super) shape: Option<Shape>,
    /// Somebody may have it mapped who made no promise: through the file of its key, or under an earlier daemon.
    pub(super) is_tainted: bool,
    /// How far write(2) of its client may go; `None` where it may not write any more.
    pub(super) written_max: Option<ByteCount>,
}

impl Shared {
    /// One that clients only read.
    pub(super) fn new(purpose: Use, shape: Option<Shape>, is_tainted: bool) -> Self {
        Self { purpose, shape, is_tainted, written_max: None }
    }

    /// One of `length` bytes that a client writes.
    pub(super) fn written(purpose: Use, shape: Option<Shape>, length: ByteCount) -> Self {
        Self { written_max: Some(length), ..Self::new(purpose, shape, false) }
    }
}

/// All segments that clients were told of.
#[derive(Debug)]
pub(in crate::datapath) struct Segments {
    pub(super) known: HashMap<SegmentId, Shared>,
    pub(super) pool: Pool,
    /// The mappings that disks are written from, of whatever segment: it is not cut while one lives.
    lent: HashMap<SegmentId, Vec<Weak<Mapping>>>,
    /// The areas of each user.
    areas: HashMap<u32, Areas>,
    retired: VecDeque<SegmentId>,
    /// How many were ever retired: the number of the next one.
    retired_total: u64,
}

/// Which segments are no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetiredSegments {
    /// Their numbers.
    pub segments: Vec<SegmentId>,
    /// How many were retired up to these.
    pub seen: u64,
    /// How many were retired before these whose numbers are forgotten.
    pub forgotten: u64,
}

impl Segments {
    pub(super) fn new(pool: Pool) -> Self {
        Self {
            known: HashMap::new(),
            pool,
            lent: HashMap::new(),
            areas: HashMap::new(),
            retired: VecDeque::new(),
            retired_total: 0,
        }
    }

    pub(super) fn retired_total(&self) -> u64 {
        self.retired_total
    }

    /// Up to `limit` segments that were retired after the first `seen`; the oldest are forgotten.
    pub(super) fn retired_since(&self, seen: u64, limit: usize) -> RetiredSegments {
        let oldest = self.retired_total - self.retired.len() as u64;
        let skipped = usize::try_from(seen.saturating_sub(oldest)).unwrap_or(usize::MAX);
        let segments: Vec<SegmentId> = self.retired.iter().skip(skipped).take(limit).copied().collect();
        let forgotten = oldest.saturating_sub(seen);
        let seen = seen.max(oldest).saturating_add(segments.len() as u64);
        RetiredSegments { segments, seen, forgotten }
    }

    /// Counts an area of a user, if there may be one more: nothing evicts areas, whoever may write nowhere may have some, and
    /// they are not to take the room of objects.
    pub(super) fn count_area(&mut self, uid: u32, length: ByteCount, capacity: ByteCount) -> bool {
        let one = Areas { bytes: length, count: 1 };
        let all = self.areas.values().fold(one, |sum, areas| sum.with(*areas));
        let own = self.areas.get(&uid).copied().unwrap_or_default().with(one);
        let fits = all.fit(capacity, 1) && own.fit(capacity, if uid == 0 { 1 } else { 2 });
        if fits {
            self.areas.insert(uid, own);
        }
        fits
    }

    /// An area is given back.
    pub(super) fn uncount_area(&mut self, uid: u32, length: ByteCount) {
        if let Some(areas) = self.areas.get_mut(&uid) {
            areas.bytes = areas.bytes.saturating_sub(length);
            areas.count = areas.count.saturating_sub(1);
            if areas.count == 0 {
                self.areas.remove(&uid);
            }
        }
    }

    fn retire(&mut self, segment: SegmentId) {
        if self.retired.len() == RETIRED_KEPT {
            self.retired.pop_front();
        }
        self.retired.push_back(segment);
        self.retired_total += 1;
    }

    /// Whether a disk is written from the segment.
    pub(in crate::datapath) fn is_lent(&self, segment: SegmentId) -> bool {
        self.lent.get(&segment).is_some_and(|lent| lent.iter().any(|mapping| mapping.strong_count() > 0))
    }

    fn lend(&mut self, segment: SegmentId, mapping: &Arc<Mapping>) {
        if self.lent.len() >= LENT_KEPT {
            self.lent.retain(|_, lent| lent.iter().any(|mapping| mapping.strong_count() > 0));
        }
        let lent = self.lent.entry(segment).or_default();
        lent.retain(|mapping| mapping.strong_count() > 0);
        lent.push(Arc::downgrade(mapping));
    }

    /// The object in the segment has another inode now, and programs write it by its file.
    pub(in crate::datapath) fn pass_on(&mut self, segment: SegmentId, to: Ino) {
        if let Some(shared) = self.known.get_mut(&segment) {
            shared.purpose = Use::Object(to);
            shared.is_tainted = true;
        }
    }

    /// Whether the segment waits for the next object when it is freed, which costs next to nothing, and nothing else is cut for
    /// it, beside what is `planned`. Plans it then.
    pub(super) fn would_wait(&self, segment: SegmentId, planned: &mut Planned) -> bool {
        let Some(shared) = self.known.get(&segment) else { return false };
        let shape = shared.shape.filter(|_| !shared.is_tainted && !self.is_lent(segment));
        shape.is_some_and(|shape| self.pool.has_place_for(shape, planned))
    }

    /// Its client has written what it was to write.
    pub(super) fn end_writes(&mut self, segment: SegmentId) {
        if let Some(shared) = self.known.get_mut(&segment) {
            shared.written_max = None;
        }
    }

    /// The file of the key is opened: somebody may map the segment through it.
    pub(in crate::datapath) fn taint(&mut self, segment: SegmentId) {
        if let Some(shared) = self.known.get_mut(&segment) {
            shared.is_tainted = true;
        }
    }
}

impl Datapath {
    /// Maps a segment with `map` for the object `ino` to be written to a disk from, so that it is not cut meanwhile.
    ///
    /// # Errors
    /// `NotFound` when it is not that object's segment any more; what `map` says.
    pub(in crate::datapath) fn lend_mapping<T>(
        &self,
        segment: SegmentId,
        ino: Ino,
        map: impl FnOnce() -> io::Result<(T, Arc<Mapping>)>,
    ) -> io::Result<(T, Arc<Mapping>)> {
        // Held while it is mapped, or it could be cut between being opened and being mapped.
        let mut segments = self.fast.segments.lock();
        let is_anothers = match segments.known.get(&segment).map(|shared| &shared.purpose) {
            Some(Use::Object(owner)) => *owner != ino,
            Some(Use::Area { .. }) => true,
            None => segments.pool.holds(segment),
        };
        if is_anothers {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mapped = map()?;
        segments.lend(segment, &mapped.1);
        Ok(mapped)
    }

    /// Frees a segment that no object is in any more.
    pub(in crate::datapath) fn free_segment(&self, segment: SegmentId) {
        let mut surplus = Vec::new();
        let file = {
            let mut segments = self.fast.segments.lock();
            let is_lent = segments.is_lent(segment);
            segments.lent.remove(&segment);
            let Some(shared) = segments.known.get(&segment) else {
                drop(segments);
                return self.unlink_segment(segment);
            };
            let is_reachable = shared.is_tainted || is_lent;
            let shape = shared.shape.filter(|_| !is_reachable);
            // Opened before it loses its name.
            let file = (!is_reachable).then(|| self.tier.open_segment(segment).ok()).flatten().map(Arc::new);
            if let (Some(shape), Some(file)) = (shape, &file)
                && let Some(oldest) = segments.pool.admit(shape)
            {
                surplus = oldest;
                surplus.iter().for_each(|waiting| segments.retire(waiting.segment));
                if self.tier.unseal(file).is_ok() {
                    segments.known.remove(&segment);
                    segments.pool.keep(Waiting { shape, segment, file: Arc::clone(file) });
                    drop(segments);
                    surplus.iter().for_each(|waiting| self.give_up_segment(waiting.segment, &waiting.file));
                    return;
                }
            }
            segments.known.remove(&segment);
            segments.retire(segment);
            // Its name goes while nobody can be about to map it.
            self.unlink_segment(segment);
            file
        };
        surplus.iter().for_each(|waiting| self.give_up_segment(waiting.segment, &waiting.file));
        if let Some(file) = file {
            self.give_up_segment(segment, &file);
        }
    }

    /// Takes the name and the pages of a segment away that nobody may look at any more.
    fn give_up_segment(&self, segment: SegmentId, file: &std::fs::File) {
        self.unlink_segment(segment);
        if let Err(error) = self.tier.trim(file, ByteCount::ZERO) {
            tracing::error!(segment = segment.0, %error, "a segment could not be cut; its memory stays in use while clients map it");
        }
    }

    fn unlink_segment(&self, segment: SegmentId) {
        if let Err(error) = self.tier.remove_segment(segment) {
            tracing::error!(segment = segment.0, %error, "a segment file could not be removed; its memory stays in use");
        }
    }

    /// Gives up segments that wait for objects, the oldest first, until `wanted` bytes are free. Returns whether any went.
    pub(in crate::datapath) fn drain_pool(&self, wanted: ByteCount) -> bool {
        let mut drained = ByteCount::ZERO;
        while drained < wanted {
            let Some(waiting) = ({
                let mut segments = self.fast.segments.lock();
                let oldest = segments.pool.oldest();
                if let Some(waiting) = &oldest {
                    segments.retire(waiting.segment);
                }
                oldest
            }) else {
                break;
            };
            drained = drained.saturating_add(waiting.shape.pages);
            self.give_up_segment(waiting.segment, &waiting.file);
        }
        drained > ByteCount::ZERO
    }

    /// Bytes of segments that wait for objects: free memory to everybody else.
    pub(in crate::datapath) fn pooled(&self) -> ByteCount {
        self.fast.segments.lock().pool.bytes()
    }

    /// What a copy of the object `ino` that failed comes to: it may have left meanwhile, and its segment been cut.
    pub(in crate::datapath) fn copy_failed(&self, ino: Ino, error: io::Error) -> Error {
        let state = self.lock();
        let is_away = |slot| {
            state.object(slot).is_none_or(|object| object.phase == Phase::Gone || !object.is_readable())
        };
        let has_left = state.tree.by_ino(ino).is_none_or(is_away);
        if has_left { Error::Stale } else { Error::io("copy of an object")(error) }
    }

    /// Which segments are no more, for a client that may have mapped them: at most `limit` at once.
    #[must_use]
    pub fn retired_segments(&self, seen: u64, limit: usize) -> RetiredSegments {
        self.fast.segments.lock().retired_since(seen, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_bounded_by_bytes_and_by_number_and_other_users_have_half() {
        let mut segments = Segments::new(Pool::new(ByteCount::mib(1)));
        let page = ByteCount(4096);
        let mut count = |uid: u32, capacity| {
            (0..=AREAS_COUNT_MAX).take_while(|_| segments.count_area(uid, page, capacity)).count() as u64
        };
        assert_eq!(count(7, ByteCount::mib(1)), 8, "half of a sixteenth");
        assert_eq!(count(7, ByteCount::gib(64)), AREAS_COUNT_MAX / 2 - 8);
        assert_eq!(count(0, ByteCount::gib(64)), AREAS_COUNT_MAX / 2, "what is left");
        segments.uncount_area(7, page);
        assert!(segments.count_area(0, page, ByteCount::gib(64)), "one was given back");
        (1..AREAS_COUNT_MAX / 2).for_each(|_| segments.uncount_area(7, page));
        assert!(!segments.areas.contains_key(&7));
    }

    #[test]
    fn who_asks_too_late_is_told_of_how_many_segments_the_numbers_are_forgotten() {
        let mut segments = Segments::new(Pool::new(ByteCount::mib(1)));
        let kept = RETIRED_KEPT as u64;
        (0..kept).for_each(|number| segments.retire(SegmentId(number)));
        let in_time = segments.retired_since(0, 2);
        assert_eq!((in_time.forgotten, in_time.seen), (0, 2));
        (kept..kept + 3).for_each(|number| segments.retire(SegmentId(number)));
        let late = segments.retired_since(1, 2);
        assert_eq!(late.segments, [SegmentId(3), SegmentId(4)]);
        assert_eq!((late.forgotten, late.seen), (2, 5));
        assert_eq!(segments.retired_since(late.seen, 1).forgotten, 0, "it is told once");
    }
}
