//! After a restart: the index is built again from footers, and from headers where a zone was not closed
//! ([`super::contents`]).
//!
//! Two passes, so that what is kept meanwhile is the index and not the keys: this one finds for each key the place of its
//! newest record and what was removed; [`super::naming`] tells the owner what stands there, while the tier is used already.
//!
//! Invariants
//! - What was removed stays removed, whichever of record and removal is read first; what was stored after that is there.
//! - Of a version that stands twice the record that was stored last counts, on whichever disk it is ([`Orders`]).
//! - A zone that is lost, or of which nobody can tell its life, has its removals read block by block: they count
//!   whatever the life is, since a record that was stored after one has a larger order.
//!
//! Limits: lost zones are read for `SALVAGE_ALL_LIMIT` together at most; removals behind that are lost, which is
//! logged.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};
use tidefs_engine::types::{ByteCount, Version};

use super::Shared;
use super::contents::{Scan, read_footer, scan_zone};
use super::device::Device;
use super::format::{FooterEntry, Order, RecordFacts, RecordHash, Tombstone};
use super::given_up::{SALVAGE_LIMIT, Salvaged};
use super::index::{Located, Place};
use super::late::{Asked, LATE_LIMIT_IN_ALL, LateZone};
use super::load::says_that_it_is_damaged;
use super::naming::{NOBODY, Standing, Unnamed};
use super::open_zone::write_footer;
use super::orders::Orders;
use super::removing::version_before;
use super::zone::{FooterPlace, Zone, ZoneState};

/// How long it is looked for removals in all zones together that are lost.
const SALVAGE_ALL_LIMIT: Duration = Duration::from_secs(120);

/// What a start found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoverySummary {
    /// Objects that can be loaded.
    pub objects: u64,
    /// Zones read from their footers.
    pub zones: u64,
    /// Zones without one, read from their headers.
    pub scanned_zones: u64,
    /// Zones that could not be read, now or for ever.
    pub lost_zones: u64,
}

/// A zone in use and, when it has no footer to read again, what is in it.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) sequence: Order,
    pub(super) device: u8,
    pub(super) zone: u32,
    scanned: Option<Vec<FooterEntry>>,
}

/// What a start knows when the index is complete.
#[derive(Debug)]
pub struct Indexed {
    /// What was found.
    pub summary: RecoverySummary,
    /// The largest version of all, removed ones included: what is new has a larger one.
    pub last_version: Version,
    /// The records that the owner wanted at once.
    pub early: Vec<Standing>,
    /// Where the others are.
    pub unnamed: Unnamed,
}

/// What is gathered while zones are read.
struct Gathered<'a> {
    is_early: &'a dyn Fn(&[u8]) -> bool,
    /// How each disk was asked.
    asked: HashMap<u8, Asked>,
    /// For how long all of them were waited for in vain.
    late_in_all: Duration,
    salvaged_until: Instant,
    summary: RecoverySummary,
    /// Zones that were not read in time, and those that cannot be read.
    late: Vec<LateZone>,
    lost: Vec<(Arc<Device>, u32)>,
    early: Vec<Standing>,
    removed: HashMap<RecordHash, Removed>,
    /// The latest versions that later ones stand in for.
    replaced: HashMap<RecordHash, Version>,
    /// Keys of which a record stands beyond a capacity and another one stands too.
    crossed: HashSet<RecordHash>,
    orders: Orders,
    last_order: Order,
    last_version: Version,
}

/// What is removed of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Removed {
    version: Version,
    /// Of the removal of that version, and the disk on which it stands.
    order: Order,
    device: u8,
    /// A record, and its order, of a version that had been removed and was stored again.
    again: Option<(Version, Order)>,
}

impl<'a> Gathered<'a> {
    fn new(is_early: &'a dyn Fn(&[u8]) -> bool) -> Self {
        Self {
            is_early,
            asked: HashMap::new(),
            late_in_all: Duration::ZERO,
            salvaged_until: Instant::now() + SALVAGE_ALL_LIMIT,
            summary: RecoverySummary::default(),
            late: Vec::new(),
            lost: Vec::new(),
            early: Vec::new(),
            removed: HashMap::new(),
            replaced: HashMap::new(),
            crossed: HashSet::new(),
            orders: Orders::default(),
            last_order: 0,
            last_version: Version::default(),
        }
    }

