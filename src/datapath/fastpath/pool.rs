//! Segments that left their objects and wait for the next one of the same class and length: still allocated, and still
//! mapped by the programs that wrote and read them.
//!
//! A class asks for segments by creating objects; what was not asked for is not kept. Whatever waits here is free memory to
//! everybody else: it goes before any object is evicted.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

use hashbrown::HashMap;
use tidefs_engine::types::{ByteCount, SegmentId};

use crate::datapath::rights::AccessClass;

/// Part of the capacity that may wait.
const SHARE: u64 = 16;

/// Segments that may wait, each with its file open.
const COUNT_MAX: usize = 1024;

/// Classes whose wishes are remembered.
const WISHES_MAX: std::num::NonZeroUsize = std::num::NonZeroUsize::new(256).expect("256 is not zero");

/// What a segment can be used again for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::datapath) struct Shape {
    pub(super) class: AccessClass,
    /// Bytes of its pages.
    pub(super) pages: ByteCount,
}

/// A segment that waits.
#[derive(Debug)]
pub(in crate::datapath) struct Waiting {
    pub(super) shape: Shape,
    pub(super) segment: SegmentId,
    pub(super) file: Arc<File>,
}

/// What is about to be kept of what is freed together.
#[derive(Debug, Default)]
pub(super) struct Planned {
    of_shape: HashMap<Shape, u32>,
    bytes: ByteCount,
    count: usize,
}

/// The segments that wait.
#[derive(Debug)]
pub(in crate::datapath) struct Pool {
    waiting: VecDeque<Waiting>,
    bytes: ByteCount,
    bytes_max: ByteCount,
    /// How many more segments of a shape are welcome.
    wishes: lru::LruCache<Shape, u32>,
}

