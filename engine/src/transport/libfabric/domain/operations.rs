//! How operations are started at a NIC, and what is done when they have ended there.
//!
//! Invariants
//! - At most `slots` operations are in flight, which is what the provider said it takes, or as many as it was found to
//!   take ([`Credits`]); others wait in order, and a peer whose connection is not ready yet holds up nobody else.
//! - A write has ended when its bytes are in the target's memory: by `FI_DELIVERY_COMPLETE` where the provider has it;
//!   else by reading the last byte back after the write's completion, which the target's NIC answers after it has
//!   passed on the write.
//!
//! [`Credits`]: super::super::credit::Credits

use std::time::Instant;

use libfabric_sys as fi;

use super::super::NAME;
use super::super::credit::portions;
use super::super::job::{Flight, Job, error_of};
use super::super::port::ffi::{Completion, Order, Posted};
use super::Domain;
use crate::error::Error;
use crate::transport::Direction;

/// Operations that are started before the provider is polled again.
const PORTION: usize = 32;

impl Domain {
    /// An operation has ended at the provider: ends its job, or confirms a write first.
    pub(super) fn finish(&mut self, completion: Completion) {
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
        let peer = flight.job.peer;
        if completion.result.is_ok() && self.refusing.get(&peer).is_some_and(|&since| since < flight.began) {
            // Asked after the refusal, so that has broken nothing.
            self.refusing.remove(&peer);
        }
        let result = match (completion.result, flight.given_up) {
            (Ok(()), None) => Ok(()),
            // It was given up before it ended; a write that was not confirmed may not be there.
            (_, Some((error, _))) => Err(error),
            (Err(failure), None) => {
                let error = error_of(&failure, &flight.job);
                if matches!(error, Error::TransportFailed { .. }) {
                    flight.job.fail_connection(&error);
                    // On verbs a refused key leaves the queue pair in error, and all that follows is flushed.
                    self.is_broken |= failure.code == fi::FI_ECANCELED && self.refusing.contains_key(&peer);
                } else {
                    self.refusing.insert(peer, Instant::now());
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
    pub(super) fn start_waiting(&mut self) -> bool {
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
        let checked = job.counted.connection.check();
        if let Some(error) = checked.err().or(is_late.then_some(Error::DeadlinePassed)) {
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
            // No word of the peer's region: it is there, and another transport may have this one.
            let cause = if self.port.is_none() {
                "the NIC is not open".to_owned()
            } else {
                format!("the NIC does not have region {} of this process", local.id())
            };
            job.complete(Err(Error::transport(NAME, cause)));
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
                    job.fail_connection(&error);
                }
                job.complete(Err(error));
                None
            }
        }
    }
}
