//! The thread that owns a NIC: takes commands, posts operations, polls for their ends.
//!
//! Adaptive: while operations are in flight it spins until nothing has happened for [`SPIN`]; then it sleeps on the
//! queue's descriptor and on an eventfd for new commands. On a host of one or two cores it does not spin, since it
//! would take the core from whoever it waits for. A provider without a descriptor is polled, at growing intervals:
//! a peer's operation may need this process to go on.
//!
//! A panic costs the NIC: what is asked of it from then on is refused at once, so that it goes another way; what is under way ends
//! when the endpoint is closed, however long the provider refuses that, unless the thread is told to end; and the NIC counts as one
//! that is not open: it has no address and no credits. A second panic, as of a ticket that always does, may end the process.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::NAME;
use super::domain::Domain;
use super::endpoint::Connection;
use super::job::Job;
use super::registered::Portion;
use super::wire::NO_KEY;
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

impl Command {
    /// Whether its end says that memory is not touched any more, so that it waits until the endpoint is closed.
    fn frees_memory(&self) -> bool {
        matches!(self, Self::Unregister(..) | Self::Close(_))
    }

    /// The thread does not do it any more, which `error` says why. Of memory, a NIC that has failed has as much as one that is
    /// not open.
    fn refuse(self, error: &Error) {
        match self {
            Self::Post(jobs) => jobs.into_iter().for_each(|job| job.complete(Err(error.clone()))),
            Self::Register(_, portion, reply) if *error != Error::Closed => {
                let _ = reply.send(Ok(vec![NO_KEY; portion.ranges.len()]));
            }
            _ => {}
        }
    }
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
    /// Why nothing is taken any more but what frees memory.
    refusal: Option<Error>,
    /// Whether that is not taken either: the endpoint is closed.
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

    /// Hands the thread a command. After its end, operations complete with why it ended and answers are dropped; where it ends by
    /// a panic, that is so from that moment on, but for what [frees memory](Command::frees_memory).
    pub(super) fn send(&self, command: Command) {
        let refused = {
            let mut mailbox = self.commands.lock();
            let is_refused =
                if command.frees_memory() { mailbox.is_closed } else { mailbox.refusal.is_some() };
            if is_refused {
                Some((command, mailbox.refusal.clone().unwrap_or(Error::Closed)))
            } else {
                mailbox.waiting.push(command);
                None
            }
        };
        match refused {
            Some((command, error)) => command.refuse(&error),
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
        let mut taken = VecDeque::new();
        // What a panic leaves half done is closed, and nothing else is done with it.
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(&mut domain, &mut taken, may_spin)));
        let (error, done) = match served {
            Ok(done) => (Error::Closed, Some(done)),
            Err(_) => (self.fail(&domain, &mut taken), None),
        };
        // Who has told it to end does not wait for a provider that refuses; whoever lives on may not use memory before.
        let goes_on = || done.is_none() && !self.is_told_to_end(&taken);
        let close = AssertUnwindSafe(|| {
            domain.close(&error, goes_on);
            drop(domain);
        });
        if catch_unwind(close).is_err() {
            tracing::error!("the closing of a NIC panicked");
        }
        self.end(taken, &error);
        drop(done);
    }

    /// Works until it is told to end, and returns who waits for that. Commands that it has not come to are left in `taken`.
    fn serve(
        &self,
        domain: &mut Domain,
        taken: &mut VecDeque<Command>,
        may_spin: bool,
    ) -> oneshot::Sender<()> {
        let mut last_event = Instant::now();
        let mut idle_polls = 0_u32;
        loop {
            let commands = std::mem::take(&mut self.commands.lock().waiting);
            let mut has_worked = !commands.is_empty();
            taken.extend(commands);
            while let Some(command) = taken.pop_front() {
                if let Command::Close(done) = command {
                    return done;
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
            self.sleep(domain, idle_polls);
        }
    }

    /// Whether [`Command::Close`] is among what was `taken`, or what waits.
    fn is_told_to_end(&self, taken: &VecDeque<Command>) -> bool {
        let is_end = |command: &Command| matches!(command, Command::Close(_));
        taken.iter().any(is_end) || self.commands.lock().waiting.iter().any(is_end)
    }

    /// The thread has panicked: from now on it is given nothing but what frees memory, and of what was `taken` or waits nothing
    /// else is left. Returns what operations end with.
    fn fail(&self, domain: &Domain, taken: &mut VecDeque<Command>) -> Error {
        let thread = std::thread::current();
        tracing::error!(thread = thread.name(), "the thread of a NIC panicked; the NIC is not used any more");
        let error = Error::transport(NAME, "the thread of the NIC panicked");
        {
            let mut mailbox = self.commands.lock();
            mailbox.refusal = Some(error.clone());
            taken.extend(mailbox.waiting.drain(..));
        }
        self.credits.store(0, Ordering::Relaxed);
        domain.hide();
        let (kept, refused): (VecDeque<Command>, VecDeque<Command>) =
            std::mem::take(taken).into_iter().partition(Command::frees_memory);
        *taken = kept;
        let refuse = || refused.into_iter().for_each(|command| command.refuse(&error));
        if catch_unwind(AssertUnwindSafe(refuse)).is_err() {
            tracing::error!("the end of an operation panicked");
        }
        error
    }

    /// The endpoint is closed: ends what was not done, and all that still comes.
    fn end(&self, taken: VecDeque<Command>, error: &Error) {
        let rest = {
            let mut mailbox = self.commands.lock();
            mailbox.refusal = Some(error.clone());
            mailbox.is_closed = true;
            std::mem::take(&mut mailbox.waiting)
        };
        taken.into_iter().chain(rest).for_each(|command| command.refuse(error));
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
