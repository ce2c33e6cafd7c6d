//! One NIC: its endpoint, what is registered with it, the peers it knows, and the operations under way.
//!
//! Invariants
//! - Every job ends once. One that is in flight ends when its completion was read, or after the endpoint was closed:
//!   there is no `fi_cancel` on EFA, so an operation that is given up is first left alone for [`Settings::settle`], or
//!   longer where much is under way beside it. If it has not ended by then, the endpoint is closed and opened again.
//!   That ends all that was in flight on this NIC, with an error that lets the engine try again, and every connection
//!   over it must be made anew, because its address is another.
//! - A peer that ends nothing for [`Settings::silence`] costs its connection, so that time is left to go another way: a
//!   fabric on which nothing gets through lets connections be made, and would take each deadline whole.
//!   Where the provider refuses to close an endpoint, what is in flight there is not ended before it has.
//!   The same is done when operations to a peer that refused a key are cancelled by the provider.
//! - At most `slots` operations are in flight, which is what the provider said it takes, or as many as it was found to
//!   take ([`Credits`]); others wait in order, and a peer whose connection is not ready yet holds up nobody else.
//! - A write has ended when its bytes are in the target's memory: by `FI_DELIVERY_COMPLETE` where the provider has it;
//!   else by reading the last byte back after the write's completion, which the target's NIC answers after it has
//!   passed on the write.
//!
//! Threads: owned by the NIC's progress thread.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use libfabric_sys as fi;

use super::NAME;
use super::credit::{Credits, portions};
use super::endpoint::Connection;
use super::job::{Flight, Job, Settings, error_of};
use super::keys::Keys;
use super::nic::ffi::{Failure, Nic, Withdrawn};
use super::port::ffi::{Completion, Order, Port, Posted};
use super::progress::Command;
use super::registered::{Portion, Registered};
use super::registration::ffi::Registration;
use crate::error::Error;
use crate::memory::MemorySlice;
use crate::transport::{Direction, Rate};
use crate::types::{PeerId, RegionId};

mod life;
mod memory;
mod peers;
mod silence;

use life::Grave;
use peers::Known;

/// Deadlines are looked at this often while anything is under way.
const SWEEP: Duration = Duration::from_millis(5);
/// Operations that are started before the provider is polled again.
const PORTION: usize = 32;
/// One NIC.
pub(super) struct Domain {
    // The order of fields is that of their drops: the endpoint goes before what it may touch.
    port: Option<Port>,
    graves: Vec<Grave>,
    /// By slot, as far as slots were ever used: they are looked through often, and a provider has thousands.
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    credits: Credits,
    waiting: VecDeque<Job>,
    /// Whether the provider refused something for want of room at the last attempt.
    is_blocked: bool,
    ended: Vec<Completion>,
    last_sweep: Instant,
    /// When this thread last went on after it had stood still for long.
    awake_since: Instant,
    regions: HashMap<RegionId, Registered>,
    /// Regions whose registrations went with an endpoint that they were bound to, to be registered with the next one.
    unbound: Vec<(RegionId, Portion)>,
    /// Memory that peers may still touch through endpoints that are not closed.
    withdrawn: Vec<Withdrawn>,
    /// Whether anybody was told of the endpoint's address, or has told its own, since it was opened.
    has_met_peers: bool,
    /// Where bytes go that are read to confirm a write.
    scratch: Option<(MemorySlice, Arc<Registration>)>,
    known: HashMap<Vec<u8>, Known>,
    /// Peers that refused a key since the endpoint was opened.
    refusing: HashSet<PeerId>,
    /// A refused key has broken the way to a peer, which only a new endpoint mends.
    is_broken: bool,
    connections: Vec<Weak<Connection>>,
    /// When each peer, by its slot, last ended an operation well.
    heard: HashMap<u64, Instant>,
    /// Peers for which the provider has had no room or no connection, since when.
    blocked: HashMap<u64, Instant>,
    /// What the NIC carries.
    rate: Rate,
    in_flight_bytes: u64,
    last_end: Instant,
    fresh_keys: Keys,
    settings: Settings,
    /// Our address, as peers get it; changes when the endpoint is opened again.
    name: Arc<parking_lot::Mutex<Vec<u8>>>,
    /// Keys of the regions, as peers get them, where they change with the endpoint.
    keys: Arc<parking_lot::Mutex<HashMap<RegionId, Vec<u64>>>>,
    nic: Arc<Nic>,
}

