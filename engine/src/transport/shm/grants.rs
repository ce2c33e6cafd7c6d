//! The owner's side: which peer may touch which region.
//!
//! Invariants
//! - A region's memory is given back only when its word in every connection is revoked and counts no copy, or the
//!   connection is closed: a killed peer touches nothing any more.
//! - A word is used once in the life of a connection.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc;

use super::ffi::{WORDS_PER_PAGE, Words};
use super::socket::Socket;
use super::wire::{PACKET, Packet};
use crate::memory::{Access, Region};
use crate::types::{PeerId, RegionId};

/// Regions that one connection may be granted in its life; then the peer makes a new one. Only words in use take memory.
const WORDS: usize = 1 << 20;
/// Packets that wait to be sent to one peer: revocations.
const OUTBOX: usize = 1024;
/// Time between two looks at a copy that is under way while its region is withdrawn.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// The regions of this process that peers can map.
#[derive(Debug, Default)]
pub(super) struct Owner {
    /// Read for each region that a peer maps.
    regions: Mutex<HashMap<RegionId, Arc<Region>>>,
    /// One for each connected peer; a peer that connects again has two for a moment.
    guests: Mutex<Vec<Arc<Guest>>>,
}

/// One connected peer.
#[derive(Debug)]
struct Guest {
    peer: PeerId,
    words: Words,
    grants: Mutex<Grants>,
    outbox: mpsc::Sender<Packet>,
    /// The connection has ended: nothing that was granted on it is touched any more.
    is_gone: AtomicBool,
    /// Ends the connection.
    stop: Notify,
}

#[derive(Debug, Default)]
struct Grants {
    next: usize,
    word_of: HashMap<RegionId, usize>,
    /// Words in use of each page that has one.
    in_use: BTreeMap<usize, usize>,
}

impl Owner {
    pub(super) fn add(&self, id: RegionId, region: &Arc<Region>) {
        self.regions.lock().insert(id, Arc::clone(region));
    }

    /// Withdraws `id` from all guests. Resolves when no copy from or to it is under way.
    pub(super) async fn remove(&self, id: RegionId) {
        self.regions.lock().remove(&id);
        let guests = self.guests.lock().clone();
        for guest in guests {
            guest.withdraw(id).await;
        }
    }

    /// Ends the connections of `peer`.
    pub(super) fn forget(&self, peer: PeerId) {
        self.guests
            .lock()
            .iter()
            .filter(|guest| guest.peer == peer)
            .for_each(|guest| guest.stop.notify_one());
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        self.guests.lock().iter().for_each(|guest| guest.stop.notify_one());
    }

    /// Serves a connection of `peer` until it ends.
    pub(super) async fn serve(&self, peer: PeerId, socket: Socket) -> io::Result<()> {
        let (outbox, mut orders) = mpsc::channel(OUTBOX);
        let guest = Arc::new(Guest {
            peer,
            words: Words::new(WORDS)?,
            grants: Mutex::default(),
            outbox,
            is_gone: AtomicBool::new(false),
            stop: Notify::new(),
        });
        self.guests.lock().push(Arc::clone(&guest));
        let ended = self.talk(&guest, &socket, &mut orders).await;
        drop(socket);
        guest.is_gone.store(true, Ordering::Release);
        self.guests.lock().retain(|other| !Arc::ptr_eq(other, &guest));
        ended
    }

    async fn talk(
        &self,
        guest: &Guest,
        socket: &Socket,
        orders: &mut mpsc::Receiver<Packet>,
    ) -> io::Result<()> {
        socket.send(&Packet::Welcome.encode(), Some(guest.words.file().as_fd())).await?;
        let mut packet = [0; PACKET];
        loop {
            tokio::select! {
                () = guest.stop.notified() => return Ok(()),
                Some(order) = orders.recv() => socket.send(&order.encode(), None).await?,
                received = socket.receive(&mut packet) => match received? {
                    (0, _) => return Ok(()),
                    (count, None) => match Packet::decode(&packet[..count]) {
                        Some(Packet::Map { id }) => self.grant(guest, socket, id).await?,
                        _ => return Err(io::ErrorKind::InvalidData.into()),
                    },
                    (_, Some(_)) => return Err(io::ErrorKind::InvalidData.into()),
                },
            }
        }
    }

    async fn grant(&self, guest: &Guest, socket: &Socket, id: RegionId) -> io::Result<()> {
        let region = self.regions.lock().get(&id).cloned();
        let Some((region, file)) =
            region.and_then(|region| Some((Arc::clone(&region), region.file()?.clone())))
        else {
            return socket.send(&Packet::Unknown { id }.encode(), None).await;
        };
        let is_writable = region.access() == Access::ReadWrite;
        let Some(word) = guest.take_word(id) else {
            return socket.send(&Packet::Exhausted { id }.encode(), None).await;
        };
        if !self.regions.lock().contains_key(&id) {
            // Withdrawn between the two looks: its withdrawal may not have seen this word.
            guest.withdraw(id).await;
            return socket.send(&Packet::Unknown { id }.encode(), None).await;
        }
        let read_only;
        let file: &File = if is_writable {
            &file
        } else {
            // Another description of the same file, through which nothing can be stored.
            read_only = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
            &read_only
        };
        let packet = Packet::Mapped { id, length: region.length(), is_writable, word: word as u64 };
        socket.send(&packet.encode(), Some(file.as_fd())).await
    }
}

impl Guest {
    /// The word of `id`, granted. `None` when all were used.
    fn take_word(&self, id: RegionId) -> Option<usize> {
        let mut grants = self.grants.lock();
        if let Some(&word) = grants.word_of.get(&id) {
            return Some(word);
        }
        let word = grants.next;
        if word >= self.words.count() {
            return None;
        }
        grants.next += 1;
        grants.word_of.insert(id, word);
        *grants.in_use.entry(word / WORDS_PER_PAGE).or_default() += 1;
        self.words.grant(word);
        Some(word)
    }

    async fn withdraw(&self, id: RegionId) {
        let Some(word) = self.grants.lock().word_of.remove(&id) else { return };
        self.words.revoke(word);
        // So that the peer drops its mapping. When so many wait that one is lost, the peer is cut off instead: a mapping
        // that stays would keep the memory.
        if self.outbox.try_send(Packet::Revoked { id }).is_err() {
            self.stop.notify_one();
        }
        while self.words.copies(word) > 0 && !self.is_gone.load(Ordering::Acquire) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        self.release_word(word);
    }

    fn release_word(&self, word: usize) {
        let page = word / WORDS_PER_PAGE;
        let is_free = {
            let mut grants = self.grants.lock();
            let is_past = grants.next >= (page + 1) * WORDS_PER_PAGE;
            let in_use = grants.in_use.entry(page).or_default();
            *in_use = in_use.saturating_sub(1);
            let is_free = *in_use == 0 && is_past;
            if is_free {
                grants.in_use.remove(&page);
            }
            is_free
        };
        if is_free && let Err(error) = self.words.release_page(page) {
            tracing::debug!(%error, "a page of spent grants is kept");
        }
    }
}
