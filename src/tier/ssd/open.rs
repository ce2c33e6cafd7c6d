//! Putting a pool together from the places that are configured: which disks take part, and with what identity.
//!
//! Invariants
//! - What is wrong with a place leaves it out, and is shown; it ends no start.
//! - Superblocks are written last, when all that takes time is done, and a disk that did not get its own is not used in this life:
//!   the others go ahead of it.
//!
//! Limits: [`DEVICES_MAX`] disks, each of [`ZONES_MIN`] zones at least. Of two names of one directory or device, by a link perhaps,
//! the one that locks it first has it, either of them; the other one is not used in this life.
//! Threads: the one that opens the tier, and one for each disk while it is opened, and read.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use tidefs_engine::types::ByteCount;

use super::super::roots::Roots;
use super::admission::Budget;
use super::changes_file::Changes;
use super::device::Device;
use super::disk::Disk;
use super::epochs::Epochs;
use super::format::{BLOCK, BLOCK_BYTES, Superblock, Uuid, ZONES_START};
use super::identity::{
    START_LIMIT, Unusable, ZONE_BYTES_MIN, draw_uuid, flush, open_file, read_superblocks, unmounted,
    write_blocks, write_superblock, write_superblocks, zone_bytes_for,
};
use super::index::ZONES_MAX;
use super::io::{FileDisk, Io};
use super::side_by_side::side_by_side;
use super::stations::read_zones;

/// Most disks of a pool: their number is a byte of a place.
pub(super) const DEVICES_MAX: usize = 255;
/// With fewer zones there is none to write to while another is taken back.
const ZONES_MIN: u64 = 3;

/// What the tier is made of.
#[derive(Clone, Debug)]
pub struct SsdConfig {
    /// Directories, or block devices.
    pub places: Vec<PathBuf>,
    /// Most bytes of real blocks on all of them together; with zero, three quarters of what is free on each.
    pub capacity: ByteCount,
    /// Bytes of a zone, less on small disks.
    pub zone_bytes: ByteCount,
    /// What may be written.
    pub budget: Budget,
    /// Whether io_uring is tried.
    pub io_uring: bool,
    /// A file on a tmpfs for removals that are not on disk yet.
    pub intents: Option<PathBuf>,
    /// A file for disks that are added and removed while the tier is used.
    pub changes: Option<PathBuf>,
    /// A file for what was written of the budget of the day.
    pub days: Option<PathBuf>,
    /// A file for the epochs of pools that were used, which outlives a restart of the machine.
    pub epochs: Option<PathBuf>,
    /// A file for where places are mounted, which outlives that, too.
    pub roots: Option<PathBuf>,
    /// How long a request of a disk may take.
    pub limit: Duration,
}

impl SsdConfig {
    /// Whether there is any disk to start with: one that is configured, or one that was added since.
    #[must_use]
    pub fn has_places(&self) -> bool {
        !self.places.is_empty() || !Changes::load(self.changes.as_deref()).added.is_empty()
    }
}

/// A disk that may take part.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) disk: Arc<dyn Disk>,
    /// What it may hold, when that is not its part of the whole.
    pub(super) capacity: Option<ByteCount>,
}

/// What the configured places turned out to be.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) io: Arc<Io>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) unusable: Vec<(String, Unusable)>,
    /// How many are configured.
    pub(super) configured: usize,
}

/// A pool that was put together.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) pool: Uuid,
    pub(super) devices: Vec<Arc<Device>>,
    pub(super) unusable: Vec<(String, Unusable)>,
    pub(super) growth: Growth,
}

/// What a disk that is added while the tier is used has in common with the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// At which this life began.
    pub(super) epoch: u64,
    pub(super) zone_bytes: ByteCount,
    /// What each place may hold, as configured.
    pub(super) share: Option<ByteCount>,
}