impl Domain {
    /// Opens the endpoint. `name` is kept up to date with its address, and `keys` where they change with it.
    pub(super) fn open(
        nic: Arc<Nic>,
        settings: Settings,
        name: Arc<parking_lot::Mutex<Vec<u8>>>,
        keys: Arc<parking_lot::Mutex<HashMap<RegionId, Vec<u64>>>>,
    ) -> Result<(Self, Option<u64>), Failure> {
        let no_random = |error: getrandom::Error| Failure {
            call: "getrandom",
            code: error.raw_os_error().unwrap_or(fi::FI_EOTHER),
            text: error.to_string(),
        };
        let random = getrandom::u64().map_err(no_random)?;
        let mut domain = Self {
            port: None,
            graves: Vec::new(),
            flights: Vec::new(),
            free: (0..settings.slots).rev().collect(),
            credits: Credits::new(settings.slots),
            waiting: VecDeque::new(),
            is_blocked: false,
            ended: Vec::new(),
            last_sweep: Instant::now(),
            awake_since: Instant::now(),
            regions: HashMap::new(),
            unbound: Vec::new(),
            withdrawn: Vec::new(),
            has_met_peers: false,
            scratch: None,
            known: HashMap::new(),
            refusing: HashSet::new(),
            is_broken: false,
            connections: Vec::new(),
            heard: HashMap::new(),
            blocked: HashMap::new(),
            rate: Rate::default(),
            in_flight_bytes: 0,
            last_end: Instant::now(),
            fresh_keys: Keys::new(nic.facts().key_bytes, random),
            settings,
            name,
            keys,
            nic,
        };
        domain.open_port()?;
        let operation_bytes_max = domain.port.as_ref().and_then(Port::operation_bytes_max);
        Ok((domain, operation_bytes_max))
    }

    /// Whether anything is under way.
    pub(super) fn is_busy(&self) -> bool {
        let has_jobs = self.free.len() < self.settings.slots || !self.waiting.is_empty();
        has_jobs || !self.graves.is_empty() || self.nic.has_stuck()
    }

    /// Operations that may start beside those that are under way or wait.
    pub(super) fn credits(&self) -> usize {
        self.credits.left().saturating_sub(self.waiting.len())
    }

    /// Whether something waits for the provider to have room.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether a peer may have operations under way at this end.
    pub(super) fn has_peers(&self) -> bool {
        !self.known.is_empty()
    }

    /// Whether nothing waits to be polled.
    pub(super) fn may_sleep(&mut self) -> bool {
        self.port.as_mut().is_none_or(|port| port.wait_fd().is_none() || port.may_sleep())
    }