    /// A removal hides everything up to its version, but for what was stored after it, as `found` may be.
    fn note_removal(&mut self, tombstone: &Tombstone, device: u8, found: Option<Located>) {
        let is_found_after = found.is_some_and(|found| {
            found.version == tombstone.version && self.orders.is_after(found.place, tombstone.order)
        });
        let removed = self.removed.entry(tombstone.hash).or_default();
        let is_before =
            |(version, order): (Version, Order)| version == tombstone.version && order > tombstone.order;
        let version = if is_found_after || removed.again.is_some_and(is_before) {
            version_before(tombstone.version)
        } else {
            tombstone.version
        };
        if (version, tombstone.order) > (removed.version, removed.order) {
            *removed = Removed { version, order: tombstone.order, device, ..*removed };
        }
    }

    /// A record of a version that was removed counts when it was stored later: zones are read in their order.
    fn note_record(&mut self, facts: &RecordFacts) {
        if let Some(removed) = self.removed.get_mut(&facts.hash)
            && facts.version == removed.version
            && facts.order > removed.order
        {
            removed.version = version_before(facts.version);
            removed.again = Some((facts.version, facts.order));
        }
    }

    /// Nothing of a zone was read: it is left to the next start.
    fn note_unread(&mut self, device: Arc<Device>, known: &Known) {
        self.summary.lost_zones += 1;
        self.late.push(LateZone { device, zone: known.zone, is_salvaged: false });
    }

    /// There are two records of a key: the older version is not to come back when the later one is dropped.
    fn note_two(&mut self, facts: &RecordFacts, found: &Located) {
        if facts.version != found.version {
            let older = facts.version.min(found.version);
            let known = self.replaced.entry(facts.hash).or_default();
            *known = (*known).max(older);
        }
    }
}

impl Shared {
    /// Builds the index. See [`super::SsdTier::index`].
    pub(super) fn build_index(&self, is_early: &dyn Fn(&[u8]) -> bool) -> Indexed {
        let mut known = self.known_zones();
        let mut gathered = Gathered::new(is_early);
        for zone in &known {
            let asked = gathered.asked.entry(zone.device).or_insert_with(|| Asked::new(self.patience()));
            asked.zones_left += 1;
        }
        known.retain_mut(|zone| self.gather(zone, &mut gathered));
        let Gathered { mut summary, late, lost, mut early, removed, mut replaced, crossed, .. } = gathered;
        let (last_order, last_version) = (gathered.last_order, gathered.last_version);
        // What an earlier life wrote and lost may stand there: no life uses an order of another one.
        let least = self.growth.epoch.saturating_mul(1 << 32).min(u64::MAX / 2);
        self.order.store(last_order.saturating_add(1).max(least), Ordering::Relaxed);
        // Their removals follow the later versions, and a power cut may have come between.
        replaced.retain(|hash, version| removed.get(hash).is_none_or(|removed| removed.version < *version));
        replaced.into_iter().for_each(|(hash, version)| self.remove_everywhere(hash, version));
        removed.iter().for_each(|(hash, removed)| self.hide(*hash, removed));
        // What a daemon removed that was killed before its writer came to it: nobody is told of it any more.
        for (hash, version) in self.take_left_intents() {
            self.index.remove_if(&hash, |found| found.version <= version);
            self.remove_everywhere(hash, version);
        }
        self.leave_late(&late, &mut early);
        for (device, zone) in lost {
            self.move_out(&mut early, |place| place.zone == device.zone_id(zone));
            self.quarantine(&device, zone);
        }
        self.give_up_surplus(&crossed, &mut early);
        known.retain(|known| {
            let device = self.devices.get(known.device).filter(|device| !device.is_surplus(known.zone));
            device.and_then(|device| device.zone(known.zone)).is_some_and(|zone| zone.can_be_read())
        });
        early.retain(|standing| self.stands(standing));
        summary.objects = self.index.len().saturating_sub(early.len()) as u64;
        Indexed { summary, last_version, early, unnamed: Unnamed::new(known, summary.objects) }
    }