impl Pool {
    pub(in crate::datapath) fn new(capacity: ByteCount) -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: ByteCount::ZERO,
            bytes_max: ByteCount(capacity.get() / SHARE),
            wishes: lru::LruCache::new(WISHES_MAX),
        }
    }

    /// Whether a segment waits here.
    pub(super) fn holds(&self, segment: SegmentId) -> bool {
        self.waiting.iter().any(|waiting| waiting.segment == segment)
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> ByteCount {
        self.bytes
    }

    /// An object of this shape is created: another one will be. Takes a segment for it, if one waits.
    pub(super) fn take(&mut self, shape: Shape) -> Option<Waiting> {
        let wishes_max = u32::try_from(COUNT_MAX).unwrap_or(u32::MAX);
        let wishes = self.wishes.get_or_insert_mut(shape, || 0);
        *wishes = (*wishes + 1).min(wishes_max);
        self.pick(shape)
    }

    /// Takes a segment of this shape, if one waits.
    pub(super) fn pick(&mut self, shape: Shape) -> Option<Waiting> {
        let index = self.waiting.iter().rposition(|waiting| waiting.shape == shape)?;
        let waiting = self.waiting.remove(index)?;
        self.bytes = self.bytes.saturating_sub(shape.pages);
        Some(waiting)
    }

    /// Whether a segment of this shape is welcome: `None` when it is not, else the ones that wait longest and make place for
    /// it, to be given up. Grants the wish.
    pub(super) fn admit(&mut self, shape: Shape) -> Option<Vec<Waiting>> {
        let wishes = self.wishes.get_mut(&shape).filter(|wishes| **wishes > 0)?;
        if shape.pages > self.bytes_max {
            return None;
        }
        *wishes -= 1;
        let mut surplus = Vec::new();
        while self.waiting.len() >= COUNT_MAX || self.bytes.saturating_add(shape.pages) > self.bytes_max {
            surplus.push(self.oldest()?);
        }
        Some(surplus)
    }

    /// Whether a segment of this shape is welcome beside what is `planned`, and none that waits makes place for it. Plans it then.
    pub(super) fn has_place_for(&self, shape: Shape, planned: &mut Planned) -> bool {
        let wishes = self.wishes.peek(&shape).copied().unwrap_or(0);
        let of_shape = planned.of_shape.entry(shape).or_insert(0);
        let bytes = planned.bytes.saturating_add(shape.pages);
        let has_place = *of_shape < wishes
            && self.waiting.len() + planned.count < COUNT_MAX
            && self.bytes.saturating_add(bytes) <= self.bytes_max;
        if has_place {
            *of_shape += 1;
            planned.bytes = bytes;
            planned.count += 1;
        }
        has_place
    }

    /// Keeps a segment.
    pub(super) fn keep(&mut self, waiting: Waiting) {
        self.bytes = self.bytes.saturating_add(waiting.shape.pages);
        self.waiting.push_back(waiting);
    }

    /// The segment that waits longest, to be given up.
    pub(super) fn oldest(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.bytes = self.bytes.saturating_sub(waiting.shape.pages);
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(class: u64, pages: u64) -> Shape {
        Shape { class: AccessClass::for_test(class), pages: ByteCount::kib(pages) }
    }

    fn waiting(shape: Shape, segment: u64) -> Waiting {
        Waiting { shape, segment: SegmentId(segment), file: Arc::new(tempfile::tempfile().unwrap()) }
    }

    #[test]
    fn a_segment_goes_to_an_object_of_its_class_and_length_alone() {
        let mut pool = Pool::new(ByteCount::mib(64));
        pool.keep(waiting(shape(1, 64), 7));
        assert!(pool.holds(SegmentId(7)));
        assert!(pool.take(shape(2, 64)).is_none(), "another class");
        assert!(pool.take(shape(1, 68)).is_none(), "another length");
        assert_eq!(pool.take(shape(1, 64)).unwrap().segment, SegmentId(7));
        assert_eq!((pool.bytes(), pool.holds(SegmentId(7))), (ByteCount::ZERO, false));
    }

    #[test]
    fn what_nobody_asked_for_is_not_kept() {
        let mut pool = Pool::new(ByteCount::mib(64));
        assert!(pool.admit(shape(1, 64)).is_none());
        assert!(pool.take(shape(1, 64)).is_none());
        assert!(pool.admit(shape(1, 64)).is_some(), "one was wished for");
        assert!(pool.admit(shape(1, 64)).is_none(), "and one alone");
    }

    #[test]
    fn a_part_of_the_capacity_may_wait_and_the_oldest_goes_first() {
        let mut pool = Pool::new(ByteCount::mib(1));
        let wished = shape(1, 32);
        for _ in 0..3 {
            assert!(pool.take(wished).is_none());
        }
        for segment in 0..2 {
            assert!(pool.admit(wished).is_some_and(|surplus| surplus.is_empty()));
            pool.keep(waiting(wished, segment));
        }
        let surplus = pool.admit(wished).unwrap();
        assert_eq!(surplus.len(), 1, "a sixteenth of 1 MiB waits");
        assert_eq!(surplus[0].segment, SegmentId(0));
        assert_eq!(pool.bytes(), ByteCount::kib(32));
        assert!(pool.take(shape(1, 128)).is_none() && pool.admit(shape(1, 128)).is_none(), "longer than all");
    }

    #[test]
    fn no_more_is_planned_to_be_kept_than_is_wished_for_and_has_place() {
        let mut pool = Pool::new(ByteCount::mib(1));
        let planned_of = |pool: &Pool, shape: Shape| {
            let mut planned = Planned::default();
            (0..9).filter(|_| pool.has_place_for(shape, &mut planned)).count()
        };
        let (wished, other) = (shape(1, 16), shape(2, 16));
        assert_eq!(planned_of(&pool, wished), 0, "nobody wished for it");
        for _ in 0..3 {
            assert!(pool.take(wished).is_none());
        }
        assert_eq!((planned_of(&pool, wished), planned_of(&pool, other)), (3, 0));
        pool.keep(waiting(other, 7));
        pool.keep(waiting(other, 8));
        assert_eq!(planned_of(&pool, wished), 2, "a sixteenth of 1 MiB waits");
    }
}
