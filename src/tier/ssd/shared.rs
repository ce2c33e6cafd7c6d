//! What writers, loaders and reclaim share: the index, what is on its way, and the order of everything.
//!
//! Lock order: what is on its way ([`Shared::pending`]), then a shard of the index, a queue, or what is known of second places and
//! of homes. Nothing waits for a disk under it.

use std::collections::BTreeSet;
use std::io as std_io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidefs_engine::types::{ByteCount, Checksum, Version};
use twox_hash::XxHash3_64;

use super::admission::{Admission, Budget};
use super::days::Days;
use super::device::Device;
use super::devices::Devices;
use super::epochs::Epochs;
use super::format::{Order, RecordHash, Uuid};
use super::homes::Homes;
use super::identity::Unusable;
use super::index::{Index, Place, ZoneId};
use super::intents::Intents;
use super::io::Io;
use super::open::{Assembled, Growth, SsdConfig};
use super::queue::{Append, Origin, Stored};
use super::second_places::SecondPlaces;
use super::status::{Counters, DeviceStatus, SsdStatus};
use super::under_way::UnderWay;
use super::{Located, Owner};

/// The same checksum as the memory tier takes, so that it is taken once.
pub(super) fn checksum_of(data: &[u8]) -> Checksum {
    Checksum(XxHash3_64::oneshot(data))
}

/// Everything but the threads.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) pool: Uuid,
    pub(super) devices: Devices,
    /// Guards what is said of places that are not used.
    pub(super) unusable: Mutex<Vec<(String, Unusable)>>,
    /// Guards nothing but that one change of the disks is made at a time.
    pub(super) change: Mutex<()>,
    /// Guards nothing but that a disk is not emptied to others while one of its zones is being taken back.
    pub(super) reclaiming: Mutex<()>,
    /// Guards from which disks, that are being emptied, records were moved to which others since the start, and may not be durable
    /// there. What earlier lives moved is: a start flushes each disk.
    pub(super) moved_to: Mutex<BTreeSet<(u8, u8)>>,
    /// Where changes are kept.
    pub(super) changes: Option<PathBuf>,
    /// The places that the configuration names.
    pub(super) configured: Vec<PathBuf>,
    /// What a disk that is added gets.
    pub(super) growth: Growth,
    /// Guards the epoch of the pool, as it is on its disks, and the file that keeps it. Held while superblocks are written.
    pub(super) epochs: Mutex<Epochs>,
    /// On which disks a record may stand, where that are several.
    pub(super) second_places: SecondPlaces,
    pub(super) index: Index,
    /// Where records stood that are written once more.
    pub(super) homes: Homes,
    /// Guards what is on its way; a removal and the end of a record decide under it which comes first. Taken before a shard
    /// of the index and before a queue.
    pub(super) pending: Mutex<UnderWay>,
    pub(super) order: AtomicU64,
    /// A disk's part of the budgets.
    budget: Budget,
    /// Where it is kept what was used of them today.
    pub(super) days: Option<PathBuf>,
    /// Guards what earlier lives used of it, and disks that were taken out.
    pub(super) earlier_days: Mutex<Days>,
    pub(super) intents: Intents,
    left_intents: Mutex<Vec<(RecordHash, Version)>>,
    pub(super) owner: OnceLock<Arc<dyn Owner>>,
    pub(super) counters: Counters,
    started: Instant,
    /// How long a request of a disk may take.
    pub(super) limit: Duration,
    pub(super) io: Option<Arc<Io>>,
    pub(super) is_stopping: AtomicBool,
    /// Whether the owner was told of everything that a start found.
    pub(super) is_named: AtomicBool,
    /// Whether no zone will be freed any more.
    pub(super) is_reclaim_over: AtomicBool,
    /// Whether reclaim was woken and has not looked yet.
    reclaim_woken: Mutex<bool>,
    reclaim_wake: Condvar,
    /// Tells records on the move apart.
    moves: AtomicU32,
}

impl Shared {
    pub(super) fn new(
        assembled: Assembled,
        config: &SsdConfig,
        epochs: Epochs,
        io: Option<Arc<Io>>,
    ) -> std_io::Result<Self> {
        let Assembled { pool, devices, unusable, growth } = assembled;
        let (intents, left) = Intents::open(config.intents.as_deref())
            .map_err(|error| std_io::Error::new(error.kind(), format!("its file of removals: {error}")))?;
        let share = devices.len().max(1) as u64;
        let mut budget = config.budget;
        budget.bytes_per_second = budget.bytes_per_second.map(|rate| ByteCount((rate.get() / share).max(1)));
        budget.bytes_per_day = budget.bytes_per_day.map(|bytes| ByteCount((bytes.get() / share).max(1)));
        budget.queue_bytes_max = ByteCount(budget.queue_bytes_max.get() / share);
        let shared = Self {
            pool,
            devices: Devices::new(devices),
            unusable: Mutex::new(unusable),
            change: Mutex::new(()),
            reclaiming: Mutex::new(()),
            moved_to: Mutex::default(),
            changes: config.changes.clone(),
            configured: config.places.clone(),
            growth,
            epochs: Mutex::new(epochs),
            second_places: SecondPlaces::default(),
            index: Index::new(),
            homes: Homes::default(),
            pending: Mutex::default(),
            order: AtomicU64::new(1),
            budget,
            days: config.days.clone(),
            earlier_days: Mutex::new(Days::load(config.days.as_deref())),
            intents,
            left_intents: Mutex::new(left),
            owner: OnceLock::new(),
            counters: Counters::default(),
            started: Instant::now(),
            limit: config.limit,
            io,
            is_stopping: AtomicBool::new(false),
            is_named: AtomicBool::new(true),
            is_reclaim_over: AtomicBool::new(false),
            reclaim_woken: Mutex::new(false),
            reclaim_wake: Condvar::new(),
            moves: AtomicU32::new(0),
        };
        shared.devices.all().iter().for_each(|device| shared.give_budget(device));
        Ok(shared)
    }

