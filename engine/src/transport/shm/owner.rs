//! The end that owns memory: what is registered, whom it was passed to, and when it is free again.
//!
//! Invariants
//! - A region's memory is passed on only over a socket whose token was granted to a peer that had proved itself, to a
//!   process of the same user or of root.
//! - A session leaves the table when its socket is closed at the other end, never before: until then its counts are
//!   looked at. A peer that was killed has closed it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tracing::debug;

use super::NAME;
use super::attached::{SLOTS, WITHDRAWN};
use super::message::{Frame, Token};
use super::socket::{Listener, Socket};
use crate::error::Error;
use crate::memory::{Access, Region, SharedWords};
use crate::types::{PeerId, RegionId};

/// Tokens of one peer that were granted and not used; one more takes the place of the oldest.
const TOKENS_MAX: usize = 16;

/// How long a connection may take to show its token.
const HELLO_MAX: Duration = Duration::from_secs(5);

/// What goes out to a peer.
enum Outgoing {
    Frame(Frame, Option<Arc<File>>),
    /// Nothing more comes.
    Finish,
}

/// A region, and the descriptor that peers get.
#[derive(Debug, Clone)]
struct Registered {
    region: Arc<Region>,
    /// Open for what peers may do.
    file: Arc<File>,
}

/// One connection of a peer.
#[derive(Debug)]
struct Session {
    peer: PeerId,
    words: Arc<SharedWords>,
    outbox: UnboundedSender<Outgoing>,
    /// Counts of the regions that it mapped.
    mapped: BTreeMap<RegionId, u32>,
    /// Counts of the regions that were withdrawn and that it has not unmapped.
    withdrawn: BTreeMap<RegionId, u32>,
    free: Vec<u32>,
    /// Everything was taken back; nothing more is mapped.
    is_ended: bool,
}

impl Session {
    fn withdraw(&mut self, id: RegionId) {
        let Some(slot) = self.mapped.remove(&id) else { return };
        if let Some(word) = self.words.word(slot) {
            word.fetch_or(WITHDRAWN, Ordering::AcqRel);
        }
        self.withdrawn.insert(id, slot);
        self.send(Frame::Withdrawn { region: id.0 }, None);
    }

    fn end(&mut self) {
        self.is_ended = true;
        for id in self.mapped.keys().copied().collect::<Vec<RegionId>>() {
            self.withdraw(id);
        }
        let _ = self.outbox.send(Outgoing::Finish);
    }

    /// Whether a copy from or to `id` may be running.
    fn uses(&self, id: RegionId) -> bool {
        let slot = self.withdrawn.get(&id).or_else(|| self.mapped.get(&id));
        let word = slot.and_then(|slot| self.words.word(*slot));
        // Acquire: what the peer copied is seen once its count is.
        word.is_some_and(|word| word.load(Ordering::Acquire) & !WITHDRAWN != 0)
    }

    fn uses_any(&self) -> bool {
        self.mapped.keys().chain(self.withdrawn.keys()).any(|id| self.uses(*id))
    }

    /// To a task that has ended it makes no difference.
    fn send(&self, frame: Frame, file: Option<Arc<File>>) {
        let _ = self.outbox.send(Outgoing::Frame(frame, file));
    }
}

#[derive(Debug, Default)]
struct Inner {
    regions: BTreeMap<RegionId, Registered>,
    tokens: Vec<(PeerId, Token)>,
    sessions: BTreeMap<u64, Session>,
    next_session: u64,
    is_closed: bool,
}

/// All that this process shares.
#[derive(Debug, Default)]
pub(super) struct Owner {
    /// The tables. Held for look-ups and for putting messages into outboxes, in which they keep their order.
    inner: Mutex<Inner>,
    /// A count may have gone down, or a session ended.
    changed: Notify,
}

