//! The places of connections that have proved nothing yet: so many at once. Once all are taken the oldest gives way, whether
//! somebody has come already or not: a listener takes its next place ahead.
//!
//! Invariant: of those whose time is over one goes at a time, at the rate at which they had come if they had come evenly. Many who
//! come at once, as after an outage, have most of their proofs behind them by then.
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
    /// How long who has one keeps it though all are taken.
    time: Duration,
    /// Between two who are sent away.
    pause: Duration,
    /// Held for a look-up.
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// Since when, in the order of their arrival. Who is sent away is told by the end of the channel.
    since: BTreeMap<u64, (Instant, oneshot::Sender<()>)>,
    /// Nobody is sent away before that.
    next_leave: Option<Instant>,
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
        let places = places.max(1);
        let pause = time / u32::try_from(places).unwrap_or(u32::MAX);
        Self { room: Arc::new(Semaphore::new(places)), time, pause, taken: Mutex::default() }
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
                let oldest = taken.since.first_key_value().map(|(&number, (since, _))| (number, *since));
                match oldest {
                    Some((number, since)) => {
                        let due = (since + self.time).max(taken.next_leave.unwrap_or(now));
                        if due <= now {
                            taken.since.remove(&number);
                            taken.next_leave = Some(now + self.pause);
                            return;
                        }
                        due
                    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As when all members come back at once after an outage, to a host that is busy with their proofs.
    #[tokio::test]
    async fn of_those_who_came_together_one_is_sent_away_at_a_time() {
        let unproven = Arc::new(Unproven::new(4, Duration::from_millis(400)));
        let mut places = Vec::new();
        for _ in 0..4 {
            let room = unproven.room().await.unwrap();
            places.push(unproven.take(room));
        }
        // All have had their time.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (began, mut taken) = (Instant::now(), Vec::new());
        for mut place in places {
            let leave = async {
                place.sent_away().await;
                drop(place);
            };
            let (room, ()) = tokio::join!(unproven.room(), leave);
            taken.push(room.unwrap());
        }
        assert!(began.elapsed() >= Duration::from_millis(300), "{:?} for four", began.elapsed());
    }
}
