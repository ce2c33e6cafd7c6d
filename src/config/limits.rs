//! Ends of ranges that more than one setting, or a default, has to know.

use tidefs_engine::types::ByteCount;

/// A cache below this holds too few segments to be one.
pub(super) const CAPACITY_MIN: ByteCount = ByteCount::mib(32);
/// One year: longer lives than any mount.
pub(super) const TTL_S_MAX: u64 = 365 * 24 * 3600;
/// Scratch files that are smaller than a segment gain nothing from the disk.
pub(super) const SCRATCH_MIN_MIN: ByteCount = ByteCount::mib(1);
/// The largest id; the one above is `(uid_t) -1`, which the kernel takes for `leave as it is`.
pub(super) const ID_MAX: u32 = u32::MAX - 1;
