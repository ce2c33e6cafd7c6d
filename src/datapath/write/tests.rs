//! A cache whose tier counts its bytes itself: what is changed through the datapath.

use nix::unistd::gettid;
use tidefs_engine::time::{Clock, SystemClock};

use super::super::{EvictionSettings, Settings};
use super::*;
use crate::namespace::{Attributes, ThreadId};
use crate::telemetry::Telemetry;
use crate::tier::eviction::EvictionParameters;
use crate::tier::memory::{HugePages, MemoryConfig, MemoryTier};
use crate::tier::scratch::Scratch;

const CAPACITY: ByteCount = ByteCount::mib(64);

/// A cache without a mount, whose tier counts its bytes itself as it may not mount a tmpfs.
fn unprivileged() -> (tempfile::TempDir, Datapath) {
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
        deadline: std::time::Duration::from_secs(1),
        eviction: EvictionSettings { policy: "lru".to_owned(), parameters: EvictionParameters::default() },
        root: Attributes::new(0o755, 0, 0, 0),
    };
    let scratch = Scratch::new(vec![place.path().join("scratch")], true, CAPACITY);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let datapath = Datapath::new(tier.unwrap(), scratch, clock, settings, Arc::new(Telemetry::default()));
    drop(datapath.recover().unwrap());
    (place, datapath)
}

#[test]
fn what_cutting_punching_and_unlinking_free_is_free_where_the_tier_counts_for_itself() {
    let (_place, datapath) = unprivileged();
    let used = || datapath.tier.usage().unwrap().used;
    let caller = Caller { uid: 0, gid: 0, thread: ThreadId(gettid().as_raw().cast_unsigned()) };
    let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let before = used();
    let size = ByteCount::mib(4);
    let (_, opened) = datapath.create(&caller, Ino::ROOT, b"slots", 0o644, options).unwrap();
    let fill = || {
        datapath.write(opened.handle, 0, &vec![1; 4 << 20]).unwrap();
        assert_eq!(used(), before.saturating_add(size));
    };
    let change = |change| datapath.change_size(&caller, opened.ino, Some(opened.handle), change).unwrap();
    fill();
    change(SizeChange::Set(ByteCount::ZERO));
    assert_eq!(used(), before, "ftruncate");
    fill();
    change(SizeChange::Punch { offset: ByteCount::ZERO, length: size });
    assert_eq!(used(), before, "a hole");
    fill();
    let cut = OpenOptions { truncate: true, ..options };
    let again = datapath.open(&caller, opened.ino, cut).unwrap();
    assert_eq!(used(), before, "O_TRUNC");
    fill();
    datapath.unlink(&caller, Ino::ROOT, b"slots").unwrap();
    datapath.write(opened.handle, 0, &vec![1; 8 << 20]).unwrap();
    [opened, again].into_iter().for_each(|opened| datapath.release(opened.handle));
    assert_eq!(used(), before, "unlink");
}
