//! What writers, loaders and reclaim share: the index, what is on its way, and the order of everything.

use std::collections::BTreeSet;
use std::io as std_io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};
use tidefs_engine::types::{ByteCount, Checksum, Version};
use xxhash_rust::xxh3::xxh3_64;

use super::admission::{Admission, Budget};
use super::days::Days;
use super::device::Device;
use super::devices::Devices;
use super::epochs::Epochs;
use super::format::{Order, RecordHash, Tombstone, Uuid};
use super::homes::Homes;
use super::identity::Unusable;
use super::index::{Index, Place};
use super::intents::Intents;
use super::io::Io;
use super::open::{Assembled, Growth, SsdConfig};
use super::queue::{Append, Origin, Stored};
use super::recover::version_before;
use super::status::{Counters, DeviceStatus, SsdStatus};
use super::under_way::UnderWay;
use super::{Located, Owner};

/// The same checksum as the memory tier takes, so that it is taken once.
pub(super) fn checksum_of(data: &[u8]) -> Checksum {
    Checksum(xxh3_64(data))
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
    /// Guards to which disks records were moved from those that are being emptied, and may not be durable there.
    pub(super) moved_to: Mutex<BTreeSet<u8>>,
    /// Where changes are kept.
    pub(super) changes: Option<PathBuf>,
    /// The places that the configuration names.
    pub(super) configured: Vec<PathBuf>,
    /// What a disk that is added gets.
    pub(super) growth: Growth,
    /// Guards the epoch of the pool, as it is on its disks, and the file that keeps it. Held while superblocks are written.
    pub(super) epochs: Mutex<Epochs>,
    /// Guards on which disks a record may stand, where that are several: it was being moved when the daemon died, or one of them
    /// read nothing when it was stored again.
    second_places: Mutex<HashMap<RecordHash, Vec<u8>>>,
    pub(super) index: Index,
    /// Where records stood that are written once more.
    pub(super) homes: Homes,
    /// Guards what is on its way; a removal and the end of a record decide under it which comes first. Taken before a shard
    /// of the index and before a queue.
    pub(super) pending: Mutex<UnderWay>,
    pub(super) order: AtomicU64,
    /// A disk's part of the budgets.
    budget: Budget,
    /// Where it is kept what was used of them today, and what earlier lives used.
    pub(super) days: Option<PathBuf>,
    pub(super) earlier_days: Days,
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
            second_places: Mutex::default(),
            index: Index::new(),
            homes: Homes::default(),
            pending: Mutex::default(),
            order: AtomicU64::new(1),
            budget,
            days: config.days.clone(),
            earlier_days: Days::load(config.days.as_deref()),
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
        let earlier = self.earlier_days.of(&device.name).unwrap_or_default();
        *device.admission.lock() = Admission::new(self.budget, self.uptime(), earlier);
    }

    /// Since the start of the tier.
    pub(super) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// A start meets a record on a disk, or it is written there anew. There may be one on another, or the same one a second time:
    /// reclaim wrote it again, and its old zone is not void.
    pub(super) fn note_second_place(&self, hash: &RecordHash, version: Version, device: u8) {
        let Some(known) = self.index.get(hash) else { return };
        let before = u8::try_from(known.place.zone.device()).unwrap_or(device);
        if before != device || known.version == version {
            let mut second = self.second_places.lock();
            second.entry(*hash).or_default().extend([before, device]);
        }
    }

    /// The disks on which a record may stand, where that are several.
    pub(super) fn second_places(&self, hash: &RecordHash) -> Vec<usize> {
        let second = self.second_places.lock();
        let mut places: Vec<usize> =
            second.get(hash).into_iter().flatten().copied().map(usize::from).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    pub(super) fn hash(&self, key: &[u8]) -> RecordHash {
        RecordHash::of(self.pool, key)
    }

    pub(super) fn next_order(&self) -> Order {
        self.order.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn next_move(&self) -> u32 {
        self.moves.fetch_add(1, Ordering::Relaxed)
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
            let device = self.devices.get(place.zone.device());
            device.is_none_or(|device| !device.vacating.covers(place.zone.zone()))
        };
        !under_way.has(hash, version)
            && self.index.get(&hash).is_some_and(|found| found.version == version && stays(found.place))
    }

    /// The disks to which a record of a key is on its way, and that on which it stands.
    pub(super) fn disks_of(&self, hash: RecordHash) -> Vec<u8> {
        let pending = self.pending.lock();
        let mut disks: Vec<u8> = pending.disks_of(hash).collect();
        let stands = self.index.get(&hash);
        disks.extend(stands.and_then(|found| u8::try_from(found.place.zone.device()).ok()));
        disks
    }

    /// The place of a record in the order of everything. Else how its way ends: as one that is not wanted any more, or stands
    /// where it stood while its owner stores that version again, which is not to come before it in the order.
    pub(super) fn draw_order(&self, append: &Append) -> Result<Order, Stored> {
        let (hash, version) = (append.hash, append.version);
        let under_way = self.pending.lock();
        let is_stored_now = under_way.is_stored_now(hash, version);
        let stands_at = |place| {
            self.index.get(&hash).is_some_and(|found| found.place == place && found.version == version)
        };
        match append.origin {
            Origin::Owner(_) if is_stored_now => Ok(self.next_order()),
            Origin::Zone(place) if stands_at(place) && is_stored_now => Err(Stored::Failed),
            Origin::Zone(place) if stands_at(place) => Ok(self.next_order()),
            Origin::Owner(_) | Origin::Zone(_) => Err(Stored::Superseded),
        }
    }

    /// See [`super::SsdTier::remove`].
    pub(super) fn remove(&self, hash: RecordHash, version: Version) {
        let mut pending = self.pending.lock();
        let mut devices = pending.cancel(hash, version);
        let removed = self.index.remove_if(&hash, |found| found.version <= version);
        devices.extend(removed.and_then(|removed| u8::try_from(removed.place.zone.device()).ok()));
        self.bury_wherever(&pending, devices, hash, version);
    }

    /// A version is about to be entered into the index: what stood of it elsewhere counts no more. Returns an older one that
    /// stands there.
    pub(super) fn begin_entering(&self, hash: &RecordHash, version: Version) -> Option<Located> {
        self.homes.forget(hash);
        self.index.get(hash).filter(|older| older.version < version)
    }

    /// A version was entered into the index, where `older` stood, if any did: else one may stand where a start finds it
    /// all the same. Called under the lock of what is pending.
    pub(super) fn bury_replaced(
        &self,
        under_way: &UnderWay,
        hash: RecordHash,
        version: Version,
        older: Option<&Located>,
    ) {
        self.intents.note_stored(hash, version);
        let device = older.and_then(|older| u8::try_from(older.place.zone.device()).ok());
        self.bury_wherever(under_way, device.into_iter().collect(), hash, version_before(version));
    }

    /// Leaves a removal for the disks that are `known` to have a record, and for those that may. Called under the lock of
    /// what is pending.
    fn bury_wherever(&self, under_way: &UnderWay, mut devices: Vec<u8>, hash: RecordHash, version: Version) {
        if !devices.is_empty() {
            // A copy may stand on a disk that is being emptied, or on which a start found it.
            devices.extend(self.devices.numbers(Device::is_leaving));
            devices.extend(self.second_places.lock().get(&hash).into_iter().flatten());
        }
        // A zone that is given up, and that a start may find all the same, is not in the index.
        let is_doubtful = |device: &Device| device.may_find_given_up() && !device.is_failing();
        devices.extend(self.devices.numbers(is_doubtful));
        devices.sort_unstable();
        devices.dedup();
        for number in devices {
            if let Some(device) = self.devices.get(usize::from(number)) {
                self.bury(under_way, &device, hash, version);
            }
        }
    }

    /// Removes a key on every disk, wherever it may stand.
    pub(super) fn remove_everywhere(&self, hash: RecordHash, version: Version) {
        let pending = self.pending.lock();
        self.devices.all().iter().for_each(|device| self.bury(&pending, device, hash, version));
    }

    /// Leaves a removal for a disk's writer. Of a version that is on its way all is to stay, though its order may be drawn
    /// already; of one that stands again, too. Called under the lock of what is pending.
    pub(super) fn bury(&self, under_way: &UnderWay, device: &Device, hash: RecordHash, version: Version) {
        let stands = || self.index.get(&hash).is_some_and(|found| found.version == version);
        let stays = under_way.takes_along(hash, version) || stands();
        let version = if stays { version_before(version) } else { version };
        let tombstone = Tombstone { order: self.next_order(), hash, version };
        self.intents.add(device.number, hash, version);
        // Without a writer, of a disk that is being taken out or of a tier that ends, it waits in the file.
        device.queue.push_tombstones([tombstone]);
    }

    /// A removal as it is to be written now. What stands in the index of its version was stored after it, and has to take along
    /// what was to be removed.
    pub(super) fn as_of_now(&self, tombstone: &Tombstone) -> Tombstone {
        let stands = self.index.mark_again(&tombstone.hash, tombstone.version);
        let version = if stands { version_before(tombstone.version) } else { tombstone.version };
        Tombstone { version, ..*tombstone }
    }

    /// A disk wrote `bytes` in `elapsed`.
    pub(super) fn measured(&self, device: &Device, bytes: u64, elapsed: Duration) {
        device.admission.lock().measured(bytes, elapsed);
    }

    pub(super) fn status(&self) -> SsdStatus {
        let unusable: Vec<DeviceStatus> =
            self.unusable.lock().iter().map(|(name, reason)| DeviceStatus::unusable(name, reason)).collect();
        let devices = self.devices.all();
        let in_use = devices.iter().map(|device| {
            let admission = device.admission.lock();
            let written = device.work.written.total();
            let day = admission.day(written, self.started.elapsed());
            DeviceStatus::of(device, admission.rate(), day)
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
