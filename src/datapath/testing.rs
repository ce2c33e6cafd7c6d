//! A cache without a mount, for tests of what its tables say.

use std::sync::Arc;
use std::time::Duration;

use nix::unistd::gettid;
use tidefs_engine::time::{Clock, SystemClock};
use tidefs_engine::types::ByteCount;

use super::{Caller, Datapath, EvictionSettings, Settings};
use crate::namespace::{Attributes, ThreadId};
use crate::telemetry::Telemetry;
use crate::tier::eviction::EvictionParameters;
use crate::tier::memory::{HugePages, MemoryConfig, MemoryTier};
use crate::tier::scratch::Scratch;

const CAPACITY: ByteCount = ByteCount::mib(64);

/// A cache without a mount, whose tier counts its bytes itself as it may not mount a tmpfs.
pub(super) fn unprivileged() -> (tempfile::TempDir, Datapath) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let tier = MemoryTier::open_unprivileged(&MemoryConfig {
        directory: place.path().join("memory"),
        capacity: CAPACITY,
        huge_pages: HugePages::Never,
        prefault_max: ByteCount::ZERO,
    });
    let settings = Settings {
        capacity: CAPACITY,
        packed_max: ByteCount::ZERO,
        write_headroom: ByteCount::ZERO,
        free_ahead: ByteCount::ZERO,
        scratch_min: CAPACITY,
        prefetch_objects: 0,
        prefetch_max: ByteCount::ZERO,
        is_temporary: Box::new(|_| false),
        is_limited_apart: Box::new(|_| false),
        has_spare_memory: Box::new(|| false),
        kernel_inodes_max: 1 << 20,
        deadline: Duration::from_secs(1),
        eviction: EvictionSettings { policy: "lru".to_owned(), parameters: EvictionParameters::default() },
        root: Attributes::new(0o755, 0, 0, 0),
    };
    let scratch = Scratch::new(vec![place.path().join("scratch")], true, CAPACITY);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let datapath = Datapath::new(tier.unwrap(), scratch, clock, settings, Arc::new(Telemetry::default()));
    drop(datapath.recover().unwrap());
    (place, datapath)
}

/// The calling thread, as root.
pub(super) fn caller() -> Caller {
    Caller { uid: 0, gid: 0, thread: ThreadId(gettid().as_raw().cast_unsigned()) }
}
