//! One NIC: its endpoint, what is registered with it, the peers it knows, and the operations that [are under way](operations).
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
//!   The same is done when operations to a peer that refused a key are cancelled by the provider, and none that was asked later
//!   has ended well.
//! - Where an endpoint cannot be opened again, that is tried until it can be. Meanwhile this NIC has no address, and no keys for
//!   what is registered, so that whoever is told goes by the others.
//!
//! Threads: owned by the NIC's progress thread.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use libfabric_sys as fi;

use super::credit::Credits;
use super::endpoint::Connection;
use super::job::{Flight, Job, Settings};
use super::keys::Keys;
use super::nic::ffi::{Failure, Nic, Withdrawn};
use super::port::ffi::{Completion, Port};
use super::progress::Command;
use super::registered::{Portion, Registered};
use super::registration::ffi::Registration;
use crate::error::Error;
use crate::memory::MemorySlice;
use crate::transport::Rate;
use crate::types::RegionId;

mod life;
mod memory;
mod operations;
mod peers;
mod silence;

use life::{Closed, Grave};
use peers::Known;

/// Deadlines are looked at this often while anything is under way.
const SWEEP: Duration = Duration::from_millis(5);

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
    /// Regions whose registrations went with an endpoint that they were bound to, or that came while there was none: to be
    /// registered with the next one.
    unbound: Vec<(RegionId, Portion)>,
    /// Where the endpoint could not be opened.
    closed: Option<Closed>,
    /// Memory that peers may still touch through endpoints that are not closed.
    withdrawn: Vec<Withdrawn>,
    /// Whether anybody was told of the endpoint's address, or has told its own, since it was opened.
    has_met_peers: bool,
    /// Where bytes go that are read to confirm a write.
    scratch: Option<(MemorySlice, Arc<Registration>)>,
    known: HashMap<Vec<u8>, Known>,
    /// Peers, by their slots, that refused a key, when they last did, and have ended nothing well since that was asked later.
    refusing: HashMap<u64, Instant>,
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
    fresh_keys: Keys,
    settings: Settings,
    /// Our address, as peers get it: changes when the endpoint is opened again, and is all zeros where it cannot be.
    name: Arc<parking_lot::Mutex<Vec<u8>>>,
    /// Keys of the regions, as peers get them, where they are not those of the first registration.
    keys: Arc<parking_lot::Mutex<HashMap<RegionId, Vec<u64>>>>,
    nic: Arc<Nic>,
}

impl Domain {
    /// Opens the endpoint. `name` is kept up to date with its address, and `keys` where regions get others.
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
            closed: None,
            withdrawn: Vec::new(),
            has_met_peers: false,
            scratch: None,
            known: HashMap::new(),
            refusing: HashMap::new(),
            is_broken: false,
            connections: Vec::new(),
            heard: HashMap::new(),
            blocked: HashMap::new(),
            rate: Rate::default(),
            in_flight_bytes: 0,
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
                Arc::ptr_eq(&job.counted.connection, &connection) && job.operation.ticket.batch() == batch
            }),
            Command::End(connection, error) => {
                self.give_up(&error, |job| Arc::ptr_eq(&job.counted.connection, &connection));
            }
            Command::Close(_) => self.close(&Error::Closed, || false),
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

    /// Gives up what is past its deadline, opens the endpoint again when something does not end or when it is not open, and
    /// forgets addresses that nobody holds.
    fn sweep(&mut self) {
        let now = Instant::now();
        self.open_closed(now);
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
