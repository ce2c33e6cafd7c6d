//! Gives up flights whose deadline has passed. One task for all of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::flight::{Ending, Flight};
use crate::transport::BatchId;

/// Flights by deadline.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// A flight leaves when it ends, so the map is as long as what is under way.
    flights: Mutex<BTreeMap<(Instant, BatchId), Weak<Flight>>>,
    /// An earlier deadline than the one that is waited for was added.
    earlier: Notify,
}

impl Deadlines {
    pub(super) fn add(&self, flight: &Arc<Flight>) {
        let key = (flight.deadline(), flight.id());
        let is_first = {
            let mut flights = self.flights.lock();
            let is_first = flights.first_key_value().is_none_or(|(first, _)| key < *first);
            flights.insert(key, Arc::downgrade(flight));
            is_first
        };
        if is_first {
            self.earlier.notify_one();
        }
    }

    pub(super) fn remove(&self, flight: &Flight) {
        self.flights.lock().remove(&(flight.deadline(), flight.id()));
    }

    /// Runs for as long as the engine does.
    pub(super) async fn watch(self: Arc<Self>) {
        loop {
            let first = self.flights.lock().first_key_value().map(|((deadline, _), _)| *deadline);
            match first {
                None => self.earlier.notified().await,
                Some(deadline) if deadline > Instant::now() => {
                    let _ = tokio::time::timeout_at(deadline.into(), self.earlier.notified()).await;
                }
                Some(_) => self.give_up(Instant::now()),
            }
        }
    }

    fn give_up(&self, now: Instant) {
        let passed: Vec<_> = {
            let mut flights = self.flights.lock();
            let mut passed = Vec::new();
            while let Some(first) = flights.first_entry()
                && first.key().0 <= now
            {
                passed.push(first.remove());
            }
            passed
        };
        passed.iter().filter_map(Weak::upgrade).for_each(|flight| flight.give_up(Ending::DeadlinePassed));
    }
}
