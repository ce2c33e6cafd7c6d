//! How the endpoint of a NIC is opened, closed, and opened again, with the memory that is registered with it.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use libfabric_sys as fi;

use super::super::NAME;
use super::super::credit::Credits;
use super::super::job::{Flight, Job};
use super::super::nic::ffi::Failure;
use super::super::port::ffi::Port;
use super::super::registered::Portion;
use super::super::registration::ffi::Registration;
use super::super::wire::NO_KEY;
use super::{Domain, SWEEP};
use crate::error::Error;
use crate::memory::{Access, MemorySlice, PageKind, Region};
use crate::types::{ByteCount, RegionId};

/// Pause before an endpoint that cannot be opened is tried again; then twice as long each time, up to the longest.
const OPEN_PAUSE: Duration = Duration::from_millis(100);
const OPEN_PAUSE_MAX: Duration = Duration::from_secs(30);

/// An endpoint that could not be opened.
pub(super) struct Closed {
    /// When it is tried again.
    until: Instant,
    pause: Duration,
}

impl Closed {
    /// It could not be opened at `now`, as `before`.
    fn again(before: Option<&Self>, now: Instant) -> Self {
        let pause = before.map_or(OPEN_PAUSE, |before| OPEN_PAUSE_MAX.min(before.pause * 2));
        Self { until: now + pause, pause }
    }
}

/// An endpoint that the provider has not closed yet, and what was in flight there by slot, with the error that will
/// end it.
pub(super) struct Grave {
    port: Port,
    flights: Vec<Option<(Job, Error)>>,
}

impl Domain {
    pub(super) fn open_port(&mut self) -> Result<(), Failure> {
        let port = Port::open(&self.nic, self.settings.slots, self.settings.write_flags)?;
        let name = port.name()?;
        if self.settings.write_flags & fi::FI_DELIVERY_COMPLETE == 0 {
            let region = Region::anonymous(ByteCount(4096), PageKind::Base, Access::Read);
            let region = Arc::new(region.map_err(|error| Failure {
                call: "memory to confirm writes",
                code: error.raw_os_error().unwrap_or(fi::FI_ENOMEM),
                text: error.to_string(),
            })?);
            let registration =
                Arc::new(self.fresh_keys.register(&port, &Portion::whole(&region), 0..4096)?);
            let byte = MemorySlice::new(&region, RegionId(u64::MAX), 0, ByteCount(1));
            self.scratch = byte.ok().map(|byte| (byte, registration));
        }
        *self.name.lock() = name;
        self.port = Some(port);
        self.closed = None;
        self.bind_again();
        Ok(())
    }

    /// Registers what was registered with the endpoint before this one, or came while there was none.
    pub(super) fn bind_again(&mut self) {
        for (id, portion) in std::mem::take(&mut self.unbound) {
            match self.register(id, portion.clone()) {
                Ok(keys) => {
                    self.keys.lock().insert(id, keys);
                }
                Err(error) => {
                    tracing::warn!(region = %id, %error, "a region is not reachable through a NIC for now");
                    self.unbound.push((id, portion));
                }
            }
        }
    }

    /// Tries again to open an endpoint that could not be opened, when it is time to.
    pub(super) fn open_closed(&mut self, now: Instant) {
        if self.closed.as_ref().is_none_or(|closed| now < closed.until) {
            return;
        }
        match self.open_port() {
            Ok(()) => tracing::info!("the endpoint of a NIC is open again"),
            Err(failure) => {
                tracing::debug!(error = %failure, "the endpoint of a NIC is still closed");
                self.closed = Some(Closed::again(self.closed.as_ref(), now));
            }
        }
    }

    /// Closes the endpoint, so that no memory is touched any more, and opens another. Only then are the jobs ended:
    /// who is told of that may connect again at once, with the new address.
    pub(super) fn reopen(&mut self, cause: &str) {
        tracing::warn!(cause, "opening the endpoint of a NIC again");
        let error = Error::transport(NAME, format!("its endpoint was closed: {cause}"));
        for connection in std::mem::take(&mut self.connections).iter().filter_map(Weak::upgrade) {
            connection.fail(&error);
        }
        let ended = self.close_port(&error);
        if let Err(failure) = self.open_port() {
            tracing::warn!(error = %failure, "the endpoint of a NIC stays closed for now; the others are used");
            self.hide();
            self.closed = Some(Closed::again(self.closed.as_ref(), Instant::now()));
        }
        ended.into_iter().for_each(|(job, error)| job.complete(Err(error)));
    }

    /// Registrations belong to the domain and outlive an endpoint; but where they are bound to it, they are closed
    /// before it.
    pub(super) fn unbind_regions(&mut self) {
        if !self.nic.binds_memory() {
            return;
        }
        for (id, registered) in self.regions.drain() {
            let keys = registered.keys();
            self.keys.lock().insert(id, vec![NO_KEY; keys.len()]);
            self.fresh_keys.retire(keys);
            self.unbound.push((id, registered.withdraw()));
        }
        if let Some((_, registration)) = &self.scratch {
            registration.withdraw();
        }
    }

