//! Hot path: the threads that wait for data connections, and work on those that are ready.
//!
//! A task of a runtime is woken by way of queues and timers that it shares with others; here a socket that is ready costs
//! one system call and no hand-over. A thread that waits for a transfer may take the place of the poller's own for as
//! long: the kernel wakes who came to the descriptor last, so its host sleeps on and takes over where the guest leaves.
//!
//! Invariants
//! - One thread at a time works on a connection; what becomes ready meanwhile is noted, and that thread goes on.
//! - A connection gets a bounded turn, then the others do.
//! - The bell rings until the guest has heard it, if there is one, else the host.
//! - Whoever leaves work over rings.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::transport::Progress;

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

/// What is known of a socket.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    /// Bytes may be there, or the end.
    pub(super) is_readable: bool,
    /// Room has come since the last turn.
    pub(super) has_room: bool,
    /// The peer has closed its end, so that what is read in full is followed by the end of the stream.
    is_hung_up: bool,
}

impl Readiness {
    fn note(&mut self, bits: u8) {
        self.is_readable |= bits & (READABLE | HUNG_UP) != 0;
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
    /// Read for each event, written when a connection comes or goes.
    entries: RwLock<HashMap<u64, Arc<Entry>>>,
    next: AtomicU64,
    /// Those whose turn ended before their work.
    again: Mutex<VecDeque<Arc<Entry>>>,
    /// The thread that works in place of the host, and the number of its visit. Held for a look.
    guest: Mutex<Option<(ThreadId, u64)>>,
    visits: AtomicU64,
    guest_left: Condvar,
    /// How long to look again and again before sleeping.
    spin: Duration,
    is_over: AtomicBool,
}

/// Looks after a connection for as long as it lives.
#[derive(Debug)]
pub(super) struct Watch {
    poller: Arc<Poller>,
    entry: Arc<Entry>,
    key: u64,
}

impl Watch {
    /// Gives the connection a turn soon.
    pub(super) fn wake(&self) {
        self.poller.again.lock().push_back(Arc::clone(&self.entry));
        self.poller.ring();
    }

    pub(super) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The descriptor leaves the set when the socket is closed.
        self.poller.entries.write().remove(&self.key);
    }
}

impl Poller {
    fn new(spin: Duration) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        Ok(Self {
            epoll,
            bell,
            entries: RwLock::default(),
            next: AtomicU64::new(BELL + 1),
            again: Mutex::default(),
            guest: Mutex::default(),
            visits: AtomicU64::new(0),
            guest_left: Condvar::new(),
            spin,
            is_over: AtomicBool::new(false),
        })
    }

    /// Looks after `driven`, whose socket is `descriptor`, until what is returned is dropped.
    pub(super) fn watch(
        self: &Arc<Self>,
        driven: Weak<dyn Driven>,
        descriptor: impl AsFd,
    ) -> io::Result<Watch> {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = Arc::new(Entry { driven, bits: AtomicU8::new(0), readiness: Mutex::default() });
        self.entries.write().insert(key, Arc::clone(&entry));
        let watch = Watch { poller: Arc::clone(self), entry, key };
        let wanted =
            EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        self.epoll.add(descriptor, EpollEvent::new(wanted, key))?;
        Ok(watch)
    }

    fn ring(&self) {
        // A bell that cannot take more rings already.
        let _ = self.bell.write(1);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The poller's own thread.
    fn host(&self) {
        let mut last_event = Instant::now();
        while !self.is_over() {
            let (count, has_rung) = self.step(self.wait_time(last_event));
            if count > 0 {
                last_event = Instant::now();
            }
            if has_rung {
                self.hear();
            }
        }
    }

    /// The host hears the bell. When there is a guest it rings for that, who hears it as soon as it waits, and then leaves
    /// or goes on; until then it would ring and ring.
    fn hear(&self) {
        let mut guest = self.guest.lock();
        match *guest {
            None => drop(self.bell.read()),
            Some((_, visit)) => {
                while guest.is_some_and(|(_, now)| now == visit) {
                    self.guest_left.wait(&mut guest);
                }
            }
        }
    }

    fn wait_time(&self, last_event: Instant) -> EpollTimeout {
        if !self.spin.is_zero() && last_event.elapsed() < self.spin {
            std::hint::spin_loop();
            return EpollTimeout::ZERO;
        }
        EpollTimeout::from(WAIT_MS)
    }

    /// Waits for at most `longest` and works on what is ready. Returns how many connections that were, and whether the
    /// bell rings.
    fn step(&self, longest: EpollTimeout) -> (usize, bool) {
        let longest = if self.again.lock().is_empty() { longest } else { EpollTimeout::ZERO };
        let mut events = [EpollEvent::empty(); EVENTS];
        // A signal ends the wait early, which does no harm.
        let found = self.epoll.wait(&mut events, longest).unwrap_or(0);
        let (mut count, mut has_rung) = (0, false);
        for event in &events[..found] {
            if event.data() == BELL {
                has_rung = true;
                continue;
            }
            let entry = self.entries.read().get(&event.data()).cloned();
            if let Some(entry) = entry {
                count += 1;
                self.run(&entry, bits_of(event.events()));
            }
        }
        let again = std::mem::take(&mut *self.again.lock());
        for entry in again {
            count += 1;
            self.run(&entry, 0);
        }
        (count, has_rung)
    }

    /// Works on a connection, unless somebody does.
    fn run(&self, entry: &Arc<Entry>, bits: u8) {
        if entry.bits.fetch_or(bits | RUNNING, Ordering::AcqRel) & RUNNING != 0 {
            return;
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
                return;
            }
            if entry.bits.compare_exchange(RUNNING, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
        }
    }
}

