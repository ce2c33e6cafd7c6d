//! Bare loops of one-sided operations, without the engine: what the engine is measured against.
//!
//! They use the same provider, endpoint and way of waiting as the transport, and nothing else of it: no plan, no queue,
//! no other thread. One peer, one region at each end.
//!
//! Threads: each value belongs to one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libfabric_sys as fi;
use libfabric_sys::Library;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use super::nic::ffi::{Failure, Nic};
use super::opening::offers;
use super::port::ffi::{Completion, Order, Port, Posted};
use super::registered::Portion;
use super::registration::ffi::Registration;
use super::{FabricConfig, NAME};
use crate::error::Error;
use crate::memory::{MemorySlice, Region};
use crate::transport::Direction;
use crate::types::{ByteCount, RegionId};

/// Longest time for one loop.
const LOOP_MAX: Duration = Duration::from_secs(60);
/// Key that is asked for; the only one of its domain.
const KEY: u64 = 1;

/// Where the other end's memory is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BareTarget {
    address: Vec<u8>,
    base: u64,
    key: u64,
    length: u64,
}

/// What a loop does.
#[derive(Clone, Copy, Debug)]
pub struct BareLoop {
    /// Which way the bytes go.
    pub direction: Direction,
    /// Bytes of each operation.
    pub size: ByteCount,
    /// Operations under way.
    pub depth: usize,
    /// Operations in all.
    pub count: u64,
    /// Bytes of memory that are used at each end.
    pub span: ByteCount,
}

/// An endpoint with one region.
pub struct Bare {
    port: Port,
    registration: Arc<Registration>,
    region: Arc<Region>,
    base: u64,
    may_spin: bool,
}

impl fmt::Debug for Bare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bare").field("region", &self.region).finish_non_exhaustive()
    }
}

fn failed(failure: &Failure) -> Error {
    Error::transport(NAME, failure.to_string())
}

impl Bare {
    /// Opens the first NIC that `config` names, with room for `depth` operations, and registers `region`.
    ///
    /// # Errors
    /// As [`super::Fabric::open`].
    pub fn open(config: &FabricConfig, region: &Arc<Region>, depth: usize) -> Result<Self, Error> {
        let library =
            Library::open().map_err(|error| super::unavailable(error.tried.join(", "), &error.cause))?;
        let (found, chosen, wish) = offers(library, config)?;
        let offer = found.into_iter().nth(chosen.first().copied().unwrap_or_default());
        let offer = offer.ok_or_else(|| super::unavailable("a NIC", "there is none"))?;
        let nic = Nic::open(offer).map_err(|failure| failed(&failure))?;
        let port = Port::open(&nic, depth.max(1), wish.write_flags).map_err(|failure| failed(&failure))?;
        let portion = Portion::whole(region);
        let registration = Registration::new(&port, &portion, 0..region.length().get(), KEY)
            .map_err(|failure| failed(&failure))?;
        let has_addresses = nic.facts().mr_mode & fi::FI_MR_VIRT_ADDR != 0;
        let base = if has_addresses { region.base() as u64 } else { 0 };
        let (registration, region) = (Arc::new(registration), Arc::clone(region));
        Ok(Self { port, registration, region, base, may_spin: config.may_spin })
    }

    /// What the other end needs to reach this one.
    ///
    /// # Errors
    /// When the endpoint does not say its address.
    pub fn target(&self) -> Result<BareTarget, Error> {
        let address = self.port.name().map_err(|failure| failed(&failure))?;
        let length = self.region.length().get();
        Ok(BareTarget { address, base: self.base, key: self.registration.key(), length })
    }

    /// Lets the provider work until `is_over`.
    ///
    /// # Errors
    /// What the provider says.
    pub fn serve(&mut self, is_over: &AtomicBool) -> Result<(), Error> {
        let mut ended = Vec::new();
        while !is_over.load(Ordering::Acquire) {
            if self.port.poll(&mut ended).map_err(|failure| failed(&failure))? == 0 {
                self.rest();
            }
            ended.clear();
        }
        Ok(())
    }

    /// Moves what `wanted` says between this end and `target`, and returns how long it took from the first completion's
    /// post on: the first operation makes the connection, and is not counted.
    ///
    /// # Errors
    /// What the provider says; [`Error::DeadlinePassed`].
    pub fn run(&mut self, target: &BareTarget, wanted: &BareLoop) -> Result<Duration, Error> {
        let peer = self.port.insert(&target.address).map_err(|failure| failed(&failure))?;
        self.repeat(target, peer, &BareLoop { count: 1, ..*wanted })?;
        let began = Instant::now();
        self.repeat(target, peer, wanted)?;
        Ok(began.elapsed())
    }

    fn repeat(&mut self, target: &BareTarget, peer: u64, wanted: &BareLoop) -> Result<(), Error> {
        let size = wanted.size.get();
        let places = (wanted.span.get().min(target.length) / size).max(1);
        let until = Instant::now() + LOOP_MAX;
        let mut free: Vec<usize> = (0..wanted.depth).collect();
        let (mut posted, mut done) = (0, 0);
        let mut ended: Vec<Completion> = Vec::new();
        while done < wanted.count {
            let mut is_full = false;
            while posted < wanted.count
                && !is_full
                && let Some(slot) = free.pop()
            {
                let offset = posted % places * size;
                let local = MemorySlice::new(&self.region, RegionId(0), offset, wanted.size)?;
                let order = Order {
                    direction: wanted.direction,
                    local: &local,
                    registration: &self.registration,
                    peer,
                    address: target.base + offset,
                    key: target.key,
                };
                match self.port.post(slot, &order) {
                    Posted::Started => posted += 1,
                    Posted::Full => {
                        free.push(slot);
                        is_full = true;
                    }
                    Posted::Refused(failure) => return Err(failed(&failure)),
                }
            }
            if self.port.poll(&mut ended).map_err(|failure| failed(&failure))? == 0 {
                if Instant::now() >= until {
                    return Err(Error::DeadlinePassed);
                }
                self.rest();
            }
            for completion in ended.drain(..) {
                completion.result.map_err(|failure| failed(&failure))?;
                free.push(completion.slot);
                done += 1;
            }
        }
        Ok(())
    }

    /// Waits as the transport does.
    fn rest(&mut self) {
        if self.may_spin {
            return std::hint::spin_loop();
        }
        if !self.port.may_sleep() {
            return;
        }
        match self.port.wait_fd() {
            // A signal ends the wait early, which does no harm.
            Some(queue) => drop(poll(&mut [PollFd::new(queue, PollFlags::POLLIN)], PollTimeout::from(1_u8))),
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}
