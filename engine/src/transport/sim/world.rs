//! The state of a simulated network and its agenda. Plain values: what happens follows from the seed and the calls.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use super::Conditions;
use crate::error::Error;
use crate::memory::{Access, MemorySlice, Region};
use crate::rng::Rng;
use crate::transport::{BatchId, Direction, EndpointState, Operation};
use crate::types::{ByteCount, PeerId, RegionId};

/// An operation that has left the world, and how it ended.
pub(super) type Ended = (Operation, Result<(), Error>);

/// Times that a message is lost at most before it counts as never sent; the deadline ends its operation.
const RESENDS_MAX: u32 = 1000;

#[derive(Debug)]
enum Event {
    /// A request reaches its target.
    Arrives(u64),
    /// The answer to it is back.
    Returns(u64, Result<(), Error>),
    /// Its deadline.
    Expires(u64),
    /// Others notice that the peer is dead.
    Noticed(PeerId),
}

/// An entry of the agenda, ordered by time and then by age.
#[derive(Debug)]
struct Entry {
    due: Duration,
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.number) == (other.due, other.number)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

/// One peer.
#[derive(Debug, Default)]
struct Host {
    regions: BTreeMap<RegionId, Arc<Region>>,
    granted: BTreeSet<PeerId>,
    is_dead: bool,
}

/// One connection.
#[derive(Debug)]
struct Line {
    from: PeerId,
    to: PeerId,
    state: EndpointState,
    operations: usize,
    bytes: u64,
}