impl Owner {
    pub(super) fn register(&self, id: RegionId, region: &Arc<Region>) -> Result<(), Error> {
        let file = region.file().ok_or_else(|| {
            Error::transport(NAME, "this region has no file behind it, which another process could map")
        })?;
        let file = match region.access() {
            Access::ReadWrite => Arc::clone(file),
            Access::Read => Arc::new(reopen_for_reading(file)?),
        };
        let mut inner = self.inner.lock();
        if inner.is_closed {
            return Err(Error::Closed);
        }
        inner.regions.insert(id, Registered { region: Arc::clone(region), file });
        Ok(())
    }

    /// Takes `id` back, and resolves when no peer copies from or to it.
    pub(super) async fn unregister(&self, id: RegionId) {
        {
            let mut inner = self.inner.lock();
            inner.regions.remove(&id);
            for session in inner.sessions.values_mut() {
                session.withdraw(id);
            }
        }
        self.until(|inner| !inner.sessions.values().any(|session| session.uses(id))).await;
    }

    /// Takes everything back from everybody, and resolves when no peer copies any more.
    pub(super) async fn close(&self) {
        {
            let mut inner = self.inner.lock();
            inner.is_closed = true;
            inner.regions.clear();
            inner.tokens.clear();
            for session in inner.sessions.values_mut() {
                session.end();
            }
        }
        self.until(|inner| !inner.sessions.values().any(Session::uses_any)).await;
    }

