//! The thread that owns a NIC: takes commands, posts operations, polls for their ends.
//!
//! Adaptive: while operations are in flight it spins until nothing has happened for [`SPIN`]; then it sleeps on the
//! queue's descriptor and on an eventfd for new commands. On a host of one or two cores it does not spin, since it
//! would take the core from whoever it waits for. A provider without a descriptor is polled, at growing intervals:
//! a peer's operation may need this process to go on.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::domain::Domain;
use super::endpoint::Connection;
use super::job::Job;
use super::registered::Portion;
use crate::error::Error;
use crate::topology::stay_on;
use crate::transport::BatchId;
use crate::types::{PeerId, RegionId};

/// How long the thread spins after the last thing that happened, while operations are in flight.
const SPIN: Duration = Duration::from_micros(50);
/// Longest sleep while operations are in flight: deadlines are looked at this often.
const SWEEP_MS: u16 = 5;
/// Sleep while the provider has no room or no connection yet: nothing tells when it has.
const RETRY_MS: u16 = 1;
/// Sleep between looks at a provider that cannot wake anybody, when nothing has happened for [`QUIET_POLLS`] looks.
const QUIET_MS: u16 = 5;
/// Looks without a find, of which most are [`RETRY_MS`] apart, after which a provider without a descriptor is quiet.
const QUIET_POLLS: u32 = 1000;
/// Looks without a find that follow each other at once, before those [`RETRY_MS`] apart.
const QUICK_POLLS: u32 = 64;
/// Longest sleep otherwise, in case a provider's descriptor misses an event.
const IDLE_MS: u16 = 500;

/// What the thread is asked to do.
pub(super) enum Command {
    /// Makes what it says of a region reachable.
    Register(RegionId, Portion, mpsc::SyncSender<Result<Vec<u64>, Error>>),
    /// Withdraws it, while peers may use it or not; the sender is dropped when that is done.
    Unregister(RegionId, bool, oneshot::Sender<()>),
    /// A peer has these addresses, and any that it had before no more: they went with an endpoint that it has closed.
    Keep(PeerId, Arc<[Vec<u8>]>),
    /// Learns a peer's address. With a connection, its operations end when the address is lost.
    Insert(PeerId, Vec<u8>, Option<Arc<Connection>>, oneshot::Sender<Result<u64, Error>>),
    /// Forgets a peer's addresses and ends its operations.
    Forget(PeerId),
    /// Starts operations.
    Post(Vec<Job>),
    /// Gives up a batch of a connection.
    Cancel(Arc<Connection>, BatchId),
    /// Gives up all of a connection.
    End(Arc<Connection>, Error),
    /// Ends everything, then the thread.
    Close(oneshot::Sender<()>),
}

/// The way to a NIC's thread.
pub(super) struct Progress {
    commands: Mutex<Mailbox>,
    /// Whether the thread sleeps, or is about to: then a command must ring.
    is_asleep: AtomicBool,
    bell: EventFd,
    /// Operations that the NIC takes beside those that it has, as its thread last knew.
    credits: AtomicUsize,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Mailbox {
    waiting: Vec<Command>,
    is_closed: bool,
}

impl Progress {
    /// Starts the thread of `domain`, which spins only when `may_spin`, on the processors `beside` the NIC.
    pub(super) fn start(
        domain: Domain,
        name: &str,
        may_spin: bool,
        beside: Option<Vec<u32>>,
    ) -> std::io::Result<Arc<Self>> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let progress = Arc::new(Self {
            commands: Mutex::default(),
            is_asleep: AtomicBool::new(false),
            bell,
            credits: AtomicUsize::new(domain.credits()),
            thread: Mutex::default(),
        });
        let own = Arc::clone(&progress);
        // The kernel keeps 15 bytes of a thread's name.
        let thread = std::thread::Builder::new().name(format!("fab-{name}")).spawn(move || {
            stay_on(beside.as_deref());
            own.run(domain, may_spin);
        })?;
        *progress.thread.lock() = Some(thread);
        Ok(progress)
    }

