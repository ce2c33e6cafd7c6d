//! Zones that a start could not read in time, though nothing says that they are damaged: their disk was busy, or hung.
//!
//! They stay on the disk as they are, and the next start reads them. In this life nothing of them is served or written.
//!
//! Invariants
//! - Unless all removals of such a zone were read, what its disk opened before it is left to the next start too: what the
//!   zone removed may stand there.
//! - What is stored or removed meanwhile is noted on the disk of such a zone, as for one that is
//!   [given up](super::given_up): what stands there does not come back over it. The owner's new versions are larger than
//!   all that an earlier life gave out, whether they were read or not.
//!
//! Limits: a start asks a disk again for as long as `PATIENCE` requests may take, at most [`START_LIMIT`]. One that does not even
//! read its superblock in time then [hangs](Asked::hangs), and is asked for other zones when it has answered that. When one
//! hangs, all others that have zones to be read are asked for theirs at once, and have half as long again for it, at most
//! [`BATCH_LIMIT`], which counts as time for which they are asked again: those that hang together cost a start two waits. One that
//! answers, but gives none of `LATE_MAX` zones in `LATE_LIMIT`, is asked for none any more. When all disks together were waited for
//! in vain for `LATE_LIMIT_IN_ALL`, a disk is asked once for each zone, and for none any more from the first on with which it is
//! late: several that are slow cost a start as long as one, and a request of each. What was left out is not read later: which of two
//! records was stored last is known by the order in which zones are read ([`super::orders`]).
//! Threads: the one that builds the index.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};

use super::Shared;
use super::device::Device;
use super::disk::{Request, Ticket};
use super::format::{BLOCK, FooterEntry, Order};
use super::identity::START_LIMIT;
use super::index::ZoneId;
use super::load::says_that_it_is_damaged;
use super::memory::{Buffer, Piece};
use super::naming::Standing;
use super::recover::Known;
use super::stations::BATCH_LIMIT;
use super::zone::Zone;

/// For as many requests a start goes on to ask one disk.
const PATIENCE: u32 = 6;
/// How long it waits before it asks again.
const PAUSE: Duration = Duration::from_millis(20);
/// How many zones in a row a disk gives in vain, and for how long it is waited for at least, until it is asked for none any more though it
/// answers: where one request may take long, so may each zone.
const LATE_MAX: u32 = 4;
const LATE_LIMIT: Duration = Duration::from_secs(START_LIMIT.as_secs() * 3);
/// The same for all disks together, also those that give others meanwhile: then who mounts has waited enough.
pub(super) const LATE_LIMIT_IN_ALL: Duration = Duration::from_secs(START_LIMIT.as_secs() * 10);

/// How a start gets on with one disk.
#[derive(Debug)]
pub(super) struct Asked {
    /// For how long it is asked again.
    pub(super) patience: Duration,
    /// Its zones that are to be read yet.
    pub(super) zones_left: u32,
    /// Zones that it did not give since it last gave one, and how long it was waited for them.
    late_zones: u32,
    late: Duration,
    /// A read of its superblock that it did not end in time, and when it last did end one.
    probe: Option<Ticket>,
    answered_at: Option<Instant>,
}

