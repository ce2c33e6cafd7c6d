//! Bad days as inputs: operations that are late, lost, refused or changed, decided by a seed, and peers that are cut off.
//!
//! A ticket ends once by its type, so no fault here ends one twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::Layer;
use super::hold::{Holder, Outcome, Policy};
use crate::error::Error;
use crate::rng::Rng;
use crate::transport::Transport;
use crate::types::PeerId;

/// Which faults, and how often. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultOptions {
    /// Decides everything below, in the order in which operations are posted.
    pub seed: u64,
    /// Longest time that an operation is held before it starts; each is held for some part of it.
    pub delay_max: Duration,
    /// Probability that an operation is lost: nothing is moved, and it ends at its deadline.
    pub loss: f64,
    /// Probability that an operation fails at once, retryable.
    pub failure: f64,
    /// Every so many operations, one fails at once, retryable; 0 for none.
    pub fail_every: u64,
    /// Probability that one byte of a read arrives changed, which nobody is told. Writes arrive as they are.
    pub corruption: f64,
}

/// The faults of one transport.
#[derive(Debug)]
pub struct Faults {
    options: FaultOptions,
    /// What is drawn from, and how many were drawn.
    state: Mutex<(Rng, u64)>,
    cut_off: Mutex<BTreeSet<PeerId>>,
}

impl Faults {
    /// Faults after `options`.
    #[must_use]
    pub fn new(options: FaultOptions) -> Arc<Self> {
        let (state, cut_off) = (Mutex::new((Rng::seeded(options.seed), 0)), Mutex::default());
        Arc::new(Self { options, state, cut_off })
    }

    /// Lets nothing start towards `peer` until [`Self::heal`]; it waits, or ends at its deadline.
    pub fn partition(&self, peer: PeerId) {
        self.cut_off.lock().insert(peer);
    }

    /// Ends a partition, within 10 ms.
    pub fn heal(&self, peer: PeerId) {
        self.cut_off.lock().remove(&peer);
    }
}

/// `inner` with `faults`. Timers run on `runtime`.
#[must_use]
pub fn faulty(inner: Arc<dyn Transport>, faults: &Arc<Faults>, runtime: &Handle) -> Arc<dyn Transport> {
    let operations_max = inner.capabilities().operations_max;
    let policy = Arc::clone(faults) as Arc<dyn Policy>;
    Arc::new(Layer { inner, wrap: Holder::new(policy, operations_max, runtime) })
}

impl Policy for Faults {
    fn decide(&self, _peer: PeerId, _length: usize, now: Instant) -> (Instant, Outcome) {
        let FaultOptions { delay_max, loss, failure, fail_every, corruption, .. } = self.options;
        let mut state = self.state.lock();
        let (rng, count) = &mut *state;
        *count += 1;
        // Each is drawn each time, so that one option does not change what another decides.
        let delay = rng.time_below(delay_max);
        let (is_lost, is_failed) = (rng.chance(loss), rng.chance(failure));
        let (is_corrupt, victim) = (rng.chance(corruption), rng.next_u64());
        let is_counted_out = count.checked_rem(fail_every) == Some(0);
        let outcome = match () {
            () if is_failed || is_counted_out => {
                Outcome::Fail(Error::transport("fault", "an injected failure"))
            }
            () if is_lost => Outcome::Lose,
            () if is_corrupt => Outcome::Corrupt(victim),
            () => Outcome::Pass,
        };
        (now + delay, outcome)
    }

    fn is_cut_off(&self, peer: PeerId) -> bool {
        self.cut_off.lock().contains(&peer)
    }
}
