//! Where bytes live: in memory, on local disks, and, for files that are rewritten in place, as scratch; and who leaves when memory is
//! full.

pub mod eviction;
pub mod memory;
pub(crate) mod roots;
pub mod scratch;
pub mod ssd;

#[cfg(test)]
#[path = "../../tests/common/small_disk.rs"]
pub(crate) mod small_disk;

/// Largest version, order or id that anything on disk or in an attribute may have. Nobody counts so far, and what is new counts
/// on from what is there: from the last number on it would come before all of it.
pub(crate) const NUMBER_MAX: u64 = u64::MAX / 2;