    /// What becomes readable when there is something to poll.
    pub(super) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.as_ref().and_then(Port::wait_fd)
    }

    /// Does what another thread asked.
    pub(super) fn execute(&mut self, command: Command) {
        match command {
            Command::Register(id, portion, reply) => {
                let _ = reply.send(self.register(id, portion));
            }
            Command::Unregister(id, is_in_use, done) => self.unregister(id, is_in_use, done),
            Command::Insert(peer, address, connection, reply) => {
                let _ = reply.send(self.insert(peer, address, connection));
            }
            Command::Keep(peer, addresses) => self.keep(peer, &addresses),
            Command::Forget(peer) => self.forget(peer),
            Command::Post(jobs) => self.waiting.extend(jobs),
            Command::Cancel(connection, batch) => self.give_up(&Error::Cancelled, |job| {
                Arc::ptr_eq(&job.connection, &connection) && job.operation.ticket.batch() == batch
            }),
            Command::End(connection, error) => {
                self.give_up(&error, |job| Arc::ptr_eq(&job.connection, &connection));
            }
            Command::Close(_) => self.close(),
        }
    }

    /// Ends the jobs that wait, and marks those in flight, whose `is_meant` is true.
    fn give_up(&mut self, error: &Error, is_meant: impl Fn(&Job) -> bool) {
        let (meant, rest): (VecDeque<Job>, VecDeque<Job>) =
            std::mem::take(&mut self.waiting).into_iter().partition(&is_meant);
        self.waiting = rest;
        let until = Instant::now() + self.time_to_settle();
        for flight in self.flights.iter_mut().flatten().filter(|flight| is_meant(&flight.job)) {
            flight.given_up.get_or_insert_with(|| (error.clone(), until));
        }
        meant.into_iter().for_each(|job| job.complete(Err(error.clone())));
    }

    /// Polls, starts what waits, looks at deadlines when all that has ended was read. Returns whether anything happened.
    pub(super) fn advance(&mut self) -> bool {
        let mut has_worked = self.poll();
        has_worked |= self.start_waiting();
        let since_last = self.last_sweep.elapsed();
        if since_last >= SWEEP {
            // What has ended already is not given up: this thread may have stood still for longer than a deadline was away.
            while self.poll() {
                has_worked = true;
            }
            self.last_sweep = Instant::now();
            if since_last > self.settings.silence / 2 {
                // Nor does that say anything of peers: they get their time anew.
                self.awake_since = self.last_sweep;
            }
            self.sweep();
        }
        self.drain();
        has_worked
    }

    fn poll(&mut self) -> bool {
        let Some(port) = self.port.as_mut() else { return false };
        let mut ended = std::mem::take(&mut self.ended);
        if let Err(failure) = port.poll(&mut ended) {
            self.reopen(&failure.to_string());
        }
        let has_worked = !ended.is_empty();
        for completion in ended.drain(..) {
            self.finish(completion);
        }
        self.ended = ended;
        if std::mem::take(&mut self.is_broken) {
            self.reopen("a refused key has broken the way to a peer");
        }
        has_worked
    }

    fn finish(&mut self, completion: Completion) {
        let slot = completion.slot;
        let Some(mut flight) = self.flights[slot].take() else { return };
        let is_write = flight.job.operation.direction == Direction::Write;
        let must_confirm = is_write && !flight.is_confirming && self.scratch.is_some();
        if completion.result.is_ok() && must_confirm && flight.given_up.is_none() {
            flight.is_confirming = true;
            match self.confirm(slot, &flight.job) {
                Posted::Started => self.flights[slot] = Some(flight),
                Posted::Full => {
                    // The whole write is done again, which writes the same bytes to the same place.
                    self.free.push(slot);
                    self.note_end(&flight, true);
                    self.waiting.push_front(flight.job);
                }
                Posted::Refused(failure) => {
                    self.free.push(slot);
                    self.note_end(&flight, false);
                    let error = error_of(&failure, &flight.job);
                    flight.job.complete(Err(error));
                }
            }
            return;
        }
        self.free.push(slot);
        self.note_end(&flight, completion.result.is_ok());
        let result = match (completion.result, flight.given_up) {
            (Ok(()), None) => Ok(()),
            // It was given up before it ended; a write that was not confirmed may not be there.
            (_, Some((error, _))) => Err(error),
            (Err(failure), None) => {
                let error = error_of(&failure, &flight.job);
                let peer = flight.job.connection.peer;
                if matches!(error, Error::TransportFailed { .. }) {
                    flight.job.connection.fail_on(flight.job.rail, &error);
                    // On verbs a refused key leaves the queue pair in error, and all that follows is flushed.
                    self.is_broken |= failure.code == fi::FI_ECANCELED && self.refusing.contains(&peer);
                } else {
                    self.refusing.insert(peer);
                }
                Err(error)
            }
        };
        flight.job.complete(result);
    }

    /// Reads back the last byte of a write.
    fn confirm(&mut self, slot: usize, job: &Job) -> Posted {
        let (Some(port), Some((byte, registration))) = (self.port.as_mut(), &self.scratch) else {
            return Posted::Full;
        };
        // Within the peer's region, whose end is an address: see `Key::decode`.
        let last = (job.operation.local.length() as u64).saturating_sub(1);
        port.post(
            slot,
            &Order {
                direction: Direction::Read,
                local: byte,
                registration,
                peer: job.peer,
                address: job.address + last,
                key: job.key,
            },
        )
    }

    /// Starts what waits, as far as there is room, and polls between portions: what has ended meanwhile makes room.
    fn start_waiting(&mut self) -> bool {
        self.is_blocked = false;
        let mut has_worked = false;
        let mut blocked_peers: Vec<u64> = Vec::new();
        for portion in portions(self.waiting.len(), PORTION) {
            for _ in 0..portion {
                if self.credits.left() == 0 {
                    return has_worked;
                }
                let Some(job) = self.waiting.pop_front() else { return has_worked };
                if blocked_peers.contains(&job.peer) {
                    self.waiting.push_back(job);
                } else if let Some(job) = self.start(job) {
                    self.blocked.entry(job.peer).or_insert_with(Instant::now);
                    blocked_peers.push(job.peer);
                    self.waiting.push_back(job);
                    self.is_blocked = true;
                } else {
                    has_worked = true;
                }
            }
            if !self.waiting.is_empty() {
                has_worked |= self.poll();
            }
        }
        has_worked
    }

    /// Starts or ends a job; gives it back when the provider has no room.
    fn start(&mut self, job: Job) -> Option<Job> {
        // Checked here, on the thread that removes addresses: a post may race with the peer's being forgotten, and
        // some providers crash on an address that is gone.
        let is_late = job.operation.deadline <= Instant::now();
        if let Some(error) = job.connection.check().err().or(is_late.then_some(Error::DeadlinePassed)) {
            job.complete(Err(error));
            return None;
        }
        let local = &job.operation.local;
        if local.length() == 0 {
            // There is nothing to move, and providers differ in what they make of it.
            job.complete(Ok(()));
            return None;
        }
        let registration = self.regions.get(&local.id()).and_then(|registered| registered.holding(local));
        let (Some(port), Some(registration)) = (self.port.as_mut(), registration) else {
            let error = if self.port.is_none() {
                Error::transport(NAME, "the NIC is not open")
            } else {
                Error::NoSuchRegion { region: local.id() }
            };
            job.complete(Err(error));
            return None;
        };
        // One slot for each credit.
        let slot = match self.credits.take().then(|| self.free.pop()).flatten() {
            Some(slot) => slot,
            None => return Some(job),
        };
        let order = Order {
            direction: job.operation.direction,
            local,
            registration,
            peer: job.peer,
            address: job.address,
            key: job.key,
        };
        match port.post(slot, &order) {
            Posted::Started => {
                self.blocked.remove(&job.peer);
                self.in_flight_bytes += job.operation.local.length() as u64;
                let (began, patience) = (Instant::now(), self.patience());
                let flight = Flight { job, began, patience, is_confirming: false, given_up: None };
                if self.flights.len() <= slot {
                    self.flights.resize_with(slot + 1, || None);
                }
                self.flights[slot] = Some(flight);
                None
            }
            Posted::Full => {
                self.free.push(slot);
                // A peer that has ended nothing yet may not be connected: that says nothing about the NIC.
                if self.heard.contains_key(&job.peer) {
                    self.credits.refused();
                } else {
                    self.credits.give_back();
                }
                Some(job)
            }
            Posted::Refused(failure) => {
                self.free.push(slot);
                self.credits.give_back();
                let error = error_of(&failure, &job);
                if matches!(error, Error::TransportFailed { .. }) {
                    job.connection.fail_on(job.rail, &error);
                }
                job.complete(Err(error));
                None
            }
        }
    }

    /// Gives up what is past its deadline, opens the endpoint again when something does not end, and forgets
    /// addresses that nobody holds.
    fn sweep(&mut self) {
        let now = Instant::now();
        self.visit_graves();
        drop(self.nic.take_stuck());
        if self.is_busy() {
            self.give_up(&Error::DeadlinePassed, |job| job.operation.deadline <= now);
            self.leave_silent_peers(now);
            self.leave_stuck_operations(now);
        }
        self.forget_refused();
        self.forget_addresses();
    }
}
