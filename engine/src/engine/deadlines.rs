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
    /// Held for a look-up.
    state: Mutex<State>,
    /// The watch has to look again sooner than it meant to.
    earlier: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// A flight leaves when it ends, so the map is as long as what is under way.
    flights: BTreeMap<(Instant, BatchId), Weak<Flight>>,
    /// When the watch looks again by itself. It is not told of flights with later deadlines: waking it costs as much as
    /// a short transfer.
    next_look: Option<Instant>,
}

impl Deadlines {
    pub(super) fn add(&self, flight: &Arc<Flight>) {
        let deadline = flight.deadline();
        let is_earlier = {
            let mut state = self.state.lock();
            state.flights.insert((deadline, flight.id()), Arc::downgrade(flight));
            let is_earlier = state.next_look.is_none_or(|next| deadline < next);
            if is_earlier {
                state.next_look = Some(deadline);
            }
            is_earlier
        };
        if is_earlier {
            self.earlier.notify_one();
        }
    }

    pub(super) fn remove(&self, flight: &Flight) {
        self.state.lock().flights.remove(&(flight.deadline(), flight.id()));
    }

    /// Runs for as long as the engine does.
    pub(super) async fn watch(self: Arc<Self>) {
        loop {
            let next_look = self.state.lock().next_look;
            match next_look {
                None => self.earlier.notified().await,
                Some(next) if next > Instant::now() => {
                    let _ = tokio::time::timeout_at(next.into(), self.earlier.notified()).await;
                }
                Some(_) => self.give_up(Instant::now()),
            }
        }
    }

    fn give_up(&self, now: Instant) {
        let passed: Vec<_> = {
            let mut state = self.state.lock();
            let mut passed = Vec::new();
            while let Some(first) = state.flights.first_entry()
                && first.key().0 <= now
            {
                passed.push(first.remove());
            }
            state.next_look = state.flights.first_key_value().map(|((deadline, _), _)| *deadline);
            passed
        };
        passed.iter().filter_map(Weak::upgrade).for_each(|flight| flight.give_up(Ending::DeadlinePassed));
    }
}
