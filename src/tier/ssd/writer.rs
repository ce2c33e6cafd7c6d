//! The log of one disk: what its writer is given to do, and what it does when it is given nothing.
//!
//! [Records](flight) go to the end of the open zone, many under way at once; removals are written in blocks between them.
//!
//! Invariants
//! - A removal leaves the file of intents when it is durable on the disk, or when that does not need it any more. One that could
//!   not be written is tried again.
//! - What is said to be durable was written before the disk was flushed, and the disk is not one that the next start gives up
//!   ([`super::outdated`]).
//!
//! Limits: [`UNSETTLED_MAX`] removals are written before they are made durable, though there is more to do; after a failure they
//! are tried again every [`RETRY`].
//! Threads: one for each disk, `ssd-write-N`.

mod flight;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use self::flight::Flight;
use super::Shared;
use super::device::Device;
use super::format::Tombstone;
use super::given_up::GivenUp;
use super::identity::flush;
use super::index::ZoneId;
use super::open_zone::OpenZone;
use super::queue::{Done, Job, Next, Stored};

/// How long an idle writer sleeps at most.
const IDLE: Duration = Duration::from_secs(1);
/// Removals that are written before they are made durable, even when there is more to do.
const UNSETTLED_MAX: usize = 4096;
/// When removals, and the superblock of a disk that is behind the others, are tried again after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// The log's end.
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) device: Arc<Device>,
    pub(super) open: Option<OpenZone>,
    flight: VecDeque<Flight>,
    flight_bytes: u64,
    /// When the disk last ended a record: it has been busy since.
    last_end: Instant,
    /// Removals that are written and not durable.
    unsettled: Vec<Tombstone>,
    /// Removals that could not be written, and are tried again.
    unwritten: Vec<Tombstone>,
    /// After a failure, when the next attempt may be made.
    settle_at: Option<Instant>,
    /// Who waits until what is written is durable, and the zone in which it stands.
    awaiting: Vec<(ZoneId, Done)>,
    /// When want of room last counted as an error: what met it since then met the same.
    full_at: Option<Instant>,
    /// Zones that gave an error.
    pub(super) given_up: GivenUp,
    /// After a failure, when the disk may be tried to go ahead with the others again.
    catch_up_at: Option<Instant>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, device: Arc<Device>) -> Self {
        Self {
            shared,
            device,
            open: None,
            flight: VecDeque::new(),
            flight_bytes: 0,
            last_end: Instant::now(),
            unsettled: Vec::new(),
            unwritten: Vec::new(),
            settle_at: None,
            awaiting: Vec::new(),
            full_at: None,
            given_up: GivenUp::default(),
            catch_up_at: None,
        }
    }

    /// Writes what comes until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let device = Arc::clone(&self.device);
        loop {
            let is_busy = !self.flight.is_empty() || self.may_settle();
            match device.queue.next(if is_busy { Duration::ZERO } else { IDLE }) {
                Next::Job(Job::Append(append)) => self.append(append),
                Next::Retain(retain) => self.retain(retain),
                Next::Job(Job::GiveUp(zone)) => self.take_given_up(zone),
                Next::Job(Job::Flush(done)) => {
                    let is_durable = self.make_durable();
                    self.end_with(is_durable, done);
                }
                Next::Job(Job::Close(done)) => {
                    self.close_zone();
                    self.end_with(true, done);
                }
                Next::Tombstones(tombstones) => {
                    self.unwritten.extend(tombstones);
                    if self.settle_at.is_none() {
                        self.write_unwritten();
                    }
                    if self.unsettled.len() >= UNSETTLED_MAX && self.may_settle() {
                        self.settle();
                    }
                }
                Next::Idle if self.flight.is_empty() => {
                    if self.may_settle() {
                        self.write_unwritten();
                        self.settle();
                    }
                }
                Next::Idle => self.reap_one(),
                Next::Closed => break,
            }
            if self.settle_at.is_some() && self.may_settle() {
                self.settle_at = None;
                self.write_unwritten();
                self.settle();
            }
            self.catch_up();
            self.answer_awaiting();
            self.void_given_up();
        }
        self.end();
    }

    /// Makes durable what came before, on a disk that stays. Returns whether all of it is.
    fn make_durable(&mut self) -> bool {
        self.reap_all();
        self.settle_at = None;
        let is_written = self.write_unwritten();
        let is_flushed = self.settle();
        self.catch_up_at = None;
        let stays = self.catch_up();
        is_written && is_flushed && stays
    }

    /// Nothing comes any more: writes what is left, and ends the open zone.
    fn end(mut self) {
        self.reap_all();
        self.answer_awaiting();
        self.write_unwritten();
        if !self.unsettled.is_empty() {
            self.settle();
        }
        let unwritten = std::mem::take(&mut self.unwritten);
        if !unwritten.is_empty() {
            self.lose(&unwritten);
        }
        self.leave_given_up();
        self.close_zone();
        self.shared.catch_up(&self.device);
    }

    /// Has the disk go ahead with the others when it did not with them, now and then. Returns whether it is not behind.
    fn catch_up(&mut self) -> bool {
        if self.catch_up_at.is_some_and(|at| Instant::now() < at) {
            return false;
        }
        let stays = self.shared.catch_up(&self.device);
        self.catch_up_at = (!stays).then(|| Instant::now() + RETRY);
        stays
    }

    pub(super) fn end_with(&self, went_well: bool, done: Done) {
        done(if went_well { Stored::Yes } else { Stored::Failed });
    }

    /// Makes everything durable that was written.
    pub(super) fn flush(&self) -> bool {
        match flush(&*self.device.disk, self.shared.limit) {
            Ok(()) => true,
            Err(error) => {
                self.device.count_write_error(&error);
                false
            }
        }
    }

    /// Whether removals wait for an attempt that may be made now.
    fn may_settle(&self) -> bool {
        let has_some = !self.unsettled.is_empty() || !self.unwritten.is_empty();
        has_some && self.settle_at.is_none_or(|at| Instant::now() >= at)
    }

    /// Writes the removals that wait for that. Returns whether none does any more. Those that cannot be written are tried again
    /// later. A disk that takes no writes leaves them in the file of intents, for the next start.
    fn write_unwritten(&mut self) -> bool {
        let removals = std::mem::take(&mut self.unwritten);
        if removals.is_empty() {
            return true;
        }
        if self.device.is_failing() {
            self.lose(&removals);
        } else if self.write_tombstones(&removals, self.last_for_removals()) {
            self.unsettled.extend(removals);
            return true;
        } else {
            self.unwritten = removals;
            self.settle_at = Some(Instant::now() + RETRY);
        }
        false
    }

    /// Removals that are not written any more: another disk keeps them, or this one is not trusted by the next start. One that only
    /// had no room for them at the end of the tier is: they stand in the file of intents.
    fn lose(&mut self, removals: &[Tombstone]) {
        if removals.is_empty()
            || self.shared.bury_elsewhere(&self.device, removals)
            || (self.device.is_failing() && self.shared.give_up_with(&self.device))
        {
            return self.shared.intents.settle(self.device.number, removals);
        }
        let counter = &self.shared.counters.lost_removals;
        if counter.fetch_add(removals.len() as u64, Ordering::Relaxed) == 0 {
            tracing::error!(
                device = self.device.name,
                "removed keys could not be noted on a disk and may come back after a power cut"
            );
        }
    }

    /// Makes everything durable that was written. Returns whether it is.
    fn settle(&mut self) -> bool {
        let is_flushed = self.flush();
        if is_flushed {
            let removals = std::mem::take(&mut self.unsettled);
            self.shared.intents.settle(self.device.number, &removals);
            self.settle_at = None;
        } else if self.device.is_failing() {
            let removals = std::mem::take(&mut self.unsettled);
            self.lose(&removals);
        } else {
            self.settle_at = Some(Instant::now() + RETRY);
        }
        is_flushed
    }

    fn answer_awaiting(&mut self) {
        if !self.awaiting.is_empty() {
            self.reap_all();
            let went_well = self.flush();
            for (zone, done) in std::mem::take(&mut self.awaiting) {
                let is_there = self.device.zone(zone.zone()).is_some_and(|zone| zone.can_be_read());
                self.end_with(went_well && is_there, done);
            }
        }
    }
}
