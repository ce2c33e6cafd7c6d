//! A cache without a mount, for tests of what its tables say.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::gettid;
use tidefs_engine::time::{Clock, SystemClock};
use tidefs_engine::types::ByteCount;

use super::{
    BeginRequest, Caller, Credentials, Datapath, EvictionSettings, Located, OpenOptions, Session, Settings,
};
use crate::namespace::{Attributes, Ino, ThreadId};
use crate::telemetry::Telemetry;
use crate::tier::eviction::EvictionParameters;
use crate::tier::memory::{HugePages, MemoryConfig, MemoryTier};
use crate::tier::scratch::Scratch;
use crate::tier::ssd::{Budget, SsdConfig, SsdTier};

const CAPACITY: ByteCount = ByteCount::mib(64);

/// A cache without a mount, whose tier counts its bytes itself as it may not mount a tmpfs.
pub(crate) fn unprivileged() -> (tempfile::TempDir, Datapath) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let datapath = reopened(&place);
    (place, datapath)
}

/// The same over what an earlier one left there.
pub(super) fn reopened(place: &tempfile::TempDir) -> Datapath {
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
    datapath
}

/// Gives a cache a disk in `place`, on which what waits for it counts `queue_max` at most.
pub(super) fn attach_disk(datapath: &Arc<Datapath>, place: &Path, queue_max: ByteCount) {
    let tier = SsdTier::open(&SsdConfig { places: vec![place.to_owned()], ..disks_with(queue_max) });
    let (_, unnamed) = datapath.attach_ssd(tier.unwrap()).unwrap();
    datapath.name_objects(unnamed, || false);
}

/// Disks in no place yet, of 32 MiB, without budgets.
pub(super) fn disks_with(queue_max: ByteCount) -> SsdConfig {
    SsdConfig {
        places: Vec::new(),
        capacity: ByteCount::mib(32),
        zone_bytes: ByteCount::mib(4),
        budget: Budget {
            bytes_per_second: None,
            bytes_per_day: None,
            queue: Duration::from_secs(60),
            queue_bytes_max: queue_max,
        },
        io_uring: false,
        intents: None,
        changes: None,
        epochs: None,
        roots: None,
        days: None,
        limit: Duration::from_secs(30),
    }
}

/// The calling thread, as root.
pub(super) fn caller() -> Caller {
    Caller { uid: 0, gid: 0, thread: ThreadId(gettid().as_raw().cast_unsigned()) }
}

/// What opens a file to write it.
pub(super) const WRITE: OpenOptions = OpenOptions {
    read: false,
    write: true,
    truncate: false,
    exclusive: false,
    cut_to: None,
    by_descriptor: false,
};

/// Makes an object of 1 MiB.
pub(super) fn make(datapath: &Datapath, directory: Ino, name: &str) -> Ino {
    let (_, opened) = datapath.create(&caller(), directory, name.as_bytes(), 0o644, WRITE).unwrap();
    datapath.write(opened.handle, 0, &vec![1; 1 << 20]).unwrap();
    datapath.flush(&caller(), opened.handle).unwrap();
    datapath.release(opened.handle);
    opened.ino
}

/// Makes a directory.
pub(super) fn directory(datapath: &Datapath, name: &[u8]) -> Ino {
    datapath.make_directory(&caller(), Ino::ROOT, name, 0o755).unwrap().ino
}

/// Begins another object of 1 MiB for each of some names.
pub(super) fn begin(datapath: &Datapath, directory: Ino, names: &[&'static str]) -> Session {
    let session = datapath.begin_session(Credentials::of_request(0, 0, caller().thread), true);
    let size = ByteCount::mib(1);
    let request = |name: &&'static str| BeginRequest { name: name.as_bytes(), size, mode: 0o644 };
    datapath.begin(&session, directory, names.iter().map(request), |begun| {
        assert!(matches!(begun, Located::Here { .. }), "{begun:?}");
    });
    session
}