fn bits_of(events: EpollFlags) -> u8 {
    let of = |flags: EpollFlags, bit: u8| if events.intersects(flags) { bit } else { 0 };
    let hung_up = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
    of(EpollFlags::EPOLLIN, READABLE) | of(EpollFlags::EPOLLOUT, WRITABLE) | of(hung_up, HUNG_UP)
}

/// A thread that works in place of the host.
struct Guest<'a>(&'a Poller);

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        *self.0.guest.lock() = None;
        // Costs nothing when the host is at the descriptor, as it nearly always is.
        self.0.guest_left.notify_one();
        if !self.0.again.lock().is_empty() {
            self.0.ring();
        }
    }
}

impl Progress for Poller {
    fn work(&self, is_done: &dyn Fn() -> bool, until: Instant) {
        {
            let mut guest = self.guest.lock();
            if guest.is_some() {
                return;
            }
            *guest = Some((thread::current().id(), self.visits.fetch_add(1, Ordering::Relaxed)));
        }
        let _guest = Guest(self);
        let began = Instant::now();
        while !is_done() && !self.is_over() {
            let now = Instant::now();
            if now >= until {
                return;
            }
            let left = EpollTimeout::try_from(until - now).unwrap_or(EpollTimeout::from(WAIT_MS));
            let longest = if now - began < self.spin { EpollTimeout::ZERO } else { left };
            if self.step(longest).1 {
                let _ = self.bell.read();
            }
        }
    }

    fn nudge(&self) {
        // One that comes later looks first; and the guest itself needs no bell, which would wake the host after it.
        let is_another = |(guest, _): (ThreadId, u64)| guest != thread::current().id();
        if self.guest.lock().is_some_and(is_another) {
            self.ring();
        }
    }
}

/// The pollers of one transport.
#[derive(Debug)]
pub(super) struct Pollers {
    all: Vec<Arc<Poller>>,
    next: AtomicUsize,
}

impl Pollers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// When the system has no more threads or descriptors.
    pub(super) fn start(count: usize, spin: Duration) -> io::Result<Self> {
        let mut pollers = Self { all: Vec::new(), next: AtomicUsize::new(0) };
        for index in 0..count.max(1) {
            let poller = Arc::new(Poller::new(spin)?);
            pollers.all.push(Arc::clone(&poller));
            thread::Builder::new().name(format!("tcp-{index}")).spawn(move || poller.host())?;
        }
        Ok(pollers)
    }

    /// The next in turn.
    pub(super) fn next(&self) -> &Arc<Poller> {
        &self.all[self.next.fetch_add(1, Ordering::Relaxed) % self.all.len()]
    }

    /// Ends the threads. They touch no memory but that of connections, which are ended before.
    pub(super) fn stop(&self) {
        for poller in &self.all {
            poller.is_over.store(true, Ordering::Release);
            poller.ring();
        }
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        self.stop();
    }
}
