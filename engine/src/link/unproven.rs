//! The places of connections that have proved nothing yet: so many at once, of which the oldest gives way to who waits for one.
//!
//! Threads: the tasks of the listeners, and those of the connections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// All places of one engine.
#[derive(Debug)]
pub(super) struct Unproven {
    room: Arc<Semaphore>,
    /// How long who has one keeps it while others wait.
    time: Duration,
    /// Held for a look-up.
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// Since when, in the order of their arrival. Who is sent away is told by the end of the channel.
    since: BTreeMap<u64, (Instant, oneshot::Sender<()>)>,
}

/// One place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    unproven: Arc<Unproven>,
    number: u64,
    sent_away: oneshot::Receiver<()>,
    _room: OwnedSemaphorePermit,
}

impl Unproven {
    /// `places` of them, at least one, each of which is one's own for `time`.
    pub(super) fn new(places: usize, time: Duration) -> Self {
        Self { room: Arc::new(Semaphore::new(places.max(1))), time, taken: Mutex::default() }
    }

    /// Room for one connection: where there is none, that of the oldest, once it has had its time.
    pub(super) async fn room(&self) -> Option<OwnedSemaphorePermit> {
        let room = Arc::clone(&self.room).acquire_owned();
        tokio::pin!(room);
        tokio::select! {
            biased;
            room = &mut room => return room.ok(),
            () = self.send_oldest_away() => {}
        }
        // It goes at once, and no second one for the same room.
        room.await.ok()
    }

    /// Resolves when the oldest has had its time, and was told to go.
    async fn send_oldest_away(&self) {
        loop {
            let until = {
                let mut taken = self.taken.lock();
                let now = Instant::now();
                match taken.since.first_entry() {
                    Some(oldest) if oldest.get().0 + self.time <= now => {
                        oldest.remove();
                        return;
                    }
                    Some(oldest) => oldest.get().0 + self.time,
                    // All room is with listeners to which nobody has come.
                    None => now + self.time,
                }
            };
            tokio::time::sleep_until(until.into()).await;
        }
    }

    /// The place of a connection that has come, for which there is `room`.
    pub(super) fn take(self: &Arc<Self>, room: OwnedSemaphorePermit) -> Place {
        let (sender, sent_away) = oneshot::channel();
        let mut taken = self.taken.lock();
        taken.next += 1;
        let number = taken.next;
        taken.since.insert(number, (Instant::now(), sender));
        Place { unproven: Arc::clone(self), number, sent_away, _room: room }
    }
}

impl Place {
    /// Resolves when the connection has to go.
    pub(super) async fn sent_away(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.sent_away).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.unproven.taken.lock().since.remove(&self.number);
    }
}
