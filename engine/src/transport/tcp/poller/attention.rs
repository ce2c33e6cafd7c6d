//! Hot path: how a poller looks after one connection: what its thread waits for there, and how that is woken.
//!
//! Invariants
//! - Once a guest has had the connection, room in its socket is waited for only where something waits for that: there is room
//!   nearly always.
//! - While a guest has the connection, the thread waits for nothing there, and the guest is woken in its place.
//!
//! Threads: whichever works on the connection or posts to it; the lock of its attention is held for a system call.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use parking_lot::Mutex;

use super::{Driven, Entry, Poller};

/// Looks after a connection for as long as it lives.
#[derive(Debug)]
pub(in crate::transport::tcp) struct Watch {
    poller: Arc<Poller>,
    pub(super) entry: Arc<Entry>,
    key: u64,
    /// Held for a system call.
    attention: Mutex<Attention>,
}

impl Watch {
    /// Gives the connection a turn soon.
    pub(in crate::transport::tcp) fn wake(&self) {
        self.poller.again.lock().push_back(Arc::clone(&self.entry));
        self.poller.ring();
    }

    /// Gives the connection a turn at `at`, as if a notice had come.
    pub(in crate::transport::tcp) fn wake_at(&self, at: Instant) {
        self.poller.timers.lock().push((at, Arc::clone(&self.entry)));
        self.poller.has_chores.store(true, Ordering::Release);
        self.poller.ring();
    }

    /// What looks after it.
    pub(in crate::transport::tcp) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    /// Whether the host looks at the connection. What is ready when it begins to is not missed; room in the socket is
    /// looked for only where something waits for it, for there is room nearly always.
    pub(super) fn attend(&self, driven: &dyn Driven, is_attended: bool) {
        let mut attention = self.attention.lock();
        let wants_room = is_attended && driven.wants_room();
        self.set(&mut attention, Attention { is_attended, wants_room }, driven);
    }

    /// Something waits for room in the socket of `driven`, whose locks are free.
    pub(in crate::transport::tcp) fn want_room(&self, driven: &dyn Driven) {
        let mut attention = self.attention.lock();
        if !attention.is_attended {
            drop(attention);
            return self.poller.nudge_guest();
        }
        self.set(&mut attention, Attention { is_attended: true, wants_room: true }, driven);
    }

    fn set(&self, attention: &mut Attention, wanted: Attention, driven: &dyn Driven) {
        if *attention == wanted {
            return;
        }
        *attention = wanted;
        let mut event = EpollEvent::new(wanted.flags(), self.key);
        // A socket that is open and in the set can be modified; it is both for as long as the watch lives.
        if let Err(error) = self.poller.epoll.modify(driven.descriptor(), &mut event) {
            tracing::error!(%error, "a data connection is not looked after");
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The descriptor leaves the set when the socket is closed.
        self.poller.entries.write().remove(&self.key);
    }
}

impl Poller {
    /// Looks after `driven` until what is returned is dropped.
    pub(in crate::transport::tcp) fn watch<T: Driven + 'static>(
        self: &Arc<Self>,
        driven: &Arc<T>,
    ) -> io::Result<Watch> {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let weak: Weak<T> = Arc::downgrade(driven);
        let entry = Arc::new(Entry { driven: weak, bits: AtomicU8::new(0), readiness: Mutex::default() });
        self.entries.write().insert(key, Arc::clone(&entry));
        let attention = Mutex::new(Attention::FIRST);
        let watch = Watch { poller: Arc::clone(self), entry, key, attention };
        self.epoll.add(driven.descriptor(), EpollEvent::new(Attention::FIRST.flags(), key))?;
        Ok(watch)
    }
}

/// What the host waits for at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attention {
    is_attended: bool,
    wants_room: bool,
}

impl Attention {
    const FIRST: Self = Self { is_attended: true, wants_room: true };

    fn flags(self) -> EpollFlags {
        let always = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        match self {
            // The kernel reports an end always; without this again and again, while a guest has the connection.
            Self { is_attended: false, .. } => EpollFlags::EPOLLET,
            Self { wants_room: false, .. } => always,
            Self { wants_room: true, .. } => always | EpollFlags::EPOLLOUT,
        }
    }
}