impl Asked {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, zones_left: 0, late_zones: 0, late: Duration::ZERO, probe: None, answered_at: None }
    }

    /// Whether it is not worth being asked for a zone: it has not answered since it was late, or was late for too long.
    /// `late_in_all`: for how long all disks were waited for in vain.
    pub(super) fn hangs(&mut self, late_in_all: Duration) -> bool {
        if self.probe.as_ref().is_some_and(Ticket::is_over) {
            self.probe = None;
        }
        let is_too_late = self.late_zones >= LATE_MAX && self.late >= LATE_LIMIT;
        let is_late_again = self.late_zones > 0 && late_in_all >= LATE_LIMIT_IN_ALL;
        self.probe.is_some() || is_too_late || is_late_again
    }

    /// It gave a zone.
    pub(super) fn note_read(&mut self) {
        (self.late_zones, self.late) = (0, Duration::ZERO);
    }

    /// So long it was waited for a zone that it did not give.
    pub(super) fn note_vain(&mut self, waited: Duration) {
        self.late_zones += 1;
        self.late += waited;
    }

    /// It was late with a zone: looks whether it answers at all, for as long as it is asked again, or as one request may take, unless
    /// it just did or there is to be no more waiting, as `may_wait` says. Returns whether it hangs.
    pub(super) fn note_late(
        &mut self,
        device: &Device,
        may_wait: bool,
        limit: Duration,
        late_in_all: Duration,
    ) -> bool {
        let has_answered = self.answered_at.is_some_and(|at| at.elapsed() < limit);
        if may_wait && !has_answered && !self.hangs(late_in_all) {
            let started = Instant::now();
            self.probe = left_after(begin_probe(device), self.patience.max(limit));
            self.answered_at = self.probe.is_none().then(Instant::now);
            self.patience = self.patience.saturating_sub(started.elapsed());
        }
        let hangs = self.hangs(late_in_all);
        if hangs {
            tell_that_it_hangs(device);
        }
        hangs
    }

    /// Whether it ended each read of its superblock that it was asked for.
    pub(super) fn answers(&self) -> bool {
        self.probe.as_ref().is_none_or(Ticket::is_over)
    }
}

/// Begins to read a superblock, which says nothing but whether the disk answers.
fn begin_probe(device: &Device) -> Ticket {
    let block = Piece::of_buffer(&Arc::new(Buffer::zeroed(BLOCK)));
    device.disk.submit(vec![Request::read(0, block)])
}

/// Waits for a read of a superblock, which is returned when it goes on after that.
fn left_after(probe: Ticket, limit: Duration) -> Option<Ticket> {
    let outcome = probe.wait(limit);
    let is_late = outcome.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut);
    is_late.then_some(probe)
}

fn tell_that_it_hangs(device: &Device) {
    tracing::error!(
        device = device.name,
        "a disk of the SSD tier does not answer: what of it was not read yet is left to the next start"
    );
}

/// A zone that was not read.
#[derive(Debug)]
pub(super) struct LateZone {
    pub(super) device: Arc<Device>,
    pub(super) zone: u32,
    /// Whether all that it removed was read.
    pub(super) is_salvaged: bool,
}

impl Shared {
    /// How long a disk is asked again in all, by a start or by who empties it.
    pub(super) fn patience(&self) -> Duration {
        self.limit.saturating_mul(PATIENCE).min(START_LIMIT)
    }

    /// How long a start that has waited for a disk which hangs waits for all others together that do. A controller that its driver
    /// resets after 80 s is back within both, at the default deadline; nothing is logged meanwhile, as [`BATCH_LIMIT`] allows for.
    pub(super) fn patience_together(&self) -> Duration {
        self.limit.saturating_mul(PATIENCE * 3 / 2).min(BATCH_LIMIT)
    }

    /// A disk hangs. Looks at once which of the others do, too, for `limit` in all: each would be waited for when its next zone is to
    /// be read. Those that answer in time are asked for their zones.
    pub(super) fn look_at_others(&self, asked: &mut HashMap<u8, Asked>, limit: Duration) {
        let others = asked.iter_mut().filter(|(_, other)| other.zones_left > 0 && other.answers());
        let begun: Vec<(Arc<Device>, Ticket, &mut Asked)> = others
            .filter_map(|(number, other)| {
                let device = self.devices.get(*number)?;
                let probe = begin_probe(&device);
                Some((device, probe, other))
            })
            .collect();
        let started = Instant::now();
        for (device, probe, other) in begun {
            // One that is sound has answered while others are waited for.
            let was_late = !probe.is_over();
            other.probe = left_after(probe, limit.saturating_sub(started.elapsed()));
            if was_late {
                other.patience = other.patience.saturating_sub(started.elapsed());
            }
            if !other.answers() {
                tell_that_it_hangs(&device);
            }
        }
    }

    /// What is in a zone. As long as there is `patience` it is asked again when its disk did not say.
    pub(super) fn entries_in_time(
        &self,
        device: &Arc<Device>,
        known: &mut Known,
        patience: &mut Duration,
    ) -> io::Result<Vec<FooterEntry>> {
        loop {
            let started = Instant::now();
            let outcome = self.entries_of(device, known, true);
            let is_late = outcome.as_ref().is_err_and(|error| !says_that_it_is_damaged(error));
            // In which life the zone is was to be read before.
            if !is_late || known.sequence == 0 || patience.is_zero() {
                return outcome;
            }
            std::thread::sleep(PAUSE.min(*patience));
            *patience = patience.saturating_sub(started.elapsed());
        }
    }