    /// Enters what is in a zone. Returns whether it is read as a whole.
    fn gather(&self, known: &mut Known, gathered: &mut Gathered<'_>) -> bool {
        gathered.last_order = gathered.last_order.max(known.sequence);
        let Some(device) = self.devices.get(known.device) else { return false };
        let Some(asked) = gathered.asked.get_mut(&known.device) else { return false };
        asked.zones_left -= 1;
        if asked.hangs(gathered.late_in_all) {
            gathered.note_unread(device, known);
            return false;
        }
        // Who mounts has waited enough.
        if gathered.late_in_all >= LATE_LIMIT_IN_ALL {
            asked.patience = Duration::ZERO;
        }
        let started = Instant::now();
        match self.entries_in_time(&device, known, &mut asked.patience) {
            Ok(entries) => {
                asked.note_read();
                self.enter(&device, known, &entries, gathered);
                gathered.summary.zones += u64::from(known.scanned.is_none());
                gathered.summary.scanned_zones += u64::from(known.scanned.is_some());
                true
            }
            Err(error) => {
                let is_late = error.kind() == io::ErrorKind::TimedOut;
                // One whose header was not read takes no time itself, and there may be many.
                let (was_asked, has_time) = (known.sequence > 0, Instant::now() < gathered.salvaged_until);
                if is_late && was_asked {
                    let waited = started.elapsed();
                    asked.note_vain(waited);
                    gathered.late_in_all += waited;
                }
                let may_wait = was_asked || has_time;
                if is_late && asked.note_late(&device, may_wait, self.limit, gathered.late_in_all) {
                    let answers = asked.answers();
                    gathered.note_unread(device, known);
                    if !answers {
                        let started = Instant::now();
                        self.look_at_others(&mut gathered.asked, self.patience_together());
                        gathered.late_in_all += started.elapsed();
                    }
                } else {
                    self.gather_lost(device, known, &error, gathered);
                }
                false
            }
        }
    }

    /// Enters what of a zone that is not read still can be: its removals hide what stands in other zones.
    fn gather_lost(
        &self,
        device: Arc<Device>,
        known: &Known,
        error: &io::Error,
        gathered: &mut Gathered<'_>,
    ) {
        // An error of the whole disk says nothing of the zone, nor is there more to read.
        let reads_nothing = says_that_it_is_damaged(error) && self.reads_nothing(&device, self.limit);
        let is_late = reads_nothing || !says_that_it_is_damaged(error);
        tracing::error!(device = device.name, zone = known.zone, is_late, %error, "a zone is lost");
        gathered.summary.lost_zones += 1;
        let left = gathered.salvaged_until.saturating_duration_since(Instant::now());
        let limit = left.min(SALVAGE_LIMIT);
        let limit = if is_late { limit.min(self.patience()) } else { limit };
        let salvaged = if reads_nothing {
            Salvaged::default()
        } else {
            self.removals_left_in(&device, known.zone, limit)
        };
        let Salvaged { mut entries, is_whole } = salvaged;
        entries.retain(|entry| match entry {
            FooterEntry::Tombstones(_) => true,
            FooterEntry::Object { facts, .. } => facts.length == ByteCount::ZERO,
        });
        self.enter(&device, known, &entries, gathered);
        if is_late {
            gathered.late.push(LateZone { device, zone: known.zone, is_salvaged: is_whole });
        } else {
            gathered.lost.push((device, known.zone));
        }
    }

    /// Takes out of the index what is removed.
    fn hide(&self, hash: RecordHash, removed: &Removed) {
        let is_later = |found: &Located| {
            let device = self.devices.of(found.place);
            let zone = device.and_then(|device| device.zone(found.place.zone.zone()));
            zone.is_some_and(|zone| zone.sequence > removed.order)
        };
        let hidden = self.index.remove_if(&hash, |found| {
            found.version < removed.version || (found.version == removed.version && !is_later(found))
        });
        // Another disk knows nothing of it when it took no writes at the time, and may outlive this one's removals.
        let Some(found) = hidden else { return };
        let disks = [found.place.zone.device()].into_iter().chain(self.second_places.of(&hash));
        let pending = self.pending.lock();
        for device in disks.filter_map(|number| self.devices.get(number)) {
            if device.number != removed.device {
                self.bury(&pending, &device, hash, removed.version);
            }
        }
    }

