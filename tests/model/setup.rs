//! How large the daemon is that is tried, and what it does of its own accord.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use tidefs::datapath::{EvictionSettings, Settings};
use tidefs::namespace::{Attributes, nanos_of};
use tidefs::tier::eviction::EvictionParameters;
use tidefs_engine::time::Clock;
use tidefs_engine::types::ByteCount;

/// What differs between cases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// Capacity of the memory tier.
    pub(crate) capacity: ByteCount,
    /// Objects below this size are packed.
    pub(crate) packed_max: ByteCount,
    /// Room kept ahead of writers.
    pub(crate) write_headroom: ByteCount,
    /// Files of this size are slot files.
    pub(crate) scratch_min: ByteCount,
    /// The eviction policy.
    pub(crate) policy: &'static str,
    /// Whether the kernel drops its caches after every step.
    pub(crate) forgets_at_once: bool,
    /// Whether there is a disk below memory, with room for everything.
    pub(crate) has_ssd: bool,
}

impl Setup {
    /// A plain one: memory alone, no file that is a slot file before it fills the cache.
    pub(crate) const fn of(capacity: ByteCount) -> Self {
        Self {
            capacity,
            packed_max: ByteCount::kib(4),
            write_headroom: ByteCount::ZERO,
            scratch_min: capacity,
            policy: "lru",
            forgets_at_once: false,
            has_ssd: false,
        }
    }

    /// What a daemon is told of it that begins now.
    pub(crate) fn settings(&self, clock: &dyn Clock) -> Settings {
        Settings {
            capacity: self.capacity,
            packed_max: self.packed_max,
            write_headroom: self.write_headroom,
            free_ahead: ByteCount::ZERO,
            prefetch_objects: 0,
            // One object of those tests that have any loaded ahead.
            prefetch_max: ByteCount::kib(64),
            scratch_min: self.scratch_min,
            is_temporary: Box::new(|name: &OsStr| name.as_bytes().ends_with(b".tmp")),
            is_limited_apart: Box::new(|_| false),
            has_spare_memory: Box::new(|| false),
            kernel_inodes_max: 1 << 20,
            deadline: Duration::from_secs(1),
            eviction: EvictionSettings {
                policy: self.policy.to_owned(),
                parameters: EvictionParameters::default(),
            },
            root: Attributes::new(0o755, 0, 0, nanos_of(clock.wall())),
        }
    }
}
