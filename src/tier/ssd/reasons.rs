//! What a disk writes and reads bytes for.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use tidefs_engine::types::ByteCount;

/// What bytes are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenFor {
    /// Objects that left memory, or are to be durable, with their headers.
    Objects,
    /// Records that were written before: their zone is taken back, or their disk emptied.
    Again,
    /// Removals.
    Removals,
    /// Headers and footers of zones.
    Structures,
}

/// What bytes are read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFor {
    /// Somebody waits for the object.
    Use,
    /// Nobody does yet.
    Ahead,
    /// A comparison with the checksum.
    Check,
    /// Writing it again.
    Again,
    /// Headers and footers, and what a start looks through.
    Structures,
}

impl WrittenFor {
    /// Each with its name.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Objects, "objects"),
        (Self::Again, "again"),
        (Self::Removals, "removals"),
        (Self::Structures, "structures"),
    ];
}

impl ReadFor {
    /// Whether a miss is better than to wait for a disk that is late.
    pub(super) const fn is_hasty(self) -> bool {
        matches!(self, Self::Use | Self::Ahead)
    }

    /// Each with its name.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Use, "use"),
        (Self::Ahead, "ahead"),
        (Self::Check, "check"),
        (Self::Again, "again"),
        (Self::Structures, "structures"),
    ];
}

/// What bytes move for.
pub(super) trait Reason: Copy + 'static {
    /// Each with its name.
    const EACH: &'static [(Self, &'static str)];

    /// Its place among them.
    fn place(self) -> usize;
}

impl Reason for WrittenFor {
    const EACH: &'static [(Self, &'static str)] = &Self::ALL;

    fn place(self) -> usize {
        self as usize
    }
}

impl Reason for ReadFor {
    const EACH: &'static [(Self, &'static str)] = &Self::ALL;

    fn place(self) -> usize {
        self as usize
    }
}

/// Bytes since the start, by what they moved for.
#[derive(Debug)]
pub(super) struct ByReason<R> {
    bytes: Box<[AtomicU64]>,
    reasons: PhantomData<R>,
}

impl<R: Reason> Default for ByReason<R> {
    fn default() -> Self {
        Self { bytes: R::EACH.iter().map(|_| AtomicU64::new(0)).collect(), reasons: PhantomData }
    }
}

impl<R: Reason> ByReason<R> {
    /// Counts bytes.
    pub(super) fn add(&self, reason: R, bytes: u64) {
        self.bytes[reason.place()].fetch_add(bytes, Ordering::Relaxed);
    }

    /// All of them.
    pub(super) fn total(&self) -> u64 {
        self.bytes.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }

    /// Those of one reason.
    pub(super) fn of(&self, reason: R) -> u64 {
        self.bytes[reason.place()].load(Ordering::Relaxed)
    }

    /// Each reason's.
    pub(super) fn by_reason(&self) -> Vec<(&'static str, ByteCount)> {
        R::EACH.iter().map(|&(reason, name)| (name, ByteCount(self.of(reason)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each_has_a_place_of_its_own<R: Reason + PartialEq>() {
        let counted = ByReason::<R>::default();
        for (bytes, &(reason, name)) in (1..).zip(R::EACH) {
            counted.add(reason, bytes);
            assert_eq!(counted.of(reason), bytes, "{name}");
        }
        let each: Vec<u64> = counted.by_reason().into_iter().map(|(_, bytes)| bytes.get()).collect();
        assert_eq!(each, (1..=each.len() as u64).collect::<Vec<_>>());
        assert_eq!(counted.total(), each.iter().sum::<u64>());
    }

    #[test]
    fn bytes_are_counted_for_the_reason_that_is_given() {
        each_has_a_place_of_its_own::<WrittenFor>();
        each_has_a_place_of_its_own::<ReadFor>();
    }
}
