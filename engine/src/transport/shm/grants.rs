//! The owner's side: which region peers can have mapped, and what each of them [was granted](guest).
//!
//! Invariants
//! - A region's memory is given back only when its word in every connection is revoked and counts no copy, or the
//!   peer has closed the connection: it does so behind its last copy, and a killed peer touches nothing any more.
//! - A connection that is ended from here grants nothing from then on, and is kept until the peer's copies have ended.

mod guest;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use self::guest::Guest;
use super::socket::Socket;
use super::wire::{PACKET, Packet};
use crate::memory::{Access, Region};
use crate::types::{PeerId, RegionId};

/// Packets that wait to be sent to one peer: revocations.
const OUTBOX: usize = 1024;
/// Time between two looks at a copy that is under way while its region is withdrawn.
const LOOK_AGAIN: Duration = Duration::from_micros(100);
/// How long peers are waited for at the end before that is told: no copy takes so long.
const WAIT_TOLD_AFTER: Duration = Duration::from_secs(1);

/// The regions of this process that peers can map.
#[derive(Debug, Default)]
pub(super) struct Owner {
    /// Read for each region that a peer maps.
    regions: Mutex<HashMap<RegionId, Arc<Region>>>,
    /// One for each connected peer; a peer that connects again has two for a moment.
    guests: Mutex<Vec<Arc<Guest>>>,
}

/// Who has ended a connection.
#[derive(Debug)]
enum Ended {
    /// The peer, or its death: it touches nothing any more.
    ByPeer,
    Here,
}

impl Owner {
    pub(super) fn add(&self, id: RegionId, region: &Arc<Region>) {
        self.regions.lock().insert(id, Arc::clone(region));
    }

    /// Withdraws `id` from all guests, at once. Resolves when no copy from or to it is under way.
    ///
    /// # Cancellation
    /// Dropping the future keeps the words by which copies are under way for the life of their connections.
    pub(super) fn remove(&self, id: RegionId) -> impl Future<Output = ()> {
        self.regions.lock().remove(&id);
        let guests = self.guests.lock().clone();
        let mut revoked: Vec<(usize, Arc<Guest>)> =
            guests.into_iter().filter_map(|guest| Some((guest.revoke(id)?, guest))).collect();
        // Those that no copy uses are spent now, though nobody polls this.
        revoked.retain(|(word, guest)| !guest.release_if_left(*word));
        async move {
            for (word, guest) in revoked {
                guest.until_left(word).await;
            }
        }
    }

    /// Ends the connections of `peer`, as soon as its copies have ended.
    pub(super) fn forget(&self, peer: PeerId) {
        self.guests
            .lock()
            .iter()
            .filter(|guest| guest.peer == peer)
            .for_each(|guest| guest.stop.notify_one());
    }

    /// Ends all connections, as soon as the copies over them have ended.
    pub(super) fn stop(&self) {
        self.guests.lock().iter().for_each(|guest| guest.stop.notify_one());
    }

    /// Ends all connections. Resolves when no peer touches anything any more: for one that was stopped in the middle of a copy,
    /// when it goes on or is dead.
    pub(super) async fn close(&self) {
        self.stop();
        if tokio::time::timeout(WAIT_TOLD_AFTER, self.until_alone()).await.is_ok() {
            return;
        }
        for guest in self.guests.lock().iter() {
            tracing::warn!(peer = %guest.peer,
                "shm: a peer of this host does not end its copy; it is stopped, it seems, and is waited for");
        }
        self.until_alone().await;
    }

