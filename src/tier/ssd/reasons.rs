//! What a disk writes and reads bytes for, and why objects leave the disks, or do not get there.

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

/// Why a record is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedFor {
    /// Its zone was taken back, to have room for others.
    Room,
    /// Its zone gave an error, or it is damaged.
    Error,
    /// Its disk was emptied or taken out.
    Disk,
    /// The capacity of its disk became smaller.
    Capacity,
}

impl DroppedFor {
    /// Each with its name.
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::Room, "room"), (Self::Error, "error"), (Self::Disk, "disk"), (Self::Capacity, "capacity")];
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

/// What bytes move for, or records are given up for.
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

impl Reason for DroppedFor {
    const EACH: &'static [(Self, &'static str)] = &Self::ALL;

    fn place(self) -> usize {
        self as usize
    }
}

/// Bytes, or records, since the start, by what for.
#[derive(Debug)]
pub(super) struct ByReason<R> {
    counts: Box<[AtomicU64]>,
    reasons: PhantomData<R>,
}

impl<R: Reason> Default for ByReason<R> {
    fn default() -> Self {
        Self { counts: R::EACH.iter().map(|_| AtomicU64::new(0)).collect(), reasons: PhantomData }
    }
}

impl<R: Reason> ByReason<R> {
    /// Counts some more.
    pub(super) fn add(&self, reason: R, count: u64) {
        self.counts[reason.place()].fetch_add(count, Ordering::Relaxed);
    }

    /// All of them.
    pub(super) fn total(&self) -> u64 {
        self.counts.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }

    /// Those of one reason.
    pub(super) fn of(&self, reason: R) -> u64 {
        self.counts[reason.place()].load(Ordering::Relaxed)
    }

    /// Each reason's.
    pub(super) fn by_reason(&self) -> Vec<(&'static str, u64)> {
        R::EACH.iter().map(|&(reason, name)| (name, self.of(reason))).collect()
    }

    /// Each reason's bytes.
    pub(super) fn bytes_by_reason(&self) -> Vec<(&'static str, ByteCount)> {
        self.by_reason().into_iter().map(|(name, bytes)| (name, ByteCount(bytes))).collect()
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
        let each: Vec<u64> = counted.by_reason().into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(each, (1..=each.len() as u64).collect::<Vec<_>>());
        assert_eq!(counted.total(), each.iter().sum::<u64>());
    }

    #[test]
    fn bytes_are_counted_for_the_reason_that_is_given() {
        each_has_a_place_of_its_own::<WrittenFor>();
        each_has_a_place_of_its_own::<ReadFor>();
        each_has_a_place_of_its_own::<DroppedFor>();
    }
}