    /// Hands the thread a command. After its end, operations complete with [`Error::Closed`] and answers are dropped.
    pub(super) fn send(&self, command: Command) {
        let refused = {
            let mut mailbox = self.commands.lock();
            if mailbox.is_closed {
                Some(command)
            } else {
                mailbox.waiting.push(command);
                None
            }
        };
        match refused {
            Some(Command::Post(jobs)) => jobs.into_iter().for_each(|job| job.complete(Err(Error::Closed))),
            Some(_) => {}
            None => {
                if self.is_asleep.swap(false, Ordering::SeqCst) {
                    // An eventfd that is full rings already.
                    let _ = self.bell.write(1);
                }
            }
        }
    }

    /// Operations that the NIC takes beside those that it has.
    pub(super) fn credits(&self) -> usize {
        self.credits.load(Ordering::Relaxed)
    }

    /// Waits for the end of the thread, after [`Command::Close`]. Not from the thread itself.
    pub(super) fn join(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }

    fn run(&self, mut domain: Domain, may_spin: bool) {
        let mut last_event = Instant::now();
        let mut idle_polls = 0_u32;
        loop {
            let commands = std::mem::take(&mut self.commands.lock().waiting);
            let mut has_worked = !commands.is_empty();
            let mut commands = commands.into_iter();
            while let Some(command) = commands.next() {
                if let Command::Close(done) = command {
                    self.shut(domain, commands);
                    drop(done);
                    return;
                }
                domain.execute(command);
            }
            has_worked |= domain.advance();
            self.credits.store(domain.credits(), Ordering::Relaxed);
            if has_worked {
                last_event = Instant::now();
                idle_polls = 0;
                continue;
            }
            if may_spin && domain.is_busy() && last_event.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            idle_polls = idle_polls.saturating_add(1);
            self.sleep(&mut domain, idle_polls);
        }
    }

    /// Ends all that is under way and all that still comes.
    fn shut(&self, mut domain: Domain, taken: impl Iterator<Item = Command>) {
        domain.close();
        drop(domain);
        let rest = {
            let mut mailbox = self.commands.lock();
            mailbox.is_closed = true;
            std::mem::take(&mut mailbox.waiting)
        };
        for command in taken.chain(rest) {
            if let Command::Post(jobs) = command {
                jobs.into_iter().for_each(|job| job.complete(Err(Error::Closed)));
            }
        }
    }

    fn sleep(&self, domain: &mut Domain, idle_polls: u32) {
        self.is_asleep.store(true, Ordering::SeqCst);
        // A command that came before the flag was up did not ring.
        if !self.commands.lock().waiting.is_empty() || !domain.may_sleep() {
            self.is_asleep.store(false, Ordering::SeqCst);
            return;
        }
        let queue = domain.wait_fd();
        let longest = match (domain.is_blocked(), domain.is_busy(), queue.is_some(), domain.has_peers()) {
            (true, ..) => RETRY_MS,
            (false, true, false, _) | (false, _, false, true) => match idle_polls {
                0..QUICK_POLLS => 0,
                QUIET_POLLS.. if !domain.is_busy() => QUIET_MS,
                _ => RETRY_MS,
            },
            (false, true, true, _) => SWEEP_MS,
            (false, false, ..) => IDLE_MS,
        };
        let mut descriptors = vec![PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
        descriptors.extend(queue.map(|queue| PollFd::new(queue, PollFlags::POLLIN)));
        if longest == 0 {
            std::thread::sleep(Duration::from_micros(50));
        } else {
            // A signal ends the sleep early, which does no harm.
            let _ = poll(&mut descriptors, PollTimeout::from(longest));
        }
        self.is_asleep.store(false, Ordering::SeqCst);
        let _ = self.bell.read();
    }
}