    async fn until(&self, holds: impl Fn(&Inner) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if holds(&self.inner.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Takes everything back from `peer`.
    pub(super) fn forget(&self, peer: PeerId) {
        let mut inner = self.inner.lock();
        inner.tokens.retain(|(granted, _)| *granted != peer);
        for session in inner.sessions.values_mut().filter(|session| session.peer == peer) {
            session.end();
        }
    }

    /// Lets `peer` connect once with `token`.
    pub(super) fn grant(&self, peer: PeerId, token: Token) -> Result<(), Error> {
        let mut inner = self.inner.lock();
        if inner.is_closed {
            return Err(Error::Closed);
        }
        if inner.tokens.iter().filter(|(granted, _)| *granted == peer).count() >= TOKENS_MAX {
            let oldest = inner.tokens.iter().position(|(granted, _)| *granted == peer);
            oldest.map(|oldest| inner.tokens.remove(oldest));
        }
        inner.tokens.push((peer, token));
        Ok(())
    }

    // --- Sessions ---

    /// Accepts connections for as long as it is polled.
    pub(super) async fn listen(self: Arc<Self>, listener: Listener) {
        loop {
            match listener.accept().await {
                Ok(socket) => drop(tokio::spawn(Arc::clone(&self).serve(socket))),
                Err(error) => {
                    debug!(%error, "a local connection was not accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Serves one connection from its token to its end.
    async fn serve(self: Arc<Self>, socket: Socket) {
        let session = match self.greet(&socket).await {
            Ok(session) => session,
            Err(error) => return debug!(%error, "a local connection was refused"),
        };
        let (number, words, mut outbox) = session;
        let welcome = words.descriptor().try_clone_to_owned().map(File::from);
        let mut is_well = match welcome {
            Ok(file) => socket.send(Frame::Welcome, Some(file.as_fd())).await.is_ok(),
            Err(_) => false,
        };
        loop {
            if !is_well {
                if let Some(session) = self.inner.lock().sessions.get_mut(&number) {
                    session.end();
                }
                is_well = true;
            }
            tokio::select! {
                Some(outgoing) = outbox.recv() => match outgoing {
                    // A peer that cannot be written to has gone, or will be found by reading.
                    Outgoing::Frame(frame, file) => {
                        let _ = socket.send(frame, file.as_ref().map(|file| file.as_fd())).await;
                    }
                    Outgoing::Finish => socket.finish(),
                },
                received = socket.receive() => match received {
                    Ok(Some((frame, _))) => is_well = self.heed(number, frame),
                    // Its references are looked at until it closes the socket, whatever it sends.
                    Err(error) if error.kind() == std::io::ErrorKind::InvalidData => is_well = false,
                    Ok(None) | Err(_) => break,
                },
            }
        }
        self.inner.lock().sessions.remove(&number);
        self.changed.notify_waiters();
    }

    /// Checks who connects; makes the session.
    async fn greet(
        &self,
        socket: &Socket,
    ) -> Result<(u64, Arc<SharedWords>, UnboundedReceiver<Outgoing>), Error> {
        let system = |error| Error::system("a local connection", &error);
        super::check_user(socket.peer_user().map_err(system)?)?;
        let hello = tokio::time::timeout(HELLO_MAX, socket.receive()).await;
        let hello = hello.map_err(|_| Error::DeadlinePassed)?.map_err(system)?;
        let Some((Frame::Hello(token), _)) = hello else {
            return Err(Error::protocol("a connection that does not begin with its token"));
        };
        let words = Arc::new(SharedWords::new(SLOTS).map_err(system)?);
        let (sender, outbox) = mpsc::unbounded_channel();
        let mut inner = self.inner.lock();
        let found = inner.tokens.iter().position(|(_, granted)| *granted == token);
        let found = found.ok_or_else(|| Error::protocol("a token that was not granted, or was used"))?;
        let (peer, _) = inner.tokens.remove(found);
        inner.next_session += 1;
        let number = inner.next_session;
        let session = Session {
            peer,
            words: Arc::clone(&words),
            outbox: sender,
            mapped: BTreeMap::new(),
            withdrawn: BTreeMap::new(),
            free: (0..SLOTS).rev().collect(),
            is_ended: false,
        };
        inner.sessions.insert(number, session);
        Ok((number, words, outbox))
    }

    /// Does what a peer asks. False when it broke the protocol.
    fn heed(&self, number: u64, frame: Frame) -> bool {
        let mut inner = self.inner.lock();
        let Inner { regions, sessions, .. } = &mut *inner;
        let Some(session) = sessions.get_mut(&number) else { return false };
        match frame {
            Frame::Map { region } => session.map(RegionId(region), regions.get(&RegionId(region))),
            Frame::Drained { .. } => {}
            Frame::Freed { slot } => session.free(slot),
            Frame::Hello(_)
            | Frame::Welcome
            | Frame::Mapped { .. }
            | Frame::Unknown { .. }
            | Frame::Full { .. }
            | Frame::Withdrawn { .. } => return false,
        }
        drop(inner);
        self.changed.notify_waiters();
        true
    }
}

impl Session {
    fn map(&mut self, id: RegionId, registered: Option<&Registered>) {
        let region = id.0;
        let Some(registered) = registered.filter(|_| !self.is_ended && !self.mapped.contains_key(&id)) else {
            return self.send(Frame::Unknown { region }, None);
        };
        let Some(slot) = self.free.pop() else { return self.send(Frame::Full { region }, None) };
        self.mapped.insert(id, slot);
        let length = registered.region.length().get();
        let is_writable = registered.region.access() == Access::ReadWrite;
        let frame = Frame::Mapped { region, length, slot, is_writable };
        self.send(frame, Some(Arc::clone(&registered.file)));
    }

    /// The peer has unmapped what it held under `slot`. Ignored when that was not withdrawn.
    fn free(&mut self, slot: u32) {
        let found = self.withdrawn.iter().find(|(_, withdrawn)| **withdrawn == slot).map(|(id, _)| *id);
        if let Some(id) = found {
            self.withdrawn.remove(&id);
            if let Some(word) = self.words.word(slot) {
                word.store(0, Ordering::Release);
            }
            self.free.push(slot);
        }
    }
}

/// The same file, not to be written through.
fn reopen_for_reading(file: &File) -> Result<File, Error> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let reopened = OpenOptions::new().read(true).open(path);
    reopened.map_err(|error| Error::system("opening a region's file for reading", &error))
}