    /// The zones in use of all devices, those that were opened first first, and before them those whose life is not
    /// known.
    fn known_zones(&self) -> Vec<Known> {
        let of_device = |device: &Arc<Device>| {
            let is_known = |(zone, _): &(Zone, u32)| {
                matches!(zone.state, ZoneState::Closed | ZoneState::Headless) || zone.is_given_up()
            };
            let in_use = device.zones().into_iter().zip(0u32..).filter(is_known);
            let known = in_use.map(|(zone, index)| Known {
                sequence: zone.sequence,
                device: device.number,
                zone: index,
                scanned: None,
            });
            known.collect::<Vec<_>>()
        };
        let mut known: Vec<Known> = self.devices.all().iter().flat_map(of_device).collect();
        known.sort_unstable_by_key(|zone| zone.sequence);
        known
    }

    /// What is in a zone: from its footer, else from a scan, which is kept and written down as its footer.
    pub(super) fn entries_of(
        &self,
        device: &Arc<Device>,
        known: &mut Known,
        may_scan: bool,
    ) -> io::Result<Vec<FooterEntry>> {
        if let Some(entries) = &known.scanned {
            return Ok(entries.clone());
        }
        let Known { sequence, zone, .. } = *known;
        let station = device.zone(zone).ok_or(io::ErrorKind::NotFound)?;
        if station.state == ZoneState::Headless {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its header is lost"));
        }
        if station.sequence == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its header was not read in time"));
        }
        let footer = station.footer;
        if let Some(FooterPlace { block, blocks }) = footer {
            match read_footer(device, zone, sequence, block, blocks, self.limit) {
                Err(error) if may_scan => {
                    tracing::warn!(device = device.name, zone, %error, "a footer cannot be read; the zone is scanned");
                }
                outcome => return outcome,
            }
        }
        let Scan { entries, end } = scan_zone(device, zone, sequence, self.limit)?;
        // Without one it is scanned again at the next start.
        let footer = write_footer(device, zone, sequence, end, entries.clone(), self.limit);
        device.change_zone(zone, |zone| zone.footer = footer.ok());
        known.scanned = Some(entries.clone());
        Ok(entries)
    }

    /// Enters a zone's records into the index, and notes what it removed.
    fn enter(&self, device: &Device, known: &Known, entries: &[FooterEntry], gathered: &mut Gathered<'_>) {
        let zone = device.zone_id(known.zone);
        gathered.orders.begin(zone, known.sequence, entries);
        for entry in entries {
            match entry {
                FooterEntry::Object { block, facts } => {
                    gathered.last_order = gathered.last_order.max(facts.order);
                    gathered.last_version = gathered.last_version.max(facts.version);
                    let place = Place { zone, block: *block };
                    let blocks = u32::try_from(facts.blocks()).unwrap_or(u32::MAX);
                    let (version, owner) = (facts.version, NOBODY);
                    let located = Located { version, place, blocks, owner, heat: 0, is_again: false };
                    gathered.note_record(facts);
                    self.note_second_place(&facts.hash, facts.version, device.number);
                    let mut is_replaced = false;
                    if let Some(found) = self.index.get(&facts.hash) {
                        gathered.note_two(facts, &found);
                        is_replaced = found.version == facts.version
                            && gathered.orders.is_after(found.place, facts.order);
                        if self.is_surplus(found.place) || self.is_surplus(place) {
                            gathered.crossed.insert(facts.hash);
                        }
                    }
                    let counts = !is_replaced && self.index.put(facts.hash, &located);
                    if counts && (gathered.is_early)(&facts.key) {
                        gathered.early.push(Standing::new(place, facts.clone()));
                    }
                }
                FooterEntry::Tombstones(tombstones) => {
                    for tombstone in tombstones {
                        gathered.last_order = gathered.last_order.max(tombstone.order);
                        gathered.last_version = gathered.last_version.max(tombstone.version);
                        let found = self.index.get(&tombstone.hash);
                        gathered.note_removal(tombstone, device.number, found);
                    }
                }
            }
        }
    }
}
