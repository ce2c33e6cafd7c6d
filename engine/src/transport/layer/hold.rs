//! Holds operations back until a policy lets them go on: what [`super::throttle`] and [`super::fault`] are made of. What is held
//! of one connection is [its own](connection).
//!
//! Threads: who posts lets go on what has nothing before it; one task of the layer, which sleeps while nothing is held, lets
//! the rest go on, in turn among the connections. It does none of the work: it is one of the runtime's.

mod connection;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use self::connection::{Held, HoldEndpoint};
use super::{Poster, Wrap};
use crate::error::Error;
use crate::transport::{BoxFuture, Endpoint};
use crate::types::PeerId;

/// What becomes of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is done.
    Pass,
    /// It is done, and if it is a read, one byte of it is changed, chosen by the number.
    Corrupt(u64),
    /// It ends with this error, and nothing is moved.
    Fail(Error),
    /// It is lost, and ends at its deadline.
    Lose,
}

impl Outcome {
    /// Whether it gets to the transport below.
    fn moves(&self) -> bool {
        matches!(self, Self::Pass | Self::Corrupt(_))
    }
}

/// Decides about operations, in the order in which they are posted.
pub(super) trait Policy: Send + Sync + fmt::Debug {
    /// What becomes of an operation of `length` bytes to `peer`, and when.
    fn decide(&self, peer: PeerId, length: usize, now: Instant) -> (Instant, Outcome);

    /// When an operation that is due at `due` may start, as far as is known.
    fn ready_at(&self, due: Instant) -> Instant {
        due
    }

    /// Whether an operation of `length` bytes that is due since `due` may start at `now`. One that may is counted.
    fn start(&self, _due: Instant, _length: usize, _now: Instant) -> bool {
        true
    }

    /// One that might start has found no room below, and is to be asked for again.
    fn not_started(&self, _length: usize) {}

    /// Whether nothing gets to `peer` at the moment.
    fn is_cut_off(&self, _peer: PeerId) -> bool {
        false
    }
}

/// Wraps connections with one policy.
#[derive(Debug)]
pub(super) struct Holder {
    policy: Arc<dyn Policy>,
    operations_max: usize,
    endpoints: Arc<Endpoints>,
    /// Something is held, has ended, or is over.
    wake: Arc<Notify>,
}

/// The connections, for as long as somebody has them.
#[derive(Debug, Default)]
struct Endpoints(Mutex<Vec<Weak<Held>>>);

impl Endpoints {
    fn all(&self) -> Vec<Arc<Held>> {
        let mut endpoints = self.0.lock();
        endpoints.retain(|endpoint| endpoint.strong_count() > 0);
        endpoints.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Holder {
    pub(super) fn new(policy: Arc<dyn Policy>, operations_max: usize, runtime: &Handle) -> Self {
        let (endpoints, wake) = (Arc::new(Endpoints::default()), Arc::<Notify>::default());
        runtime.spawn(follow(Arc::downgrade(&endpoints), Arc::clone(&wake)));
        Self { policy, operations_max, endpoints, wake }
    }
}

impl Drop for Holder {
    /// Wakes the task for its end.
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl Wrap for Holder {
    fn wrap(&self, peer: PeerId, inner: Arc<dyn Endpoint>) -> Arc<dyn Endpoint> {
        let (policy, wake) = (Arc::clone(&self.policy), Arc::clone(&self.wake));
        let held = Arc::new(Held::new(peer, inner, policy, self.operations_max, wake));
        self.endpoints.0.lock().push(Arc::downgrade(&held));
        Arc::new(HoldEndpoint(held))
    }

    fn forget(&self, peer: PeerId) {
        let endpoints = self.endpoints.all();
        for endpoint in endpoints.iter().filter(|endpoint| endpoint.peer == peer) {
            endpoint.pump(Poster::HandsOver);
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for endpoint in self.endpoints.all() {
                endpoint.close().await;
            }
        })
    }
}

/// Pumps when something is due or has ended, until the layer is dropped: the one of which something went on last comes last.
async fn follow(endpoints: Weak<Endpoints>, wake: Arc<Notify>) {
    let mut first = 0;
    loop {
        let Some(mut all) = endpoints.upgrade().map(|endpoints| endpoints.all()) else { return };
        let count = all.len().max(1);
        all.rotate_left(first % count);
        let mut last = None;
        for (place, held) in all.iter().enumerate().filter(|(_, held)| held.is_holding()) {
            if held.pump(Poster::HandsOver) {
                last = Some(place);
            }
        }
        first = last.map_or(first, |last| first + last + 1) % count;
        let idle_for = all.iter().filter_map(|held| held.idle_for()).min();
        drop(all);
        match idle_for {
            // Whichever comes first; the time out is no error.
            Some(idle_for) => drop(tokio::time::timeout(idle_for, wake.notified()).await),
            None => wake.notified().await,
        }
    }
}
