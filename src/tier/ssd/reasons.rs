//! What a disk writes and reads bytes for.

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
    /// Each with its name.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Use, "use"),
        (Self::Ahead, "ahead"),
        (Self::Check, "check"),
        (Self::Again, "again"),
        (Self::Structures, "structures"),
    ];
}

/// Bytes written since the start.
#[derive(Debug, Default)]
pub(super) struct Written([AtomicU64; WrittenFor::ALL.len()]);

impl Written {
    /// Counts bytes.
    pub(super) fn add(&self, reason: WrittenFor, bytes: u64) {
        self.0[reason as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// All of them.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }

    /// Those of one reason.
    pub(super) fn of(&self, reason: WrittenFor) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }

    /// Each reason's.
    pub(super) fn by_reason(&self) -> Vec<(&'static str, ByteCount)> {
        WrittenFor::ALL.iter().map(|(reason, name)| (*name, ByteCount(self.of(*reason)))).collect()
    }
}

/// Bytes read since the start.
#[derive(Debug, Default)]
pub(super) struct Read([AtomicU64; ReadFor::ALL.len()]);

impl Read {
    /// Counts bytes.
    pub(super) fn add(&self, reason: ReadFor, bytes: u64) {
        self.0[reason as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Each reason's.
    pub(super) fn by_reason(&self) -> Vec<(&'static str, ByteCount)> {
        let of = |reason: ReadFor| ByteCount(self.0[reason as usize].load(Ordering::Relaxed));
        ReadFor::ALL.iter().map(|(reason, name)| (*name, of(*reason))).collect()
    }
}
