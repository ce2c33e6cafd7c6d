//! A disk below memory, for the logic without a kernel: what the session does for objects that are on it alone.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use tidefs::namespace::Ino;
use tidefs::tier::ssd::{Budget, SsdConfig, SsdTier};
use tidefs_engine::types::ByteCount;

use super::Logic;
use crate::system::{Space, WATCHER};

/// Disk space below memory: more than the objects of a test.
const SSD_CAPACITY: ByteCount = ByteCount::mib(96);

impl Logic {
    pub(super) fn open_ssd(&self) -> SsdTier {
        let place = self.base.path().join("ssd");
        std::fs::create_dir_all(&place).expect("a directory for the disk");
        SsdTier::open(&SsdConfig {
            places: vec![place],
            capacity: SSD_CAPACITY,
            zone_bytes: ByteCount::mib(4),
            budget: Budget {
                bytes_per_second: None,
                bytes_per_day: self.bytes_per_day,
                queue: Duration::from_secs(60),
                queue_bytes_max: ByteCount::mib(16),
            },
            io_uring: true,
            intents: Some(self.base.path().join("removals")),
            changes: None,
            epochs: None,
            days: None,
            limit: Duration::from_secs(30),
        })
        .expect("the disk opens")
    }

    /// From the next start on the disk takes so much in a day.
    pub(crate) fn limit_disk(&mut self, bytes_per_day: ByteCount) {
        self.bytes_per_day = Some(bytes_per_day);
    }

    /// What statfs(2) tells of memory: `space` without the disk, whose used bytes are those of its records. A quota is of
    /// memory alone.
    pub(super) fn without_disk(&self, space: Space) -> Space {
        if space.capacity <= self.setup.capacity.get() {
            return space;
        }
        let disk = self.datapath().ssd().map(|tier| tier.space()).unwrap_or_default();
        let free_on_disk = disk.capacity.get() - disk.used.get();
        Space { capacity: space.capacity - disk.capacity.get(), free: space.free - free_on_disk }
    }

    /// Sends what is coldest to the disk until `bytes` left memory, or all that may.
    pub(crate) fn demote(&mut self, bytes: ByteCount) {
        self.datapath().evict_coldest(bytes, |_| ControlFlow::Continue(()));
    }

    /// The same, to be done by another thread.
    pub(crate) fn demoter(&self) -> impl FnOnce(ByteCount) + Send + 'static {
        let datapath = Arc::clone(self.datapath());
        move |bytes| {
            datapath.evict_coldest(bytes, |_| ControlFlow::Continue(()));
        }
    }

    /// Where the bytes of an object are.
    pub(crate) fn tier_of(&mut self, path: &str) -> String {
        let ino = self.resolve(WATCHER, path).expect("it is there");
        let value = self.datapath().get_attribute(ino, b"user.tidefs.tier").expect("an object has a tier");
        String::from_utf8(value).expect("a word")
    }

    /// Starts again without what was in memory, as after a reboot.
    pub(crate) fn lose_memory(&mut self) {
        self.references.clear();
        self.handles.clear();
        self.datapath = None;
        while umount2(&self.memory(), MntFlags::MNT_DETACH).is_ok() {}
        // Versions are told apart by the second of the start.
        self.clock.advance(Duration::from_secs(2));
        self.start();
    }

    /// Brings an object back before it is used, as the session does. A miss is told by what comes next.
    pub(super) fn load(&self, ino: Ino) {
        if self.datapath().must_load(ino) {
            let _ = self.datapath().promote(ino);
        }
    }
}
