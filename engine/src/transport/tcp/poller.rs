//! Hot path: the threads that wait for data connections, and work on those that are ready.
//!
//! A task of a runtime is woken by way of queues and timers that it shares with others; here a socket that is ready costs
//! one system call and no hand-over. A thread that waits for a transfer may be a poller's guest meanwhile: it borrows the
//! connections that the transfer goes over, which the poller's own thread does not look at until they are given back.
//!
//! Invariants
//! - One thread at a time works on a connection; what becomes ready or is left to be sent meanwhile is noted, and that
//!   thread goes on.
//! - A connection gets a bounded turn, then the others do.
//! - A guest that leaves work over rings for the host.
//! - The thread ends when no grave is left: what the kernel may still read is held until it says that it is done.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

mod attention;
mod guest;

use super::sends::Grave;
use crate::topology::stay_on;

pub(super) use attention::Watch;
pub(super) use guest::{Lent, Loan};

/// Connections that one system call may report.
const EVENTS: usize = 64;
/// Longest wait without a look at the clock.
const WAIT_MS: u16 = 60_000;
/// The bell among the events; connections are counted from 1.
const BELL: u64 = 0;

const READABLE: u8 = 1;
const WRITABLE: u8 = 2;
const HUNG_UP: u8 = 4;
const RUNNING: u8 = 8;
const NOTICED: u8 = 16;
/// Somebody left work and said so.
const WOKEN: u8 = 32;

/// How often graves are looked at, and how late a timer may be.
const TICK_MS: u16 = 2;

/// What is known of a socket.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    /// Bytes may be there, or the end.
    pub(super) is_readable: bool,
    /// Room has come since the last turn.
    pub(super) has_room: bool,
    /// The peer has closed its end, so that what is read in full is followed by the end of the stream.
    is_hung_up: bool,
    /// The error queue may hold something, or it is time to look whether it should have.
    pub(super) is_noticed: bool,
}

impl Readiness {
    fn note(&mut self, bits: u8) {
        // An error of the socket itself is told by what reads it.
        self.is_readable |= bits & (READABLE | HUNG_UP | NOTICED) != 0;
        self.is_noticed |= bits & NOTICED != 0;
        self.has_room = bits & WRITABLE != 0;
        self.is_hung_up |= bits & HUNG_UP != 0;
    }

    /// A read did not fill its target: nothing is left, but for the end of the stream.
    pub(super) fn emptied(&mut self) {
        self.is_readable = self.is_hung_up;
    }
}

/// A connection as a poller sees it.
pub(super) trait Driven: Send + Sync + fmt::Debug {
    /// Sends and receives for a bounded time, without waiting. Returns whether more can be done at once.
    fn turn(&self, readiness: &mut Readiness) -> bool;

    /// Whether something waits for room in the socket.
    fn wants_room(&self) -> bool;

    /// Its socket.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

#[derive(Debug)]
struct Entry {
    driven: Weak<dyn Driven>,
    /// What was reported and not looked at, and whether somebody is at work.
    bits: AtomicU8,
    /// Locked by who is at work.
    readiness: Mutex<Readiness>,
}

/// One thread, and the connections that it looks after.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: Epoll,
    bell: EventFd,
    guest_bell: EventFd,
    /// The thread that is the guest. Held for a look.
    guest: Mutex<Option<ThreadId>>,
    /// Read for each event, written when a connection comes or goes.
    entries: RwLock<HashMap<u64, Arc<Entry>>>,
    next: AtomicU64,
    /// Those whose turn ended before their work.
    again: Mutex<VecDeque<Arc<Entry>>>,
    /// How long to look again and again before sleeping.
    spin: Duration,
    /// Connections that get a turn at a time. Held for a look-up.
    timers: Mutex<Vec<(Instant, Arc<Entry>)>>,
    /// Connections that are over but for the kernel. Held while they are looked at.
    graves: Mutex<Vec<Arc<dyn Grave>>>,
    /// Graves of all pollers of the transport.
    graves_total: watch::Sender<usize>,
    /// Whether there may be timers or graves.
    has_chores: AtomicBool,
    is_over: AtomicBool,
}