    /// Closes the endpoint. Returns the jobs that are over, each with the error that ends it: its own when it was
    /// given up, else `error`.
    pub(super) fn close_port(&mut self, error: &Error) -> Vec<(Job, Error)> {
        self.unbind_regions();
        let port = self.port.take();
        self.scratch = None;
        self.known.clear();
        self.refusing.clear();
        self.heard.clear();
        self.blocked.clear();
        self.has_met_peers = false;
        self.in_flight_bytes = 0;
        self.is_blocked = false;
        self.free = (0..self.settings.slots).rev().collect();
        self.credits = Credits::new(self.settings.slots);
        let end = |flight: Flight| {
            let own = flight.given_up.map(|(own, _)| own);
            (flight.job, own.unwrap_or_else(|| error.clone()))
        };
        let flights: Vec<Option<(Job, Error)>> =
            self.flights.iter_mut().map(|flight| flight.take().map(end)).collect();
        let mut over: Vec<(Job, Error)> = self.waiting.drain(..).map(|job| (job, error.clone())).collect();
        match port.map(|mut port| (port.close(), port)) {
            Some((false, port)) => {
                tracing::warn!("an endpoint cannot be closed yet; what was in flight there ends when it is");
                self.graves.push(Grave { port, flights });
            }
            Some((true, _)) | None => over.extend(flights.into_iter().flatten()),
        }
        over
    }

    /// Tries again to close what could not be closed, and ends what was in flight there and cannot touch memory any
    /// more.
    pub(super) fn visit_graves(&mut self) {
        let mut over = Vec::new();
        self.graves.retain_mut(|Grave { port, flights }| {
            let mut ended = Vec::new();
            while port.poll(&mut ended).is_ok_and(|count| count > 0) {}
            over.extend(ended.iter().filter_map(|completion| flights[completion.slot].take()));
            let is_closed = port.close();
            if is_closed {
                over.extend(flights.iter_mut().filter_map(Option::take));
            }
            !is_closed
        });
        over.into_iter().for_each(|(job, error)| job.complete(Err(error)));
    }

    /// Starts no more, and lets what is in flight end until `until`. Closing an endpoint under it is allowed, but the
    /// library's `ofi_rxm` (1.17) now and then takes the process with it.
    fn let_end(&mut self, until: Instant, error: &Error) {
        self.give_up(error, |_| true);
        let mut ended = Vec::new();
        while self.flights.iter().any(Option::is_some) && Instant::now() < until {
            let Some(port) = self.port.as_mut() else { return };
            match port.poll(&mut ended) {
                Ok(0) => std::thread::sleep(Duration::from_micros(50)),
                Ok(_) => ended.drain(..).for_each(|completion| self.finish(completion)),
                Err(_) => return,
            }
        }
    }

    /// Has no address any more: whoever is told goes by the other NICs.
    pub(in super::super) fn hide(&self) {
        self.name.lock().fill(0);
    }

    /// Ends everything, with `error`. Where the provider refuses to close an endpoint, what is in flight there may still touch
    /// memory: it is waited for as long as it may take to settle, and beyond that while `goes_on` says so.
    pub(in super::super) fn close(&mut self, error: &Error, goes_on: impl Fn() -> bool) {
        for connection in self.connections.drain(..).filter_map(|connection| connection.upgrade()) {
            connection.fail(error);
        }
        let until = Instant::now() + self.time_to_settle();
        self.let_end(until, error);
        // They can touch nothing any more, and wait for no other endpoint.
        self.close_port(error).into_iter().for_each(|(job, error)| job.complete(Err(error)));
        while !self.graves.is_empty() && (Instant::now() < until || goes_on()) {
            std::thread::sleep(SWEEP);
            self.visit_graves();
        }
        self.regions.clear();
        self.unbound.clear();
        // The endpoint is closed that may have kept it.
        drop(self.nic.take_stuck());
        self.nic.take_stuck().into_iter().for_each(Registration::abandon);
        self.withdrawn.extend(self.nic.take_withdrawn());
        if !self.graves.is_empty() {
            self.withdrawn.iter_mut().for_each(|withdrawn| std::mem::forget(withdrawn.region.take()));
        }
        self.withdrawn.clear();
        for Grave { port, flights } in self.graves.drain(..) {
            // What it may touch is leaked with it.
            drop(port);
            flights.into_iter().flatten().for_each(|(job, error)| job.complete(Err(error)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_that_cannot_be_opened_is_tried_less_and_less_often() {
        let now = Instant::now();
        let mut closed = Closed::again(None, now);
        let mut pauses = Vec::new();
        for _ in 0..20 {
            pauses.push(closed.until.duration_since(now).as_millis());
            closed = Closed::again(Some(&closed), now);
        }
        assert_eq!(pauses[..4], [100, 200, 400, 800]);
        assert!(pauses[9..].iter().all(|&pause| pause == 30_000), "{pauses:?}");
    }
}
