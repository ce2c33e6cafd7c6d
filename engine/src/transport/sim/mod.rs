//! A network inside this process, with delay, jitter, loss, corruption, partitions and deaths, all from one seed.
//!
//! Bytes go from region to region of one process, when the network says that they arrive. Two ways to let time pass:
//! - [`SimNetwork::simulated`]: nothing happens until [`SimNetwork::step`], which moves a [`SimClock`] to the next event
//!   and runs it. The same seed and the same calls give the same events, in the same order, at the same times. Deadlines
//!   are instants made by [`SimNetwork::instant`], so that no real clock is read.
//! - [`SimNetwork::in_real_time`]: a thread runs each event when it is due.
//!
//! What is simulated is a reliable fabric: a lost piece is sent again after [`Conditions::resend_after`], until it
//! arrives or the operation's deadline passes. Operations overtake each other whenever the jitter makes them.

mod endpoint;
mod world;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::Error;
use crate::time::{Clock, SimClock, SystemClock};
use crate::types::PeerId;

pub use endpoint::SimTransport;
use world::{Ended, World};

/// What the way between two peers is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// How long a message is under way at least.
    pub delay: Duration,
    /// How much longer it may be, each time anew; larger than the time between two messages, it reorders them.
    pub jitter: Duration,
    /// Bytes per second of one operation; 0 for no limit.
    pub bytes_per_second: u64,
    /// Probability that a message is lost and sent again.
    pub loss: f64,
    /// How long the sender waits before it sends a lost message again.
    pub resend_after: Duration,
    /// Probability that one byte of an operation arrives changed.
    pub corruption: f64,
    /// How long it takes to notice that a peer died.
    pub detect_death_after: Duration,
}

impl Default for Conditions {
    /// A quiet local network: 20 microseconds each way, 5 of jitter, nothing lost.
    fn default() -> Self {
        Self {
            delay: Duration::from_micros(20),
            jitter: Duration::from_micros(5),
            bytes_per_second: 0,
            loss: 0.0,
            resend_after: Duration::from_millis(1),
            corruption: 0.0,
            detect_death_after: Duration::from_millis(5),
        }
    }
}

/// What all parts of one network share.
#[derive(Debug)]
struct Shared {
    /// Everything that the network knows. Held while one event runs, which is at most the copy of one operation.
    world: Mutex<World>,
    /// An event was added, or the thread shall end.
    changed: Condvar,
    clock: Arc<dyn Clock>,
    /// `clock`'s zero as an instant.
    epoch: Instant,
}

impl Shared {
    fn new(seed: u64, conditions: Conditions, clock: Arc<dyn Clock>, epoch: Instant) -> Arc<Self> {
        let (world, changed) = (Mutex::new(World::new(seed, conditions)), Condvar::new());
        Arc::new(Self { world, changed, clock, epoch })
    }

    /// Runs `change` on the world, and ends the operations that it returns, outside the lock.
    fn change(&self, change: impl FnOnce(&mut World, Duration) -> Vec<Ended>) {
        let ended = change(&mut self.world.lock(), self.clock.monotonic());
        self.changed.notify_all();
        for (operation, result) in ended {
            operation.complete(result);
        }
    }
}

/// A network and the transports on it.
#[derive(Debug)]
pub struct SimNetwork {
    shared: Arc<Shared>,
    /// Moved by `step`; none when a thread follows the machine's clock.
    clock: Option<Arc<SimClock>>,
    thread: Option<JoinHandle<()>>,
}

impl SimNetwork {
    /// A network whose time stands still between calls of [`Self::step`].
    #[must_use]
    pub fn simulated(seed: u64, conditions: Conditions, clock: Arc<SimClock>) -> Self {
        let epoch = Instant::now().checked_sub(clock.monotonic()).unwrap_or_else(Instant::now);
        let shared = Shared::new(seed, conditions, Arc::clone(&clock) as Arc<dyn Clock>, epoch);
        Self { shared, clock: Some(clock), thread: None }
    }

    /// A network that lives in the machine's time, on a thread of its own that ends with the value.
    ///
    /// # Errors
    /// [`Error::System`] when no thread can be made.
    pub fn in_real_time(seed: u64, conditions: Conditions) -> Result<Self, Error> {
        // One reading for both: were the thread held up between two, deadlines would be later by as much.
        let epoch = Instant::now();
        let shared = Shared::new(seed, conditions, Arc::new(SystemClock::starting_at(epoch)), epoch);
        let of_thread = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("sim-network".to_owned());
        let thread = builder.spawn(move || follow_time(&of_thread));
        let thread = thread.map_err(|error| Error::system("a thread for the simulated network", &error))?;
        Ok(Self { shared, clock: None, thread: Some(thread) })
    }

    /// The transport of `peer`. One for each peer at a time; a second one takes the place of the first.
    #[must_use]
    pub fn transport(&self, peer: PeerId) -> Arc<SimTransport> {
        SimTransport::join(&self.shared, peer)
    }

    /// Runs the next event at its time. False when nothing is left to happen, or on a network in real time.
    pub fn step(&self) -> bool {
        let Some(clock) = &self.clock else { return false };
        let Some(due) = self.shared.world.lock().next_due() else { return false };
        clock.advance(due.saturating_sub(clock.monotonic()));
        self.shared.change(World::run_next);
        true
    }

    /// The instant at which the network's clock shows `time`, for deadlines.
    #[must_use]
    pub fn instant(&self, time: Duration) -> Instant {
        self.shared.epoch + time
    }

    /// Changes the way between `one` and `other`, in both directions. Messages under way are not touched.
    pub fn set_conditions(&self, one: PeerId, other: PeerId, conditions: Conditions) {
        self.shared.world.lock().set_conditions(one, other, conditions);
    }

    /// Cuts the way between `one` and `other` until [`Self::heal`]: what arrives meanwhile is lost and sent again.
    pub fn partition(&self, one: PeerId, other: PeerId) {
        self.shared.world.lock().partition(one, other, true);
    }

    /// Ends a partition.
    pub fn heal(&self, one: PeerId, other: PeerId) {
        self.shared.world.lock().partition(one, other, false);
    }

    /// `peer` dies without a word: nothing of it arrives any more, and others notice after
    /// [`Conditions::detect_death_after`].
    pub fn kill(&self, peer: PeerId) {
        self.shared.change(|world, now| world.kill(peer, now));
    }
}

impl Drop for SimNetwork {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.shared.world.lock().is_over = true;
            self.shared.changed.notify_all();
            // It ends with an error only when it panicked, which has been printed.
            let _ = thread.join();
        }
    }
}

/// Runs each event when it is due, until the network is over.
fn follow_time(shared: &Shared) {
    loop {
        let mut world = shared.world.lock();
        if world.is_over {
            return;
        }
        let due = world.next_due().map(|due| shared.epoch + due);
        match due {
            Some(due) if due <= Instant::now() => {
                drop(world);
                shared.change(World::run_next);
            }
            Some(due) => {
                shared.changed.wait_until(&mut world, due);
            }
            None => shared.changed.wait(&mut world),
        }
    }
}

#[cfg(test)]
mod tests;