    /// Gives a disk its part of the budgets.
    pub(super) fn give_budget(&self, device: &Device) {
        let earlier = self.earlier_days.lock().of(&device.name).unwrap_or_default();
        *device.admission.lock() = Admission::new(self.budget, self.uptime(), earlier);
    }

    /// Since the start of the tier.
    pub(super) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn hash(&self, key: &[u8]) -> RecordHash {
        RecordHash::of(self.pool, key)
    }

    pub(super) fn next_order(&self) -> Order {
        self.order.fetch_add(1, Ordering::Relaxed)
    }

    /// Where a record of a disk stands while it is moved: no other one does.
    pub(super) fn nowhere(&self, disk: u8) -> Place {
        Place { zone: ZoneId::on_the_move(disk), block: self.moves.fetch_add(1, Ordering::Relaxed) }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    pub(super) fn take_left_intents(&self) -> Vec<(RecordHash, Version)> {
        std::mem::take(&mut self.left_intents.lock())
    }

    pub(super) fn wake_reclaim(&self) {
        *self.reclaim_woken.lock() = true;
        self.reclaim_wake.notify_one();
    }

    pub(super) fn wait_for_reclaim(&self, limit: Duration) {
        let mut woken = self.reclaim_woken.lock();
        self.reclaim_wake.wait_while_for(&mut woken, |woken| !*woken, limit);
        *woken = false;
    }

    /// See [`super::SsdTier::has_settled`].
    pub(super) fn has_settled(&self, hash: RecordHash, version: Version) -> bool {
        let under_way = self.pending.lock();
        let stays = |place: Place| {
            self.devices.of(place).is_none_or(|device| !device.vacating.covers(place.zone.zone()))
        };
        !under_way.has(hash, version)
            && self.index.get_version(&hash, version).is_some_and(|found| stays(found.place))
    }

    /// The disks to which a record of a key is on its way, and that on which it stands.
    pub(super) fn disks_of(&self, hash: RecordHash) -> Vec<u8> {
        let pending = self.pending.lock();
        let mut disks: Vec<u8> = pending.disks_of(hash).collect();
        let stands = self.index.get(&hash);
        disks.extend(stands.map(|found| found.place.zone.device()));
        disks
    }

    /// Whether one of them is meant.
    pub(super) fn has_on(&self, key: &[u8], is_meant: impl Fn(&Device) -> bool) -> bool {
        let disks = self.disks_of(self.hash(key)).into_iter();
        disks.filter_map(|number| self.devices.get(number)).any(|device| is_meant(&device))
    }

    /// The place of a record in the order of everything. Else how its way ends: as one that is not wanted any more, or stands
    /// where it stood while its owner stores that version again, which is not to come before it in the order.
    pub(super) fn draw_order(&self, append: &Append) -> Result<Order, Stored> {
        let (hash, version) = (append.hash, append.version);
        let under_way = self.pending.lock();
        let is_stored_now = under_way.is_stored_now(hash, version);
        let stands_at = |place| self.index.get_at(&hash, place).is_some_and(|found| found.version == version);
        match append.origin {
            Origin::Owner(_) if is_stored_now => Ok(self.next_order()),
            Origin::Zone(place) if stands_at(place) && is_stored_now => Err(Stored::Failed),
            Origin::Zone(place) if stands_at(place) => Ok(self.next_order()),
            Origin::Owner(_) | Origin::Zone(_) => Err(Stored::Superseded),
        }
    }

    /// A version that stands on `device` is about to be entered into the index: what stood of it elsewhere counts no more. Returns
    /// an older one that stands there. Called under the lock of what is pending.
    pub(super) fn begin_entering(&self, hash: &RecordHash, version: Version, device: u8) -> Option<Located> {
        self.note_former_home(hash, self.homes.take(hash), device);
        self.note_on_another(hash, version, device);
        self.index.get(hash).filter(|older| older.version < version)
    }

    pub(super) fn status(&self) -> SsdStatus {
        let unusable: Vec<DeviceStatus> =
            self.unusable.lock().iter().map(|(name, reason)| DeviceStatus::unusable(name, reason)).collect();
        let devices = self.devices.all();
        let in_use = devices.iter().map(|device| {
            let written = device.work.written.total();
            let (rate, day) = {
                let admission = device.admission.lock();
                (admission.rate(), admission.day(written, self.started.elapsed()))
            };
            DeviceStatus::of(device, rate, day)
        });
        self.counters.status(SsdStatus {
            objects: self.index.len() as u64,
            index_bytes: ByteCount(self.index.memory_bytes() as u64),
            io_fallback: self.io.as_ref().and_then(|io| io.fallback_reason()).map(str::to_owned),
            devices: in_use.chain(unusable).collect(),
            ..SsdStatus::default()
        })
    }
}
