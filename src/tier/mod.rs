//! Where bytes live: the memory tier, and who leaves when it is full.

pub mod eviction;
pub mod memory;
pub mod scratch;
pub mod ssd;