/// Opens the places of a configuration.
///
/// # Errors
/// When no thread can be started for I/O. What is wrong with a place is said beside it.
pub(super) fn open_places(config: &SsdConfig) -> io::Result<Places> {
    let io = Io::start(config.io_uring)?;
    let mut candidates = Vec::new();
    let mut unusable = Vec::new();
    let changes = Changes::load(config.changes.as_deref());
    let is_changed = |place: &&PathBuf| {
        changes.removed.contains(place) || changes.added.iter().any(|added| added.path == **place)
    };
    let configured = config.places.iter().filter(|place| !is_changed(place)).map(|place| (place, None));
    let added = changes.added.iter().map(|added| (&added.path, Some(added.capacity)));
    let places: Vec<(&PathBuf, Option<ByteCount>)> = configured.chain(added).collect();
    let mut roots = Roots::load(config.roots.as_deref());
    let opened = side_by_side(&places, |(place, _)| match unmounted(&roots, place) {
        Some(root) => Err(Unusable::Unmounted(root)),
        None => open_file(place),
    });
    let used = places.iter().zip(&opened).filter(|(_, file)| file.is_ok()).map(|(place, _)| place);
    let noted = used.filter(|(place, added)| added.is_none() && place.is_dir());
    let noted: Vec<&Path> = noted.map(|(place, _)| place.as_path()).collect();
    roots.note(&config.places, &noted);
    for ((place, capacity), file) in places.into_iter().zip(opened) {
        let name = place.display().to_string();
        match file {
            Ok(file) => {
                let disk = FileDisk::new(file, Arc::clone(&io));
                let held = disk.length().unwrap_or_default();
                let capacity = match capacity {
                    Some(capacity) => Some(at_most_its_size(place, held, capacity)),
                    None if config.capacity == ByteCount::ZERO => Some(default_share(place, held)),
                    None => None,
                };
                candidates.push(Candidate { name, disk: Arc::new(disk), capacity });
            }
            Err(reason) => unusable.push((name, reason)),
        }
    }
    Ok(Places { io, candidates, unusable, configured: config.places.len() })
}

/// What a place may hold when nobody says: three quarters of what is free, what the tier holds already included; all of a
/// device.
pub(super) fn default_share(place: &Path, held: ByteCount) -> ByteCount {
    if is_device(place) {
        return held;
    }
    let free = statvfs(place).map_or(0, |stat| stat.fragment_size().saturating_mul(stat.blocks_available()));
    ByteCount(free.saturating_add(held.get()) / 4 * 3)
}

/// What a place can hold at most: a device, which holds all of `held`, or the file system of a directory. `None` when that
/// cannot be told, as of a tmpfs without a limit.
pub(super) fn size_of(place: &Path, held: ByteCount) -> Option<ByteCount> {
    if is_device(place) {
        return Some(held);
    }
    let stat = statvfs(place).ok().filter(|stat| stat.blocks() > 0)?;
    Some(ByteCount(stat.fragment_size().saturating_mul(stat.blocks())))
}

/// The capacity of a disk that was added, as far as there is so much: each zone of it takes memory, there or not.
fn at_most_its_size(place: &Path, held: ByteCount, capacity: ByteCount) -> ByteCount {
    match size_of(place, held) {
        Some(size) if capacity > size => {
            tracing::warn!(
                place = %place.display(), %capacity, %size,
                "a disk that was added is smaller than the capacity that is kept for it, and is used as far as it goes; \
                 `tidefs tier remove` and `tidefs tier add` give it another"
            );
            size
        }
        _ => capacity,
    }
}

fn is_device(place: &Path) -> bool {
    std::fs::metadata(place).is_ok_and(|metadata| !metadata.is_dir())
}