    async fn until_alone(&self) {
        while !self.guests.lock().is_empty() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// What a connection of `peer` needs here.
    ///
    /// # Errors
    /// When there is no memory for its words.
    pub(super) fn invite(peer: PeerId) -> io::Result<(Arc<Guest>, mpsc::Receiver<Packet>)> {
        let (outbox, orders) = mpsc::channel(OUTBOX);
        Ok((Arc::new(Guest::new(peer, outbox)?), orders))
    }

    /// From now on [`Owner::forget`] and [`Owner::close`] end it, once it is served.
    pub(super) fn admit(&self, guest: &Arc<Guest>) {
        self.guests.lock().push(Arc::clone(guest));
    }

    /// Serves the connection of a guest that was admitted until it ends.
    pub(super) async fn serve(
        &self,
        guest: Arc<Guest>,
        mut orders: mpsc::Receiver<Packet>,
        socket: Socket,
    ) -> io::Result<()> {
        let ended = tokio::select! {
            ended = self.talk(&guest, &socket, &mut orders) => ended,
            // Also while the peer does not take what is sent to it.
            () = guest.stop.notified() => Ok(Ended::Here),
        };
        guest.revoke_all();
        if !matches!(ended, Ok(Ended::ByPeer)) {
            guest.part(&socket).await;
        }
        drop(socket);
        guest.is_gone.store(true, Ordering::Release);
        self.guests.lock().retain(|other| !Arc::ptr_eq(other, &guest));
        ended.map(drop)
    }

    async fn talk(
        &self,
        guest: &Guest,
        socket: &Socket,
        orders: &mut mpsc::Receiver<Packet>,
    ) -> io::Result<Ended> {
        socket.send(&Packet::Welcome.encode(), Some(guest.words.file().as_fd())).await?;
        let mut packet = [0; PACKET];
        loop {
            tokio::select! {
                Some(order) = orders.recv() => socket.send(&order.encode(), None).await?,
                received = socket.receive(&mut packet) => match received? {
                    (0, _) => return Ok(Ended::ByPeer),
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
            match File::open(format!("/proc/self/fd/{}", file.as_raw_fd())) {
                Ok(opened) => read_only = opened,
                Err(error) => return guest.refuse(socket, id, &error).await,
            }
            &read_only
        };
        let packet = Packet::Mapped { id, length: region.length(), is_writable, word: word as u64 };
        match socket.send(&packet.encode(), Some(file.as_fd())).await {
            // Too many are on their way to peers that do not take them (unix(7)).
            Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
                guest.refuse(socket, id, &error).await
            }
            sent => sent,
        }
    }
}

#[cfg(test)]
impl Owner {
    /// Whether a peer is connected.
    pub(super) fn has_guests(&self) -> bool {
        !self.guests.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::super::ffi::Words;
    use super::super::socket::Listener;
    use super::*;
    use crate::memory::{Mapping, PageKind};
    use crate::types::{ByteCount, Incarnation, MemberId};

    /// A peer that holds a copy open, as one does that is slow or stopped.
    struct Slow {
        owner: Arc<Owner>,
        socket: Socket,
        words: Words,
    }

    impl Slow {
        const PEER: PeerId = PeerId { member: MemberId(2), incarnation: Incarnation(1) };

        /// Connected to an owner whose regions 0 to `regions` it has mapped. A copy of region 0 is under way.
        async fn with(name: &str, regions: u64) -> Self {
            let name = format!("tidefs-test-grants-{name}-{}", std::process::id());
            let owner = Arc::new(Owner::default());
            let region = Arc::new(Region::anonymous(ByteCount(4096), PageKind::Base, Access::Read).unwrap());
            (0..regions).for_each(|id| owner.add(RegionId(id), &region));
            let listener = Listener::bind(name.as_bytes()).unwrap();
            let socket = Socket::connect(name.as_bytes()).unwrap();
            let accepted = listener.accept().await.unwrap();
            let serving = Arc::clone(&owner);
            let (guest, orders) = Owner::invite(Self::PEER).expect("memory for its words");
            owner.admit(&guest);
            tokio::spawn(async move { serving.serve(guest, orders, accepted).await });
            let mut packet = [0; PACKET];
            let (_, words) = socket.receive(&mut packet).await.unwrap();
            let words = Words::of_descriptor(words.unwrap()).unwrap();
            for id in 0..regions {
                socket.send(&Packet::Map { id: RegionId(id) }.encode(), None).await.unwrap();
                socket.receive(&mut packet).await.unwrap();
            }
            assert!(words.enter(0));
            Self { owner, socket, words }
        }

        /// Receives until the owner has ended the connection.
        async fn until_end(&self) {
            while self.socket.receive(&mut [0; PACKET]).await.unwrap().0 > 0 {}
        }

        async fn resolves(&self, work: impl Future<Output = ()>) -> bool {
            tokio::time::timeout(Duration::from_millis(200), work).await.is_ok()
        }
    }

    #[tokio::test]
    async fn a_peer_that_is_cut_off_in_a_copy_keeps_that_memory_and_gets_no_more() {
        let peer = Slow::with("cut-off", OUTBOX as u64 + 3).await;
        // More withdrawals than the outbox holds: the peer is cut off.
        for id in 2..OUTBOX as u64 + 3 {
            peer.owner.remove(RegionId(id)).await;
        }
        assert!(!peer.resolves(peer.owner.remove(RegionId(0))).await, "a copy of it is under way");
        peer.until_end().await;
        assert!(!peer.words.enter(1), "a region that was not withdrawn");
        assert!(!peer.resolves(peer.owner.close()).await);
        peer.words.leave(0);
        assert!(peer.resolves(peer.owner.close()).await);
    }

    #[tokio::test]
    async fn a_region_is_withdrawn_from_all_peers_at_once_whichever_is_in_a_copy() {
        let slow = Slow::with("one-of-two", 1).await;
        let (other, _orders) = Owner::invite(Slow::PEER).unwrap();
        slow.owner.admit(&other);
        let word = other.take_word(RegionId(0)).unwrap();
        assert!(other.words.enter(word));
        other.words.leave(word);
        assert!(!slow.resolves(slow.owner.remove(RegionId(0))).await, "a copy of it is under way");
        assert!(!other.words.enter(word), "nothing new begins");
    }

    /// A file that cannot be opened once more, as none can where a process has no descriptors left.
    #[tokio::test]
    async fn a_region_that_cannot_be_passed_is_refused_and_others_still_are_granted() {
        let peer = Slow::with("refused", 1).await;
        let length = ByteCount(4096);
        let memory = Region::anonymous(length, PageKind::Base, Access::Read).unwrap();
        let mapping = Arc::new(Mapping::new(memory.file().unwrap(), length).unwrap());
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let sealed = Arc::new(File::from(OwnedFd::from(socket)));
        let (unopenable, good) = (RegionId(7), RegionId(0));
        peer.owner.add(unopenable, &Arc::new(Region::of_mapping(mapping, sealed, Access::Read)));
        let ask = async |id| {
            let mut packet = [0; PACKET];
            peer.socket.send(&Packet::Map { id }.encode(), None).await.unwrap();
            peer.socket.receive(&mut packet).await.unwrap();
            Packet::decode(&packet)
        };
        for _ in 0..2 {
            assert_eq!(ask(unopenable).await, Some(Packet::Refused { id: unopenable }));
        }
        assert!(matches!(ask(good).await, Some(Packet::Mapped { id, .. }) if id == good));
    }

    #[tokio::test]
    async fn a_forgotten_peer_is_waited_for_until_its_copies_have_ended_or_it_is_dead() {
        for dies in [false, true] {
            let peer = Slow::with(&format!("forgotten-{dies}"), 2).await;
            peer.owner.forget(Slow::PEER);
            peer.until_end().await;
            assert!(!peer.words.enter(1));
            assert!(!peer.resolves(peer.owner.remove(RegionId(0))).await);
            assert!(!peer.resolves(peer.owner.close()).await);
            if dies {
                let Slow { owner, socket, .. } = peer;
                drop(socket);
                assert!(tokio::time::timeout(Duration::from_secs(5), owner.close()).await.is_ok());
            } else {
                peer.words.leave(0);
                assert!(peer.resolves(peer.owner.close()).await);
            }
        }
    }
}
