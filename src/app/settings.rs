//! What the parts are given of the configuration, in their own terms.

use std::path::Path;
use std::time::{Duration, SystemTime};

use super::memory_groups;
use crate::config::{Config, Passthrough};
use crate::datapath::{EvictionSettings, Settings};
use crate::fuse::SessionSettings;
use crate::namespace::{Attributes, nanos_of};
use crate::tier::eviction::EvictionParameters;

/// What the flows over the tiers go by.
pub(super) fn settings_of(config: &Config) -> Settings {
    let mut parameters = EvictionParameters::default();
    parameters.leaf_bonus.bonus = config.eviction.bonus;
    parameters.leaf_bonus.hits_max = u8::try_from(config.eviction.bonus_hits_max).unwrap_or(u8::MAX);
    parameters.leaf_bonus.ghost_factor = config.eviction.ghost_factor;
    let patterns = config.names.temporary.clone();
    Settings {
        capacity: config.memory.capacity,
        packed_max: config.memory.packed_max,
        write_headroom: config.memory.write_headroom,
        free_ahead: config.ssd.free_ahead,
        prefetch_objects: config.ssd.prefetch_objects,
        prefetch_max: config.ssd.prefetch_max,
        scratch_min: config.scratch.min,
        is_temporary: Box::new(move |name| patterns.matches(name)),
        is_limited_apart: memory_groups::limited_apart(),
        has_spare_memory: memory_groups::spare(),
        kernel_inodes_max: config.fuse.cached_inodes_max,
        deadline: Duration::from_millis(config.runtime.deadline_ms),
        eviction: EvictionSettings { policy: config.eviction.policy.as_str().to_owned(), parameters },
        root: Attributes::new(
            config.root.mode.0,
            config.root.uid,
            config.root.gid,
            nanos_of(SystemTime::now()),
        ),
    }
}

/// What the mount is made with.
pub(super) fn session_settings(config: &Config, mount_dir: &Path) -> SessionSettings {
    SessionSettings {
        directory: mount_dir.to_owned(),
        threads: config.fuse.threads,
        allow_other: config.fuse.allow_other,
        exec: config.fuse.exec,
        source: config.fuse.source.0.clone(),
        passthrough: matches!(config.fuse.passthrough, Passthrough::Auto | Passthrough::Always),
        page_cache: match config.fuse.passthrough {
            Passthrough::Never => Some(false),
            Passthrough::Cached => Some(true),
            Passthrough::Auto | Passthrough::Always => None,
        },
        passthrough_required: config.fuse.passthrough == Passthrough::Always,
        entry_ttl: Duration::from_secs(config.fuse.entry_ttl_s),
        negative_ttl: Duration::from_secs(config.fuse.negative_ttl_s),
        max_background: config.fuse.max_background,
        loads: match (config.cluster.is_clustered(), config.ssd.dirs.paths().is_empty()) {
            (false, _) => config.ssd.loads,
            (true, true) => config.ssd.loads.max(config.cluster.fetches),
            // Each gets half of them at most.
            (true, false) => config.ssd.loads.max(config.cluster.fetches).saturating_mul(2),
        },
    }
}