/// Finds out which of the candidates belong together, and takes them into use at a new epoch, which `epochs` gets to
/// know.
///
/// # Errors
/// When the system has no random numbers.
pub(super) fn assemble(
    candidates: Vec<Candidate>,
    mut unusable: Vec<(String, Unusable)>,
    (capacity, configured): (ByteCount, usize),
    zone_bytes: ByteCount,
    epochs: &mut Epochs,
) -> io::Result<Assembled> {
    let part = ByteCount(capacity.get() / configured.max(1) as u64);
    let disks: Vec<&dyn Disk> = candidates.iter().map(|candidate| &*candidate.disk).collect();
    let superblocks = read_superblocks(&disks);
    let mut found = Vec::new();
    for (candidate, superblock) in candidates.into_iter().zip(superblocks) {
        match superblock {
            Ok(superblock) => found.push((candidate, superblock)),
            Err(reason) => unusable.push((candidate.name, reason)),
        }
    }
    let first = found.iter().find_map(|(_, superblock)| superblock.as_ref());
    // A life without a disk goes on with the pool that was used last.
    let known = first.map(|first| first.pool).or(epochs.last_pool());
    let pool = known.map_or_else(draw_uuid, Ok)?;
    let of_pool = found.iter().filter_map(|(_, superblock)| superblock.as_ref());
    let of_pool = of_pool.filter(|other| other.pool == pool).map(|other| other.epoch);
    let epoch = of_pool.max().unwrap_or(0).max(epochs.of(pool));
    let mut disks = Vec::new();
    for (candidate, superblock) in found {
        let name = candidate.name.clone();
        if superblock.as_ref().is_some_and(|superblock| superblock.pool != pool) {
            let reason = Unusable::Foreign("it belongs to another pool".to_owned());
            unusable.push((name, reason));
            continue;
        }
        if disks.len() >= DEVICES_MAX {
            unusable.push((name, Unusable::Failing("there are more than 255 disks".to_owned())));
            continue;
        }
        let share = candidate.capacity.unwrap_or(part);
        let superblock = renew(&name, superblock, pool, epoch, share, zone_bytes)?;
        disks.push((candidate, superblock, share));
    }
    let mut devices = Vec::new();
    for (name, superblock, outcome) in read_disks(disks) {
        match outcome {
            Ok(device) => devices.push((device, superblock)),
            Err(error) => unusable.push((name, error.into())),
        }
    }
    let (devices, epoch) = begin_epoch(devices, epoch.saturating_add(1), &mut unusable);
    epochs.reach(pool, epoch);
    epochs.pass_others(Some(pool).filter(|_| !devices.is_empty()));
    let epoch = epochs.of(pool);
    if known.is_some() || !devices.is_empty() {
        epochs.store_or_warn();
    }
    for (place, reason) in &unusable {
        tracing::warn!(place, %reason, "a place of the SSD tier is not used");
    }
    let growth = Growth { epoch, zone_bytes, share: (capacity > ByteCount::ZERO).then_some(part) };
    Ok(Assembled { pool, devices, unusable, growth })
}

/// Writes the superblocks of all disks, when all that takes time is done: a start that is killed between two of them makes
/// the next one give those up that are behind. One that fails may be at the new epoch all the same, and is not used in it:
/// the others go ahead by one more. Returns the disks that are used, and their epoch.
fn begin_epoch(
    mut devices: Vec<(Device, Superblock)>,
    mut epoch: u64,
    unusable: &mut Vec<(String, Unusable)>,
) -> (Vec<Arc<Device>>, u64) {
    loop {
        devices.iter_mut().for_each(|(_, superblock)| superblock.epoch = epoch);
        let of: Vec<_> = devices.iter().map(|(device, block)| (&*device.disk, block.clone())).collect();
        let outcomes = write_superblocks(&of);
        let count = devices.len();
        let mut used = Vec::with_capacity(count);
        for (device, outcome) in devices.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => used.push(device),
                Err(error) => unusable.push((device.0.name, error.into())),
            }
        }
        devices = used;
        if devices.len() == count || devices.is_empty() {
            break;
        }
        epoch = epoch.saturating_add(1);
    }
    let use_it = |(number, (mut device, _)): (u8, (Device, Superblock))| {
        device.number = number;
        device.cut_surplus();
        Arc::new(device)
    };
    ((0..=u8::MAX).zip(devices).map(use_it).collect(), epoch)
}

