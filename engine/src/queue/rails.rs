//! Which rails to one peer are in trouble, over all connections of one transport.
//!
//! A connection that ended because of one rail is made again with all of them, and that one would end it again. So it is
//! left out, for a time that doubles with each failure, while the others carry what it would have carried.
//!
//! Threads: any. On the way of operations only where a rail is in trouble.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::plan::cool_down::CoolDown;
use crate::types::RailId;

/// The rails of one transport to one peer.
#[derive(Debug)]
pub struct Rails {
    began: Instant,
    /// Those that have failed since they last moved anything. Held for moments.
    troubled: Mutex<BTreeMap<RailId, CoolDown>>,
    /// Whether there is one, so that others cost no lock.
    is_troubled: AtomicBool,
}

impl Default for Rails {
    fn default() -> Self {
        Self { began: Instant::now(), troubled: Mutex::default(), is_troubled: AtomicBool::new(false) }
    }
}

impl Rails {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// A connection has ended because of this rail.
    pub fn failed(&self, rail: RailId) {
        self.troubled.lock().entry(rail).or_default().failed(self.now());
        self.is_troubled.store(true, Ordering::Relaxed);
    }

    /// An operation over it has succeeded.
    pub fn succeeded(&self, rail: RailId) {
        if !self.is_troubled.load(Ordering::Relaxed) {
            return;
        }
        let mut troubled = self.troubled.lock();
        troubled.remove(&rail);
        self.is_troubled.store(!troubled.is_empty(), Ordering::Relaxed);
    }

    /// The link to the peer is gone, and with it what was found out about the way.
    pub fn forget(&self) {
        self.troubled.lock().clear();
        self.is_troubled.store(false, Ordering::Relaxed);
    }

    /// Those that are left out now.
    #[must_use]
    pub fn out(&self) -> Vec<RailId> {
        if !self.is_troubled.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let now = self.now();
        let troubled = self.troubled.lock();
        troubled.iter().filter(|(_, rail)| !rail.remaining(now).is_zero()).map(|(&rail, _)| rail).collect()
    }

    /// An operation goes by it: where its time was over, it is tried by that one alone.
    pub fn chosen(&self, rail: RailId) {
        if !self.is_troubled.load(Ordering::Relaxed) {
            return;
        }
        if let Some(rail) = self.troubled.lock().get_mut(&rail) {
            rail.admits(self.now());
        }
    }

    /// How often it has failed without a success between, and how long it is left out.
    #[must_use]
    pub fn trouble(&self, rail: RailId) -> (u32, Duration) {
        let troubled = self.troubled.lock();
        troubled.get(&rail).map_or((0, Duration::ZERO), |rail| (rail.failures(), rail.remaining(self.now())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_is_out_after_a_failure_and_back_after_a_success() {
        let rails = Rails::default();
        let (good, bad) = (RailId(0), RailId(1));
        rails.failed(bad);
        rails.failed(bad);
        assert_eq!(rails.out(), [bad]);
        let (failures, out) = rails.trouble(bad);
        assert!(failures == 1 && out <= Duration::from_millis(100), "{failures} {out:?}");
        assert_eq!(rails.trouble(good), (0, Duration::ZERO));
        rails.succeeded(good);
        assert_eq!(rails.out(), [bad]);
        rails.succeeded(bad);
        assert_eq!((rails.out(), rails.trouble(bad).0), (Vec::new(), 0));
        rails.failed(bad);
        rails.forget();
        assert_eq!(rails.out(), []);
    }

    #[test]
    fn one_operation_tries_a_rail_whose_time_is_over() {
        let rails = Rails::default();
        rails.failed(RailId(1));
        std::thread::sleep(rails.trouble(RailId(1)).1);
        assert_eq!(rails.out(), []);
        rails.chosen(RailId(1));
        assert_eq!(rails.out(), [RailId(1)], "another operation is to know first how that went");
        rails.failed(RailId(1));
        assert_eq!(rails.trouble(RailId(1)).0, 2);
    }
}
