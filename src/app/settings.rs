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

/// Threads that load, of a daemon that has a lower tier, with disks or without.
pub(super) fn load_threads(config: &Config, has_disks: bool) -> usize {
    let loads = config.ssd.loads;
    match (config.cluster.is_clustered(), has_disks) {
        (false, _) => loads,
        (true, false) => loads.max(config.cluster.fetches),
        // Each gets half of them at most.
        (true, true) => loads.max(config.cluster.fetches).saturating_mul(2),
    }
}

/// What the mount is made with. `has_disks`: whether there is an SSD tier, of disks that are configured or were added.
pub(super) fn session_settings(config: &Config, mount_dir: &Path, has_disks: bool) -> SessionSettings {
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
        loads: load_threads(config, has_disks),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tidefs_engine::types::ByteCount;

    use super::*;
    use crate::config::{Host, Sources};

    fn config(options: &str) -> Config {
        let host = Host {
            memory: ByteCount::gib(64),
            memory_usable: ByteCount::gib(64),
            cpus: 8,
            uid: 0,
            gid: 0,
            runtime_dir: None,
            state_home: PathBuf::from("/home/user/.local/state"),
            free_space: |_| Some(ByteCount::gib(100)),
        };
        let sources = Sources::new(host, PathBuf::from("/mnt/kv"));
        Config::load(&Sources { options: vec![options.to_owned()], ..sources }).unwrap().config
    }

    /// Threads without disks and with some.
    fn threads(options: &str) -> [usize; 2] {
        [false, true].map(|has_disks| load_threads(&config(options), has_disks))
    }

    #[test]
    fn the_first_disk_of_a_member_takes_no_thread_from_what_it_fetches() {
        // With a disk half of the threads are for members.
        assert_eq!(threads("cluster.coordinator=10.0.0.1:7401"), [32, 64]);
        assert_eq!(threads("cluster.coordinator=10.0.0.1:7401,ssd.loads=100"), [100, 200]);
        assert_eq!(threads("ssd.loads=100"), [100, 100], "alone it fetches nothing");
    }

    #[test]
    fn a_disk_that_was_added_to_an_earlier_daemon_counts_as_one_that_is_configured() {
        let config = config("cluster.coordinator=10.0.0.1:7401");
        assert!(config.ssd.dirs.paths().is_empty());
        assert_eq!(session_settings(&config, Path::new("/mnt/kv"), true).loads, 64);
    }
}