/// The superblock of a disk at the next epoch: its own, or one with a new identity, which gives its content up.
fn renew(
    name: &str,
    superblock: Option<Superblock>,
    pool: Uuid,
    epoch: u64,
    share: ByteCount,
    zone_bytes: ByteCount,
) -> io::Result<Superblock> {
    let next = epoch.saturating_add(1);
    let reason = match &superblock {
        None => None,
        Some(old) if old.epoch < epoch => Some("it was missing while others of its pool were used"),
        Some(old) if !has_zones(share, old.zone_bytes) => Some("its zones do not fit the capacity"),
        Some(old) => return Ok(Superblock { epoch: next, ..old.clone() }),
    };
    if let Some(reason) = reason {
        tracing::warn!(device = name, reason, "what a disk of the SSD tier holds is given up");
    }
    Ok(Superblock { device: draw_uuid()?, pool, epoch: next, zone_bytes: zone_bytes_for(share, zone_bytes) })
}

fn has_zones(share: ByteCount, zone_bytes: ByteCount) -> bool {
    zone_bytes.get() >= ZONE_BYTES_MIN
        && zone_bytes.get().is_multiple_of(BLOCK_BYTES)
        && zone_bytes.get() / BLOCK_BYTES <= u64::from(u32::MAX)
        && share.get().saturating_sub(ZONES_START) / zone_bytes.get() >= ZONES_MIN
}

/// Takes a disk into use.
///
/// # Errors
/// What the disk says; `StorageFull` when there is no room for the smallest tier.
pub(super) fn take_into_use(
    candidate: &Candidate,
    number: u8,
    superblock: &Superblock,
    share: ByteCount,
) -> io::Result<Device> {
    let device = read_disk(candidate, number, superblock, share)?;
    // A copy that an earlier life left may be ahead of the pool, and would count at the next start.
    write_blocks(&*device.disk, 0, &[0; 2 * BLOCK], START_LIMIT)?;
    flush(&*device.disk, START_LIMIT)?;
    write_superblock(&*device.disk, superblock, START_LIMIT)?;
    device.cut_surplus();
    Ok(device)
}

/// What stands on several disks as [`read_disk`] tells it, all at once: those that hang cost a start as long as one. The numbers
/// are for now: those that are used are counted when it is known which they are.
fn read_disks(
    disks: Vec<(Candidate, Superblock, ByteCount)>,
) -> Vec<(String, Superblock, io::Result<Device>)> {
    let disks: Vec<_> = (0..=u8::MAX).zip(disks).collect();
    let read = side_by_side(&disks, |(number, (candidate, superblock, share))| {
        read_disk(candidate, *number, superblock, *share)
    });
    let disks = disks.into_iter().map(|(_, (candidate, superblock, _))| (candidate.name, superblock));
    disks.zip(read).map(|((name, superblock), device)| (name, superblock, device)).collect()
}

/// Finds out what stands on a disk, of which it takes nothing away.
fn read_disk(
    candidate: &Candidate,
    number: u8,
    superblock: &Superblock,
    share: ByteCount,
) -> io::Result<Device> {
    let Candidate { name, disk, .. } = candidate;
    if !has_zones(share, superblock.zone_bytes) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    disk.allocate(ByteCount(ZONES_START))?;
    let zones_in = |bytes: ByteCount| {
        let zones = bytes.get().saturating_sub(ZONES_START) / superblock.zone_bytes.get();
        u32::try_from(zones).unwrap_or(ZONES_MAX).min(ZONES_MAX)
    };
    let count = zones_in(share);
    let zone_blocks = u32::try_from(superblock.zone_bytes.get() / BLOCK_BYTES).unwrap_or(u32::MAX);
    // What lies beyond was there under a larger capacity, and may hold removals of what does not.
    let found = count.max(zones_in(disk.length()?));
    let zones = read_zones(&**disk, superblock.device, found, zone_blocks)?;
    let (name, disk) = (name.clone(), Arc::clone(disk));
    Ok(Device::new(name, number, superblock.device, disk, zone_blocks, (zones, count)))
}