    /// Leaves zones to the next start, and with them those that they may have removed something from. Records without data
    /// of `early` are written again, where it is known that nothing removed them.
    pub(super) fn leave_late(&self, late: &[LateZone], early: &mut [Standing]) {
        let mut left = HashSet::new();
        for (device, sequence) in last_unread(late) {
            let is_before =
                |zone: &Zone| zone.is_in_use() && sequence.is_none_or(|last| zone.sequence <= last);
            let zones = device.zones().into_iter().zip(0..);
            let before: Vec<u32> =
                zones.filter(|(zone, _)| is_before(zone)).map(|(_, number)| number).collect();
            tracing::error!(
                device = device.name,
                zones = before.len(),
                "what zones removed cannot be read: they, and those that are older, are not used until the next start"
            );
            for number in before {
                left.insert(device.zone_id(number));
                device.give_up(number);
            }
        }
        // All of the index is looked at, so once for all: those of a disk that hangs are many.
        self.index.forget_zones(&left);
        let late_ids: HashSet<ZoneId> = late.iter().map(|late| late.device.zone_id(late.zone)).collect();
        self.move_out(early, |place| late_ids.contains(&place.zone));
        late.iter().for_each(|late| _ = late.device.give_up(late.zone));
        self.index.forget_zones(&late_ids);
    }
}

/// The disks with zones whose removals were not all read, each with the sequence of the last of them; `None` when that of one is
/// not known.
fn last_unread(late: &[LateZone]) -> Vec<(&Arc<Device>, Option<Order>)> {
    let mut last: HashMap<u8, (&Arc<Device>, Option<Order>)> = HashMap::new();
    for LateZone { device, zone, .. } in late.iter().filter(|late| !late.is_salvaged) {
        let sequence = device.zone(*zone).map_or(0, |zone| zone.sequence);
        let sequence = (sequence > 0).then_some(sequence);
        let (_, known) = last.entry(device.number).or_insert((device, sequence));
        *known = known.zip(sequence).map(|(known, sequence)| known.max(sequence));
    }
    last.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_answers_after_all_is_asked_for_its_other_zones() {
        let (ticket, completion) = Ticket::new(1);
        let mut asked = Asked { probe: Some(ticket), ..Asked::new(Duration::ZERO) };
        assert!(asked.hangs(Duration::ZERO) && asked.hangs(Duration::ZERO));
        completion.end_one(Ok(()));
        assert!(!asked.hangs(Duration::ZERO));
    }

    #[test]
    fn a_disk_that_is_late_again_and_again_is_asked_no_more() {
        let mut asked = Asked::new(Duration::ZERO);
        for _ in 1..LATE_MAX {
            asked.note_vain(LATE_LIMIT);
            assert!(!asked.hangs(Duration::ZERO), "its requests may take that long");
        }
        asked.note_vain(Duration::ZERO);
        assert!(asked.hangs(Duration::ZERO));
    }

    #[test]
    fn disks_that_give_zones_and_are_late_with_some_are_asked_for_others_for_a_long_time_together() {
        let mut disks = [(); 3].map(|()| Asked::new(Duration::ZERO));
        let (short, mut in_all) = (LATE_LIMIT_IN_ALL / (2 * LATE_MAX), Duration::ZERO);
        // The first two by turns.
        for turn in 1..2 * LATE_MAX as usize {
            let asked = &mut disks[turn % 2];
            asked.note_vain(short);
            in_all += short;
            assert!(!asked.hangs(in_all));
            asked.note_read();
        }
        disks[0].note_vain(short);
        in_all += short;
        assert!(!disks[1].hangs(in_all), "it gave the last zone in time");
        disks[1].note_vain(Duration::ZERO);
        let hang = disks.map(|mut asked| asked.hangs(in_all));
        assert_eq!(
            hang,
            [true, true, false],
            "the mount would wait for each, or goes without one that is in time"
        );
    }
}