/// An operation under way.
#[derive(Debug)]
struct Flight {
    line: u64,
    operation: Operation,
    /// What a read found at the target, on its way back.
    payload: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct World {
    rng: Rng,
    usual: Conditions,
    special: BTreeMap<(PeerId, PeerId), Conditions>,
    cut: BTreeSet<(PeerId, PeerId)>,
    hosts: BTreeMap<PeerId, Host>,
    lines: BTreeMap<u64, Line>,
    flights: BTreeMap<u64, Flight>,
    agenda: BinaryHeap<Reverse<Entry>>,
    next_number: u64,
    /// Tells the thread of a network in real time to end.
    pub(super) is_over: bool,
}

/// The two of a way, in the order in which it is remembered.
fn way(one: PeerId, other: PeerId) -> (PeerId, PeerId) {
    (one.min(other), one.max(other))
}

fn gone(peer: PeerId, cause: &str) -> Error {
    Error::PeerGone { peer, cause: cause.into() }
}

impl World {
    pub(super) fn new(seed: u64, usual: Conditions) -> Self {
        Self {
            rng: Rng::seeded(seed),
            usual,
            special: BTreeMap::new(),
            cut: BTreeSet::new(),
            hosts: BTreeMap::new(),
            lines: BTreeMap::new(),
            flights: BTreeMap::new(),
            agenda: BinaryHeap::new(),
            next_number: 0,
            is_over: false,
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn plan(&mut self, due: Duration, event: Event) {
        let number = self.number();
        self.agenda.push(Reverse(Entry { due, number, event }));
    }

    fn conditions(&self, one: PeerId, other: PeerId) -> Conditions {
        self.special.get(&way(one, other)).copied().unwrap_or(self.usual)
    }

    pub(super) fn set_conditions(&mut self, one: PeerId, other: PeerId, conditions: Conditions) {
        self.special.insert(way(one, other), conditions);
    }

    pub(super) fn partition(&mut self, one: PeerId, other: PeerId, is_cut: bool) {
        if is_cut {
            self.cut.insert(way(one, other));
        } else {
            self.cut.remove(&way(one, other));
        }
    }

    // --- Peers and regions ---

    pub(super) fn join(&mut self, peer: PeerId) -> Vec<Ended> {
        let ended = self.leave(peer, &gone(peer, "it was started anew"));
        self.hosts.insert(peer, Host::default());
        ended
    }

    /// `peer` and all its connections end now, with `cause` for those that others made.
    pub(super) fn leave(&mut self, peer: PeerId, cause: &Error) -> Vec<Ended> {
        self.hosts.remove(&peer);
        let mut ended = self.end_lines(|line| line.from == peer, &EndpointState::Closed);
        ended.extend(self.end_lines(|line| line.to == peer, &EndpointState::Failed(cause.clone())));
        ended
    }

    pub(super) fn kill(&mut self, peer: PeerId, now: Duration) -> Vec<Ended> {
        if let Some(host) = self.hosts.get_mut(&peer) {
            host.is_dead = true;
            let after = self.usual.detect_death_after;
            self.plan(now + after, Event::Noticed(peer));
        }
        Vec::new()
    }

    pub(super) fn is_member(&self, peer: PeerId) -> bool {
        self.hosts.contains_key(&peer)
    }

    pub(super) fn register(&mut self, peer: PeerId, id: RegionId, region: &Arc<Region>) -> bool {
        let host = self.hosts.get_mut(&peer);
        host.map(|host| host.regions.insert(id, Arc::clone(region))).is_some()
    }

    pub(super) fn unregister(&mut self, peer: PeerId, id: RegionId) {
        if let Some(host) = self.hosts.get_mut(&peer) {
            host.regions.remove(&id);
        }
    }

    pub(super) fn grant(&mut self, owner: PeerId, peer: PeerId) {
        if let Some(host) = self.hosts.get_mut(&owner) {
            host.granted.insert(peer);
        }
    }

    pub(super) fn forget(&mut self, owner: PeerId, peer: PeerId) -> Vec<Ended> {
        if let Some(host) = self.hosts.get_mut(&owner) {
            host.granted.remove(&peer);
        }
        let there = EndpointState::Failed(gone(peer, "the link to it is gone"));
        let back = EndpointState::Failed(gone(owner, "it took back what it had granted"));
        let mut ended = self.end_lines(|line| line.from == owner && line.to == peer, &there);
        ended.extend(self.end_lines(|line| line.from == peer && line.to == owner, &back));
        ended
    }

    // --- Connections ---

    pub(super) fn add_line(&mut self, from: PeerId, to: PeerId) -> u64 {
        let number = self.number();
        self.lines.insert(number, Line { from, to, state: EndpointState::Ready, operations: 0, bytes: 0 });
        number
    }

    /// The endpoint was dropped; what it still had in flight ends.
    pub(super) fn remove_line(&mut self, line: u64) -> Vec<Ended> {
        let ended = self.end_line(line, EndpointState::Closed);
        self.lines.remove(&line);
        ended
    }

    pub(super) fn state(&self, line: u64) -> EndpointState {
        self.lines.get(&line).map_or(EndpointState::Closed, |line| line.state.clone())
    }

    /// Operations and bytes under way.
    pub(super) fn load(&self, line: u64) -> (usize, u64) {
        self.lines.get(&line).map_or((0, 0), |line| (line.operations, line.bytes))
    }

    fn end_lines(&mut self, which: impl Fn(&Line) -> bool, state: &EndpointState) -> Vec<Ended> {
        let found = self.lines.iter().filter(|(_, line)| which(line)).map(|(number, _)| *number);
        let found: Vec<u64> = found.collect();
        found.into_iter().flat_map(|line| self.end_line(line, state.clone())).collect()
    }

    /// Ends a connection that is ready, and all that it has in flight.
    pub(super) fn end_line(&mut self, number: u64, state: EndpointState) -> Vec<Ended> {
        let Some(line) = self.lines.get_mut(&number) else { return Vec::new() };
        if line.state != EndpointState::Ready {
            return Vec::new();
        }
        let error = state.error().unwrap_or(Error::Closed);
        line.state = state;
        self.end_flights(|flight| flight.line == number, &error)
    }

    fn end_flights(&mut self, which: impl Fn(&Flight) -> bool, error: &Error) -> Vec<Ended> {
        let found = self.flights.iter().filter(|(_, flight)| which(flight)).map(|(number, _)| *number);
        let found: Vec<u64> = found.collect();
        found.into_iter().filter_map(|flight| self.end_flight(flight, Err(error.clone()))).collect()
    }

    // --- Operations ---

    pub(super) fn cancel(&mut self, line: u64, batch: BatchId) -> Vec<Ended> {
        let is_of = |flight: &Flight| flight.line == line && flight.operation.ticket.batch() == batch;
        self.end_flights(is_of, &Error::Cancelled)
    }

    /// Sends an operation whose deadline is at `deadline` of the network's clock.
    pub(super) fn post(
        &mut self,
        line: u64,
        operation: Operation,
        deadline: Duration,
        now: Duration,
    ) -> Option<Ended> {
        let Some(found) = self.lines.get_mut(&line) else { return Some((operation, Err(Error::Closed))) };
        let late = (deadline <= now).then_some(Error::DeadlinePassed);
        if let Some(error) = found.state.error().or(late) {
            return Some((operation, Err(error)));
        }
        found.operations += 1;
        found.bytes += operation.local.length() as u64;
        let carried = if operation.direction == Direction::Write { operation.local.length() } else { 0 };
        let (from, to) = (found.from, found.to);
        let flight = self.number();
        self.flights.insert(flight, Flight { line, operation, payload: None });
        self.plan(deadline, Event::Expires(flight));
        if let Some(under_way) = self.under_way(from, to, carried) {
            self.plan(now + under_way, Event::Arrives(flight));
        }
        None
    }

    /// How long a message of `bytes` takes, with the times that it is lost. `None` when it never arrives.
    fn under_way(&mut self, from: PeerId, to: PeerId, bytes: usize) -> Option<Duration> {
        let conditions = self.conditions(from, to);
        let mut total = conditions.delay + self.rng.time_below(conditions.jitter);
        if conditions.bytes_per_second > 0 {
            total += Duration::from_secs_f64(bytes as f64 / conditions.bytes_per_second as f64);
        }
        for _ in 0..RESENDS_MAX {
            if !self.rng.chance(conditions.loss) {
                return Some(total);
            }
            total += conditions.resend_after;
        }
        None
    }

    /// When the next event is due.
    pub(super) fn next_due(&mut self) -> Option<Duration> {
        // What became of operations that have ended is of no interest.
        while let Some(Reverse(entry)) = self.agenda.peek() {
            let is_over = match entry.event {
                Event::Arrives(flight) | Event::Returns(flight, _) | Event::Expires(flight) => {
                    !self.flights.contains_key(&flight)
                }
                Event::Noticed(_) => false,
            };
            if !is_over {
                return Some(entry.due);
            }
            self.agenda.pop();
        }
        None
    }

    /// Runs the next event, if it is due.
    pub(super) fn run_next(&mut self, now: Duration) -> Vec<Ended> {
        if self.next_due().is_none_or(|due| due > now) {
            return Vec::new();
        }
        let Some(Reverse(Entry { event, .. })) = self.agenda.pop() else { return Vec::new() };
        match event {
            Event::Expires(flight) => {
                self.end_flight(flight, Err(Error::DeadlinePassed)).into_iter().collect()
            }
            Event::Noticed(peer) => self.leave(peer, &gone(peer, "it died")),
            Event::Arrives(flight) => {
                self.arrive(flight, now);
                Vec::new()
            }
            Event::Returns(flight, result) => self.come_back(flight, result, now).into_iter().collect(),
        }
    }

    /// The two ends of a flight, and whether messages between them are lost at the moment, and how long that is tried.
    fn ends_of(&self, flight: u64) -> Option<(PeerId, PeerId, bool)> {
        let line = self.lines.get(&self.flights.get(&flight)?.line)?;
        let (from, to) = (line.from, line.to);
        let is_dead = |peer| self.hosts.get(&peer).is_none_or(|host| host.is_dead);
        Some((from, to, self.cut.contains(&way(from, to)) || is_dead(from) || is_dead(to)))
    }

    fn arrive(&mut self, number: u64, now: Duration) {
        let Some((from, to, is_lost)) = self.ends_of(number) else { return };
        let conditions = self.conditions(from, to);
        if is_lost {
            self.plan(now + conditions.resend_after, Event::Arrives(number));
            return;
        }
        let corrupted = self.rng.chance(conditions.corruption).then(|| self.rng.next_u64());
        let (Some(host), Some(flight)) = (self.hosts.get(&to), self.flights.get_mut(&number)) else { return };
        let result = apply(host, from, flight, corrupted);
        let carried = flight.payload.as_ref().map_or(0, Vec::len);
        if let Some(under_way) = self.under_way(to, from, carried) {
            self.plan(now + under_way, Event::Returns(number, result));
        }
    }

    fn come_back(&mut self, number: u64, result: Result<(), Error>, now: Duration) -> Option<Ended> {
        let (from, to, is_lost) = self.ends_of(number)?;
        if is_lost {
            let after = self.conditions(from, to).resend_after;
            self.plan(now + after, Event::Returns(number, result));
            return None;
        }
        let flight = self.flights.get_mut(&number)?;
        if let Some(payload) = flight.payload.take() {
            let local = &flight.operation.local;
            local.region().write_at(local.offset(), &payload);
        }
        self.end_flight(number, result)
    }

    fn end_flight(&mut self, number: u64, result: Result<(), Error>) -> Option<Ended> {
        let flight = self.flights.remove(&number)?;
        if let Some(line) = self.lines.get_mut(&flight.line) {
            line.operations -= 1;
            line.bytes -= flight.operation.local.length() as u64;
        }
        Some((flight.operation, result))
    }
}

/// Does at the target what the flight asks. `corrupted` says which byte changes on the way.
fn apply(host: &Host, from: PeerId, flight: &mut Flight, corrupted: Option<u64>) -> Result<(), Error> {
    let Operation { direction, local, remote, .. } = &flight.operation;
    if !host.granted.contains(&from) {
        return Err(Error::transport(super::endpoint::NAME, "nothing is granted to this peer"));
    }
    let unknown = Error::NoSuchRegion { region: remote.region };
    let region = host.regions.get(&remote.region).ok_or(unknown)?;
    if *remote.key != super::endpoint::key_of(remote.region) {
        return Err(Error::protocol("a key that is not the region's"));
    }
    let length = local.length();
    let far = MemorySlice::new(region, remote.region, remote.offset, ByteCount(length as u64))?;
    let victim = corrupted.and_then(|number| number.checked_rem(length as u64));
    if *direction == Direction::Write {
        if region.access() != Access::ReadWrite {
            return Err(Error::ReadOnly { region: remote.region });
        }
        far.copy_from(local);
        if let Some(victim) = victim {
            let mut byte = [0];
            region.read_at(far.offset() + victim, &mut byte);
            region.write_at(far.offset() + victim, &[!byte[0]]);
        }
        return Ok(());
    }
    let mut payload = vec![0; length];
    region.read_at(far.offset(), &mut payload);
    let victim = victim.and_then(|victim| payload.get_mut(usize::try_from(victim).ok()?));
    if let Some(byte) = victim {
        *byte = !*byte;
    }
    flight.payload = Some(payload);
    Ok(())
}