impl Poller {
    fn new(spin: Duration, graves_total: watch::Sender<usize>) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let bell = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let (bell, guest_bell) = (bell()?, bell()?);
        epoll.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        Ok(Self {
            epoll,
            bell,
            guest_bell,
            guest: Mutex::default(),
            entries: RwLock::default(),
            next: AtomicU64::new(BELL + 1),
            again: Mutex::default(),
            spin,
            timers: Mutex::default(),
            graves: Mutex::default(),
            graves_total,
            has_chores: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })
    }

    fn ring(&self) {
        // A bell that cannot take more rings already.
        let _ = self.bell.write(1);
    }

    /// Makes the guest look again, if there is one.
    fn nudge_guest(&self) {
        // One that comes later looks first, and the guest itself needs no bell.
        let is_another = |guest: ThreadId| guest != thread::current().id();
        if self.guest.lock().is_some_and(is_another) {
            // A bell that cannot take more rings already.
            let _ = self.guest_bell.write(1);
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The poller's own thread.
    fn serve(&self) {
        let mut last_event = Instant::now();
        while !self.is_over() || !self.graves.lock().is_empty() {
            if self.step(self.wait_time(last_event)) > 0 {
                last_event = Instant::now();
            }
            self.tick();
        }
    }

    /// Looks after a connection that is over until the kernel is done with what was sent on it.
    pub(super) fn bury(&self, grave: Arc<dyn Grave>) {
        self.graves_total.send_modify(|count| *count += 1);
        self.graves.lock().push(grave);
        self.has_chores.store(true, Ordering::Release);
        self.ring();
    }

    /// Does what is due, and looks at graves.
    fn tick(&self) {
        if !self.has_chores.swap(false, Ordering::AcqRel) {
            return;
        }
        let now = Instant::now();
        let due: Vec<_> = self.timers.lock().extract_if(.., |(at, _)| *at <= now).collect();
        for (_, entry) in &due {
            self.run(entry, NOTICED);
        }
        // Taken out, since operations end here, and what that leads to may come back.
        let mut graves = std::mem::take(&mut *self.graves.lock());
        let before = graves.len();
        graves.retain(|grave| !grave.visit());
        let closed = before - graves.len();
        self.graves.lock().append(&mut graves);
        if closed > 0 {
            self.graves_total.send_modify(|count| *count -= closed);
        }
        if !self.graves.lock().is_empty() || !self.timers.lock().is_empty() {
            self.has_chores.store(true, Ordering::Release);
        }
    }

    /// How long until there is something to do beside what becomes ready.
    fn chore_time(&self) -> EpollTimeout {
        if !self.graves.lock().is_empty() {
            return EpollTimeout::from(TICK_MS);
        }
        let next = self.timers.lock().iter().map(|(at, _)| *at).min();
        let left = next.map(|next| next.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        left.and_then(|left| EpollTimeout::try_from(left).ok()).unwrap_or(EpollTimeout::from(TICK_MS))
    }

    fn wait_time(&self, last_event: Instant) -> EpollTimeout {
        if self.has_chores.load(Ordering::Acquire) {
            return self.chore_time();
        }
        if !self.spin.is_zero() && last_event.elapsed() < self.spin {
            std::hint::spin_loop();
            return EpollTimeout::ZERO;
        }
        EpollTimeout::from(WAIT_MS)
    }

    /// Waits for at most `longest` and works on what is ready. Returns how many connections that were.
    fn step(&self, longest: EpollTimeout) -> usize {
        let longest = if self.again.lock().is_empty() { longest } else { EpollTimeout::ZERO };
        let mut events = [EpollEvent::empty(); EVENTS];
        // A signal ends the wait early, which does no harm.
        let found = self.epoll.wait(&mut events, longest).unwrap_or(0);
        let mut count = 0;
        for event in &events[..found] {
            if event.data() == BELL {
                let _ = self.bell.read();
                continue;
            }
            let entry = self.entries.read().get(&event.data()).cloned();
            if let Some(entry) = entry {
                count += 1;
                self.run(&entry, bits_of(event.events()));
            }
        }
        count + self.go_on()
    }

    /// Gives another turn to those that need one.
    fn go_on(&self) -> usize {
        let again = std::mem::take(&mut *self.again.lock());
        for entry in &again {
            // Who is at work may have looked for work already, and is to look again.
            self.run(entry, WOKEN);
        }
        again.len()
    }

    /// Works on a connection, unless somebody does, who is told to go on then. Returns whether it did.
    fn run(&self, entry: &Arc<Entry>, bits: u8) -> bool {
        if entry.bits.fetch_or(bits | RUNNING, Ordering::AcqRel) & RUNNING != 0 {
            return false;
        }
        loop {
            let bits = entry.bits.swap(RUNNING, Ordering::AcqRel);
            let has_more = entry.driven.upgrade().is_some_and(|driven| {
                let mut readiness = entry.readiness.lock();
                readiness.note(bits);
                driven.turn(&mut readiness)
            });
            if has_more {
                entry.bits.fetch_and(!RUNNING, Ordering::AcqRel);
                self.again.lock().push_back(Arc::clone(entry));
                return true;
            }
            if entry.bits.compare_exchange(RUNNING, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return true;
            }
        }
    }
}

fn bits_of(events: EpollFlags) -> u8 {
    let of = |flags: EpollFlags, bit: u8| if events.intersects(flags) { bit } else { 0 };
    let hung_up = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP;
    // Said of an error of the socket, and of anything in its error queue.
    let noticed = of(EpollFlags::EPOLLERR, NOTICED);
    of(EpollFlags::EPOLLIN, READABLE) | of(EpollFlags::EPOLLOUT, WRITABLE) | of(hung_up, HUNG_UP) | noticed
}

/// The pollers of one transport.
#[derive(Debug)]
pub(super) struct Pollers {
    all: Vec<Arc<Poller>>,
    next: AtomicUsize,
    graves_total: watch::Sender<usize>,
}

impl Pollers {
    /// Starts `count` threads, each on the processors that `beside` says for its number.
    ///
    /// # Errors
    /// When the system has no more threads or descriptors.
    pub(super) fn start(
        count: usize,
        spin: Duration,
        beside: impl Fn(usize) -> Option<Vec<u32>>,
    ) -> io::Result<Self> {
        let graves_total = watch::Sender::new(0);
        let mut pollers = Self { all: Vec::new(), next: AtomicUsize::new(0), graves_total };
        for index in 0..count.max(1) {
            let poller = Arc::new(Poller::new(spin, pollers.graves_total.clone())?);
            pollers.all.push(Arc::clone(&poller));
            let beside = beside(index);
            thread::Builder::new().name(format!("tcp-{index}")).spawn(move || {
                stay_on(beside.as_deref());
                poller.serve();
            })?;
        }
        Ok(pollers)
    }

    /// The next in turn.
    pub(super) fn next(&self) -> &Arc<Poller> {
        &self.all[self.next.fetch_add(1, Ordering::Relaxed) % self.all.len()]
    }

    /// Resolves when the kernel reads nothing any more that was sent on a connection which is over.
    pub(super) async fn until_graves_are_gone(&self) {
        // The sender is a field of `self`, so it is not dropped.
        let _ = self.graves_total.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Ends the threads. They touch no memory but that of connections, which are ended before.
    pub(super) fn stop(&self) {
        for poller in &self.all {
            poller.is_over.store(true, Ordering::Release);
            poller.ring();
            let _ = poller.guest_bell.write(1);
        }
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        self.stop();
    }
}
