//! What the datapath is told once, when it is made.

use std::ffi::OsStr;
use std::fmt;
use std::time::Duration;

use tidefs_engine::types::ByteCount;

use super::domains::EvictionSettings;
use crate::namespace::{Attributes, ThreadId};

/// Tells temporary names from final ones.
pub type NamePredicate = Box<dyn Fn(&OsStr) -> bool + Send + Sync>;

/// Tells threads apart.
pub type ThreadPredicate = Box<dyn Fn(ThreadId) -> bool + Send + Sync>;

/// Tells whether there is memory that nobody needs now.
pub type SparePredicate = Box<dyn Fn() -> bool + Send + Sync>;

/// What the datapath needs to know of the configuration.
pub struct Settings {
    /// Most bytes of real pages in the memory tier.
    pub capacity: ByteCount,
    /// Objects below this size are packed.
    pub packed_max: ByteCount,
    /// Free bytes kept ahead of writers that may outgrow what was reserved for them.
    pub write_headroom: ByteCount,
    /// Free bytes kept beyond that by sending what is coldest to the SSD tier, where there is one.
    pub free_ahead: ByteCount,
    /// A file of at least this size becomes scratch.
    pub scratch_min: ByteCount,
    /// Objects of a chain that are brought back from SSD ahead of their use.
    pub prefetch_objects: usize,
    /// Most bytes that are brought back so and not used yet.
    pub prefetch_max: ByteCount,
    /// Whether a name is temporary: not final until it is renamed.
    pub is_temporary: NamePredicate,
    /// Whether pages that a thread makes count against a limit on memory that is not the daemon's.
    pub is_limited_apart: ThreadPredicate,
    /// Whether the machine, and what limits this process, have memory for more than what is in use.
    pub has_spare_memory: SparePredicate,
    /// Most inodes of ours that the kernel may hold; beyond that it is asked to drop idle ones.
    pub kernel_inodes_max: u64,
    /// Longest time a request waits for room.
    pub deadline: Duration,
    /// How eviction is done where no directory says otherwise.
    pub eviction: EvictionSettings,
    /// Attributes of the mount's root when it is new.
    pub root: Attributes,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("capacity", &self.capacity)
            .field("eviction", &self.eviction)
            .finish_non_exhaustive()
    }
}
